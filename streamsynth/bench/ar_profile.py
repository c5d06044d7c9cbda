"""Where the time of a talker's step goes: by kernel on CUDA, by stage until the first sound."""

from __future__ import annotations

import importlib
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from streamsynth.bench.report import Row
from streamsynth.bench.statistics import quantile
from streamsynth.config.pipeline import Pipeline, Stage
from streamsynth.config.unset import UNSET
from streamsynth.engine.stream import Emission
from streamsynth.graph.chunk import Chunk
from streamsynth.speech import SpeechRequest

_MOST_KERNELS = 12


def kernel_rows(run: Callable[[], int]) -> Iterator[Row]:
    """`run` makes some steps on the device and returns their number. `busy` is the share of their time in which at
    least one kernel ran; where kernels overlap, their own sum is larger."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as profiler:
        steps = run()
        torch.cuda.synchronize()
    spent: dict[str, list[float]] = defaultdict(list)
    spans = []
    for event in profiler.events() or ():
        if event.device_type.name == "CUDA":
            spans.append((event.time_range.start, event.time_range.end))
            spent[_short(event.name)].append(event.time_range.elapsed_us())
    whole_us = max(end for _, end in spans) - min(start for start, _ in spans)
    ranked = sorted(spent.items(), key=lambda item: -sum(item[1]))
    for name, times in ranked[:_MOST_KERNELS]:
        yield _row(name, times, steps, whole_us)
    rest = [duration for _, times in ranked[_MOST_KERNELS:] for duration in times]
    yield _row("the others", rest, steps, whole_us)
    yield _row("all", [duration for times in spent.values() for duration in times], steps, whole_us)
    yield _row("busy", [_covered_us(spans)], steps, whole_us)


def _row(name: str, times_us: list[float], steps: int, whole_us: float) -> Row:
    total = sum(times_us)
    return {
        "kernel": name,
        "launches a step": len(times_us) / steps,
        "us each": total / max(1, len(times_us)),
        "us a step": total / steps,
        "share": total / whole_us,
    }


def _short(name: str) -> str:
    return re.sub(r"[<(].*", "", name.removeprefix("void ")).rpartition("::")[2] or name


def _covered_us(spans: list[tuple[float, float]]) -> float:
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


class StageSplit:
    """The two stages of a speech pipeline in this process, without a server: until the first sound of one request."""

    def __init__(self, pipeline: Pipeline, options: Mapping[str, Mapping[str, Any]]) -> None:
        self._talker, self._codec = (
            _load(stage, {**stage.options, **options.get(stage.name, {})}) for stage in pipeline.stages
        )
        self._stage = pipeline.stages[0]
        self._request = SpeechRequest(voice=pipeline.speech.default_voice, seed=1, max_new_tokens=8)

    def rows(self, text: str, rounds: int) -> Iterator[Row]:
        times = [self._speak(text) for _ in range(rounds)]
        for name in times[0]:
            found = [1000 * each[name] for each in times]
            yield {"stage": name, "p50 ms": quantile(found, 0.5), "p95 ms": quantile(found, 0.95)}

    def _speak(self, text: str) -> dict[str, float]:
        speaking, sounding = (engine.open(self._request.to_wire()) for engine in (self._talker, self._codec))
        marks = [time.perf_counter()]
        speaking.push(text)
        speaking.finish()
        marks.append(time.perf_counter())
        fed = 0
        while not sounding.ready_frames:
            fed = self._feed(speaking, sounding, fed)
        marks.append(time.perf_counter())
        heard = 0
        while not heard:
            made = self._codec.step([sounding]).made
            heard = sum(len(emission.media) for _, emission in made)
            if not heard:
                fed = self._feed(speaking, sounding, fed)
        marks.append(time.perf_counter())
        speaking.close()
        sounding.close()
        names = ("text to prompt", "prompt to first frame", "first frame to first sound")
        return dict(zip(names, [after - before for before, after in pairwise(marks)], strict=True))

    def _feed(self, speaking: Any, sounding: Any, fed: int) -> int:
        for _, emission in self._talker.step([speaking]).made:
            assert isinstance(emission, Emission)
            units = len(emission.media)
            stage = self._stage
            sounding.feed(
                Chunk(emission.media, fed, units, stage.unit, emission.rate, emission.final, emission.marks())
            )
            fed += units
        return fed


def _load(stage: Stage, options: Mapping[str, Any]) -> Any:
    module, _, name = stage.engine.partition(":")
    given = {option: value for option, value in options.items() if value is not UNSET}
    return getattr(importlib.import_module(module), name)(**given)
