"""The video engine of the tests: every picture says which it is, and takes its steering where the engine reports it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from streamsynth.engine.stream import Emission
from streamsynth.errors import StreamSynthError
from streamsynth.interactions.messages import Applied, Interaction, Superseded
from streamsynth.testing.paint import COLOURS, Painted, PaintEngine, PaintStream, paint, read_picture
from streamsynth.testing.paint_pipeline import PAINT
from streamsynth.video import VideoRequest


def open_stream(prompt: str = "red", *, num_frames: int | None = None) -> PaintStream:
    request = VideoRequest(prompt=prompt, width=128, height=128, num_frames=num_frames, seed=1)
    return PaintEngine().open(request.to_wire())


def emissions(stream: PaintStream) -> Iterator[Emission]:
    while True:
        emission = stream.step()
        assert emission is not None
        yield emission
        if emission.final:
            return


@pytest.mark.parametrize("size", PAINT.video.sizes, ids=str)
def test_what_is_painted_is_read_again(size: object) -> None:
    width, height = map(int, str(size).split("x"))
    said = Painted(frame=123_456, prompt_version=7, chunk=4321, epoch=9, colour=(10, 200, 30))
    assert read_picture(paint(width, height, said, 99)) == said


def test_exactly_the_frames_asked_for_are_made_and_the_last_chunk_is_cut() -> None:
    """The first chunk has 9 pictures, the next 12: of 25, the third has 4."""
    made = [e for e in emissions(open_stream(num_frames=25)) if len(e.media)]
    assert [len(emission.media) for emission in made] == [9, 12, 4]
    assert made[-1].final and made[-1].finish_reason == "length"
    pictures = np.concatenate([emission.media for emission in made])
    assert [read_picture(picture).frame for picture in pictures] == list(range(25))


def test_a_chunk_begun_is_not_touched_by_what_comes_after_its_boundary() -> None:
    stream = open_stream()
    begun = stream.step()
    assert begun is not None and len(begun.media) == 0
    assert stream.interact(Interaction("a", {"prompt": "blue"}, 0)) == ()
    first, begun, second = stream.step(), stream.step(), stream.step()
    assert first is not None and begun is not None and second is not None
    assert read_picture(first.media[-1]).colour == COLOURS["red"]
    assert begun.notices == (Applied("a", 1, 9),)
    assert second.report is not None and second.report.completed == ("a",)
    assert read_picture(second.media[0]) == Painted(frame=9, prompt_version=1, chunk=1, epoch=1, colour=COLOURS["blue"])


def test_finishing_completes_the_chunk_in_the_making_and_supersedes_what_waits() -> None:
    stream = open_stream()
    stream.step()
    stream.interact(Interaction("a", {"prompt": "blue"}))
    stream.finish()
    chunk, end = emissions(stream)
    assert len(chunk.media) == 9
    assert end.notices == (Superseded("a", None),)


def test_a_prompt_that_the_model_refuses_is_refused_when_the_video_is_opened() -> None:
    with pytest.raises(StreamSynthError):
        open_stream("{refuse 0}")


def test_the_same_seed_and_prompts_paint_the_same_pictures() -> None:
    """V04."""
    runs = [np.concatenate([e.media for e in emissions(open_stream(num_frames=30))]) for _ in range(2)]
    assert np.array_equal(*runs)
