"""A call in another thread that stops at each step until it is told to go on.

A pipeline's call is one long function. Here it is a sequence of steps: the step loop lets it go on, and waits. Between
its steps it may ask the step loop for something that is done for several at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from streamsynth.engine.stream import Interrupted

T = TypeVar("T")


class _State(Enum):
    RESTING = auto()
    RUNNING = auto()
    ASKING = auto()
    ENDED = auto()


class Lane(Generic[T]):
    """`body` begins with the first `go_on`, in a thread of `threads` that is its own until it ends. Once `ended`:
    `result`, or the `error` that it raised.

    Threads serve one lane after another: what cuDNN and cuBLAS find out about a shape is kept by thread.
    """

    def __init__(self, body: Callable[[], T], threads: Executor) -> None:
        self.result: T | None = None
        self.error: Exception | None = None
        self._question: Any = None
        self._answer: Any = None
        self._body: Callable[[], T] | None = body
        self._changed = threading.Condition()
        self._state = _State.RESTING
        self._abandoned = False
        self._threads = threads
        self._running: Future[None] | None = None

    @property
    def ended(self) -> bool:
        return self._state is _State.ENDED

    @property
    def question(self) -> Any:
        """What it asks for; None unless it does."""
        return self._question if self._state is _State.ASKING else None

    def answer(self, answer: Any) -> None:
        """To its question; an exception is raised there. Lets it run to its next question, pause or end."""
        with self._changed:
            if self._state is _State.ASKING:
                self._answer, self._question = answer, None
                self._state = _State.RUNNING
                self._changed.notify_all()

    def go_on(self) -> None:
        """Run to the next question, pause or end; does not wait for it. Nothing happens unless it is at a pause."""
        with self._changed:
            if self._state is not _State.RESTING:
                return
            self._state = _State.RUNNING
            if self._running is None:
                self._running = self._threads.submit(self._run)
            self._changed.notify_all()

    def rest(self) -> None:
        """Return when it has come to a question, a pause or its end."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not _State.RUNNING)

    def abandon(self) -> None:
        """End it at its next pause or question, or at once if it is at one. Does not wait; idempotent."""
        with self._changed:
            self._abandoned = True
            if self._running is None:
                self._state = _State.ENDED
                self._body = None
        self.answer(Interrupted())
        self.go_on()

    def pause(self) -> None:
        """Called by the body: wait to be let go on. Raises Interrupted if nobody wants the rest."""
        with self._changed:
            if not self._abandoned:
                self._state = _State.RESTING
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._state is _State.RUNNING)
            if self._abandoned:
                raise Interrupted

    def ask(self, question: Any) -> Any:
        """Called by the body: wait for an answer. Raises the exception that is given for one, and Interrupted if nobody
        wants the rest."""
        with self._changed:
            if self._abandoned:
                raise Interrupted
            self._question = question
            self._state = _State.ASKING
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._state is _State.RUNNING)
            answer, self._answer = self._answer, None
        if isinstance(answer, Exception):
            raise answer
        return answer

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


def advance(lanes: Sequence[Lane[T]], respond: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
    """Let each come to its next pause or end; returns when all have. One runs at a time: they share models that keep
    state while they are called.

    `respond` answers questions, all that are open when no lane runs: one answer each, or an exception for it.
    """
    for lane in lanes:
        lane.go_on()
        lane.rest()
    while True:
        asking = [lane for lane in lanes if lane.question is not None]
        if not asking:
            return
        for lane, answer in zip(asking, respond([lane.question for lane in asking]), strict=True):
            lane.answer(answer)
            lane.rest()
