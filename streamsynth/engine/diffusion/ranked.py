"""Whole clips on several ranks: rank 0 has the engine, and every rank a copy of the model.

Rank 0 says what is done next, and all ranks do it: each step is a step of every clip that was named, of whichever
replica. What became of it is told to all ranks before any of them goes on, so a clip that fails ends alone, and none
waits for a rank that has nothing to do. (Replicas that share nothing go their own ways: `apart.py`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from streamsynth.engine.diffusion.clip import Clip, ClipModel
from streamsynth.engine.diffusion.commands import (
    NOTHING,
    Advance,
    Begin,
    Close,
    End,
    Report,
    decode_command,
    decode_report,
    encode,
    error_of,
    report_of,
)
from streamsynth.engine.offload.turns import Turns
from streamsynth.engine.parallel.group import Group
from streamsynth.engine.parallel.seat import FollowingSeat, LeadingSeat
from streamsynth.engine.parallel.together import Together
from streamsynth.errors import StreamSynthError
from streamsynth.video import VideoRequest


@dataclass(slots=True)
class Step:
    """One step, as all ranks know it: `reports` by rank; `own` is this rank's clip, if it was to go on."""

    reports: list[Report]
    own: Clip | None


class RankedModel:
    """One rank's copy of the model, and its part of what all ranks do; `together` where it divides a sequence."""

    def __init__(self, model: ClipModel, group: Group, turns: Turns, together: Together | None) -> None:
        self.model = model
        self.group = group
        self._turns = turns
        self._together = together
        self._clips: dict[int, Clip] = {}

    def begin(self, command: Begin) -> None:
        if command.replica == self.group.replica:
            self._clips[command.clip] = self.model.begin(VideoRequest.from_wire(command.request))

    def advance(self, command: Advance) -> Step:
        """Raises StreamSynthError when this rank is out of step with the others: it has to end then."""
        number = next((clip for clip in command.clips if clip in self._clips), None)
        own = None if number is None else self._clips[number]
        if own is not None:
            self.model.advance([own])
            if self._together is not None:
                self._together.settle(own.error)
        report = NOTHING if own is None else report_of(own)
        self._turns.rest()
        reports = [decode_report(said) for said in self.group.ranks.exchange(encode(report))]
        if number is not None and own is not None:
            if outcome(reports, self.group, self.group.replica).error is not None:
                self.close_clip(Close(number))
            elif self.group.replica:
                self._send(own)
        return Step(reports, own)

    def close_clip(self, command: Close) -> None:
        clip = self._clips.pop(command.clip, None)
        if clip is not None:
            clip.close()

    def counters(self) -> dict[str, int]:
        """Passes, of models whose blocks are shared: those of this rank's clips, and of others' that it took part in
        without."""
        turns = self._turns
        passes = {"idle_passes": turns.idle, "passes": turns.passes} if turns.models else {}
        return {"ranks": self.group.ranks.size, "sharded_models": turns.models, **passes, **self.model.counters()}

    def close(self) -> None:
        self.model.close()

    def _send(self, own: Clip) -> None:
        """What another replica than rank 0's has made goes to rank 0, from the first of its ranks."""
        pictures, own.pictures = own.pictures, None
        if pictures is not None and self.group.ranks.rank == self.group.layout.ranks_of(self.group.replica)[0]:
            self.group.ranks.send(pictures, 0)


def outcome(reports: Sequence[Report], group: Group, replica: int) -> Report:
    """Of a replica: its first rank's, unless one of the others failed."""
    said = [reports[rank] for rank in group.layout.ranks_of(replica)]
    return next((report for report in said if report.error is not None), said[0])


class RankedFollower:
    """Every rank but the first."""

    def __init__(self, seat: FollowingSeat, model: RankedModel) -> None:
        self._seat = seat
        self._model = model

    def follow(self) -> None:
        while True:
            command = decode_command(self._seat.hear())
            match command:
                case Begin():
                    self._model.begin(command)
                case Advance():
                    self._model.advance(command)
                case Close():
                    self._model.close_clip(command)
                case End():
                    self._model.close()
                    return


class RankedClip:
    """A clip of one replica, as rank 0 knows it."""

    def __init__(self, model: LeadingModel, number: int, replica: int) -> None:
        self.ready = True
        self.step = 0
        self.steps = 0
        self.pictures: Tensor | None = None
        self.error: Exception | None = None
        self.number = number
        self.replica = replica
        self._model = model

    def close(self) -> None:
        self._model.close_clip(self)


class LeadingModel:
    """The copies of all replicas as one model, which makes a clip in each at once."""

    def __init__(self, seat: LeadingSeat, own: RankedModel) -> None:
        self.traits = own.model.traits
        self.device = own.model.device
        self.capacity = own.group.layout.data_parallel
        self.fewest_steps = own.model.fewest_steps
        self._seat = seat
        self._own = own
        self._busy: dict[int, RankedClip] = {}
        self._numbers = 0

    @property
    def room(self) -> int:
        return self.capacity - len(self._busy)

    def check(self, request: VideoRequest) -> None:
        self._own.model.check(request)

    def begin(self, request: VideoRequest) -> RankedClip:
        replica = min(set(range(self.capacity)) - self._busy.keys())
        clip = RankedClip(self, self._numbers, replica)
        self._numbers += 1
        self._busy[replica] = clip
        command = Begin(clip.number, replica, request.to_wire())
        self._seat.tell(encode(command))
        self._own.begin(command)
        return clip

    def advance(self, clips: Sequence[Clip]) -> None:
        """Ends this process when the ranks are out of step."""
        named = [clip for clip in clips if isinstance(clip, RankedClip)]
        command = Advance(tuple(clip.number for clip in named))
        self._seat.tell(encode(command))
        try:
            step = self._own.advance(command)
            for clip in named:
                self._settle(clip, step)
        except StreamSynthError as error:
            self._seat.lose(error.message)

    def close_clip(self, clip: RankedClip) -> None:
        """Its replica is free."""
        if self._busy.get(clip.replica) is clip:
            del self._busy[clip.replica]
            command = Close(clip.number)
            self._seat.tell(encode(command))
            self._own.close_clip(command)

    def counters(self) -> dict[str, int]:
        return self._own.counters()

    def close(self) -> None:
        self._seat.leave(encode(End()))
        self._own.close()

    def _settle(self, clip: RankedClip, step: Step) -> None:
        said = outcome(step.reports, self._own.group, clip.replica)
        clip.step, clip.steps = said.step, said.steps
        if said.error is not None:
            clip.error = error_of(said)
        elif said.pictures is not None:
            clip.pictures = self._pictures(clip, said.pictures, step)
        if said.error is not None or said.pictures is not None:
            self.close_clip(clip)

    def _pictures(self, clip: RankedClip, shape: tuple[int, ...], step: Step) -> Tensor:
        if clip.replica == 0:
            assert step.own is not None and step.own.pictures is not None
            made, step.own.pictures = step.own.pictures, None
            return made
        group = self._own.group
        empty = torch.empty(shape, dtype=torch.uint8, device=self.device)
        return group.ranks.receive(empty, group.layout.ranks_of(clip.replica)[0])
