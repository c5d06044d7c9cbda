"""The jobs of `/v1/videos` on disk: a record, a clip and a first picture each. Everything here blocks.

A record is replaced whole (temporary file, fsync, rename), and is removed before its files: whatever moment the power
goes, what is found afterwards is a job as it was or none, and files without a record are nobody's.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import shutil
import tempfile
import time
from pathlib import Path

import msgspec

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.video_job import Headway, JobRecord, failed, interrupted, shown

logger = logging.getLogger(__name__)

_LOCK = "lock"
_RECORD, _CLIP, _PART, _THUMBNAIL = ".json", ".mp4", ".part", ".jpg"

_OWN = re.compile(r"video_[0-9a-f]{24}\.")
_UNREADABLE = (msgspec.DecodeError, ValueError, KeyError, ArithmeticError, IsADirectoryError)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(JobRecord)


class JobFolder:
    """One server's folder; `open` takes it for this process alone, `close` gives it back. None: one for as long as it
    is open."""

    def __init__(self, path: Path | None) -> None:
        self._temporary = path is None
        self.path = path or Path(tempfile.gettempdir()) / f"streamsynth-videos-{secrets.token_hex(8)}"
        self._lock: int | None = None

    def open(self) -> list[JobRecord]:
        """The jobs that are there, oldest first, none of them unfinished: what a server left unfinished has failed.

        Raises START_FAILED if the folder cannot be used, or another server uses it.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            records = self._load()
        except BlockingIOError:
            self.close()
            message = f"another server keeps its videos in {self.path}; give this one its own: --data DIR"
            raise StreamSynthError(ErrorCode.START_FAILED, message, param="data") from None
        except OSError as error:
            self.close()
            message = f"videos cannot be kept in {self.path}: {error.strerror}; another folder: --data DIR"
            raise StreamSynthError(ErrorCode.START_FAILED, message, param="data") from None
        return records

    def close(self) -> None:
        if self._lock is not None:
            if self._temporary:
                shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def save(self, record: JobRecord) -> None:
        """Returns once it would survive the power going."""
        temporary = self.path / f"{record.id}{_RECORD}{_PART}"
        try:
            with temporary.open("wb") as file:
                file.write(_encoder.encode(record))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path / f"{record.id}{_RECORD}")
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self._sync()

    def remove(self, job_id: str) -> None:
        """The job and its files; what is not there is no error."""
        self._remove(job_id, _RECORD)
        self.remove_files(job_id)

    def remove_files(self, job_id: str) -> None:
        """The clip and its picture, as far as they are there."""
        self._remove(job_id, _CLIP + _PART, _CLIP, _THUMBNAIL)

    def clip(self, job_id: str) -> Path:
        return self.path / (job_id + _CLIP)

    def unfinished_clip(self, job_id: str) -> Path:
        return self.path / (job_id + _CLIP + _PART)

    def thumbnail(self, job_id: str) -> Path:
        return self.path / (job_id + _THUMBNAIL)

    def _load(self) -> list[JobRecord]:
        for half_made in self._own(_PART):
            half_made.unlink(missing_ok=True)  # before anything is written: they may be what fills the disk
        records = []
        for path in self.path.glob(f"video_*{_RECORD}"):
            try:
                record = _decoded(path)
            except _UNREADABLE as error:
                logger.warning("%s is no record of a video, and is left alone: %r", path, error)
                continue
            if not record.finished:
                record = failed(record, interrupted(), time.time())
                self.remove_files(record.id)
                self.save(record)
            records.append(record)
        for stray in self._own(_CLIP, _THUMBNAIL):
            if not stray.with_suffix(_RECORD).exists():
                stray.unlink()
        return sorted(records, key=lambda record: (record.created_at, record.id))

    def _own(self, *suffixes: str) -> list[Path]:
        """Files that a server of ours made: what else is called video_ is somebody's own."""
        return [
            path
            for path in self.path.glob("video_*")
            if path.name.endswith(suffixes) and _OWN.match(path.name) and path.is_file()
        ]

    def _remove(self, job_id: str, *suffixes: str) -> None:
        for suffix in suffixes:
            (self.path / (job_id + suffix)).unlink(missing_ok=True)

    def _sync(self) -> None:
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _decoded(path: Path) -> JobRecord:
    """A record that can be shown, of the job that the file is named after."""
    record = _decoder.decode(path.read_bytes())
    if record.id != path.stem:
        raise ValueError(f"it is that of {record.id!r}")
    shown(record, Headway(), 0)
    return record
