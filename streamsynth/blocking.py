"""Speech for programs without an event loop, and for those that are inside one and cannot await: `say`."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamsynth.api import StreamSynth

if TYPE_CHECKING:
    from streamsynth.sinks import Sink

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Mono speech: float32 samples of shape (n,), full scale 1.0, at `sample_rate` Hz."""

    samples: npt.NDArray[np.float32]
    sample_rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate


def say(
    text: str,
    *,
    output: str | Path | None = None,
    play: bool = False,
    url: str | None = None,
    api_key: str | None = None,
    model: str | None = None,
    **settings: Any,
) -> Audio:
    """Speak and return the audio; blocks until it is complete. Settings as in `StreamSynth.speak`.

    `output` also writes a file in the format of its suffix; `play` plays while it is made. Works in any thread, inside
    a running event loop and in a notebook: the work is done in a thread with a loop of its own. Its worker processes
    stay for the next call and end with the program. Ctrl-C cancels the speech.
    """
    return _speaker().run(_say(text, output, play, (url, api_key, model), settings))


async def _say(
    text: str,
    output: str | Path | None,
    play: bool,
    target: tuple[str | None, str | None, str | None],
    settings: dict[str, Any],
) -> Audio:
    sinks: list[Sink] = []
    try:
        sinks += _open_sinks(output, play)
        synth = await _speaker().synth(*target)
        if target[0] is not None:
            settings = {"model": target[2], **settings}
        audio = await _collect(synth, text, settings, sinks)
        for sink in sinks:
            await sink.finish()
        return audio
    finally:
        for sink in sinks:
            sink.close()


def _open_sinks(output: str | Path | None, play: bool) -> list[Sink]:
    if output is None and not play:
        return []
    from streamsynth.sinks import FileSink, SpeakerSink

    sinks: list[Sink] = [SpeakerSink()] if play else []
    return [*sinks, FileSink(Path(output))] if output is not None else sinks


async def _collect(synth: StreamSynth, text: str, settings: dict[str, Any], sinks: list[Sink]) -> Audio:
    pieces: list[npt.NDArray[np.float32]] = []
    sample_rate = 0
    async with synth.speak(text, **settings) as speech:
        async for chunk in speech:
            sample_rate = chunk.sample_rate
            pieces.append(chunk.samples)
            for sink in sinks:
                await sink.write(chunk.samples, sample_rate)
    return Audio(np.concatenate(pieces), sample_rate)


class _Speaker:
    """A thread with a loop, and what was started there. One a process; a forked child makes its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="streamsynth-say", daemon=True)
        self._thread.start()
        self._synths: dict[tuple[str | None, ...], StreamSynth] = {}
        self._starting: asyncio.Lock | None = None
        atexit.register(self.close)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def synth(self, url: str | None, api_key: str | None, model: str | None) -> StreamSynth:
        """The one for this target; on the loop."""
        self._starting = self._starting or asyncio.Lock()
        key = (url, api_key) if url is not None else (model,)
        async with self._starting:
            if key not in self._synths:
                synth = _make_synth(url, api_key, model)
                await synth.start()
                self._synths[key] = synth
        return self._synths[key]

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._close_all(), self._loop).result(timeout=5)
        except concurrent.futures.TimeoutError:
            pass  # The workers notice by themselves that this process ends.
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    async def _close_all(self) -> None:
        for synth in self._synths.values():
            await synth.close()
        self._synths.clear()


def _make_synth(url: str | None, api_key: str | None, model: str | None) -> StreamSynth:
    if url is not None:
        return StreamSynth.connect(url, api_key=api_key)
    return StreamSynth(model) if model is not None else StreamSynth()


_lock = threading.Lock()
_current: _Speaker | None = None


def _speaker() -> _Speaker:
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = _Speaker()
        return _current
