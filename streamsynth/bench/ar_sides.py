"""The sides of `bench.ar`: one talker's weights behind our step loop, and behind transformers' `generate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from streamsynth.engine.planner import Plan
from streamsynth.engine.runner import Drawing, FrameGang
from streamsynth.engine.sampler import SamplingParams
from streamsynth.models.csm.loop import PAGE_SIZE, Loop
from streamsynth.models.csm.model import ABSENT, CsmTalker


@dataclass(frozen=True, slots=True)
class Generated:
    """What each stream drew, int64 (streams, frames, codebooks), and when: `first_s` after the start the first frame of
    every stream was there, and `rest_s` later the last."""

    frames: Tensor
    first_s: float
    rest_s: float

    @property
    def frame_s(self) -> float:
        """The time of a frame of each stream, after the first."""
        return self.rest_s / (self.frames.shape[1] - 1)


class Side(Protocol):
    def generate(self, prompts: Tensor, frames: int) -> Generated:
        """`prompts`: text tokens, int64 (streams, length). The talker's end-of-audio is a frame like any other."""


class StreamSynthSide:
    """Planner and runner as a worker has them."""

    def __init__(self, talker: CsmTalker, loop: Loop, *, temperature: float, top_k: int) -> None:
        self._codebooks = talker.codebooks
        self._loop = loop
        self._sampling = SamplingParams(temperature=temperature, top_k=top_k)
        self.steps = 0

    def generate(self, prompts: Tensor, frames: int) -> Generated:
        gangs = [self._gang(prompt, number) for number, prompt in enumerate(prompts)]
        rows = {row: gang for gang in gangs for row in gang.rows}
        drawn: dict[FrameGang, list[Tensor]] = {gang: [] for gang in gangs}
        self.steps = 0
        began = time.perf_counter()
        first_s = None
        while waiting := [gang for gang in gangs if len(drawn[gang]) < frames]:
            plan = self._loop.planner.plan([gang for gang in waiting if gang.launched < frames])
            for made in self._loop.runner.step(plan, rows):
                drawn[made.gang].append(made.frame)
            for gang in plan.ready:
                self._loop.planner.publish(gang)
            self.steps += bool(plan.spans)
            if first_s is None and all(drawn.values()):
                first_s = time.perf_counter() - began
        assert first_s is not None
        rest_s = time.perf_counter() - began - first_s
        for gang in gangs:
            self._loop.planner.release(gang)
        return Generated(torch.stack([torch.stack(drawn[gang]) for gang in gangs]), first_s, rest_s)

    def cancel(self, prompt: Tensor, steps: int) -> float:
        """Give up a stream after so many steps; returns the seconds from then until the device has nothing to do."""
        gang = self._gang(prompt, 0)
        rows = dict.fromkeys(gang.rows, gang)
        for _ in range(steps):
            self._loop.runner.step(self._loop.planner.plan([gang]), rows)
        began = time.perf_counter()
        self._loop.planner.release(gang)
        if self._loop.memory.keys.is_cuda:
            torch.cuda.synchronize()
        idle_s = time.perf_counter() - began
        while self._loop.runner.busy:
            self._loop.runner.step(Plan([], []), {})
        return idle_s

    def _gang(self, prompt: Tensor, number: int) -> FrameGang:
        sampling = replace(self._sampling, seed=number)
        text = torch.cat((prompt[:, None], torch.full((len(prompt), self._codebooks), ABSENT)), 1)
        return FrameGang.of([text], Drawing(first=sampling, rest=sampling), PAGE_SIZE)


class TransformersSide:
    """`CsmForConditionalGeneration.generate`; `compiled` with a static cache, as its documentation advises on CUDA."""

    def __init__(
        self, folder: Path, *, dtype: torch.dtype, device: str, temperature: float, top_k: int, compiled: bool = False
    ) -> None:
        from transformers import CsmForConditionalGeneration
        from transformers.utils import logging

        # A folder may hold the talker without its codec: that is said as a warning.
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers leaves it so
        load: Any = CsmForConditionalGeneration.from_pretrained
        model = load(folder, dtype=dtype).to(device).eval()
        # Loading leaves one of the two names of these weights at random.
        model.backbone_model.embed_tokens.embed_audio_tokens.weight = model.depth_decoder.model.embed_tokens.weight
        model.codec_model = None
        model.config.codebook_eos_token_id = -1
        self._model = model
        self._device = device
        drawing: dict[str, Any] = {"do_sample": temperature > 0}
        if temperature:
            drawing |= {"temperature": temperature, "top_k": top_k}
        if compiled:
            drawing["cache_implementation"] = "static"
        self._options = drawing | {f"depth_decoder_{name}": value for name, value in drawing.items()}

    def generate(self, prompts: Tensor, frames: int) -> Generated:
        watch = _Watch()
        began = time.perf_counter()
        found = self._model.generate(
            prompts.to(self._device),
            attention_mask=torch.ones_like(prompts, device=self._device),
            max_new_tokens=frames,
            streamer=watch,
            output_audio=False,
            **self._options,
        )
        ended = time.perf_counter()
        assert watch.first_at is not None
        return Generated(found[:, -frames:].cpu(), watch.first_at - began, ended - watch.first_at)


class _Watch:
    """A streamer: is given the prompt first, then each frame of all streams."""

    def __init__(self) -> None:
        self.first_at: float | None = None
        self._prompt = True

    def put(self, value: Tensor) -> None:
        if not self._prompt and self.first_at is None:
            self.first_at = time.perf_counter()
        self._prompt = False

    def end(self) -> None: ...


def in_turn(sides: Mapping[str, Callable[[], Generated]], rounds: int) -> dict[str, list[Generated]]:
    """Each side once a round, so that what else the machine does meets all of them."""
    found: dict[str, list[Generated]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            found[name].append(run())
    return found
