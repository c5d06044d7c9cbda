"""Waves: as many requests at once as there are ranks, in lockstep through the blocks that the ranks rebuild together.

Every rank loads every block of every pass, whatever becomes of its request: one that has none, that has failed or was
cancelled goes through the rest of the wave without computing. So nobody waits for a rank that has nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from streamsynth.engine.offload.executor import SlotExecutor
from streamsynth.engine.offload.ranks import Ranks
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value

Result = TypeVar("Result")


class Lockstep:
    """Where a rank is in its wave, in blocks. Its executor's `enter` and `leave` are called through here."""

    def __init__(self, executor: SlotExecutor, blocks: int) -> None:
        self._executor = executor
        self._blocks = blocks
        self._position = self._end = 0
        self._inside = 0
        self.lost: StreamSynthError | None = None

    def begin(self, passes: int) -> None:
        self._position, self._end = 0, passes * self._blocks

    def enter(self, block: int) -> int | None:
        """As the executor's; blocks that the model leaves out are loaded all the same.

        Raises INTERNAL_ERROR outside of a wave and in a pass too many, WORKER_DIED when a rank is lost.
        """
        if self._inside:
            slot = self._executor.enter(block)
            self._inside += 1
            return slot
        while self._position < self._end and self._position % self._blocks != block:
            self._pass_by()
        if self._position >= self._end:
            what = "outside of a wave" if not self._end else "in more passes than its wave has"
            raise StreamSynthError(ErrorCode.INTERNAL_ERROR, f"a model whose ranks share its blocks ran {what}")
        slot = self._entered(block)
        self._inside = 1
        return slot

    def leave(self, block: int) -> bool:
        self._inside -= 1
        return self._executor.leave(block)

    def finish(self) -> None:
        """Go through what is left of the wave."""
        while self._position < self._end:
            self._pass_by()
        self._end = 0

    def _pass_by(self) -> None:
        block = self._position % self._blocks
        self._entered(block)
        self._executor.leave(block)

    def _entered(self, block: int) -> int | None:
        if self.lost is not None:
            raise self.lost
        try:
            slot = self._executor.enter(block)
        except Exception as error:
            # Out of step with the others, or without one of them: no collective of theirs can be met again.
            self.lost = (
                error if isinstance(error, StreamSynthError) else StreamSynthError(ErrorCode.ENGINE_FAILED, str(error))
            )
            raise
        self._position += 1
        return slot


@dataclass(frozen=True, slots=True)
class WaveOutcome(Generic[Result]):
    """`result` of this rank's own request, or its `error`; `failed` has the ranks whose request failed."""

    result: Result | None
    error: Exception | None
    failed: tuple[int, ...]


class Waves:
    """Runs waves on this rank; every rank calls `run` at the same time."""

    def __init__(self, ranks: Ranks, lockstep: Lockstep) -> None:
        self._ranks = ranks
        self._lockstep = lockstep

    def run(self, work: Callable[[], Result] | None, passes: int | None) -> WaveOutcome[Result]:
        """Do `work`, which runs the model `passes` times or fewer; None: this rank has no request, and says 0 passes or
        what the others say. An error of `work` is this rank's own: it is returned, after every rank is through.

        Raises INVALID_VALUE on every rank, before any block moves, unless all requests say how many passes they need
        and say the same; WORKER_DIED when a rank is lost: the process has to be started anew.
        """
        self._lockstep.begin(self._agreed(work is not None, passes))
        result, error = self._work(work) if work is not None else (None, None)
        if self._lockstep.lost is None:
            self._lockstep.finish()
        if self._lockstep.lost is not None:
            raise self._lockstep.lost
        said = self._ranks.words("" if error is None else f"{type(error).__name__}")
        return WaveOutcome(result, error, tuple(rank for rank, word in enumerate(said) if word))

    def _work(self, work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
        try:
            return work(), None
        except Exception as error:  # noqa: BLE001  # it is returned once the other ranks are through
            return None, error

    def _agreed(self, has_work: bool, passes: int | None) -> int:
        said = self._ranks.words(f"{passes}" if has_work else "")
        wanted = sorted({word for word in said if word})
        if len(wanted) > 1:
            raise invalid_value("passes", ", ".join(wanted), "the same for every request of a wave")
        if wanted and not (wanted[0].isdecimal() and int(wanted[0]) > 0):
            raise invalid_value("passes", wanted[0], "1 or more, and given")
        return int(wanted[0]) if wanted else 0
