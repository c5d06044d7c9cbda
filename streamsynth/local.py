"""A session's way to the models of this process, with the server's rules and error codes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

import numpy as np

from streamsynth.codecs import AudioFormat
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import Outcome, SpeechFlow
from streamsynth.graph.edge import EndOfEdge
from streamsynth.graph.flow import Status
from streamsynth.realtime.fields import SpeechSettings, parse_speech_fields
from streamsynth.realtime.utterance import is_speakable
from streamsynth.runtime import Runtime
from streamsynth.speech import MAX_TEXT_CHARACTERS, AudioChunk

_SESSION_FIELDS = frozenset({"split_granularity"})


class LocalConnection:
    """One utterance is made at a time, as on a socket; the ones behind it keep their text until it is their turn."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._settings: SpeechSettings | None = None
        self._line: deque[LocalUtterance] = deque()
        self._closed = False

    @property
    def ignored(self) -> tuple[str, ...]:
        return self._settings.ignored if self._settings else ()

    async def open(self, fields: Mapping[str, object]) -> None:
        self._settings = self._parse(fields)

    def configure(self, fields: Mapping[str, object]) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            settings = self._parse(fields)
            if self._line and not self._line[-1].finished and self._line[-1].settings != settings:
                message = "an utterance is open; different settings are accepted after its flush"
                raise StreamSynthError(ErrorCode.CONFIG_WHILE_OPEN, message)
        except StreamSynthError as error:
            answer.set_exception(error)
        else:
            self._settings = settings
            answer.set_result(None)
        return answer

    def begin(self) -> LocalUtterance:
        if self._settings is None or self._closed:
            raise StreamSynthError(ErrorCode.CANCELLED, "the speech session is closed")
        utterance = LocalUtterance(self, self._runtime, self._settings)
        self._line.append(utterance)
        return utterance

    async def drain(self) -> None:
        """Text goes to the worker at once, bounded by the utterance's limit; this only lets others run."""
        await asyncio.sleep(0)

    async def close(self) -> None:
        self._closed = True
        line = list(self._line)
        for utterance in line:
            utterance.cancel()
        if line:
            await asyncio.wait([utterance.outcome for utterance in line])

    def advance(self) -> None:
        """Start the next utterance that can speak, if none is being made."""
        while self._line and self._line[0].outcome.done():
            self._line.popleft()
        if self._line:
            self._line[0].start()

    def leave(self, utterance: LocalUtterance) -> None:
        if utterance in self._line:
            self._line.remove(utterance)
        self.advance()

    def _parse(self, fields: Mapping[str, object]) -> SpeechSettings:
        return parse_speech_fields(
            fields, self._runtime.speech_models, default_format=AudioFormat.PCM, allowed=_SESSION_FIELDS
        )


class LocalUtterance:
    """Text until its turn comes, then a flow."""

    def __init__(self, connection: LocalConnection, runtime: Runtime, settings: SpeechSettings) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.settings = settings
        self.finished = False
        self._connection = connection
        self._runtime = runtime
        self._pieces: list[str] = []
        self._characters = 0
        self._speakable = False
        self._flow: SpeechFlow | None = None
        self._began = asyncio.Event()
        self._read = False

    def send_text(self, text: str) -> None:
        if self._characters + len(text) > MAX_TEXT_CHARACTERS:
            message = f"the text has {self._characters + len(text)} characters; the limit is {MAX_TEXT_CHARACTERS}"
            raise StreamSynthError(ErrorCode.TEXT_TOO_LONG, message, param="text")
        self._characters += len(text)
        self._speakable = self._speakable or is_speakable(text)
        if self._flow is not None:
            self._flow.send_text(text)
        else:
            self._pieces.append(text)
            self._connection.advance()

    def finish_text(self) -> None:
        self.finished = True
        if self._flow is not None:
            self._flow.finish_text()
        else:
            self._connection.advance()

    def start(self) -> None:
        """It is this utterance's turn: speak if there is something to say, end if there never will be."""
        if self._flow is not None or self.outcome.done():
            return
        if self._speakable:
            self._open_flow()
        elif self.finished:
            self._end(Outcome(status=Status.COMPLETED, finish_reason="stop", input_tokens=self._characters))

    def _open_flow(self) -> None:
        try:
            self._flow = self._runtime.open_speech(self.settings.model, self.settings.request)
        except StreamSynthError as error:
            self._end(Outcome(status=Status.FAILED, error=error))
            return
        self._flow.outcome.add_done_callback(lambda outcome: self._end(outcome.result()))
        self._flow.send_text("".join(self._pieces))
        self._pieces.clear()
        if self.finished:
            self._flow.finish_text()
        self._began.set()

    def _end(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)
        self._began.set()
        self._connection.leave(self)

    async def receive(self) -> AudioChunk:
        await self._began.wait()
        if self._flow is not None:
            return await self._flow.receive()
        outcome = self.outcome.result()
        if outcome.status is not Status.COMPLETED:
            raise outcome.error or StreamSynthError(ErrorCode.CANCELLED, "the utterance was cancelled")
        if self._read:
            raise EndOfEdge
        self._read = True
        rate = self._runtime.models[self.settings.model].speech.sample_rate
        return AudioChunk(np.zeros(0, np.float32), rate, 0, final=True)

    def cancel(self) -> None:
        if self._flow is not None:
            self._flow.cancel()
        else:
            self._end(Outcome(status=Status.CANCELLED))
