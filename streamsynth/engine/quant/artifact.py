"""One finished component on disk: safetensors files, a manifest with the digest of every chunk, and a seal over that.

manifest.json            what it is, what it was made from, and the files
tensors-00000.safetensors ...
COMPLETE                 the SHA-256 of manifest.json, written last
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from streamsynth.engine.mapped import DTYPES, mapped_tensors
from streamsynth.engine.quant.digest import CHUNK_BYTES, chunk_digests
from streamsynth.errors import ErrorCode, StreamSynthError

CPU = torch.device("cpu")
SCHEMA_VERSION = 1
MANIFEST, SEAL = "manifest.json", "COMPLETE"
# Small beside a model: all but the last go to a device while others are read.
_FILE_BYTES = 512 << 20
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class ArtifactFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`chunks` are digests of `CHUNK_BYTES` each."""

    name: str
    nbytes: int
    chunks: tuple[str, ...]


class ArtifactManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`key` is what names it; `aliases` are tensors that are another one under a second name; `origin` says where the
    source lay, for people and for replacing what became stale; `source` is (name, digest) of each of its files."""

    schema_version: int
    key: str
    component: str
    variant: str
    recipe: str
    layout: str
    origin: str
    source: tuple[tuple[str, str], ...]
    layers: tuple[str, ...]
    tensors: int
    aliases: dict[str, str]
    files: tuple[ArtifactFile, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


class DamagedArtifact(Exception):
    """Why an artifact cannot be used."""


def write_artifact(folder: Path, manifest: ArtifactManifest, tensors: Mapping[str, Tensor]) -> ArtifactManifest:
    """Into an empty folder, synced to the disk, the seal last. Returns the manifest with its files. Raises OSError."""
    files = tuple(
        _write_file(folder, f"tensors-{number:05}.safetensors", part) for number, part in enumerate(_parts(tensors))
    )
    sealed = msgspec.structs.replace(manifest, files=files)
    encoded = msgspec.json.format(msgspec.json.encode(sealed), indent=1) + b"\n"
    _write_synced(folder / MANIFEST, [encoded])
    _write_synced(folder / SEAL, [hashlib.sha256(encoded).hexdigest().encode()])
    sync_folder(folder)
    return sealed


def read_manifest(folder: Path) -> ArtifactManifest:
    """Raises DamagedArtifact unless all is there in full; what the files contain is not looked at."""
    try:
        encoded, seal = (folder / MANIFEST).read_bytes(), (folder / SEAL).read_bytes()
        manifest = msgspec.json.decode(encoded, type=ArtifactManifest)
    except (OSError, msgspec.DecodeError) as error:
        raise DamagedArtifact(str(error)) from error
    if hashlib.sha256(encoded).hexdigest().encode() != seal:
        raise DamagedArtifact(f"{MANIFEST} is not what {SEAL} says")
    if manifest.schema_version != SCHEMA_VERSION:
        raise DamagedArtifact(f"schema {manifest.schema_version}, not {SCHEMA_VERSION}")
    for file in manifest.files:
        if Path(file.name).name != file.name or not file.name.endswith(".safetensors"):
            raise DamagedArtifact(f"{file.name!r} is no file name")
        path = folder / file.name
        size = path.stat().st_size if path.is_file() else None
        if size != file.nbytes:
            raise DamagedArtifact(f"{file.name} has {size} bytes, not {file.nbytes}")
    return manifest


def check_contents(folder: Path, manifest: ArtifactManifest) -> None:
    """Read every byte. Raises DamagedArtifact."""
    for file in manifest.files:
        _check_file(folder, file)


def read_tensors(folder: Path, manifest: ArtifactManifest, device: torch.device = CPU) -> dict[str, Tensor]:
    """Views of the mapped files, or copies on another device, checked; aliases are the same tensors. Raises
    DamagedArtifact."""
    tensors: dict[str, Tensor] = {}
    try:
        with ThreadPoolExecutor(1, "check") as checker:
            checked = checker.map(partial(_check_file, folder), manifest.files)
            for file, _ in zip(manifest.files, checked, strict=True):
                mapped = mapped_tensors(folder / file.name)
                tensors |= {name: each.to(device) for name, each in mapped.items()}
        tensors |= {alias: tensors[name] for alias, name in manifest.aliases.items()}
    except (OSError, KeyError, StreamSynthError) as error:
        raise DamagedArtifact(str(error)) from error
    if len(tensors) != manifest.tensors:
        raise DamagedArtifact(f"{len(tensors)} tensors, not {manifest.tensors}")
    return tensors


def _check_file(folder: Path, file: ArtifactFile) -> None:
    try:
        chunks = chunk_digests(folder / file.name)
    except OSError as error:
        raise DamagedArtifact(str(error)) from error
    if tuple(chunks) != file.chunks:
        wrong = [number for number, pair in enumerate(zip(chunks, file.chunks, strict=False)) if len(set(pair)) > 1]
        at = f" from byte {wrong[0] * CHUNK_BYTES}" if wrong else ""
        raise DamagedArtifact(f"{file.name} is not as it was written{at}")


def sync_folder(folder: Path) -> None:
    """Names of files are on the disk then too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parts(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """For files of about `_FILE_BYTES`, each with wide dtypes first: then every tensor lies where it can be read."""
    part: dict[str, Tensor] = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        if part and sum(each.nbytes for each in part.values()) + tensor.nbytes > _FILE_BYTES:
            yield part
            part = {}
        part[name] = tensor
    yield part


def _write_file(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> ArtifactFile:
    path = folder / name
    _write_synced(path, _encoded(tensors))
    return ArtifactFile(name, path.stat().st_size, tuple(chunk_digests(path)))


def _encoded(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    entries: dict[str, object] = {}
    offset = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise StreamSynthError(ErrorCode.INVALID_VALUE, f"{name} is {tensor.dtype}: it cannot be kept", param=name)
        end = offset + tensor.nbytes
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    for tensor in tensors.values():
        yield _bytes_of(tensor)


def _bytes_of(tensor: Tensor) -> memoryview:
    plain = tensor.detach().to("cpu").contiguous().reshape(-1)
    content: Any = plain.view(torch.uint8).numpy()
    return memoryview(content)


def _write_synced(path: Path, pieces: Sequence[bytes] | Iterator[bytes | memoryview]) -> None:
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
