"""A model whose blocks come and go gives the bits of one that is resident, whatever fails in between."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from offload_models import Network, given, network
from torch import Tensor, nn

from streamsynth.engine.absent import AbsentWeight
from streamsynth.engine.offload.host import PinnedSlabs
from streamsynth.engine.offload.offloaded import Offloaded, offload_blocks
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.offload.plan import OffloadPlan, find_plan
from streamsynth.engine.offload.slots import SlotState
from streamsynth.engine.offload.transfer import Arrival, Fence
from streamsynth.errors import StreamSynthError

BLOCKS = tuple(f"blocks.{number}" for number in range(5))


@pytest.fixture(autouse=True)
def without_gradients() -> object:
    with torch.inference_mode():
        yield


def nothing_in_use(offloaded: Offloaded) -> bool:
    return SlotState.IN_USE not in offloaded.states


@pytest.mark.parametrize("host", ["pinned", "in_place"])
@pytest.mark.parametrize("resident", [0, 2, 5])
@pytest.mark.parametrize("prefetch", [0, 1, 3, 8])
def test_offloaded_equals_resident_bit_for_bit(host: str, resident: int, prefetch: int) -> None:
    """V49: 50 repeats."""
    model, x = network(), given()
    expected = model(x)
    options = OffloadOptions(resident_blocks=resident, prefetch_blocks=prefetch, host=host)  # type: ignore[arg-type]
    offloaded = offload_blocks(model, options)
    assert len(offloaded.states) == min(prefetch + 1, 5 - resident)
    for _ in range(50):
        assert torch.equal(model(x), expected)
    assert nothing_in_use(offloaded)
    offloaded.close()
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("host", ["pinned", "in_place"])
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("block", range(5))
def test_a_block_that_raises_leaves_slots_free_for_the_next_pass(host: str, prefetch: int, block: int) -> None:
    """V57"""
    model, x = network(), given()
    expected = model(x)
    offloaded = offload_blocks(model, OffloadOptions(prefetch_blocks=prefetch, host=host))  # type: ignore[arg-type]
    for _ in range(3):
        model.blocks[block].fails = True
        with pytest.raises(ValueError, match="injected"):
            model(x)
        assert nothing_in_use(offloaded)
        assert isinstance(model.blocks[block].up.weight, AbsentWeight)
        assert torch.equal(model(x), expected)
    offloaded.executor.drain()
    assert set(offloaded.states) == {SlotState.FREE}


class FailingHost(PinnedSlabs):
    """Its `fails`-th next load raises: at once, or when it is waited for."""

    fails = 0
    late = False

    def load(self, block: int, target: Tensor, after: Fence) -> Arrival:
        self.fails -= 1
        if self.fails != 0:
            return super().load(block, target, after)
        target.fill_(255)
        if not self.late:
            raise OSError("no such block")
        return FailedArrival()


class FailedArrival:
    def wait(self, asked: Fence = None) -> None:
        raise OSError("no such block")

    def synchronize(self) -> None: ...


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("load", range(1, 7))
def test_a_load_that_fails_leaves_slots_free_for_the_next_pass(
    late: bool, load: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamsynth.engine.offload.offloaded.PinnedSlabs", FailingHost)
    monkeypatch.setattr(FailingHost, "late", late)
    model, x = network(), given()
    expected = model(x)
    offloaded = offload_blocks(model)
    monkeypatch.setattr(FailingHost, "fails", load)
    with pytest.raises(OSError, match="no such block"):
        for _ in range(3):
            model(x)
    assert nothing_in_use(offloaded)
    for _ in range(2):
        assert torch.equal(model(x), expected)


def test_memory_on_the_device_does_not_grow_with_the_number_of_blocks() -> None:
    """DL-2"""

    def slots(blocks: int) -> tuple[int, int]:
        offloaded = offload_blocks(network(blocks))
        model = offloaded.module
        present = sum(each.nbytes for each in model.parameters() if not isinstance(each, AbsentWeight))
        return sum(memory.nbytes for memory in offloaded.executor.memories), present

    assert slots(3) == slots(12)


def test_every_block_is_fetched_once_a_pass_and_counted() -> None:
    model, x = network(), given()
    offloaded = offload_blocks(model, plan=OffloadPlan(BLOCKS))
    model(x)
    offloaded.reset_statistics()
    for _ in range(4):
        model(x)
    found = offloaded.statistics()
    assert (found.loads, found.nbytes) == (20, 20 * offloaded.slab_bytes)
    assert (found.on_demand, found.discarded) == (0, 0)
    assert found.copy_ms > 0
    assert found.stall_ms >= found.copy_ms
    assert found.gigabytes_per_s > 0


def test_the_next_block_is_fetched_before_one_runs() -> None:
    """DL-3"""
    model = network()
    offloaded = offload_blocks(model, plan=OffloadPlan(BLOCKS))
    seen: list[Sequence[SlotState]] = []
    model.blocks[2].register_forward_pre_hook(lambda *_: seen.append(list(offloaded.states)))
    model.blocks[2].up.register_forward_pre_hook(lambda *_: seen.append(list(offloaded.states)))
    model(given())
    assert sorted(seen[0]) == [SlotState.FREE, SlotState.LOADING]
    assert sorted(seen[1]) == [SlotState.IN_USE, SlotState.LOADING]


@pytest.mark.parametrize(("runs", "expected"), [([0, 2], 1), ([0, 1, 1], 2), ([2], 0), ([0, 1, 2, 3, 4, 2], 0)])
def test_blocks_out_of_the_declared_order_raise_with_both_names(runs: list[int], expected: int) -> None:
    """V51"""
    model, x = network(), given()
    resident = model(x)
    offloaded = offload_blocks(model, plan=OffloadPlan(BLOCKS))
    model.runs, wrong = runs, runs[-1]
    with pytest.raises(StreamSynthError, match=rf"blocks\.{wrong} was entered where blocks\.{expected} is next"):
        model(x)
    model.runs = [0, 1, 2, 3, 4]
    assert torch.equal(model(x), resident)
    assert nothing_in_use(offloaded)


def test_a_pass_may_end_early() -> None:
    """Step skipping leaves out the rest of the blocks."""
    model, x = network(), given()
    resident = model(x)
    model.runs = [0, 1]
    early = model(x)
    offload_blocks(model, plan=OffloadPlan(BLOCKS))
    for _ in range(2):
        model.runs = [0, 1]
        assert torch.equal(model(x), early)
        model.runs = [0, 1, 2, 3, 4]
        assert torch.equal(model(x), resident)


def test_blocks_in_the_middle_may_be_skipped_where_the_plan_says_so() -> None:
    model, x = network(), given()
    model.runs = [0, 1, 4]
    expected = model(x)
    offloaded = offload_blocks(model, plan=OffloadPlan(BLOCKS, may_skip=True))
    for _ in range(3):
        assert torch.equal(model(x), expected)
    assert offloaded.statistics().discarded > 0


def test_an_order_that_is_not_the_lists_is_learned_from_a_pass() -> None:
    model, x = network(), given()
    model.runs = [3, 1, 0, 4, 2]
    expected = model(x)
    offloaded = offload_blocks(model)
    model.blocks[0].fails = True
    with pytest.raises(ValueError, match="injected"):
        model(x)
    for _ in range(3):
        assert torch.equal(model(x), expected)
    offloaded.reset_statistics()
    assert torch.equal(model(x), expected)
    assert offloaded.statistics().on_demand == 0
    model.runs = [3, 0]
    with pytest.raises(StreamSynthError, match=r"blocks\.0 was entered where blocks\.1 is next"):
        model(x)


def test_a_block_that_runs_twice_in_a_pass_is_refused_by_name() -> None:
    model = network()
    model.runs = [0, 1, 1]
    offload_blocks(model)
    with pytest.raises(StreamSynthError, match=r"blocks\.1 was entered twice in a pass"):
        model(given())


def test_closing_lets_go_of_memory_and_of_methods() -> None:
    """Also where somebody has wrapped a block's method since, and holds on to the object."""
    model, x = network(), given()
    expected = model(x)
    offloaded = offload_blocks(model)
    inner = model.blocks[3].forward
    model.blocks[3].forward = lambda x: inner(x)  # type: ignore[method-assign]  # as hooks do
    slabs = [weakref.ref(memory) for memory in offloaded.executor.memories]
    assert torch.equal(model(x), expected)
    offloaded.close()
    gc.collect()
    assert [ref() for ref in slabs] == [None, None]
    assert offloaded.host_tensors() == {}
    assert ["forward" in block.__dict__ for block in model.blocks] == [False, False, False, True, False]
    assert torch.equal(model(x), expected)
    assert torch.equal(offload_blocks(model).module(x), expected)


