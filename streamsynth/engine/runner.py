"""Runs the steps that the planner decides: the plain loop, one forward pass a step, on any device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from streamsynth.engine.attention import Attention, DenseAttention, PagedAttention, PageMemory, RowSpan
from streamsynth.engine.kv.pages import ROOT_KEY, PrefixKey, prefix_key
from streamsynth.engine.logits import MOST_LOGPROBS, LogitControls, LogProbs
from streamsynth.engine.planner import Gang, Plan, Row
from streamsynth.engine.sampler import SamplingBatch, SamplingParams
from streamsynth.errors import invalid_value


class FrameModel(Protocol):
    """A model that turns input positions into hidden states and a hidden state into a frame.

    A frame is `codebooks` integers (one for a text model); `feedback` says which input position it becomes. Shapes as
    in `models.csm.model.CsmTalker`.
    """

    @property
    def width(self) -> int: ...

    @property
    def codebooks(self) -> int: ...

    def embed(self, inputs: Tensor) -> Tensor: ...

    def trunk(self, x: Tensor, attention: Attention) -> Tensor: ...

    def depth_cache(self, rows: int) -> DenseAttention: ...

    def frame(
        self,
        hidden: Tensor,
        first: SamplingBatch,
        rest: SamplingBatch,
        position: Tensor,
        scale: Tensor,
        cache: DenseAttention,
    ) -> Tensor: ...

    def feedback(self, frames: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """How a request draws its frames: `first` for codebook 0, `rest` for the others, and the scale of its guidance.

    `allowed` has, for a codebook, the tokens that may be drawn, bool (vocabulary,). `logprobs` asks for the
    log-probabilities of what is drawn and of so many alternatives.
    """

    first: SamplingParams
    rest: SamplingParams
    scale: float = 1.0
    allowed: Mapping[int, Tensor] = field(default_factory=dict, compare=False)
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise invalid_value("logprobs", self.logprobs, f"from 0 to {MOST_LOGPROBS}")
        for codebook, mask in self.allowed.items():
            if not mask.any():
                raise invalid_value(f"allowed[{codebook}]", "no token", "at least one")

    @property
    def controlled(self) -> bool:
        """It asks for more than sampling."""
        penalised = self.first.repetition_penalty != 1.0 or self.rest.repetition_penalty != 1.0
        return penalised or bool(self.allowed) or self.logprobs is not None


@dataclass(slots=True, eq=False, kw_only=True)
class FrameGang(Gang):
    """A gang with what it says: the prompt of each row, int64 (length, width), and what its frames became, `fed`.

    `first_frame` is where the noise of the first frame stands in the request's. `launched` frames are drawn or being
    drawn; those that have been read are in `fed`, as input positions (width,) that all rows share.
    """

    prompts: Sequence[Tensor]
    drawing: Drawing
    first_frame: int = 0
    launched: int = 0
    fed: list[Tensor] = field(default_factory=list)
    guesses: Sequence[Tensor] = ()
    seen: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, prompts: Sequence[Tensor], drawing: Drawing, page_size: int, first_frame: int = 0) -> FrameGang:
        """A gang that has drawn nothing; pages of equal beginnings will be shared with others."""
        rows = [Row(len(prompt), _prefix_keys(prompt, page_size)) for prompt in prompts]
        return cls(rows=rows, prompts=list(prompts), drawing=drawing, first_frame=first_frame)

    @property
    def drawn(self) -> int:
        """Frames that have been read."""
        return len(self.fed)

    @property
    def noise_position(self) -> int:
        """Of the next frame to be launched."""
        return self.first_frame + self.launched

    @property
    def allowed(self) -> Mapping[int, Tensor]:
        return self.drawing.allowed

    @property
    def logprobs(self) -> int | None:
        return self.drawing.logprobs

    def penalty(self, codebook: int) -> float:
        return (self.drawing.rest if codebook else self.drawing.first).repetition_penalty

    def inputs(self, row: Row, start: int, count: int) -> Tensor:
        """Input positions `start` to `start + count` of one of its rows; all of them must have been read or guessed."""
        prompt = self.prompts[self.rows.index(row)]
        said = prompt[start : start + count]
        first = max(0, start - len(prompt))
        known = [*self.fed, *self.guesses] if self.guesses else self.fed
        fed = known[first : start + count - len(prompt)] if start + count > len(prompt) else []
        if not fed:
            return said
        return torch.cat((said, torch.stack(fed))) if len(said) else torch.stack(fed)

    def guess(self, positions: Sequence[Tensor]) -> None:
        """What the next frames may become: the step after the next plan draws as many of them as turn out right, and
        one more. For gangs of one row that ask for no more than sampling; what is guessed lasts for one plan."""
        assert len(self.rows) == 1 and not self.drawing.controlled
        self.guesses, self.guessed = positions, len(positions)

    def launch(self) -> None:
        """A frame is being drawn: every row grows by a position whose content `feed` will tell."""
        self.launched += 1
        self.extend()

    def feed(self, position: Tensor) -> None:
        """The oldest frame under way has been read: it is this input position (width,) of every row."""
        self.fed.append(position)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A gang's next frame, int64 (codebooks,) on the CPU."""

    gang: FrameGang
    frame: Tensor
    logprobs: LogProbs | None = None


def _prefix_keys(prompt: Tensor, page_size: int) -> list[PrefixKey]:
    """The names of the prompt's full pages: none for one shorter than a page."""
    keys = []
    key = ROOT_KEY
    for end in range(page_size, len(prompt) + 1, page_size):
        key = prefix_key(key, prompt[end - page_size : end].numpy().tobytes())
        keys.append(key)
    return keys


