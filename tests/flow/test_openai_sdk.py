"""The published OpenAI SDK, unmodified, against a real server: it speaks, streams, and understands what is refused."""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import numpy.typing as npt
import openai
import pytest
from over_http import SAMPLES_PER_CHARACTER, tone

KEY = "sdk-key_1"
TEXT = "Three words here. And a second sentence! Is this the third?"
SAMPLES = len(TEXT) * SAMPLES_PER_CHARACTER

Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
FORMATS: tuple[Format, ...] = ("mp3", "opus", "aac", "flac", "wav", "pcm")


@pytest.fixture(scope="module")
def client(shared_serve_process: Any) -> Iterator[openai.OpenAI]:
    server = shared_serve_process("--model", "sine", env={"STREAMSYNTH_API_KEYS": KEY})
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk:
        yield sdk


def decode(data: bytes, name: Format) -> npt.NDArray[np.int16]:
    if name == "pcm":
        return np.frombuffer(data, "<i2")
    with av.open(io.BytesIO(data)) as container:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=24_000)
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
        frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def assert_speaks(data: bytes, name: Format) -> None:
    """Right to the sample where the format can be; priming and padding are allowed to mp3, aac and opus."""
    decoded = decode(data, name)
    if name in ("wav", "pcm", "flac"):
        assert np.array_equal(decoded, tone(SAMPLES))
    else:
        assert SAMPLES <= len(decoded) <= SAMPLES + 4 * 1152


@pytest.mark.parametrize("name", FORMATS)
def test_create_gives_the_whole_speech(client: openai.OpenAI, name: Format) -> None:
    """S4, S12"""
    answer = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, response_format=name)
    assert_speaks(answer.content, name)


@pytest.mark.parametrize("name", FORMATS)
def test_streaming_to_a_file_gives_one_playable_file(client: openai.OpenAI, name: Format, tmp_path: Path) -> None:
    """S4: three sentences in one container."""
    path = tmp_path / f"speech.{name}"
    asked = client.audio.speech.with_streaming_response
    with asked.create(model="gpt-4o-mini-tts", voice="coral", input=TEXT, response_format=name) as answer:
        answer.stream_to_file(path)
    assert_speaks(path.read_bytes(), name)


@pytest.mark.parametrize("name", FORMATS)
def test_speech_events_stream_in_every_format(client: openai.OpenAI, name: Format) -> None:
    """S70, S71"""
    asked = client.audio.speech.with_streaming_response
    with asked.create(
        model="gpt-4o-mini-tts", voice="nova", input=TEXT, response_format=name, stream_format="sse"
    ) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = [line for line in answer.iter_lines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert events[-1]["type"] == "speech.audio.done"
    assert_speaks(audio, name)


def test_a_plain_wav_opens_in_pythons_wave(client: openai.OpenAI) -> None:
    answer = client.audio.speech.create(model="tts-1-hd", voice="onyx", input=TEXT, response_format="wav")
    with wave.open(io.BytesIO(answer.content)) as file:
        assert file.getnframes() == SAMPLES
        assert np.array_equal(np.frombuffer(file.readframes(SAMPLES), "<i2"), tone(SAMPLES))


def test_streamed_bytes_arrive_before_the_speech_is_finished(client: openai.OpenAI) -> None:
    """S18: the engine never makes a fifth chunk."""
    asked = client.audio.speech.with_streaming_response
    with asked.create(model="tts-1", voice="ash", input="{stall 4} and nothing more", response_format="pcm") as answer:
        assert len(next(answer.iter_bytes(1024))) == 1024


def test_every_openai_voice_and_option_is_taken(client: openai.OpenAI) -> None:
    voices: tuple[Any, ...] = (
        *("alloy", "ash", "ballad", "coral", "echo", "fable", "nova"),
        *("onyx", "sage", "shimmer", "verse", "marin", "cedar", {"id": "marin"}),
    )
    for voice in voices:
        answer = client.audio.speech.create(
            model="gpt-4o-mini-tts-2025-12-15",
            voice=voice,
            input="a",
            response_format="pcm",
            speed=0.5,
            instructions="Calm.",
        )
        assert len(answer.content) // 2 == 2 * SAMPLES_PER_CHARACTER
        assert answer.response.headers["x-ignored-fields"] == "instructions"


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert listed.keys() == {"sine", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"}
    assert client.models.retrieve("tts-1").to_dict()["alias_of"] == "sine"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_refusals_are_the_sdks_own_exceptions(client: openai.OpenAI) -> None:
    speak = client.audio.speech.create
    with pytest.raises(openai.BadRequestError) as bad:
        speak(model="sine", voice="nobody", input="a")
    assert (bad.value.code, bad.value.param, bad.value.type) == ("voice_not_found", "voice", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        speak(model="nothing", voice="sine", input="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.InternalServerError) as failed:
        speak(model="sine", voice="sine", input="{fail 0} a")
    assert failed.value.code == "engine_failed"


async def test_the_async_client_speaks_beside_others(client: openai.OpenAI) -> None:
    async with openai.AsyncOpenAI(base_url=client.base_url, api_key=KEY, max_retries=0) as sdk:
        answer = await sdk.audio.speech.create(model="tts-1", voice="sage", input=TEXT, response_format="flac")
        assert_speaks(answer.content, "flac")
