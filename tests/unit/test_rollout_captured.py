"""Captured passes against the plain ones: the same chunks, whatever is evicted, recached, reset, joined or given up."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from rollout_driver import engine_of, open_video, pictures_of, run, settle, step
from rollout_models import SmallVideoModel

from streamsynth.engine.rollout.engine import RolloutEngine, RolloutStream
from streamsynth.interactions.messages import Interaction, Kv
from streamsynth.video import Size

SQUARE, WIDE = Size(width=32, height=32), Size(width=64, height=32)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # At these sizes a second thread only waits.


def both(model: SmallVideoModel, *, quantised: bool = False) -> list[RolloutEngine]:
    return [engine_of(model, quantised=quantised, captured=sizes) for sizes in ((), (SQUARE, WIDE))]


def steer(stream: RolloutStream, event_id: str, prompt: str, kv: Kv, chunks: int = 0) -> None:
    stream.interact(Interaction(event_id, {"prompt": prompt}, transition_chunks=chunks, kv=kv))


@pytest.mark.parametrize("quantised", [False, True], ids=["plain", "float8"])
@pytest.mark.parametrize("sink", [0, 2])
def test_one_video_is_the_same_through_eviction_recache_blend_and_reset(sink: int, quantised: bool) -> None:
    """V03, V08, V12: bit for bit where the same operations run."""
    found = []
    for engine in both(SmallVideoModel(sink=sink), quantised=quantised):
        stream = open_video(engine, "a", seed=5)
        made = pictures_of(engine, stream, 6)
        steer(stream, "1", "b", Kv.RECACHE)
        made += pictures_of(engine, stream, 2)
        steer(stream, "2", "c", Kv.KEEP, chunks=3)
        made += pictures_of(engine, stream, 4)
        steer(stream, "3", "d", Kv.RESET)
        found.append(np.concatenate(made + pictures_of(engine, stream, 5)))
    assert np.array_equal(*found)


def test_videos_that_join_leave_and_take_turns_are_the_same() -> None:
    """One, two and three in a pass, and those of another size between them."""
    found = []
    for engine in both(SmallVideoModel()):
        first, second, wide = open_video(engine, "a", seed=3), open_video(engine, "b"), open_video(engine, width=64)
        made = list(run(engine, {first: 2, second: 3, wide: 2}).values())
        second.close()
        third, fourth = open_video(engine, "c", seed=8), open_video(engine, "d", seed=9)
        steer(wide, "e", "e", Kv.RECACHE)
        made += run(engine, {first: 5, third: 6, fourth: 6, wide: 4}).values()
        found.append(np.concatenate([video.ravel() for video in made]))
    assert np.array_equal(*found)


def test_every_shape_is_captured_when_the_engine_is_built_and_none_afterwards() -> None:
    """Four of rows, four of kept frames, two sizes: each a pass, a commit and, but for a first chunk, a load."""
    model = SmallVideoModel()
    engine = engine_of(model, captured=(SQUARE, WIDE))
    captures = engine.counters()["captures"]
    assert captures == 4 * 2 * (3 * 3 + 2)
    streams = {open_video(engine, name): 6 for name in "abc"}
    run(engine, streams)
    steer(next(iter(streams)), "e", "b", Kv.RECACHE)
    run(engine, dict.fromkeys(streams, 2))
    assert engine.counters()["captures"] == captures


def test_a_size_that_was_not_captured_runs_plainly() -> None:
    found = []
    for sizes in ((), (SQUARE,)):
        engine = engine_of(SmallVideoModel(), captured=sizes)
        found.append(np.concatenate(pictures_of(engine, open_video(engine, width=64), 6)))
    assert np.array_equal(*found)


def test_a_video_given_up_in_any_pass_leaves_the_next_as_if_it_had_been_alone() -> None:
    model = SmallVideoModel()
    engine = engine_of(model, captured=(SQUARE,))
    expected = np.concatenate(pictures_of(engine, open_video(engine, seed=3), 5))
    for steps in range(1, 12):
        given_up = open_video(engine, "b")
        for _ in range(steps):
            step(engine, [given_up])
        given_up.close()
        settle(engine)
        stream = open_video(engine, seed=3)
        assert np.array_equal(np.concatenate(pictures_of(engine, stream, 5)), expected)
        stream.close()


def test_an_engine_that_is_let_go_gives_its_memory_back_after_a_collection() -> None:
    """Warm-up builds one to measure with before the one that serves."""
    engine = engine_of(SmallVideoModel(), captured=(SQUARE,))
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
