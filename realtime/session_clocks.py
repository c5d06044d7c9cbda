"""When a session ends by itself: without a first message, quiet for too long, too old, or told to leave. Pure."""

from __future__ import annotations

from enum import Enum, auto

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.limits import Limits


class Due(Enum):
    NOTHING = auto()
    OLD = auto()  # It should drain.
    LEAVE = auto()  # It has drained for long enough.


class SessionClocks:
    """`configured` says whether the first message has come; `busy` whether anything is open, queued or being sent, for
    so long the session is not quiet. `first_message` is the name of what has to come first.
    """

    def __init__(self, limits: Limits, first_message: str, now_s: float) -> None:
        self._limits = limits
        self._first_message = first_message
        self.await_first_message(now_s)
        self._expires_s = now_s + limits.session_s
        self._quiet_since_s = now_s
        self._leave_s: float | None = None

    @property
    def draining(self) -> bool:
        return self._leave_s is not None

    def await_first_message(self, now_s: float) -> None:
        """It has not come yet, or what it asked for could not be: its time begins now."""
        self._first_message_s = now_s + self._limits.first_message_s

    def heard(self, now_s: float) -> None:
        """A message came, or the last of what was to be sent has left."""
        self._quiet_since_s = now_s

    def drain(self, now_s: float) -> None:
        """Leave in `drain_s` at the latest."""
        self._leave_s = now_s + self._limits.drain_s

    def check(self, now_s: float, *, configured: bool, busy: bool) -> Due:
        """Raises NO_FIRST_MESSAGE or IDLE_TIMEOUT, with which the session is to end."""
        if self._leave_s is not None and now_s >= self._leave_s:
            return Due.LEAVE
        if not self.draining and now_s >= self._expires_s:
            return Due.OLD
        if not configured and now_s >= self._first_message_s:
            text = f"no {self._first_message} within {self._limits.first_message_s:g} s"
            raise StreamSynthError(ErrorCode.NO_FIRST_MESSAGE, text)
        if configured and not busy and now_s >= self._quiet_since_s + self._limits.idle_s:
            raise StreamSynthError(ErrorCode.IDLE_TIMEOUT, f"no message for {self._limits.idle_s:g} s")
        return Due.NOTHING

    def next_s(self, *, configured: bool, busy: bool) -> float:
        """When `check` has something to say, if nothing happens before."""
        due = [self._expires_s if self._leave_s is None else self._leave_s]
        if not configured:
            due.append(self._first_message_s)
        elif not busy:
            due.append(self._quiet_since_s + self._limits.idle_s)
        return min(due)
