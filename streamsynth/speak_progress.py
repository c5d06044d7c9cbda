"""What `speak` says on standard error: a line that moves on a terminal, and the timings at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

_SHOW_EVERY_S = 0.1


class Progress:
    """Told what happens, as it happens. First audio counts from the first text that was sent.

    `paced`: the text's writer or the listener sets the pace, so that the time taken says nothing of the speed.
    """

    def __init__(self, out: TextIO, *, paced: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        self._paced = paced
        self._out = out
        self._clock = clock
        self._began_s = clock()
        self._ready_s = 0.0
        self._text_s: float | None = None
        self._first_audio_s: float | None = None
        self._last_audio_s = 0.0
        self._shown_s = 0.0
        self.chunks = 0
        self.audio_s = 0.0

    def ready(self) -> None:
        self._ready_s = self._clock() - self._began_s

    def text_sent(self) -> None:
        if self._text_s is None:
            self._text_s = self._clock()

    def audio_made(self, samples: int, sample_rate: int) -> None:
        if samples == 0 or self._text_s is None:
            return
        self._last_audio_s = self._clock()
        if self._first_audio_s is None:
            self._first_audio_s = self._last_audio_s - self._text_s
        self.chunks += 1
        self.audio_s += samples / sample_rate
        if self._out.isatty() and self._last_audio_s - self._shown_s >= _SHOW_EVERY_S:
            self._shown_s = self._last_audio_s
            self._out.write(f"\r{self._timings()}\x1b[K")
            self._out.flush()

    def note(self, text: str) -> None:
        self._out.write(f"{self._fresh_line()}note: {text}\n")

    def report(self) -> None:
        what = self._timings() if self.chunks else "there was nothing to say"
        self._out.write(f"{self._fresh_line()}{what}, ready after {self._ready_s:.2f} s\n")

    def _timings(self) -> str:
        assert self._first_audio_s is not None and self._text_s is not None
        elapsed_s = self._last_audio_s - self._text_s
        made = f"first audio {self._first_audio_s * 1000:.0f} ms, {self.audio_s:.2f} s of audio in {elapsed_s:.2f} s"
        rtf = "" if self._paced else f" (RTF {elapsed_s / self.audio_s:.2f})"
        return f"{made}{rtf}, {self.chunks} chunks"

    def _fresh_line(self) -> str:
        return "\r\x1b[K" if self._out.isatty() else ""
