"""A running video's steering wheel: what an engine asks at every chunk boundary. Pure: no tensors, no clock.

An engine holds one `Steering` for each stream, passes it what `interact` brings, and calls `next_chunk` once before
each chunk. It is all of the interaction state there is: a rollout that is saved and restored saves and restores this
object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, Protocol, TypeVar

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.blender import Blender
from streamsynth.interactions.messages import Applied, ChunkReport, Interaction, Kv, Notice, Refused, Superseded
from streamsynth.interactions.slot import PendingInteractions

T = TypeVar("T")

DEFAULT_TRANSITION_CHUNKS = 3


class Handler(Protocol):
    """What a model does with one field of an event. All methods are called from the step loop's thread."""

    def prepare(self, value: Any) -> Any:
        """Make ready what the value needs (encode a prompt). Called at the boundary where the interaction starts, so
        once for a burst that coalesces. Raises StreamSynthError to refuse; the video then goes on as it was."""

    def begin(self, prepared: Any) -> None:
        """Take this as the new target; the source is what is in force."""

    def progress(self, weight: Fraction) -> None:
        """The coming chunk is made `weight` of the way to the target; at 1 it is reached, and no call follows."""


class BlendHandler(Generic[T]):
    """A field whose values blend: `condition` makes what is blended, `blender.value` is what is in force."""

    def __init__(self, blender: Blender[T], condition: Callable[[Any], T]) -> None:
        self.blender = blender
        self._condition = condition

    def prepare(self, value: Any) -> T:
        return self._condition(value)

    def begin(self, prepared: T) -> None:
        self.blender.begin(prepared)

    def progress(self, weight: Fraction) -> None:
        self.blender.progress(weight)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkPlan:
    """How the coming chunk is to be made. `report` goes with each of its emissions (`last` False on all but the last),
    `notices` with the first of them or, before any picture is there, with an emission of no pictures.

    `kv` is what to do with the pages of earlier chunks before this one. `prompt_version` counts the interactions
    that have started: pages made under an older one hold an older conditioning.
    """

    report: ChunkReport
    notices: tuple[Notice, ...]
    kv: Kv
    prompt_version: int


@dataclass(slots=True)
class _Transition:
    """An interaction that has started: `done` of its chunks are behind or at the boundary."""

    interaction: Interaction
    chunks: int
    kv: Kv
    done: int = 0


class Steering:
    """`handlers` are the event fields that the model serves."""

    def __init__(
        self, handlers: Mapping[str, Handler], *, default_transition_chunks: int = DEFAULT_TRANSITION_CHUNKS
    ) -> None:
        self._handlers = handlers
        self._default_chunks = default_transition_chunks
        self._pending = PendingInteractions()
        self._active: _Transition | None = None
        self._chunk = 0
        self._version = 0

    def interact(self, interaction: Interaction) -> tuple[Notice, ...]:
        """Let it wait for its boundary; what it supersedes. Raises StreamSynthError, with nothing changed, if the model
        does not serve one of its fields or too many wait."""
        for field in interaction.event:
            if field not in self._handlers:
                served = ", ".join(self._handlers) or "none"
                message = f"this model has no {field} to steer; it serves: {served}"
                raise StreamSynthError(ErrorCode.INTERACTION_FAILED, message, param=f"event.{field}")
        return self._pending.put(interaction)

    def next_chunk(self, first_frame: int) -> ChunkPlan:
        """The plan of the next chunk, whose first picture is `first_frame`. Call once for each chunk, in order."""
        notices: list[Notice] = []
        started = self._start(first_frame, notices)
        active, completed, kv = self._advance()
        report = ChunkReport(self._chunk, started, active, completed)
        self._chunk += 1
        return ChunkPlan(report=report, notices=tuple(notices), kv=kv, prompt_version=self._version)

    @property
    def chunk(self) -> int:
        """The index of the next chunk: how many have been begun."""
        return self._chunk

    def stop(self) -> tuple[Notice, ...]:
        """No chunk will come any more: what waits and what has not completed is superseded by nothing."""
        active, self._active = self._active, None
        unfinished = (Superseded(active.interaction.event_id, None),) if active else ()
        return (*unfinished, *self._pending.clear(None))

    def _start(self, first_frame: int, notices: list[Notice]) -> tuple[str, ...]:
        """Start what may start at this boundary: the first that the model does not refuse."""
        while (interaction := self._pending.take(settled=self._active is None)) is not None:
            try:
                prepared = {name: self._handlers[name].prepare(value) for name, value in interaction.event.items()}
            except StreamSynthError as error:
                failed = StreamSynthError(ErrorCode.INTERACTION_FAILED, error.message, param=error.param)
                notices.append(Refused(interaction.event_id, failed.to_wire()))
                continue
            if self._active is not None:
                notices.append(Superseded(self._active.interaction.event_id, interaction.event_id))
            for name, value in prepared.items():
                self._handlers[name].begin(value)
            asked = interaction.transition_chunks
            chunks = self._default_chunks if asked is None else asked
            kv = interaction.kv or (Kv.KEEP if chunks else Kv.RECACHE)
            self._active = _Transition(interaction, max(1, chunks), kv)
            self._version += 1
            notices.append(Applied(interaction.event_id, self._chunk, first_frame))
            return (interaction.event_id,)
        return ()

    def _advance(self) -> tuple[tuple[str, ...], tuple[str, ...], Kv]:
        """Active and completed ids of the coming chunk, and what becomes of the pages before it."""
        transition = self._active
        if transition is None:
            return (), (), Kv.KEEP
        transition.done += 1
        weight = Fraction(transition.done, transition.chunks)
        for name in transition.interaction.event:
            self._handlers[name].progress(weight)
        active = (transition.interaction.event_id,)
        if weight < 1:
            return active, (), Kv.KEEP
        self._active = None
        return active, active, transition.kv
