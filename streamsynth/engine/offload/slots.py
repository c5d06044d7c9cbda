"""What a slot on the device is doing: free, loading, ready, in use, and which of these may follow which."""

from __future__ import annotations

from enum import StrEnum

from streamsynth.errors import ErrorCode, StreamSynthError


class SlotState(StrEnum):
    FREE = "free"
    LOADING = "loading"
    READY = "ready"
    IN_USE = "in use"


class Slot:
    """Room for one block. Whoever calls its methods does what they say: this keeps account, and refuses what cannot
    be."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.state = SlotState.FREE
        self.block: int | None = None

    def load(self, block: int) -> None:
        """Its bytes are on their way."""
        self._move((SlotState.FREE,), SlotState.LOADING)
        self.block = block

    def arrived(self) -> None:
        self._move((SlotState.LOADING,), SlotState.READY)

    def use(self) -> None:
        self._move((SlotState.READY,), SlotState.IN_USE)

    def release(self) -> None:
        """The block has run, or failed."""
        self._move((SlotState.IN_USE,), SlotState.FREE)
        self.block = None

    def discard(self) -> None:
        """The block is not wanted after all, or did not arrive."""
        self._move((SlotState.LOADING, SlotState.READY), SlotState.FREE)
        self.block = None

    def _move(self, allowed: tuple[SlotState, ...], then: SlotState) -> None:
        if self.state not in allowed:
            expected = " or ".join(allowed)
            raise StreamSynthError(
                ErrorCode.INTERNAL_ERROR, f"slot {self.index} is {self.state} and cannot become {then}: not {expected}"
            )
        self.state = then
