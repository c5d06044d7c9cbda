# Every target sets up what it needs: a virtual environment in .venv, filled again only when the requirements change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base-installed
DEV := $(VENV)/.dev-installed
TYPED := build/typed/streamsynth
ROOT := $(shell test "$$(id -u)" = 0 && echo yes)
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# No test and no demonstration reaches a model hub.
export HF_HUB_OFFLINE := 1

.PHONY: help demo serve test test-slow check format bench-smoke train-smoke test-tools clean
.DEFAULT_GOAL := help

help:
	@echo "make demo         speak a few sentences into out/demo.wav (ARGS=\"--model hibari\"), and steer a video into out/demo.mp4"
	@echo "make serve        run the server for speech and video; the page in the browser is at the printed address (ARGS=\"--port 8001 --model hibari\")"
	@echo "make test         the tests, the browser's included"
	@echo "make test-slow    the tests that take minutes"
	@echo "make check        ruff and mypy"
	@echo "make format       let ruff rewrite the sources"
	@echo "make bench-smoke  every benchmark for a short time: what must be zero, is it?"
	@echo "make train-smoke  every step of training tiny-world, at toy size"
	@echo "make clean        remove what the targets made"

demo: $(BASE)
	$(BIN)/python examples/demo.py --output out/demo.wav $(ARGS)
	$(BIN)/streamsynth video "a red ball bouncing over a green meadow" --seed 3 --seconds 5 --update "2s: snow falls" -o out/demo.mp4

serve: $(BASE)
	$(BIN)/streamsynth serve --model tiny-speech --model tiny-world $(ARGS)

test: $(DEV) test-tools
	$(BIN)/pytest -m "not slow and not gpu" $(ARGS)

test-slow: $(DEV)
	$(BIN)/pytest -m "slow and not gpu" $(ARGS)

# mypy cannot see through an editable install that puts three top-level folders below the package: it gets a view in
# which they lie there. It runs inside that view: beside our `codecs` folder it would take that for the standard library's.
check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@rm -rf build/typed && mkdir -p $(TYPED)
	@ln -s $(CURDIR)/streamsynth/* $(CURDIR)/realtime $(CURDIR)/codecs $(CURDIR)/web $(TYPED)/
	cd build/typed && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Figures of such short runs mean nothing; it fails on what must be zero whatever the machine: leaks, late frames, lost ends.
bench-smoke: $(DEV)
	$(BIN)/streamsynth bench speech --model sine --clients 2 --seconds 3 --cancels 5 --output out/bench-smoke
	$(BIN)/streamsynth bench wire --seconds 0.5 --output out/bench-smoke
	$(BIN)/streamsynth bench sessions --quick --output out/bench-smoke

# Two minutes on one core. The weights are of no use: it fails where a step does not run or its state does not come back.
train-smoke: $(DEV)
	rm -rf out/train-smoke
	cd examples && ../$(BIN)/python -m train_tiny_world.train ../out/train-smoke --toy --seconds 30
	cd examples && ../$(BIN)/python -m train_tiny_world.train ../out/train-smoke --toy

# Debian's own browser, not the builds that playwright would download; node runs the page's modules that need no browser;
# nginx stands before the server in one test.
test-tools:
	@command -v chromium >/dev/null && command -v node >/dev/null && PATH=$$PATH:/usr/sbin command -v nginx >/dev/null || { \
	  test -n "$(ROOT)" || { echo "the tests need: apt-get install chromium nodejs nginx" >&2; exit 1; }; \
	  $(APT) update && $(APT) install -y --no-install-recommends chromium nodejs nginx >/dev/null; }

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "StreamSynth needs Python 3.11 or newer")'
	@$(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); test -n "$(ROOT)" || exit 1; \
	  $(APT) update && $(APT) install -y --no-install-recommends python3-venv >/dev/null && $(PYTHON) -m venv $(VENV); }

$(BASE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV): this takes minutes the first time"
	@$(PIP) install -e . -c constraints.txt
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) for development: this takes minutes the first time"
	@$(PIP) install -e '.[dev]' -c constraints.txt
	@touch $@ $(BASE)

clean:
	rm -rf build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
