"""Loads a causal Wan checkpoint for the rollout engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from streamsynth.engine.kv.sizing import KvBudget, MeasuredDevice
from streamsynth.engine.rollout.engine import RolloutEngine
from streamsynth.engine.rollout.warm_up import ready_engine
from streamsynth.engine.rollout.window import WindowPolicy
from streamsynth.errors import invalid_value
from streamsynth.models.wan.denoisers import FewSteps
from streamsynth.models.wan.pipeline import FPS, SIZES
from streamsynth.models.wan.prompts import load_prompt_encoder
from streamsynth.models.wan.schedule import few_step_schedule
from streamsynth.models.wan.tiny_vae_weights import load_tiny_vae
from streamsynth.models.wan.vae_weights import load_vae
from streamsynth.models.wan.video import WanVideo
from streamsynth.models.wan.weights import load_transformer


def load_rollouts(
    *,
    folder: str,
    decoder: str,
    device: str,
    dtype: str,
    denoising_step_list: Sequence[int],
    shift: float,
    window_frames: int,
    sink_frames: int,
    chunk_frames: int,
    page_tokens: int,
    max_videos: int,
    gpu_memory_utilization: float,
    float8: bool,
    kv_cache_memory_bytes: int | None = None,
) -> RolloutEngine:
    """`folder` is in diffusers' `WanPipeline` layout; `decoder` a folder of TAEHV weights, or "" for the folder's VAE.

    Every size of the pipeline is run once, at the most videos a pass. Raises START_FAILED for files that do not fit,
    INVALID_VALUE for an option.
    """
    if not folder:
        raise invalid_value("folder", folder, "the path of a checkpoint")
    if dtype not in ("bfloat16", "float32"):
        raise invalid_value("dtype", dtype, "bfloat16 or float32")
    budget = MeasuredDevice(KvBudget(kv_cache_memory_bytes, gpu_memory_utilization), torch.device(device))
    root, kind = Path(folder), getattr(torch, dtype)
    model = WanVideo(
        load_transformer(root / "transformer", dtype=kind, device=device),
        load_prompt_encoder(root / "text_encoder", root / "tokenizer", dtype=kind, device=device),
        load_tiny_vae(Path(decoder), dtype=kind, device=device)
        if decoder
        else load_vae(root / "vae", dtype=kind, device=device),
        FewSteps(few_step_schedule(denoising_step_list, shift)),
        WindowPolicy(frames=window_frames, sink=sink_frames, chunk=chunk_frames),
        fps=FPS,
        fused=budget.device.type == "cuda",
    )
    return ready_engine(model, SIZES, budget, page_tokens=page_tokens, max_videos=max_videos, float8=float8)
