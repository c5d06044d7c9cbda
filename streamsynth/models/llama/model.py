"""A decoder-only text model as the engine sees it: a frame is one token, and nothing is under it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from streamsynth.engine.attention import Attention, DenseAttention
from streamsynth.engine.sampler import SamplingBatch, guide, sample
from streamsynth.models.embedding import loaded_embedding
from streamsynth.models.llama.config import LlamaConfig
from streamsynth.models.llama.lean import LeanDecoder, lean
from streamsynth.models.llama.linear import input_major, order_weights, packed, product
from streamsynth.models.llama.modules import Decoder


class LlamaModel(nn.Module):
    """An input position is one token, a frame is one token, and feedback changes nothing."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = loaded_embedding(config.vocab_size, config.decoder.hidden_size)
        self.decoder = Decoder(config.decoder)
        self.head = None if config.tied else nn.Linear(config.decoder.hidden_size, config.vocab_size, bias=False)
        self._lean: LeanDecoder | None = None
        self._head: Sequence[Tensor] = ()

    @property
    def width(self) -> int:
        return 1

    @property
    def codebooks(self) -> int:
        return 1

    def get_ready(self) -> None:
        """Lay out the weights and compute what no checkpoint stores; call once they are loaded and in place."""
        order_weights(self)
        if self.head is None:
            # Read whole for every token as the head, but only in single rows as the embedding.
            self.embedding.weight.data = input_major(self.embedding.weight.data)
        self.decoder.fill_tables()
        self._lean = lean(self.decoder)
        self._head = (packed(self.embedding.weight if self.head is None else self.head.weight),)

    def embed(self, inputs: Tensor) -> Tensor:
        """(tokens, 1) int64 to (tokens, hidden)."""
        return self.embedding(inputs[:, 0])

    def trunk(self, x: Tensor, attention: Attention) -> Tensor:
        return (self._lean or self.decoder)(x, attention)

    def logits(self, hidden: Tensor) -> Tensor:
        """(tokens, hidden) to (tokens, vocabulary)."""
        (head,) = self._head
        return product(hidden, head)

    def depth_cache(self, rows: int) -> DenseAttention:
        """An empty one."""
        return DenseAttention(layers=0, rows=rows, length=0, kv_heads=0, head_dim=0, like=self.embedding.weight)

    def frame(
        self,
        hidden: Tensor,
        first: SamplingBatch,
        rest: SamplingBatch,
        position: Tensor,
        scale: Tensor,
        cache: DenseAttention,
    ) -> Tensor:
        """The next token of each unit, int64 (units, 1); `rest` and `cache` have nothing to do."""
        rows = hidden.shape[0] // position.shape[0]
        return sample(guide(self.logits(hidden), scale, rows), first, position)[:, None]

    def feedback(self, frames: Tensor) -> Tensor:
        return frames
