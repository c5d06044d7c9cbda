"""Speech sessions as a program sees them: the same over a socket and over the models of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.graph.edge import EndOfEdge
from streamsynth.graph.flow import Status
from streamsynth.speech import AudioChunk, Granularity

if TYPE_CHECKING:
    from streamsynth.flows import Outcome

MAX_UTTERANCES = 64
"""How many utterances of a session may be unfinished, or finished and looked at by nobody."""

DEFAULTS: Mapping[str, object] = {"split_granularity": Granularity.SENTENCE.value}
"""Sentence by sentence, so that speech begins before the utterance's text has ended."""

_OF_THE_WIRE = frozenset({"type", "response_format", "sample_rate", "stream_audio", "ack", "close_on_done"})
"""Settings that say how sound travels: here it comes as samples, at the model's own rate."""


class Source(Protocol):
    """Where one utterance comes from. Only `receive` waits."""

    @property
    def outcome(self) -> asyncio.Future[Outcome]:
        """Resolves once, when nothing more will be made; what was made may still be unread."""

    def send_text(self, text: str) -> None:
        """Append; raises TEXT_TOO_LONG with nothing appended."""

    def finish_text(self) -> None: ...

    async def receive(self) -> AudioChunk:
        """The next chunk; raises EndOfEdge after the final one. Cancelled, it took nothing."""

    def cancel(self) -> None:
        """Stop at once and drop what is unread. Idempotent."""


class Connection(Protocol):
    """A session's way to a pipeline. Its utterances are answered in the order in which they began."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """Hints of the settings in force that the model cannot use."""

    async def open(self, fields: Mapping[str, object]) -> None:
        """Connect with these settings; raises StreamSynthError and leaves nothing open."""

    def configure(self, fields: Mapping[str, object]) -> asyncio.Future[None]:
        """Replace the settings; the future ends with the answer, which comes whether or not somebody waits for it."""

    def begin(self) -> Source:
        """The next utterance, at its first text or its flush. Raises what ended the connection."""

    async def drain(self) -> None:
        """Wait until what was sent is on its way."""

    async def close(self) -> None:
        """Cancel what is unfinished and let go of everything. Idempotent; finishes also if it is cancelled."""


class Utterance:
    """One utterance of a session. Iterate over it, once, for its chunks; leaving the loop early cancels it.

    The iteration raises the error that ended the utterance. It ends without one, and without a final chunk, if the
    session's own `cancel` named the utterance: `status` tells the two ends apart.
    """

    def __init__(self, index: int, source: Source) -> None:
        self.index = index
        self._source = source
        self._handed_out = False
        self._claimed = False
        self._read = False
        self._cancelled = False

    @property
    def status(self) -> Status | None:
        """How the making of it ended; None before that. It may be "completed" before its last chunks are read."""
        outcome = self._outcome
        return Status.CANCELLED if self._cancelled else outcome.status if outcome else None

    @property
    def finish_reason(self) -> str | None:
        """Of a completed utterance: "stop" if the text was spoken to its end, "length" if a limit cut it."""
        outcome = self._outcome
        return outcome.finish_reason if outcome and not self._cancelled else None

    @property
    def error(self) -> StreamSynthError | None:
        """Of a failed utterance."""
        outcome = self._outcome
        return outcome.error if outcome else None

    def __aiter__(self) -> Chunks:
        if self._claimed:
            raise RuntimeError(f"utterance {self.index} can be iterated over once")
        self._claimed = self._handed_out = True
        return Chunks(self)

    @property
    def _outcome(self) -> Outcome | None:
        return self._source.outcome.result() if self._source.outcome.done() else None

    def __del__(self) -> None:
        # Ended, handed out and dropped unread: what is unread must not hold up the others.
        if not self._claimed:
            call_soon(self._source.outcome.get_loop(), self._source.cancel)

    def _cancel(self) -> None:
        if not self._read and self.error is None:
            self._cancelled = True
        self._source.cancel()


class Chunks(AsyncIterator[AudioChunk]):
    """The chunks of one utterance. A cancelled `__anext__` loses nothing: the next one goes on.

    Dropped before the end, it cancels the utterance; `break` in `async for` drops it at once.
    """

    def __init__(self, utterance: Utterance) -> None:
        self._utterance = utterance
        self._loop = asyncio.get_running_loop()
        self._ended = False

    async def __anext__(self) -> AudioChunk:
        utterance = self._utterance
        self._ended = self._ended or utterance._cancelled
        if not self._ended:
            try:
                chunk = await utterance._source.receive()
                self._ended = utterance._read = chunk.final
                return chunk
            except EndOfEdge:
                self._ended = utterance._read = True
            except StreamSynthError:
                self._ended = True
                if not utterance._cancelled:
                    raise
        # So that `status` is there once the loop has ended.
        await asyncio.shield(utterance._source.outcome)
        raise StopAsyncIteration

    def __del__(self) -> None:
        if not self._ended:
            call_soon(self._loop, self._utterance._cancel)


def call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """From a finalizer, which runs in whatever thread collects the garbage, perhaps after the loop's end."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)


