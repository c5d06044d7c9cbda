"""Whole clips on one device: order, steps, progress, aborts, refusals, pieces; each clip as if it were alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_pipelines.clips import HEIGHT, STEPS, WIDTH, Made, Pictures, make, options, request, save, step
from torch import Tensor

import streamsynth.engine.diffusion.engine as engine_module
from streamsynth.engine.diffusion.clip import Clip
from streamsynth.engine.diffusion.engine import MAX_COPIES, ClipEngine, ClipStream
from streamsynth.engine.diffusion.envelope import Envelope
from streamsynth.engine.diffusion.output import HostCopy, OutputThread
from streamsynth.engine.diffusion.rehearsal import rehearsed_engine
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.messages import Interaction, Progress
from streamsynth.models.diffusers.abilities import Bounds
from streamsynth.models.diffusers.loading import load_clips, load_pipeline
from streamsynth.models.diffusers.model import PipelineClip, PipelineModel
from streamsynth.video import Size, VideoRequest

SIZE = Size(width=WIDTH, height=HEIGHT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save("wan", tmp_path_factory.mktemp("wan"))


@pytest.fixture(params=[1, 2])
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[ClipEngine]:
    """With room for one clip, and for two."""
    before = set(threading.enumerate())
    made = load_clips(**options(folder, max_requests=request.param))
    yield made
    made.close()
    assert set(threading.enumerate()) <= before


def wan(prompt: str = "a red fox", seed: int = 7, **changed: object) -> VideoRequest:
    return request("wan", prompt, seed, **changed)


def assert_same(made: Pictures, expected: Pictures) -> None:
    """But for rounding, where passes are shared."""
    assert np.abs(made.astype(int) - expected.astype(int)).max() <= 1


def test_clips_that_are_made_at_once_are_those_that_are_made_alone(engine: ClipEngine) -> None:
    asked = [wan(seed=1), wan("the sea", seed=2, guidance=7.0), wan(seed=3, num_frames=5), wan(seed=1, steps=5)]
    together = make(engine, *asked)
    for made, each in zip(together, asked, strict=True):
        assert made.error is None
        assert_same(made.pictures, make(engine, each)[0].pictures)
        assert made.progress == [Progress(number, each.steps or 0) for number in range(1, (each.steps or 0) + 1)]


def test_one_step_of_the_engine_is_one_step_of_a_clip(engine: ClipEngine) -> None:
    stream, made = engine.open(wan().to_wire()), Made()
    running = {stream: made}
    for number in range(1, STEPS + 1):
        step(engine, running)
        assert made.progress[-1] == Progress(number, STEPS)
    assert made.pieces == []
    while running:
        step(engine, running)
    assert made.ended


def test_a_clip_that_is_aborted_takes_no_further_step_and_makes_room(engine: ClipEngine) -> None:
    """At every step of the first: the one behind it is made as if nothing had been."""
    (expected,) = make(engine, wan(seed=5))
    for at in range(STEPS + 1):
        first, second = engine.open(wan(seed=4).to_wire()), engine.open(wan(seed=5).to_wire())
        running = {first: Made(), second: Made()}
        for _ in range(at):
            step(engine, running)
        clip, seen, made = first.clip, len(running[first].progress), running[second]
        del running[first]
        first.close()
        while running:
            step(engine, running)
        assert seen == at
        if isinstance(clip, PipelineClip):
            clip.lane.rest()
            assert (clip.step, clip.lane.ended) == (at, True)
        assert_same(made.pictures, expected.pictures)
    assert engine.counters()["live"] == 0


def test_one_clip_after_another_is_made_by_one_thread(folder: Path) -> None:
    """cuDNN keeps by thread what it found out about a shape, which took as long as a third of a short clip."""
    pipeline = load_pipeline(folder, dtype=torch.float32)
    model = PipelineModel(pipeline, Bounds(sizes=(SIZE,), max_frames=9), device=torch.device("cpu"), capacity=1)
    engine = ClipEngine(model, Envelope(SIZE, 9))
    of_thread, passes = threading.local(), []

    def count(*_: object) -> None:
        of_thread.passes = getattr(of_thread, "passes", 0) + 1
        passes.append(of_thread.passes)

    pipeline.transformer.register_forward_pre_hook(count)
    for seed in range(3):
        make(engine, wan(seed=seed))
    engine.close()
    assert passes == list(range(1, len(passes) + 1)) and len(passes) >= 3 * STEPS


def test_requests_are_taken_up_in_the_order_of_their_arrival(folder: Path) -> None:
    engine = load_clips(**options(folder))
    streams = [engine.open(wan(seed=seed).to_wire()) for seed in range(4)]
    running = {stream: Made() for stream in streams}
    ends: list[ClipStream] = []
    while running:
        waiting = [stream for stream in streams if stream in running and stream.clip is None]
        assert all(stream.wake_at() is None for stream in waiting[1:])
        before = set(running)
        step(engine, running)
        ends += before - set(running)
    assert ends == streams
    engine.close()


@pytest.mark.parametrize(
    ("changed", "param", "limit"),
    [
        ({"width": 48, "height": 48}, "width", "64x32; sides of 16 to 128 that are multiples of 16, 2048 pixels"),
        ({"height": 33}, "height", "64x32"),
        ({"num_frames": 13}, "num_frames", "1 to 9"),
        ({"num_frames": 8}, "num_frames", "one more than a multiple of 4"),
        ({"steps": 21}, "steps", "1 to 20"),
        ({"steps": 0}, "steps", "1 to 20"),
        ({"guidance": float("nan")}, "guidance", "0 to 100"),
        ({"guidance": 1.0}, "negative_prompt", "left out where guidance is 1 or less"),
        ({"picture": b"x"}, "picture", "does not use picture"),
        ({"prompt": "a" * 600}, "prompt", "at most 512 of the model's tokens"),
    ],
)
def test_what_can_never_be_made_is_refused_alone(
    engine: ClipEngine, changed: dict[str, object], param: str, limit: str
) -> None:
    """The error names the field and its limit; the clip that is under way goes on."""
    stream, made = engine.open(wan().to_wire()), Made()
    running = {stream: made}
    step(engine, running)
    with pytest.raises(StreamSynthError, match=limit) as refused:
        engine.open(replace(wan(), **changed).to_wire())  # type: ignore[arg-type]
    assert refused.value.param == param
    assert refused.value.rendering.http_status == 400
    while running:
        step(engine, running)
    assert made.error is None
    assert engine.counters()["live"] == 0


def test_a_clip_cannot_be_steered(engine: ClipEngine) -> None:
    stream = engine.open(wan().to_wire())
    with pytest.raises(StreamSynthError, match="cannot be steered"):
        stream.interact(Interaction("e", {"prompt": "snow"}))
    stream.close()


def test_pictures_leave_in_pieces_of_bounded_size(engine: ClipEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = make(engine, wan())
    assert [len(piece.media) for piece in whole.pieces] == [9]
    monkeypatch.setattr(engine_module, "PIECE_BYTES", 4 * 3 * WIDTH * HEIGHT)
    (cut,) = make(engine, wan())
    assert [len(piece.media) for piece in cut.pieces] == [4, 4, 1]
    assert [piece.final for piece in cut.pieces] == [False, False, True]
    assert [piece.report.last for piece in cut.pieces if piece.report] == [False, False, True]
    np.testing.assert_array_equal(cut.pictures, whole.pictures)


class HeldOutputs(OutputThread):
    """Copies when it is told to; the copy of what is `bad` fails."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.held: list[HostCopy] = []
        self.bad: set[int] = set()

    def begin(self, pictures: Tensor) -> HostCopy:
        self.held.append(HostCopy(pictures))
        return self.held[-1]

    def let_go(self, number: int) -> None:
        copy = self.held[number]
        if number in self.bad:
            copy._source = torch.empty(1, device="meta")
        copy.run(None)


