"""What a model says it can make, and what each door does with it."""

import dataclasses

import pytest

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.video_fields import parse_video_fields
from streamsynth.testing.paint_pipeline import PAINT
from streamsynth.video import Size, SizeRange, VideoRequest, VideoTraits

RANGE = SizeRange(multiple=16, min_side=64, max_side=128, max_pixels=128 * 96)
TRAITS = VideoTraits(
    sizes=(Size(width=100, height=100),), fps=8, chunk_frames=1, first_chunk_frames=1, size_range=RANGE, realtime=False
)
CLIPS = dataclasses.replace(PAINT, name="clips", traits=TRAITS)


@pytest.mark.parametrize(
    ("width", "height", "offered"),
    [(100, 100, True), (128, 96, True), (96, 128, True), (128, 128, False), (48, 64, False), (65, 64, False)],
)
def test_a_size_is_offered_that_is_listed_or_within_the_range(width: int, height: int, offered: bool) -> None:
    assert TRAITS.offers(Size(width=width, height=height)) is offered


def test_what_is_offered_is_said_in_words() -> None:
    expected = "100x100; sides of 64 to 128 that are multiples of 16, 12288 pixels in all"
    assert TRAITS.describe_sizes() == expected


def test_a_request_comes_back_from_the_wire_as_it_was() -> None:
    request = VideoRequest(prompt="a", width=64, height=64, num_frames=5, steps=3, guidance=4.5, picture=b"\x89PNG")
    assert VideoRequest.from_wire(request.to_wire()) == request


def test_the_realtime_socket_takes_the_first_model_that_can_be_watched_and_refuses_the_others_by_name() -> None:
    models = {"clips": CLIPS, "paint": PAINT}
    start = {"prompt": "red"}
    assert parse_video_fields(start, models, payload_bytes=1 << 20, loopback=True).model == "paint"
    with pytest.raises(StreamSynthError, match="'clips' makes whole clips, by /v1/videos") as refused:
        parse_video_fields({**start, "model": "clips"}, models, payload_bytes=1 << 20, loopback=True)
    assert (refused.value.code, refused.value.param) == (ErrorCode.MODEL_NOT_FOUND, "model")
    assert refused.value.message == "the model 'clips' makes whole clips, by /v1/videos; this server has paint"
    with pytest.raises(StreamSynthError) as refused:
        parse_video_fields({**start, "model": "hibari"}, models, payload_bytes=1 << 20, loopback=True)
    assert refused.value.message == "there is no model 'hibari' that makes video; this server has paint"
    with pytest.raises(StreamSynthError, match="no model of this server makes video while it is watched"):
        parse_video_fields(start, {"clips": CLIPS}, payload_bytes=1 << 20, loopback=True)
