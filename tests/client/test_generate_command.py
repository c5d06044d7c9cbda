"""`streamsynth generate`: a clip or an image in a file, here or by a server."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import av
import pytest

from streamsynth.generate_command import ProgressLine
from streamsynth.testing.paint import Painted, read_picture
from streamsynth.testing.paint_pipeline import FIRST_CHUNK_FRAMES
from streamsynth.testing.server_process import ServerProcess

COMMAND = [sys.executable, "-m", "streamsynth", "generate"]
SMALL = ("--size", "128x128", "--seed", "7")


@pytest.fixture(scope="module")
def server(shared_serve_process: Callable[..., ServerProcess]) -> ServerProcess:
    return shared_serve_process("--model", "paint")


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, timeout=60, check=False)


def pictures(data: bytes) -> list[Painted]:
    with av.open(io.BytesIO(data)) as container:
        return [read_picture(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


@pytest.mark.parametrize("door", ["local", "remote"])
def test_the_files_ending_says_what_is_made(door: str, server: ServerProcess, tmp_path: Path) -> None:
    where = ("--url", server.url) if door == "remote" else ("--model", "paint")
    image = [FIRST_CHUNK_FRAMES - 1]
    for name, frames in (("clip.mp4", list(range(24))), ("image.png", image), ("image.JPG", image)):
        path = tmp_path / name
        length = ("--seconds", "1.5") if len(frames) > 1 else ()
        done = run("a red field", "-o", str(path), *where, *SMALL, *length)
        assert done.returncode == 0, done.stderr
        assert [each.frame for each in pictures(path.read_bytes())] == frames
        assert done.stdout == b"" and b"seed 7" in done.stderr and name.encode() in done.stderr
    assert len(list(tmp_path.iterdir())) == 3


def test_a_deploy_file_says_which_model_and_how(tmp_path: Path) -> None:
    deploy, path = tmp_path / "deploy.yaml", tmp_path / "image.png"
    deploy.write_text("pipeline: paint\nstages:\n  brush:\n    step_ms: 1\n")
    done = run("red", "-o", str(path), "--deploy", str(deploy), *SMALL)
    assert done.returncode == 0, done.stderr
    assert len(pictures(path.read_bytes())) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "clip.avi"), b".mp4, .png, .jpg, .jpeg"),
        (("-o", "a.png", "--deploy", "deploy.yaml"), b"--deploy is 'deploy.yaml'; it must be absent with --url"),
        (("-o", "/nowhere/clip.mp4"), b"in a folder that is there"),
        (("-o", "a.mp4", "--seconds", "nan"), b"seconds is nan"),
        (("-o", "a.mp4", "--picture", "/dev/null"), b"input_reference must be"),
        (("-o", "a.png", "--seconds", "2"), b"absent for an image"),
        (("-o", "a.mp4", "--seconds", "0"), b"seconds is 0"),
        (("-o", "a.mp4", "--size", "5x5"), b"320x192, 128x128, 832x480"),
        (("-o", "a.mp4", "--steps", "5"), b"num_inference_steps is not supported"),
        (("-o", "a.mp4", "--picture", "/nowhere.png"), b"/nowhere.png: No such file"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(
    arguments: tuple[str, ...], said: bytes, server: ServerProcess, tmp_path: Path
) -> None:
    done = subprocess.run(
        [*COMMAND, "red", "--url", server.url, *arguments], capture_output=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count(b"\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_interrupt_ends_the_work_and_leaves_no_file(tmp_path: Path) -> None:
    command = [*COMMAND, "red", "-o", str(tmp_path / "clip.mp4"), "--model", "paint", "--seconds", "300000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        while not list(tmp_path.glob(".clip.mp4.*.part")) and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert not list(tmp_path.iterdir())


def test_progress_is_a_line_for_each_tenth_where_nobody_watches() -> None:
    out = io.StringIO()
    line = ProgressLine(out)
    for progress in (0.0, 0.05, 0.12, 0.19, 0.5, 1.0):
        line.show(progress)
    line.end("done")
    assert out.getvalue() == "12 %\n50 %\n100 %\ndone\n"
