"""The sizes of a model, told by the shapes of its weights under the names of Wan's own releases: they carry no
configuration, or one of another layout."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from torch import Tensor

from streamsynth.errors import invalid_value
from streamsynth.models.wan.config import WanConfig
from streamsynth.models.wan.text_encoder import TextEncoderConfig
from streamsynth.models.wan.vae_config import MEAN_2_1, MEAN_2_2, STD_2_1, STD_2_2, VaeConfig

_STATISTICS = {16: (MEAN_2_1, STD_2_1), 48: (MEAN_2_2, STD_2_2)}


def transformer_sizes(tensors: Mapping[str, Tensor], head_dim: int) -> WanConfig:
    """`head_dim` cannot be told by shapes; it is 128 in every release."""
    hidden, channels, *patch = tensors["patch_embedding.weight"].shape
    if head_dim < 1 or hidden % head_dim:
        raise invalid_value("head_dim", head_dim, f"a divisor of the hidden size ({hidden})")
    image = tensors.get("img_emb.proj.0.weight")
    positions = tensors.get("img_emb.emb_pos")
    return WanConfig(
        patch_size=(patch[0], patch[1], patch[2]),
        num_attention_heads=hidden // head_dim,
        attention_head_dim=head_dim,
        in_channels=channels,
        out_channels=tensors["head.head.weight"].shape[0] // math.prod(patch),
        text_dim=tensors["text_embedding.0.weight"].shape[1],
        freq_dim=tensors["time_embedding.0.weight"].shape[1],
        ffn_dim=tensors["blocks.0.ffn.0.weight"].shape[0],
        num_layers=_count(tensors, r"blocks\.(\d+)\..*"),
        image_dim=None if image is None else image.shape[0],
        added_kv_proj_dim=None if image is None else hidden,
        pos_embed_seq_len=None if positions is None else positions.shape[1],
    )


def vae_sizes(tensors: Mapping[str, Tensor]) -> VaeConfig:
    """Means and deviations of latents are those of the release with as many channels; raises INVALID_VALUE if none."""
    base, pixels = tensors["encoder.conv1.weight"].shape[:2]
    latents = tensors["conv2.weight"].shape[0]
    if latents not in _STATISTICS:
        raise invalid_value("conv2.weight", latents, "for 16 latent channels (Wan 2.1) or 48 (Wan 2.2)")
    nested = any(name.startswith("encoder.downsamples.0.downsamples.") for name in tensors)
    stages = _nested_stages(tensors) if nested else _listed_stages(tensors)
    patch, (mean, std) = math.isqrt(pixels // 3), _STATISTICS[latents]
    in_time = tuple(any(".time_conv." in name for name in names) for names in stages[:-1])
    return VaeConfig(
        base_dim=base,
        decoder_base_dim=tensors["decoder.head.2.weight"].shape[1],
        z_dim=latents,
        dim_mult=tuple(_outputs(tensors, names) // base for names in stages),
        num_res_blocks=sum(name.endswith(".residual.2.weight") for name in stages[0]),
        temperal_downsample=in_time,
        latents_mean=mean,
        latents_std=std,
        is_residual=nested,
        in_channels=pixels,
        out_channels=tensors["decoder.head.2.weight"].shape[0],
        patch_size=None if patch == 1 else patch,
        scale_factor_temporal=2 ** sum(in_time),
        scale_factor_spatial=patch * 2 ** (len(stages) - 1),
    )


def _nested_stages(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    count = _count(tensors, r"encoder\.downsamples\.(\d+)\..*")
    return [[name for name in tensors if name.startswith(f"encoder.downsamples.{stage}.")] for stage in range(count)]


def _listed_stages(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """A stage ends with the layer that shrinks, the last one with the list."""
    stages: list[list[str]] = [[]]
    for place in range(_count(tensors, r"encoder\.downsamples\.(\d+)\..*")):
        names = [name for name in tensors if name.startswith(f"encoder.downsamples.{place}.")]
        stages[-1] += names
        if any(".resample." in name for name in names):
            stages.append([])
    return stages


def _outputs(tensors: Mapping[str, Tensor], names: list[str]) -> int:
    return next(tensors[name].shape[0] for name in names if name.endswith(".residual.6.weight"))


def text_encoder_sizes(tensors: Mapping[str, Tensor]) -> TextEncoderConfig:
    vocabulary, size = tensors["token_embedding.weight"].shape
    buckets, heads = tensors["blocks.0.pos_embedding.embedding.weight"].shape
    return TextEncoderConfig(
        vocab_size=vocabulary,
        d_model=size,
        d_kv=tensors["blocks.0.attn.q.weight"].shape[0] // heads,
        d_ff=tensors["blocks.0.ffn.fc1.weight"].shape[0],
        num_layers=_count(tensors, r"blocks\.(\d+)\..*"),
        num_heads=heads,
        relative_attention_num_buckets=buckets,
    )


def _count(tensors: Mapping[str, Tensor], pattern: str) -> int:
    """One more than the largest number that the pattern finds in a name."""
    found = (re.fullmatch(pattern, name) for name in tensors)
    return max((int(match[1]) for match in found if match), default=-1) + 1
