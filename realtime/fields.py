"""The speech fields that `POST /v1/audio/speech` and the speech socket's `session.config` share, checked once for both.

Three kinds of field are refused by name: those nobody knows (`unknown_field`), those of the reference dialects that no
pipeline here serves (`unsupported_field`), and those of the other surface. An explicit null is the same as an absent
field, as in the reference.
"""

from __future__ import annotations

import binascii
import math
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass

from streamsynth.codecs.formats import DEFAULT_SAMPLE_RATE, AudioFormat, check_sample_rate
from streamsynth.config.pipeline import Pipeline
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value, unknown_field
from streamsynth.realtime.names import resolve_model, resolve_voice
from streamsynth.speech import Granularity, SpeechRequest, SpeechTraits

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# Accepted everywhere, checked for their type. A model gets its `supported_hints`; the rest is said to be ignored.
HINTS: Mapping[str, tuple[type, str]] = {
    "instructions": (str, "a string"),
    "language": (str, "a string"),
    "task_type": (str, "a string"),
    "user": (str, "a string"),
    "metadata": (dict, "an object"),
    "initial_codec_chunk_frames": (int, "an integer"),
    "non_streaming_mode": (bool, "true or false"),
}

SPEECH_FIELDS = frozenset(
    {"model", "voice", "speaker", "response_format", "speed", "seed", "max_new_tokens", "sample_rate"}
)
"""Fields that `parse_speech_fields` reads on both surfaces (`speaker` is the reference's other name for `voice`)."""

HTTP_ONLY = frozenset({"input", "stream", "stream_format"})
SOCKET_ONLY = frozenset({"stream_audio", "split_granularity", "ack", "close_on_done"})

_REFERENCES = frozenset({"ref_audio", "ref_audio_2"})
_UNSERVED = _REFERENCES | {
    "ref_text",
    "references",
    "x_vector_only_mode",
    "speaker_embedding",
    "word_timestamps",
    "ambient_sound",
    "duration_seconds",
    "extra_params",
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
}
_OPTION_CHARACTERS = 4096
_LOOKED_AT = 4096  # of a reference: megabytes of base64 begin as a path never does
_DECIMAL = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeechSettings:
    """What an utterance will be spoken with: every default filled in, every alias resolved.

    `ignored` names the hints that were given and that the model cannot use, sorted.
    """

    model: str
    request: SpeechRequest
    format: AudioFormat
    sample_rate: int
    ignored: tuple[str, ...] = ()


