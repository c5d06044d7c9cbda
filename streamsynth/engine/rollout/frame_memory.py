"""Keys and values of committed latent frames, in pages.

A page is so many tokens, a frame as many pages as hold its tokens: a picture's size need not be a multiple of a page's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from streamsynth.engine.kv import fp8

SavedPages: TypeAlias = tuple[Tensor, ...]
"""The content of pages in the host's memory, bit for bit."""


class Pages(Protocol):
    """Pages of all layers, for keys or for values; content is (pages, page_tokens, heads, head_dim)."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything, each (layers, pages, ...)."""

    def write(self, layer: int, pages: Tensor, content: Tensor) -> None: ...

    def read(self, layer: int, pages: Tensor) -> Tensor:
        """A copy."""


class PlainPages:
    """In the model's dtype."""

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        self._content = like.new_zeros(shape)
        self.tensors: tuple[Tensor, ...] = (self._content,)

    def write(self, layer: int, pages: Tensor, content: Tensor) -> None:
        self._content[layer].index_copy_(0, pages, content)

    def read(self, layer: int, pages: Tensor) -> Tensor:
        return self._content[layer].index_select(0, pages)


class QuantisedPages:
    """In float8 e4m3 with one float32 scale a page: a frame is committed whole, so its range is known.

    An element is off by at most 2^-4 of itself or, near zero, 2^-10 of its page's scale, of which its largest is 448.
    """

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        self._content = like.new_zeros(shape, dtype=torch.uint8)
        self._scales = like.new_zeros(shape[:2], dtype=torch.float32)
        self._dtype = like.dtype
        self.tensors: tuple[Tensor, ...] = (self._content, self._scales)

    def write(self, layer: int, pages: Tensor, content: Tensor) -> None:
        quantised, scales = fp8.quantise_pages(content)
        self._content[layer].index_copy_(0, pages, quantised)
        self._scales[layer].index_copy_(0, pages, scales)

    def read(self, layer: int, pages: Tensor) -> Tensor:
        scales = self._scales[layer].index_select(0, pages)
        content = self._content[layer].index_select(0, pages).view(torch.float8_e4m3fn)
        return content.to(self._dtype) * scales[:, None, None, None].to(self._dtype)


class FrameMemory:
    """Keys and values of all layers. Frames are written and read whole, of any size.

    A table names the pages of frames, (rows, frames * pages_per_frame(frame_tokens)) int64; the frames' tokens are
    (rows, frames * frame_tokens, heads, head_dim) in the model's dtype.
    """

    def __init__(
        self,
        *,
        layers: int,
        pages: int,
        page_tokens: int,
        heads: int,
        head_dim: int,
        like: Tensor,
        quantised: bool = False,
    ) -> None:
        self.layers = layers
        self.page_tokens = page_tokens
        shape = (layers, pages, page_tokens, heads, head_dim)
        kind = QuantisedPages if quantised else PlainPages
        self._keys: Pages = kind(shape, like)
        self._values: Pages = kind(shape, like)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors)

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return self._keys.tensors + self._values.tensors

    def pages_per_frame(self, frame_tokens: int) -> int:
        return -(-frame_tokens // self.page_tokens)

    def store(self, layer: int, table: Tensor, k: Tensor, v: Tensor, frame_tokens: int) -> None:
        pages = table.flatten()
        self._keys.write(layer, pages, self._in_pages(k, frame_tokens))
        self._values.write(layer, pages, self._in_pages(v, frame_tokens))

    def gather(self, layer: int, table: Tensor, frame_tokens: int) -> tuple[Tensor, Tensor]:
        """Copies."""
        pages, rows = table.flatten(), len(table)
        keys, values = self._keys.read(layer, pages), self._values.read(layer, pages)
        return self._in_frames(keys, rows, frame_tokens), self._in_frames(values, rows, frame_tokens)

    def save(self, pages: Sequence[int]) -> SavedPages:
        index = torch.tensor(pages, device=self._tensors[0].device)
        return tuple(tensor.index_select(1, index).cpu() for tensor in self._tensors)

    def load(self, pages: Sequence[int], saved: SavedPages) -> None:
        index = torch.tensor(pages, device=self._tensors[0].device)
        for tensor, content in zip(self._tensors, saved, strict=True):
            tensor.index_copy_(1, index, content.to(tensor.device))

    def _in_pages(self, tokens: Tensor, frame_tokens: int) -> Tensor:
        """What is left over of a frame's last page is zeros."""
        frames = tokens.unflatten(1, (-1, frame_tokens)).flatten(0, 1)
        count = self.pages_per_frame(frame_tokens)
        if padding := count * self.page_tokens - frame_tokens:
            frames = F.pad(frames, (0, 0, 0, 0, 0, padding))
        return frames.unflatten(1, (count, -1)).flatten(0, 1)

    def _in_frames(self, pages: Tensor, rows: int, frame_tokens: int) -> Tensor:
        count = self.pages_per_frame(frame_tokens)
        frames = pages.unflatten(0, (-1, count)).flatten(1, 2)[:, :frame_tokens]
        return frames.unflatten(0, (rows, -1)).flatten(1, 2)
