"""The CSM talker through the kernels, for captured steps on CUDA. `CsmTalker` is the oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from streamsynth.engine.attention import DenseAttention
from streamsynth.engine.fused import FusedDecoder
from streamsynth.engine.kernels.dense import DenseKernel
from streamsynth.engine.kernels.embedding import embed_positions
from streamsynth.engine.kernels.product import Products
from streamsynth.engine.kernels.sampling import sample_codebook
from streamsynth.engine.sampler import SamplingBatch
from streamsynth.models.csm.model import CsmTalker
from streamsynth.models.llama.modules import Attention


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
        return self._backbone(x, attention)

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
        talker = self._talker
        rows, vocabulary = len(hidden), talker.config.vocab_size
        logits = torch.empty((rows, vocabulary), dtype=torch.float32, device=hidden.device)
        codes = torch.empty((len(position), self.codebooks), dtype=torch.int64, device=hidden.device)
        # The depth decoder begins with two positions a row: the backbone's hidden state, and the first code.
        pair = hidden.new_empty((rows, 2, talker.config.depth.hidden_size))

        def draw(codebook: int, fed: Tensor | None) -> None:
            batch = rest if codebook else first
            table = talker.projected_codes
            sample_codebook(
                logits, scale, batch, position, codes, codebook, table=table, fed=fed, overlap=self._overlap
            )

        self._backbone.normed_product(hidden, talker.first_head.weight, out=logits)
        self._backbone.normed_product(hidden, talker.projector.weight, out=pair[:, 0])
        draw(0, pair[:, 1])
        x = pair.flatten(0, 1)
        cache.begin(0, 2)
        for codebook in range(1, self.codebooks):
            last = codebook + 1 == self.codebooks
            out = self._depth(x, cache)
            self._depth.normed_product(out[1::2] if codebook == 1 else out, talker.heads[codebook - 1], out=logits)
            x = hidden.new_empty((rows, pair.shape[-1]))
            draw(codebook, None if last else x)
            if not last:
                cache.begin(codebook + 1, 1)
        return codes

    def feedback(self, frames: Tensor) -> Tensor:
        return self._talker.feedback(frames)
