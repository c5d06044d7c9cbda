"""When and how a session ends, whatever is spoken on its socket: one close frame with a code and a reason. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.messages import Error
from streamsynth.realtime.session_clocks import Due, SessionClocks


@dataclass(frozen=True, slots=True)
class End:
    """Close the socket: `error`, if any, then the close frame, and nothing else. The last effect of a session."""

    code: int
    reason: str
    error: Error | None = None


E = TypeVar("E")


class SocketSession(ABC, Generic[E]):
    """After an `End` effect, or `lost`, every further event is ignored. `E` are the session's own effects."""

    def __init__(self, limits: Limits, first_message: str, now_s: float) -> None:
        self._limits = limits
        self._clocks = SessionClocks(limits, first_message, now_s)
        self._drain_reason = ""
        self._effects: list[E | End] = []
        self.ended = False

    @property
    @abstractmethod
    def _configured(self) -> bool:
        """Whether the first message has been accepted."""

    @property
    @abstractmethod
    def _busy(self) -> bool:
        """Whether anything is open, queued or being sent."""

    @abstractmethod
    def _begin_draining(self) -> None:
        """Take no new work; end, with 1001 and `_drain_reason`, once nothing runs."""

    @abstractmethod
    def _abandon(self) -> None:
        """Drop and stop everything unfinished: the close frame is its terminal event."""

    def _error(self, error: StreamSynthError) -> Error:
        return Error.of(error, fatal=True)

    def effects(self) -> list[E | End]:
        """What is to be done since the last call, in order. Look after every event, `take` included."""
        effects, self._effects = self._effects, []
        return effects

    def tick(self, now_s: float) -> None:
        """Let clocks run out. `next_tick_s` says when that can happen."""
        if self.ended:
            return
        try:
            due = self._clocks.check(now_s, configured=self._configured, busy=self._busy)
        except StreamSynthError as error:
            self._end_with(error)
        else:
            if due is Due.LEAVE:
                self._end(1001, self._drain_reason)
            elif due is Due.OLD:
                self.drain(f"the session is {self._limits.session_s:g} s old, the limit", now_s)

    @property
    def next_tick_s(self) -> float | None:
        return None if self.ended else self._clocks.next_s(configured=self._configured, busy=self._busy)

    def drain(self, reason: str, now_s: float) -> None:
        """Take no new work, finish what runs within `drain_s`, then close with 1001."""
        if not self.ended and not self._clocks.draining:
            self._drain_reason = reason
            self._clocks.drain(now_s)
            self._begin_draining()

    def expire(self) -> None:
        """The time for draining is over: close with 1001 now."""
        self._end(1001, self._drain_reason or "the server is shutting down")

    def stalled(self) -> None:
        """The transport took nothing for the whole of `write_stall_s`."""
        text = f"nothing was read for {self._limits.write_stall_s:g} s"
        self._end_with(StreamSynthError(ErrorCode.STALLED_READER, text))

    def peer_died(self) -> None:
        """No bytes came for the whole of `dead_peer_s`, not even an answer to a ping."""
        self._end(1011, f"no bytes came for {self._limits.dead_peer_s:g} s")

    def misframed(self, code: int, reason: str) -> None:
        """The peer broke the rules of WebSocket, for which that protocol has close codes."""
        self._end(code, reason)

    def crashed(self) -> None:
        """The server itself failed in this session."""
        self._end_with(StreamSynthError(ErrorCode.INTERNAL_ERROR, "the server failed; its log says why"))

    def closed_by_peer(self) -> None:
        """The peer sent its close frame: answer it, send nothing else."""
        self._end(1000, "")

    def lost(self) -> None:
        """The connection is gone; there is nobody to tell."""
        if not self.ended:
            self.ended = True
            self._abandon()

    def _end_with(self, error: StreamSynthError) -> None:
        self._end(error.rendering.close_code, f"{error.code}: {error.message}", self._error(error))

    def _end(self, code: int, reason: str, error: Error | None = None) -> None:
        if not self.ended:
            self.ended = True
            self._abandon()
            self._effects.append(End(code, reason, error))