def held_outputs(engine: ClipEngine) -> HeldOutputs:
    engine._outputs.close()
    engine._outputs = HeldOutputs()
    return engine._outputs


def test_the_next_clip_is_made_while_the_pictures_of_the_last_are_on_their_way(folder: Path) -> None:
    """AO-3; no more than a bounded number of clips waits there with its memory."""
    engine = load_clips(**options(folder))
    outputs = held_outputs(engine)
    running = {engine.open(wan(seed=seed).to_wire()): Made() for seed in range(4)}
    streams = list(running)
    for _ in range(20):
        step(engine, running)
    assert len(outputs.held) == MAX_COPIES
    assert [stream.clip is not None for stream in streams] == [True, True, False, False]
    outputs.let_go(1)
    while streams[1] in running:
        step(engine, running)
    assert streams[0] in running, "a reader that lags blocks nobody"
    for number in (0, 2, 3):
        while len(outputs.held) <= number:
            step(engine, running)
        outputs.let_go(number)
    while running:
        step(engine, running)
    engine.close()


def test_what_fails_after_computing_is_done_fails_its_own_request_alone(folder: Path) -> None:
    """AO: the step loop and the other requests go on."""
    engine = load_clips(**options(folder))
    (expected,) = make(engine, wan(seed=2))
    outputs = held_outputs(engine)
    outputs.bad = {0}
    made = [Made(), Made()]
    running = {engine.open(wan(seed=seed).to_wire()): each for seed, each in zip((1, 2), made, strict=True)}
    for number in range(2):
        while len(outputs.held) <= number:
            step(engine, running)
        outputs.let_go(number)
    while running:
        step(engine, running)
    assert made[0].error is not None
    assert made[0].error.code is ErrorCode.ENGINE_FAILED
    np.testing.assert_array_equal(made[1].pictures, expected.pictures)
    engine.close()


