"""The autoencoder's sizes, read from the `config.json` of diffusers' `AutoencoderKLWan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from streamsynth.errors import invalid_value
from streamsynth.models.wan.settings import at_least_one, read_settings

_FIXED: Mapping[str, Any] = {"attn_scales": ()}
# Dropout is for training; pictures are clipped here whatever an old file says.
_WITHOUT_EFFECT = frozenset({"dropout", "clip_output"})

MEAN_2_1: tuple[float, ...] = (-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508)
MEAN_2_1 += (0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921)
STD_2_1: tuple[float, ...] = (2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743)
STD_2_1 += (3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160)

MEAN_2_2: tuple[float, ...] = (-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557)
MEAN_2_2 += (-0.1382, 0.0542, 0.2813, 0.0891)
MEAN_2_2 += (0.1570, -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502)
MEAN_2_2 += (-0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230, -0.0313, -0.1649, 0.0117, 0.0723)
MEAN_2_2 += (-0.2839, -0.2083, -0.0520, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667)
STD_2_2: tuple[float, ...] = (0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013)
STD_2_2 += (0.8158, 1.0344, 0.5894, 1.0901)
STD_2_2 += (0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659)
STD_2_2 += (0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944)
STD_2_2 += (0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744)


@dataclass(frozen=True, kw_only=True, slots=True)
class VaeConfig:
    """Field names and defaults are those of diffusers' `AutoencoderKLWan` (Wan 2.1).

    `is_residual` and `patch_size` are Wan 2.2's: averaging shortcuts around the resampling, and pictures whose pixels
    are channels.
    """

    base_dim: int = 96
    decoder_base_dim: int | None = None
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temperal_downsample: tuple[bool, ...] = (False, True, True)
    latents_mean: tuple[float, ...] = MEAN_2_1
    latents_std: tuple[float, ...] = STD_2_1
    is_residual: bool = False
    in_channels: int = 3
    out_channels: int = 3
    patch_size: int | None = None
    scale_factor_temporal: int = 4
    scale_factor_spatial: int = 8

    @property
    def patch(self) -> int:
        return self.patch_size or 1

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> VaeConfig:
        """Raises UNSUPPORTED_FIELD for a setting not known here, INVALID_VALUE for a value not built here."""
        ours = frozenset(field.name for field in fields(cls))
        return cls(**read_settings(config, model="Wan VAE", ours=ours, fixed=_FIXED, without_effect=_WITHOUT_EFFECT))

    def __post_init__(self) -> None:
        at_least_one(self, ("base_dim", "z_dim", "num_res_blocks", "in_channels", "out_channels"))
        stages = len(self.dim_mult)
        if len(self.temperal_downsample) != stages - 1:
            raise invalid_value("temperal_downsample", self.temperal_downsample, f"{stages - 1} flags")
        for name in ("latents_mean", "latents_std"):
            if len(getattr(self, name)) != self.z_dim:
                raise invalid_value(name, getattr(self, name), f"z_dim ({self.z_dim}) numbers")
        for name, value in (
            ("scale_factor_temporal", 2 ** sum(self.temperal_downsample)),
            ("scale_factor_spatial", self.patch * 2 ** (stages - 1)),
        ):
            if getattr(self, name) != value:
                raise invalid_value(name, getattr(self, name), f"{value}, which the stages give")
        if self.in_channels != 3 * self.patch**2 or self.out_channels != 3 * self.patch**2:
            raise invalid_value("in_channels", self.in_channels, f"{3 * self.patch**2}: colours of a patch")


WAN_2_2_VAE = VaeConfig(
    base_dim=160,
    decoder_base_dim=256,
    z_dim=48,
    latents_mean=MEAN_2_2,
    latents_std=STD_2_2,
    is_residual=True,
    in_channels=12,
    out_channels=12,
    patch_size=2,
    scale_factor_spatial=16,
)
"""The autoencoder of Wan 2.2 TI2V 5B."""
