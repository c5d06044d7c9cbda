"""Codebooks: from codes to vectors by one lookup a code, and from vectors to codes by residual search."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.models.mimi.config import MimiConfig
from streamsynth.models.mimi.layout import quantizers
from streamsynth.models.mimi.weights import Tensors, frozen


def codebooks(tensors: Tensors, name: str, count: int) -> list[Tensor]:
    """Entries (codes, channels) of each: the file holds their sums, and how often each was used."""
    found = []
    for index in range(count):
        book = f"{name}.layers.{index}.codebook"
        found.append(tensors[f"{book}.embed_sum"] / tensors[f"{book}.cluster_usage"].clamp(min=1e-5)[:, None])
    return found


class CodeTables(nn.Module):
    """Every codebook entry already projected, so that a frame's vector is a sum of rows."""

    def __init__(self, config: MimiConfig, tensors: Tensors) -> None:
        super().__init__()
        tables = []
        for name, count in quantizers(config).items():
            entries = torch.cat(codebooks(tensors, name, count))
            if config.projects_codes:
                entries = entries @ tensors[f"{name}.output_proj.weight"][:, :, 0].t()
            tables.append(entries)
        self.vectors = frozen(torch.cat(tables))
        offsets = torch.arange(config.num_quantizers)[:, None] * config.codebook_size
        self.offsets = nn.Buffer(offsets, persistent=False)

    def forward(self, codes: Tensor) -> Tensor:
        """codes (rows, codebooks, frames) to vectors (rows, frames, channels)."""
        return F.embedding(codes + self.offsets[: codes.shape[1]], self.vectors).sum(1)


class ResidualSearch(nn.Module):
    """Nearest entries, each codebook on what the one before left over; in float32, as the reference."""

    def __init__(self, config: MimiConfig, tensors: Tensors, name: str, count: int) -> None:
        super().__init__()
        books = codebooks(tensors, name, count)
        self.entries = nn.ParameterList(frozen(book) for book in books)
        self.directions = nn.ParameterList(frozen(book.t()) for book in books)
        self.offsets = nn.ParameterList(frozen(book.square().sum(1) / -2) for book in books)
        projected = config.projects_codes
        self.projection = frozen(tensors[f"{name}.input_proj.weight"][:, :, 0].t()) if projected else None

    def forward(self, vectors: Tensor) -> list[Tensor]:
        """vectors (frames, channels) to one (frames,) of codes for each codebook."""
        rest = vectors.clone() if self.projection is None else vectors @ self.projection
        codes = []
        for entries, directions, offsets in zip(self.entries, self.directions, self.offsets, strict=True):
            # Least distance is the greatest product, less half of the entry's square.
            codes.append(torch.addmm(offsets, rest, directions).argmax(1))
            rest -= F.embedding(codes[-1], entries)
        return codes


class Quantizer(nn.Module):
    """Semantic and acoustic codebooks, searched apart on the same vectors."""

    def __init__(self, config: MimiConfig, tensors: Tensors) -> None:
        super().__init__()
        self.searches = nn.ModuleList(
            ResidualSearch(config, tensors, name, count) for name, count in quantizers(config).items()
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors (rows, frames, channels) to codes (rows, codebooks, frames)."""
        flat = vectors.flatten(0, 1).float()
        codes = [code for search in self.searches for code in search(flat)]
        return torch.stack(codes).unflatten(1, vectors.shape[:2]).transpose(0, 1)
