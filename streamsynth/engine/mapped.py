"""Tensors of safetensors files as views of the mapped file: no private copy, and processes share the page cache."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from streamsynth.errors import ErrorCode, StreamSynthError

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_MAX_HEADER_BYTES = 100_000_000

Manifest: TypeAlias = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def mapped_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of the file. Writing to one changes a private page, never the file.

    Raises START_FAILED for a file that is not what its header says.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        if size < 8:
            raise _damaged(path, "it is shorter than a header")
        # Private and writable, since torch has no tensors that must not be written.
        data = torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    length = int.from_bytes(data[:8].numpy().tobytes(), "little")
    if length > min(_MAX_HEADER_BYTES, size - 8):
        raise _damaged(path, f"its header says {length} bytes")
    try:
        header = json.loads(data[8 : 8 + length].numpy().tobytes())
        entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
        return {name: _view(data[8 + length :], entry, path, name) for name, entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"its header cannot be read: {error!r}") from error


def _view(data: Tensor, entry: Mapping[str, Any], path: Path, name: str) -> Tensor:
    dtype, shape, (begin, end) = DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
    if not 0 <= begin <= end <= len(data) or end - begin != dtype.itemsize * math.prod(shape):
        raise _damaged(path, f"{name} lies at {begin} to {end}")
    found = data[begin:end]
    # Other writers may leave a tensor where its dtype cannot be read in place.
    aligned = found.storage_offset() % dtype.itemsize == 0
    return (found if aligned else found.clone()).view(dtype).reshape(shape)


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Around what safetensors reads: raises START_FAILED with the file's name for one that is not what its header
    says."""
    try:
        yield
    except SafetensorError as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, why: str) -> StreamSynthError:
    return StreamSynthError(ErrorCode.START_FAILED, f"{path} is no safetensors file: {why}")


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules built inside, by one thread, have their buffers, and parameters on the meta device: nothing is drawn."""
    plain = nn.Module.register_parameter

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        plain(self, name, param)
        held = self._parameters[name]
        if held is not None:
            self._parameters[name] = nn.Parameter(held.detach().to("meta"), requires_grad=False)

    nn.Module.register_parameter = register  # type: ignore[method-assign]  # put back below
    try:
        yield
    finally:
        nn.Module.register_parameter = plain  # type: ignore[method-assign]  # as it was


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """How many bytes stayed in mapped files, and how many had to be copied."""

    mapped_bytes: int
    copied_bytes: int


def load_weights(
    module: nn.Module,
    paths: Iterable[Path],
    dtype_of: Callable[[str], torch.dtype | None] = lambda _: None,
    *,
    mapped: bool = True,
) -> LoadedWeights:
    """Give `module`, built under `parameters_on_meta`, the tensors of its state dict: views of the files where they lie
    there in the dtype that is wanted (None: the file's), copies where not, or not `mapped`. Either way `manifest` is
    the same.

    Raises START_FAILED for a tensor that is missing, left over or of another shape.
    """
    found = {name: tensor for path in paths for name, tensor in mapped_tensors(path).items()}
    counts = {True: 0, False: 0}
    wanted: dict[str, Tensor] = {}
    for name, tensor in found.items():
        dtype = dtype_of(name) or tensor.dtype
        in_place = mapped and dtype is tensor.dtype
        wanted[name] = tensor if in_place else tensor.to(dtype, copy=True)
        counts[in_place] += wanted[name].nbytes
    assign_tensors(module, wanted)
    return LoadedWeights(counts[True], counts[False])


def assign_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Make `tensors` themselves the module's parameters, and its persistent buffers. Raises as `load_weights`."""
    try:
        module.load_state_dict(dict(tensors), strict=True, assign=True)
    except RuntimeError as error:
        raise StreamSynthError(ErrorCode.START_FAILED, str(error)) from error
    module.requires_grad_(False)


def manifest(module: nn.Module) -> Manifest:
    """What a way of loading has to agree on: of every parameter and buffer, the dtype and the shape."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in named}
