"""Speech faster and slower: as long as it should be, at its pitch, at its level, whatever the chunks."""

from __future__ import annotations

import numpy as np
import pytest

from streamsynth.models.mimi.stretch import Float, Stretcher

RATE = 24_000
BLOCK = 120


def tone(seconds: float, hertz: float = 180.0) -> Float:
    turns = np.arange(round(seconds * RATE)) * hertz / RATE
    return (0.2 * sum(np.sin(2 * np.pi * turns * n) / n for n in range(1, 8))).astype(np.float32)


def stretched(samples: Float, speed: float, chunk: int = 960) -> Float:
    stretcher = Stretcher(RATE, speed)
    made = [stretcher.push(samples[at : at + chunk]) for at in range(0, len(samples), chunk)]
    return np.concatenate([*made, stretcher.finish(BLOCK)])


def pitch(samples: Float) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 1 << 17))
    return float(spectrum.argmax() * RATE / (1 << 17))


@pytest.mark.parametrize("speed", [0.5, 0.8, 0.97, 1.3, 1.5, 2.0])
def test_a_tone_keeps_its_pitch_and_level_and_has_the_length_it_should(speed: float) -> None:
    samples = tone(1.2)
    made = stretched(samples, speed)
    assert len(made) == pytest.approx(len(samples) / speed, abs=BLOCK)
    assert len(made) % BLOCK == 0
    inside = made[RATE // 10 : -RATE // 10]
    assert pitch(inside) == pytest.approx(180, abs=1.5)
    assert np.sqrt((inside**2).mean()) == pytest.approx(np.sqrt((samples**2).mean()), rel=0.05)
    assert np.abs(np.diff(inside)).max() < 1.2 * np.abs(np.diff(samples)).max(), "no clicks"


@pytest.mark.parametrize("chunk", [120, 961, 100_000])
def test_the_samples_do_not_depend_on_the_chunks(chunk: int) -> None:
    samples = tone(0.7) * np.random.default_rng(0).uniform(0.5, 1, round(0.7 * RATE)).astype(np.float32)
    np.testing.assert_array_equal(stretched(samples, 1.25, chunk), stretched(samples, 1.25))


@pytest.mark.parametrize("length", [0, 1, 960, 1500])
def test_short_passages_are_stretched_too(length: int) -> None:
    made = stretched(tone(1.0)[:length], 0.8)
    assert len(made) == pytest.approx(length / 0.8, abs=BLOCK)


def test_it_starts_with_the_input_and_holds_little_back() -> None:
    stretcher = Stretcher(RATE, 1.2)
    samples = tone(0.2)
    made = stretcher.push(samples)
    np.testing.assert_array_equal(made[:480], samples[:480])
    assert len(made) > len(samples) / 1.2 - 0.06 * RATE
