"""Speech over HTTP against a real server: exact samples, true headers, nothing hidden behind a 200."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import socket
import struct
import wave
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import av
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import soundfile
from over_http import CHUNK_SAMPLES, SAMPLES_PER_CHARACTER, SPEECH, close, quiet, refused, speak, tone, until_metrics

from streamsynth.testing.server_process import ServerProcess

FORMATS = ("mp3", "wav", "pcm", "flac", "opus", "aac")
CONTENT_TYPES = dict(
    zip(FORMATS, ("audio/mpeg", "audio/wav", "audio/pcm", "audio/flac", "audio/ogg", "audio/aac"), strict=True)
)
TEXT = "Three words here. And a second sentence! Is this the third?"
SAMPLES = len(TEXT) * SAMPLES_PER_CHARACTER


@pytest.fixture(scope="module")
def server(shared_serve_process: Any) -> ServerProcess:
    started: ServerProcess = shared_serve_process("--model", "sine", "--limit", "write_stall_s=0.5")
    return started


@pytest_asyncio.fixture
async def http(server: ServerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


def decode(data: bytes, *, sample_rate: int = 24_000) -> npt.NDArray[np.int16]:
    with av.open(io.BytesIO(data)) as container:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=sample_rate)
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def address(server: ServerProcess) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


def request(body: bytes, *, version: bytes = b"1.1") -> bytes:
    head = b"POST /v1/audio/speech HTTP/%b\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    return head % (version, len(body)) + body


def events(body: bytes) -> list[dict[str, Any]]:
    lines = [line for line in body.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_pcm_is_the_engines_samples_and_nothing_else(http: aiohttp.ClientSession) -> None:
    """S2, S3, S10, S15: 24 kHz mono s16le, in order, without a header, a seam or a trailer."""
    status, headers, body = await speak(http, input=TEXT, response_format="pcm")
    assert status == 200
    assert np.array_equal(np.frombuffer(body, "<i2"), tone(SAMPLES))
    assert (headers["Content-Type"], headers["X-Sample-Rate"], headers["X-Channels"]) == ("audio/pcm", "24000", "1")


async def test_a_plain_wav_is_a_finished_file(http: aiohttp.ClientSession) -> None:
    _, headers, body = await speak(http, input=TEXT, response_format="wav")
    assert int(headers["Content-Length"]) == len(body)
    with wave.open(io.BytesIO(body)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        assert np.array_equal(np.frombuffer(file.readframes(file.getnframes()), "<i2"), tone(SAMPLES))


@pytest.mark.parametrize("asked", [{"stream": True}, {"stream_format": "audio"}])
async def test_a_streamed_wav_has_one_live_header(http: aiohttp.ClientSession, asked: dict[str, Any]) -> None:
    """S2, S4, S5: both sizes unknown, one header, then samples only."""
    _, headers, body = await speak(http, input=TEXT, response_format="wav", **asked)
    assert "Content-Length" not in headers
    assert struct.unpack("<I", body[4:8]) == struct.unpack("<I", body[40:44]) == (0xFFFFFFFF,)
    assert np.array_equal(np.frombuffer(body[44:], "<i2"), tone(SAMPLES))


async def test_a_flac_that_is_not_to_be_streamed_states_its_length(http: aiohttp.ClientSession) -> None:
    """libsndfile reads the whole of it, which it cannot do with one of unknown length."""
    _, headers, body = await speak(http, input=TEXT, response_format="flac", stream=False)
    assert int(headers["Content-Length"]) == len(body)
    samples, _ = soundfile.read(io.BytesIO(body), dtype="int16")
    assert np.array_equal(samples, tone(SAMPLES))


@pytest.mark.parametrize("name", FORMATS)
async def test_every_format_is_what_its_content_type_says(http: aiohttp.ClientSession, name: str) -> None:
    """S4, S12: one container for the whole text, of the format that was asked for."""
    _, headers, body = await speak(http, input=TEXT, response_format=name, stream_format="audio")
    assert headers["Content-Type"] == CONTENT_TYPES[name]
    magic = {
        "mp3": (b"\xff\xf3", b"\xff\xf2"),
        "wav": (b"RIFF",),
        "flac": (b"fLaC",),
        "opus": (b"OggS",),
        "aac": (b"\xff\xf1",),
    }
    if name in magic:
        assert body.startswith(magic[name])
        decoded = decode(body)
        if name in ("wav", "flac"):
            assert np.array_equal(decoded, tone(SAMPLES))
        else:
            assert SAMPLES <= len(decoded) <= SAMPLES + 4 * 1152


async def test_mp3_is_the_default_as_with_openai(http: aiohttp.ClientSession) -> None:
    _, headers, _ = await speak(http, input="a")
    assert headers["Content-Type"] == "audio/mpeg"


@pytest.mark.parametrize("name", FORMATS)
async def test_events_carry_the_same_audio_as_the_plain_answer(http: aiohttp.ClientSession, name: str) -> None:
    """S70, S71, S73: the Content-Type tells the truth, the events are small, the last one carries no audio."""
    _, headers, body = await speak(http, input=TEXT, response_format=name, stream_format="sse")
    assert headers["Content-Type"] == "text/event-stream"
    *deltas, done = events(body)
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert all(len(delta["audio"]) < 200_000 for delta in deltas)
    _, _, plain = await speak(http, input=TEXT, response_format=name, stream_format="audio")
    audio = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert len(audio) == len(plain)
    assert audio == plain or name == "opus"  # whose streams carry a random serial number
    assert done["type"] == "speech.audio.done"
    chunks = -(-SAMPLES // CHUNK_SAMPLES)
    assert done["usage"] == {"input_tokens": len(TEXT), "output_tokens": chunks, "total_tokens": len(TEXT) + chunks}


@pytest.mark.parametrize("fields", [{"stream_format": "audio"}, {"stream_format": "sse"}])
@pytest.mark.parametrize("name", FORMATS)
async def test_first_audio_leaves_while_the_rest_is_not_yet_made(
    http: aiohttp.ClientSession, name: str, fields: dict[str, Any]
) -> None:
    """S5, S18, S22: the engine stops after 4 chunks and never goes on, yet audio arrives."""
    asked = {"input": "{stall 4} a text of more than four chunks", "response_format": name, **fields}
    async with http.post(SPEECH, json=asked) as answer:
        assert answer.status == 200
        first = await answer.content.readany()
        while len(first) <= 44:
            first += await answer.content.readany()
        assert first
    await until_metrics(http, quiet)


async def test_every_write_holds_whole_samples(http: aiohttp.ClientSession, server: ServerProcess) -> None:
    """S7: no HTTP chunk ends in the middle of a sample, whatever the engine's chunks are."""
    body = json.dumps({"input": TEXT, "response_format": "pcm", "speed": 1.37}).encode()
    reader, writer = await asyncio.open_connection(*address(server))
    writer.write(request(body))
    await reader.readuntil(b"\r\n\r\n")
    sizes = []
    while size := int(await reader.readline(), 16):
        sizes.append(size)
        await reader.readexactly(size + 2)
    await close(writer)
    assert len(sizes) > 10
    assert all(size % 2 == 0 for size in sizes)


