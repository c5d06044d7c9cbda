"""The vocoder in windows: the samples of `hibari.dsp.synth`, whatever the windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hibari import dsp
from hypothesis import given, settings
from hypothesis import strategies as st
from speaking import voice

from streamsynth.models.hibari.joins import FRAMES_AFTER, FRAMES_BEFORE, SILENCE_DB, speech_frames
from streamsynth.models.hibari.network import Abort
from streamsynth.models.hibari.vocoder import FRAME_SAMPLES, Float, Renderer, Spectrum

SENTENCE = "həlˈO, ðɪs ɪz ɐ vˈYs."


class Noise:
    """A noise generator that gives the same value to the same frame and bin, whichever way it is asked for them."""

    def __init__(self, *, frames_first: bool, first: int = 0) -> None:
        self._frames_first = frames_first
        self._next = first

    def standard_normal(self, shape: tuple[int, int], dtype: Any) -> Float:
        """Shape (frames, 2 * bins) or, as hibari asks, (bins, 2 * frames): pairs are real and imaginary parts."""
        rows, columns = shape
        frames, bins = (rows, columns // 2) if self._frames_first else (columns // 2, rows)
        number = np.arange(self._next, self._next + frames)[:, None, None] * 1e3 + np.arange(bins)[None, :, None]
        values = np.sin(number * 12.9898 + np.arange(2) * 78.233)
        self._next += frames
        ordered = values if self._frames_first else values.transpose(1, 0, 2)
        return np.ascontiguousarray(ordered, dtype).reshape(shape)


@pytest.fixture(scope="module")
def spectrum() -> Spectrum:
    return voice().network.run(SENTENCE, 1.0, Abort())


@pytest.fixture(scope="module")
def whole(spectrum: Spectrum) -> Float:
    return Renderer(spectrum, 0, len(spectrum), Noise(frames_first=True)).render(len(spectrum))


def test_it_makes_the_samples_of_the_reference(spectrum: Spectrum, whole: Float) -> None:
    part = spectrum
    noise = Noise(frames_first=False)
    expected = dsp.synth(part.harmonic, part.turn, part.noise, part.free, part.phase, part.pitch, noise)
    assert len(whole) == len(expected)
    # The reference does not taper its first and last window, which are silent.
    np.testing.assert_allclose(whole, expected, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_windows_of_any_size_make_the_same_samples(sizes: list[int]) -> None:
    """Streaming equals offline."""
    spectrum = voice().network.run(SENTENCE, 1.0, Abort())
    make: Callable[[], Renderer] = lambda: Renderer(spectrum, 3, len(spectrum) - 5, Noise(frames_first=True))  # noqa: E731
    renderer = make()
    windows = [renderer.render(size) for size in sizes]
    windows.append(renderer.render(len(spectrum)))
    assert renderer.left == 0
    np.testing.assert_allclose(np.concatenate(windows), make().render(len(spectrum)), atol=1e-6)


def test_noise_is_drawn_frame_by_frame(spectrum: Spectrum) -> None:
    def make() -> Renderer:
        return Renderer(spectrum, 10, len(spectrum), np.random.default_rng((7, 0)))

    together, apart = make(), make()
    windows = [apart.render(32) for _ in range(-(-apart.left // 32))]
    np.testing.assert_allclose(np.concatenate(windows), together.render(len(spectrum)), atol=1e-6)


def test_speech_starts_and_ends_where_the_samples_do(spectrum: Spectrum, whole: Float) -> None:
    frames = speech_frames(spectrum)
    level = 10 * np.log10((whole.reshape(-1, FRAME_SAMPLES) ** 2).mean(1) + 1e-20)
    loud = np.flatnonzero(level > SILENCE_DB)
    assert 0 <= loud[0] - frames.start <= FRAMES_BEFORE + 1
    assert 0 <= frames.stop - (loud[-1] + 1) <= FRAMES_AFTER + 2
