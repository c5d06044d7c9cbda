"""One utterance of a speech session while it is being made: its flow, its encoder, and the task that joins them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from streamsynth.codecs import EncodingLane
from streamsynth.errors import StreamSynthError
from streamsynth.flows import SpeechFlow
from streamsynth.observe.metrics import Metrics
from streamsynth.realtime.admission import Admission
from streamsynth.realtime.auth import Caller
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.maker import Maker
from streamsynth.realtime.session_config import SessionSettings
from streamsynth.realtime.speech_audio import UtteranceAudio
from streamsynth.realtime.speech_session import SpeechSession
from streamsynth.runtime import Runtime


@dataclass(frozen=True, kw_only=True, slots=True)
class Stand:
    """What the utterances of one session share. `room` is set while more audio may be queued; `settle` is to be
    called after everything that the session is told."""

    session: SpeechSession
    runtime: Runtime
    admission: Admission
    caller: Caller
    metrics: Metrics
    lane: EncodingLane
    limits: Limits
    room: asyncio.Event
    settle: Callable[[], None]


class Speaker(Maker[SpeechFlow]):
    """Text given before the flow is open waits for it."""

    def __init__(self, index: int, settings: SessionSettings, stand: Stand) -> None:
        self._index = index
        self._settings = settings
        self._stand = stand
        self._text = ""
        self._text_finished = False
        super().__init__(f"utterance {index}", stand.metrics)

    def push(self, text: str) -> None:
        self._text += text
        self._pass_text()

    def finish_text(self) -> None:
        self._text_finished = True
        self._pass_text()

    def _pass_text(self) -> None:
        flow = self._flow
        if flow is None:
            return
        text, self._text = self._text, ""
        try:
            if text:
                flow.send_text(text)
            if self._text_finished:
                flow.finish_text()
        except StreamSynthError as error:
            flow.cancel()
            self._failed(error)

    async def _make(self) -> None:
        stand = self._stand
        with stand.admission.request(stand.caller) as ticket:
            await ticket.granted()
            flow = self._flow = stand.runtime.open_speech(self._settings.speech.model, self._settings.speech.request)
            stand.session.synthesis_opened(self._index, flow.id)
            self._pass_text()
            source_rate = stand.runtime.models[self._settings.speech.model].speech.sample_rate
            audio = UtteranceAudio(self._settings, source_rate, lane=stand.lane, limits=stand.limits)
            try:
                await self._pump(flow, audio, source_rate)
            finally:
                audio.close()
            outcome = await asyncio.shield(flow.outcome)
            if outcome.error is not None:
                raise outcome.error
        stand.session.synthesis_completed(self._index, outcome.finish_reason, monotonic())
        stand.settle()

    async def _pump(self, flow: SpeechFlow, audio: UtteranceAudio, source_rate: int) -> None:
        stand = self._stand
        final = False
        while not final:
            # Taking a chunk grants the worker credit for another one, so it is only taken when it can go on.
            await stand.room.wait()
            chunk = await flow.receive()
            final = chunk.final
            pieces = await audio.add(chunk)
            if final:
                pieces += await audio.finish()
            for piece in pieces:
                stand.session.synthesis_made(self._index, piece)
            stand.settle()
            stand.metrics.lead(flow.lead().queued_cost / source_rate + stand.session.queued_media_s)

    def _failed(self, error: StreamSynthError) -> None:
        self._stand.session.synthesis_failed(self._index, error, monotonic())
        self._stand.settle()