async def test_speed_and_rate_are_honoured(http: aiohttp.ClientSession) -> None:
    """S12: half the speed is twice the length; another rate is another number of samples of the same speech."""
    _, _, slow = await speak(http, input="abcd", response_format="pcm", speed=0.5)
    assert len(slow) // 2 == 2 * 4 * SAMPLES_PER_CHARACTER
    _, headers, low = await speak(http, input="abcd", response_format="pcm", sample_rate=8000)
    assert headers["X-Sample-Rate"] == "8000"
    assert len(low) // 2 == 4 * SAMPLES_PER_CHARACTER // 3


async def test_the_same_seed_gives_the_same_bytes_as_number_and_as_string(http: aiohttp.ClientSession) -> None:
    answers = [await speak(http, input="abc", response_format="pcm", seed=seed) for seed in (2**63 - 1, str(2**63 - 1))]
    assert answers[0][2] == answers[1][2]


async def test_a_cap_on_tokens_cuts_the_audio_and_says_so(http: aiohttp.ClientSession) -> None:
    _, _, body = await speak(http, input=TEXT, response_format="pcm", max_new_tokens=3, stream_format="sse")
    done = events(body)[-1]
    assert done["usage"]["output_tokens"] == 3
    assert done["finish_reason"] == "length"


async def test_text_without_anything_speakable_is_an_empty_file(http: aiohttp.ClientSession) -> None:
    """S64: no error and no noise."""
    for text in ("...", "—", "\n*\n"):
        status, _, body = await speak(http, input=text, response_format="pcm")
        assert (status, body) == (200, b"")
    status, _, body = await speak(http, input="🙂", response_format="wav")
    with wave.open(io.BytesIO(body)) as file:
        assert (status, file.getnframes()) == (200, 0)
    status, _, body = await speak(http, input=".", response_format="mp3", stream_format="sse")
    assert events(body)[-1]["usage"]["output_tokens"] == 0


