"""The Python API: `StreamSynth` over the models of this process or over a server, with the same methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from streamsynth.doors import Door, LocalDoor, RemoteDoor
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.generation import GeneratedImage, GeneratedVideo, OnProgress, image_format, make_image, make_video
from streamsynth.session import Chunks, SpeechSession, Utterance, call_soon
from streamsynth.speech import AudioChunk, Granularity
from streamsynth.video_session import VideoSession

__all__ = ["Speech", "SpeechSession", "StreamSynth", "Utterance", "VideoSession"]

T = TypeVar("T")


class StreamSynth:
    """Speech and video while they are being made. An async context manager; use it from one event loop.

    `StreamSynth()` starts the default model in worker processes of its own, `StreamSynth("hibari", "sine")` those
    models, the first being the default; `deploy` names deploy files as `serve` takes them. Entering takes the second or
    two that models need to load, and raises START_FAILED with nothing left running. Leaving cancels what is unfinished.
    """

    def __init__(self, *models: str, deploy: Sequence[str | Path] = ()) -> None:
        import os

        from streamsynth.config.deployment import check_threads
        from streamsynth.config.plan import plan

        deployments = plan(models, [Path(path) for path in deploy])
        check_threads(deployments, len(os.sched_getaffinity(0)))
        self._set_up(LocalDoor(deployments))

    @classmethod
    def connect(cls, url: str, *, api_key: str | None = None) -> Self:
        """The models of the server at `url`, such as "http://127.0.0.1:8000".

        Each session has a socket of its own, so it is the first use that fails if there is no server. `api_key` None
        takes STREAMSYNTH_API_KEY from the environment, if it is there.
        """
        from streamsynth import environment

        synth = cls.__new__(cls)
        synth._set_up(RemoteDoor(url, api_key or environment.api_key()))
        return synth

    def _set_up(self, door: Door) -> None:
        self._door = door
        self._sessions: set[SpeechSession | VideoSession] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._generating: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one it runs in, while it does."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """What entering does."""
        if self._loop is not None:
            raise RuntimeError("it has been entered already")
        await self._door.start()
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """What leaving does. Idempotent."""
        self._loop = None
        try:
            for session in list(self._sessions):
                await session.close()
            for task in self._generating:
                task.cancel()
            if self._generating:
                await asyncio.wait(self._generating)
            while self._endings:
                await asyncio.wait(self._endings)
        finally:
            await self._door.stop()

    def speech_session(
        self,
        *,
        model: str | None = None,
        voice: str | None = None,
        speed: float | None = None,
        seed: int | None = None,
        max_new_tokens: int | None = None,
        granularity: Granularity | str | None = None,
        **options: Any,
    ) -> SpeechSession:
        """A session with these settings, to be entered; None takes the default.

        `granularity` says what `AudioChunk.segment` counts: sentences if not given. `options` are hints (`language`,
        `instructions` ...) and the model's own fields. What is refused is refused by entering.
        """
        self._check_running()
        settings = {
            "model": model,
            "voice": voice,
            "speed": speed,
            "seed": seed,
            "max_new_tokens": max_new_tokens,
            "granularity": granularity,
            **options,
        }
        session = SpeechSession(self._door.connection(), settings, self._sessions.discard)
        self._sessions.add(session)
        return session

    def speak(
        self,
        text: str | AsyncIterable[str],
        *,
        model: str | None = None,
        voice: str | None = None,
        speed: float | None = None,
        seed: int | None = None,
        max_new_tokens: int | None = None,
        granularity: Granularity | str | None = None,
        **options: Any,
    ) -> Speech:
        """One utterance: its chunks as they are made, while `text` may still be coming. Settings as `speech_session`.

        Iterate over the answer. Nothing happens, and nothing is refused, before the first step of that iteration.
        """
        session = self.speech_session(
            model=model,
            voice=voice,
            speed=speed,
            seed=seed,
            max_new_tokens=max_new_tokens,
            granularity=granularity,
            **options,
        )
        return Speech(self, session, text)

    def video_session(
        self,
        prompt: str,
        *,
        model: str | None = None,
        width: int | None = None,
        height: int | None = None,
        num_frames: int | None = None,
        seed: int | None = None,
        negative_prompt: str | None = None,
    ) -> VideoSession:
        """A video that is made while it is read and steered while it is made, to be entered; None takes the default.

        Without `num_frames` it runs until it is stopped or left. What is refused is refused by entering.
        """
        self._check_running()
        fields = {
            "model": model,
            "prompt": prompt,
            "width": width,
            "height": height,
            "num_frames": num_frames,
            "seed": seed,
            "negative_prompt": negative_prompt,
        }
        session = VideoSession(self._door.video(), fields, self._sessions.discard)
        self._sessions.add(session)
        return session

    async def generate_video(
        self,
        prompt: str,
        *,
        output: str | Path | None = None,
        model: str | None = None,
        size: str | None = None,
        seconds: float | None = None,
        num_frames: int | None = None,
        seed: int | None = None,
        negative_prompt: str | None = None,
        steps: int | None = None,
        guidance: float | None = None,
        picture: bytes | str | Path | None = None,
        on_progress: OnProgress | None = None,
    ) -> GeneratedVideo:
        """A whole clip, as an mp4 in the file `output`, which appears when it is whole, or in memory without one.

        `size` is "WIDTHxHEIGHT"; `picture` is what the clip begins with, a file's bytes or its path. None takes the
        model's default. Cancelling it ends the work. Raises StreamSynthError, and OSError for a file.
        """
        fields = {
            "prompt": prompt,
            "model": model,
            "size": size,
            "seconds": seconds,
            "num_frames": num_frames,
            "seed": seed,
            "negative_prompt": negative_prompt,
            "num_inference_steps": steps,
            "guidance_scale": guidance,
        }
        self._check_running()
        return await self._generated(make_video(self._door.generator(), picture, fields, output, on_progress))

    async def generate_image(
        self,
        prompt: str,
        *,
        output: str | Path | None = None,
        format: str | None = None,  # noqa: A002 - as everywhere here
        model: str | None = None,
        size: str | None = None,
        seed: int | None = None,
        negative_prompt: str | None = None,
        steps: int | None = None,
        guidance: float | None = None,
        picture: bytes | str | Path | None = None,
        on_progress: OnProgress | None = None,
    ) -> GeneratedImage:
        """A picture, as "png" or "jpeg": what `format` says, or the ending of `output`. Else as `generate_video`."""
        fields = {
            "prompt": prompt,
            "model": model,
            "size": size,
            "seed": seed,
            "negative_prompt": negative_prompt,
            "num_inference_steps": steps,
            "guidance_scale": guidance,
        }
        self._check_running()
        path = Path(output) if output is not None else None
        fields["output_format"] = image_format(path, format)
        return await self._generated(make_image(self._door.generator(), picture, fields, path, on_progress))

    async def _generated(self, work: Coroutine[Any, Any, T]) -> T:
        """Leaving the StreamSynth ends it, and so does cancelling the caller."""
        task = asyncio.create_task(work)
        self._generating.add(task)
        task.add_done_callback(self._generating.discard)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if task.cancelled():
            raise StreamSynthError(ErrorCode.CANCELLED, "the StreamSynth was left before it was finished")
        return task.result()

    def _check_running(self) -> None:
        if self._loop is None:
            raise RuntimeError("enter it first: async with StreamSynth() as synth")
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("it was entered in another event loop, and is of use in that one only")

    def _see_to(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what ends a session to its end, whoever has stopped waiting for it."""
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task


