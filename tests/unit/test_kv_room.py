"""The pages that an autoregressive model has, by its budget: one way for every family."""

import torch

from streamsynth.engine.attention import PageMemory, QuantisedPageMemory
from streamsynth.engine.kv.room import PageShape, Room, make_room
from streamsynth.engine.kv.sizing import KvBudget, MeasuredDevice

LIKE = torch.zeros(1, dtype=torch.bfloat16)
SHAPE = PageShape(layers=2, page_size=16, kv_heads=2, head_dim=32)
PAGE_BYTES = 2 * 2 * 16 * 2 * 32 * 2


class Measured(MeasuredDevice):
    """A device of so many bytes, of which the largest run leaves the rest."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(KvBudget(1, None), torch.device("cpu"))
        self.nbytes = nbytes

    def kv_bytes(self, run_at_largest) -> int:  # type: ignore[no-untyped-def]  # as the method it stands for
        return self.nbytes - int(run_at_largest())


def room(device: MeasuredDevice, *, length: int = -1, rows: int = 1, used: int = 0) -> Room:
    return make_room(SHAPE, LIKE, device, lambda: used, gang_rows=rows, max_model_len=length, model_limit=4096)


def test_a_page_takes_the_bytes_that_its_memory_takes() -> None:
    assert SHAPE.nbytes(3, LIKE) == 3 * PAGE_BYTES
    memory = SHAPE.open(3, LIKE)
    assert type(memory) is PageMemory
    assert memory.keys.nbytes + memory.values.nbytes == 3 * PAGE_BYTES


def test_pages_of_eight_bits_take_their_scales_along() -> None:
    shape = PageShape(layers=2, page_size=16, kv_heads=2, head_dim=32, float8=True)
    memory = shape.open(3, LIKE)
    assert isinstance(memory, QuantisedPageMemory)
    assert memory.key_scales is not None
    assert shape.nbytes(3, LIKE) == 2 * (memory.keys.nbytes + memory.key_scales.nbytes)


def test_what_is_measured_becomes_pages_and_the_longest_request_fits_the_usable_ones() -> None:
    """Of ten pages the null page is not usable, and each row of a gang has its own."""
    made = room(Measured(12 * PAGE_BYTES + 5), used=2 * PAGE_BYTES)
    assert (made.pages, made.positions) == (10, 9 * 16)
    assert made.memory.keys.shape[1] == 10
    assert room(Measured(12 * PAGE_BYTES), used=2 * PAGE_BYTES, rows=2).positions == 4 * 16
    assert room(Measured(10 * PAGE_BYTES), length=100).positions == 100


def test_bytes_that_are_named_run_nothing() -> None:
    def never() -> int:
        raise AssertionError("nothing is to be measured")

    device = MeasuredDevice(KvBudget(5 * PAGE_BYTES, None), torch.device("cpu"))
    made = make_room(SHAPE, LIKE, device, never, gang_rows=1, max_model_len=-1, model_limit=50)
    assert (made.pages, made.positions) == (5, 50)
