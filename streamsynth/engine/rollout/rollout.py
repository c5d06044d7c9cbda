"""All that one running video remembers, in one object that can be set aside and taken up again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from streamsynth.engine.kv.pages import PageId
from streamsynth.engine.rollout.frame_memory import FrameMemory, SavedPages
from streamsynth.engine.rollout.model import Conditioning, DecoderState, VideoModel
from streamsynth.engine.rollout.window import FrameIndex, FrameWindow, KeptFrame, Place, PromptVersion
from streamsynth.interactions.blender import Blender
from streamsynth.interactions.steering import BlendHandler, ChunkPlan, Steering
from streamsynth.video import VideoRequest


def mix(source: Tensor, target: Tensor, weight: Fraction) -> Tensor:
    return torch.lerp(source, target, float(weight))


class PromptHandler:
    """A prompt is read after the one in force, and blends from it."""

    def __init__(self, model: VideoModel, prompt: str, seed: int) -> None:
        self._model, self._seed = model, seed
        self._text = model.in_full(prompt, None, seed)
        self.blender = Blender(model.embed(self._text), mix)

    def prepare(self, prompt: str) -> tuple[str, Tensor]:
        text = self._model.in_full(prompt, self._text, self._seed)
        return text, self._model.embed(text)

    def begin(self, prepared: tuple[str, Tensor]) -> None:
        self._text, embedding = prepared
        self.blender.begin(embedding)

    def progress(self, weight: Fraction) -> None:
        self.blender.progress(weight)


@dataclass(slots=True, eq=False)
class Rollout:
    """One video. `pages` are reserved for the whole window, `pages_per_frame` for each place in it, or not at all yet.

    While it is set aside, `saved` is what its pages held. `latents` are the clean ones of the kept frames, each
    (channels, height, width): what a recache computes keys from.
    """

    model: VideoModel
    request: VideoRequest
    seed: Blender[int]
    prompt: Blender[Tensor]
    steering: Steering
    decoder: DecoderState
    window: FrameWindow
    pages_per_frame: int
    pages: list[PageId] = field(default_factory=list)
    saved: SavedPages | None = None
    latents: dict[FrameIndex, Tensor] = field(default_factory=dict)
    chunk: int = 0
    plan: ChunkPlan | None = None
    _conditioned_on: Tensor | None = None
    _conditioning: Conditioning | None = None

    @classmethod
    def begin(cls, model: VideoModel, request: VideoRequest, seed: int, page_tokens: int) -> Rollout:
        """Raises StreamSynthError for a prompt or a size that the model cannot make."""
        prompts = PromptHandler(model, request.prompt, seed)
        seeds: Blender[int] = Blender(seed, lambda source, _target, _weight: source)
        tokens = model.frame_tokens(request.width, request.height)
        return cls(
            model=model,
            request=request,
            seed=seeds,
            prompt=prompts.blender,
            steering=Steering({"prompt": prompts, "seed": BlendHandler(seeds, int)}),
            decoder=model.open_decoder(),
            window=FrameWindow(model.window),
            pages_per_frame=-(-tokens // page_tokens),
        )

    @property
    def pages_needed(self) -> int:
        return self.model.window.frames * self.pages_per_frame

    @property
    def pictures_left(self) -> int | None:
        limit = self.request.num_frames
        return None if limit is None else limit - self.first_picture

    @property
    def first_picture(self) -> int:
        return self.model.clock.first_picture(self.chunk)

    @property
    def shape(self) -> tuple[int, int, int]:
        """What must agree for videos to step together: the picture, and how many frames are attended to."""
        return self.request.width, self.request.height, len(self.window.kept)

    def conditioning(self) -> Conditioning:
        """Of the prompt in force: computed when it changes."""
        if self._conditioned_on is not self.prompt.value:
            self._conditioning = self.model.condition(self.prompt.value)
            self._conditioned_on = self.prompt.value
        assert self._conditioning is not None
        return self._conditioning

    def noise(self, step: int, shape: Sequence[int]) -> Tensor:
        """What only the seed, the chunk and the step decide, in float32 as drawn, in the latents' dtype."""
        like = self.model.like
        name = f"{self.seed.value} {self.chunk} {step}".encode()
        number = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True)
        generator = torch.Generator(like.device).manual_seed(number)
        return torch.randn(*shape, generator=generator, device=like.device).to(like.dtype)

    def pages_of_first(self, kept: int) -> list[PageId]:
        """Of so many kept frames, the oldest first."""
        return self.pages_of([frame.place for frame in self.window.kept[:kept]])

    def pages_of(self, places: Sequence[Place]) -> list[PageId]:
        count = self.pages_per_frame
        return [page for place in places for page in self.pages[place * count : (place + 1) * count]]

    def set_aside(self, memory: FrameMemory) -> list[PageId]:
        """Keep what the pages hold in the host's memory; returns the pages, which are no longer its own."""
        self.saved = memory.save(self.pages)
        pages, self.pages = self.pages, []
        return pages

    def take_up(self, memory: FrameMemory, pages: list[PageId]) -> None:
        """Begin in these pages, or go on in them as if it had never been set aside."""
        self.pages = pages
        if self.saved is not None:
            memory.load(pages, self.saved)
            self.saved = None

    def keep(self, places: list[Place], latents: Tensor) -> None:
        """The chunk's keys were written at `places`; its clean latents are (channels, frames, height, width)."""
        assert self.plan is not None
        first = self.window.next_index
        for offset, frame in enumerate(latents.unbind(1)):
            self.latents[FrameIndex(first + offset)] = frame
        self._drop(self.window.commit(places, PromptVersion(self.plan.prompt_version)))
        self.plan = None
        self.chunk += 1

    def forget(self) -> None:
        self._drop(self.window.kept)
        self.window.forget()

    def _drop(self, frames: Sequence[KeptFrame]) -> None:
        for frame in frames:
            del self.latents[frame.index]
