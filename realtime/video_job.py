"""A job of `/v1/videos`: what is kept of it on disk, how far it is, and what OpenAI's clients see of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.messages import Progress
from streamsynth.realtime.clip_fields import ClipSettings

_DIGITS = 6


class JobStatus(StrEnum):
    """OpenAI's words."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is on disk. Times are Unix seconds; `owner` is whose it is, `nbytes` the size of its finished file."""

    id: str
    owner: str
    status: JobStatus
    created_at: float
    completed_at: float | None = None
    model: str
    prompt: str
    negative_prompt: str | None = None
    width: int
    height: int
    fps: int
    num_frames: int
    seed: int
    steps: int | None = None
    guidance: float | None = None
    nbytes: int = 0
    error: dict[str, Any] | None = None

    @property
    def finished(self) -> bool:
        return self.status in (JobStatus.COMPLETED, JobStatus.FAILED)


def new_record(job_id: str, owner: str, settings: ClipSettings, now_s: float) -> JobRecord:
    request = settings.request
    return JobRecord(
        id=job_id,
        owner=owner,
        status=JobStatus.QUEUED,
        created_at=now_s,
        model=settings.model,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        width=request.width,
        height=request.height,
        fps=settings.fps,
        num_frames=settings.num_frames,
        seed=settings.seed,
        steps=request.steps,
        guidance=request.guidance,
    )


def begun(record: JobRecord) -> JobRecord:
    return msgspec.structs.replace(record, status=JobStatus.IN_PROGRESS)


def completed(record: JobRecord, nbytes: int, now_s: float) -> JobRecord:
    return msgspec.structs.replace(record, status=JobStatus.COMPLETED, completed_at=now_s, nbytes=nbytes)


def failed(record: JobRecord, error: StreamSynthError, now_s: float) -> JobRecord:
    return msgspec.structs.replace(record, status=JobStatus.FAILED, completed_at=now_s, nbytes=0, error=error.to_wire())


def interrupted() -> StreamSynthError:
    """Why a job failed that was not finished when the server ended."""
    return StreamSynthError(ErrorCode.INTERRUPTED, "the server ended before the video was finished; ask for it again")


@dataclass(slots=True)
class Headway:
    """How far a job is: the steps of a model that makes whole clips, or the pictures of one that makes them in turn."""

    frames: int = 0
    progress: Progress | None = None

    def percent(self, record: JobRecord) -> int:
        """100 is said of a finished file alone."""
        if record.status is JobStatus.COMPLETED:
            return 100
        done, all_ = self.frames, record.num_frames
        if self.progress is not None:
            done, all_ = self.progress.step, self.progress.steps
        return min(99, 100 * done // max(1, all_))


def shown(record: JobRecord, headway: Headway, kept_s: float) -> dict[str, Any]:
    """OpenAI's `video` object, and more."""
    finished_at = record.completed_at
    progress = headway.progress
    return {
        "id": record.id,
        "object": "video",
        "status": record.status.value,
        "progress": headway.percent(record),
        "created_at": int(record.created_at),
        "completed_at": int(finished_at) if finished_at is not None else None,
        "expires_at": int(finished_at + kept_s) if finished_at is not None else None,
        "model": record.model,
        "prompt": record.prompt,
        "seconds": f"{round(record.num_frames / record.fps, _DIGITS):g}",
        "size": f"{record.width}x{record.height}",
        "remixed_from_video_id": None,
        "error": _error(record.error),
        "negative_prompt": record.negative_prompt,
        "seed": str(record.seed),
        "fps": record.fps,
        "num_frames": record.num_frames,
        "frames_made": record.num_frames if record.status is JobStatus.COMPLETED else headway.frames,
        "step": progress.step if progress else None,
        "steps": progress.steps if progress else record.steps,
        "guidance_scale": record.guidance,
        "bytes": record.nbytes,
    }


def _error(fields: dict[str, Any] | None) -> dict[str, Any] | None:
    if fields is None:
        return None
    error = StreamSynthError.from_wire(fields)
    return {
        "code": error.code.value,
        "message": error.message,
        "param": error.param,
        "type": error.rendering.openai_type,
    }
