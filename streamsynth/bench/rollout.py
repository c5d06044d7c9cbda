"""`bench rollout`: how fast one worker's engine makes video, without a server, and its passes beside diffusers'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from streamsynth.bench.random_wan import TINY_VAE
from streamsynth.bench.report import Report, Row
from streamsynth.bench.rollout_sides import DiffusersSide, EngineSide, First, Steady, WanParts, load_parts
from streamsynth.bench.statistics import quantile
from streamsynth.engine.rollout.window import WindowPolicy
from streamsynth.models.wan.config import WanConfig
from streamsynth.models.wan.pipeline import SIZES
from streamsynth.video import Size

H200_TFLOPS = 790.0
"""What an H200 was measured to do in large bfloat16 products: the arithmetic to check against."""

DECODERS = {"tiny": TINY_VAE, "full": "vae"}
"""By the subfolder that each is in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutLoad:
    """`folder` as `write_random_wan` makes it. Each number of `videos` makes `chunks` once all their windows are full;
    first pictures are waited for `rounds` times, in turn with diffusers' passes if `theirs`."""

    folder: Path
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    decoders: Sequence[str] = ("tiny", "full")
    videos: Sequence[int] = (1, 2)
    chunks: int = 8
    rounds: int = 3
    size: Size = SIZES[0]
    window: WindowPolicy = field(default_factory=lambda: WindowPolicy(frames=12, sink=3, chunk=3))
    denoising_step_list: Sequence[int] = (1000, 750, 500, 250)
    shift: float = 5.0
    page_tokens: int = 120
    theirs: bool = True

    @property
    def peak_tflops(self) -> float | None:
        return H200_TFLOPS if self.device.startswith("cuda") else None


def bench_rollout(load: RolloutLoad) -> list[Report]:
    """Blocking."""
    torch.set_num_threads(load.threads)
    parts = load_parts(load.folder, dtype=load.dtype, device=load.device)
    theirs = DiffusersSide(load.folder, parts) if load.theirs else None
    rows: list[Row] = []
    passes: list[Row] = []
    notes = []
    for name in load.decoders:
        side = EngineSide(parts, load, load.folder / DECODERS[name], tiny=name == "tiny")
        first = [side.first()]
        dense: dict[int, list[float]] = {frames: [] for frames in (load.window.chunk, load.window.frames)}
        for _ in range(load.rounds):
            first.append(side.first())
            if theirs is not None:
                for frames, times in dense.items():
                    times.append(theirs.pass_ms(load.size, frames))
        steady = [side.run(videos, load.chunks) for videos in load.videos]
        rows += _rows(name, side, first, steady, parts, load)
        passes += _passes(name, first, steady[0], dense, parts.transformer.config, load)
        notes.append(f"{name}: ready after {side.ready_s:.1f} s, {side.engine.counters()['captures']} captured passes")
        if theirs is not None:
            notes.append(f"{name}: a flow is off from diffusers' by {theirs.difference(side.model, load.size):.2g}")
        if load.device.startswith("cuda"):
            notes.append(f"{name}: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of device memory at most")
        side.engine.close()
        del side
    settings = {name: str(getattr(load, name)) for name in ("device", "dtype", "threads", "size", "window", "chunks")}
    return [
        Report("rollout", rows, notes=notes, settings=settings),
        Report("rollout-passes", passes, settings=settings),
    ]


def _rows(
    decoder: str,
    side: EngineSide,
    first: Sequence[First],
    steady: Sequence[Steady],
    parts: WanParts,
    load: RolloutLoad,
) -> Iterator[Row]:
    decode_tflop = side.decode_tflop()
    steps, tokens = len(load.denoising_step_list), side.frame_tokens
    one = pass_tflop(parts.transformer.config, load.window.chunk * tokens, load.window.frames * tokens)
    for run in steady:
        bound_ms = _ms(run.videos * ((steps + 1) * one + decode_tflop), load.peak_tflops)
        yield {
            "decoder": decoder,
            "videos": run.videos,
            "FPS": run.fps,
            "chunk ms": quantile(run.between_ms, 0.5),
            "chunk p99 ms": quantile(run.between_ms, 0.99),
            "denoise ms": run.spent_ms["denoise"],
            "decode ms": run.spent_ms["decode"],
            "commit ms": run.spent_ms["commit"],
            "arithmetic ms": bound_ms,
            "over arithmetic": None if bound_ms is None else quantile(run.between_ms, 0.5) / bound_ms,
            "first cold ms": first[0].seconds * 1000,
            "first ms": quantile([each.seconds * 1000 for each in first[1:]], 0.5),
            "boundary to pictures ms": run.to_pictures_ms,
            "recache ms": run.recached_ms,
            "pages used": run.pages_used,
            "pages leaked": run.pages_leaked,
        }


def _passes(
    decoder: str,
    first: Sequence[First],
    steady: Steady,
    dense: dict[int, list[float]],
    config: WanConfig,
    load: RolloutLoad,
) -> Iterator[Row]:
    """A first chunk sees itself alone: so does diffusers' transformer over as many frames. Later ones see a window, for
    which that has to compute every frame of it."""
    chunk, frames = load.window.chunk, load.window.frames
    tokens = steady.frame_tokens
    ours = {chunk: quantile([each.pass_ms for each in first[1:]], 0.5), frames: steady.pass_ms}
    for keys, ms in ours.items():
        tflop = pass_tflop(config, chunk * tokens, keys * tokens)
        theirs = quantile(dense[keys], 0.5) if dense[keys] else None
        yield {
            "beside": decoder,
            "frames": chunk,
            "seen": keys,
            "ms": ms,
            "TFLOP": tflop,
            "TFLOP/s": tflop / ms * 1000,
            "arithmetic ms": _ms(tflop, load.peak_tflops),
            "diffusers frames": keys,
            "diffusers ms": theirs,
            "diffusers TFLOP": pass_tflop(config, keys * tokens, keys * tokens),
            "diffusers over ours": None if theirs is None else theirs / ms,
        }


def _ms(tflop: float, peak_tflops: float | None) -> float | None:
    return None if peak_tflops is None else 1000 * tflop / peak_tflops


def pass_tflop(config: WanConfig, tokens: int, keys: int, text_tokens: int = 512) -> float:
    """Multiplications and additions of a forward pass, of its blocks alone."""
    size = config.hidden_size
    linear = 2 * tokens * (6 * size**2 + 2 * size * config.ffn_dim)
    attention = 4 * tokens * (keys + text_tokens) * size
    return config.num_layers * (linear + attention) / 1e12
