"""A pipeline of diffusers as a model of whole clips: each request is a call of its own, advanced step by step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from streamsynth.engine.diffusion.clip import Clip
from streamsynth.engine.diffusion.launching import LaunchAhead
from streamsynth.engine.diffusion.skipping.blocks import StepSkipper
from streamsynth.engine.diffusion.skipping.policies import SkipPolicy
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.models.diffusers.abilities import Bounds, CallShape, read_call, read_traits
from streamsynth.models.diffusers.call import arguments, pictures, read_picture
from streamsynth.models.diffusers.denoisers import SharedDenoisers
from streamsynth.models.diffusers.hooking import hook_blocks
from streamsynth.models.diffusers.joining import Call
from streamsynth.models.diffusers.lane import Lane, advance
from streamsynth.models.diffusers.stepping import with_steps
from streamsynth.video import VideoRequest

logger = logging.getLogger(__name__)


class PipelineClip:
    """One request, being made by the pipeline's own call in a lane."""

    def __init__(
        self,
        pipeline: Any,
        call: CallShape,
        request: VideoRequest,
        device: torch.device,
        denoisers: SharedDenoisers | None,
        skipper: StepSkipper | None,
        threads: Executor,
    ) -> None:
        self.request = request
        self.ready = True
        self.step = 0
        self.steps = request.steps or call.default("num_inference_steps") or 1
        self.pictures: Tensor | None = None
        self.error: Exception | None = None
        self.lane: Lane[Tensor] = Lane(lambda: self._make(pipeline, call, request), threads)
        self._launches = LaunchAhead(device)
        self._denoisers = denoisers
        self._skipper = skipper

    def settle(self) -> None:
        """Take what the lane has come to."""
        if self.lane.ended and self.pictures is None and self.error is None:
            self.error = self.lane.error
            self.pictures, self.lane.result = self.lane.result, None

    def close(self) -> None:
        self.lane.abandon()

    def _make(self, pipeline: Any, call: CallShape, request: VideoRequest) -> Tensor:
        stepped = with_steps(pipeline, self._stepped)
        if self._skipper is not None:
            self._skipper.begin(self.steps)
        try:
            with nullcontext() if self._denoisers is None else self._denoisers.within(self.lane):
                # Some decoders make whole groups of frames: what is over is cut.
                return pictures(stepped(**arguments(request, call)))[: request.num_frames]
        except ValueError as error:
            if self.step:
                raise
            # The pipeline's own check of what it was asked for.
            raise StreamSynthError(ErrorCode.INVALID_VALUE, str(error)[:500]) from None

    def _stepped(self, done: int, of: int) -> None:
        self._launches.launched()
        if self._skipper is not None:
            self._skipper.stepped()
            if done == of and self._skipper.ratios:
                logger.warning("mag_ratios: %s", [round(ratio, 5) for ratio in self._skipper.ratios])
        self.step, self.steps = done, of
        self.lane.pause()


class PipelineModel:
    """Up to `capacity` calls of one pipeline at once, each with a scheduler of its own; the models are shared, and with
    them the passes of `denoisers` (None where there is one call at a time)."""

    def __init__(
        self,
        pipeline: Any,
        bounds: Bounds,
        *,
        device: torch.device,
        capacity: int,
        skipping: SkipPolicy | None = None,
    ) -> None:
        self.device = device
        self.capacity = capacity
        self._pipeline = pipeline
        self._call = read_call(pipeline)
        self.fewest_steps = self._call.fewest_steps
        self.traits = read_traits(pipeline, self._call, bounds)
        self.denoisers = SharedDenoisers(pipeline) if capacity > 1 else None
        self._skipper = None if skipping is None else hook_blocks(pipeline, skipping, capacity)
        self._under_way: list[PipelineClip] = []
        self._threads = ThreadPoolExecutor(capacity, thread_name_prefix="pipeline")

    @property
    def room(self) -> int:
        self._under_way = [clip for clip in self._under_way if not clip.lane.ended]
        return self.capacity - len(self._under_way)

    def check(self, request: VideoRequest) -> None:
        if request.negative_prompt is not None and request.guidance is None and not self._guides_by_default():
            raise invalid_value("negative_prompt", request.negative_prompt, "given with guidance above 1")
        if request.picture is not None:
            read_picture(request.picture)
        for name, text in (("prompt", request.prompt), ("negative_prompt", request.negative_prompt)):
            if text is not None:
                self._check_length(name, text)

    def begin(self, request: VideoRequest) -> PipelineClip:
        clip = PipelineClip(
            self._pipeline, self._call, request, self.device, self.denoisers, self._skipper, self._threads
        )
        self._under_way.append(clip)
        return clip

    def advance(self, clips: Sequence[Clip]) -> None:
        mine = [cast(PipelineClip, clip) for clip in clips]
        advance([clip.lane for clip in mine], self._respond)
        for clip in mine:
            clip.settle()
            if isinstance(clip.error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()

    def counters(self) -> dict[str, int]:
        if self._skipper is not None:
            return {"passes": self._skipper.made, "skipped_passes": self._skipper.skipped}
        if self.denoisers is not None:
            return {"passes": self.denoisers.passes, "joined_passes": self.denoisers.joined}
        return {}

    def _respond(self, calls: Sequence[Call]) -> Sequence[Any]:
        assert self.denoisers is not None
        return self.denoisers.respond(calls)

    def close(self) -> None:
        """Return when every call has ended; those under way end at their next step."""
        for clip in self._under_way:
            clip.close()
        self._threads.shutdown()

    def _guides_by_default(self) -> bool:
        guidance = self._call.default(self._call.guidance) if self._call.guidance else None
        return isinstance(guidance, (int, float)) and guidance > 1

    def _check_length(self, name: str, text: str) -> None:
        """Refuse what none of the text encoders would read to its end: the pipeline would cut it and go on."""
        room, tokens = 0, 0
        for part, tokenizer in self._pipeline.components.items():
            if not part.startswith("tokenizer") or tokenizer is None:
                continue
            limit = self._token_limit(tokenizer)
            if limit > room:
                room, tokens = limit, len(tokenizer(text, truncation=False, verbose=False).input_ids)
        if tokens > room:
            raise invalid_value(name, text, f"at most {room} of the model's tokens; it has {tokens}")

    def _token_limit(self, tokenizer: Any) -> int:
        own = int(tokenizer.model_max_length)
        said = self._call.default("max_sequence_length")
        return own if said is None or "CLIP" in type(tokenizer).__name__ else int(said)
