"""The CSM talker through the kernels, for captured steps on CUDA. `CsmTalker` is the oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from streamsynth.engine.attention import Attention, DenseAttention
from streamsynth.engine.kernels.dense import DenseKernel
from streamsynth.engine.kernels.embedding import embed_positions
from streamsynth.engine.kernels.product import FEW, Normed, Products
from streamsynth.engine.kernels.sampling import sample_codebook
from streamsynth.engine.sampler import SamplingBatch
from streamsynth.models.csm.model import CsmTalker
from streamsynth.models.llama.fused import FusedDecoder


class FusedCsm:
    """A `FrameModel`. What `trunk` returns is not normed yet: only `frame` understands it.

    Logits stay in float32, where the plain talker rounds them to the dtype of its weights.
    """

    def __init__(self, talker: CsmTalker, *, overlap: bool = False) -> None:
        self._talker = talker
        self._products = Products(talker.projector.weight.device, overlap=overlap)
        self._backbone = FusedDecoder(talker.backbone, self._products)
        self._depth = FusedDecoder(talker.depth, self._products)
        self._overlap = overlap

    @property
    def width(self) -> int:
        return self._talker.width

    @property
    def codebooks(self) -> int:
        return self._talker.codebooks

    def embed(self, inputs: Tensor) -> Tensor:
        talker = self._talker
        return embed_positions(
            inputs, talker.text_embedding.weight, talker.code_embedding.weight, overlap=self._overlap
        )

    def trunk(self, x: Tensor, attention: Attention) -> Tensor:
        return self._backbone(x, attention).x

    def depth_cache(self, rows: int) -> DenseAttention:
        cache = self._talker.cache_of(DenseKernel, rows)
        cache.overlap = self._overlap
        return cache

    def frame(
        self,
        hidden: Tensor,
        first: SamplingBatch,
        rest: SamplingBatch,
        position: Tensor,
        scale: Tensor,
        cache: DenseAttention,
    ) -> Tensor:
        """As `CsmTalker.frame`."""
        talker, products = self._talker, self._products
        rows = len(hidden)
        logits = torch.empty((rows, talker.config.vocab_size), dtype=torch.float32, device=hidden.device)
        codes = torch.empty((len(position), self.codebooks), dtype=torch.int64, device=hidden.device)

        def draw(codebook: int, fed: Tensor | Normed | None) -> None:
            sample_codebook(
                logits,
                scale,
                rest if codebook else first,
                position,
                codes,
                codebook,
                table=talker.projected_codes,
                fed=fed,
                overlap=self._overlap,
            )

        norm = self._backbone.last_norm
        normed = products.norm(hidden, norm.weight, norm.eps)
        products.plain(normed, talker.first_head.weight, logits)
        # The depth decoder begins with two positions a row: the backbone's hidden state, and the first code.
        pair = hidden.new_empty((rows, 2, talker.config.depth.hidden_size))
        products.plain(normed, talker.projector.weight, pair[:, 0])
        draw(0, pair[:, 1])
        cache.begin(0, 2)
        state = self._depth(pair.flatten(0, 1), cache).every_second()
        for codebook in range(1, self.codebooks):
            products.plain(state, talker.heads[codebook - 1], logits)
            if codebook + 1 == self.codebooks:
                draw(codebook, None)
                break
            fed = self._fed(hidden)
            draw(codebook, fed)
            cache.begin(codebook + 1, 1)
            state = self._depth(fed, cache)
        return codes

    def _fed(self, hidden: Tensor) -> Normed:
        """Room for the embedding of a code, and for the first norm over it."""
        rows, width, norm = len(hidden), self._talker.config.depth.hidden_size, self._depth.first_norm
        x = hidden.new_empty((rows, width))
        if rows <= FEW:
            return Normed(x, norm.weight, norm.eps)
        squares = torch.empty((1, rows), dtype=torch.float32, device=hidden.device)
        return Normed(x, norm.weight, norm.eps, torch.empty_like(x), squares)

    def feedback(self, frames: Tensor) -> Tensor:
        return self._talker.feedback(frames)