async def test_nothing_holds_the_stream_back_on_its_way(http: aiohttp.ClientSession) -> None:
    """S23: proxies are told not to buffer, and audio and events are never compressed."""
    for stream_format in ("audio", "sse"):
        asked = {"input": "abc", "response_format": "pcm", "stream_format": stream_format}
        async with http.post(SPEECH, json=asked, headers={"Accept-Encoding": "gzip, deflate, br"}) as answer:
            assert answer.headers["X-Accel-Buffering"] == "no"
            assert "Content-Encoding" not in answer.headers
            assert answer.headers["X-Request-Id"].startswith("req-")


async def test_hints_that_are_not_used_are_named(http: aiohttp.ClientSession) -> None:
    _, headers, _ = await speak(http, input="a", user="u", instructions="whisper", language="en")
    assert headers["X-Ignored-Fields"] == "instructions, language, user"
    _, headers, _ = await speak(http, input="a")
    assert "X-Ignored-Fields" not in headers


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input": "   "}, ["input"]),
        ({"input": None}, ["input"]),
        ({"voice": "nobody"}, ["voice", "nobody"]),
        ({"speed": 9}, ["speed", "9", "0.25..4"]),
        ({"max_new_tokens": 0}, ["max_new_tokens"]),
        ({"response_format": "ogg"}, ["response_format", "ogg", "opus"]),
        ({"format": "mp3"}, ["format"]),
        ({"ref_audio": "https://example.org/voice.wav"}, ["ref_audio", "data:"]),
        ({"ref_audio": "data:audio/wav;base64,UklGRg=="}, ["ref_audio", "sine"]),
        ({"word_timestamps": True}, ["word_timestamps"]),
        ({"sample_rate": 11_025, "response_format": "opus"}, ["sample_rate", "11025", "opus"]),
        ({"input": "x" * 65_537}, ["input", "65537", "65536"]),
    ],
)
async def test_what_is_refused_is_named_and_the_next_request_works(
    http: aiohttp.ClientSession, change: dict[str, Any], words: list[str]
) -> None:
    """S68, T7.9, BR-5: a 400 in OpenAI's shape before any audio, whatever the format; the server stays healthy."""
    valid = {"model": "sine", "input": "abc", "seed": 1, "max_new_tokens": 250, "response_format": "pcm"}
    status, error = await refused(http, **{**valid, **change})
    assert status == 400
    assert all(word in error["message"] for word in words)
    assert error["type"] == "invalid_request_error"
    assert error["param"] in change
    assert (await speak(http, **valid))[0] == 200


async def test_an_unknown_model_is_not_found(http: aiohttp.ClientSession) -> None:
    status, error = await refused(http, input="a", model="nothing")
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")


async def test_a_failure_before_the_first_byte_is_an_http_error(http: aiohttp.ClientSession) -> None:
    """S68: the first chunk comes before the 200."""
    for fields in ({"response_format": "pcm"}, {"response_format": "wav"}, {"stream_format": "sse"}):
        status, error = await refused(http, input="{fail 0} abc", **fields)
        assert (status, error["code"], error["type"]) == (500, "engine_failed", "server_error")


async def test_a_finished_file_fails_as_a_whole(http: aiohttp.ClientSession) -> None:
    status, error = await refused(http, input="{fail 5} a longer text", response_format="wav")
    assert (status, error["code"]) == (500, "engine_failed")


