"""The steps from noise to a clean chunk, as the rollout engine takes them."""

from __future__ import annotations

from torch import Tensor

from streamsynth.models.wan.schedule import Schedule, clean_of, with_noise


class FewSteps:
    """As Self-Forcing samples: each step guesses the clean latents, and goes on from there with fresh noise at the next
    level."""

    def __init__(self, schedule: Schedule) -> None:
        self._sigmas = schedule.sigmas
        self.timesteps = schedule.timesteps

    def advance(self, latents: Tensor, flow: Tensor, step: int, noise: Tensor | None) -> Tensor:
        clean = clean_of(latents.float(), flow.float(), self._sigmas[step])
        if noise is not None:
            clean = with_noise(clean, noise.float(), self._sigmas[step + 1])
        return clean.to(latents.dtype)

    def needs_noise(self, step: int) -> bool:
        return step + 1 < len(self.timesteps)


class EulerSteps:
    """Each step goes along the flow to the next level."""

    def __init__(self, schedule: Schedule) -> None:
        self._sigmas = schedule.sigmas
        self.timesteps = schedule.timesteps

    def advance(self, latents: Tensor, flow: Tensor, step: int, noise: Tensor | None) -> Tensor:
        further = latents.float() + (self._sigmas[step + 1] - self._sigmas[step]) * flow.float()
        return further.to(latents.dtype)

    def needs_noise(self, step: int) -> bool:
        return False
