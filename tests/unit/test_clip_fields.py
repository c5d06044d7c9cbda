"""What `/v1/videos` and `/v1/images/generations` accept: every default, and every refusal by the field's name."""

from __future__ import annotations

import dataclasses
from base64 import b64encode
from typing import Any

import numpy as np
import pytest

from streamsynth.codecs import StillFormat, encode_still
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.clip_fields import ClipSettings, parse_clip_fields, parse_image_fields, parse_image_format
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.references import Upload
from streamsynth.testing.paint_pipeline import PAINT
from streamsynth.video import PictureUse, Size, VideoTraits

CLIPS = dataclasses.replace(
    PAINT,
    name="clips",
    traits=VideoTraits(
        sizes=(Size(width=64, height=48),),
        fps=10,
        chunk_frames=1,
        first_chunk_frames=1,
        realtime=False,
        frame_step=4,
        max_frames=41,
        max_steps=50,
        guidance=True,
        negative_prompt=True,
        picture=PictureUse.OPTIONAL,
    ),
)
STILLS = dataclasses.replace(
    PAINT, name="stills", traits=dataclasses.replace(PAINT.video, kinds=frozenset({"image"}), realtime=False)
)
MODELS = {each.name: each for each in (STILLS, PAINT, CLIPS)}
PNG = encode_still(np.zeros((4, 6, 3), np.uint8), StillFormat.PNG)


def clip(**fields: Any) -> ClipSettings:
    return parse_clip_fields({"prompt": "red", **fields}, MODELS, Limits())


def image(**fields: Any) -> ClipSettings:
    return parse_image_fields({"prompt": "red", **fields}, MODELS, Limits())


def refused(parse: Any, **fields: Any) -> StreamSynthError:
    with pytest.raises(StreamSynthError) as refusal:
        parse(**fields)
    return refusal.value


def test_the_defaults_are_the_first_model_of_the_kind_its_first_size_and_four_seconds() -> None:
    settings = clip()
    request = settings.request
    assert (settings.model, request.width, request.height, settings.num_frames) == ("paint", 320, 192, 64)
    assert 0 <= settings.seed < 2**63 and settings.ignored == ()
    assert image().model == "stills" and image().num_frames == 1


@pytest.mark.parametrize(("seconds", "frames"), [(0.01, 1), ("0.5", 5), (2, 21), (1.8, 17), (4.1, 41)])
def test_seconds_are_the_nearest_length_that_the_model_makes(seconds: object, frames: int) -> None:
    assert clip(model="clips", seconds=seconds).num_frames == frames


def test_what_a_form_writes_as_text_is_understood() -> None:
    settings = clip(
        model="clips",
        num_frames="9",
        seed="-7",
        num_inference_steps="20",
        guidance_scale="4.5",
        fps="10",
        size="64x48",
        negative_prompt="",
    )
    request = settings.request
    assert (request.num_frames, request.seed, request.steps, request.guidance) == (9, -7, 20, 4.5)
    assert request.negative_prompt is None


@pytest.mark.parametrize(
    "value",
    [
        Upload(PNG),
        b64encode(PNG).decode(),
        "data:image/png;base64," + b64encode(PNG).decode(),
        {"image_url": "data:image/png;base64," + b64encode(PNG).decode()},
    ],
)
def test_a_picture_comes_inline_or_uploaded(value: object) -> None:
    assert clip(model="clips", input_reference=value).request.picture == PNG


def test_hints_are_taken_and_said_to_be_ignored() -> None:
    assert clip(user="me", metadata={"a": "b"}).ignored == ("metadata", "user")
    assert image(quality="high", style="vivid").ignored == ("quality", "style")


