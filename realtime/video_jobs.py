"""The jobs of `/v1/videos`: created, made in their turn, kept for a time, and removed."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.observe.job_metrics import JobMetrics
from streamsynth.realtime.admission import Admission
from streamsynth.realtime.auth import Caller
from streamsynth.realtime.clip_fields import ClipSettings
from streamsynth.realtime.draining import Draining
from streamsynth.realtime.job_folder import JobFolder
from streamsynth.realtime.job_maker import JobMaker, JobPaths, Making
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.retention import is_expired, surplus
from streamsynth.realtime.video_job import (
    Headway,
    JobRecord,
    JobStatus,
    begun,
    completed,
    failed,
    interrupted,
    new_record,
    shown,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SWEEP_S = 60.0


@dataclass(slots=True, eq=False)
class Job:
    """`making` is there from its creation to its end; a job that was found on disk has none."""

    record: JobRecord
    headway: Headway = field(default_factory=Headway)
    making: Making | None = None
    task: asyncio.Task[None] | None = None
    removed: bool = False


class Page(NamedTuple):
    """Jobs as they are shown, and whether others follow."""

    jobs: list[dict[str, Any]]
    more: bool


class VideoJobs:
    """All jobs of this server. Its methods are for the event loop; what blocks is done by one thread, in order.

    Every job ends completed, failed or removed, and its record says so before anybody is told.
    """

    def __init__(
        self,
        folder: JobFolder,
        maker: JobMaker,
        admission: Admission,
        draining: Draining,
        metrics: JobMetrics,
        limits: Limits,
    ) -> None:
        self._folder = folder
        self._maker = maker
        self._share = admission.part
        self._draining = draining
        self._metrics = metrics
        self._limits = limits
        self._jobs: dict[str, Job] = {}
        self._removals: set[asyncio.Task[None]] = set()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="video-jobs")
        self._sweeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Find what is on disk. Raises START_FAILED."""
        records = await self._on_disk(self._folder.open)
        self._jobs = {record.id: Job(record) for record in records}
        self._sweeper = asyncio.create_task(self._sweep(), name="video jobs sweeper")

    async def close(self) -> None:
        """What runs has failed then, and says so on disk."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in [*tasks, *([self._sweeper] if self._sweeper else [])]:
            task.cancel()
        waited_for = [*tasks, *self._removals, *([self._sweeper] if self._sweeper else [])]
        if waited_for:
            await asyncio.wait(waited_for)
        await self._on_disk(self._folder.close)
        self._disk.shutdown()

    def count(self, status: JobStatus) -> int:
        return sum(job.record.status is status for job in self._jobs.values())

    def total(self) -> int:
        return len(self._jobs)

    def nbytes(self) -> int:
        """Of finished and growing files."""
        return sum(job.record.nbytes for job in self._jobs.values()) + self._growing_bytes()

    async def create(self, caller: Caller, settings: ClipSettings) -> dict[str, Any]:
        """A job in the queue, and on disk. Raises `overloaded`, `shutting_down`, or what the model refuses it with."""
        with self._draining.work():
            await self._maker.check(settings)
            record = new_record(f"video_{secrets.token_hex(12)}", caller.owner, settings, time.time())
            self._make_room(record)
            job = Job(record)
            job.making = Making(settings, caller, job.headway)
            self._jobs[record.id] = job
            try:
                await self._on_disk(partial(self._folder.save, record))
            except OSError as error:
                self._remove(job)
                raise _unwritable(record, error) from error
            except BaseException:
                self._remove(job)
                raise
            if not job.removed:
                job.task = asyncio.create_task(self._run(job, job.making), name=record.id)
        return self._shown(job)

    def show(self, caller: Caller, job_id: str) -> dict[str, Any]:
        """Raises `not_found`, also for another caller's."""
        return self._shown(self._find(caller, job_id))

    def page(self, caller: Caller, *, after: str | None, limit: int, newest_first: bool) -> Page:
        """The caller's, from the one behind `after` on. Raises `invalid_value` if that is not there."""
        now_s = time.time()
        jobs = [
            job
            for job in self._jobs.values()
            if job.record.owner == caller.owner and not is_expired(job.record, self._limits, now_s)
        ]
        if newest_first:
            jobs.reverse()
        if after is not None:
            places = [place for place, job in enumerate(jobs, 1) if job.record.id == after]
            if not places:
                raise invalid_value("after", after, "the id of a video that is there")
            jobs = jobs[places[0] :]
        return Page([self._shown(job) for job in jobs[:limit]], len(jobs) > limit)

    def content(self, caller: Caller, job_id: str, variant: str) -> Path:
        """Where its file is, once there is one. Raises `not_found`, or `not_ready` while it is being made."""
        record = self._find(caller, job_id).record
        if record.error is not None:
            message = f"the video failed, and has no file: {record.error['message']}"
            raise StreamSynthError(ErrorCode.NOT_FOUND, message, param="video_id")
        if record.status is not JobStatus.COMPLETED:
            message = f"the video is {record.status.value}: its file is there when it is completed"
            raise StreamSynthError(ErrorCode.NOT_READY, message, param="video_id", retry_after_ms=1000)
        return self._folder.clip(job_id) if variant == "video" else self._folder.thumbnail(job_id)

    async def remove(self, caller: Caller, job_id: str) -> None:
        """End it at once if it runs, and remove everything of it. Raises `not_found`."""
        self._remove(self._find(caller, job_id))
        await self._on_disk(partial(self._folder.remove, job_id))

    def _find(self, caller: Caller, job_id: str) -> Job:
        job = self._jobs.get(job_id)
        if job is None or job.record.owner != caller.owner or is_expired(job.record, self._limits, time.time()):
            raise StreamSynthError(ErrorCode.NOT_FOUND, "there is no such video, or no longer", param="video_id")
        return job

    def _shown(self, job: Job) -> dict[str, Any]:
        return shown(job.record, job.headway, self._limits.stored_video_s)

    def _make_room(self, record: JobRecord) -> None:
        waiting = [job.record for job in self._jobs.values() if job.record.status is JobStatus.QUEUED]
        if len(waiting) >= self._limits.queued_videos:
            raise _full(f"{len(waiting)} videos wait, the limit queued_videos")
        share = self._share(self._limits.queued_videos)
        if sum(each.owner == record.owner for each in waiting) >= share:
            raise _full(f"this API key has {share} videos waiting, its share of queued_videos")
        self._retain(record)
        if len(self._jobs) >= self._limits.stored_videos:
            raise _full(f"{len(self._jobs)} videos are being made or wait, the limit stored_videos")

    def _retain(self, *coming: JobRecord) -> None:
        """Let go of what is beyond the limits."""
        records = [*(job.record for job in self._jobs.values()), *coming]
        for record in surplus(records, self._limits, time.time(), growing_bytes=self._growing_bytes()):
            self._remove(self._jobs[record.id])

    def _growing_bytes(self) -> int:
        return sum(job.making.nbytes for job in self._jobs.values() if job.making is not None)

    def _check_growth(self) -> None:
        """A file has grown: older ones make room for it, or it cannot be."""
        if self.nbytes() > self._limits.stored_video_bytes:
            self._retain()
        if self.nbytes() > self._limits.stored_video_bytes:
            message = f"the file is too large: {self._limits.stored_video_bytes} bytes, the limit stored_video_bytes"
            raise StreamSynthError(ErrorCode.MESSAGE_TOO_LARGE, message)

    async def _run(self, job: Job, making: Making | None) -> None:
        assert making is not None and job.task is not None
        try:
            with self._draining.work(
                on_begin=partial(self._end_if_waiting, job), on_expiry=partial(self._end, job.task)
            ):
                await self._make(job, making)
        except asyncio.CancelledError:
            if job.removed:
                self._metrics.job_ended(job.record.model, "cancelled")
                raise
            await self._fail(job, interrupted())
        except StreamSynthError as error:
            await self._fail(job, error)
        except OSError as error:
            await self._fail(job, _unwritable(job.record, error))
        except Exception:
            logger.exception("%s failed", job.record.id)
            await self._fail(job, StreamSynthError(ErrorCode.INTERNAL_ERROR, "the server failed; its log says why"))
        finally:
            job.making = None

    async def _make(self, job: Job, making: Making) -> None:
        def on_begun() -> None:
            job.record = begun(job.record)

        folder, job_id = self._folder, job.record.id
        paths = JobPaths(folder.clip(job_id), folder.unfinished_clip(job_id), folder.thumbnail(job_id))
        await self._maker.make(making, paths, on_begun=on_begun, on_written=self._check_growth)
        done = completed(job.record, making.nbytes, time.time())
        await self._on_disk(partial(folder.save, done))
        job.record, making.nbytes = done, 0
        self._metrics.job_ended(done.model, "completed")
        self._retain()

    async def _fail(self, job: Job, error: StreamSynthError) -> None:
        logger.info("%s failed: %s", job.record.id, error.code.value)
        record = failed(job.record, error, time.time())
        try:
            # In this order: on a full disk the files make room for the record.
            await self._on_disk(partial(self._folder.remove_files, record.id))
            await self._on_disk(partial(self._folder.save, record))
        except OSError as error:
            logger.error("%s: its end cannot be written: %s", record.id, error)
        job.record = record
        self._metrics.job_ended(record.model, "failed")
        self._retain()

    @staticmethod
    def _end(task: asyncio.Task[None]) -> None:
        task.cancel()

    def _end_if_waiting(self, job: Job) -> None:
        if job.record.status is JobStatus.QUEUED and job.task is not None:
            job.task.cancel()

    def _remove(self, job: Job) -> None:
        """From now on it is not there; its work ends at once, and nothing is left when that has let go."""
        job.removed = True
        self._jobs.pop(job.record.id, None)
        if job.task is not None:
            if job.making is not None and job.making.flow is not None:
                job.making.flow.cancel()
            job.task.cancel()
        removal = asyncio.create_task(self._clear(job), name=f"remove {job.record.id}")
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _clear(self, job: Job) -> None:
        if job.task is not None:
            await asyncio.wait([job.task])
        try:
            await self._on_disk(partial(self._folder.remove, job.record.id))
        except OSError:
            logger.exception("%s: its files cannot be removed", job.record.id)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._limits.stored_video_s / 4))
            self._retain()

    async def _on_disk(self, call: Callable[[], T]) -> T:
        """In the order of the calls. Once begun it is done, whoever stops waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._disk, call)


def _unwritable(record: JobRecord, error: OSError) -> StreamSynthError:
    logger.error("%s cannot be written: %s", record.id, error)
    return StreamSynthError(ErrorCode.INTERNAL_ERROR, f"the video cannot be written: {error.strerror}")


def _full(message: str) -> StreamSynthError:
    return StreamSynthError(ErrorCode.OVERLOADED, message, retry_after_ms=10_000)
