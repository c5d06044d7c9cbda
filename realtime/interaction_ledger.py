"""Which interactions a video session has accepted: so that a retry is known, and too many never wait. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.messages import Interaction, Mode
from streamsynth.interactions.slot import MAX_APPENDED

REMEMBERED_EVENTS = 1024


@dataclass(slots=True)
class _Entry:
    interaction: Interaction
    accepted_s: float
    waits: bool = True
    delivered: bool = False


class InteractionLedger:
    """Remembers the latest REMEMBERED_EVENTS."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def accept(self, interaction: Interaction, now_s: float) -> bool:
        """Whether it is new; False for a retry. Raises EVENT_ID_CONFLICT or INTERACTION_QUEUE_FULL.

        An interaction waits from here until the worker has said what became of it, so that the worker, which knows
        sooner, never finds its own line full.
        """
        known = self._entries.get(interaction.event_id)
        if known is not None:
            if known.interaction != interaction:
                message = f"event_id {interaction.event_id!r} was used for a different interaction"
                raise StreamSynthError(ErrorCode.EVENT_ID_CONFLICT, message, param="event_id")
            return False
        if interaction.mode is Mode.APPEND:
            appended = (entry for entry in self._entries.values() if entry.interaction.mode is Mode.APPEND)
            if sum(entry.waits for entry in appended) >= MAX_APPENDED:
                message = f"{MAX_APPENDED} appended interactions wait, the limit"
                raise StreamSynthError(ErrorCode.INTERACTION_QUEUE_FULL, message, param="mode")
        self._entries[interaction.event_id] = _Entry(interaction, now_s)
        if len(self._entries) > REMEMBERED_EVENTS:
            self._entries.popitem(last=False)
        return True

    def forget(self, event_id: str) -> None:
        """It was not accepted after all."""
        self._entries.pop(event_id, None)

    def settle(self, event_id: str) -> float | None:
        """It waits no more. When it was accepted, if it is remembered."""
        entry = self._entries.get(event_id)
        if entry is None:
            return None
        entry.waits = False
        return entry.accepted_s

    def deliver(self, event_id: str) -> float | None:
        """Its first picture has left. When it was accepted, the first time that this is asked."""
        entry = self._entries.get(event_id)
        if entry is None or entry.delivered:
            return None
        entry.delivered = True
        return entry.accepted_s