def test_an_absent_weight_has_a_shape_and_a_dtype_and_no_values() -> None:
    """V56: computing with it raises, and so does saving it."""
    model = network()
    offload_blocks(model)
    weight = model.blocks[0].up.weight
    assert isinstance(weight, nn.Parameter)
    assert (weight.shape, weight.dtype, weight.numel()) == ((99, 33), torch.float32, 99 * 33)
    assert sum(each.numel() for each in model.parameters()) == sum(each.numel() for each in network().parameters())
    with pytest.raises(StreamSynthError, match=r"blocks\.0\.up\.weight.* not on the device"):
        model.blocks[0].up(torch.zeros(1, 33))
    with pytest.raises(StreamSynthError, match=r"blocks\.0\.norm\.weight is not on the device"):
        model.blocks[0].norm.weight + 1
    with pytest.raises(StreamSynthError, match="not on the device"):
        model.state_dict()


def test_the_weights_on_the_host_are_those_of_the_model() -> None:
    """V55"""
    before = dict(network().named_parameters())
    offloaded = offload_blocks(network(), OffloadOptions(resident_blocks=1))
    found = offloaded.host_tensors()
    assert set(found) == {name for name in before if name.startswith(BLOCKS[1:])}
    assert all(torch.equal(tensor, before[name]) for name, tensor in found.items())


