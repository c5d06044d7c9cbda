"""Attention back-ends by role: which is chosen, where it goes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_pipelines import images, videos
from small_pipelines.clips import make, options, request, save

from streamsynth.engine.diffusion.attention import AttentionConfig, parse_attention
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.diffusers.attending import attentions, set_backends
from streamsynth.models.diffusers.loading import load_clips


def test_the_exact_role_comes_before_its_category_and_that_before_the_default() -> None:
    """AT-1, AT-2, AT-3."""
    config = AttentionConfig(default="sdpa", per_role={"audio_to_video": "flash", "cross": "flex"})
    assert config.select("audio_to_video", "cross") == "flash"
    assert config.select("video_to_audio", "cross") == "flex"
    assert config.select("attn", "joint") == "sdpa"


def test_without_a_word_the_platform_decides() -> None:
    """AT-4."""
    assert parse_attention({}).select("attn1", "self") is None
    assert parse_attention({"per_role": {"cross": "flex"}}).select("attn1", "self") is None


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        ({"default": "magic"}, ErrorCode.INVALID_VALUE, "attention.default"),
        ({"per_role": {"cross": "magic"}}, ErrorCode.INVALID_VALUE, "attention.per_role.cross"),
        ({"per_role": ["flex"]}, ErrorCode.INVALID_VALUE, "attention.per_role"),
        ({"quant": {"dtype_qk": "int8"}}, ErrorCode.UNKNOWN_FIELD, "attention.quant"),
    ],
)
def test_what_no_back_end_does_is_refused_by_name(given: dict[str, Any], code: ErrorCode, param: str) -> None:
    with pytest.raises(StreamSynthError) as refused:
        parse_attention(given)
    assert (refused.value.code, refused.value.param) == (code, param)


def chosen(pipeline: Any, config: AttentionConfig) -> list[tuple[str, str, str | None]]:
    set_backends(pipeline, config)
    found = attentions(pipeline.transformer)
    return [(each.role, each.category, each.processor._attention_backend) for each in found]


def test_each_attention_of_a_denoiser_gets_what_its_role_asks_for() -> None:
    config = AttentionConfig(per_role={"cross": "flex"})
    assert chosen(videos.wan(), config)[:2] == [("attn1", "self", None), ("attn2", "cross", "flex")]
    assert chosen(videos.ltx(), config) == [("attn1", "self", None), ("attn2", "cross", "flex")]
    joint = AttentionConfig(default="sdpa", per_role={"joint": "flex"})
    assert chosen(images.flux(), joint) == [("attn", "joint", "flex"), ("attn", "self", "native")]
    assert chosen(images.qwen_image(), joint)[0] == ("attn", "joint", "flex")


def test_a_role_that_the_model_does_not_have_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(StreamSynthError, match="one of attn1, attn2, cross, joint, self") as refused:
        set_backends(videos.wan(), AttentionConfig(per_role={"attn3": "flex"}))
    assert refused.value.param == "attention.per_role"


def test_a_back_end_that_is_not_installed_is_refused_by_name() -> None:
    """AT-6."""
    with pytest.raises(StreamSynthError, match=r"attention flash: .*flash-attn") as refused:
        set_backends(videos.wan(), AttentionConfig(default="flash"))
    assert refused.value.code is ErrorCode.START_FAILED


def test_a_denoiser_whose_attention_cannot_be_chosen_is_refused() -> None:
    with pytest.raises(StreamSynthError, match="used with a denoiser whose attention can be chosen"):
        set_backends(images.sd3(), AttentionConfig(default="sdpa"))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_makes_the_pictures_of_sdpa(tmp_path: Path) -> None:
    """But for rounding."""
    torch.set_num_threads(1)
    folder = save("wan", tmp_path)
    (expected,) = make(load_clips(**options(folder)), request("wan"))
    engine = load_clips(**options(folder, attention={"default": "flex"}))
    (made,) = make(engine, request("wan"))
    assert made.error is None
    assert np.abs(made.pictures.astype(int) - expected.pictures.astype(int)).max() <= 1
    engine.close()
