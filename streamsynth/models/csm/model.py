"""The CSM talker as modules: text and frames to hidden states, a hidden state to the next frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.engine.attention import Attention, DenseAttention
from streamsynth.engine.sampler import SamplingBatch, frame_noise, guide, sample
from streamsynth.models.csm.config import CsmConfig
from streamsynth.models.llama.lean import LeanDecoder, lean
from streamsynth.models.llama.linear import packed, product
from streamsynth.models.llama.modules import Decoder

Cache = TypeVar("Cache", bound=DenseAttention)

ABSENT = -1
"""In an input position: no text token, or no frame."""


class CsmTalker(nn.Module):
    """Inputs are positions of 1 + codebooks integers: a text token and a frame, one of the two ABSENT.

    The tables that the depth decoder reads are the audio embeddings already projected to its width: a frame's codebooks
    then cost one look-up each instead of a look-up and a product.
    """

    projected_codes: Tensor

    def __init__(self, config: CsmConfig) -> None:
        super().__init__()
        self.config = config
        width, depth_width = config.backbone.hidden_size, config.depth.hidden_size
        self.text_embedding = _embedding(config.text_vocab_size, width)
        self.code_embedding = _embedding(config.codebooks * config.vocab_size, width)
        self.backbone = Decoder(config.backbone)
        self.first_head = nn.Linear(width, config.vocab_size, bias=False)
        self.projector = nn.Linear(width, depth_width, bias=False)
        self.depth = Decoder(config.depth)
        self.heads = nn.Parameter(torch.empty(config.codebooks - 1, config.vocab_size, depth_width))
        self.register_buffer("projected_codes", torch.empty(0), persistent=False)
        self.register_buffer("offsets", torch.empty(0, dtype=torch.int64), persistent=False)
        self._heads: Sequence[Tensor] = ()
        self._projection: Sequence[Tensor] = ()
        self._lean_backbone: LeanDecoder | None = None
        self._lean_depth: LeanDecoder | None = None

    @property
    def width(self) -> int:
        """Integers of one input position."""
        return 1 + self.config.codebooks

    @property
    def codebooks(self) -> int:
        """Integers of one frame."""
        return self.config.codebooks

    @torch.inference_mode()
    def fill_tables(self) -> None:
        """Compute what no checkpoint stores; call once the weights are loaded and in place."""
        weight = self.code_embedding.weight
        self.projected_codes = F.linear(weight, self.projector.weight)
        self.offsets = torch.arange(self.config.codebooks, device=weight.device) * self.config.vocab_size
        self.backbone.fill_tables()
        self.depth.fill_tables()
        self._lean_backbone, self._lean_depth = lean(self.backbone), lean(self.depth)
        self._heads = [packed(head) for head in (self.first_head.weight, *self.heads)]
        self._projection = [packed(self.projector.weight)]

    def embed(self, inputs: Tensor) -> Tensor:
        """(tokens, 1 + codebooks) int64 to (tokens, hidden)."""
        text, frames = inputs[:, 0], inputs[:, 1:]
        audio = self.embed_frames(frames.clamp_min(0))
        return torch.where((text == ABSENT)[:, None], audio, self.text_embedding(text.clamp_min(0)))

    def embed_frames(self, frames: Tensor) -> Tensor:
        """(tokens, codebooks) int64 to (tokens, hidden): the sum over codebooks."""
        return self.code_embedding(frames + self.offsets).sum(1)

    def trunk(self, x: Tensor, attention: Attention) -> Tensor:
        return (self._lean_backbone or self.backbone)(x, attention)

    def depth_cache(self, rows: int) -> DenseAttention:
        return self.cache_of(DenseAttention, rows)

    def cache_of(self, kind: type[Cache], rows: int) -> Cache:
        """The depth decoder's cache, as one of several implementations."""
        depth = self.config.depth
        return kind(
            layers=depth.layers,
            rows=rows,
            length=self.config.codebooks,
            kv_heads=depth.kv_heads,
            head_dim=depth.head_dim,
            like=self.projector.weight,
        )

    def frame(
        self,
        hidden: Tensor,
        first: SamplingBatch,
        rest: SamplingBatch,
        position: Tensor,
        scale: Tensor,
        cache: DenseAttention,
    ) -> Tensor:
        """Draw the next frame of each unit.

        hidden (units * rows, hidden) at each row's last position; `position` (units,) numbers the frames for the noise;
        `scale` (units,) is the guidance. `first` samples codebook 0, `rest` the others. Returns int64 (units,
        codebooks).
        """
        units = position.shape[0]
        rows = hidden.shape[0] // units
        depth = self._lean_depth or self.depth
        noise = None
        if not (first.greedy and rest.greedy):
            noise = frame_noise(first, rest, position, self.config.codebooks, self.config.vocab_size)
        codes = [sample(guide(product(hidden, self._heads[0]), scale, rows), first, position, 0, noise)]
        x = torch.stack((product(hidden, *self._projection), self._code(codes[0], 0, rows)), 1).flatten(0, 1)
        cache.begin(0, 2)
        for codebook in range(1, self.config.codebooks):
            out = depth(x, cache)
            if codebook == 1:
                out = out.view(-1, 2, out.shape[-1])[:, 1]
            logits = guide(product(out, self._heads[codebook]), scale, rows)
            codes.append(sample(logits, rest, position, codebook, noise))
            if codebook + 1 < self.config.codebooks:
                x = self._code(codes[codebook], codebook, rows)
                cache.begin(codebook + 1, 1)
        return torch.stack(codes, 1)

    def _code(self, code: Tensor, codebook: int, rows: int) -> Tensor:
        embedded = self.projected_codes[code + codebook * self.config.vocab_size]
        return embedded if rows == 1 else embedded.repeat_interleave(rows, 0)

    def feedback(self, frames: Tensor) -> Tensor:
        """The input position that a drawn frame becomes: (units, codebooks) to (units, 1 + codebooks)."""
        return torch.cat((frames.new_full((len(frames), 1), ABSENT), frames), 1)


def _embedding(count: int, width: int) -> nn.Embedding:
    """Without values: a checkpoint has them."""
    return nn.Embedding.from_pretrained(torch.empty(count, width), freeze=False)