@pytest.mark.parametrize(
    ("fields", "code", "param", "said"),
    [
        ({"prompt": " "}, ErrorCode.INVALID_VALUE, "prompt", "1 to 4096"),
        ({"prompt": ""}, ErrorCode.INVALID_VALUE, "prompt", "prompt is ''; it must be text of 1 to 4096 characters"),
        ({"prompt": None}, ErrorCode.MISSING_FIELD, "prompt", "missing"),
        ({"model": "stills"}, ErrorCode.MODEL_NOT_FOUND, "model", "makes video; this server has paint, clips"),
        ({"model": 3}, ErrorCode.INVALID_VALUE, "model", "a string"),
        ({"size": "64x64"}, ErrorCode.INVALID_VALUE, "size", "320x192, 128x128, 832x480"),
        ({"size": 320}, ErrorCode.INVALID_VALUE, "size", "320x192"),
        ({"seconds": 0}, ErrorCode.INVALID_VALUE, "seconds", "above 0 and at most 324000"),
        ({"seconds": "soon"}, ErrorCode.INVALID_VALUE, "seconds", "above 0"),
        ({"seconds": True}, ErrorCode.INVALID_VALUE, "seconds", "above 0"),
        ({"seconds": 1, "num_frames": 5}, ErrorCode.INVALID_VALUE, "num_frames", "absent when seconds"),
        ({"model": "clips", "seconds": 4.2}, ErrorCode.INVALID_VALUE, "seconds", "at most 4.1"),
        ({"model": "clips", "num_frames": 8}, ErrorCode.INVALID_VALUE, "num_frames", "1 more than a multiple of 4"),
        ({"model": "clips", "num_frames": 45}, ErrorCode.INVALID_VALUE, "num_frames", "1..41"),
        ({"model": "clips", "num_inference_steps": 51}, ErrorCode.INVALID_VALUE, "num_inference_steps", "1..50"),
        ({"model": "clips", "guidance_scale": "nan"}, ErrorCode.INVALID_VALUE, "guidance_scale", "0..100"),
        ({"num_frames": "1" * 5000}, ErrorCode.INVALID_VALUE, "num_frames", "1..5184000"),
        ({"fps": "1" * 5000}, ErrorCode.INVALID_VALUE, "fps", "1..1000"),
        ({"fps": 24}, ErrorCode.INVALID_VALUE, "fps", "16, what the model"),
        ({"seed": "x"}, ErrorCode.INVALID_VALUE, "seed", "64 bits"),
        ({"negative_prompt": "blue"}, ErrorCode.UNSUPPORTED_FIELD, "negative_prompt", "'paint'"),
        ({"num_inference_steps": 5}, ErrorCode.UNSUPPORTED_FIELD, "num_inference_steps", "'paint'"),
        ({"guidance_scale": 5}, ErrorCode.UNSUPPORTED_FIELD, "guidance_scale", "'paint'"),
        ({"input_reference": "x"}, ErrorCode.UNSUPPORTED_FIELD, "input_reference", "'paint'"),
        ({"extra_params": "{}"}, ErrorCode.UNSUPPORTED_FIELD, "extra_params", "not supported"),
        ({"n": 2}, ErrorCode.UNSUPPORTED_FIELD, "n", "not supported"),
        ({"colour": "red"}, ErrorCode.UNKNOWN_FIELD, "colour", "no field"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], code: ErrorCode, param: str, said: str) -> None:
    refusal = refused(clip, **fields)
    assert (refusal.code, refusal.param) == (code, param)
    assert said in refusal.message


@pytest.mark.parametrize("value", ["http://x/y.png", "data:image/png,x", Upload(b"GIF89a"), {"file_id": "f"}, "%", 7])
def test_a_picture_that_is_not_here_or_is_none_is_refused(value: object) -> None:
    refusal = refused(clip, model="clips", input_reference=value)
    assert (refusal.code, refusal.param) == (ErrorCode.UNSUPPORTED_REFERENCE, "input_reference")
    assert "nothing is fetched" in refusal.message


def test_a_picture_with_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    bomb = PNG[:16] + (100_000).to_bytes(4, "big") + (100_000).to_bytes(4, "big") + PNG[24:]
    refusal = refused(clip, model="clips", input_reference=Upload(bomb))
    assert refusal.param == "input_reference" and "100000x100000 pixels; the limit is 16777216" in refusal.message


def test_a_picture_is_due_where_the_model_begins_with_one() -> None:
    begins = dataclasses.replace(CLIPS, traits=dataclasses.replace(CLIPS.video, picture=PictureUse.REQUIRED))
    with pytest.raises(StreamSynthError, match="begins with a picture") as refusal:
        parse_clip_fields({"prompt": "red"}, {"clips": begins}, Limits())
    assert refusal.value.code is ErrorCode.MISSING_FIELD


@pytest.mark.parametrize("value", [[], {}, 0, False, "gif"])
def test_a_format_of_an_image_that_is_none_is_refused_and_an_empty_one_is_the_default(value: object) -> None:
    assert parse_image_format({"response_format": "", "output_format": None}) is StillFormat.PNG
    for name in ("response_format", "output_format"):
        with pytest.raises(StreamSynthError) as refusal:
            parse_image_format({name: value})
        assert (refusal.value.code, refusal.value.param) == (ErrorCode.INVALID_VALUE, name)


def test_a_server_without_such_a_model_says_so() -> None:
    with pytest.raises(StreamSynthError, match="no model of this server makes images"):
        parse_image_fields({"prompt": "red"}, {"clips": CLIPS}, Limits())
