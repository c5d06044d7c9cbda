"""Whole clips on replicas of one rank each that share nothing: each makes its own clip at its own pace.

Rank 0 tells a replica which clip to begin, hears of every step, and fetches the pictures. Its own replica is one like
the others, in a thread of its own, so that no step of it keeps the others' clips waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import torch
from torch import Tensor

from streamsynth.engine.diffusion.clip import Clip, ClipModel
from streamsynth.engine.diffusion.commands import (
    Begin,
    Close,
    Deliver,
    End,
    Report,
    Told,
    decode_command,
    decode_told,
    encode,
    error_of,
    report_of,
)
from streamsynth.engine.offload.ranks import Ranks
from streamsynth.engine.parallel.seat import FollowingSeat, LeadingSeat
from streamsynth.video import VideoRequest

logger = logging.getLogger(__name__)

WAIT_S = 0.05
"""How long a step waits for news at most: a start-up run has nothing else to do."""


class ApartFollower:
    """A replica: makes the clip that it is told to, step after step. `deliver` takes what is made."""

    def __init__(self, seat: FollowingSeat, model: ClipModel, deliver: Callable[[Tensor], None]) -> None:
        self._seat = seat
        self._model = model
        self._deliver = deliver
        self._clip: Clip | None = None
        self._number = -1

    def follow(self) -> None:
        while True:
            making = self._clip is not None and self._clip.pictures is None
            said = self._seat.hear_now() if making else self._seat.hear()
            if said is None:
                self._step()
                continue
            command = decode_command(said)
            match command:
                case Begin():
                    self._number = command.clip
                    self._clip = self._model.begin(VideoRequest.from_wire(command.request))
                case Deliver() if self._clip is not None and self._clip.pictures is not None:
                    pictures, self._clip = self._clip.pictures, None
                    self._deliver(pictures)
                case Close() if self._clip is not None and command.clip == self._number:
                    self._clip.close()
                    self._clip = None
                    self._tell(Told(self._number))
                case End():
                    self._model.close()
                    return

    def _step(self) -> None:
        clip = self._clip
        assert clip is not None
        self._model.advance([clip])
        if clip.pictures is not None and self._model.device.type == "cuda":
            # Rank 0's device has other work than to wait for these.
            torch.cuda.synchronize(self._model.device)
        self._tell(Told(self._number, report_of(clip)))
        if clip.error is not None:
            clip.close()
            self._clip = None

    def _tell(self, told: Told) -> None:
        self._seat.say(encode(told))


class ApartClip:
    """A clip of one replica, as rank 0 knows it."""

    def __init__(self, model: ApartModel, number: int) -> None:
        self.step = 0
        self.steps = 0
        self.pictures: Tensor | None = None
        self.error: Exception | None = None
        self.number = number
        self.reports: deque[Report] = deque()
        self._model = model

    @property
    def ready(self) -> bool:
        return self._model.has_news_of(self)

    def close(self) -> None:
        self._model.close_clip(self)


class ApartModel:
    """All replicas as one model, on rank 0. A replica that has a clip and is silent for the seat's patience ends the
    stage, once it is `watched`."""

    def __init__(self, seat: LeadingSeat, ranks: Ranks, own: ClipModel) -> None:
        self.traits = own.traits
        self.device = own.device
        self.capacity = ranks.size
        self.fewest_steps = own.fewest_steps
        self.watched = False
        self._seat = seat
        self._ranks = ranks
        self._own = own
        self._made: SimpleQueue[Tensor] = SimpleQueue()
        self._fetching = torch.cuda.Stream(own.device) if own.device.type == "cuda" else None
        self._numbers = 0
        # By replica: the clip that it holds, closed or not, and when it was last heard of.
        self._clips: dict[int, ApartClip] = {}
        self._heard_at: dict[int, float] = {}
        self._thread = threading.Thread(
            target=self._be_replica, args=(seat.follow_here(),), name="replica 0", daemon=True
        )
        self._thread.start()

    @property
    def room(self) -> int:
        self._hear()
        return self.capacity - len(self._clips)

    def check(self, request: VideoRequest) -> None:
        self._own.check(request)

    def begin(self, request: VideoRequest) -> ApartClip:
        """Waits for a replica, if all are still at clips that were closed."""
        while not self.room:
            self._seat.wait(WAIT_S)
        replica = min(set(range(self.capacity)) - self._clips.keys())
        clip = ApartClip(self, self._numbers)
        self._numbers += 1
        self._clips[replica] = clip
        self._heard_at[replica] = time.monotonic()
        self._seat.tell(encode(Begin(clip.number, replica, request.to_wire())), replica)
        return clip

    def has_news_of(self, clip: ApartClip) -> bool:
        self._hear()
        return bool(clip.reports)

    def advance(self, clips: Sequence[Clip]) -> None:
        """Take in what has come of each, a step at most; if nothing has, wait for it a little."""
        named = [clip for clip in clips if isinstance(clip, ApartClip)]
        if not any(clip.ready for clip in named):
            self._seat.wait(WAIT_S)
            self._hear()
        for clip in named:
            if clip.reports:
                self._settle(clip, clip.reports.popleft())

    def close_clip(self, clip: ApartClip) -> None:
        """Its replica is free when it says so."""
        replica = self._replica_of(clip)
        if replica is not None:
            self._seat.tell(encode(Close(clip.number)), replica)

    def counters(self) -> dict[str, int]:
        """Those of the model are rank 0's alone."""
        self._hear()
        return {"ranks": self.capacity, "sharded_models": 0, **self._own.counters()}

    def close(self) -> None:
        self._seat.leave(encode(End()))
        self._thread.join()

    def _settle(self, clip: ApartClip, report: Report) -> None:
        clip.step, clip.steps, clip.error = report.step, report.steps, error_of(report)
        replica = self._replica_of(clip)
        if report.pictures is None or replica is None:
            return
        self._seat.tell(encode(Deliver(clip.number)), replica)
        clip.pictures = self._made.get() if replica == 0 else self._fetched(report.pictures, replica)
        del self._clips[replica]

    def _fetched(self, shape: tuple[int, ...], replica: int) -> Tensor:
        """On a stream of its own: behind what this rank's replica has launched, the other would wait for that."""
        with torch.cuda.stream(self._fetching):
            pictures = self._ranks.receive(torch.empty(shape, dtype=torch.uint8, device=self.device), replica)
        if self._fetching is not None:
            self._fetching.synchronize()
        return pictures

    def _hear(self) -> None:
        """What the replicas have said by now. One whose clip has failed or is let go of is free."""
        now = time.monotonic()
        for replica, said in self._seat.heard():
            told = decode_told(said)
            self._heard_at[replica] = now
            clip = self._clips[replica]
            if told.report is not None:
                clip.reports.append(told.report)
            if told.report is None or told.report.error is not None:
                del self._clips[replica]
        for replica in self._clips if self.watched else ():
            if now - self._heard_at[replica] >= self._seat.patience_s:
                self._seat.lose(f"rank {replica} has said nothing of its clip for {self._seat.patience_s:g} s")

    def _replica_of(self, clip: ApartClip) -> int | None:
        return next((replica for replica, each in self._clips.items() if each is clip), None)

    def _be_replica(self, seat: FollowingSeat) -> None:
        try:
            ApartFollower(seat, self._own, self._made.put).follow()
        except Exception as error:
            logger.error("a replica ends", exc_info=error)
            self._seat.lose("rank 0 has failed")
