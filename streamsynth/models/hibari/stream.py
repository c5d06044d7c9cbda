"""One utterance inside the hibari engine."""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import dataclass

import numpy as np

from streamsynth.engine.stream import Emission, Interrupted
from streamsynth.errors import StreamSynthError
from streamsynth.models.hibari.joins import Audible, fade_out, pause, speech_frames
from streamsynth.models.hibari.network import Abort, Network
from streamsynth.models.hibari.phonemes import Phonemizer, Piece, split_phonemes
from streamsynth.models.hibari.pipeline import MAX_AUDIO_SECONDS
from streamsynth.models.hibari.reading import refuse_foreign
from streamsynth.models.hibari.vocoder import FRAME_SAMPLES, SAMPLE_RATE, Renderer
from streamsynth.speech import Granularity, SpeechRequest
from streamsynth.text.cutter import TextCutter, Unit, opening

WINDOW_FRAMES = 400

_SEED_BITS = 64


@dataclass(slots=True)
class Tally:
    """What the engine has done so far."""

    live: int = 0
    utterances: int = 0
    pieces: int = 0
    phonemes: int = 0
    frames: int = 0
    interrupted: int = 0

    def counters(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Settings:
    request: SpeechRequest
    max_phonemes: int
    first_window_frames: int


@dataclass(slots=True)
class _Job:
    """A piece to speak, and its place in the segments. `text` comes with a segment's first piece."""

    piece: Piece
    segment: int
    text: str | None
    ends_segment: bool


class HibariStream:
    """Speaks each unit of text as soon as it is certain; under granularity "none", once all text is there.

    What comes out depends on the request and its text alone, not on when the text came: the noise of piece n is drawn
    from (seed, n), and a pause stands where the text asks for it.
    """

    def __init__(self, network: Network, phonemizer: Phonemizer, settings: Settings, tally: Tally) -> None:
        request = settings.request
        self._network = network
        self._phonemizer = phonemizer
        self._settings = settings
        self._tally = tally
        self._granularity = request.granularity
        seed = secrets.randbits(_SEED_BITS) if request.seed is None else request.seed
        self._seed = seed % (1 << _SEED_BITS)
        limit = round(MAX_AUDIO_SECONDS * SAMPLE_RATE)
        if request.max_new_tokens is not None:
            limit = min(limit, request.max_new_tokens * FRAME_SAMPLES)
        self._samples_left = limit
        self._cutter = TextCutter(clauses=self._granularity is Granularity.CLAUSE)
        self._text: list[str] = []
        self._finished = False
        self._jobs: deque[_Job] = deque()
        self._job: _Job | None = None
        self._speech: Audible | None = None
        self._pause = 0
        self._segments = 0
        self._pieces = 0
        self._error: StreamSynthError | None = None
        self._abort = Abort()
        tally.live += 1
        tally.utterances += 1

    def push(self, text: str) -> None:
        self._cutter.push(text)
        if self._granularity is Granularity.NONE:
            self._text.append(text)

    def finish(self) -> None:
        self._cutter.finish()
        self._finished = True
        if self._granularity is Granularity.NONE:
            try:
                refuse_foreign("".join(self._text))
            except StreamSynthError as error:
                self._error = error  # One request: nothing of it is spoken.

    def wake_at(self) -> float | None:
        if self._finished or self._job or self._jobs or self._error:
            return 0.0
        return 0.0 if self._cutter and self._granularity is not Granularity.NONE else None

    def step(self) -> Emission | None:
        """Speak the first window of the next piece, or a further one of the piece at hand."""
        try:
            self._abort.check()
            return self._speak()
        except Interrupted:
            self._tally.interrupted += 1
            raise

    def interrupt(self) -> None:
        self._abort.set()

    def close(self) -> None:
        self._speech = None
        self._jobs.clear()
        self._tally.live -= 1

    def _speak(self) -> Emission | None:
        if self._error is not None:
            raise self._error
        if self._job is not None:
            return self._emit(self._job, WINDOW_FRAMES)
        if not self._prepare():
            return self._end() if self._finished and not self._cutter else None
        self._job = self._jobs.popleft()
        self._open_piece(self._job.piece)
        return self._emit(self._job, self._settings.first_window_frames)

    def _end(self) -> Emission:
        """The end, when it came after the last audio had left; or an utterance without sound."""
        return Emission(np.zeros(0, np.float32), SAMPLE_RATE, segment=max(0, self._segments - 1), final=True)

    # Text to pieces

    def _prepare(self) -> bool:
        """Whether a piece is waiting, after reading one unit of text at most: a step is bounded."""
        if self._granularity is Granularity.NONE and not self._finished:
            return False
        if not self._jobs and (unit := self._cutter.take()) is not None:
            self._read(unit)
        return bool(self._jobs)

    def _read(self, unit: Unit) -> None:
        whole = self._granularity is Granularity.NONE
        first = self._pieces == 0 and self._granularity is not Granularity.CLAUSE
        pieces: list[Piece] = []
        for part in opening(unit) if first else (unit,):
            phonemes = self._phonemizer(part.text)
            if phonemes:
                pieces += split_phonemes(phonemes, part.ending, self._settings.max_phonemes)
        if not pieces:
            return
        starts = not whole or self._segments == 0
        text = ("".join(self._text) if whole else unit.text) if starts else None
        self._segments += starts
        for number, piece in enumerate(pieces):
            ends = not whole and number == len(pieces) - 1
            self._jobs.append(_Job(piece, self._segments - 1, text if number == 0 else None, ends))

    # Pieces to samples

    def _open_piece(self, piece: Piece) -> None:
        spectrum = self._network.run(piece.phonemes, self._settings.request.speed, self._abort)
        self._abort.check()
        noise = np.random.default_rng((self._seed, self._pieces))
        frames = speech_frames(spectrum)
        speech = self._speech = Audible(Renderer(spectrum, frames.start, frames.stop, noise))
        self._pause = pause(piece.ending, len(spectrum) - speech.left, self._settings.request.speed)
        self._pieces += 1
        self._tally.pieces += 1
        self._tally.phonemes += len(piece.phonemes)
        self._tally.frames += speech.left

    def _emit(self, job: _Job, frames: int) -> Emission:
        speech = self._speech
        assert speech is not None
        samples = speech.render(frames)
        piece_ends = speech.left == 0
        if piece_ends:
            fade_out(samples)
            samples = np.concatenate((samples, np.zeros(self._pause * FRAME_SAMPLES, np.float32)))
            self._job = self._speech = None
        self._abort.check()
        final = piece_ends and self._finished and not self._more()
        cut = len(samples) > self._samples_left
        if cut:
            samples = samples[: self._samples_left]
            fade_out(samples)
        self._samples_left -= len(samples)
        cut = cut or (self._samples_left == 0 and not final)
        text, job.text = job.text, None
        return Emission(
            samples,
            SAMPLE_RATE,
            segment=job.segment,
            segment_text=text,
            segment_final=final or cut or (piece_ends and job.ends_segment),
            final=final or cut,
            finish_reason="length" if cut else "stop",
        )

    def _more(self) -> bool:
        """Whether more may be said. A refusal of what follows waits until what came before it has been said."""
        try:
            return self._prepare() or len(self._cutter) > 0
        except StreamSynthError as error:
            self._error = error
            return True
