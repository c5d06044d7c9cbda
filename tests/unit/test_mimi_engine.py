"""A codec stage: streams decoded together are what each is alone, in chunks that suit their listeners."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from mimi_models import SMALL, config_of, random_reference

import streamsynth.models.mimi.stream as stream_module
from streamsynth.engine.stream import Emission
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.graph.chunk import Chunk, Unit
from streamsynth.models.mimi.decoder import MimiDecoder
from streamsynth.models.mimi.engine import MimiEngine
from streamsynth.models.mimi.stream import COMFORTABLE_FRAMES, CodecStream

RATE = SMALL["sampling_rate"]
BOOKS = SMALL["num_quantizers"]


@pytest.fixture(scope="module")
def decoder() -> MimiDecoder:
    torch.set_num_threads(1)
    reference = random_reference(SMALL)
    return MimiDecoder(config_of(reference), dict(reference.state_dict()))


def engine(decoder: MimiDecoder, streams: int = 4) -> MimiEngine:
    return MimiEngine(decoder, sample_rate=RATE, max_streams=streams)


def codes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, SMALL["codebook_size"], (count, BOOKS)).astype(np.int16)


def feed(stream: CodecStream, frames: np.ndarray, start: int = 0, *, final: bool = False, **marks: object) -> None:
    stream.feed(Chunk(frames, start, len(frames), Unit.FRAME, 25, final, marks))


def run(engine: MimiEngine, *streams: CodecStream) -> dict[CodecStream, list[Emission]]:
    made: dict[CodecStream, list[Emission]] = {stream: [] for stream in streams}
    while ready := [stream for stream in streams if stream.ready_frames or stream.ends_now]:
        for stream, emission in engine.step(ready).made:
            assert isinstance(stream, CodecStream)
            assert isinstance(emission, Emission)
            made[stream].append(emission)
    return made


def samples(emissions: list[Emission]) -> np.ndarray:
    return np.concatenate([emission.media for emission in emissions])


def whole(decoder: MimiDecoder, frames: np.ndarray) -> np.ndarray:
    return decoder.decode(torch.from_numpy(frames.astype(np.int64)).T[None])[0].numpy()


def test_streams_side_by_side_are_what_each_is_alone(decoder: MimiDecoder) -> None:
    stage = engine(decoder)
    streams = [stage.open({}) for _ in range(3)]
    said = [codes(20, 1), codes(13, 2), codes(7, 3)]
    for start in range(0, 20, 3):
        for stream, frames in zip(streams, said, strict=True):
            if start < len(frames):
                feed(stream, frames[start : start + 3], start, final=start + 3 >= len(frames))
    made = run(stage, *streams)
    for stream, frames in zip(streams, said, strict=True):
        np.testing.assert_allclose(samples(made[stream]), whole(decoder, frames), atol=1e-5)
        assert [emission.final for emission in made[stream]].count(True) == 1
        assert made[stream][-1].consumed == len(frames)


def test_a_slot_that_is_taken_again_begins_anew(decoder: MimiDecoder) -> None:
    stage = engine(decoder, streams=1)
    for seed in (1, 2):
        stream = stage.open({})
        feed(stream, codes(9, seed), final=True)
        np.testing.assert_allclose(samples(run(stage, stream)[stream]), whole(decoder, codes(9, seed)), atol=1e-5)
        stream.close()


def test_more_streams_than_slots_are_overload(decoder: MimiDecoder) -> None:
    stage = engine(decoder, streams=1)
    stage.open({})
    with pytest.raises(StreamSynthError) as refused:
        stage.open({})
    assert refused.value.code is ErrorCode.OVERLOADED


def test_segments_keep_their_ends_texts_and_samples(decoder: MimiDecoder) -> None:
    stage = engine(decoder)
    stream = stage.open({})
    feed(stream, codes(5), segment=0, segment_text="one", segment_final=True)
    feed(stream, codes(3, 1), 5, segment=1, segment_text="two")
    feed(stream, codes(0), 8, segment=1, segment_final=True, final=True)
    made = run(stage, stream)[stream]
    per_frame = decoder.config.frame_samples
    assert sum(len(e.media) for e in made if e.segment == 0) == 5 * per_frame
    assert sum(len(e.media) for e in made if e.segment == 1) == 3 * per_frame
    assert [e.segment_text for e in made if e.segment_text] == ["one", "two"]
    assert [e.segment for e in made if e.segment_final] == [0, 1]
    assert made[-1].final


def test_the_first_frame_is_decoded_at_once_and_later_ones_wait_for_company(decoder: MimiDecoder) -> None:
    """S16: a small first chunk, then larger ones while the listener has enough in hand; one in need is served now."""
    stage = engine(decoder)
    stream = stage.open({})
    feed(stream, codes(1))
    assert stream.wake_at() == 0.0
    run(stage, stream)
    feed(stream, codes(1), 1)
    due = stream.wake_at()
    assert due is not None
    assert due < time.monotonic(), "a listener with one frame in hand is in need"
    for number in range(2, 40):
        feed(stream, codes(1), number)
        run(stage, stream)
    feed(stream, codes(1), 40)
    later = stream.wake_at()
    assert later is not None
    assert later > time.monotonic(), "a listener with 1.5 s in hand can wait"
    feed(stream, codes(COMFORTABLE_FRAMES), 41)
    assert stream.wake_at() == 0.0


def test_the_gain_multiplies_the_samples(decoder: MimiDecoder) -> None:
    plain, loud = engine(decoder), MimiEngine(decoder, sample_rate=RATE, max_streams=1, gain=2.0)
    results = []
    for stage in (plain, loud):
        stream = stage.open({})
        feed(stream, codes(4), final=True)
        results.append(samples(run(stage, stream)[stream]))
    np.testing.assert_allclose(results[1], 2 * results[0], rtol=1e-6)


def test_a_pause_ends_a_passage_and_the_next_one_is_decoded_as_if_it_stood_alone(decoder: MimiDecoder) -> None:
    stage = engine(decoder)
    stream = stage.open({})
    first, second = codes(5), codes(4, 1)
    feed(stream, first[:3], pause=0)
    feed(stream, first[3:], 3, pause=2)
    feed(stream, second, 5, final=True)
    made = samples(run(stage, stream)[stream])
    spoken = 5 * stage.frame_samples
    np.testing.assert_allclose(made[:spoken], whole(decoder, first), atol=1e-5)
    np.testing.assert_allclose(made[-4 * stage.frame_samples :], whole(decoder, second), atol=1e-5)
    assert len(made) == (5 + 2 + 4) * stage.frame_samples


@pytest.mark.parametrize(("share", "frames"), [(0.3, 1), (0.55, 3), (0.7, 5), (1.2, 8)])
def test_the_first_chunk_grows_with_how_long_frames_are_in_coming(
    decoder: MimiDecoder, monkeypatch: pytest.MonkeyPatch, share: float, frames: int
) -> None:
    """S16, S17: a listener who starts on one frame starves where the next ones come late."""
    now = 0.0
    monkeypatch.setattr(stream_module.time, "monotonic", lambda: now)
    stage = engine(decoder)
    loaded = stage.open({})
    for number in range(20):
        feed(loaded, codes(1), number)
        run(stage, loaded)
        now += share / 25
    stream = stage.open({})
    for number in range(frames):
        assert stream.wake_at() is None
        feed(stream, codes(1), number)
    assert stream.wake_at() == 0.0
    short = stage.open({})
    feed(short, codes(1), final=True)
    assert short.wake_at() == 0.0, "nothing more will come"


def test_frames_that_nobody_waits_for_say_nothing_about_load(
    decoder: MimiDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A talker that is far ahead is held back by its reader, not by load; and text may be long in coming."""
    now = 0.0
    monkeypatch.setattr(stream_module.time, "monotonic", lambda: now)
    stage = engine(decoder)
    stream = stage.open({})
    for number in range(200):
        feed(stream, codes(1), number)
        run(stage, stream)
        now += 0.01 if number < 100 else 0.04
    feed(stream, codes(1), 200, pause=1)
    now += 0.9
    feed(stream, codes(1), 201)
    assert stage.pace.first_frames == 1


