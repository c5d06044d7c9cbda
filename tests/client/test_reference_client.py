"""The client of examples/reference_speech_client.py: written from the reference's documented messages only."""

from __future__ import annotations

import base64
import importlib.util
import json
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripted_server import Scripted, scripted_server

from streamsynth.testing.server_process import ServerProcess

SOURCE = Path(__file__).parents[2] / "examples" / "reference_speech_client.py"
SAMPLES_PER_CHARACTER = 1200


@pytest.fixture(scope="module")
def client() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_speech_client", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server(shared_serve_process: Callable[..., ServerProcess]) -> ServerProcess:
    return shared_serve_process("--model", "sine")


def run_client(server: ServerProcess, output: Path, *arguments: str) -> list[str]:
    url = server.url.replace("http", "ws") + "/v1/audio/speech/stream"
    command = [sys.executable, str(SOURCE), "--url", url, "--output-dir", str(output), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def wav_samples(path: Path) -> int:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        return file.getnframes()


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_it_knows_nothing_of_streamsynth() -> None:
    assert "streamsynth" not in SOURCE.read_text().lower().partition('"""\n\nfrom')[2]


def test_two_texts_are_two_utterances_of_one_connection_and_two_files(server: ServerProcess, tmp_path: Path) -> None:
    """CL-1, SP-1, SP-2, with every default untouched."""
    said = run_client(server, tmp_path, "--text", "abc def", "--text", "second")
    assert said == [
        f"utterance_000_sentence_000: {7 * SAMPLES_PER_CHARACTER * 2 + 44} bytes",
        "utterance 0: 1 sentences",
        f"utterance_001_sentence_000: {6 * SAMPLES_PER_CHARACTER * 2 + 44} bytes",
        "utterance 1: 1 sentences",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "utterance_000_sentence_000.wav",
        "utterance_001_sentence_000.wav",
    ]
    assert wav_samples(tmp_path / "utterance_000_sentence_000.wav") == 7 * SAMPLES_PER_CHARACTER
    assert wav_samples(tmp_path / "utterance_001_sentence_000.wav") == 6 * SAMPLES_PER_CHARACTER


def test_word_by_word_is_one_request_of_the_same_text(server: ServerProcess, tmp_path: Path) -> None:
    """CL-2, SP-3, S62: spaces survive, and nothing is split."""
    arguments = ["--text", "a b c", "--simulate-stt", "--stt-delay", "0.01", "--response-format", "pcm"]
    said = run_client(server, tmp_path, *arguments)
    assert said[-1] == "utterance 0: 1 sentences"
    assert (tmp_path / "utterance_000_sentence_000.pcm").stat().st_size == 5 * SAMPLES_PER_CHARACTER * 2


def test_chunks_are_saved_beside_the_whole(server: ServerProcess, tmp_path: Path) -> None:
    arguments = ["--text", "abc def", "--stream-audio", "--response-format", "pcm", "--save-chunks"]
    run_client(server, tmp_path, *arguments)
    chunks = sorted(tmp_path.glob("*_chunk_*.pcm"))
    assert len(chunks) > 1
    assert b"".join(path.read_bytes() for path in chunks) == (tmp_path / "utterance_000_sentence_000.pcm").read_bytes()
    assert wav_samples(tmp_path / "utterance_000_sentence_000.wav") == 7 * SAMPLES_PER_CHARACTER


async def run_scripted(
    client: ModuleType, script: Callable[[Scripted], Any], texts: list[str], **options: Any
) -> tuple[list[str], Scripted]:
    said: list[str] = []
    async with scripted_server(script) as (url, connections):
        await client.run(url.replace("http", "ws"), texts, client.Options(**options), said.append)
    (connection,) = connections
    return said, connection


async def test_the_space_after_each_word_but_the_last_is_sent(client: ModuleType, tmp_path: Path) -> None:
    """CL-2."""

    async def script(server: Scripted) -> None:
        await server.receive_until("input.done")
        await server.session_done(0)
        await server.receive_until("session.close")

    _, server = await run_scripted(client, script, ["a b c"], output_dir=tmp_path, simulate_stt=True, stt_delay_s=0)
    assert server.received == [
        {"type": "session.config"},
        {"type": "input.text", "text": "a "},
        {"type": "input.text", "text": "b "},
        {"type": "input.text", "text": "c"},
        {"type": "input.done"},
        {"type": "session.close"},
    ]


def chunk_of(chunk_id: int, audio: bytes, timestamps: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {
        "utterance_index": 0,
        "sentence_index": 0,
        "chunk_id": chunk_id,
        "chunk_start_ms": 0,
        "chunk_end_ms": 10,
        "sample_rate": 24_000,
        "audio_b64": base64.b64encode(audio).decode(),
        "timestamps": timestamps,
    }


WORD = {"word": "hello", "start_ms": 0, "end_ms": 9}


@pytest.mark.parametrize(
    ("lists", "expected", "covered"),
    [
        ([None, None], None, ""),
        ([None, []], [], ""),
        ([[WORD], [{"word": ""}]], [WORD, {"word": ""}], "hello"),
    ],
)
async def test_failed_alignment_is_null_and_silence_is_empty(
    client: ModuleType, tmp_path: Path, lists: list[list[dict[str, Any]] | None], expected: object, covered: str
) -> None:
    """CL-3 and CL-4: the trailing chunk without audio leaves timestamps and no audio file."""

    async def script(server: Scripted) -> None:
        await server.receive_until("input.done")
        await server.start()
        await server.send("audio.chunk", **chunk_of(0, b"\1\0" * 240, lists[0]))
        await server.send("audio.chunk", **chunk_of(1, b"", lists[1]))
        await server.send("something.new")
        await server.done(240)
        await server.receive_until("session.close")

    config = {"response_format": "pcm", "stream_audio": True, "word_timestamps": True}
    said, _ = await run_scripted(client, script, ["hello"], output_dir=tmp_path, config=config, save_chunks=True)
    assert said == ["ignored: something.new", "utterance_000_sentence_000: 480 bytes", "utterance 0: 1 sentences"]
    names = names_in(tmp_path)
    assert "utterance_000_sentence_000_chunk_000.pcm" in names
    assert "utterance_000_sentence_000_chunk_001.pcm" not in names
    assert "utterance_000_sentence_000_chunk_001_timestamps.json" in names
    whole = read_json(tmp_path / "utterance_000_sentence_000_timestamps.json")
    assert whole["timestamps"] == expected
    assert (whole["covered_text"], whole["sentence_text"]) == (covered, "a text")


async def test_an_error_is_shown_and_the_next_utterance_goes_on(client: ModuleType, tmp_path: Path) -> None:
    """SP-10 from the client's side."""

    async def script(server: Scripted) -> None:
        await server.receive_until("input.done")
        await server.send("error", message="no such voice")
        await server.session_done(0)
        await server.receive_until("input.done")
        await server.session_done(0, utterance=1)
        await server.receive_until("session.close")

    said, _ = await run_scripted(client, script, ["a", "b"], output_dir=tmp_path)
    assert said == ["error: no such voice", "utterance 0: 1 sentences", "utterance 1: 1 sentences"]
