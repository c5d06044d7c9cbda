"""Names that clients of other systems bring: OpenAI's models and voices as aliases of local ones."""

from __future__ import annotations

from collections.abc import Mapping

from streamsynth.config.pipeline import Pipeline
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.speech import SpeechTraits

MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
_DATED_ALIAS = "gpt-4o-mini-tts"

OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "nova"),
    *("onyx", "sage", "shimmer", "verse", "marin", "cedar"),
)


def resolve_model(name: object, models: Mapping[str, Pipeline]) -> str:
    """The model that a request for speech means: the default one for an absent name or an alias. `models` are those
    that speak. Raises `model_not_found`."""
    default = next(iter(models), None)
    if default is None:
        raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, "no model of this server speaks", param="model")
    if name is None:
        return default
    if not isinstance(name, str):
        raise invalid_value("model", name, "a string")
    if name in models:
        return name
    if is_alias(name):
        return default
    known = f"this server has {', '.join(models)}, and {', '.join(MODEL_ALIASES)} mean {default}"
    message = f"there is no model {name[:60]!r} that speaks; {known}"
    raise StreamSynthError(ErrorCode.MODEL_NOT_FOUND, message, param="model")


def is_alias(name: str) -> bool:
    return name in MODEL_ALIASES or name.startswith(_DATED_ALIAS)


def voice_aliases(traits: SpeechTraits) -> dict[str, str]:
    """OpenAI's voice names, each with the local voice that answers to it; a local voice of the same name is itself.

    `default`, which the reference's clients send, means the model's default voice.
    """
    ids = [voice.id for voice in traits.voices]
    spread = {alias: ids[position % len(ids)] for position, alias in enumerate(OPENAI_VOICES)}
    return {alias: voice for alias, voice in {**spread, "default": traits.default_voice}.items() if alias not in ids}


def resolve_voice(value: object, traits: SpeechTraits, *, field: str = "voice") -> str:
    """The id of the voice meant by a name, an alias or `{"id": name}`. Raises `voice_not_found`, naming `field`."""
    if value is None:
        return traits.default_voice
    name = value["id"] if isinstance(value, dict) and value.keys() == {"id"} else value
    if not isinstance(name, str):
        raise invalid_value(field, value, 'a string or {"id": string}')
    if name in {voice.id for voice in traits.voices}:
        return name
    aliases = voice_aliases(traits)
    if name in aliases:
        return aliases[name]
    known = ", ".join(voice.id for voice in traits.voices)
    message = f"there is no voice {name[:60]!r}; this model has {known}, and OpenAI's voice names mean one of these"
    raise StreamSynthError(ErrorCode.VOICE_NOT_FOUND, message, param=field)