def test_what_blocks_share_stays_on_the_device() -> None:
    model, x = network(), given()
    model.blocks[3].up.weight = model.blocks[1].up.weight
    model.blocks[4].down.bias = model.last_bias = nn.Parameter(torch.ones(33))
    model.blocks[2].down.bias = model.blocks[2].norm.bias
    expected = model(x)
    offloaded = offload_blocks(model)
    for _ in range(3):
        assert torch.equal(model(x), expected)
    names = set(offloaded.host_tensors())
    assert not {"blocks.1.up.weight", "blocks.3.up.weight", "blocks.4.down.bias"} & names
    assert {"blocks.2.down.bias", "blocks.2.norm.bias"} <= names


def test_a_buffer_keeps_what_a_block_writes_into_it() -> None:
    model, x = network(), given()
    offload_blocks(model)
    before = model(x)
    model.blocks[1].gain.zero_()
    assert not torch.equal(model(x), before)
    assert model.blocks[1].gain.item() == 0


class Wrapped(nn.Parameter): ...


def test_what_cannot_be_offloaded_is_refused_by_name() -> None:
    """V65"""
    model = network()
    model.blocks[1].up.bias = Wrapped(torch.zeros(99))
    with pytest.raises(StreamSynthError, match=r"blocks\.1\.up\.bias is 'Wrapped'; it must be a plain tensor"):
        offload_blocks(model)
    model.blocks[1].up.to("meta")
    with pytest.raises(StreamSynthError, match=r"blocks\.1\.up\.weight is 'meta'; it must be on the CPU"):
        offload_blocks(model)
    with pytest.raises(StreamSynthError, match="a list of blocks"):
        offload_blocks(nn.Linear(2, 2))
    with pytest.raises(StreamSynthError, match=r"resident_blocks is 6; it must be at most 5"):
        offload_blocks(network(), OffloadOptions(resident_blocks=6))
    for plan in (("nothing",), ("blocks.0", "blocks.0"), ("blocks", "blocks.0"), ()):
        with pytest.raises(StreamSynthError, match="blocks is"):
            offload_blocks(network(), plan=OffloadPlan(plan))
    with pytest.raises(StreamSynthError, match="sharing is 'sharded'; it must be auto or local"):
        offload_blocks(network(), OffloadOptions(sharing="sharded"))
    for wrong in ({"resident_blocks": -1}, {"prefetch_blocks": 9}, {"host": "disk"}):
        with pytest.raises(StreamSynthError, match=next(iter(wrong))):
            OffloadOptions(**wrong)  # type: ignore[arg-type]


