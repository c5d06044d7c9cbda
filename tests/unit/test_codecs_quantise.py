"""float32 to s16: nearest, ties to even, saturating."""

from __future__ import annotations

import numpy as np
import pytest

from streamsynth.codecs import AudioFormat, open_encoder
from streamsynth.codecs.quantise import saturate, to_s16
from streamsynth.errors import ErrorCode, StreamSynthError


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_every_s16_value_survives_being_read_as_float_and_written_again() -> None:
    every = np.arange(-32_768, 32_768, dtype=np.int16)
    assert np.array_equal(to_s16((every / 32_768).astype(np.float32)), every)


def test_halves_go_to_the_even_neighbour() -> None:
    assert to_s16(floats(0.5, 1.5, 2.5, -0.5, -1.5, 0.49, 0.51) / 32_768).tolist() == [0, 2, 2, 0, -2, 0, 1]


def test_louder_than_full_scale_saturates_and_never_wraps() -> None:
    assert to_s16(floats(1.0, 1.5, 1e30, -1.0, -1.5, -1e30)).tolist() == [32_767] * 3 + [-32_768] * 3
    assert saturate(floats(1.5, -1.5, 0.25)).tolist() == [1.0, -1.0, 0.25]


def test_samples_are_written_little_endian() -> None:
    assert to_s16(floats(258 / 32_768)).tobytes() == b"\x02\x01"


@pytest.mark.parametrize("audio_format", AudioFormat)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_is_an_error_and_never_a_sample(audio_format: AudioFormat, value: float) -> None:
    encoder = open_encoder(audio_format, source_rate=24_000)
    with pytest.raises(StreamSynthError, match="not finite") as raised:
        encoder.encode(floats(0.0, value))
    assert raised.value.code is ErrorCode.ENGINE_FAILED
