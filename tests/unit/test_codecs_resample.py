"""Resampling a stream gives what resampling the whole gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
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


_SETTLED = 2_500  # Samples at either end in which the filter still rings with the tone's own start.
PAIRS = [(24_000, 8_000), (24_000, 16_000), (24_000, 44_100), (24_000, 48_000), (48_000, 24_000), (16_000, 24_000)]


@pytest.mark.parametrize(("source_rate", "sample_rate"), PAIRS)
@pytest.mark.parametrize("share", [0.02, 0.4, 0.8, 0.9])
def test_what_both_rates_can_carry_comes_through_as_it_was(source_rate: int, sample_rate: int, share: float) -> None:
    """Nothing of it is turned down, nothing else appears (100 dB below), and it comes at most 0.2 ms early."""
    hertz = share * min(source_rate, sample_rate) / 2
    made = resampled(tone(1.0, source_rate, hertz), source_rate, sample_rate, [])[_SETTLED:-_SETTLED].astype(np.float64)
    angle = 2 * np.pi * hertz * np.arange(_SETTLED, _SETTLED + len(made)) / sample_rate
    basis = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    weights, *_ = np.linalg.lstsq(basis, made, rcond=None)
    assert np.hypot(*weights) == pytest.approx(0.5, rel=0.001)
    assert np.abs(made - basis @ weights).max() < 0.5 * 10 ** (-100 / 20)
    if share < 0.1:  # A higher tone has turned further than an angle can say.
        assert abs(np.arctan2(weights[1], weights[0])) / (2 * np.pi * hertz) < 0.00021


@pytest.mark.parametrize("sample_rate", [8_000, 16_000, 22_050])
def test_what_the_lower_rate_cannot_carry_is_gone(sample_rate: int) -> None:
    made = resampled(tone(1.0, 24_000, 0.56 * sample_rate), 24_000, sample_rate, [])[_SETTLED:-_SETTLED]
    assert np.abs(made).max() < 0.5 * 10 ** (-80 / 20)


def test_24_to_8_khz_in_37_ms_chunks_is_one_unbroken_tone() -> None:
    """S11: equal to the one-shot answer once quantised, too, and no click where chunks meet."""
    samples = tone(2.0, 24_000)
    encoder = open_encoder(AudioFormat.PCM, source_rate=24_000, sample_rate=8_000)
    pieces = [encoder.encode(part) for part in np.split(samples, range(888, len(samples), 888))]
    streamed = np.frombuffer(b"".join(pieces) + encoder.finish(), dtype="<i2")
    assert np.array_equal(streamed, to_s16(resampled(samples, 24_000, 8_000, [])))
    assert encoder.samples == len(streamed) == 16_000
    # Half a step of rounding, and a little of the filter's own.
    assert np.abs(residual(streamed[_SETTLED:-_SETTLED] / 32_768, 8_000)).max() < 1.5 / 32_768


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
def test_the_filter_never_holds_back_more_than_40_ms(source_rate: int, sample_rate: int) -> None:
    resampler = Resampler(source_rate, sample_rate)
    samples = tone(0.6, source_rate)
    out = 0
    for end in range(0, len(samples), source_rate // 200):
        assert end / source_rate - out / sample_rate <= 0.040
        out += len(resampler.push(samples[end : end + source_rate // 200]))
