"""A call in a thread of its own that stops at each step until it is told to go on.

A pipeline's call is one long function. Here it is a sequence of steps: the step loop lets it go on, and waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Generic, TypeVar

from streamsynth.engine.stream import Interrupted

T = TypeVar("T")


class _State(Enum):
    RESTING = auto()
    RUNNING = auto()
    ENDED = auto()


class Lane(Generic[T]):
    """`body` begins with the first `go_on`. Once `ended`: `result`, or the `error` that it raised."""

    def __init__(self, body: Callable[[], T]) -> None:
        self.result: T | None = None
        self.error: Exception | None = None
        self._body: Callable[[], T] | None = body
        self._changed = threading.Condition()
        self._state = _State.RESTING
        self._abandoned = False
        self._thread: threading.Thread | None = None

    @property
    def ended(self) -> bool:
        return self._state is _State.ENDED

    def go_on(self) -> None:
        """Run to the next pause, or the end; does not wait for it. Nothing happens if it runs or has ended."""
        with self._changed:
            if self._state is not _State.RESTING:
                return
            self._state = _State.RUNNING
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def rest(self) -> None:
        """Return when it has come to a pause or to its end."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not _State.RUNNING)

    def abandon(self) -> None:
        """End it at its next pause, or at once if it is at one. Does not wait; idempotent."""
        with self._changed:
            self._abandoned = True
            if self._thread is None:
                self._state = _State.ENDED
                self._body = None
        self.go_on()

    def join(self) -> None:
        """Return when its thread is gone; only for one that was abandoned or has ended."""
        if self._thread is not None:
            self._thread.join()

    def pause(self) -> None:
        """Called by the body: wait to be let go on. Raises Interrupted if nobody wants the rest."""
        with self._changed:
            if not self._abandoned:
                self._state = _State.RESTING
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._state is _State.RUNNING)
            if self._abandoned:
                raise Interrupted

    def _run(self) -> None:
        body, self._body = self._body, None
        assert body is not None
        result: T | None = None
        failed: Exception | None = None
        try:
            result = body()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            # Its frames hold the tensors of the call.
            failed = error.with_traceback(None)
            failed.__context__ = failed.__cause__ = None
        with self._changed:
            self.result, self.error = result, failed
            self._state = _State.ENDED
            self._changed.notify_all()


def advance(lanes: Sequence[Lane[T]]) -> None:
    """Let each come to its next pause or end, together; returns when all have."""
    for lane in lanes:
        lane.go_on()
    for lane in lanes:
        lane.rest()
