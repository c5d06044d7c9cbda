"""Finished components on disk, each in a folder named for everything that decides its bytes.

COMPONENT-KEY/     one artifact (artifact.py); it appears and disappears whole
.locks/            one builder of a key at a time; a dead one's lock is gone with it
.digests/          what source files contain (digest.py)
.being-*           being written, or being removed
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from streamsynth.engine.quant.artifact import (
    CPU,
    SCHEMA_VERSION,
    ArtifactManifest,
    DamagedArtifact,
    check_contents,
    read_manifest,
    read_tensors,
    sync_folder,
    write_artifact,
)
from streamsynth.engine.quant.digest import DigestMemory, source_digest
from streamsynth.engine.quant.float8 import QUANTISER_VERSION
from streamsynth.engine.quant.recipe import Recipe
from streamsynth.errors import invalid_value

# How tensors are cut up between ranks. Ranks share one whole artifact; a cut one would have another name here.
_LAYOUT = "whole"
_COMPONENT = re.compile(r"[a-z0-9_]{1,64}")
_ARTIFACT = re.compile(r"[a-z0-9_]{1,64}-[0-9a-f]{32}")
"""Of `Wanted.folder`."""
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One component of a model as a recipe makes it: `folder` is what its artifact is called. `variant` is how it was
    loaded, as far as that decides its bytes."""

    component: str
    variant: str
    recipe: Recipe
    origin: Path
    source: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        decides = {
            "schema": SCHEMA_VERSION,
            "quantiser": QUANTISER_VERSION,
            "component": self.component,
            "variant": self.variant,
            "recipe": self.recipe.canonical(),
            "layout": _LAYOUT,
            "source": source_digest(self.source),
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    @property
    def folder(self) -> str:
        return f"{self.component}-{self.key[:32]}"


@dataclass(frozen=True, slots=True)
class Finished:
    """What is kept: tensors by name, other names of the same tensors, and the paths of quantised layers."""

    tensors: Mapping[str, Tensor]
    aliases: Mapping[str, str]
    layers: Sequence[str]


@dataclass(frozen=True, slots=True)
class Entry:
    """An artifact that is there, or why it is damaged."""

    folder: Path
    manifest: ArtifactManifest | None
    damage: str | None


class QuantCache:
    """`root` may be shared by processes, and by models. Everything here blocks on files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._digests = DigestMemory(root / ".digests")

    def identify(
        self,
        component: str,
        recipe: Recipe,
        origin: Path,
        files: Sequence[Path],
        *,
        variant: str = "",
        fresh: bool = False,
    ) -> Wanted:
        """`files`, all below the folder `origin`, are what the component is loaded from. `fresh`: read them whatever is
        remembered of them. Raises INVALID_VALUE, OSError."""
        if not _COMPONENT.fullmatch(component):
            raise invalid_value("component", component, "1 to 64 of a to z, 0 to 9 and _")
        if not files:
            raise invalid_value("files", str(origin), "a folder with files to load")
        source = ((file.relative_to(origin).as_posix(), self._digests.digest(file, fresh=fresh)) for file in files)
        return Wanted(component, variant, recipe, origin.absolute(), tuple(sorted(source)))

    def read(self, wanted: Wanted, device: torch.device = CPU) -> tuple[ArtifactManifest, dict[str, Tensor]] | None:
        """Checked views of the mapped files, or copies on another device; None if there is no such artifact. Raises
        DamagedArtifact for one that cannot be used; `build` replaces it."""
        folder = self.root / wanted.folder
        if not folder.is_dir():
            return None
        manifest = self._manifest(folder, wanted)
        return manifest, read_tensors(folder, manifest, device)

    def has(self, wanted: Wanted) -> bool:
        """Whether `read` has something to look at: what the files contain is not checked."""
        try:
            self._manifest(self.root / wanted.folder, wanted)
        except DamagedArtifact:
            return False
        return True

    def build(self, wanted: Wanted, make: Callable[[], Finished], *, replace: bool = False) -> ArtifactManifest:
        """Publish what `make` returns, unless somebody has, and not `replace`: then that is what is there. Waits for
        another builder.

        Removes what the same source, component and recipe made before the source changed. Raises OSError (a full disk)
        and what `make` raises; nothing is left behind then, nor by a builder that was killed, once another one comes.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        folder = self.root / wanted.folder
        with self._lock(wanted.folder):
            self._sweep(wanted.folder)
            if not replace and (found := self._intact(folder, wanted)) is not None:
                return found
            built = self._write(wanted, make())
        self._remove_stale(wanted)
        return built

    def entries(self) -> list[Entry]:
        """Folders with another name than an artifact's are somebody else's."""
        if not self.root.is_dir():
            return []
        folders = (each for each in self.root.iterdir() if _ARTIFACT.fullmatch(each.name) and each.is_dir())
        return [_entry(folder) for folder in sorted(folders)]

    def verify(self, entry: Entry) -> str | None:
        """What is wrong with it, every byte read, its source's too; None if nothing is. A source that is no longer
        there is nothing wrong."""
        if entry.manifest is None:
            return entry.damage
        try:
            check_contents(entry.folder, entry.manifest)
        except DamagedArtifact as damage:
            return str(damage)
        origin = Path(entry.manifest.origin)
        for name, digest in entry.manifest.source:
            if (origin / name).is_file() and self._digests.digest(origin / name, fresh=True) != digest:
                return f"its source {origin / name} has changed"
        return None

    def remove(self, entry: Entry) -> None:
        self._discard(entry.folder)

    def _manifest(self, folder: Path, wanted: Wanted) -> ArtifactManifest:
        manifest = read_manifest(folder)
        if manifest.key != wanted.key:
            raise DamagedArtifact(f"its key is {manifest.key}, not {wanted.key}")
        return manifest

    def _intact(self, folder: Path, wanted: Wanted) -> ArtifactManifest | None:
        try:
            manifest = self._manifest(folder, wanted)
            read_tensors(folder, manifest)
        except DamagedArtifact:
            return None
        return manifest

    def _write(self, wanted: Wanted, finished: Finished) -> ArtifactManifest:
        being = self.root / f".being-written-{wanted.folder}-{uuid.uuid4().hex}"
        being.mkdir()
        manifest = ArtifactManifest(
            schema_version=SCHEMA_VERSION,
            key=wanted.key,
            component=wanted.component,
            variant=wanted.variant,
            recipe=wanted.recipe.canonical(),
            layout=_LAYOUT,
            origin=str(wanted.origin),
            source=wanted.source,
            layers=tuple(finished.layers),
            tensors=len(finished.tensors) + len(finished.aliases),
            aliases=dict(finished.aliases),
        )
        try:
            written = write_artifact(being, manifest, finished.tensors)
            return self._publish(being, wanted, written)
        finally:
            shutil.rmtree(being, ignore_errors=True)

    def _publish(self, being: Path, wanted: Wanted, written: ArtifactManifest) -> ArtifactManifest:
        folder = self.root / wanted.folder
        if folder.exists():  # of no use: this builder has looked
            self._discard(folder)
        try:
            being.rename(folder)
        except OSError as error:
            # A builder that the lock did not keep out, on a file system without locks, was first.
            if error.errno not in _TAKEN or (found := self._intact(folder, wanted)) is None:
                raise
            return found
        sync_folder(self.root)
        return written

    def _remove_stale(self, wanted: Wanted) -> None:
        for entry in self.entries():
            made = entry.manifest
            if made is None or made.key == wanted.key:
                continue
            as_wanted = (wanted.component, wanted.variant, wanted.recipe.canonical(), str(wanted.origin))
            if (made.component, made.variant, made.recipe, made.origin) == as_wanted:
                self._discard(entry.folder)

    def _discard(self, folder: Path) -> None:
        """It is gone at once; those who have mapped it keep what they have."""
        being = self.root / f".being-removed-{folder.name}-{uuid.uuid4().hex}"
        try:
            folder.rename(being)
        except FileNotFoundError:
            return
        shutil.rmtree(being, ignore_errors=True)

    def _sweep(self, name: str) -> None:
        """What killed builders of this key left: nobody else is one now."""
        for left in self.root.glob(f".being-*-{name}-*"):
            shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        locks = self.root / ".locks"
        locks.mkdir(exist_ok=True)
        descriptor = os.open(locks / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _entry(folder: Path) -> Entry:
    try:
        return Entry(folder, read_manifest(folder), None)
    except DamagedArtifact as damage:
        return Entry(folder, None, str(damage))
