"""Requests that share one planner and one runner, as in a worker, without text and streams."""

from __future__ import annotations

from collections.abc import Callable

import torch

from streamsynth.engine.attention import PageMemory
from streamsynth.engine.captured import CapturedRunner, StepSizes
from streamsynth.engine.kv.pages import PagePool
from streamsynth.engine.planner import Planner, Row
from streamsynth.engine.runner import Drawing, FrameGang, FrameModel, Runner, StepRunner
from streamsynth.engine.sampler import SamplingParams
from streamsynth.models.csm.config import CsmConfig
from streamsynth.models.csm.model import ABSENT, CsmTalker
from streamsynth.models.llama.config import DecoderConfig

GREEDY = Drawing(first=SamplingParams(temperature=0.0), rest=SamplingParams(temperature=0.0))
PAGE_SIZE = 8

SMALL = CsmConfig(
    backbone=DecoderConfig(hidden_size=64, layers=3, heads=4, kv_heads=2, head_dim=16, intermediate_size=96),
    depth=DecoderConfig(hidden_size=48, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate_size=80),
    codebooks=4,
    vocab_size=40,
    text_vocab_size=60,
    eos_code=0,
    audio_token=58,
    audio_eos_token=59,
)


def prompt(ids: list[int], codebooks: int = 4) -> torch.Tensor:
    text = torch.tensor(ids)[:, None]
    return torch.cat((text, torch.full((len(ids), codebooks), ABSENT)), 1)


def captured(*, rows: int = 1, most: int = 8, positions: int = 256) -> Callable[[FrameModel, PageMemory], StepRunner]:
    """The fast loop at a few small sizes."""
    sizes = StepSizes(gang_rows=(rows,), units=(1, 2, 4), tokens=(4, 16), max_rows=most, max_positions=positions)
    return lambda model, memory: CapturedRunner(model, memory, sizes, plain=Runner(model, memory))


class Batch:
    """`make_runner` decides which loop runs; `pages` is the class of the key-value memory."""

    def __init__(
        self,
        talker: CsmTalker,
        make_runner: Callable[[FrameModel, PageMemory], StepRunner] = Runner,
        *,
        model: FrameModel | None = None,
        pages: type[PageMemory] = PageMemory,
        count: int = 400,
        tokens: int = 16,
        rows: int = 8,
    ) -> None:
        backbone = talker.config.backbone
        self._codebooks = talker.config.codebooks
        self.memory = pages(
            layers=backbone.layers,
            pages=count,
            page_size=PAGE_SIZE,
            kv_heads=backbone.kv_heads,
            head_dim=backbone.head_dim,
            like=talker.projector.weight,
        )
        self.planner = Planner(PagePool(count), page_size=PAGE_SIZE, max_rows=rows, max_tokens=tokens)
        self.runner = make_runner(model or talker, self.memory)
        self.frames: dict[FrameGang, list[torch.Tensor]] = {}

    def join(self, *prompts: list[int], drawing: Drawing = GREEDY) -> FrameGang:
        gang = FrameGang.of([prompt(ids, self._codebooks) for ids in prompts], drawing, page_size=PAGE_SIZE)
        self.frames[gang] = []
        return gang

    def leave(self, gang: FrameGang) -> torch.Tensor:
        self.planner.release(gang)
        self.planner.check()
        return torch.stack(self.frames.pop(gang))

    def step(self) -> None:
        plan = self.planner.plan(self.frames)
        found: dict[Row, FrameGang] = {row: gang for gang in self.frames for row in gang.rows}
        for drawn in self.runner.step(plan, found):
            if drawn.gang in self.frames:
                self.frames[drawn.gang].append(drawn.frame)
        for gang in plan.ready:
            self.planner.publish(gang)

    def draw(self, gang: FrameGang, count: int) -> torch.Tensor:
        """Step until `gang` has drawn so many frames, then let it leave."""
        while len(self.frames[gang]) < count:
            self.step()
        return self.leave(gang)[:count]
