"""The speech fields: what is accepted, what is refused by name, and that nothing else can happen."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.codecs.formats import AudioFormat
from streamsynth.config.pipeline import Pipeline, Stage, StageKind
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.fields import (
    HINTS,
    HTTP_ONLY,
    SOCKET_ONLY,
    SPEECH_FIELDS,
    SpeechSettings,
    parse_speech_fields,
)
from streamsynth.realtime.names import OPENAI_VOICES
from streamsynth.speech import Granularity, SpeechTraits, Voice

_STAGE = Stage(name="voice", kind=StageKind.GENERATION, engine="nowhere:Engine")


def _pipeline(name: str, **traits: object) -> Pipeline:
    voices = (Voice(id="heart", name="Heart", languages=("en",)), Voice(id="bell", name="Bell", languages=("en",)))
    defaults: dict[str, object] = {
        "sample_rate": 24_000,
        "voices": voices,
        "default_voice": "heart",
        "speed": (0.5, 2.0),
    }
    speech = SpeechTraits(**{**defaults, **traits})  # type: ignore[arg-type]  # names are given as in SpeechTraits
    return Pipeline(name=name, description=name, stages=(_STAGE,), output="voice", traits=speech)


MODELS = {
    "plain": _pipeline("plain"),
    "rich": _pipeline(
        "rich", supported_hints=frozenset({"instructions"}), options=frozenset({"temperature", "delay_ms"})
    ),
}


def parse(*, allowed: frozenset[str] = HTTP_ONLY, **fields: object) -> SpeechSettings:
    return parse_speech_fields(fields, MODELS, default_format=AudioFormat.MP3, allowed=allowed)


def refusal(**fields: object) -> StreamSynthError:
    with pytest.raises(StreamSynthError) as caught:
        parse(**fields)
    return caught.value


def test_every_default_is_filled_in() -> None:
    settings = parse(input="hello")
    assert (settings.model, settings.format, settings.sample_rate, settings.ignored) == ("plain", "mp3", 24_000, ())
    assert (settings.request.voice, settings.request.speed, settings.request.seed) == ("heart", 1.0, None)
    assert settings.request.granularity is Granularity.NONE


def test_an_explicit_null_is_an_absent_field() -> None:
    nothing: dict[str, object] = dict.fromkeys([*SPEECH_FIELDS, *HINTS, "ref_audio", "word_timestamps", "input"])
    assert parse(**nothing) == parse()


@pytest.mark.parametrize("alias", ["tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15"])
def test_openai_model_names_mean_the_default_model(alias: str) -> None:
    assert parse(model=alias).model == "plain"


def test_another_unknown_model_is_not_found() -> None:
    error = refusal(model="kokoro")
    assert error.message.startswith("there is no model 'kokoro' that speaks; this server has plain, ")
    assert (error.code, error.param, error.rendering.http_status) == (ErrorCode.MODEL_NOT_FOUND, "model", 404)


@pytest.mark.parametrize("alias", OPENAI_VOICES)
def test_openai_voice_names_mean_local_voices(alias: str) -> None:
    assert parse(voice=alias).request.voice in {"heart", "bell"}
    assert parse(voice={"id": alias}) == parse(voice=alias)


def test_the_references_names_for_a_voice_are_understood() -> None:
    assert parse(speaker="bell").request.voice == "bell"
    assert parse(voice="default").request.voice == "heart"
    assert refusal(speaker="bell", voice="bell").param == "speaker"
    assert [refusal(speaker=value).param for value in (5, "vivian")] == ["speaker", "speaker"]


def test_an_unknown_voice_is_named_with_those_that_exist() -> None:
    """S68: an unknown voice is refused before any audio."""
    error = refusal(voice="vivian")
    assert error.code is ErrorCode.VOICE_NOT_FOUND
    assert "vivian" in error.message and "heart" in error.message


@pytest.mark.parametrize("voice", [7, [], {"name": "heart"}, {"id": 7}, {"id": "heart", "speed": 1}, True])
def test_a_voice_is_a_string_or_an_object_with_an_id(voice: object) -> None:
    assert refusal(voice=voice).code is ErrorCode.INVALID_VALUE


@pytest.mark.parametrize("speed", [0.49, 2.01, 0, -1, float("nan"), float("inf"), "1.0", True, 10**400])
def test_speed_outside_the_models_range_names_both(speed: object) -> None:
    """S12, T7.9: a speed that cannot be honoured is refused with the field and the range."""
    error = refusal(speed=speed)
    assert error.param == "speed"
    assert "speed" in error.message and "0.5..2" in error.message


def test_seed_is_a_64_bit_integer_or_one_as_a_decimal_string() -> None:
    assert parse(seed=-(2**63)).request.seed == -(2**63)
    assert parse(seed=str(2**63 - 1)).request.seed == 2**63 - 1
    for seed in (2**63, str(2**63), "0x10", " 1", "1.0", 1.0, True, "", "١"):
        assert refusal(seed=seed).param == "seed"


@pytest.mark.parametrize("count", [0, -1, 1.5, "9", True, 2**63])
def test_max_new_tokens_is_a_positive_integer(count: object) -> None:
    """T7.9"""
    assert refusal(max_new_tokens=count).param == "max_new_tokens"


def test_max_new_tokens_above_the_models_cap_names_both() -> None:
    """T7.9: refused, not quietly clamped."""
    cap = MODELS["plain"].speech.max_new_tokens
    assert parse(max_new_tokens=cap).request.max_new_tokens == cap
    error = refusal(max_new_tokens=cap + 1)
    assert error.param == "max_new_tokens"
    assert str(cap) in error.message and str(cap + 1) in error.message


def test_a_sample_rate_that_the_codec_lacks_names_both() -> None:
    assert parse(response_format="pcm", sample_rate=8000).sample_rate == 8000
    error = refusal(response_format="opus", sample_rate=44_100)
    assert error.param == "sample_rate"
    assert "44100" in error.message and "opus" in error.message
    for rate in (7999, 48_001, 24_000.0, "24000", True):
        assert refusal(response_format="wav", sample_rate=rate).param == "sample_rate"


def test_an_unknown_format_names_those_that_exist() -> None:
    """S12, BR-5"""
    error = refusal(response_format="ogg")
    assert error.param == "response_format"
    assert re.search("mp3.*opus|opus.*mp3|wav", error.message)


@pytest.mark.parametrize(
    "name", ["ref_text", "x_vector_only_mode", "speaker_embedding", "word_timestamps", "top_p", "references"]
)
def test_fields_of_the_reference_that_are_not_served_are_refused_by_name(name: str) -> None:
    error = refusal(**{name: True})
    assert (error.code, error.param) == (ErrorCode.UNSUPPORTED_FIELD, name)


@pytest.mark.parametrize("reference", ["https://example.org/a.wav", "file:///etc/passwd", "/tmp/a.wav", "not base64!"])
def test_references_that_the_server_would_have_to_fetch_are_refused(reference: str) -> None:
    assert refusal(ref_audio=reference).code is ErrorCode.UNSUPPORTED_REFERENCE


@pytest.mark.parametrize("reference", ["data:audio/wav;base64,UklGRg==", "UklGRg==", 7])
def test_a_model_that_cannot_clone_says_so(reference: object) -> None:
    error = refusal(ref_audio=reference)
    assert (error.code, error.param) == (ErrorCode.UNSUPPORTED_FIELD, "ref_audio")


def test_unknown_fields_are_named() -> None:
    error = refusal(inptu="hello")
    assert (error.code, error.param) == (ErrorCode.UNKNOWN_FIELD, "inptu")
    assert len(refusal(**{"x" * 5000: 1}).message) < 120


def test_fields_of_the_other_surface_are_refused_by_name() -> None:
    for name in SOCKET_ONLY:
        assert refusal(**{name: True}).code is ErrorCode.UNSUPPORTED_FIELD
    with pytest.raises(StreamSynthError) as caught:
        parse(allowed=SOCKET_ONLY, stream=True)
    assert (caught.value.code, caught.value.param) == (ErrorCode.UNSUPPORTED_FIELD, "stream")


def test_hints_that_the_model_cannot_use_are_listed_as_ignored() -> None:
    hints = {"instructions": "calm", "language": "en", "metadata": {"a": 1}, "non_streaming_mode": False}
    plain = parse(**hints)
    assert plain.ignored == ("instructions", "language", "metadata", "non_streaming_mode")
    assert plain.request.options == {}
    rich = parse(model="rich", **hints)
    assert rich.ignored == ("language", "metadata", "non_streaming_mode")
    assert rich.request.options == {"instructions": "calm"}


def test_a_hint_of_the_wrong_type_is_refused_even_if_it_would_be_ignored() -> None:
    for name, value in {"language": 7, "metadata": "x", "initial_codec_chunk_frames": True, "user": []}.items():
        assert refusal(**{name: value}).param == name


def test_a_models_own_options_reach_it_unchanged() -> None:
    assert parse(model="rich", temperature=0.7, delay_ms=20).request.options == {"temperature": 0.7, "delay_ms": 20}
    assert refusal(model="rich", delay_ms=[1]).param == "delay_ms"
    assert refusal(model="rich", delay_ms=2**70).param == "delay_ms"
    assert refusal(temperature=0.7).code is ErrorCode.UNSUPPORTED_FIELD


def test_granularity_is_a_field_of_the_socket() -> None:
    settings = parse(allowed=SOCKET_ONLY, split_granularity="clause")
    assert settings.request.granularity is Granularity.CLAUSE
    with pytest.raises(StreamSynthError):
        parse(allowed=SOCKET_ONLY, split_granularity="word")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_NAMES = (
    st.sampled_from(sorted(SPEECH_FIELDS | HINTS.keys() | {"ref_audio", "split_granularity", "delay_ms"})) | st.text()
)
_LIKELY = st.sampled_from(["rich", "wav", "opus", "clause", 1.5, "12", 24_000, {"id": "heart"}])


@given(fields=st.dictionaries(_NAMES, _JSON | _LIKELY, max_size=6))
def test_any_fields_give_settings_or_a_typed_error(fields: dict[str, object]) -> None:
    try:
        settings = parse_speech_fields(fields, MODELS, default_format=AudioFormat.WAV, allowed=SOCKET_ONLY)
    except StreamSynthError as error:
        assert error.rendering.http_status in (400, 404)
        assert error.param is not None
        json.dumps(error.to_wire())
    else:
        assert settings.request.voice in {"heart", "bell"}
        assert settings.sample_rate in range(8000, 48_001)
