"""Many videos on one device: those whose shapes agree are made together, the others in turn, neediest first."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamsynth.engine.cost import Rehearsal
from streamsynth.engine.kv.pages import PagePool
from streamsynth.engine.rollout.captured import CapturedForwards
from streamsynth.engine.rollout.chunk import ChunkMaker, Pass, PassKind
from streamsynth.engine.rollout.forwards import Forwards, PlainForwards
from streamsynth.engine.rollout.frame_memory import FrameMemory
from streamsynth.engine.rollout.launching import Launches
from streamsynth.engine.rollout.model import VideoModel
from streamsynth.engine.rollout.rollout import Rollout
from streamsynth.engine.stream import Emission, StepResult, Stream, as_error
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.messages import ChunkReport, Interaction, Kv, Notice
from streamsynth.video import Size, VideoRequest

STALLED_S = 2.0
"""A video that could not go on for this long, because nobody took its pictures, makes room for one that waits."""


@dataclass(frozen=True, slots=True)
class Making:
    """A video in the chunk being made. When the chunk's pictures come, its rollout may be at the next."""

    stream: RolloutStream
    report: ChunkReport
    pictures_left: int | None


class RolloutStream:
    """One video: its rollout, and what was made of it that has not left yet. `expecting`: pictures are on their way."""

    def __init__(self, engine: RolloutEngine, rollout: Rollout) -> None:
        self.rollout = rollout
        self.made: deque[Emission | StreamSynthError] = deque()
        self.expecting = False
        self.asked_at = 0.0
        self.finished = False
        self.closed = False
        self._engine = engine

    def interact(self, interaction: Interaction) -> tuple[Notice, ...]:
        return self.rollout.steering.interact(interaction)

    def finish(self) -> None:
        self.finished = True

    def wake_at(self) -> float | None:
        return 0.0 if self.rollout.pages else self._engine.room_at(self)

    def step(self) -> Emission | None:
        raise AssertionError("videos are stepped together")

    def interrupt(self) -> None:
        """A pass is short, and shared with other videos: it runs to its end."""

    def close(self) -> None:
        self._engine.forget(self)


