"""The rollout engine: paged chunks equal dense ones, neighbours change nothing, and every page comes back."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from rollout_driver import engine_of, nearly_equal, open_video, pictures_of, run, settle, step
from rollout_models import SmallVideoModel
from torch import Tensor

from streamsynth.engine.rollout.engine import RolloutStream
from streamsynth.engine.rollout.rollout import PromptHandler
from streamsynth.engine.stream import Emission
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.messages import Applied, Interaction, Kv, Superseded


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # At these sizes a second thread only waits.


class DenseRollout:
    """The oracle: one video without pages, its keys and values in a plain list by frame, nothing used twice."""

    def __init__(self, model: SmallVideoModel, prompt: str, seed: int) -> None:
        self.model = model
        self.embedding = model.embed(prompt)
        self.noise_of = open_video(engine_of(model), prompt, seed=seed).rollout
        self.frames: list[dict[int, tuple[Tensor, Tensor]]] = []
        self.latents: list[Tensor] = []
        self.decoder = model.open_decoder()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Any) -> Tensor:
        self.seen[layer] = (k, v)
        before = self.frames[: self.context]
        tokens = k.shape[1] // self.model.window.chunk
        keys = torch.cat([frame[layer][0] for frame in before] + [k], 1)
        values = torch.cat([frame[layer][1] for frame in before] + [v], 1)
        positions = torch.arange(keys.shape[1] // tokens)[None]
        keys = self.model.rotary(positions, 4, 4).turn(keys)
        weights = torch.einsum("bqhd,bkhd->bhqk", rotary.turn(q), keys) / q.shape[-1] ** 0.5
        return torch.einsum("bhqk,bkhd->bqhd", weights.softmax(-1), values)

    def flow(self, latents: Tensor, timestep: float) -> Tensor:
        self.seen: dict[int, tuple[Tensor, Tensor]] = {}
        positions = torch.arange(self.context, self.context + latents.shape[2])[None]
        rotary = self.model.rotary(positions, 4, 4)
        context = self.model.condition(self.embedding)
        return self.model.transformer(latents, torch.tensor([[timestep]]), context, rotary, self)

    def committed(self, latents: Tensor) -> list[dict[int, tuple[Tensor, Tensor]]]:
        self.flow(latents, 0.0)
        split = {layer: (k.chunk(2, 1), v.chunk(2, 1)) for layer, (k, v) in self.seen.items()}
        return [{layer: (k[n], v[n]) for layer, (k, v) in split.items()} for n in range(2)]

    def recache(self) -> None:
        for start in range(self.model.window.sink, len(self.frames), 2):
            self.context = start
            self.frames[start : start + 2] = self.committed(torch.stack(self.latents[start : start + 2], 2))

    def next_chunk(self) -> np.ndarray[Any, Any]:
        model, window = self.model, self.model.window
        self.context = len(self.frames)
        latents = self.noise_of.noise(0, (4, 2, 4, 4))[None]
        for number, timestep in enumerate(model.denoiser.timesteps):
            flow = self.flow(latents, timestep)
            noise = self.noise_of.noise(number + 1, (4, 2, 4, 4))[None] if model.denoiser.needs_noise(number) else None
            latents = model.denoiser.advance(latents, flow, number, noise)
        self.noise_of.chunk += 1
        pictures = model.decode(latents, [self.decoder])[0].numpy()
        self.frames += self.committed(latents)
        self.latents += latents.unbind(2)
        if len(self.frames) > window.frames - window.chunk:
            del self.frames[window.sink : window.sink + 2], self.latents[window.sink : window.sink + 2]
        return pictures


@pytest.mark.parametrize("sink", [0, 2])
def test_paged_equals_dense_over_twenty_chunks_with_eviction_and_a_recache(sink: int) -> None:
    """V03, V12: with a sink and without one."""
    model = SmallVideoModel(sink=sink)
    engine, dense = engine_of(model), DenseRollout(model, "a", seed=5)
    stream = open_video(engine, "a", seed=5)
    with torch.inference_mode():
        for chunk in range(21):
            if chunk == 12:
                stream.interact(Interaction("e", {"prompt": "b"}, transition_chunks=0))
                dense.embedding = model.embed("b")
                dense.recache()
            (made,) = pictures_of(engine, stream, 1)
            assert nearly_equal(made, dense.next_chunk()), f"chunk {chunk}"


def test_a_recache_changes_what_follows() -> None:
    """V08: it is not for nothing that the oracle above recaches."""
    follows = []
    for kv in (Kv.KEEP, Kv.RECACHE, Kv.RESET):
        engine = engine_of(SmallVideoModel())
        stream = open_video(engine)
        pictures_of(engine, stream, 5)
        stream.interact(Interaction("e", {"prompt": "b"}, transition_chunks=0, kv=kv))
        follows.append(np.concatenate(pictures_of(engine, stream, 1)))
    assert not nearly_equal(follows[0], follows[1]) and not nearly_equal(follows[1], follows[2])


def test_after_a_recache_only_the_sink_is_of_the_old_prompt() -> None:
    """V01."""
    engine = engine_of(SmallVideoModel())
    stream = open_video(engine)
    pictures_of(engine, stream, 6)
    stream.interact(Interaction("e", {"prompt": "b"}, transition_chunks=0))
    pictures_of(engine, stream, 1)
    window = stream.rollout.window
    assert {frame.prompt for frame in window.sliding} == {1} and {frame.prompt for frame in window.sink} == {0}


def test_the_same_seed_twice_in_one_process_gives_the_same_chunks_bit_for_bit() -> None:
    """V04."""
    engine = engine_of(SmallVideoModel())
    made = []
    for _ in range(2):
        stream = open_video(engine, seed=9)
        made.append(np.concatenate(pictures_of(engine, stream, 6)))
        stream.close()
    assert np.array_equal(made[0], made[1])


def test_a_video_is_the_same_beside_others_that_join_leave_and_are_steered() -> None:
    model = SmallVideoModel()
    alone = engine_of(model)
    expected = np.concatenate(pictures_of(alone, open_video(alone, "a", seed=3), 9))
    engine = engine_of(model)
    stream, early, wide = open_video(engine, "a", seed=3), open_video(engine, "b"), open_video(engine, width=64)
    made = [run(engine, {stream: 3, early: 2, wide: 2})[stream]]
    early.close()
    late = open_video(engine, "c", seed=8)
    wide.interact(Interaction("e", {"prompt": "d"}, transition_chunks=2, kv=Kv.RECACHE))
    made.append(run(engine, {stream: 6, late: 5, wide: 4})[stream])
    assert nearly_equal(np.concatenate(made), expected)


def test_videos_of_one_shape_go_through_the_model_together() -> None:
    model = SmallVideoModel()
    engine = engine_of(model)
    run(engine, {open_video(engine, name): 2 for name in "abc"})
    assert set(model.rows) == {3}


def test_every_pass_is_shared_by_the_videos_of_its_chunk_and_no_others() -> None:
    """A step may end one chunk and begin the next: what a worker makes of its cost must not see two videos in one."""
    engine = engine_of(SmallVideoModel())
    for count in (1, 2):
        streams = [open_video(engine, seed=seed) for seed in range(count)]
        made, passes = 0, engine.counters()["passes"]
        shares: list[list[float]] = []
        while made < 3 * count:
            result = engine.step([stream for stream in streams if stream.wake_at() == 0.0])
            made += sum(isinstance(each, Emission) and len(each.media) > 0 for _, each in result.made)
            assert result.shares is not None
            shares.append(list(result.shares))
        settle(engine)
        for stream in streams:
            stream.close()
        assert {len(each) for each in shares} <= {0, count}
        assert sum(len(each) == count for each in shares) >= engine.counters()["passes"] - passes - 1
        clock = engine.model.clock
        assert sum(map(sum, shares)) == pytest.approx(count * clock.first_picture(3) / engine.model.fps)


def test_videos_of_other_shapes_take_turns() -> None:
    model = SmallVideoModel()
    engine = engine_of(model)
    made = run(engine, {open_video(engine): 3, open_video(engine, width=64): 3})
    assert [len(pictures) for pictures in made.values()] == [11, 11]
    assert set(model.rows) == {1}


def test_num_frames_is_met_exactly_and_the_last_chunk_is_cut() -> None:
    engine = engine_of(SmallVideoModel())
    stream = open_video(engine, num_frames=9)
    emissions: list[Emission] = []
    while not emissions or not emissions[-1].final:
        emissions += step(engine, [stream])[stream]
    assert sum(len(emission.media) for emission in emissions) == 9
    assert emissions[-1].finish_reason == "length" and len(emissions[-1].media) == 2


def test_pictures_leave_before_the_chunk_is_committed() -> None:
    model = SmallVideoModel()
    engine = engine_of(model)
    stream = open_video(engine)
    while not any(len(emission.media) for emission in step(engine, [stream])[stream]):
        pass
    assert model.passes == 3 and stream.rollout.window.kept == []
    settle(engine)
    assert model.passes == 4 and len(stream.rollout.window.kept) == 2


def test_a_boundary_is_said_before_the_work_of_its_chunk() -> None:
    model = SmallVideoModel()
    engine = engine_of(model)
    stream = open_video(engine)
    pictures_of(engine, stream, 2)
    passes = model.passes
    stream.interact(Interaction("e", {"prompt": "b"}, transition_chunks=1))
    first = step(engine, [stream])[stream][0]
    assert first.notices == (Applied("e", 2, 7),) and model.passes <= passes + 1
    assert first.report is not None and first.report.completed == ("e",)


def test_a_prompt_that_the_model_refuses_leaves_the_video_as_it_was() -> None:
    engine = engine_of(SmallVideoModel())
    made = []
    for steer in (False, True):
        stream = open_video(engine)
        pictures_of(engine, stream, 1)
        if steer:
            stream.interact(Interaction("e", {"prompt": "refuse"}))
        made.append(np.concatenate(pictures_of(engine, stream, 2)))
        stream.close()
    assert np.array_equal(made[0], made[1])


def test_told_to_finish_it_ends_at_the_next_boundary() -> None:
    engine = engine_of(SmallVideoModel())
    stream = open_video(engine)
    pictures_of(engine, stream, 2)
    stream.interact(Interaction("e", {"prompt": "b"}, transition_chunks=4))
    pictures_of(engine, stream, 1)
    stream.finish()
    (final,) = step(engine, [stream])[stream]
    assert final.final and final.finish_reason == "stop" and not len(final.media)
    assert [(type(notice).__name__, notice.event_id) for notice in final.notices] == [("Superseded", "e")]


def test_what_waits_when_it_is_told_to_finish_is_never_said_to_have_been_applied() -> None:
    engine = engine_of(SmallVideoModel())
    stream = open_video(engine)
    pictures_of(engine, stream, 2)
    stream.interact(Interaction("e", {"prompt": "b"}))
    stream.finish()
    (final,) = step(engine, [stream])[stream]
    assert final.final
    assert final.notices == (Superseded("e", None),)


def test_a_window_that_never_fits_is_refused_with_both_numbers() -> None:
    engine = engine_of(SmallVideoModel(), pages=15)
    with pytest.raises(StreamSynthError, match="takes 16 pages, more than the 15") as raised:
        open_video(engine)
    assert raised.value.code is ErrorCode.INVALID_VALUE


def test_a_full_pool_makes_the_next_video_wait_until_one_ends() -> None:
    """V14."""
    engine = engine_of(SmallVideoModel(), pages=31)
    first, second = open_video(engine), open_video(engine, "b")
    pictures_of(engine, first, 1)
    assert second.wake_at() != 0.0
    first.close()
    assert second.wake_at() == 0.0
    pictures_of(engine, second, 1)
    second.close()
    assert engine.counters()["free_pages"] == 31


@pytest.mark.parametrize("quantised", [False, True])
def test_a_video_whose_pictures_nobody_takes_makes_room_and_goes_on_as_if_nothing_had_been(
    quantised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("streamsynth.engine.rollout.engine.time.monotonic", lambda: now)
    model = SmallVideoModel()
    alone = engine_of(model, quantised=quantised)
    expected = np.concatenate(pictures_of(alone, open_video(alone, seed=3), 8))
    engine = engine_of(model, pages=31, quantised=quantised)
    stalled, other = open_video(engine, seed=3), open_video(engine, "b")
    made = pictures_of(engine, stalled, 5)
    assert other.wake_at() == now + 2.0
    now = 102.0
    assert len(engine.step([other]).made) > 0
    assert stalled.rollout.pages == []
    pictures_of(engine, other, 6)
    other.close()
    made += pictures_of(engine, stalled, 3)
    assert np.array_equal(np.concatenate(made), expected)


def test_a_pass_that_fails_ends_its_own_videos_and_no_others() -> None:
    model = SmallVideoModel()
    engine = engine_of(model)
    square, wide = open_video(engine), open_video(engine, width=64)
    run(engine, {square: 1, wide: 1})
    model.fail_at_pass = model.passes
    made = engine.step([square, wide]).made
    assert [(stream, each.code) for stream, each in made if isinstance(each, StreamSynthError)] == [
        (square, ErrorCode.ENGINE_FAILED)
    ]
    square.close()
    model.fail_at_pass = None
    pictures_of(engine, wide, 2)


@pytest.mark.parametrize("seed", range(8))
def test_every_page_comes_back_however_videos_end(seed: int) -> None:
    """V21, V28: 200 ends at random points between steps, in the middle of chunks and of waiting."""
    chance = random.Random(seed)
    engine = engine_of(SmallVideoModel(), pages=16 * 3 + 5)
    streams: list[RolloutStream] = []
    closed = 0
    while closed < 25:
        if len(streams) < 5 and chance.random() < 0.3:
            streams.append(open_video(engine, chance.choice("abc"), width=chance.choice((32, 32, 64))))
        ended = [stream for stream, made in step(engine, streams).items() if any(each.final for each in made)]
        if streams and chance.random() < 0.15:
            ended.append(chance.choice(streams))
        for stream in set(ended):
            streams.remove(stream)
            stream.close()
            closed += 1
        if streams and chance.random() < 0.2:
            chance.choice(streams).interact(
                Interaction(str(closed), {"prompt": "d"}, 0, kv=chance.choice((Kv.RECACHE, Kv.RESET)))
            )
    for stream in streams:
        stream.close()
    settle(engine)
    assert engine.counters()["free_pages"] == 16 * 3 + 5 and engine.counters()["live"] == 0


def test_a_prompt_is_read_after_the_one_in_force_which_a_refused_one_never_was() -> None:
    class Wordy(SmallVideoModel):
        def in_full(self, prompt: str, before: str | None, seed: int) -> str:
            return prompt if before is None else f"{before} {prompt}"

    model = Wordy()
    handler = PromptHandler(model, "a", seed=0)
    handler.prepare("b")  # Another field of its event was refused.
    handler.begin(handler.prepare("c"))
    handler.progress(Fraction(1))
    assert torch.equal(handler.blender.value, model.embed("a c"))
    assert handler.prepare("d")[0] == "a c d"
