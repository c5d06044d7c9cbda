"""Which pictures a chunk of latent frames becomes. Pure integers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureClock:
    """`chunk` latent frames a chunk. Each latent frame becomes `stride` pictures, the very first `first`."""

    chunk: int
    stride: int
    first: int

    def pictures_of(self, latent_frames: int) -> int:
        """How many pictures the first `latent_frames` of a rollout become."""
        return self.first + self.stride * (latent_frames - 1) if latent_frames else 0

    def first_picture(self, chunk: int) -> int:
        """The index of the first picture of a chunk."""
        return self.pictures_of(chunk * self.chunk)

    def pictures(self, chunk: int, limit: int | None = None) -> int:
        """How many pictures of a chunk are shown, where no more than `limit` are in all."""
        start, end = self.first_picture(chunk), self.first_picture(chunk + 1)
        return end - start if limit is None else max(0, min(end, limit) - start)

    def chunks(self, pictures: int) -> int:
        """How many chunks it takes to make so many pictures."""
        latent_frames = 1 + max(0, -(-(pictures - self.first) // self.stride))
        return -(-latent_frames // self.chunk)
