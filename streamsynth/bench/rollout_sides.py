"""The sides of `bench.rollout`: our engine as a worker steps it, and diffusers' transformer on the same weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from streamsynth.bench.statistics import quantile
from streamsynth.engine.kv.sizing import KvBudget, MeasuredDevice
from streamsynth.engine.rollout.engine import RolloutEngine, RolloutStream
from streamsynth.engine.rollout.warm_up import page_bytes, pages_of_videos, ready_engine
from streamsynth.engine.rollout.window import WindowPolicy
from streamsynth.engine.stream import Emission
from streamsynth.interactions.messages import Interaction, Kv
from streamsynth.models.wan.attention import FullAttention
from streamsynth.models.wan.denoisers import FewSteps
from streamsynth.models.wan.model import WanTransformer
from streamsynth.models.wan.pipeline import FPS
from streamsynth.models.wan.prompts import PromptEncoder, load_prompt_encoder
from streamsynth.models.wan.schedule import few_step_schedule
from streamsynth.models.wan.streaming import StreamingDecoder
from streamsynth.models.wan.tiny_vae_weights import load_tiny_vae
from streamsynth.models.wan.vae_weights import load_vae
from streamsynth.models.wan.video import WanVideo
from streamsynth.models.wan.weights import load_transformer
from streamsynth.video import Size, VideoRequest

PROMPTS = ("a red ball bouncing over a green meadow", "a blue square over the sea at night", "a white star in space")
_IDLE_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class WanParts:
    """What both decoders share."""

    transformer: WanTransformer
    prompts: PromptEncoder
    dtype: torch.dtype
    device: str


def load_parts(folder: Path, *, dtype: str, device: str) -> WanParts:
    kind = getattr(torch, dtype)
    return WanParts(
        load_transformer(folder / "transformer", dtype=kind, device=device),
        load_prompt_encoder(folder / "text_encoder", folder / "tokenizer", dtype=kind, device=device),
        kind,
        device,
    )


@dataclass(frozen=True, slots=True)
class First:
    """The first chunk of a video: until its pictures, and a pass of it."""

    seconds: float
    pass_ms: float


@dataclass(frozen=True, slots=True)
class Steady:
    """Videos whose windows are full. `spent_ms` is the device's time for a chunk of all of them, by kind of pass."""

    videos: int
    fps: float
    between_ms: Sequence[float]
    spent_ms: dict[str, float]
    pass_ms: float
    to_pictures_ms: float
    recached_ms: float
    frame_tokens: int
    pages_used: int
    pages_leaked: int


class Load(Protocol):
    """What of `RolloutLoad` an engine is made from."""

    @property
    def videos(self) -> Sequence[int]: ...
    @property
    def size(self) -> Size: ...
    @property
    def window(self) -> WindowPolicy: ...
    @property
    def denoising_step_list(self) -> Sequence[int]: ...
    @property
    def shift(self) -> float: ...
    @property
    def page_tokens(self) -> int: ...


