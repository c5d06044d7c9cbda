"""Keys and values of committed latent frames, in pages.

A page is so many tokens, a frame as many pages as hold its tokens: a picture's size need not be a multiple of a page's.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from streamsynth.engine.kv import fp8


class Pages(Protocol):
    """Pages of all layers, for keys or for values; content is (pages, page_tokens, heads, head_dim)."""

    nbytes: int

    def write(self, layer: int, pages: Tensor, content: Tensor) -> None: ...

    def read(self, layer: int, pages: Tensor) -> Tensor:
        """A copy."""


class PlainPages:
    """In the model's dtype."""

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        self._content = like.new_zeros(shape)
        self.nbytes = self._content.nbytes

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
        self.nbytes = self._content.nbytes + self._scales.nbytes

    def write(self, layer: int, pages: Tensor, content: Tensor) -> None:
        quantised, scales = fp8.quantise_pages(content)
        self._content[layer].index_copy_(0, pages, quantised)
        self._scales[layer].index_copy_(0, pages, scales)

    def read(self, layer: int, pages: Tensor) -> Tensor:
        scales = self._scales[layer].index_select(0, pages)
        content = self._content[layer].index_select(0, pages).view(torch.float8_e4m3fn)
        return content.to(self._dtype) * scales[:, None, None, None].to(self._dtype)


class FrameMemory:
    """Keys and values of all layers. Frames are written and read whole.

    A table names the pages of frames, (rows, frames * pages_per_frame) int64; the frames' tokens are
    (rows, frames * frame_tokens, heads, head_dim) in the model's dtype.
    """

    def __init__(
        self,
        *,
        layers: int,
        pages: int,
        page_tokens: int,
        frame_tokens: int,
        heads: int,
        head_dim: int,
        like: Tensor,
        quantised: bool = False,
    ) -> None:
        self.frame_tokens = frame_tokens
        self.pages_per_frame = -(-frame_tokens // page_tokens)
        self._padding = self.pages_per_frame * page_tokens - frame_tokens
        shape = (layers, pages, page_tokens, heads, head_dim)
        kind = QuantisedPages if quantised else PlainPages
        self._keys: Pages = kind(shape, like)
        self._values: Pages = kind(shape, like)
        self.nbytes = self._keys.nbytes + self._values.nbytes

    def store(self, layer: int, table: Tensor, k: Tensor, v: Tensor) -> None:
        pages = table.flatten()
        self._keys.write(layer, pages, self._in_pages(k))
        self._values.write(layer, pages, self._in_pages(v))

    def gather(self, layer: int, table: Tensor) -> tuple[Tensor, Tensor]:
        """Copies."""
        pages, rows = table.flatten(), len(table)
        return self._in_frames(self._keys.read(layer, pages), rows), self._in_frames(
            self._values.read(layer, pages), rows
        )

    def _in_pages(self, tokens: Tensor) -> Tensor:
        """What is left over of a frame's last page is zeros."""
        frames = tokens.unflatten(1, (-1, self.frame_tokens)).flatten(0, 1)
        if self._padding:
            frames = F.pad(frames, (0, 0, 0, 0, 0, self._padding))
        return frames.unflatten(1, (self.pages_per_frame, -1)).flatten(0, 1)

    def _in_frames(self, pages: Tensor, rows: int) -> Tensor:
        frames = pages.unflatten(0, (-1, self.pages_per_frame)).flatten(1, 2)[:, : self.frame_tokens]
        return frames.unflatten(0, (rows, -1)).flatten(1, 2)
