"""What a video model family gives the rollout engine. It knows nothing of pages, sessions or chunks' places in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from streamsynth.engine.rollout.clock import PictureClock
from streamsynth.engine.rollout.window import WindowPolicy
from streamsynth.video import Size

DecoderState: TypeAlias = Any
"""What a streaming decoder remembers of one video: the family's own type."""


class Conditioning(Protocol):
    """What a prompt's embedding is to the model's layers: the family's own type, of one shape for every prompt."""

    @property
    def tensors(self) -> list[Tensor]:
        """All there is of it, always in the same order."""


class Rotation(Protocol):
    """Positions of tokens, as the model applies them."""

    def turn(self, x: Tensor) -> Tensor:
        """Queries or keys, (rows, tokens, heads, head_dim), at their positions."""

    def turn_into(self, x: Tensor, out: Tensor) -> None:
        """The same into `out`, of x's shape."""


class SelfAttention(Protocol):
    """What a forward pass calls: q, k, v (rows, tokens, heads, head_dim) of one layer, not rotated yet."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Any) -> Tensor: ...


class Denoiser(Protocol):
    """The steps from noise to a clean chunk."""

    @property
    def timesteps(self) -> Sequence[float]: ...

    def advance(self, latents: Tensor, flow: Tensor, step: int, noise: Tensor | None) -> Tensor:
        """The latents of step + 1, or after the last step the clean ones. `noise` is of the latents' shape, and given
        where `needs_noise` says so."""

    def needs_noise(self, step: int) -> bool: ...


class VideoModel(Protocol):
    """A causal video model, immutable once loaded. Latents are (rows, channels, frames, height, width)."""

    layers: int
    heads: int
    head_dim: int
    fps: int
    window: WindowPolicy
    clock: PictureClock
    like: Tensor
    """An empty tensor of the dtype and device that latents, keys and values have."""

    @property
    def denoiser(self) -> Denoiser: ...

    def latent_shape(self, width: int, height: int) -> tuple[int, int, int]:
        """Channels, height and width of a latent frame; raises StreamSynthError for a size that it cannot make."""

    def frame_tokens(self, width: int, height: int) -> int: ...

    def in_full(self, prompt: str, before: str | None, seed: int) -> str:
        """What is embedded for a prompt: a model may add what it leaves out, from what was in force `before` (in full),
        or by the seed where it is the video's first. Raises StreamSynthError."""

    def embed(self, prompt: str) -> Tensor:
        """(1, tokens, dim): of one shape for every prompt, so that prompts blend. Raises StreamSynthError."""

    def condition(self, embedding: Tensor) -> Conditioning:
        """In memory of its own."""

    def stack(self, conditionings: Sequence[Any]) -> Conditioning:
        """Rows of conditionings beside each other."""

    def rotary(self, positions: Tensor, latent_height: int, latent_width: int) -> Rotation:
        """Of whole frames at positions (1, frames)."""

    def flow(
        self,
        latents: Tensor,
        timesteps: Tensor,
        conditioning: Any,
        rotary: Any,
        attention: SelfAttention,
    ) -> Tensor:
        """Noise less clean latents, for time steps (rows, 1) of 0 (clean) to 1000."""

    def capture_decoder(self, sizes: Sequence[Size], *, max_rows: int) -> None:
        """Capture all that `decode` will run for these sizes and up to so many rows; called once, before any video."""

    def open_decoder(self) -> DecoderState: ...

    def decode(self, latents: Tensor, states: Sequence[DecoderState]) -> Sequence[Tensor]:
        """The next pictures of each row, uint8 (pictures, height, width, 3); a first chunk may have fewer. Moves
        each state on."""
