"""What only a device with streams can prove of offloading: no copy overtakes a computation, nor the other way round."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamsynth.engine.offload.offloaded import offload_blocks
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.offload.plan import module_bytes
from streamsynth.engine.quant.convert import quantise_linears
from streamsynth.engine.quant.recipe import Recipe

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
WIDTH = 1024


class Block(nn.Module):
    """`work` more products than its own: a block that computes for longer than its copy takes. `fails` once."""

    def __init__(self, work: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.work, self.fails = work, False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(x)
        for _ in range(self.work):
            hidden = hidden + 0.01 * self.down(F.gelu(self.up(hidden)))
            # Freed at once: memory that an unordered copy would find in use.
            hidden = hidden + torch.full_like(hidden, torch.nan).nan_to_num_(0.0)
        if self.fails:
            self.fails = False
            raise ValueError("injected")
        return x + self.down(F.gelu(self.up(hidden)))


class Network(nn.Module):
    def __init__(self, blocks: int, work: int = 0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(work) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def network(blocks: int = 8, work: int = 0) -> Network:
    return Network(blocks, work).to(torch.bfloat16).eval()


def given(rows: int = 256) -> Tensor:
    return torch.randn(rows, WIDTH, device=CUDA, dtype=torch.bfloat16)


def resident(model: Network, x: Tensor) -> Tensor:
    expected = model.to(CUDA)(x).clone()
    model.to("cpu")
    return expected


def stress() -> None:
    """Take and free memory of many sizes, filled with what must never be seen."""
    for size in torch.randint(1, 1 << 22, (8,)).tolist():
        torch.full((size,), torch.nan, device=CUDA)


@pytest.mark.parametrize("host", ["pinned", "in_place"])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize(("work", "rows"), [(0, 16), (6, 4096)])
def test_offloaded_equals_resident_bit_for_bit(host: str, prefetch: int, work: int, rows: int) -> None:
    """V48, V49, V50: 50 repeats under stress of the allocator, bound by copies and by products."""
    model, x = network(work=work), given(rows)
    expected = resident(model, x)
    offloaded = offload_blocks(model, OffloadOptions(prefetch_blocks=prefetch, host=host), CUDA)  # type: ignore[arg-type]
    results = []
    for _ in range(50):
        stress()
        results.append(model(x))
    assert all(torch.equal(each, expected) for each in results)
    assert offloaded.statistics().loads >= 400
    offloaded.close()
    assert torch.equal(resident(model, x), expected)


@pytest.mark.parametrize("block", range(8))
def test_a_block_that_raises_leaves_slots_for_the_next_pass(block: int) -> None:
    """V57"""
    model, x = network(work=2), given(2048)
    expected = resident(model, x)
    offload_blocks(model, device=CUDA)
    for _ in range(5):
        model.blocks[block].fails = True
        with pytest.raises(ValueError, match="injected"):
            model(x)
        stress()
        assert torch.equal(model(x), expected)


def test_two_models_on_streams_of_their_own_do_not_disturb_each_other() -> None:
    """V53"""
    models, x = [network(work=2), network(5, work=1)], given(1024)
    expected = [resident(model, x) for model in models]
    for model in models:
        offload_blocks(model, device=CUDA)
    streams = [torch.cuda.Stream(CUDA) for _ in models]
    torch.cuda.synchronize()
    results: list[list[Tensor]] = [[], []]
    for _ in range(50):
        for model, stream, found in zip(models, streams, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(model(x))
    torch.cuda.synchronize()
    for found, wanted in zip(results, expected, strict=True):
        assert all(torch.equal(each, wanted) for each in found)


def test_memory_on_the_device_does_not_grow_with_the_number_of_blocks() -> None:
    """DL-2: the allocator's peak, above what was there."""

    def peak(blocks: int) -> int:
        model, x = network(blocks), given()
        before = torch.cuda.memory_allocated(CUDA)
        offloaded = offload_blocks(model, device=CUDA)
        torch.cuda.reset_peak_memory_stats(CUDA)
        for _ in range(3):
            model(x)
        torch.cuda.synchronize()
        found = torch.cuda.max_memory_allocated(CUDA) - before
        assert found < 3 * module_bytes(network(1))
        offloaded.close()
        return found

    assert peak(3) == peak(6) == peak(24)


def test_the_device_waits_for_copies_where_there_is_little_to_compute_and_not_where_there_is_much() -> None:
    """V62: the overlap is measured, also with one rank. A share of a half either way is far from both."""

    def stall_share(work: int, rows: int) -> float:
        model, x = network(work=work), given(rows)
        offloaded = offload_blocks(model, device=CUDA)
        model(x)
        offloaded.reset_statistics()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(5):
            model(x)
        ended.record()
        found = offloaded.statistics()
        assert found.gigabytes_per_s > 1
        assert (found.on_demand, found.discarded) == (0, 0)
        return found.stall_ms / began.elapsed_time(ended)

    assert stall_share(work=0, rows=16) > 0.5
    assert stall_share(work=40, rows=4096) < 0.5


def test_host_memory_is_pinned_again_and_again() -> None:
    """V58: and let go when a model is closed."""
    model, x = network(), given()
    expected = resident(model, x)
    for _ in range(3):
        offloaded = offload_blocks(model, device=CUDA)
        assert all(tensor.is_pinned() for tensor in offloaded.host_tensors().values())
        assert torch.equal(model(x), expected)
        offloaded.close()
        del offloaded
        assert not model.blocks[0].up.weight.is_pinned()


@pytest.mark.parametrize("host", ["pinned", "in_place"])
def test_float8_layers_are_offloaded_as_they_are(host: str) -> None:
    model, x = network(), given()
    quantise_linears(model, Recipe(), CUDA)
    expected = resident(model, x)
    offload_blocks(model, OffloadOptions(host=host), CUDA)  # type: ignore[arg-type]
    for _ in range(20):
        stress()
        assert torch.equal(model(x), expected)
