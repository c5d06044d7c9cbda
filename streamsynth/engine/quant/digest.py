"""What files contain: SHA-256 of their chunks, read by several threads, and remembered while a file is the same one."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHUNK_BYTES = 32 << 20
_READERS = 8


def chunk_digests(path: Path) -> list[str]:
    """One for every `CHUNK_BYTES` of the file; the file comes into the page cache on the way. Raises OSError."""
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(_READERS, "digest") as readers:
        size = os.fstat(file.fileno()).st_size
        offsets = range(0, size, CHUNK_BYTES)
        return list(readers.map(lambda offset: _digest(file.fileno(), offset), offsets))


def file_digest(path: Path) -> str:
    """Of the whole content. Raises OSError."""
    size = path.stat().st_size
    return hashlib.sha256("".join((f"{size} ", *chunk_digests(path))).encode()).hexdigest()


def _digest(descriptor: int, offset: int) -> str:
    found = hashlib.sha256()
    end = offset + CHUNK_BYTES
    while offset < end and (piece := os.pread(descriptor, min(1 << 20, end - offset), offset)):
        found.update(piece)
        offset += len(piece)
    return found.hexdigest()


class DigestMemory:
    """Digests of files by device, inode, size and time of the last change, in a folder that processes may share.

    It is fooled by a change that keeps all four, as restoring a file's time does; `file_digest` is not.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def digest(self, path: Path, *, fresh: bool = False) -> str:
        """`fresh`: read the file whatever is remembered. Raises OSError."""
        stat = path.stat()
        identity = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
        remembered = self._folder / hashlib.sha256(identity.encode()).hexdigest()[:32]
        if not fresh and (found := self._recall(remembered, identity)) is not None:
            return found
        digest = file_digest(path)
        self._remember(remembered, identity, digest)
        return digest

    def _recall(self, remembered: Path, identity: str) -> str | None:
        try:
            found = json.loads(remembered.read_bytes())
            return str(found["digest"]) if found["identity"] == identity else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _remember(self, remembered: Path, identity: str, digest: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        written = self._folder / f".{uuid.uuid4().hex}"
        try:
            written.write_text(json.dumps({"identity": identity, "digest": digest}))
            written.replace(remembered)
        finally:
            written.unlink(missing_ok=True)


def source_digest(files: Sequence[tuple[str, str]]) -> str:
    """Of files by name and digest, in whatever order."""
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()
