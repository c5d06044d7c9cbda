"""Resampling a stream gives what resampling the whole gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import soxr
from decoded import residual, tone
from hypothesis import given, settings
from hypothesis import strategies as st

from streamsynth.codecs import AudioFormat, open_encoder
from streamsynth.codecs.quantise import to_s16
from streamsynth.codecs.resample import Resampler

RATES = [8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 47_999, 48_000]


def resampled(samples: np.ndarray, source_rate: int, sample_rate: int, cuts: list[int]) -> np.ndarray:
    resampler = Resampler(source_rate, sample_rate)
    parts = [resampler.push(part) for part in np.split(samples, sorted(cuts))]
    return np.concatenate([*parts, resampler.finish()])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_chunking_gives_the_bits_of_one_call(data: st.DataObject) -> None:
    """S11"""
    source_rate, sample_rate = data.draw(st.sampled_from(RATES)), data.draw(st.sampled_from(RATES))
    count = data.draw(st.integers(0, 20_000))
    cuts = data.draw(st.lists(st.integers(0, count), max_size=40))
    samples = np.random.default_rng(count).uniform(-1, 1, count).astype(np.float32)
    whole = resampled(samples, source_rate, sample_rate, [])
    assert np.array_equal(resampled(samples, source_rate, sample_rate, cuts), whole)
    assert len(whole) == math.floor(count * sample_rate / source_rate + 0.5)


@pytest.mark.parametrize("sample_rate", [8_000, 16_000, 44_100, 48_000])
def test_the_stream_is_bit_equal_to_soxr_on_the_whole(sample_rate: int) -> None:
    samples = np.random.default_rng(1).uniform(-1, 1, 50_001).astype(np.float32)
    chunked = resampled(samples, 24_000, sample_rate, list(range(888, 50_001, 888)))
    assert np.array_equal(chunked, soxr.resample(samples, 24_000, sample_rate, quality="HQ"))


def test_24_to_8_khz_in_37_ms_chunks_is_one_unbroken_tone() -> None:
    """S11: equal to the one-shot answer once quantised, too, and no click where chunks meet."""
    samples = tone(2.0, 24_000)
    encoder = open_encoder(AudioFormat.PCM, source_rate=24_000, sample_rate=8_000)
    pieces = [encoder.encode(part) for part in np.split(samples, range(888, len(samples), 888))]
    streamed = np.frombuffer(b"".join(pieces) + encoder.finish(), dtype="<i2")
    assert np.array_equal(streamed, to_s16(soxr.resample(samples, 24_000, 8_000, quality="HQ")))
    assert encoder.samples == len(streamed) == 16_000
    # Half a step of rounding, and a little of the filter's own.
    assert np.abs(residual(streamed[100:-100] / 32_768, 8_000)).max() < 1.5 / 32_768


def test_ten_minutes_at_an_awkward_ratio_lose_no_sample() -> None:
    resampler = Resampler(44_100, 24_000)
    second = tone(1.0, 44_100)
    count = sum(len(resampler.push(second)) for _ in range(600)) + len(resampler.finish())
    assert count == 600 * 24_000


def test_equal_rates_leave_the_samples_alone() -> None:
    samples = tone(0.1, 24_000)
    assert Resampler(24_000, 24_000).push(samples) is samples


@pytest.mark.parametrize("source_rate", [16_000, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("sample_rate", [8_000, 16_000, 24_000, 44_100, 48_000])
def test_the_filter_never_holds_back_more_than_120_ms(source_rate: int, sample_rate: int) -> None:
    resampler = Resampler(source_rate, sample_rate)
    samples = tone(0.6, source_rate)
    out = 0
    for end in range(0, len(samples), source_rate // 200):
        assert end / source_rate - out / sample_rate <= 0.120
        out += len(resampler.push(samples[end : end + source_rate // 200]))
