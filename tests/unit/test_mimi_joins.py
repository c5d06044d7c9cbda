"""Pauses between passages: of the length that was asked for, without clicks, whatever the chunks."""

from __future__ import annotations

import numpy as np
import pytest

from streamsynth.models.mimi.joins import AUDIBLE, FAINT, Float, Joiner

RATE = 24_000
FRAME = 960


def passage(silent: int, spoken: int, tail: int, soft: int = 0) -> Float:
    """So many milliseconds of silence, of a soft and of a loud tone, and of silence."""
    time = np.arange(RATE * spoken // 1000) / RATE
    loud = 0.3 * np.cos(2 * np.pi * 200 * time)
    near = np.full(RATE * soft // 1000, (FAINT + AUDIBLE) / 2)
    quiet = [np.zeros(RATE * milliseconds // 1000) for milliseconds in (silent, tail)]
    return np.concatenate((quiet[0], near, loud, quiet[1])).astype(np.float32)


def joined(passages: list[Float], pause: int, frames: int = 1) -> Float:
    joiner = Joiner(RATE, shapes=True)
    made = []
    for samples in passages:
        joiner.begin()
        chunks = [samples[at : at + frames * FRAME] for at in range(0, len(samples), frames * FRAME)]
        made += [joiner.speech(chunk) for chunk in chunks]
        made.append(joiner.pause(pause))
    return np.concatenate(made)


def steps(samples: Float) -> float:
    return float(np.abs(np.diff(samples)).max())


def test_a_passage_starts_where_it_can_be_heard() -> None:
    made = joined([passage(120, 200, 0)], 0)
    assert 0.2 * RATE < len(made) <= 0.225 * RATE
    assert abs(made[0]) < FAINT


def test_a_soft_start_is_kept_and_at_most_50_ms_of_it() -> None:
    for soft in (20, 200):
        made = joined([passage(40, 200, 0, soft)], 0)
        audible = int(np.argmax(np.abs(made) > AUDIBLE)) / RATE
        assert min(soft / 1000, 0.04) - 0.01 <= audible <= 0.05


def test_the_silence_that_speech_ended_with_counts_in_the_pause() -> None:
    for tail in (0, 60, 120):
        made = joined([passage(40, 200, tail), passage(40, 200, 0)], RATE // 2)
        loud = np.flatnonzero(np.abs(made) > AUDIBLE)
        gaps = np.diff(loud) / RATE
        assert gaps.max() == pytest.approx(0.5, abs=0.03)


def test_speech_that_breaks_off_is_let_down_without_a_click() -> None:
    made = joined([passage(0, 203, 0), passage(0, 200, 0)], RATE // 4)
    assert steps(made) < 0.03
    joiner = Joiner(RATE, shapes=True)
    cut = joiner.fade_out(joiner.speech(passage(0, 203, 0)))
    assert abs(cut[-1]) < 0.01
    assert steps(cut) < 0.03


@pytest.mark.parametrize("frames", [2, 5, 100])
def test_the_samples_do_not_depend_on_the_chunks(frames: int) -> None:
    passages = [passage(50, 210, 95), passage(135, 300, 10, soft=60), passage(400, 0, 0)]
    np.testing.assert_array_equal(joined(passages, RATE // 3, frames), joined(passages, RATE // 3))


def test_a_passage_without_sound_is_its_pause() -> None:
    made = joined([passage(200, 0, 0)], RATE // 4)
    assert len(made) <= RATE // 4
    assert not made.any()


def test_unshaped_speech_is_left_as_it_is() -> None:
    joiner = Joiner(RATE, shapes=False)
    samples = passage(100, 100, 100)
    np.testing.assert_array_equal(joiner.fade_out(joiner.speech(samples)), samples)