def parse_speech_fields(
    fields: Mapping[str, object],
    models: Mapping[str, Pipeline],
    *,
    default_format: AudioFormat,
    allowed: frozenset[str],
) -> SpeechSettings:
    """Check `fields` and fill in the defaults; raises StreamSynthError naming the field and its limit.

    `allowed` are the surface's own fields (HTTP_ONLY, SOCKET_ONLY): they are not refused here, and the caller reads
    them, except that `split_granularity` is read here.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    model = resolve_model(given.get("model"), models)
    traits = models[model].speech
    _refuse_names(fields, given, traits, allowed, model)
    audio_format = parse_format(given.get("response_format"), default_format)
    hints = check_hints(given)
    used = {name: value for name, value in hints.items() if name in traits.supported_hints}
    request = SpeechRequest(
        voice=_parse_voice(given, traits),
        speed=_parse_speed(given.get("speed"), traits, model),
        seed=parse_seed(given.get("seed")),
        max_new_tokens=_parse_max_new_tokens(given.get("max_new_tokens"), traits, model),
        granularity=_parse_granularity(given.get("split_granularity")),
        options={**used, **_check_options(given, traits)},
    )
    return SpeechSettings(
        model=model,
        request=request,
        format=audio_format,
        sample_rate=parse_sample_rate(given.get("sample_rate"), audio_format),
        ignored=tuple(sorted(hints.keys() - used.keys())),
    )


def _refuse_names(
    fields: Mapping[str, object], given: Mapping[str, object], traits: SpeechTraits, allowed: frozenset[str], model: str
) -> None:
    accepted = SPEECH_FIELDS | HINTS.keys() | allowed | traits.options
    for name in fields:
        if name in accepted:
            continue
        if name in _UNSERVED:
            if name in given and given[name] is not False:
                raise _unserved(name, given[name], model)
        elif name in HTTP_ONLY | SOCKET_ONLY:
            surface = "POST /v1/audio/speech" if name in HTTP_ONLY else "the speech socket"
            raise StreamSynthError(ErrorCode.UNSUPPORTED_FIELD, f"{name} is a field of {surface} only", param=name)
        else:
            raise unknown_field(name)


def _unserved(name: str, value: object, model: str) -> StreamSynthError:
    if name in _REFERENCES and isinstance(value, str) and not _is_inline(value):
        message = f"{name} must be a data: URI or base64; the server fetches no other reference"
        return StreamSynthError(ErrorCode.UNSUPPORTED_REFERENCE, message, param=name)
    return StreamSynthError(ErrorCode.UNSUPPORTED_FIELD, f"the model {model!r} does not support {name}", param=name)


def _is_inline(reference: str) -> bool:
    if reference[:5].lower() == "data:":
        return True
    try:
        b64decode(reference[:_LOOKED_AT], validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def parse_format(value: object, default: AudioFormat) -> AudioFormat:
    if value is None:
        return default
    if isinstance(value, str) and value in {each.value for each in AudioFormat}:
        return AudioFormat(value)
    raise invalid_value("response_format", value, "one of " + ", ".join(AudioFormat))


def parse_seed(value: object) -> int | None:
    """A signed 64-bit integer, or one written as a decimal string."""
    if value is None:
        return None
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        raise invalid_value("seed", value, "an integer of 64 bits, or one as a decimal string")
    if not INT64_MIN <= number <= INT64_MAX:
        raise invalid_value("seed", value, f"within {INT64_MIN}..{INT64_MAX}")
    return number


def parse_sample_rate(value: object, audio_format: AudioFormat) -> int:
    if value is None:
        return DEFAULT_SAMPLE_RATE
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid_value("sample_rate", value, "an integer")
    check_sample_rate(audio_format, value)
    return value


def parse_flag(name: str, value: object) -> bool | None:
    """A boolean, or None if the field was not given."""
    if value is None or isinstance(value, bool):
        return value
    raise invalid_value(name, value, "true or false")


def parse_choice(name: str, value: object, choices: tuple[str, ...]) -> str | None:
    """One of `choices`, or None if the field was not given."""
    if value is None or (isinstance(value, str) and value in choices):
        return value
    raise invalid_value(name, value, "one of " + ", ".join(choices))


def _parse_voice(given: Mapping[str, object], traits: SpeechTraits) -> str:
    if "speaker" not in given:
        return resolve_voice(given.get("voice"), traits)
    if "voice" in given:
        raise invalid_value("speaker", given["speaker"], "absent when voice is given: it is another name of it")
    return resolve_voice(given["speaker"], traits, field="speaker")


def _parse_speed(value: object, traits: SpeechTraits, model: str) -> float:
    if value is None:
        return 1.0
    low, high = traits.speed
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if low <= number <= high:
        return float(number)
    raise invalid_value("speed", value, f"a number within {low:g}..{high:g} for the model {model!r}")


def _parse_max_new_tokens(value: object, traits: SpeechTraits, model: str) -> int | None:
    cap = traits.max_new_tokens
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= cap):
        return value
    raise invalid_value("max_new_tokens", value, f"an integer within 1..{cap} for the model {model!r} ({traits.token})")


def _parse_granularity(value: object) -> Granularity:
    choice = parse_choice("split_granularity", value, tuple(Granularity))
    return Granularity.NONE if choice is None else Granularity(choice)


def check_hints(given: Mapping[str, object]) -> dict[str, object]:
    """The hints among the fields; raises INVALID_VALUE for one of another type."""
    hints = {name: given[name] for name in HINTS if name in given}
    for name, value in hints.items():
        kind, said = HINTS[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise invalid_value(name, value, said)
    return hints


def _check_options(given: Mapping[str, object], traits: SpeechTraits) -> dict[str, object]:
    """A model's own fields: scalars, whose ranges its engine checks."""
    options = {name: given[name] for name in traits.options if name in given}
    for name, value in options.items():
        too_long = isinstance(value, str) and len(value) > _OPTION_CHARACTERS
        too_large = isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX
        if not isinstance(value, str | int | float) or too_long or too_large:
            raise invalid_value(name, value, f"a number, true or false, or at most {_OPTION_CHARACTERS} characters")
    return options