def test_offloading_twice_is_refused() -> None:
    model = network()
    offload_blocks(model)
    with pytest.raises(StreamSynthError, match=r"blocks\.0\.norm\.weight is 'AbsentWeight'"):
        offload_blocks(model)


def test_block_lists_are_found_wherever_they_are_and_small_ones_stay() -> None:
    """DL-14, V54: nothing but blocks with weights."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network(2)
            self.embedders = nn.ModuleList([nn.Linear(2, 2)])
            self.more = nn.ModuleList([nn.Identity(), network(3).blocks[0], nn.ModuleList([network(1)])])

    assert find_plan(Outer()).blocks == ("inner.blocks.0", "inner.blocks.1", "more.1", "more.2")


def test_other_entries_than_forward_bring_a_block_too() -> None:
    model = network()
    expected = [block.up(torch.ones(1, 33)) for block in model.blocks]
    offload_blocks(model, plan=OffloadPlan(BLOCKS, entries=("forward", "up.forward")))
    for _ in range(2):
        assert all(
            torch.equal(block.up(torch.ones(1, 33)), each) for block, each in zip(model.blocks, expected, strict=True)
        )
        model(given())
    with pytest.raises(StreamSynthError, match="entries is 'context'"):
        offload_blocks(network(), plan=OffloadPlan(BLOCKS, entries=("context",)))


def test_a_pass_outside_of_inference_mode_follows_one_inside() -> None:
    model, x = network(), given()
    expected = model(x)
    with torch.inference_mode(False), torch.no_grad():
        offload_blocks(model, OffloadOptions(host="in_place"))
        assert torch.equal(model(x.clone()), expected)
    assert torch.equal(model(x), expected)


def test_what_was_made_under_inference_mode_is_ordinary_on_its_device() -> None:
    """Also where it moves nowhere, and what two modules share stays one."""
    model, x = network(), given()
    model.last.bias = nn.Parameter(model.first.bias[:7].clone())
    model.blocks[1].norm.bias = model.blocks[0].norm.bias
    expected = model(x)
    assert model.first.weight.is_inference()
    offload_blocks(model)
    shared = model.blocks[0].norm.bias
    assert shared is model.blocks[1].norm.bias
    assert not any(each.is_inference() for each in (model.first.weight, model.last.bias, shared, model.blocks[0].gain))
    with torch.inference_mode(False), torch.no_grad():
        assert torch.equal(model(x.clone()), expected)


def test_blocks_of_unequal_sizes_share_slots() -> None:
    class Uneven(Network):
        def __init__(self) -> None:
            super().__init__(3)
            self.blocks[1].down = nn.Sequential(nn.Linear(99, 500), nn.Linear(500, 33))
            self.blocks[2].extra = nn.Parameter(torch.randn(3).bfloat16())

    torch.manual_seed(0)
    model, x = Uneven().eval(), given()
    expected = model(x)
    offloaded = offload_blocks(model)
    for _ in range(3):
        assert torch.equal(model(x), expected)
    assert {memory.nbytes for memory in offloaded.executor.memories} == {offloaded.slab_bytes}
