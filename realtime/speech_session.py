"""The speech socket's protocol as a state machine: no sockets, no tasks, no clock of its own.

Messages and synthesis events go in, with the time; frames to send come out of `take`, and what else is to be done out
of `effects`. An utterance lives from its first text (or its flush) until its `session.done` was taken for sending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime import speech_messages as wire
from streamsynth.realtime.frame_queue import Frame, FrameQueue, audio_frame, text_frame
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.socket_session import SocketSession
from streamsynth.realtime.speech_events import (
    Audio,
    ContainerEnd,
    ContainerStart,
    Effect,
    FinishText,
    Observer,
    Piece,
    PushText,
    StartSynthesis,
    StopSynthesis,
)
from streamsynth.realtime.utterance import Container, Stage, Utterance
from streamsynth.speech import Granularity

if TYPE_CHECKING:
    from streamsynth.realtime.session_config import ConfigRequest, SessionSettings

_RETRY_AFTER_MS = 1000


class SpeechSession(SocketSession[Effect]):
    """One connection. After an `End` effect, or `lost`, every further event is ignored."""

    def __init__(
        self,
        parse_config: Callable[[Mapping[str, Any]], ConfigRequest],
        limits: Limits,
        model_limits: Mapping[str, Mapping[str, float]],
        observer: Observer,
        now_s: float,
    ) -> None:
        super().__init__(limits, "session.config", now_s)
        self._parse_config = parse_config
        self._model_limits = model_limits
        self._observer = observer
        self._queue = FrameQueue()
        self._settings: SessionSettings | None = None
        self._line: dict[int, Utterance] = {}
        self._unanswered: set[int] = set()
        self._open: Utterance | None = None
        self._speaking: Utterance | None = None
        self._next_index = 0
        self._closing: int | None = None

    # What goes out

    def take(self, now_s: float) -> Frame | None:
        """The next frame, which counts as accepted by the transport from here on: hand it over without an await."""
        frame = self._queue.take()
        if frame is not None:
            self._accepted(frame, now_s)
        return frame

    @property
    def queued_media_s(self) -> float:
        return self._queue.media_us / 1e6

    @property
    def unfinished(self) -> int:
        """Utterances whose `session.done` was not taken yet, the open one included."""
        return len(self._line)

    # What comes in from the client

    def receive(self, message: wire.ClientMessage, now_s: float) -> None:
        if self.ended:
            return
        self._clocks.heard(now_s)
        try:
            match message:
                case wire.SessionConfig():
                    self._configure(message)
                case wire.InputText():
                    self._append(message.text, now_s)
                case wire.InputDone():
                    self._flush(now_s)
                case wire.InputCancel():
                    self._cancel_asked(message.utterance_index, now_s)
                case wire.SessionPing():
                    self._send(wire.SessionPong())
                case wire.SessionClose():
                    self._end(1000, "session.close")
        except StreamSynthError as error:
            self.refuse(error)

    def refuse(self, error: StreamSynthError, *, index: int | None = None) -> None:
        """Answer a message that cannot be served. Not fatal, except where the message itself was too large."""
        if self.ended:
            return
        self._observer.refused(error.code)
        if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.BINARY_NOT_ALLOWED):
            self._end_with(error)
        else:
            self._send(wire.Error.of(error, utterance_index=index))

    def _configure(self, message: wire.SessionConfig) -> None:
        asked = self._parse_config(message.fields)
        if self._open is not None and asked.settings != self._open.settings:
            text = f"utterance {self._open.index} is open; a different config is accepted after its input.done"
            raise StreamSynthError(ErrorCode.CONFIG_WHILE_OPEN, text)
        self._settings = asked.settings
        if asked.ack:
            speech = asked.settings.speech
            limits = {**self._limits.published(), **self._model_limits[speech.model]}
            config = asked.settings.effective()
            self._send(wire.SessionConfigured(config=config, ignored=speech.ignored, limits=limits))

    def _append(self, text: str, now_s: float) -> None:
        settings = self._settled()
        if not text:
            return
        utterance = self._open
        held = utterance.characters if utterance else 0
        if held + len(text) > self._limits.text_characters:
            index = utterance.index if utterance else self._next_index
            problem = f"the text has {held + len(text)} characters; the limit is {self._limits.text_characters}"
            self.refuse(StreamSynthError(ErrorCode.TEXT_TOO_LONG, problem, param="text"), index=index)
            return
        if utterance is None:
            utterance = self._open = self._enter(settings)
        utterance.append(text)
        if utterance.stage is Stage.SPEAKING:
            self._effects.append(PushText(utterance.index, utterance.take_text()))
        elif utterance.stage is Stage.OVER:
            utterance.take_text()  # it has failed or come to its limit: nothing can speak this
        else:
            self._advance(now_s)

    def _flush(self, now_s: float) -> None:
        settings = self._settled()
        utterance, self._open = self._open or self._enter(settings), None
        utterance.flushed = True
        if settings.close_on_done and self._closing is None:
            self._closing = utterance.index
        if utterance.stage is Stage.SPEAKING:
            self._effects.append(FinishText(utterance.index))
        elif utterance.stage is Stage.OVER:
            self._done(utterance)
        elif refusal := self._refusal():
            self._fail(utterance, refusal, now_s)
        else:
            self._advance(now_s)

    def _cancel_asked(self, index: int | None, now_s: float) -> None:
        targets = list(self._line.values()) if index is None else [self._line[index]] if index in self._line else []
        for utterance in targets:
            self._cancel(utterance, now_s)
        self._advance(now_s)
        if not targets:
            what = "nothing is unfinished" if index is None else f"utterance {index} is not unfinished"
            self.refuse(StreamSynthError(ErrorCode.CANCEL_NOT_ACTIVE, what), index=index)

    def _settled(self) -> SessionSettings:
        if self._settings is None:
            raise StreamSynthError(ErrorCode.CONFIG_REQUIRED, "the first message must be session.config")
        return self._settings

    def _refusal(self) -> StreamSynthError | None:
        """Why an utterance that was flushed just now cannot stand in line."""
        if self._clocks.draining:
            return StreamSynthError(ErrorCode.SHUTTING_DOWN, self._drain_reason, retry_after_ms=_RETRY_AFTER_MS)
        limit = self._limits.session_utterances
        if sum(each.stage in (Stage.WAITING, Stage.SPEAKING) for each in self._line.values()) > limit:
            message = f"{limit} utterances of this session wait or speak, the limit"
            return StreamSynthError(ErrorCode.OVERLOADED, message, retry_after_ms=_RETRY_AFTER_MS)
        return None

    # What comes in from synthesis; events of an utterance that does not speak (any more) are ignored

    def synthesis_opened(self, index: int, request_id: str) -> None:
        if utterance := self._speaker(index):
            utterance.request_id = request_id

    def synthesis_made(self, index: int, piece: Piece) -> None:
        if utterance := self._speaker(index):
            match piece:
                case ContainerStart():
                    self._start_container(utterance, piece)
                case Audio():
                    self._queue_audio(utterance, piece)
                case ContainerEnd():
                    self._end_container(utterance, error=False)

    def synthesis_completed(self, index: int, finish_reason: str | None, now_s: float) -> None:
        if utterance := self._speaker(index):
            utterance.finish_reason = finish_reason
            self._over(utterance)
            self._advance(now_s)

    def synthesis_failed(self, index: int, error: StreamSynthError, now_s: float) -> None:
        if utterance := self._speaker(index):
            self._fail(utterance, error, now_s)

    def _speaker(self, index: int) -> Utterance | None:
        speaking = self._speaking
        return speaking if speaking is not None and speaking.index == index and not self.ended else None

    def _start_container(self, utterance: Utterance, start: ContainerStart) -> None:
        utterance.container = Container(sample_rate=start.sample_rate)
        message = wire.AudioStart(
            utterance_index=utterance.index,
            sentence_index=utterance.sentences,
            sentence_text=start.text,
            format=start.format,
            sample_rate=start.sample_rate,
            channels=start.channels,
            request_id=utterance.request_id or "",
        )
        frame = text_frame(message, utterance=utterance.index)
        if len(frame.payload) > self._limits.outbound_message_bytes:
            frame = text_frame(msgspec.structs.replace(message, sentence_text=None), utterance=utterance.index)
        utterance.sentences += 1
        self._queue.put(frame)

    def _queue_audio(self, utterance: Utterance, audio: Audio) -> None:
        container = utterance.container
        assert container is not None, "audio outside a container"
        container.total_bytes += len(audio.data)
        container.total_samples += audio.samples
        utterance.total_bytes += len(audio.data)
        utterance.total_samples += audio.samples
        frame = audio_frame(
            audio.data, utterance=utterance.index, samples=audio.samples, sample_rate=container.sample_rate
        )
        self._queue.put(frame)

    def _end_container(self, utterance: Utterance, *, error: bool) -> None:
        container, utterance.container = utterance.container, None
        assert container is not None, "the end of a container that is not open"
        message = wire.AudioDone(
            utterance_index=utterance.index,
            sentence_index=utterance.sentences - 1,
            total_bytes=container.total_bytes,
            total_samples=container.total_samples,
            error=error,
        )
        self._send(message, utterance)

    # How things are said and done

    @property
    def _configured(self) -> bool:
        return self._settings is not None

    def _begin_draining(self) -> None:
        self._leave_if_drained()

    @property
    def _busy(self) -> bool:
        return bool(self._line or self._queue)

    def _enter(self, settings: SessionSettings) -> Utterance:
        utterance = Utterance(self._next_index, settings)
        self._next_index += 1
        self._line[utterance.index] = utterance
        self._unanswered.add(utterance.index)
        return utterance

    def _advance(self, now_s: float) -> None:
        """Start the first utterance that waits, if nothing speaks and it has what it needs; answer empty ones."""
        for utterance in list(self._line.values()):
            if self._speaking is not None or self.ended:
                return
            if utterance.stage is not Stage.WAITING:
                continue
            if utterance.flushed and not utterance.speakable:
                self._done(utterance)
                continue
            early = utterance.settings.granularity is not Granularity.NONE and not self._clocks.draining
            if not utterance.speakable or not (utterance.flushed or early):
                return
            self._start(utterance, now_s)

    def _start(self, utterance: Utterance, now_s: float) -> None:
        self._speaking = utterance
        utterance.stage = Stage.SPEAKING
        speech = utterance.settings.speech
        utterance.meter = self._observer.utterance_started(speech.model, speech.sample_rate, now_s)
        self._effects.append(StartSynthesis(utterance.index, utterance.settings))
        self._effects.append(PushText(utterance.index, utterance.take_text()))
        if utterance.flushed:
            self._effects.append(FinishText(utterance.index))

    def _cancel(self, utterance: Utterance, now_s: float) -> None:
        """No await can come between the purge and the acknowledgement: this is one plain call."""
        if self.ended:  # the answers to the cancels before this one were too many
            return
        index = utterance.index
        self._stop(utterance)
        self._queue.purge(index)
        del self._line[index]
        if utterance is self._open:
            self._open = None
        cancelled = wire.InputCancelled(utterance_index=index, samples_sent=utterance.samples_sent)
        self._queue.put(text_frame(cancelled, since_s=now_s))
        utterance.sentences, utterance.total_samples = utterance.sentences_sent, utterance.samples_sent
        utterance.status, utterance.finish_reason = "cancelled", None
        self._send(utterance.session_done())
        if utterance.meter is not None:
            utterance.meter.ended("cancelled")

    def _fail(self, utterance: Utterance, error: StreamSynthError, now_s: float) -> None:
        self._observer.refused(error.code)
        message = wire.Error.of(
            error,
            utterance_index=utterance.index,
            request_id=utterance.request_id,
            partial_audio=utterance.total_bytes > 0,
        )
        self._send(message, utterance)
        if utterance.container is not None:
            self._end_container(utterance, error=True)
        utterance.status = "failed"
        self._over(utterance)
        self._advance(now_s)

    def _over(self, utterance: Utterance) -> None:
        """Nothing more is made of it: answer its flush, now or when it comes."""
        if utterance is self._speaking:
            self._speaking = None
        utterance.stage = Stage.OVER
        if utterance.flushed:
            self._done(utterance)

    def _done(self, utterance: Utterance) -> None:
        utterance.stage = Stage.SPOKEN
        self._send(utterance.session_done(), utterance)

    def _stop(self, utterance: Utterance) -> None:
        if utterance is self._speaking:
            self._speaking = None
            self._effects.append(StopSynthesis(utterance.index))

    def _send(self, message: wire.ServerMessage, utterance: Utterance | None = None) -> None:
        if self.ended:
            return
        self._queue.put(text_frame(message, utterance=utterance.index if utterance else None))
        if self._queue.answer_bytes > self._limits.outbound_message_bytes:
            text = f"{self._queue.answer_bytes} bytes of answers are unread; the limit is "
            text += str(self._limits.outbound_message_bytes)
            self._end_with(StreamSynthError(ErrorCode.STALLED_READER, text))

    def _accepted(self, frame: Frame, now_s: float) -> None:
        match frame.message:
            case None:
                self._audio_accepted(frame, now_s)
            case wire.AudioStart(utterance_index=index):
                self._line[index].sentences_sent += 1
            case wire.InputCancelled():
                self._observer.cancel_acknowledged(now_s - frame.since_s)
            case wire.SessionDone(utterance_index=index, status=status):
                self._answered(index, status)
        if not self._busy:
            self._clocks.heard(now_s)
        self._leave_if_drained()

    def _audio_accepted(self, frame: Frame, now_s: float) -> None:
        assert frame.utterance is not None
        utterance = self._line[frame.utterance]
        utterance.samples_sent += frame.samples
        if utterance.meter is not None:
            utterance.meter.sent(frame.samples, now_s)

    def _answered(self, index: int, status: str) -> None:
        utterance = self._line.pop(index, None)  # a cancelled one has left the line before
        if utterance is not None and utterance.meter is not None:
            utterance.meter.ended(status)
        self._unanswered.discard(index)
        closing = self._closing
        if closing is not None and not any(other <= closing for other in self._unanswered):
            self._end(1000, "close_on_done")

    def _leave_if_drained(self) -> None:
        if self._clocks.draining and not self.ended and not self._queue:
            running = (each.flushed or each.stage is Stage.SPEAKING for each in self._line.values())
            if not any(running):
                self._end(1001, self._drain_reason)

    def _abandon(self) -> None:
        """Everything unfinished ends here: the close frame is its terminal event."""
        if self._speaking is not None:
            self._stop(self._speaking)
        for utterance in self._line.values():
            if utterance.meter is not None:
                utterance.meter.ended("cancelled")
        self._line.clear()
        self._unanswered.clear()
        self._queue.clear()
        self._open = None
