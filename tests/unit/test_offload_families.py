"""Models as their libraries ship them, offloaded by their block lists alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel, SD3Transformer2DModel, UNet2DConditionModel
from torch import nn
from transformers import T5Config, T5EncoderModel
from wan_models import SMALL, noise, ours, reference_transformer

from streamsynth.engine.offload.offloaded import offload_blocks
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.offload.plan import OffloadPlan
from streamsynth.engine.quant.convert import quantise_linears
from streamsynth.engine.quant.recipe import Recipe
from streamsynth.models.wan.attention import FullAttention

Run = Callable[[], torch.Tensor]


def wan() -> tuple[nn.Module, Run]:
    model = reference_transformer(SMALL)
    latents, text = noise(2, 4, 2, 6, 8), noise(2, 7, 24, seed=2)
    return model, lambda: model(latents, torch.tensor([999.0, 12.0]), text).sample


def unet() -> tuple[nn.Module, Run]:
    model = UNet2DConditionModel(
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=12,
        attention_head_dim=4,
        layers_per_block=1,
    )
    latents, text = noise(1, 4, 8, 8), noise(1, 5, 12, seed=2)
    return model, lambda: model(latents, torch.tensor([7.0]), text).sample


def flux() -> tuple[nn.Module, Run]:
    model = FluxTransformer2DModel(
        in_channels=8,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=12,
        pooled_projection_dim=10,
        axes_dims_rope=(4, 6, 6),
    )
    given: dict[str, Any] = {
        "hidden_states": noise(1, 6, 8),
        "encoder_hidden_states": noise(1, 5, 12),
        "pooled_projections": noise(1, 10),
        "timestep": torch.tensor([0.5]),
        "img_ids": noise(6, 3),
        "txt_ids": noise(5, 3),
    }
    return model, lambda: model(**given).sample


def sd3() -> tuple[nn.Module, Run]:
    model = SD3Transformer2DModel(
        sample_size=8,
        in_channels=4,
        num_layers=3,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=12,
        caption_projection_dim=16,
        pooled_projection_dim=10,
        out_channels=4,
        pos_embed_max_size=8,
    )
    given = (noise(1, 4, 8, 8), noise(1, 5, 12), noise(1, 10), torch.tensor([5.0]))
    return model, lambda: model(*given).sample


def t5() -> tuple[nn.Module, Run]:
    config = T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=32, num_layers=3, num_heads=2)
    model = T5EncoderModel(config)
    return model, lambda: model(torch.arange(9)[None]).last_hidden_state


@torch.inference_mode()
@pytest.mark.parametrize("family", [wan, unet, flux, sd3, t5])
@pytest.mark.parametrize("float8", [False, True])
def test_a_model_of_another_library_gives_its_own_bits(
    family: Callable[[], tuple[nn.Module, Run]], float8: bool
) -> None:
    """T6.10, V53: with another model in flight."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, run = family()
    model.eval()
    if float8:
        assert quantise_linears(model, Recipe()).layers
    expected = run()
    offloaded = offload_blocks(model, OffloadOptions(resident_blocks=1))
    other, run_other = wan()
    beside = run_other()
    offload_blocks(other)
    for _ in range(3):
        assert torch.equal(run(), expected)
        assert torch.equal(run_other(), beside)
    offloaded.reset_statistics()
    assert torch.equal(run(), expected)
    assert offloaded.statistics().on_demand == 0


@torch.inference_mode()
def test_our_wan_transformer_makes_prompts_and_flows_from_the_same_slots() -> None:
    """A prompt's keys and values are made by a method of each block that is not `forward`."""
    model = ours(reference_transformer(SMALL))
    latents, text, steps = noise(2, 4, 2, 6, 8), noise(2, 7, 24, seed=2), torch.tensor([[999.0], [12.0]])
    turn = model.rotary(torch.arange(2)[None], 6, 8)

    def run() -> torch.Tensor:
        return model(latents, steps, model.prompt_context(text), turn, FullAttention())

    expected = run()
    blocks = tuple(f"blocks.{layer}" for layer in range(3))
    offload_blocks(model, plan=OffloadPlan(blocks, entries=("forward", "cross_attention.context")))
    for _ in range(50):
        assert torch.equal(run(), expected)
