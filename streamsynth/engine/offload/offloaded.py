"""`offload_blocks`: make a model's blocks come and go, whatever the model is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from streamsynth.engine.absent import AbsentWeight
from streamsynth.engine.offload.executor import SlotExecutor
from streamsynth.engine.offload.host import HostBlocks, PinnedSlabs, StagedBlocks
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.offload.order import PassOrder
from streamsynth.engine.offload.parts import BlockParts, Owner, block_parts, move_present
from streamsynth.engine.offload.plan import OffloadPlan, find_plan
from streamsynth.engine.offload.slab import SlabLayout
from streamsynth.engine.offload.slots import SlotState
from streamsynth.engine.offload.statistics import OffloadStatistics
from streamsynth.engine.offload.transfer import Transfer, open_transfer
from streamsynth.engine.offload.wave import Lockstep
from streamsynth.errors import invalid_value

_WHY = "is not on the device: used outside of its block's entries"


def offload_blocks(
    module: nn.Module,
    options: OffloadOptions | None = None,
    device: torch.device | str = "cpu",
    *,
    plan: OffloadPlan | None = None,
) -> Offloaded:
    """Keep the blocks of `module` on the host, and bring each to `device` when it runs; all else moves there now.

    `module` is on the CPU, and afterwards runs as it did, for inference, from one thread, to the same bits. `plan`:
    left out, it is found from the block lists. Parameters are offloaded; buffers, and parameters that several blocks
    share, stay on the device. Outside of its block a parameter is an `AbsentWeight`: it has a shape and a dtype, and
    raises when it is computed with. Hooks that replace a block's `forward` belong on afterwards.

    Raises INVALID_VALUE for a model that cannot be offloaded, START_FAILED where host memory cannot be pinned.
    """
    options = options or OffloadOptions()
    if options.sharing == "sharded":
        raise invalid_value("sharing", options.sharing, "auto or local where one process has the model")
    transfer = open_transfer(torch.device(device))
    host = PinnedSlabs(transfer) if options.host == "pinned" else StagedBlocks(transfer)
    # What is made here has to be ordinary tensors: a later pass may run outside of the caller's inference mode.
    with torch.inference_mode(False), torch.no_grad():
        return Offloaded(module, options, plan or find_plan(module), transfer, host)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a module holds the slab's tensor `index`."""

    path: str
    owner: Owner
    name: str
    index: int
    absent: Tensor


@dataclass(frozen=True, slots=True)
class _Streamed:
    layout: SlabLayout
    places: Sequence[_Place]