class Speech(AsyncIterator[AudioChunk]):
    """The chunks of one utterance. The last has `final` set; an error is raised instead of it.

    Leaving the iteration early cancels the utterance: at once by `break` in `async for chunk in synth.speak(...)`, at
    the latest by `aclose` or by leaving `async with`. A cancelled step of the iteration loses nothing: the next one
    goes on.
    """

    def __init__(self, synth: StreamSynth, session: SpeechSession, text: str | AsyncIterable[str]) -> None:
        self._synth = synth
        self._session = session
        self._text = text
        self._loop = asyncio.get_running_loop()
        self._feeder: _Feeder | None = None
        self._utterance: Utterance | None = None
        self._chunks: Chunks | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def finish_reason(self) -> str | None:
        """At the end: "stop" if the text was spoken to its end, "length" if a limit cut it."""
        return self._utterance.finish_reason if self._utterance else None

    @property
    def ignored(self) -> tuple[str, ...]:
        """The hints among the settings that the model cannot use, once the first chunk is there."""
        return self._session.ignored

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __anext__(self) -> AudioChunk:
        if self._ending is not None:
            raise StopAsyncIteration
        if self._feeder is None:
            self._feeder = _Feeder(self._session, self._text)
        try:
            if self._chunks is None:
                self._utterance = await anext(self._session)
                self._chunks = aiter(self._utterance)
            return await anext(self._chunks)
        except (StopAsyncIteration, StreamSynthError):
            await self.aclose()
            # What went wrong with the text is the reason for whatever came of it.
            if self._feeder.error is not None:
                raise self._feeder.error from None
            raise

    async def aclose(self) -> None:
        """Cancel the utterance unless it has ended, and give everything back."""
        if self._ending is None:
            self._ending = self._synth._see_to(_end(self._feeder, self._session))
        await asyncio.shield(self._ending)

    def __del__(self) -> None:
        if self._ending is None:
            synth, feeder, session = self._synth, self._feeder, self._session
            call_soon(self._loop, lambda: synth._see_to(_end(feeder, session)))


class _Feeder:
    """Opens the session and sends the text. If that fails, it closes the session, which wakes the reader: `error` is
    why."""

    def __init__(self, session: SpeechSession, text: str | AsyncIterable[str]) -> None:
        self.error: Exception | None = None
        self._session = session
        self._text = text
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._session.open()
            await self._send()
            await self._session.flush()
            await self._session.finish()
        except Exception as error:  # noqa: BLE001  # the reader raises it
            self.error = error
            await self._session.close()

    async def _send(self) -> None:
        if isinstance(self._text, AsyncGenerator):
            async with aclosing(self._text):
                await self._send_pieces(self._text)
        elif isinstance(self._text, AsyncIterable):
            await self._send_pieces(self._text)
        else:
            await self._session.send(self._text)

    async def _send_pieces(self, pieces: AsyncIterable[str]) -> None:
        async for piece in pieces:
            await self._session.send(piece)


async def _end(feeder: _Feeder | None, session: SpeechSession) -> None:
    if feeder is not None:
        await feeder.stop()
    await session.close()
