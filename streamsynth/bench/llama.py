"""One text at a time on the CPU: tokens a second of ours, transformers and vLLM, and what the memory could give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamsynth.bench import llama_side
from streamsynth.bench.llama_side import Decoded
from streamsynth.bench.report import Report, Row
from streamsynth.environment import child_environment
from streamsynth.errors import invalid_value

OURS = "streamsynth"
ONE_BY_ONE = "streamsynth, one by one"
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaLoad:
    """`folder` is in the Hugging Face layout. `vllm` is the Python of an environment that has it, or None.

    Every side makes `tokens` tokens of each of the first `texts` texts, greedily at `temperature` 0, `rounds` times,
    the sides taking turns. Our own is measured twice: as it is, and without guesses.
    """

    folder: Path
    dtypes: Sequence[str] = ("float32", "bfloat16")
    threads: Sequence[int] = (1, 2)
    texts: int = len(llama_side.TEXTS)
    tokens: int = 128
    rounds: int = 1
    temperature: float = 0.0
    vllm: Path | None = None

    def __post_init__(self) -> None:
        for dtype in self.dtypes:
            if dtype not in _ITEM_BYTES:
                raise invalid_value("dtype", dtype, " or ".join(_ITEM_BYTES))
        if not 1 <= self.texts <= len(llama_side.TEXTS):
            raise invalid_value("texts", self.texts, f"from 1 to {len(llama_side.TEXTS)}")


def bench_llama(load: LlamaLoad) -> Report:
    """Blocking. Raises SideFailed if a side cannot be started or dies."""
    rows: list[Row] = []
    notes: list[str] = []
    for dtype in load.dtypes:
        for threads in load.threads:
            rows += _compare(load, dtype, threads, notes)
    settings = {name: getattr(load, name) for name in ("texts", "tokens", "rounds", "temperature")}
    settings |= {"folder": load.folder.name}
    return Report("llama", rows, notes=notes, settings=settings)


_VLLM = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
"""One process, whose threads run where the others' do."""


_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Of every side, where the machine leaves that to programs: weights are read a seventh faster so."""


class SideFailed(Exception):
    """What a side said last."""


def _compare(load: LlamaLoad, dtype: str, threads: int, notes: list[str]) -> list[Row]:
    pythons = dict.fromkeys((OURS, ONE_BY_ONE, "transformers", "memory"), sys.executable)
    if load.vllm is not None:
        pythons["vllm"] = str(load.vllm)
    found: dict[str, list[Decoded]] = {side: [] for side in pythons}
    before = os.getloadavg()[0]
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(_side(python, name, load, dtype, threads)) for name, python in pythons.items()
        }
        for text in range(load.texts):
            rounds = [{name: _ask(side, name, text) for name, side in sides.items()} for _ in range(load.rounds)]
            for name, each in found.items():
                each.append(_least([made[name] for made in rounds]))
    where = f"{dtype}, {threads} threads"
    notes.append(f"{where}: load average {before:.1f} before, {os.getloadavg()[0]:.1f} after")
    if load.temperature == 0:
        notes += _disagreements(found, where)
    gigabytes = _weight_bytes(load.folder, dtype) / 1e9
    memory = 1 / min(made.wall_s for made in found["memory"])
    rows: list[Row] = []
    for name in sides:
        speeds: dict[str, float | None] = dict.fromkeys(_SPEEDS) | {"GB/s": memory}
        if name != "memory":
            speeds = _speeds(found[name], found.get("vllm"), load.tokens, gigabytes, memory)
        rows.append({"side": name, "dtype": dtype, "threads": threads, **speeds})
    return rows


@contextmanager
def _side(python: str, name: str, load: LlamaLoad, dtype: str, threads: int) -> Iterator[subprocess.Popen[str]]:
    """A process that is ready; ends with the context."""
    command = [python, "-P", llama_side.__file__, name, str(load.folder), dtype, str(threads)]
    command += [str(load.tokens), str(load.temperature)]
    settings = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": str(threads), **_HUGE_PAGES, **_VLLM}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=child_environment(settings),
    ) as process:
        try:
            _read(process, name)
            yield process
        finally:
            process.kill()


def _ask(process: subprocess.Popen[str], name: str, text: int) -> Decoded:
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()
    return Decoded(**_read(process, name))


def _read(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SideFailed(f"{name} ended with status {process.wait()}: {process.args!r}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _least(rounds: Sequence[Decoded]) -> Decoded:
    """The quickest round, by the clock and by the CPU time: others had more of somebody else's work in them."""
    wall_s, cpu_s = min(made.wall_s for made in rounds), min(made.cpu_s for made in rounds)
    return replace(rounds[0], wall_s=wall_s, cpu_s=cpu_s)


_SPEEDS = ("tokens/s", "over vllm", "least", "most", "tokens a pass", "tokens per CPU s", "GB/s", "of memory")


def _speeds(
    made: Sequence[Decoded], vllm: Sequence[Decoded] | None, tokens: int, gigabytes: float, memory: float
) -> dict[str, float | None]:
    """Of all texts together; `least` and `most` are the single texts' `over vllm`. Every pass reads `gigabytes`, and
    `memory` is in GB/s."""
    wall_s, passes, count = sum(each.wall_s for each in made), sum(each.passes for each in made), tokens * len(made)
    over: list[float] = [] if vllm is None else [a.wall_s / b.wall_s for a, b in zip(vllm, made, strict=True)]
    speeds = (
        count / wall_s,
        None if vllm is None else sum(each.wall_s for each in vllm) / wall_s,
        min(over, default=None),
        max(over, default=None),
        count / passes,
        count / sum(each.cpu_s for each in made),
        gigabytes * passes / wall_s,
        gigabytes * passes / wall_s / memory,
    )
    return dict(zip(_SPEEDS, speeds, strict=True))


def _weight_bytes(folder: Path, dtype: str) -> int:
    """What every token reads: all weights, of which a tied head is the embedding."""
    from safetensors import safe_open

    from streamsynth.models.llama.config import LlamaConfig
    from streamsynth.models.llama.weights import checkpoint_files

    tied = LlamaConfig.from_hf(json.loads((folder / "config.json").read_text())).tied
    count = 0
    for path in checkpoint_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # safe_open is no mapping
                if tied or name != "model.embed_tokens.weight":
                    rows, *columns = file.get_slice(name).get_shape()
                    count += rows * (columns[0] if columns else 1)
    return count * _ITEM_BYTES[dtype]


def _disagreements(found: Mapping[str, Sequence[Decoded]], where: str) -> Iterator[str]:
    """Greedy tokens are the same until rounding decides between two."""
    for name, given in found.items():
        for text, (ours, theirs) in enumerate(zip(found[OURS], given, strict=True)):
            pairs = enumerate(zip(ours.tokens, theirs.tokens, strict=False))
            first = next((place for place, (token, other) in pairs if token != other), None)
            if first is not None:
                yield f"{where}: {name} says another token of text {text} than ours from place {first} on"
