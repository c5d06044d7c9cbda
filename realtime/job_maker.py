"""How a job of `/v1/videos` is made: it waits for its turn as long as it takes, then is one flow like any other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from streamsynth.clip_file import ClipFile, film
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.flows import VideoFlow
from streamsynth.interactions.messages import Notice, Progress
from streamsynth.observe.job_metrics import JobMetrics
from streamsynth.realtime.admission import Admission
from streamsynth.realtime.auth import Caller
from streamsynth.realtime.clip_fields import ClipSettings
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.video_job import Headway
from streamsynth.runtime import Runtime

_LEAST_RETRY_S = 0.25
_CHECK_S = 5.0
"""How long a job that is to be created waits for its model's word."""
_NO_PLACE = (ErrorCode.OVERLOADED, ErrorCode.WORKER_DIED)


class JobPaths(NamedTuple):
    clip: Path
    unfinished: Path
    thumbnail: Path


@dataclass(slots=True, eq=False)
class Making:
    """A job between its creation and its end. `nbytes` of its file are written."""

    settings: ClipSettings
    caller: Caller
    headway: Headway
    created_s: float = field(default_factory=time.monotonic)
    flow: VideoFlow | None = None
    nbytes: int = 0
    began_s: float | None = None

    def begin(self) -> bool:
        """There is a sign of its being made; whether this is the first."""
        if self.began_s is not None:
            return False
        self.began_s = time.monotonic()
        return True


class _NoPlace(Exception):
    """It has not begun; it may later."""

    def __init__(self, reason: StreamSynthError) -> None:
        super().__init__(reason.message)
        self.reason = reason


class JobMaker:
    """`places` is how many videos each model makes at once: so many jobs of it run, the others wait in their order."""

    def __init__(
        self, runtime: Runtime, admission: Admission, metrics: JobMetrics, limits: Limits, places: Mapping[str, int]
    ) -> None:
        self._runtime = runtime
        self._admission = admission
        self._metrics = metrics
        self._limits = limits
        self._turns = {model: asyncio.Semaphore(count) for model, count in places.items()}

    async def check(self, settings: ClipSettings) -> None:
        """Raises what the model refuses this with. One that is not there now, or in a long step, says it to the job."""
        try:
            async with asyncio.timeout(_CHECK_S):
                await self._runtime.check_video(settings.model, settings.request)
        except TimeoutError:
            return
        except StreamSynthError as error:
            if error.blames_request:
                raise

    async def make(
        self, making: Making, paths: JobPaths, *, on_begun: Callable[[], None], on_written: Callable[[], None]
    ) -> None:
        """Returns when the file is there, and raises what `film` raises; `overloaded` if its turn does not come.

        It has begun with its first step or picture: until then it may be in the worker's queue. A model that is full,
        or whose worker starts anew, is no reason to fail before that.
        """
        async with self._turn(making):
            while True:
                try:
                    return await self._attempt(making, paths, on_begun, on_written)
                except _NoPlace as refusal:
                    wait_s = max(_LEAST_RETRY_S, (refusal.reason.retry_after_ms or 0) / 1000)
                    if time.monotonic() + wait_s > self._deadline_s(making):
                        raise refusal.reason from None
                    await asyncio.sleep(wait_s)

    @asynccontextmanager
    async def _turn(self, making: Making) -> AsyncIterator[None]:
        turns = self._turns[making.settings.model]
        try:
            async with asyncio.timeout(self._deadline_s(making) - time.monotonic()):
                await turns.acquire()
        except TimeoutError:
            message = f"its turn did not come within {self._limits.queued_video_s:g} s, the limit queued_video_s"
            raise StreamSynthError(ErrorCode.OVERLOADED, message, retry_after_ms=60_000) from None
        try:
            yield
        finally:
            turns.release()

    def _deadline_s(self, making: Making) -> float:
        return making.created_s + self._limits.queued_video_s

    async def _attempt(
        self, making: Making, paths: JobPaths, on_begun: Callable[[], None], on_written: Callable[[], None]
    ) -> None:
        settings, request = making.settings, making.settings.request
        file = ClipFile(
            paths.clip,
            paths.unfinished,
            width=request.width,
            height=request.height,
            fps=settings.fps,
            thumbnail=paths.thumbnail,
        )

        def works() -> None:
            if making.begin():
                on_begun()
                self._metrics.job_began(settings.model, time.monotonic() - making.created_s)

        def noticed(notice: Notice) -> None:
            if isinstance(notice, Progress):
                making.headway.progress = notice
                works()

        def chunk_written() -> None:
            works()
            making.headway.frames, making.nbytes = file.frames, file.nbytes
            on_written()

        async with self._flow(making, noticed) as flow:
            try:
                await film(flow, file, settings.num_frames, chunk_written)
            except StreamSynthError as error:
                if error.code in _NO_PLACE and not flow.entered:
                    raise _NoPlace(error) from None  # in the worker's own line: for too long, or until that died
                raise
        making.nbytes = file.nbytes
        self._metrics.job_completed(settings.model, time.monotonic() - (making.began_s or making.created_s))

    @asynccontextmanager
    async def _flow(self, making: Making, noticed: Callable[[Notice], None]) -> AsyncIterator[VideoFlow]:
        """A place among all that runs, and the flow in it; it is free when the worker has let go."""
        settings = making.settings
        try:
            ticket = self._admission.request(making.caller)
        except StreamSynthError as error:
            raise _NoPlace(error) from None
        with ticket:
            try:
                await ticket.granted()
                flow = self._runtime.open_video(settings.model, settings.request, noticed)
            except StreamSynthError as error:
                if error.code in _NO_PLACE:
                    raise _NoPlace(error) from None
                raise
            making.flow = flow
            try:
                yield flow
            finally:
                flow.cancel()
                making.flow = None
                await flow.idle()
