"""A device that is behind the host: passes are over only once somebody waits for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from late_device import LateDevice
from rollout_driver import engine_of, open_video, pictures_of, run, settle, step
from rollout_models import SmallVideoModel

from streamsynth.engine.rollout.engine import RolloutEngine
from streamsynth.engine.rollout.launching import Launches
from streamsynth.engine.stream import Emission
from streamsynth.errors import ErrorCode, StreamSynthError


def late(model: SmallVideoModel) -> tuple[RolloutEngine, LateDevice]:
    engine, device = engine_of(model), LateDevice()
    engine._launches = Launches(torch.device("cpu"), device)
    return engine, device


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # At these sizes a second thread only waits.


def test_the_commit_is_launched_before_anybody_waits_for_the_pictures() -> None:
    """Emit first, commit after: on the wall clock too."""
    model = SmallVideoModel()
    engine, device = late(model)
    stream = open_video(engine)
    while not any(len(emission.media) for emission in step(engine, [stream])[stream]):
        pass
    assert model.passes == 4
    assert device.reached == 2 * 4  # The decode's end, and not the commit's.


def test_two_passes_at_most_are_queued_behind_the_host() -> None:
    engine, device = late(SmallVideoModel())
    streams = [open_video(engine, name) for name in "ab"]
    for _ in range(40):
        step(engine, streams)
        assert device.made - device.reached <= 5  # Two passes, and the mark before a third that there was not.


def test_pictures_and_reports_are_those_of_a_device_that_is_in_step() -> None:
    found = []
    for engine in (engine_of(SmallVideoModel()), late(SmallVideoModel())[0]):
        first, second = open_video(engine, "a", num_frames=14), open_video(engine, "b", seed=4)
        made: list[Emission] = []
        while not made or not made[-1].final:
            made += [each for each in step(engine, [first, second])[first] if len(each.media)]
        first.close()
        other = np.concatenate(pictures_of(engine, second, 2))
        reports = [each.report.chunk for each in made if each.report is not None]
        found.append((np.concatenate([each.media for each in made]), other[:4], reports, made[-1].finish_reason))
    assert np.array_equal(found[0][0], found[1][0])
    assert found[0][2:] == found[1][2:] == ([0, 1, 2, 3], "length")


def test_a_video_closed_while_its_pictures_come_leaves_every_page_free() -> None:
    model = SmallVideoModel()
    engine, _ = late(model)
    for passes in range(1, 9):
        stream, other = open_video(engine), open_video(engine, "b")
        before = model.passes
        while model.passes < before + passes:
            step(engine, [stream, other])
        stream.close()
        run(engine, {other: 2})
        other.close()
        settle(engine)
        counters = engine.counters()
        assert counters["free_pages"] == counters["pages"] and counters["live"] == 0


def test_a_commit_that_fails_ends_the_video_once_without_the_pictures_that_were_on_their_way() -> None:
    model = SmallVideoModel()
    engine, _ = late(model)
    stream = open_video(engine)
    model.fail_at_pass = 3
    made: list[Emission | StreamSynthError] = []
    while not any(isinstance(each, StreamSynthError) for each in made):
        made += [each for _, each in engine.step([stream]).made]
    assert isinstance(made[-1], StreamSynthError) and made[-1].code is ErrorCode.ENGINE_FAILED
    assert not any(len(each.media) for each in made if isinstance(each, Emission))
    stream.close()
    settle(engine)
    counters = engine.counters()
    assert counters["free_pages"] == counters["pages"] and not stream.made


def test_the_devices_time_is_counted_by_kind_of_pass() -> None:
    engine, _ = late(SmallVideoModel())
    stream = open_video(engine)
    pictures_of(engine, stream, 3)
    counters = engine.counters()
    spent = [counters[f"{kind}_us"] for kind in ("recache", "denoise", "decode", "commit")]
    assert spent == [0, 9000, 3000, 2000]  # Nobody has waited for the last commit.
    engine.close()
    assert engine.counters()["commit_us"] == 3000 and engine.counters()["passes"] == 15