class StepRunner(Protocol):
    """What computes plans: this file's `Runner`, or one that reads frames a step late."""

    @property
    def busy(self) -> bool:
        """Frames are under way: another `step`, also of an empty plan, returns them."""

    def step(self, plan: Plan, gangs: Mapping[Row, FrameGang]) -> list[Drawn]:
        """Compute the plan's positions and draw a frame for each ready gang; `gangs` finds a row's gang.

        Returns the frames that could be read by now, in the order of their launch. A gang may have ended meanwhile.
        """


class Runner:
    """Computes one plan at a time. Rows of different requests only meet in matrix products."""

    busy = False

    def __init__(self, model: FrameModel, memory: PageMemory) -> None:
        self._model = model
        self._memory = memory
        self._device = memory.keys.device
        self._caches: dict[int, DenseAttention] = {}
        self._batches: dict[int, _Batch] = {}

    @torch.inference_mode()
    def step(self, plan: Plan, gangs: Mapping[Row, FrameGang]) -> list[Drawn]:
        """As `StepRunner.step`: the frames of this very plan, in the order of `plan.ready`."""
        if not plan.spans:
            return []
        spans, inputs, last = [], [], {}
        total = 0
        for span in plan.spans:
            inputs.append(gangs[span.row].inputs(span.row, span.start, span.count))
            spans.append(RowSpan(span.start, span.count, span.row.pages))
            total += span.count
            last[span.row] = total - 1
        x = self._model.embed(torch.cat(inputs).to(self._device))
        hidden = self._model.trunk(x, PagedAttention(self._memory, spans, self._device))
        ready = [gangs[gang.rows[0]] for gang in plan.ready]
        frames: dict[FrameGang, list[Drawn]] = {}
        for rows in {len(gang.rows) for gang in ready}:
            frames |= self._frames([gang for gang in ready if len(gang.rows) == rows], rows, hidden, last)
        return [drawn for gang in ready for drawn in frames[gang]]

    def _frames(
        self, gangs: Sequence[FrameGang], rows: int, hidden: Tensor, last: Mapping[Row, int]
    ) -> dict[FrameGang, list[Drawn]]:
        """Those of gangs with as many rows. A gang that guessed may draw one from each of its last positions."""
        # Of each frame: its gang, which of the gang's it is, how many positions lie behind the one it is drawn from.
        tried = [
            (gang, number, behind - number)
            for gang in gangs
            for behind in (gang.rows[0].computed - gang.rows[0].length,)
            for number in range(1 + behind)
        ]
        ends = [last[row] - behind for gang, _, behind in tried for row in gang.rows]
        batch = self._batch([gang for gang, _, _ in tried], rows)
        position = [gang.noise_position + number for gang, number, _ in tried]
        drawn = self._draw(hidden[torch.tensor(ends, device=self._device)], batch, position)
        logprobs = batch.controls.take_logprobs() if batch.controls is not None else {}
        made: dict[FrameGang, list[tuple[Drawn, Tensor]]] = {gang: [] for gang in gangs}
        fed = self._model.feedback(drawn).cpu()
        for place, ((gang, _, _), frame, fed_back) in enumerate(zip(tried, drawn.cpu(), fed, strict=True)):
            made[gang].append((Drawn(gang, frame, logprobs.get(place)), fed_back))
        return {gang: _accept(gang, each) for gang, each in made.items()}

    def _batch(self, gangs: list[FrameGang], rows: int) -> _Batch:
        """Made anew only when others are drawn together than the last time."""
        if rows not in self._batches or self._batches[rows].gangs != gangs:
            self._batches[rows] = _Batch.of(gangs, self._device)
        return self._batches[rows]

    def _draw(self, hidden: Tensor, batch: _Batch, position: Sequence[int]) -> Tensor:
        rows = hidden.shape[0]
        if rows not in self._caches:
            self._caches[rows] = self._model.depth_cache(rows)
        noise = torch.tensor(position, device=self._device)
        return self._model.frame(hidden, batch.first, batch.rest, noise, batch.scale, self._caches[rows])


def _accept(gang: FrameGang, made: Sequence[tuple[Drawn, Tensor]]) -> list[Drawn]:
    """Take the first frame, and each after one that had been guessed; what was computed for other guesses is void."""
    guesses = gang.guesses
    gang.guesses, gang.guessed = (), 0
    taken = []
    for number, (drawn, position) in enumerate(made):
        gang.launch()
        gang.feed(position)
        taken.append(drawn)
        if number + 1 < len(made) and not torch.equal(position, guesses[number]):
            break
    for row in gang.rows:
        row.computed = min(row.computed, row.length - 1)
    return taken


@dataclass(frozen=True, slots=True)
class _Batch:
    """Gangs that draw together, and how; one that guessed is there for each frame that it may draw."""

    gangs: list[FrameGang]
    first: SamplingBatch
    rest: SamplingBatch
    scale: Tensor
    controls: LogitControls | None

    @classmethod
    def of(cls, gangs: list[FrameGang], device: torch.device) -> _Batch:
        controls = LogitControls(gangs) if any(gang.drawing.controlled for gang in gangs) else None
        return cls(
            gangs,
            SamplingBatch.of([gang.drawing.first for gang in gangs], device, controls),
            SamplingBatch.of([gang.drawing.rest for gang in gangs], device, controls),
            torch.tensor([gang.drawing.scale for gang in gangs], device=device),
            controls,
        )
