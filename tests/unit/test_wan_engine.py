"""A Wan checkpoint in the rollout engine: what it makes is what the reference's own modules make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from wan_folders import Checkpoint, save_checkpoint

from streamsynth.config.registry import find_pipeline
from streamsynth.engine.rollout.engine import RolloutEngine, RolloutStream
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.wan import engine as wan_engine
from streamsynth.models.wan.schedule import few_step_schedule
from streamsynth.video import Size, VideoRequest

SIZE = Size(width=64, height=32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    torch.set_num_threads(1)
    return save_checkpoint(tmp_path_factory.mktemp("wan"))


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wan_engine, "SIZES", (SIZE,))


def load(checkpoint: Checkpoint, **options: Any) -> RolloutEngine:
    declared = find_pipeline("wan").stages[0].options
    given = {name: value for name, value in declared.items() if name != "kv_cache_memory_bytes"}
    cpu = {"folder": str(checkpoint.folder), "device": "cpu", "dtype": "float32", "kv_cache_memory_bytes": 8 << 20}
    return wan_engine.load_rollouts(**(given | cpu | options))


def chunks(engine: RolloutEngine, stream: RolloutStream, count: int) -> list[np.ndarray[Any, Any]]:
    made: list[np.ndarray[Any, Any]] = []
    while len(made) < count:
        for _, emission in engine.step([stream]).made:
            assert not isinstance(emission, StreamSynthError), emission
            made += [emission.media] if len(emission.media) else []
    return made


def reference_first_chunk(checkpoint: Checkpoint, noise: list[Tensor], prompt: str) -> Tensor:
    """With diffusers' transformer and autoencoder, and transformers' encoder, as their pipeline calls them."""
    ids = torch.tensor([checkpoint.tokenizer.encode(prompt).ids])
    embedding = torch.zeros(1, 512, checkpoint.text_encoder.config.d_model)
    embedding[:, : ids.shape[1]] = checkpoint.text_encoder(ids).last_hidden_state
    schedule = few_step_schedule([1000, 750, 500, 250], 5.0)
    latents = noise[0]
    for step, (sigma, timestep) in enumerate(zip(schedule.sigmas, schedule.timesteps, strict=False)):
        flow = checkpoint.transformer(latents, torch.tensor([timestep]), embedding).sample
        clean = latents - sigma * flow
        last = step == 3
        latents = (
            clean if last else (1 - schedule.sigmas[step + 1]) * clean + schedule.sigmas[step + 1] * noise[step + 1]
        )
    config = checkpoint.vae.config
    mean, std = (torch.tensor(each).view(1, -1, 1, 1, 1) for each in (config.latents_mean, config.latents_std))
    pictures: Tensor = checkpoint.vae.decode(latents * std + mean).sample[0]
    return ((pictures.clamp(-1, 1) + 1) * 127.5).permute(1, 2, 3, 0)


@torch.inference_mode()
def test_the_first_chunk_is_what_the_references_modules_make(checkpoint: Checkpoint) -> None:
    engine = load(checkpoint)
    request = VideoRequest(prompt="a red ball", width=SIZE.width, height=SIZE.height, seed=7)
    stream = engine.open(request.to_wire())
    noise = [stream.rollout.noise(step, (3, 3, 4, 8))[None] for step in range(4)]
    (made,) = chunks(engine, stream, 1)
    expected = reference_first_chunk(checkpoint, noise, "a red ball").numpy()
    assert made.shape == (9, 32, 64, 3)
    assert np.abs(made - expected).max() <= 1.0


def test_chunks_go_on_past_the_window_and_differ_by_prompt(checkpoint: Checkpoint) -> None:
    engine = load(checkpoint)
    made = []
    for prompt in ("a red ball", "the calm blue sea"):
        request = VideoRequest(prompt=prompt, width=SIZE.width, height=SIZE.height, seed=7)
        stream = engine.open(request.to_wire())
        made.append(chunks(engine, stream, 6))
        stream.close()
    assert [len(pictures) for pictures in made[0]] == [9, 12, 12, 12, 12, 12]
    assert not np.array_equal(made[0][5], made[1][5])


def test_warming_up_leaves_every_page_free(checkpoint: Checkpoint) -> None:
    counters = load(checkpoint).counters()
    assert counters["live"] == counters["waiting"] == 0
    assert counters["free_pages"] == (8 << 20) // (2 * 3 * 120 * 3 * 20 * 4) - 1


def test_warming_up_says_what_a_chunk_costs_alone_and_together(checkpoint: Checkpoint) -> None:
    """So that the server knows before the first request how many videos the worker can carry."""
    tried = load(checkpoint).rehearsals
    assert [each.sharers for each in tried] == [1, 2]
    assert [each.media_s for each in tried] == [12 / 16, 2 * 12 / 16]
    assert all(0 < each.work_s < 60 for each in tried)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"folder": ""}, "folder"),
        ({"dtype": "float16"}, "dtype"),
        ({"kv_cache_memory_bytes": None}, "gpu_memory_utilization"),
        ({"denoising_step_list": [250, 500]}, "denoising_step_list"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(
    checkpoint: Checkpoint, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(StreamSynthError) as raised:
        load(checkpoint, **options)
    assert raised.value.code is ErrorCode.INVALID_VALUE and raised.value.param == named


def test_a_size_that_is_not_whole_patches_is_refused_with_the_multiple(checkpoint: Checkpoint) -> None:
    engine = load(checkpoint)
    with pytest.raises(StreamSynthError, match="a multiple of 16"):
        engine.open(VideoRequest(prompt="a", width=72, height=32).to_wire())
