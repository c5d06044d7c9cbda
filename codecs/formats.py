"""The audio formats that leave the server, and the sample rates that each can carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from streamsynth.errors import invalid_value

DEFAULT_SAMPLE_RATE = 24_000
"""What OpenAI's clients assume of raw pcm, and what every format here can carry."""


class AudioFormat(StrEnum):
    """The values of `response_format`."""

    PCM = "pcm"
    WAV = "wav"
    FLAC = "flac"
    MP3 = "mp3"
    OPUS = "opus"
    AAC = "aac"


CONTENT_TYPES: Mapping[AudioFormat, str] = {
    AudioFormat.PCM: "audio/pcm",
    AudioFormat.WAV: "audio/wav",
    AudioFormat.FLAC: "audio/flac",
    AudioFormat.MP3: "audio/mpeg",
    AudioFormat.OPUS: "audio/ogg",
    AudioFormat.AAC: "audio/aac",
}

_ANY_RATE = range(8_000, 48_001)

# A codec's frame is a fixed number of samples, so a low rate makes it long, and more than one goes in before anything
# decodes: 144 to 216 ms of media for MPEG-2.5 layer III (8, 11.025 and 12 kHz), 128 to 256 ms for AAC up to 16 kHz. The
# first bytes are promised within 120 ms; such rates are refused rather than served late. MP3 at 16 and 32 kHz comes
# nearest to it: 118 ms from an engine at 24 kHz.
SAMPLE_RATES: Mapping[AudioFormat, Sequence[int]] = {
    AudioFormat.PCM: _ANY_RATE,
    AudioFormat.WAV: _ANY_RATE,
    AudioFormat.FLAC: _ANY_RATE,
    AudioFormat.MP3: (16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
    AudioFormat.OPUS: (8_000, 12_000, 16_000, 24_000, 48_000),
    AudioFormat.AAC: (22_050, 24_000, 32_000, 44_100, 48_000),
}


def check_sample_rate(format: AudioFormat, sample_rate: int) -> None:  # noqa: A002 - the wire's own word
    """Raises StreamSynthError(INVALID_VALUE, param "sample_rate") naming the rate, the format and what it carries."""
    rates = SAMPLE_RATES[format]
    if sample_rate in rates:
        return
    if isinstance(rates, range):
        limit = f"a whole number of Hz from {rates.start} to {rates.stop - 1}"
    else:
        limit = f"one of {', '.join(str(rate) for rate in rates)} Hz"
    raise invalid_value("sample_rate", sample_rate, f"{limit} for response_format {format.value}")
