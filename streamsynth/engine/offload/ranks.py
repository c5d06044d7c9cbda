"""The ranks that share a model's host memory: what they gather, and how they agree before any of them raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from streamsynth.engine.offload.transfer import Work
from streamsynth.errors import ErrorCode, StreamSynthError

Made = TypeVar("Made")

# Bytes of what one rank tells the others, its length among them.
_WORD = 1024
MAX_WORD_BYTES = _WORD - 4


class Ranks:
    """`data` gathers slabs: gloo on the CPU, NCCL on CUDA devices. `control`, for small words, is a gloo group; left
    out, it is `data`. A silent rank is waited for as long as the groups' timeout; gloo notices a dead one at once.

    Every rank calls the same methods in the same order.
    """

    def __init__(self, data: dist.ProcessGroup, control: dist.ProcessGroup | None = None) -> None:
        self._data = data
        self._control = control or data
        self.rank = dist.get_rank(data)
        self.size = dist.get_world_size(data)

    def gather(self, whole: Tensor, part: Tensor) -> Work:
        """Begin to fill `whole` from every rank's `part`, in the order of ranks. `part` may lie in its place there.

        Waiting raises WORKER_DIED when a rank is lost; under NCCL the current stream waits, not the host.
        """
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        try:
            work = gather(whole, part, group=self._data, async_op=True)
        except RuntimeError as error:
            raise _lost(error) from error
        return _Gathering(work)

    def words(self, word: str) -> list[str]:
        """What every rank says, in their order; a word is cut at MAX_WORD_BYTES."""
        return [each.decode(errors="replace") for each in self.exchange(word.encode()[:MAX_WORD_BYTES])]

    def exchange(self, said: bytes) -> list[bytes]:
        """As `words`, of at most MAX_WORD_BYTES each."""
        part = torch.zeros(_WORD, dtype=torch.uint8)
        part[:4] = torch.tensor([len(said)], dtype=torch.int32).view(torch.uint8)
        part[4 : 4 + len(said)] = torch.frombuffer(bytearray(said or b"\0"), dtype=torch.uint8)[: len(said)]
        parts = [torch.empty_like(part) for _ in range(self.size)]
        try:
            dist.all_gather(parts, part, group=self._control)
        except RuntimeError as error:
            raise _lost(error) from error
        return [_said(each) for each in parts]

    def send(self, tensor: Tensor, to: int) -> None:
        """To the rank of that number, which receives it at the same time."""
        try:
            dist.send(tensor.contiguous(), group=self._data, group_dst=to)
        except RuntimeError as error:
            raise _lost(error) from error

    def receive(self, tensor: Tensor, source: int) -> Tensor:
        """Fills `tensor`, and returns it."""
        try:
            dist.recv(tensor, group=self._data, group_src=source)
        except RuntimeError as error:
            raise _lost(error) from error
        return tensor

    def all_true(self, here: bool) -> bool:
        return all(word == "yes" for word in self.words("yes" if here else "no"))

    def agreed(self, make: Callable[[], Made]) -> Made:
        """What this rank makes, without the others, if all of them succeed. Else every rank raises: its own error, or
        START_FAILED that says whose."""
        made, error = None, None
        try:
            made = make()
        except Exception as raised:  # noqa: BLE001 - it is raised once the other ranks know
            error = raised
        said = self.words("" if error is None else _described(error))
        if error is not None:
            raise error
        for rank, word in enumerate(said):
            if word:
                raise StreamSynthError(ErrorCode.START_FAILED, f"rank {rank} failed: {word}")
        return cast("Made", made)


class _Gathering:
    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise _lost(error) from error


def _said(part: Tensor) -> bytes:
    length = int(part[:4].view(torch.int32))
    return part[4 : 4 + length].numpy().tobytes()


def _described(error: Exception) -> str:
    if isinstance(error, StreamSynthError):
        return f"{error.code.value}: {error.message}"
    return f"{type(error).__name__}: {error}"


def _lost(error: RuntimeError) -> StreamSynthError:
    return StreamSynthError(ErrorCode.WORKER_DIED, f"a rank is lost: {str(error).splitlines()[0][:200]}")
