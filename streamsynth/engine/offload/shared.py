"""`offload_shared_blocks`: one model on the hosts of several ranks, each with 1/N of it, or each with all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from streamsynth.engine.offload.host import HostBlocks, PinnedSlabs, StagedBlocks
from streamsynth.engine.offload.offloaded import Offloaded
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.offload.parts import block_parts
from streamsynth.engine.offload.plan import OffloadPlan, find_plan
from streamsynth.engine.offload.probe import Probe, probe
from streamsynth.engine.offload.ranks import Ranks
from streamsynth.engine.offload.sharded import ShardedSlabs
from streamsynth.engine.offload.slab import SlabLayout
from streamsynth.engine.offload.transfer import open_transfer
from streamsynth.engine.offload.wave import Waves
from streamsynth.errors import invalid_value


@dataclass(frozen=True, slots=True)
class Shared:
    """`waves`, where blocks are sharded, is the only way to run the model; None: each rank runs it as it likes.
    `probed` is what `auto` went by."""

    offloaded: Offloaded
    waves: Waves | None
    probed: Probe | None


def offload_shared_blocks(
    module: nn.Module,
    ranks: Ranks,
    options: OffloadOptions | None = None,
    device: torch.device | str = "cpu",
    *,
    plan: OffloadPlan | None = None,
    agreed: Callable[[bool], bool] = bool,
) -> Shared:
    """As `offload_blocks`, on every rank at the same time with the same model. Ranks that shard have to enter blocks in
    one order from the start: that of a plan, or of the lists. Where other groups of ranks share the same model,
    `agreed` says whether what holds for this group holds for all of them.

    Every rank raises if one of them does; INVALID_VALUE where their models differ.
    """
    options = options or OffloadOptions()
    transfer = open_transfer(torch.device(device))
    with torch.inference_mode(False), torch.no_grad():
        chosen, slab_bytes, words = ranks.agreed(lambda: _looked_at(module, plan))
        if len(set(ranks.words(words))) > 1:
            raise invalid_value("module", type(module).__name__, "the same model on every rank")
        probed = probe(transfer, ranks, slab_bytes) if _is_open(options, ranks) else None
        sharded = ranks.size > 1 and (
            options.sharing == "sharded" if probed is None else agreed(probed.sharded_is_faster)
        )
        host: HostBlocks
        if sharded:
            host, chosen = ShardedSlabs(transfer, ranks), replace(chosen, ordered=True)
        else:
            host = PinnedSlabs(transfer) if options.host == "pinned" else StagedBlocks(transfer)
        offloaded = ranks.agreed(lambda: Offloaded(module, options, chosen, transfer, host, in_step=sharded))
    waves = None if offloaded.lockstep is None else Waves(ranks, offloaded.lockstep)
    return Shared(offloaded, waves, probed)


def _is_open(options: OffloadOptions, ranks: Ranks) -> bool:
    """Whether it is to be measured which way is faster."""
    only_local = options.resident_blocks > 0 or options.host == "in_place"
    return options.sharing == "auto" and ranks.size > 1 and not only_local


def _looked_at(module: nn.Module, plan: OffloadPlan | None) -> tuple[OffloadPlan, int, str]:
    """The plan, the largest block's bytes, and a word that is the same for models that are."""
    chosen = plan or find_plan(module)
    layouts = [SlabLayout.of(parts.tensors) for parts in block_parts(module, chosen)]
    built = hashlib.sha256(repr((chosen.blocks, chosen.entries, layouts)).encode()).hexdigest()
    return chosen, max(layout.nbytes for layout in layouts), built
