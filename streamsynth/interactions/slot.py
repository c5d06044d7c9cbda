"""The interactions that wait: one replacement at most, and a bounded line behind it."""

from __future__ import annotations

from collections import deque

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.messages import Interaction, Mode, Superseded

MAX_APPENDED = 8


class PendingInteractions:
    """First in, first out, except that a replacement clears what waits and then goes first."""

    def __init__(self) -> None:
        self._line: deque[Interaction] = deque()

    def __len__(self) -> int:
        return len(self._line)

    @property
    def interrupts(self) -> bool:
        """Whether the next one does not wait for the transition that runs."""
        return bool(self._line) and self._line[0].mode is Mode.REPLACE

    def put(self, interaction: Interaction) -> tuple[Superseded, ...]:
        """What it takes the place of. Raises INTERACTION_QUEUE_FULL, with nothing changed."""
        if interaction.mode is Mode.REPLACE:
            return self.clear(interaction.event_id, then=interaction)
        appended = sum(each.mode is Mode.APPEND for each in self._line)
        if appended >= MAX_APPENDED:
            message = f"{appended} appended interactions wait, the limit"
            raise StreamSynthError(ErrorCode.INTERACTION_QUEUE_FULL, message, param="mode")
        self._line.append(interaction)
        return ()

    def take(self, *, settled: bool) -> Interaction | None:
        """The one that starts at this boundary, if any; `settled` says that no transition runs."""
        if self._line and (settled or self.interrupts):
            return self._line.popleft()
        return None

    def clear(self, by: str | None, *, then: Interaction | None = None) -> tuple[Superseded, ...]:
        dropped = tuple(Superseded(each.event_id, by) for each in self._line)
        self._line.clear()
        if then is not None:
            self._line.append(then)
        return dropped