class Offloaded:
    """A model whose blocks come and go. `plan` is the one in force; `slab_bytes` a slot's size; `lockstep`, for ranks
    that load together, says where this one is."""

    def __init__(
        self,
        module: nn.Module,
        options: OffloadOptions,
        plan: OffloadPlan,
        transfer: Transfer,
        host: HostBlocks,
        *,
        in_step: bool = False,
    ) -> None:
        self.module = module
        self.plan = plan
        self._host = host
        self._resident = options.resident_blocks
        if self._resident > len(plan.blocks):
            raise invalid_value("resident_blocks", self._resident, f"at most {len(plan.blocks)}, all of them")
        blocks = plan.modules(module)
        self._streamed = [self._take(each, transfer.device) for each in block_parts(module, plan)[self._resident :]]
        move_present(module, transfer.device)
        self.slab_bytes = max((host.slot_bytes(each.layout) for each in self._streamed), default=0)
        order = PassOrder(plan.blocks, known=plan.ordered, may_skip=plan.may_skip)
        self.executor = SlotExecutor(
            host,
            transfer,
            order,
            slab_bytes=self.slab_bytes,
            resident=self._resident,
            prefetch=options.prefetch_blocks,
        )
        self.lockstep = Lockstep(self.executor, len(plan.blocks)) if in_step else None
        self._views: dict[tuple[int, SlabLayout], list[nn.Parameter]] = {}
        self._closed = False
        self._wrapped: list[tuple[nn.Module, str, Callable[..., Any] | None, Callable[..., Any]]] = []
        for number, block in enumerate(blocks):
            for entry in plan.entries:
                self._wrap(number, block, entry)

    @property
    def host_bytes(self) -> int:
        """Of this process alone: not what lies in mapped files."""
        return self._host.host_bytes

    @property
    def states(self) -> Sequence[SlotState]:
        return self.executor.states

    def statistics(self) -> OffloadStatistics:
        """Waits until the device has done what it was given."""
        return self.executor.statistics()

    def reset_statistics(self) -> None:
        self.executor.reset_statistics()

    def host_tensors(self) -> Mapping[str, Tensor]:
        """The offloaded parameters by their paths, on the host: not to be changed."""
        found: dict[str, Tensor] = {}
        for number, each in enumerate(self._streamed):
            tensors = self._host.tensors(number)
            found |= {place.path: tensors[place.index] for place in each.places}
        return found

    def close(self) -> None:
        """Make it an ordinary model again, its blocks on the CPU. Raises INTERNAL_ERROR inside a block."""
        if self._closed:
            return
        self.executor.drain()
        self._closed = True
        self._unwrap()
        for number, each in enumerate(self._streamed):
            parameters = [nn.Parameter(tensor, requires_grad=False) for tensor in self._host.tensors(number)]
            for place in each.places:
                place.owner[place.name] = parameters[place.index]
        # Somebody may hold on to this object, and to wrapped methods: not to what is large.
        self._views.clear()
        self._streamed.clear()
        self._host.close()
        self.executor.close()

    def _take(self, parts: BlockParts, device: torch.device) -> _Streamed:
        """Pack a block, and let go of its tensors."""
        layout = SlabLayout.of(parts.tensors)
        self._host.add(layout, parts.tensors)
        places = [
            _Place(path, owner, name, index, AbsentWeight.of(parts.tensors[index], path, _WHY, device=device))
            for path, owner, name, index in parts.places
        ]
        parts.tensors.clear()
        for place in places:
            place.owner[place.name] = place.absent
        return _Streamed(layout, places)

    def _wrap(self, number: int, block: nn.Module, entry: str) -> None:
        path, _, method = entry.rpartition(".")
        owner = block.get_submodule(path)
        inner = getattr(owner, method, None)
        if inner is None:
            raise invalid_value("entries", entry, f"a method of {self.plan.blocks[number]}")
        wrapped = self._entering(number, inner)
        self._wrapped.append((owner, method, owner.__dict__.get(method), wrapped))
        setattr(owner, method, wrapped)

    def _unwrap(self) -> None:
        """Where nobody has wrapped the wrapper; there it stays, and does nothing."""
        for owner, method, before, wrapped in self._wrapped:
            if owner.__dict__.get(method) is not wrapped:
                continue
            delattr(owner, method)
            if before is not None:
                setattr(owner, method, before)
        self._wrapped.clear()

    def _entering(self, number: int, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def entered(*args: Any, **kwargs: Any) -> Any:
            if self._closed:
                return inner(*args, **kwargs)
            self._enter(number)
            try:
                return inner(*args, **kwargs)
            finally:
                self._leave(number)

        return entered

    def _enter(self, number: int) -> None:
        slot = (self.lockstep or self.executor).enter(number)
        if slot is None:
            return
        streamed = self._streamed[number - self._resident]
        parameters = self._parameters(slot, streamed.layout)
        for place in streamed.places:
            place.owner[place.name] = parameters[place.index]

    def _leave(self, number: int) -> None:
        if (self.lockstep or self.executor).leave(number) and number >= self._resident:
            for place in self._streamed[number - self._resident].places:
                place.owner[place.name] = place.absent

    def _parameters(self, slot: int, layout: SlabLayout) -> list[nn.Parameter]:
        """Made once for blocks that are built alike."""
        key = (slot, layout)
        if key not in self._views:
            # Also under inference_mode these have to be ordinary tensors: a later pass may run outside of it.
            with torch.inference_mode(False):
                views = layout.views(self.executor.memories[slot])
                self._views[key] = [nn.Parameter(view, requires_grad=False) for view in views]
        return self._views[key]
