"""`streamsynth speak`, run as a user runs it, against the sine model whose every sample is known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from streamsynth.codecs.quantise import to_s16
from streamsynth.environment import child_environment
from streamsynth.session import MAX_UTTERANCES
from streamsynth.testing.server_process import ServerProcess
from streamsynth.testing.sine import sine

COMMAND = [sys.executable, "-m", "streamsynth", "speak", "--model", "sine"]
SAMPLES_PER_CHARACTER = 1200


def tone(characters: int) -> bytes:
    return to_s16(sine(0, characters * SAMPLES_PER_CHARACTER)).tobytes()


def speak(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([*COMMAND, *arguments], capture_output=True, timeout=60, check=False, **options)


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([*COMMAND, *arguments], **pipes)


@pytest.mark.parametrize("suffix", ["wav", "flac", "pcm"])
def test_a_file_holds_every_sample_in_the_format_of_its_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    done = speak("Hello there.", "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    assert b"first audio" in done.stderr
    if suffix == "pcm":
        assert path.read_bytes() == tone(12)
    else:
        samples, rate = soundfile.read(path, dtype="int16")
        assert (rate, samples.tobytes()) == (24_000, tone(12))


@pytest.mark.parametrize("suffix", ["mp3", "opus", "aac"])
def test_compressing_formats_are_what_their_name_says(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    assert speak("Hello there.", "-o", str(path)).returncode == 0
    head = path.read_bytes()[:4]
    assert head.startswith({"mp3": b"\xff\xf3", "opus": b"OggS", "aac": b"\xff\xf1"}[suffix])


@pytest.mark.parametrize("arguments", [[], ["-o", "-"]])
def test_a_pipe_gets_raw_pcm(arguments: list[str]) -> None:
    assert speak("abc", *arguments).stdout == tone(3)


def test_a_server_can_do_the_speaking(sine_server: ServerProcess) -> None:
    assert speak("abc", "--url", sine_server.url).stdout == tone(3)


def test_the_key_of_a_server_is_taken_from_the_environment(serve_process: Callable[..., ServerProcess]) -> None:
    url = serve_process("--model", "sine", env={"STREAMSYNTH_API_KEYS": "c2VjcmV0"}).url
    refused = speak("abc", "--url", url)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"an API key is required" in refused.stderr
    assert speak("abc", "--url", url, env=child_environment({"STREAMSYNTH_API_KEY": "c2VjcmV0"})).stdout == tone(3)


def test_text_can_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcd")
    assert speak("--file", str(tmp_path / "text.txt")).stdout == tone(4)


def test_redirected_input_need_not_be_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abcd")
    with (tmp_path / "text.txt").open() as text:
        assert speak(stdin=text).stdout == tone(4)
    assert speak().stdout == b""


def test_speech_begins_before_the_piped_text_has_ended() -> None:
    with start() as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("Héllo there. How a".encode()[:-1])
        process.stdin.flush()
        heard = process.stdout.read(1000)
        process.stdin.write(b"are you?")
        process.stdin.close()
        rest = process.stdout.read()
        assert heard == tone(1)[:1000]
        assert len(heard + rest) == len(tone(len("Héllo there. How are you?")))


def test_a_long_text_is_spoken_to_its_end(tmp_path: Path) -> None:
    """It is more utterances than a session may have unread: the text waits for its speech."""
    sentence = "This is one of many sentences. "
    count = 3300
    (tmp_path / "text.txt").write_text(sentence * count)
    done = speak("--file", str(tmp_path / "text.txt"))
    pause = round(0.6 * 24_000)
    utterances = -(-count // -(-1500 // len(sentence)))
    assert utterances > MAX_UTTERANCES
    assert done.returncode == 0, done.stderr
    expected = count * len(sentence) * SAMPLES_PER_CHARACTER + (utterances - 1) * pause
    assert len(done.stdout) // 2 == expected


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_stops_it_at_once_and_what_was_written_is_a_whole_file(
    tmp_path: Path, told: signal.Signals
) -> None:
    """Ctrl-C, a service manager, a terminal that closes."""
    path = tmp_path / "out.wav"
    with start("{delay 50}" + "x" * 3000, "-o", str(path)) as process:
        deadline = time.monotonic() + 30
        while not path.exists() or path.stat().st_size < 20_000:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        process.send_signal(told)
        asked = time.monotonic()
        assert process.wait(10) == 128 + told
        assert time.monotonic() - asked < 5
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    with wave.open(str(path)) as file:
        data = file.readframes(file.getnframes())
        assert len(data) == path.stat().st_size - 44
    assert data == to_s16(sine(0, len(data) // 2)).tobytes()


def test_when_nobody_reads_any_more_it_ends() -> None:
    with start("x" * 60_000) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(100)
        process.stdout.close()
        assert process.wait(30) == 141
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--speed", "9"], "speed is 9.0; it must be a number within 0.25..4"),
        (["x", "--voice", "nobody"], "nobody"),
        (["x", "-o", "out.ogg"], "it must be a name that ends in"),
        (["x", "-o", "/no/such/folder/out.wav"], "it must be in a folder that exists"),
        (["x", "--file", "y"], "--file"),
        (["--file", "/no/such/file"], "cannot be read: No such file or directory"),
        (["x", "--url", "nowhere"], "the address of a server"),
        (["x", "--url", "http://127.0.0.1:1"], "no connection to ws://127.0.0.1:1"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = speak(*arguments, cwd=tmp_path)
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_a_failure_half_way_is_said_and_leaves_what_was_made(tmp_path: Path) -> None:
    done = speak("{fail 2}Hello there.", "-o", str(tmp_path / "out.wav"))
    assert (done.returncode, done.stderr.decode()) == (2, "error: told to fail at chunk 2\n")
    samples, _ = soundfile.read(tmp_path / "out.wav", dtype="int16")
    assert np.array_equal(samples, to_s16(sine(0, 2 * 1920)))


def test_input_that_is_no_text_is_refused() -> None:
    with start() as process:
        _, errors = process.communicate(b"abc \xff\xff", timeout=60)
        assert (process.returncode, errors.decode()) == (2, "error: the text on standard input is not UTF-8\n")


def test_a_terminal_with_nothing_to_say_is_told_how() -> None:
    main, terminal = os.openpty()
    try:
        done = speak(stdin=terminal)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.decode() == "error: there is nothing to say: give a TEXT, --file, or pipe text in\n"
    finally:
        os.close(main)
        os.close(terminal)