def test_a_passage_is_spoken_at_the_speed_of_its_request_with_its_pause(decoder: MimiDecoder) -> None:
    stage = engine(decoder)
    for speed in (0.5, 1.25):
        stream = stage.open({"speed": speed})
        feed(stream, codes(40), pause=10)
        feed(stream, codes(40, 1), 40, final=True)
        made = samples(run(stage, stream)[stream])
        assert len(made) == pytest.approx(90 * stage.frame_samples / speed, abs=stage.frame_samples)
        stream.close()


def test_what_is_heard_is_never_more_than_the_tokens_that_were_asked_for(decoder: MimiDecoder) -> None:
    stage = engine(decoder)
    stream = stage.open({"max_new_tokens": 7, "speed": 0.5})
    feed(stream, codes(4), final=True)
    assert len(samples(run(stage, stream)[stream])) == 7 * stage.frame_samples


def test_the_text_of_a_segment_comes_with_the_first_sound_of_it(decoder: MimiDecoder) -> None:
    stage = MimiEngine(decoder, sample_rate=RATE, max_streams=1, gain=1e-9, shapes=True)
    stream = stage.open({})
    feed(stream, codes(1), segment_text="hush")
    assert not stage.step([stream]).made
    assert stream.wake_at() is None
    feed(stream, codes(1), 1, pause=3)
    ((_, emission),) = stage.step([stream]).made
    assert isinstance(emission, Emission)
    assert (emission.segment_text, len(emission.media)) == ("hush", 3 * stage.frame_samples)
