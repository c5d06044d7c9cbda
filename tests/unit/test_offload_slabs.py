"""How a block lies in its slab, and what a slot may become."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamsynth.engine.offload.host import HostMemory
from streamsynth.engine.offload.slab import ALIGNMENT, SlabLayout, slab_memory
from streamsynth.engine.offload.slots import Slot, SlotState
from streamsynth.errors import StreamSynthError

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool)

shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
tensors = st.lists(st.tuples(shapes, st.sampled_from(DTYPES), st.booleans()), min_size=1, max_size=6)


def drawn(shape: tuple[int, ...], dtype: torch.dtype, transposed: bool) -> torch.Tensor:
    tensor = (torch.rand(shape) * 100).to(dtype)
    return tensor.transpose(0, -1) if transposed and tensor.dim() > 1 else tensor


@settings(deadline=None)
@given(tensors)
def test_a_slab_gives_back_every_tensor_on_a_boundary(specs: list[tuple[tuple[int, ...], torch.dtype, bool]]) -> None:
    """T6.9: odd sizes and mixed dtypes; T6.1: shapes and strides."""
    packed = [drawn(*spec) for spec in specs]
    layout = SlabLayout.of(packed)
    slab = slab_memory(layout.nbytes, CPU)
    layout.pack(packed, slab)
    assert layout.nbytes % ALIGNMENT == 0
    assert layout.nbytes <= sum(each.nbytes for each in packed) + len(packed) * ALIGNMENT
    for view, tensor in zip(layout.views(slab), packed, strict=True):
        assert (view.dtype, view.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(view.float(), tensor.float())
        assert view.numel() == 0 or view.data_ptr() % ALIGNMENT == 0
        assert view.numel() == 0 or view.stride() == tensor.stride()


def test_a_transposed_float8_weight_keeps_its_stride_and_an_expanded_one_does_not() -> None:
    """T6.1"""
    weight = torch.rand(3, 4).to(torch.float8_e4m3fn).t()
    layout = SlabLayout.of([weight, torch.ones(1).expand(5), torch.rand(4, 6)[:, ::2]])
    assert [each.stride for each in layout.tensors] == [(1, 4), (1,), (3, 1)]
    assert [each.nbytes for each in layout.tensors] == [12, 20, 48]


def test_blocks_that_are_built_alike_have_equal_layouts() -> None:
    one, other = ([torch.rand(3, 4), torch.rand(5)] for _ in range(2))
    assert SlabLayout.of(one) == SlabLayout.of(other)
    assert hash(SlabLayout.of(one)) == hash(SlabLayout.of(other))
    assert SlabLayout.of(one) != SlabLayout.of([one[0], torch.rand(6)])


class Refusing:
    """A CUDA runtime that has no memory to lock."""

    def cudaHostRegister(self, *_: int) -> int:  # noqa: N802  # CUDA's name
        return 2


def test_memory_that_cannot_be_pinned_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """V58"""
    monkeypatch.setattr(torch.cuda, "cudart", Refusing)
    with pytest.raises(StreamSynthError, match=r"cannot pin 4096 bytes of host memory \(CUDA error 2\)"):
        HostMemory(4096, pinned=True)


STEPS = ("load", "arrived", "use", "release", "discard")
ALLOWED = {
    SlotState.FREE: {"load": SlotState.LOADING},
    SlotState.LOADING: {"arrived": SlotState.READY, "discard": SlotState.FREE},
    SlotState.READY: {"use": SlotState.IN_USE, "discard": SlotState.FREE},
    SlotState.IN_USE: {"release": SlotState.FREE},
}
WAY_TO = {
    SlotState.FREE: (),
    SlotState.LOADING: ("load",),
    SlotState.READY: ("load", "arrived"),
    SlotState.IN_USE: ("load", "arrived", "use"),
}


def take(slot: Slot, step: str) -> None:
    slot.load(7) if step == "load" else getattr(slot, step)()


@pytest.mark.parametrize("state", SlotState)
@pytest.mark.parametrize("step", STEPS)
def test_a_slot_becomes_what_may_follow_and_refuses_the_rest(state: SlotState, step: str) -> None:
    slot = Slot(1)
    for before in WAY_TO[state]:
        take(slot, before)
    assert slot.state is state
    if step in ALLOWED[state]:
        take(slot, step)
        assert slot.state is ALLOWED[state][step]
        assert slot.block == (None if slot.state is SlotState.FREE else 7)
    else:
        with pytest.raises(StreamSynthError, match=f"slot 1 is {state}"):
            take(slot, step)
        assert slot.state is state
