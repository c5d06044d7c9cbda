"""What `session.config` asks for, checked: the speech fields that HTTP has too, and the socket's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamsynth.codecs import AudioFormat
from streamsynth.config.pipeline import Pipeline
from streamsynth.realtime.fields import SOCKET_ONLY, SpeechSettings, parse_flag, parse_speech_fields
from streamsynth.realtime.speech_messages import EffectiveConfig
from streamsynth.speech import Granularity

_SAFE_INTEGER = 2**53  # beyond it JavaScript rounds


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSettings:
    """A config in force: equal settings are the same config, whatever was written to ask for it."""

    speech: SpeechSettings
    stream_audio: bool = False
    close_on_done: bool = False

    @property
    def granularity(self) -> Granularity:
        return self.speech.request.granularity

    def effective(self) -> EffectiveConfig:
        request = self.speech.request
        seed = request.seed
        return EffectiveConfig(
            model=self.speech.model,
            voice=request.voice,
            response_format=self.speech.format.value,
            sample_rate=self.speech.sample_rate,
            speed=request.speed,
            seed=seed if seed is None or abs(seed) < _SAFE_INTEGER else str(seed),
            max_new_tokens=request.max_new_tokens,
            options=request.options,
            split_granularity=request.granularity.value,
            stream_audio=self.stream_audio,
            close_on_done=self.close_on_done,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigRequest:
    """One `session.config` message. `ack` belongs to the message: a config can be repeated to ask for it."""

    settings: SessionSettings
    ack: bool


def parse_session_config(fields: Mapping[str, object], models: Mapping[str, Pipeline]) -> ConfigRequest:
    """Check a whole config; fields it leaves out take their defaults. Raises StreamSynthError naming the field."""
    speech = parse_speech_fields(fields, models, default_format=AudioFormat.WAV, allowed=SOCKET_ONLY)
    flags = {name: bool(parse_flag(name, fields.get(name))) for name in ("stream_audio", "close_on_done", "ack")}
    return ConfigRequest(
        settings=SessionSettings(
            speech=speech, stream_audio=flags["stream_audio"], close_on_done=flags["close_on_done"]
        ),
        ack=flags["ack"],
    )
