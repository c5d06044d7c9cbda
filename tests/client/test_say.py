"""`say` blocks its caller and nobody else, wherever it is called from."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamsynth import Audio, ErrorCode, StreamSynthError, say
from streamsynth.testing.server_process import ServerProcess
from streamsynth.testing.sine import sine


def assert_is_tone(audio: Audio, characters: int) -> None:
    assert (audio.sample_rate, audio.samples.dtype) == (24_000, np.float32)
    expected = sine(0, characters * 1200)
    assert len(audio.samples) == len(expected)
    assert np.abs(audio.samples - expected).max(initial=0) <= 1 / 32768
    assert audio.seconds == pytest.approx(characters * 0.05)


def test_it_returns_the_whole_audio() -> None:
    assert_is_tone(say("abc", model="sine"), 3)


def test_it_says_nothing_of_nothing() -> None:
    assert_is_tone(say("", model="sine"), 0)


async def test_it_works_inside_a_running_loop() -> None:
    """As in a notebook cell, whose loop runs already."""
    assert_is_tone(say("abc", model="sine"), 3)


def test_many_threads_can_say_things_at_once() -> None:
    heard: dict[int, Audio] = {}

    def work(characters: int) -> None:
        heard[characters] = say("x" * characters, model="sine")

    threads = [threading.Thread(target=work, args=(characters,)) for characters in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for characters in range(1, 9):
        assert_is_tone(heard[characters], characters)


def test_a_server_can_do_it(sine_server: ServerProcess) -> None:
    assert_is_tone(say("abc", url=sine_server.url), 3)
    assert_is_tone(say("abc", url=sine_server.url, model="sine"), 3)


def test_it_writes_a_file_too(tmp_path: Path) -> None:
    audio = say("abc", model="sine", output=tmp_path / "out.flac")
    samples, rate = soundfile.read(tmp_path / "out.flac", dtype="float32")
    assert rate == audio.sample_rate
    assert np.abs(samples - audio.samples).max() <= 1 / 32768


def test_its_errors_have_the_usual_codes(tmp_path: Path) -> None:
    for settings, code in [({"speed": 9}, ErrorCode.INVALID_VALUE), ({"voice": "nobody"}, ErrorCode.VOICE_NOT_FOUND)]:
        with pytest.raises(StreamSynthError) as caught:
            say("abc", model="sine", output=tmp_path / "out.wav", **settings)
        assert caught.value.code is code
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StreamSynthError) as caught:
        say("abc", model="nothing")
    assert caught.value.code is ErrorCode.MODEL_NOT_FOUND


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


WORKERS_OUTLIVE_NOBODY = """
import os
from streamsynth import say
from streamsynth.testing.faults import find_workers
say("abc", model="sine")
print(*find_workers(os.getpid()))
"""


def test_its_workers_end_with_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKERS_OUTLIVE_NOBODY], capture_output=True, text=True, timeout=60, check=True
    )
    (pid,) = done.stdout.split()
    assert done.stderr == ""
    assert not is_running(int(pid))


INTERRUPTED = """
from streamsynth import say
say("abc", model="sine")
try:
    print("saying", flush=True)
    say("{delay 50}" + "x" * 60_000, model="sine")
except KeyboardInterrupt:
    say("abc", model="sine")
    print("interrupted", flush=True)
"""


def test_ctrl_c_cancels_it_and_the_next_call_works() -> None:
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "saying\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(20) == 0


FORKED = """
import os, warnings
warnings.simplefilter("ignore")
from streamsynth import say
say("abc", model="sine")
child = os.fork()
if child == 0:
    os._exit(0 if len(say("abc", model="sine").samples) == 3600 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(say("abc", model="sine").samples))
"""


def test_a_forked_child_starts_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0 3600\n"
