"""The transformer's sizes, read from the `config.json` of diffusers' `WanTransformer3DModel`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any

from streamsynth.errors import invalid_value
from streamsynth.models.wan.settings import at_least_one, read_settings

_FIXED: Mapping[str, Any] = {"qk_norm": "rms_norm_across_heads", "cross_attn_norm": True}
# `rope_max_seq_len` is the length of a table there; here angles are computed for the positions asked for.
_WITHOUT_EFFECT = frozenset({"rope_max_seq_len"})
_AT_LEAST_ONE = (
    "num_attention_heads",
    "attention_head_dim",
    "in_channels",
    "out_channels",
    "text_dim",
    "freq_dim",
    "ffn_dim",
    "num_layers",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WanConfig:
    """Field names and defaults are those of diffusers' `WanTransformer3DModel` (Wan 2.1 T2V 14B).

    `image_dim` and `added_kv_proj_dim` are set in checkpoints that also attend to an image's CLIP features, and
    `pos_embed_seq_len` in those that attend to two of them.
    """

    patch_size: tuple[int, int, int] = (1, 2, 2)
    num_attention_heads: int = 40
    attention_head_dim: int = 128
    in_channels: int = 16
    out_channels: int = 16
    text_dim: int = 4096
    freq_dim: int = 256
    ffn_dim: int = 13824
    num_layers: int = 40
    eps: float = 1e-6
    image_dim: int | None = None
    added_kv_proj_dim: int | None = None
    pos_embed_seq_len: int | None = None

    @property
    def hidden_size(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @property
    def patch_values(self) -> int:
        """What the head gives for a token."""
        return self.out_channels * prod(self.patch_size)

    def frame_tokens(self, height: int, width: int) -> int:
        """Tokens of one latent frame; raises INVALID_VALUE for a size that is not whole patches."""
        for name, size, patch in (("height", height, self.patch_size[1]), ("width", width, self.patch_size[2])):
            if size < 1 or size % patch:
                raise invalid_value(name, size, f"a multiple of {patch} latent pixels")
        return (height // self.patch_size[1]) * (width // self.patch_size[2])

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> WanConfig:
        """Raises UNSUPPORTED_FIELD for a setting not known here, INVALID_VALUE for a value not built here."""
        ours = frozenset(field.name for field in fields(cls))
        given = read_settings(config, model="Wan transformer", ours=ours, fixed=_FIXED, without_effect=_WITHOUT_EFFECT)
        given["out_channels"] = given.get("out_channels") or given.get("in_channels", 16)
        return cls(**given)

    def __post_init__(self) -> None:
        at_least_one(self, _AT_LEAST_ONE)
        if len(self.patch_size) != 3 or self.patch_size[0] != 1 or min(self.patch_size) < 1:
            raise invalid_value("patch_size", self.patch_size, "(1, height, width): patches of a single frame")
        if self.attention_head_dim % 2:
            raise invalid_value("attention_head_dim", self.attention_head_dim, "even")
        if self.freq_dim % 2:
            raise invalid_value("freq_dim", self.freq_dim, "even")
        if (self.image_dim is None) != (self.added_kv_proj_dim is None):
            raise invalid_value("added_kv_proj_dim", self.added_kv_proj_dim, "set exactly if image_dim is")
        if self.added_kv_proj_dim not in (None, self.hidden_size):
            raise invalid_value("added_kv_proj_dim", self.added_kv_proj_dim, f"the hidden size ({self.hidden_size})")


WAN_1_3B = WanConfig(num_attention_heads=12, ffn_dim=8960, num_layers=30)
"""The sizes of Wan 2.1 T2V 1.3B, and of Self-Forcing."""
