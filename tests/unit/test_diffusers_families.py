"""Pipelines of diffusers from their folders, with no code for any of them: what each makes is what diffusers makes."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMPipeline,
    KandinskyV22InpaintPipeline,
    LTXLatentUpsamplePipeline,
)
from PIL import Image
from small_pipelines.clips import FAMILIES, HEIGHT, STEPS, WIDTH, called_directly, make, options, request, save

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.messages import Progress
from streamsynth.models.diffusers.abilities import Bounds, read_call
from streamsynth.models.diffusers.call import pictures
from streamsynth.models.diffusers.loading import load_clips, load_pipeline
from streamsynth.models.diffusers.model import PipelineModel
from streamsynth.video import PictureUse, Size

# A scheduler of diffusers' own asks numpy for what it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_makes_what_its_pipeline_makes_when_called_directly(name: str, tmp_path: Path) -> None:
    """The same seed, steps, guidance and negative prompt: the same bytes; and every step is told."""
    family = FAMILIES[name]
    folder = save(name, tmp_path)
    picture = Image.new("RGB", (WIDTH, HEIGHT), (200, 30, 90)) if family.picture else None
    file = io.BytesIO()
    if picture is not None:
        picture.save(file, "PNG")
    engine = load_clips(**options(folder))
    asked = request(name, picture=file.getvalue() or None)
    (made,) = make(engine, asked)
    engine.close()
    assert made.error is None
    assert made.pictures.shape == (family.frames, HEIGHT, WIDTH, 3)
    assert np.ptp(made.pictures) > 0
    np.testing.assert_array_equal(made.pictures, called_directly(name, folder, asked, picture))
    assert made.progress == [Progress(step, STEPS) for step in range(1, STEPS + 1)]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (DDPMPipeline, "DDPMPipeline takes no prompt"),
        (LTXLatentUpsamplePipeline, "takes no prompt"),
        (
            KandinskyV22InpaintPipeline,
            "needs image_embeds, mask_image, negative_image_embeds, which no request carries",
        ),
    ],
)
def test_a_pipeline_that_no_request_can_serve_is_refused_by_what_it_wants(kind: Any, words: str) -> None:
    pipeline = object.__new__(kind)
    object.__setattr__(pipeline, "scheduler", DDIMScheduler())
    with pytest.raises(StreamSynthError, match=words) as refused:
        read_call(pipeline)
    assert refused.value.code is ErrorCode.START_FAILED


def test_a_decoder_that_makes_more_frames_is_cut_to_what_was_asked_for(tmp_path: Path) -> None:
    """CogVideoX decodes two latent frames into eight pictures."""
    folder = save("cogvideox", tmp_path)
    asked = request("cogvideox", num_frames=5)
    (made,) = make(load_clips(**options(folder)), asked)
    direct = called_directly("cogvideox", folder, asked)
    assert (len(made.pictures), len(direct)) == (5, 8)
    np.testing.assert_array_equal(made.pictures, direct[:5])


def test_what_a_model_makes_is_read_off_its_folder(tmp_path: Path) -> None:
    traits = load_clips(**options(save("wan-image-to-video", tmp_path), fps=24)).traits
    assert (traits.kinds, traits.fps, traits.frame_step, traits.default_frames) == (frozenset({"video"}), 24, 4, 9)
    assert (traits.picture, traits.negative_prompt, traits.guidance) == (PictureUse.REQUIRED, True, True)
    assert (traits.realtime, traits.max_steps, traits.sizes) == (False, 20, (Size(width=64, height=32),))
    assert traits.offers(Size(width=32, height=64))
    assert not traits.offers(Size(width=64, height=64))
    assert not traits.offers(Size(width=40, height=32))


def test_an_image_model_says_so_and_its_own_size(tmp_path: Path) -> None:
    traits = load_clips(**options(save("sdxl", tmp_path), sizes=[])).traits
    assert (traits.kinds, traits.max_frames, traits.picture) == (frozenset({"image"}), 1, PictureUse.NONE)
    assert traits.sizes == (Size(width=64, height=64),)


def test_a_model_of_distilled_guidance_takes_no_negative_prompt_that_it_would_not_use(tmp_path: Path) -> None:
    engine = load_clips(**options(save("flux", tmp_path)))
    with pytest.raises(StreamSynthError) as refused:
        engine.open(request("flux", negative_prompt="blue").to_wire())
    assert (refused.value.code, refused.value.param) == (ErrorCode.UNSUPPORTED_FIELD, "negative_prompt")


def test_a_negative_prompt_without_guidance_would_not_be_used_and_is_refused(tmp_path: Path) -> None:
    """Neither where a request says so, nor where the pipeline does."""
    engine = load_clips(**options(save("sdxl", tmp_path)))
    engine.open(request("sdxl", guidance=None).to_wire())
    with pytest.raises(StreamSynthError, match="left out where guidance is 1 or less"):
        engine.open(request("sdxl", guidance=1.0).to_wire())
    model = PipelineModel(
        load_pipeline(tmp_path, dtype=torch.float32), Bounds(), device=torch.device("cpu"), capacity=1
    )
    guided = model._call.parameters["guidance_scale"]
    model._call = replace(model._call, parameters={"guidance_scale": guided.replace(default=0.0)})
    with pytest.raises(StreamSynthError, match="given with guidance above 1") as refused:
        model.check(request("sdxl", guidance=None))
    assert refused.value.param == "negative_prompt"
    engine.close()


def test_a_picture_that_the_safety_checker_blanks_is_an_error_not_a_black_picture() -> None:
    blank = torch.zeros(1, 3, 8, 8)
    assert pictures((blank, [False])).shape == (1, 8, 8, 3)
    with pytest.raises(StreamSynthError, match="safety checker") as refused:
        pictures((blank, [True]))
    assert refused.value.param == "prompt"


def test_the_autoencoder_can_have_a_dtype_of_its_own(tmp_path: Path) -> None:
    folder = save("wan", tmp_path)
    pipeline = load_pipeline(folder, dtype=torch.bfloat16, autoencoder_dtype=torch.float32)
    assert (pipeline.transformer.dtype, pipeline.vae.dtype) == (torch.bfloat16, torch.float32)
    engine = load_clips(**options(folder, dtype="bfloat16", autoencoder_dtype="float32"))
    (made,) = make(engine, request("wan"))
    assert made.error is None
    engine.close()


def test_a_prompt_that_no_text_encoder_reads_to_its_end_is_refused(tmp_path: Path) -> None:
    """SDXL reads 77 tokens, two of them its own marks; diffusers would cut the rest and go on."""
    engine = load_clips(**options(save("sdxl", tmp_path)))
    engine.open(request("sdxl", "a" * 75).to_wire())
    with pytest.raises(StreamSynthError, match="at most 77 of the model's tokens; it has 78") as refused:
        engine.open(request("sdxl", "a" * 76).to_wire())
    assert refused.value.param == "prompt"
    engine.close()


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (None, "a folder in diffusers' layout"),
        ('{"_class_name": ["pipeline", "Mine"]}', "names code of its own"),
        ('{"_class_name": "TomorrowsPipeline"}', "names TomorrowsPipeline, a pipeline that diffusers"),
        ('{"_class_name": "AutoencoderKL"}', "names AutoencoderKL, a pipeline that diffusers"),
        ("[]", "a folder in diffusers' layout"),
    ],
)
def test_a_folder_that_is_none_or_brings_code_is_refused(index: str | None, words: str, tmp_path: Path) -> None:
    if index is not None:
        (tmp_path / "model_index.json").write_text(index)
    with pytest.raises(StreamSynthError, match=words) as refused:
        load_clips(**options(tmp_path))
    assert refused.value.param == "folder"


def test_a_tokenizer_whose_vocabulary_was_not_copied_is_refused(tmp_path: Path) -> None:
    """It would load, and take every word for one that nobody knows."""
    folder = save("wan", tmp_path)
    (folder / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(StreamSynthError, match="tokenizer has no vocabulary") as refused:
        load_clips(**options(folder))
    assert refused.value.param == "folder"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("sizes", ["64"]),
        ("dtype", "int8"),
        ("autoencoder_dtype", "int8"),
        ("max_requests", 0),
        ("max_steps", 0),
        ("max_frames", 0),
        ("fps", 0),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(option: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(StreamSynthError) as refused:
        load_clips(**options(tmp_path, **{option: value}))
    assert refused.value.param == option


def test_a_size_that_the_model_would_round_is_refused_when_it_starts(tmp_path: Path) -> None:
    with pytest.raises(StreamSynthError, match="WanPipeline makes sides that are multiples of 16, not 40x32"):
        load_clips(**options(save("wan", tmp_path), sizes=["40x32"]))


@pytest.mark.parametrize("part", ["transformer", "text_encoder"])
def test_a_part_without_all_of_its_weights_is_refused(part: str, tmp_path: Path) -> None:
    """diffusers and transformers draw what is missing at random, and go on."""
    folder = save("wan", tmp_path)
    config = folder / part / "config.json"
    before = json.loads(config.read_text())
    config.write_text(json.dumps({**before, "num_layers": before["num_layers"] + 1}))
    with pytest.raises(StreamSynthError, match="are not there, among them") as refused:
        load_pipeline(folder, dtype=torch.float32)
    assert refused.value.code is ErrorCode.START_FAILED
    config.write_text(json.dumps(before))
    load_pipeline(folder, dtype=torch.float32)
