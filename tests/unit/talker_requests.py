"""Requests of an autoregressive stage over a small random model, without workers."""

from __future__ import annotations

import numpy as np
from talker_batch import PAGE_SIZE, SMALL, captured, prompt

from streamsynth.engine.attention import PageMemory
from streamsynth.engine.kv.pages import PagePool
from streamsynth.engine.passage import Context, Passage
from streamsynth.engine.planner import Planner
from streamsynth.engine.runner import Drawing, Runner
from streamsynth.engine.sampler import SamplingParams
from streamsynth.engine.stream import Emission
from streamsynth.engine.talker import Talker, TalkerStream
from streamsynth.models.csm.model import CsmTalker

EOS = SMALL.eos_code
ROW_POSITIONS = 256


class Words:
    """A reader for which each word is a passage and a segment; a word is its letters, and ten frames at most."""

    def __init__(self, max_frames: int = 10, guided: bool = False, pause: int = 0) -> None:
        self.max_frames = max_frames
        self.pause = pause
        self.guided = guided
        self.words: list[str] = []
        self.taken = 0
        self.finished = False

    def push(self, text: str) -> None:
        self.words += text.split()

    def finish(self) -> None:
        self.finished = True

    @property
    def exhausted(self) -> bool:
        return self.finished and self.taken == len(self.words)

    def take(self) -> Passage | None:
        if self.taken == len(self.words):
            return None
        word = self.words[self.taken]
        self.taken += 1
        said = prompt([ord(letter) % 50 + 1 for letter in word])
        return Passage(
            prompts=[said, prompt([1, 2])] if self.guided else [said],
            max_frames=self.max_frames,
            segment=self.taken - 1,
            text=word,
            ends_segment=True,
            pause=self.pause,
        )


def engine(
    model: CsmTalker, *, pages: int = 200, rows: int = 8, gang_rows: int = 1, fast: bool = False, context: int = 0
) -> Talker:
    """`context`: the most positions that a passage goes on from."""
    backbone = model.config.backbone
    memory = PageMemory(
        layers=backbone.layers,
        pages=pages,
        page_size=PAGE_SIZE,
        kv_heads=backbone.kv_heads,
        head_dim=backbone.head_dim,
        like=model.projector.weight,
    )
    planner = Planner(PagePool(pages), page_size=PAGE_SIZE, max_rows=rows, max_tokens=32)
    runner = captured(rows=gang_rows)(model, memory) if fast else Runner(model, memory)
    goes_on = Context(positions=context, row_positions=ROW_POSITIONS) if context else None
    return Talker(runner, planner, page_size=PAGE_SIZE, rate=25, codebooks=4, eos=EOS, context=goes_on)


def speak(
    talker: Talker, text: str, *, limit: int = 1000, max_frames: int = 10, guided: bool = False, seed: int = 3
) -> TalkerStream:
    sampling = SamplingParams(top_k=20, seed=seed)
    drawing = Drawing(first=sampling, rest=sampling, scale=1.5 if guided else 1.0)
    stream = talker.add(Words(max_frames, guided), drawing, limit)
    stream.push(text)
    return stream


def run(talker: Talker, *streams: TalkerStream, steps: int = 10_000) -> dict[TalkerStream, list[Emission]]:
    """Step those of the streams that can, until all have ended."""
    made: dict[TalkerStream, list[Emission]] = {stream: [] for stream in streams}
    living = list(streams)
    while living and steps:
        steps -= 1
        ready = [stream for stream in living if stream.wake_at() is not None]
        if not ready:
            break
        for stream, emission in talker.step(ready).made:
            assert isinstance(stream, TalkerStream)
            assert isinstance(emission, Emission), emission
            made[stream].append(emission)
            if emission.final:
                living.remove(stream)
                stream.close()
    return made


def step(talker: Talker, living: list[TalkerStream]) -> list[tuple[TalkerStream, Emission]]:
    """One step; those that end leave `living`."""
    made = []
    for stream, emission in talker.step(living).made:
        assert isinstance(stream, TalkerStream)
        assert isinstance(emission, Emission), emission
        made.append((stream, emission))
        if emission.final:
            living.remove(stream)
            stream.close()
    return made


def frames(emissions: list[Emission]) -> np.ndarray:
    return np.concatenate([emission.media for emission in emissions])