class SpeechSession:
    """A conversation with one voice: text goes in as it comes, utterances come out in the order of their texts.

    An async context manager; leaving it cancels what is unfinished. `send` and `flush` take their effect before they
    first wait, so cancelling them loses and repeats nothing. Iterating over the session gives the utterances nobody has
    begun to read, as they begin, and ends after `finish`. Utterances must be read in order: one that is not read holds
    up those behind it. Use from one event loop.
    """

    def __init__(
        self,
        connection: Connection,
        settings: Mapping[str, object],
        on_closed: Callable[[SpeechSession], None] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._fields = _complete(_wire_names(settings))
        self._on_closed = on_closed
        self._line: list[Utterance] = []
        self._open: Utterance | None = None
        self._next_index = 0
        self._entered = False
        self._finished = False
        self._changed = asyncio.Event()
        self._answer: asyncio.Future[None]

    @property
    def ignored(self) -> tuple[str, ...]:
        """The hints among the settings that the model cannot use."""
        return self._connection.ignored

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """What entering does: raises StreamSynthError for settings or a server that will not do."""
        if self._entered:
            raise RuntimeError("a speech session can be entered once")
        self._entered = True
        self._answer = asyncio.get_running_loop().create_future()
        self._answer.set_result(None)
        try:
            _check_settings(self._fields)
            await self._connection.open(self._fields)
        except BaseException:
            self._on_closed(self)
            raise

    async def close(self) -> None:
        """What leaving does. Idempotent."""
        self._finished = True
        self._changed.set()
        try:
            await self._connection.close()
        finally:
            self._on_closed(self)

    async def configure(self, **changes: Any) -> None:
        """Change the named settings for the next utterance; None takes the default again.

        Raises StreamSynthError for a refused value, and CONFIG_WHILE_OPEN between an utterance's first text and its
        flush: nothing is changed then. Cancelled, the change may still happen.
        """
        self._check_usable()
        while not self._answer.done():
            await asyncio.wait([self._answer])
        fields = _complete({**self._fields, **_wire_names(changes)})
        _check_settings(fields)
        self._answer = self._connection.configure(fields)
        self._answer.add_done_callback(lambda answer: self._configured(answer, fields))
        await asyncio.shield(self._answer)

    async def send(self, text: str) -> None:
        """Append text, byte-exact, to the utterance that is open, or open one; empty text changes nothing.

        Raises TEXT_TOO_LONG (nothing appended), OVERLOADED when too many utterances are unread, or what ended the
        connection. What fails later fails the utterance.
        """
        self._check_usable()
        _check_text(text)
        if text:
            if self._open is None:
                self._open = self._begin()
            self._open._source.send_text(text)
        await self._connection.drain()

    async def flush(self) -> Utterance:
        """End the open utterance: what is sent after this belongs to the next. Without text it is an empty one."""
        self._check_usable()
        utterance, self._open = self._open or self._begin(), None
        utterance._source.finish_text()
        await self._connection.drain()
        return utterance

    async def cancel(self, utterance: Utterance | None = None) -> None:
        """Stop this utterance, or all that are unfinished and the open text; returns when nothing more of it comes.

        Chunks that were not read are dropped at once. Does nothing to an utterance that has ended.
        """
        targets = list(self._line) if utterance is None else [utterance]
        for target in targets:
            if target is self._open:
                self._open = None
            target._cancel()
        self._changed.set()
        for target in targets:
            await asyncio.shield(target._source.outcome)

    async def finish(self) -> None:
        """Flush the open utterance, if there is one; iterating over the session then ends after the last."""
        if self._open is not None:
            await self.flush()
        self._finished = True
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Utterance:
        while True:
            self._changed.clear()
            for utterance in self._line:
                if not utterance._handed_out and not utterance._cancelled:
                    utterance._handed_out = True
                    return utterance
            if self._finished:
                raise StopAsyncIteration
            await self._changed.wait()

    def _begin(self) -> Utterance:
        """Raises before anything has changed."""
        self._line = [utterance for utterance in self._line if not _forgettable(utterance)]
        if len(self._line) >= MAX_UTTERANCES:
            message = f"{MAX_UTTERANCES} utterances of this session are unfinished or unread, the limit"
            raise StreamSynthError(ErrorCode.OVERLOADED, message)
        utterance = Utterance(self._next_index, self._connection.begin())
        self._next_index += 1
        self._line.append(utterance)
        self._changed.set()
        return utterance

    def _configured(self, answer: asyncio.Future[None], fields: dict[str, object]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._fields = fields

    def _check_usable(self) -> None:
        if not self._entered:
            raise RuntimeError("enter the speech session first: async with synth.speech_session() as session")
        if self._finished:
            raise RuntimeError("the speech session is finished")


def _forgettable(utterance: Utterance) -> bool:
    return utterance._source.outcome.done() and (utterance._handed_out or utterance._cancelled)


def _complete(fields: Mapping[str, object]) -> dict[str, object]:
    return {**DEFAULTS, **{name: value for name, value in fields.items() if value is not None}}


def _wire_names(settings: Mapping[str, object]) -> dict[str, object]:
    names = {"granularity": "split_granularity"}
    return {names.get(name, name): value for name, value in settings.items()}


def _check_settings(fields: Mapping[str, object]) -> None:
    for name in sorted(_OF_THE_WIRE & fields.keys()):
        message = f"there is no setting {name!r}: sound comes as float32 samples at the model's own rate"
        raise StreamSynthError(ErrorCode.UNKNOWN_FIELD, message, param=name)


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise invalid_value("text", text, "a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid_value("text", text, "free of lone surrogates") from None
