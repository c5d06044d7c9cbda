"""Loads tiny-world's weights, which the package carries, for the rollout engine."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import torch

from streamsynth.engine.kv.sizing import KvBudget, MeasuredDevice
from streamsynth.engine.rollout.engine import RolloutEngine
from streamsynth.engine.rollout.warm_up import ready_engine
from streamsynth.engine.rollout.window import WindowPolicy
from streamsynth.errors import invalid_value
from streamsynth.models.tiny_world.pipeline import FPS, SIZES
from streamsynth.models.tiny_world.prompts import WorldPrompts
from streamsynth.models.wan.denoisers import EulerSteps
from streamsynth.models.wan.prompts import load_prompt_encoder
from streamsynth.models.wan.schedule import Schedule
from streamsynth.models.wan.tiny_vae_weights import load_tiny_vae
from streamsynth.models.wan.video import WanVideo
from streamsynth.models.wan.weights import load_transformer

_PAGES_BYTES = 128 << 20
"""Where nothing is said: thirty-two videos in bfloat16."""


def weights_folder() -> Path:
    """Holds `transformer/`, `text_encoder/`, `tokenizer/`, `vae/` and `world.json`, which says how they are sampled."""
    return Path(str(files("streamsynth.models.tiny_world"))) / "weights"


def load_world(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> WanVideo:
    """The model in a folder that `examples/train_tiny_world` packaged. Blocking; raises START_FAILED for files that do
    not fit."""
    world = json.loads((folder / "world.json").read_text())
    prompts = load_prompt_encoder(
        folder / "text_encoder", folder / "tokenizer", length=world["text_length"], dtype=dtype, device=device
    )
    return WanVideo(
        load_transformer(folder / "transformer", dtype=dtype, device=device),
        WorldPrompts(prompts),
        load_tiny_vae(folder / "vae", dtype=dtype, device=device),
        EulerSteps(Schedule.of_levels(world["sigmas"])),
        WindowPolicy(frames=world["window_frames"], sink=world["sink_frames"], chunk=world["chunk_frames"]),
        fps=FPS,
        fused=torch.device(device).type == "cuda",
    )


def chosen_dtype(name: str, device: str) -> torch.dtype:
    """`auto` is what is fastest there: bfloat16 on a GPU or a CPU with matrix units for it (half the time of
    float32), float32 elsewhere. Raises INVALID_VALUE."""
    if name == "auto":
        multiplies = torch.device(device).type == "cuda" or torch.cpu.get_capabilities().get("amx_bf16", False)
        return torch.bfloat16 if multiplies else torch.float32
    if name not in ("float32", "bfloat16"):
        raise invalid_value("dtype", name, "auto, float32 or bfloat16")
    return torch.float32 if name == "float32" else torch.bfloat16


def load_rollouts(
    *,
    device: str,
    dtype: str,
    page_tokens: int,
    max_videos: int,
    float8: bool,
    kv_cache_memory_bytes: int | None = None,
    gpu_memory_utilization: float | None = None,
) -> RolloutEngine:
    """Raises INVALID_VALUE for an option."""
    measured = MeasuredDevice(
        KvBudget(kv_cache_memory_bytes, gpu_memory_utilization, _PAGES_BYTES), torch.device(device)
    )
    model = load_world(weights_folder(), dtype=chosen_dtype(dtype, device), device=device)
    return ready_engine(model, SIZES, measured, page_tokens=page_tokens, max_videos=max_videos, float8=float8)
