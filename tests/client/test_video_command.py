"""`streamsynth video`: a clip in a file or a pipe, steered where it was asked."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import av
import pytest

from streamsynth.errors import StreamSynthError
from streamsynth.testing.paint import Painted, read_picture
from streamsynth.testing.server_process import ServerProcess
from streamsynth.video_command import Update, parse_update


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "streamsynth", "video", *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


def pictures(data: bytes) -> list[Painted]:
    with av.open(io.BytesIO(data)) as container:
        return [read_picture(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def test_a_clip_has_its_length_and_changes_where_it_says(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    done = run(
        "red", "-o", str(path), "--model", "paint", "--seconds", "3", "--update", "1.5s: blue", "--transition", "0"
    )
    assert done.returncode == 0, done.stderr
    seen = pictures(path.read_bytes())
    assert [each.frame for each in seen] == list(range(48))
    changed = next(each.frame for each in seen if each.prompt_version)
    assert 1.5 <= changed / 16 < 1.5 + 0.75
    assert f"{changed / 16:.2f} s: blue".encode() in done.stderr


def test_a_server_makes_it_and_it_can_be_piped(shared_serve_process: Callable[..., ServerProcess]) -> None:
    server = shared_serve_process("--model", "paint")
    done = run("green", "-o", "-", "--url", server.url, "--seconds", "1", "--width", "128")
    assert done.returncode == 0, done.stderr
    assert len(pictures(done.stdout)) == 16


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--update", "soon: snow"), b"--update"),
        (("--update", "9s: snow"), b"before the end"),
        (("--seconds", "0"), b"--seconds"),
        (("--width", "5"), b"width"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(arguments: tuple[str, ...], said: bytes) -> None:
    done = run("red", "-o", "-", "--model", "paint", *arguments)
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count(b"\n") == 1


def test_an_update_that_does_not_happen_is_said_and_the_video_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    updates = ("0.5s: {refuse 0}", "3s: blue", "3s: green")
    done = run("red", "-o", str(path), "--model", "paint", "--seconds", "5", *(f"--update={each}" for each in updates))
    assert done.returncode == 1
    assert len(pictures(path.read_bytes())) == 80
    said = done.stderr.decode()
    assert "0.5 s: {refuse 0}: refused: " in said
    assert "3 s: blue: another update took its place" in said
    assert "s: green\n" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{refuse 0}",), b"prompt"),
        (("red", "--transition", "-1", "--update", "0.5s: blue"), b"--transition is -1; it must be within 0..1000\n"),
        (("red", "--transition", "1001"), b"--transition is 1001; it must be within 0..1000\n"),
        (("red", "--update", "0.5s: " + "x" * 4097), b"it must be text of 1 to 4096 characters"),
        (("red", "--update", "0.5s:  "), b"--update is ' '; it must be text of 1 to 4096 characters"),
        (("{fail 3}", "--seconds", "6"), b"told to fail at chunk 3"),
    ],
)
def test_a_video_that_is_refused_or_fails_leaves_the_file_as_it_was(
    arguments: tuple[str, ...], said: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"an earlier clip")
    done = run(*arguments, "-o", str(path), "--model", "paint")
    assert done.returncode == 2 and said in done.stderr and done.stderr.count(b"\n") == 1
    assert path.read_bytes() == b"an earlier clip"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_ends_the_work_and_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"an earlier clip")
    command = [sys.executable, "-m", "streamsynth", "video", "red", "-o", str(path), "--model", "paint"]
    with subprocess.Popen([*command, "--seconds", "3600"], stderr=subprocess.PIPE) as process:
        while not list(tmp_path.glob(".clip.mp4.*.part")) and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert path.read_bytes() == b"an earlier clip"
    assert list(tmp_path.iterdir()) == [path]


def test_where_no_file_can_appear_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "folder.mp4").mkdir()
    os.mkfifo(tmp_path / "pipe.mp4")
    for name, said in (
        ("folder.mp4", b"a file, no folder or pipe"),
        ("pipe.mp4", b"a file, no folder or pipe"),
        ("missing/clip.mp4", b"missing: No such file"),
    ):
        done = run("red", "-o", str(tmp_path / name), "--model", "paint")
        assert done.returncode == 2 and done.stderr.count(b"\n") == 1
        assert said in done.stderr
    assert (tmp_path / "pipe.mp4").is_fifo()


def test_an_update_is_a_time_and_a_prompt() -> None:
    assert parse_update("2s: snow falls: softly") == Update(2.0, "snow falls: softly")
    assert parse_update("0.5:x") == Update(0.5, "x")
    with pytest.raises(StreamSynthError):
        parse_update("snow at 2 s")