class Failing(PipelineModel):
    """Raises in the middle of a clip of a certain seed, or for clips of more pixels than fit."""

    bad_seed: int | None = None
    fitting = 9 * WIDTH * HEIGHT

    def advance(self, clips: Sequence[Clip]) -> None:
        super().advance(clips)
        for clip in clips:
            assert isinstance(clip, PipelineClip)
            if clip.request.seed == self.bad_seed:
                clip.error = RuntimeError("a kernel failed")
            elif (clip.request.num_frames or 0) * clip.request.width * clip.request.height > self.fitting:
                clip.error = torch.OutOfMemoryError("out of memory")


def failing(folder: Path) -> Failing:
    pipeline = load_pipeline(folder, dtype=torch.float32)
    bounds = Bounds(sizes=(SIZE,), max_frames=9, max_steps=20)
    return Failing(pipeline, bounds, device=torch.device("cpu"), capacity=2)


def test_a_failed_step_ends_its_own_clip_alone(folder: Path) -> None:
    model = failing(folder)
    engine = ClipEngine(model, Envelope(SIZE, 9))
    model.bad_seed = 1
    bad, good = make(engine, wan(seed=1), wan(seed=2))
    assert bad.error is not None
    assert (bad.error.code, bad.pieces) == (ErrorCode.ENGINE_FAILED, [])
    assert good.error is None
    engine.close()


def test_the_run_at_start_up_sets_what_is_admitted(folder: Path) -> None:
    """ENG-5: equal to what was made at start-up is accepted, more is refused by name."""
    model = failing(folder)
    model.fitting = 5 * WIDTH * HEIGHT
    engine = rehearsed_engine(model)
    assert engine.counters()["envelope_pixels"] == 5 * WIDTH * HEIGHT
    (made,) = make(engine, wan(num_frames=5))
    assert made.error is None
    with pytest.raises(StreamSynthError, match="at most 5 at 64x32: more do not fit") as refused:
        engine.open(wan(num_frames=9).to_wire())
    assert (refused.value.code, refused.value.param) == (ErrorCode.INVALID_VALUE, "num_frames")
    (small,) = make(engine, wan(width=32, height=32, num_frames=9))
    assert small.error is None
    engine.close()


def test_a_model_whose_smallest_clip_does_not_fit_does_not_start(folder: Path) -> None:
    model = failing(folder)
    model.fitting = 0
    with pytest.raises(StreamSynthError, match="no clip of 64x32 fits the device") as refused:
        rehearsed_engine(model)
    assert refused.value.code is ErrorCode.START_FAILED