@pytest.mark.parametrize("name", FORMATS)
async def test_a_failure_after_the_first_byte_breaks_the_connection(http: aiohttp.ClientSession, name: str) -> None:
    """A clean end would pass for a whole answer."""
    asked = {"input": "{fail 8} a much longer text", "response_format": name, "stream_format": "audio"}
    async with http.post(SPEECH, json=asked) as answer:
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_a_failure_after_the_first_byte_resets_an_old_connection(server: ServerProcess) -> None:
    """HTTP/1.0 bodies end with the connection, so a close would pass for the end of the speech."""
    for text, broken in (("{fail 8} a much longer text", True), ("abcd", False)):
        reader, writer = await asyncio.open_connection(*address(server))
        writer.write(request(json.dumps({"input": text, "response_format": "pcm"}).encode(), version=b"1.0"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.0 200 ")
        with pytest.raises(ConnectionResetError) if broken else contextlib.nullcontext():
            assert len(await reader.read()) == 2 * 4 * SAMPLES_PER_CHARACTER
        await close(writer)


@pytest.mark.parametrize("name", FORMATS)
async def test_a_failure_after_the_first_event_is_an_event(http: aiohttp.ClientSession, name: str) -> None:
    """S71: an error is never text inside audio, and the answer ends well-formed."""
    _, _, body = await speak(http, input="{fail 8} a much longer text", response_format=name, stream_format="sse")
    *deltas, last = events(body)
    assert deltas
    assert last["type"] == "speech.audio.error"
    assert last["error"]["code"] == "engine_failed"


async def test_a_client_that_leaves_ends_its_speech(http: aiohttp.ClientSession, server: ServerProcess) -> None:
    """S25, S32, S33: before the first chunk and after it, the worker lets go and nothing is left."""
    for directive in ("{stall 0}", "{stall 5}", "{delay 20}"):
        before = await until_metrics(http, quiet)
        reader, writer = await asyncio.open_connection(*address(server))
        body = json.dumps({"input": directive + "x" * 5000, "response_format": "pcm"}).encode()
        writer.write(request(body))
        await until_metrics(http, lambda values: values["streamsynth_live_flows"] == 1)
        if directive != "{stall 0}":
            await reader.readuntil(b"\r\n\r\n")
        await close(writer)
        after = await until_metrics(http, quiet)
        ended = 'streamsynth_utterances_total{model="sine",status="cancelled",surface="http"}'
        assert after[ended] == before.get(ended, 0) + 1
        assert (
            after["streamsynth_cancel_to_idle_seconds_count"] == before["streamsynth_cancel_to_idle_seconds_count"] + 1
        )


async def test_a_client_that_leaves_does_not_disturb_the_others(http: aiohttp.ClientSession) -> None:
    """S28: the failure domain is one request."""
    staying = asyncio.create_task(speak(http, input="{delay 5}" + TEXT, response_format="pcm"))
    for _ in range(5):
        async with http.post(SPEECH, json={"input": "{delay 5}" + TEXT, "response_format": "pcm"}) as answer:
            await answer.content.readany()
    _, _, body = await staying
    assert np.array_equal(np.frombuffer(body, "<i2"), tone(SAMPLES))


async def test_a_client_that_reads_nothing_is_cut_off(http: aiohttp.ClientSession, server: ServerProcess) -> None:
    """S36: its speech stops on its own credit, and after the stall limit its connection ends."""
    before = await until_metrics(http, quiet)
    reader, writer = await asyncio.open_connection(*address(server), limit=1024)
    body = json.dumps({"input": "x" * 50_000, "response_format": "pcm"}).encode()
    writer.write(request(body))
    stalled = 'streamsynth_refused_total{code="stalled_reader"}'
    await until_metrics(http, lambda values: values.get(stalled, 0) == before.get(stalled, 0) + 1)
    after = await until_metrics(http, quiet)
    waited = "streamsynth_credit_wait_seconds_total"
    assert after[waited] > before[waited]
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await reader.readexactly(50_000 * SAMPLES_PER_CHARACTER * 2)
    await close(writer)


async def test_a_client_that_reads_slowly_is_not_cut_off(serve_process: Any) -> None:
    """S36: it reads on for longer than a stall may last, however late the kernel asks for more."""
    server = serve_process("--model", "sine", "--limit", "write_stall_s=2.7")
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        client.connect(address(server))
        client.setblocking(False)
        await loop.sock_sendall(client, request(json.dumps({"input": "x" * 50_000, "response_format": "pcm"}).encode()))
        started, received = loop.time(), 0
        while loop.time() < started + 5:
            due = round(12_000 * (loop.time() - started)) - received
            part = await loop.sock_recv(client, due) if due > 0 else b"nothing is due"
            assert part
            received += len(part) if due > 0 else 0
            await asyncio.sleep(0.05)


async def test_a_finished_file_has_a_limit_and_a_stream_has_none(serve_process: Any) -> None:
    server = serve_process("--model", "sine", "--limit", "finished_file_bytes=100_000")
    async with aiohttp.ClientSession(server.url) as http:
        status, error = await refused(http, input="x" * 100, response_format="wav")
        assert (status, error["code"], "100000" in error["message"]) == (400, "text_too_long", True)
        status, _, body = await speak(http, input="x" * 100, response_format="wav", stream=True)
        assert (status, len(body)) == (200, 44 + 100 * SAMPLES_PER_CHARACTER * 2)


async def test_the_log_names_requests_and_models_and_never_text(
    http: aiohttp.ClientSession, server: ServerProcess
) -> None:
    """T9.1"""
    _, headers, _ = await speak(http, input="xylophone secret", response_format="pcm")
    await refused(http, input="xylophone secret", voice="marimba")
    async with http.get("/xylophone?q=xylophone") as answer:
        assert answer.status == 404
    log = server.log()
    assert f"speech request {headers['X-Request-Id']}: model=sine" in log
    assert not [word for word in ("xylophone", "marimba", "Three words") if word in log]
    assert "Traceback" not in log