class EngineSide:
    """An engine that is ready for one size."""

    def __init__(self, parts: WanParts, load: Load, decoder: Path, *, tiny: bool) -> None:
        began = time.perf_counter()
        cuda = parts.device.startswith("cuda")
        self._size = load.size
        self._device = parts.device
        self._steps = len(load.denoising_step_list)
        self._decoder: StreamingDecoder = (load_tiny_vae if tiny else load_vae)(
            decoder, dtype=parts.dtype, device=parts.device
        )
        self.model = WanVideo(
            parts.transformer,
            parts.prompts,
            self._decoder,
            FewSteps(few_step_schedule(load.denoising_step_list, load.shift)),
            load.window,
            fps=FPS,
            fused=cuda,
        )
        self.frame_tokens = self.model.frame_tokens(load.size.width, load.size.height)
        videos = max(load.videos)
        pages = 1 + pages_of_videos(self.model, [load.size], load.page_tokens, videos)
        nbytes = pages * page_bytes(self.model, load.page_tokens, quantised_pages=False)
        self.engine: RolloutEngine = ready_engine(
            self.model,
            [load.size],
            MeasuredDevice(KvBudget(nbytes, None), torch.device(parts.device)),
            page_tokens=load.page_tokens,
            max_videos=videos,
            float8=False,
        )
        self.ready_s = time.perf_counter() - began

    @torch.no_grad()
    def decode_tflop(self) -> float:
        """Of a chunk that is not the first."""
        channels, height, width = self.model.latent_shape(self._size.width, self._size.height)
        latents = self.model.like.new_zeros(1, channels, self.model.window.chunk, height, width)
        state = self._decoder.open_decoder()
        self._decoder.decode(latents, [state])
        with FlopCounterMode(display=False) as counter:
            self._decoder.decode(latents, [state])
        return float(counter.get_total_flops()) / 1e12

    def first(self) -> First:
        before = self.engine.counters()
        began = time.perf_counter()
        streams = self._open(1)
        self._chunks(streams, 1)
        seconds = time.perf_counter() - began
        self._settle()
        pass_ms = (self.engine.counters()["denoise_us"] - before["denoise_us"]) / 1000 / self._steps
        self._close(streams)
        return First(seconds, pass_ms)

    def run(self, videos: int, chunks: int) -> Steady:
        window = self.model.window
        streams = self._open(videos)
        self._chunks(streams, window.frames // window.chunk)
        before = self.engine.counters()
        times = self._chunks(streams, 1 + chunks)
        self._settle()
        after = self.engine.counters()
        pictures = videos * chunks * window.chunk * self.model.clock.stride
        spent_ms = {
            kind: (after[f"{kind}_us"] - before[f"{kind}_us"]) / 1000 / (1 + chunks)
            for kind in ("denoise", "decode", "commit")
        }
        idle = [self._from_idle(streams) for _ in range(_IDLE_ROUNDS)]
        recached = [self._from_idle(streams, recache=str(number)) for number in range(_IDLE_ROUNDS)]
        used = after["pages"] - after["free_pages"]
        self._close(streams)
        counters = self.engine.counters()
        return Steady(
            videos=videos,
            fps=pictures / (times[-1] - times[0]),
            between_ms=[1000 * (later - earlier) for earlier, later in pairwise(times)],
            spent_ms=spent_ms,
            pass_ms=spent_ms["denoise"] / self._steps,
            to_pictures_ms=quantile(idle, 0.5),
            recached_ms=quantile(recached, 0.5),
            frame_tokens=self.frame_tokens,
            pages_used=used,
            pages_leaked=counters["pages"] - counters["free_pages"],
        )

    def _from_idle(self, streams: Sequence[RolloutStream], recache: str | None = None) -> float:
        """From a chunk's boundary, with no commit before it left to do, until its pictures; ms."""
        if recache is not None:
            for stream in streams:
                stream.interact(Interaction(recache, {"prompt": PROMPTS[int(recache) % 3]}, 0, kv=Kv.RECACHE))
        began = time.perf_counter()
        (came_at,) = self._chunks(streams, 1)
        self._settle()
        return 1000 * (came_at - began)

    def _open(self, videos: int) -> list[RolloutStream]:
        width, height = self._size.width, self._size.height
        requests = [
            VideoRequest(prompt=PROMPTS[number % 3], seed=number, width=width, height=height)
            for number in range(videos)
        ]
        return [self.engine.open(request.to_wire()) for request in requests]

    def _chunks(self, streams: Sequence[RolloutStream], count: int) -> list[float]:
        """Make so many chunks of each; returns when the last video had each."""
        made = dict.fromkeys(streams, 0)
        times: list[float] = []
        while len(times) < count:
            wanting = [stream for stream in streams if made[stream] < count]
            for stream, emission in self.engine.step(wanting).made:
                if not isinstance(emission, Emission):
                    raise emission
                assert isinstance(stream, RolloutStream)
                made[stream] += len(emission.media) > 0
            while len(times) < min(made.values()):
                times.append(time.perf_counter())
        return times

    def _settle(self) -> None:
        """Launch what is left, and wait for the device."""
        while self.engine.step(()).unfinished:
            pass
        _wait_for(self._device)

    def _close(self, streams: Sequence[RolloutStream]) -> None:
        for stream in streams:
            stream.close()
        self._settle()


class DiffusersSide:
    """`WanTransformer3DModel`, which keeps nothing between passes: to see frames it computes them."""

    def __init__(self, folder: Path, parts: WanParts) -> None:
        from diffusers import WanTransformer3DModel

        load: Any = WanTransformer3DModel.from_pretrained
        self._model = load(folder / "transformer", torch_dtype=parts.dtype).to(parts.device).eval()
        self._embedding = parts.prompts.encode([PROMPTS[0]]).to(parts.dtype)
        self._parts = parts
        self._warm: set[tuple[int, ...]] = set()

    @torch.inference_mode()
    def pass_ms(self, size: Size, frames: int) -> float:
        latents = self._latents(size, frames)
        if latents.shape not in self._warm:
            self._warm.add(tuple(latents.shape))
            self._flow(latents)
        _wait_for(self._parts.device)
        began = time.perf_counter()
        self._flow(latents)
        _wait_for(self._parts.device)
        return 1000 * (time.perf_counter() - began)

    @torch.inference_mode()
    def difference(self, model: WanVideo, size: Size) -> float:
        """Of ours from theirs, over a chunk that is the first; in relative norm."""
        latents = self._latents(size, model.window.chunk)
        _, height, width = model.latent_shape(size.width, size.height)
        positions = torch.arange(model.window.chunk, device=latents.device)[None]
        timesteps = torch.full((1, 1), 500.0, device=latents.device)
        context = model.condition(self._embedding)
        ours = model.flow(latents, timesteps, context, model.rotary(positions, height, width), FullAttention())
        theirs = self._flow(latents)
        return float((ours.float() - theirs.float()).norm() / theirs.float().norm())

    def _flow(self, latents: Tensor) -> Tensor:
        made: Tensor = self._model(latents, torch.tensor([500.0], device=latents.device), self._embedding).sample
        return made

    def _latents(self, size: Size, frames: int) -> Tensor:
        config = self._parts.transformer.config
        generator = torch.Generator(self._parts.device).manual_seed(0)
        shape = (1, config.in_channels, frames, size.height // 8, size.width // 8)
        drawn = torch.randn(shape, generator=generator, device=self._parts.device)
        return drawn.to(self._parts.dtype)


def _wait_for(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