class RolloutEngine:
    """`pages` is the size of the pool, one of them never used; `max_videos` is how many are made in one pass. Passes
    over pictures of the sizes in `captured` are captured when this is built, and repeated; others are plain.

    `rehearsals` is for whoever has tried it to fill.
    """

    def __init__(
        self,
        model: VideoModel,
        *,
        pages: int,
        page_tokens: int,
        max_videos: int,
        quantised_pages: bool = False,
        captured: Sequence[Size] = (),
    ) -> None:
        self.model = model
        self.rehearsals: Sequence[Rehearsal] = ()
        self._pool = PagePool(pages)
        self._memory = FrameMemory(
            layers=model.layers,
            pages=pages,
            page_tokens=page_tokens,
            heads=model.heads,
            head_dim=model.head_dim,
            like=model.like,
            quantised=quantised_pages,
        )
        self._max_videos = max_videos
        self._streams: set[RolloutStream] = set()
        self._waiting: deque[RolloutStream] = deque()
        self._making: tuple[Making, ...] = ()
        self._passes: Iterator[Pass] = iter(())
        self._launches: Launches[tuple[Making, ...]] = Launches(model.like.device)
        self._chunks = 0
        self._forwards: Forwards = PlainForwards(model, self._memory)
        self._captures = 0
        if captured:
            captures = CapturedForwards(model, self._memory, captured, max_rows=max_videos, plain=self._forwards)
            self._forwards, self._captures = captures, captures.captures

    @torch.inference_mode()
    def open(self, request: Mapping[str, Any]) -> RolloutStream:
        """Raises StreamSynthError for what the model cannot make, and for a window that never fits the pool."""
        asked = VideoRequest.from_wire(dict(request))
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        rollout = Rollout.begin(self.model, asked, seed, self._memory.page_tokens)
        if rollout.pages_needed > self._pool.usable:
            message = (
                f"a window at {asked.width}x{asked.height} takes {rollout.pages_needed} pages,"
                f" more than the {self._pool.usable} that there are"
            )
            raise StreamSynthError(ErrorCode.INVALID_VALUE, message, param="width")
        stream = RolloutStream(self, rollout)
        self._streams.add(stream)
        self._waiting.append(stream)
        return stream

    def room_at(self, stream: RolloutStream) -> float | None:
        """When it and those before it in line may have pages, a `time.monotonic()` value: now, or once those that stall
        have done so for long enough; None while that depends on others' ends."""
        if stream not in self._waiting:
            return 0.0
        place = self._waiting.index(stream)
        needed = sum(each.rollout.pages_needed for each in islice(self._waiting, place + 1))
        room, when = self._pool.available, 0.0
        for other in self._stalling():
            if room >= needed:
                break
            room += len(other.rollout.pages)
            when = other.asked_at + STALLED_S
        return when if room >= needed else None

    @torch.inference_mode()
    def step(self, streams: Sequence[Stream]) -> StepResult:
        now = time.monotonic()
        asked = [stream for stream in streams if isinstance(stream, RolloutStream)]
        for stream in asked:
            stream.asked_at = now
            if not stream.rollout.pages and stream not in self._waiting:
                self._waiting.append(stream)
        admitted = self._admit(now)
        if not self._making:
            self._begin(asked)
        sharers, media_s = self._making, 0.0
        worked = self._advance()
        for landed in self._launches.landed(idle=not worked):
            worked = True
            if landed.pictures is not None:
                sharers = sharers or landed.owner
                for made_of, pictures in zip(landed.owner, landed.pictures, strict=True):
                    media_s += len(pictures) / self.model.fps
                    self._hand_out(made_of, pictures)
        made: list[tuple[Stream, Emission | StreamSynthError]] = []
        for stream in asked:
            while stream.made:
                made.append((stream, stream.made.popleft()))
        # A commit is left to be done, which nobody waits for yet, or pictures come that nobody has asked for again.
        unfinished = bool(self._making) or self._launches.brings_pictures
        # A pass is for all of its chunk's videos, whatever they are told meanwhile.
        shares = [media_s / len(sharers) for _ in sharers]
        return StepResult(made, worked=bool(admitted or worked or made), unfinished=unfinished, shares=shares)

    def forget(self, stream: RolloutStream) -> None:
        """Take its pages back: at once, or after the chunk that it is still a row of. The pool is checked when idle."""
        stream.closed, stream.expecting = True, False
        self._streams.discard(stream)
        if stream in self._waiting:
            self._waiting.remove(stream)
        making = [each.stream for each in self._making]
        if stream not in making:
            self._release(stream)
        elif all(each.closed for each in making):
            self._end_chunk()
        if not self._streams:
            self._pool.check([])

    def counters(self) -> dict[str, int]:
        self._launches.tally()
        return {
            "live": len(self._streams),
            "waiting": len(self._waiting),
            "chunks": self._chunks,
            "passes": self._launches.passes.total(),
            "captures": self._captures,
            "pages": self._pool.usable,
            "free_pages": self._pool.available,
            **{f"{kind}_us": self._launches.spent_us[kind] for kind in PassKind},
        }

    def close(self) -> None:
        self._launches.wait()

    def _admit(self, now: float) -> int:
        """In order of arrival, all or nothing: a large one is not overtaken for ever. Returns how many."""
        admitted = 0
        while self._waiting and self._make_room(self._waiting[0].rollout.pages_needed, now):
            rollout = self._waiting.popleft().rollout
            pages = self._pool.allocate(rollout.pages_needed)
            assert pages is not None
            rollout.take_up(self._memory, pages)
            admitted += 1
        return admitted

    def _make_room(self, pages: int, now: float) -> bool:
        for stream in self._stalling():
            if self._pool.available >= pages:
                break
            if now - stream.asked_at >= STALLED_S:
                self._pool.release(stream.rollout.set_aside(self._memory))
        return self._pool.available >= pages

    def _stalling(self) -> list[RolloutStream]:
        """Those whose pages could be had for others, the longest first that were not asked for more."""
        making = {each.stream for each in self._making}
        idle = [stream for stream in self._streams if stream.rollout.pages and stream not in making]
        return sorted(idle, key=lambda stream: stream.asked_at)

    def _begin(self, streams: Sequence[RolloutStream]) -> None:
        """Choose who is made next: the neediest, and whoever can go with it. For these the chunk's boundary is now."""
        group: list[RolloutStream] = []
        for stream in streams:
            rollout = stream.rollout
            if not rollout.pages or stream.made or stream.expecting or len(group) == self._max_videos:
                continue
            if stream.finished:
                self._end(stream)
            elif not group or rollout.shape == group[0].rollout.shape:
                self._plan(stream)
                if not group or rollout.shape == group[0].rollout.shape:  # A reset changes what is attended to.
                    group.append(stream)
        if group:
            self._making = tuple(map(self._making_of, group))
            self._passes = ChunkMaker(self.model, self._forwards, [each.rollout for each in group]).passes()

    def _making_of(self, stream: RolloutStream) -> Making:
        rollout = stream.rollout
        assert rollout.plan is not None
        return Making(stream, rollout.plan.report, rollout.pictures_left)

    def _plan(self, stream: RolloutStream) -> None:
        rollout = stream.rollout
        if rollout.plan is not None:
            return
        plan = rollout.plan = rollout.steering.next_chunk(rollout.first_picture)
        if plan.kv is Kv.RESET:
            rollout.forget()
        stream.made.append(
            Emission(self._no_pictures(rollout), self.model.fps, report=plan.report, notices=plan.notices)
        )

    def _advance(self) -> bool:
        """One pass of the chunk being made; False if none is. What fails there ends the videos in it, no others."""
        if not self._making:
            return False
        try:
            kind = self._launches.launch(self._making, self._passes)
        except Exception as error:  # noqa: BLE001 - becomes the terminal message of every video in the chunk
            for each in self._making:
                each.stream.expecting = False
                each.stream.made.append(as_error(error))
            self._end_chunk()
            return True
        if kind is None:
            self._chunks += 1
            self._end_chunk()
        elif kind is PassKind.DECODE:
            for each in self._making:
                each.stream.expecting = not each.stream.closed
        elif kind is not PassKind.COMMIT:
            for each in self._making:
                if not each.stream.closed:
                    nothing = self._no_pictures(each.stream.rollout)
                    each.stream.made.append(Emission(nothing, self.model.fps, report=each.report))
        return True

    def _hand_out(self, making: Making, pictures: Tensor) -> None:
        """The pictures of a chunk, cut to the video's length; nobody may expect them any more."""
        stream, left = making.stream, making.pictures_left
        if not stream.expecting:
            return
        stream.expecting = False
        final = left is not None and left <= len(pictures)
        stream.made.append(
            Emission(
                pictures[:left].numpy(),
                self.model.fps,
                report=making.report,
                notices=stream.rollout.steering.stop() if final else (),
                final=final,
                finish_reason="length" if final else "stop",
            )
        )

    def _end(self, stream: RolloutStream) -> None:
        """It was told to finish, and no chunk of it is in the making: a boundary that has been said is dropped."""
        rollout = stream.rollout
        report = ChunkReport(rollout.steering.chunk) if rollout.plan is None else rollout.plan.report
        notices = rollout.steering.stop()
        stream.made.append(
            Emission(self._no_pictures(rollout), self.model.fps, report=report, notices=notices, final=True)
        )

    def _end_chunk(self) -> None:
        making, self._making = self._making, ()
        self._passes = iter(())
        for each in making:
            if each.stream.closed:
                self._release(each.stream)

    def _release(self, stream: RolloutStream) -> None:
        pages, stream.rollout.pages = stream.rollout.pages, []
        self._pool.release(pages)

    def _no_pictures(self, rollout: Rollout) -> npt.NDArray[np.uint8]:
        return np.zeros((0, rollout.request.height, rollout.request.width, 3), np.uint8)
