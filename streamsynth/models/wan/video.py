"""A causal Wan model as the rollout engine runs it: transformer, prompt encoder, a streaming decoder, a denoiser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from streamsynth.engine.rollout.clock import PictureClock
from streamsynth.engine.rollout.model import Denoiser, SelfAttention
from streamsynth.engine.rollout.window import WindowPolicy
from streamsynth.errors import invalid_value
from streamsynth.models.wan.captured_decoder import CapturedDecoder, LatentSize
from streamsynth.models.wan.model import PromptContext, WanTransformer
from streamsynth.models.wan.rotary import Rotary
from streamsynth.models.wan.streaming import StreamingDecoder, StreamState
from streamsynth.video import Size


class PromptEmbedder(Protocol):
    def in_full(self, prompt: str, before: str | None, seed: int) -> str:
        """As `VideoModel.in_full`."""

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Embeddings (prompts, tokens, text_dim), as many tokens for every prompt."""


class Passes(Protocol):
    """What of the transformer runs once a pass."""

    def rotary(self, positions: Tensor, height: int, width: int) -> Rotary: ...

    def __call__(
        self, latents: Tensor, timesteps: Tensor, prompt: PromptContext, rotary: Rotary, attention: SelfAttention
    ) -> Tensor: ...


class WanVideo:
    """A `VideoModel`; `fps` is what it was trained at. The decoder's latents must be the transformer's. `fused` passes
    run on CUDA, and are within rounding of the others."""

    def __init__(
        self,
        transformer: WanTransformer,
        prompts: PromptEmbedder,
        decoder: StreamingDecoder,
        denoiser: Denoiser,
        window: WindowPolicy,
        *,
        fps: int,
        fused: bool = False,
    ) -> None:
        config, layout = transformer.config, decoder.layout
        if layout.channels != config.in_channels:
            raise invalid_value("decoder", f"{layout.channels} latent channels", f"{config.in_channels} of them")
        self.layers, self.heads, self.head_dim = (
            config.num_layers,
            config.num_attention_heads,
            config.attention_head_dim,
        )
        self.fps = fps
        self.window = window
        self.clock = PictureClock(chunk=window.chunk, stride=layout.pictures, first=layout.first_pictures)
        self.denoiser = denoiser
        self.like = torch.empty_like(transformer.patches.weight[:0])
        self._transformer = transformer
        self._passes: Passes = _fused(transformer) if fused else transformer
        self._prompts = prompts
        self._decoder = decoder
        self._layout = layout

    def latent_shape(self, width: int, height: int) -> tuple[int, int, int]:
        scale = self._layout.scale
        multiple = scale * self._transformer.config.patch_size[1]
        for name, size in (("width", width), ("height", height)):
            if size % multiple:
                raise invalid_value(name, size, f"a multiple of {multiple}")
        return self._layout.channels, height // scale, width // scale

    def frame_tokens(self, width: int, height: int) -> int:
        _, high, wide = self.latent_shape(width, height)
        return self._transformer.config.frame_tokens(high, wide)

    def in_full(self, prompt: str, before: str | None, seed: int) -> str:
        return self._prompts.in_full(prompt, before, seed)

    def embed(self, prompt: str) -> Tensor:
        return self._prompts.encode([prompt]).to(self.like.dtype)

    def condition(self, embedding: Tensor) -> PromptContext:
        return self._transformer.prompt_context(embedding)

    def stack(self, conditionings: Sequence[PromptContext]) -> PromptContext:
        return PromptContext.stack(conditionings)

    def rotary(self, positions: Tensor, latent_height: int, latent_width: int) -> Rotary:
        return self._passes.rotary(positions, latent_height, latent_width)

    def flow(
        self, latents: Tensor, timesteps: Tensor, conditioning: PromptContext, rotary: Any, attention: SelfAttention
    ) -> Tensor:
        return self._passes(latents, timesteps, conditioning, rotary, attention)

    def capture_decoder(self, sizes: Sequence[Size], *, max_rows: int) -> None:
        latents = [LatentSize(*self.latent_shape(size.width, size.height)[1:]) for size in sizes]
        self._decoder = CapturedDecoder(
            self._decoder, sizes=latents, frames=self.window.chunk, max_rows=max_rows, like=self.like
        )

    def open_decoder(self) -> StreamState:
        return self._decoder.open_decoder()

    def decode(self, latents: Tensor, states: Sequence[StreamState]) -> list[Tensor]:
        """Streams that begin go in one batch, those that go on in another."""
        made: dict[int, Tensor] = {}
        begun = [row for row, state in enumerate(states) if state.units]
        new = [row for row in range(len(states)) if row not in begun]
        for rows in (begun, new):
            if rows:
                # Not by a list of indices: that would wait for the device.
                chosen = latents if len(rows) == len(states) else torch.stack([latents[row] for row in rows])
                pictures = self._decoder.decode(chosen, [states[row] for row in rows])
                levels = pictures.float().add(1.0).mul(127.5).round_().clamp_(0, 255).to(torch.uint8)
                made.update(zip(rows, levels.permute(0, 2, 3, 4, 1).contiguous(), strict=True))
        return [made[row] for row in range(len(states))]


def _fused(transformer: WanTransformer) -> Passes:
    # Only here: where there is no CUDA, there need be no Triton.
    from streamsynth.models.wan.fused import FusedTransformer

    return FusedTransformer(transformer)
