"""A clip's file holds every picture once, whatever pieces they came in, and can be entered every two seconds."""

from __future__ import annotations

import io

import av
import numpy as np
import pytest

from streamsynth.codecs.clips import KEYFRAME_S, ClipEncoder
from streamsynth.testing.paint import COLOURS, Painted, paint, read_picture

FPS, SIDE = 8, 128


def pictures(count: int) -> np.ndarray:
    said = (Painted(frame=k, prompt_version=0, chunk=0, epoch=0, colour=COLOURS["blue"]) for k in range(count))
    return np.stack([paint(SIDE, SIDE, each, 3) for each in said])


@pytest.mark.parametrize("pieces", [[40], [1] * 40, [7, 0, 20, 13]])
def test_the_file_is_the_same_clip_whatever_pieces_its_pictures_came_in(pieces: list[int]) -> None:
    encoder, every, data, at = ClipEncoder(width=SIDE, height=SIDE, fps=FPS), pictures(40), b"", 0
    for count in pieces:
        data += encoder.encode(every[at : at + count])
        at += count
    data += encoder.finish()
    assert encoder.frames == 40
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(video=0))
    assert [read_picture(frame.to_ndarray(format="rgb24")).frame for frame in frames] == list(range(40))
    assert [k for k, frame in enumerate(frames) if frame.key_frame] == list(range(0, 40, KEYFRAME_S * FPS))
