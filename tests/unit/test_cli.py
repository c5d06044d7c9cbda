"""The command line: what each command prints, and that every error is one line and exit status 2."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from streamsynth import cli, doctor
from streamsynth.config.registry import pipelines


def run(*args: str) -> int:
    """The exit status of one command in this process."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*args])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def outside(*args: str) -> subprocess.CompletedProcess[str]:
    """One command in a process of its own, as a shell runs it."""
    command = [sys.executable, "-m", "streamsynth", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("serve", "speak", "models", "config", "doctor", "bench"))


@pytest.mark.parametrize("name", cli._COMMANDS)
def test_every_command_of_the_table_exists(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--help") == 0
    assert f"streamsynth {name}" in capsys.readouterr().out


def test_an_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sevre") == 2
    assert "serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["config", "show", "--set", "nope"], "--set is 'nope'; it must be STAGE.FIELD=VALUE"),
        (["config", "show", "--model", "bass"], "no model 'bass'; there are: tiny-speech, hibari, "),
        (["config", "show", "--deploy", "/nowhere.yaml"], "/nowhere.yaml: cannot be read: No such file"),
        (
            ["serve", "--model", "sine", "--set", "tone.threads=0"],
            "tone of sine, --set: threads is 0; it must be",
        ),
        (["serve", "--model", "sine", "--set", "tone.threads=1024"], "threads is 1024; it must be at most"),
        (["serve", "--model", "sine", "--host", "0.0.0.0"], "without API keys the server binds to loopback only"),
        (["serve", "--model", "sine", "--data", ""], "--data is ''; it must be the name of a folder"),
        (["serve", "--model", "sine", "--port", "70000"], "port is 70000; it must be within 0..65535"),
        (["serve", "--model", "sine", "--tls-key", "key.pem"], "TLS needs both files: tls_cert is missing"),
        (["serve", "--model", "sine", "--cors-origin", "example"], "cors_origin is 'example'; it must be"),
        (["serve", "--model", "sine", "--api-key-file", "/nowhere"], "/nowhere: cannot be read: No such file"),
        (["serve", "--model", "sine", "--limit", "sessions"], "--limit is 'sessions'; it must be NAME=VALUE"),
        (["serve", "--model", "sine", "--limit", "cats=3"], "--limit is 'cats=3'; it must be NAME=VALUE with one of"),
        (["serve", "--model", "sine", "--limit", "sessions=many"], "sessions is 'many'; it must be a number"),
        (["video", "red", "-o", "clip.txt"], "output is 'clip.txt'; it must be a name that ends in .mp4"),
    ],
)
def test_an_error_is_one_line_and_status_2(args: list[str], message: str) -> None:
    done = outside(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "ends", "said"),
    [
        ("models >&-", 0, ""),
        ("models 2>&-", 0, ""),
        ("models >/dev/full", 2, "error: standard output: No space left on device\n"),
        ("speak --model sine hello >/dev/full", 2, "error: standard output: No space left on device\n"),
    ],
)
def test_closed_and_full_streams_are_no_tracebacks(command: str, ends: int, said: str) -> None:
    typed = f"{shlex.quote(sys.executable)} -m streamsynth {command}"
    done = subprocess.run(["sh", "-c", typed], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ends
    assert done.stderr.endswith(said) and "Traceback" not in done.stderr


def test_a_taken_port_is_one_line_and_status_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = outside("serve", "--model", "sine", "--port", str(port))
    assert done.returncode == 2
    said = f"error: cannot listen on 127.0.0.1:{port}: Address already in use; --port takes another, 0 a free one\n"
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("content", ["", "# a comment\n\n", "not base64url!\n"])
def test_a_key_file_without_a_usable_key_is_refused_and_no_key_is_shown(content: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    done = outside("serve", "--model", "sine", "--api-key-file", str(path))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "base64url!" not in done.stderr


def test_config_show_gives_every_field_its_value_and_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text("pipeline: sine\nstages:\n  tone:\n    max_num_seqs: 7\n    lead_seconds: 3\n")
    assert run("config", "show", "--deploy", str(path), "--set", "tone.lead_seconds=4", "--json") == 0
    shown = {row["field"]: row for row in json.loads(capsys.readouterr().out)}
    assert (shown["max_num_seqs"]["value"], shown["max_num_seqs"]["from"]) == (7, f"{path}:4")
    assert (shown["lead_seconds"]["value"], shown["lead_seconds"]["from"]) == (4, "--set")
    assert (shown["threads"]["value"], shown["threads"]["from"]) == (1, "default")
    assert (shown["frequency_hz"]["concern"], shown["frequency_hz"]["from"]) == ("model", "pipeline")


def test_config_show_writes_tab_separated_lines_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "show", "--model", "sine") == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split("\t") == ["model", "stage", "concern", "field", "value", "from"]
    assert "sine\ttone\truntime\tthreads\t1\tdefault" in lines


def test_a_terminal_gets_a_drawn_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run("config", "show", "--model", "sine", "--set", "tone.frequency_hz=1") == 0
    shown = capsys.readouterr().out
    assert "─" in shown
    assert "frequency_hz" in shown
    assert "\t" not in shown


def test_models_lists_every_pipeline_with_its_voices(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in listed] == list(pipelines())
    assert all(model["default_voice"] in model["voices"] for model in listed if model["makes"] == "speech")
    assert all(model["sizes"] for model in listed if model["makes"] == "video" and model["realtime"])
    assert run("models") == 0
    assert capsys.readouterr().out.count("\n") == len(listed) + 1


def test_doctor_finds_this_machine_fit_and_a_taken_port_no_disease(capsys: pytest.CaptureFixture[str]) -> None:
    """It speaks a word in a real worker."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run("doctor", "--json", "--port", str(taken.getsockname()[1])) == 0
    found = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert "of speech" in found["voice"]["detail"]
    assert "taken" in next(row["detail"] for what, row in found.items() if what.startswith("port"))
    assert {row["verdict"] for row in found.values()} <= {"ok", "absent"}


def test_doctor_ends_with_status_1_when_something_needed_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def mute() -> str:
        raise RuntimeError("the voice made silence")

    monkeypatch.setattr(doctor, "_voice", mute)
    assert run("doctor") == 1
    assert "voice\tbroken\tthe voice made silence" in capsys.readouterr().out
