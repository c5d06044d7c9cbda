"""The captured, fused loop on the device against the plain loop there."""

import pytest
import torch
from talker_batch import GREEDY, PAGE_SIZE, SMALL, Batch

from streamsynth.engine.attention import PageMemory, QuantisedPageMemory
from streamsynth.engine.captured import CapturedRunner, StepSizes
from streamsynth.engine.kernels.paged import PagedKernels
from streamsynth.engine.kv.sizing import KvBudget, MeasuredDevice
from streamsynth.engine.runner import Drawing, FrameModel, Runner, StepRunner
from streamsynth.engine.sampler import SamplingParams
from streamsynth.engine.table_attention import TableAttention
from streamsynth.models.csm.fused import FusedCsm
from streamsynth.models.csm.loop import LoopSizes, open_loop
from streamsynth.models.csm.model import CsmTalker
from streamsynth.models.csm.random_weights import random_talker

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
SAMPLED = Drawing(
    first=SamplingParams(temperature=0.9, top_k=20, seed=5), rest=SamplingParams(temperature=0.8, top_p=0.9, seed=6)
)


@pytest.fixture(scope="module")
def talker() -> CsmTalker:
    """Float32, and heads so sharp that the best code leads by far more than rounding."""
    return random_talker(SMALL, head_gain=40.0, device="cuda")


def fused(talker: CsmTalker, pages: type[PageMemory], *, rows: int = 1, overlap: bool = False) -> Batch:
    sizes = StepSizes(gang_rows=(rows,), units=(1, 4), tokens=(16,), max_rows=8, max_positions=256)

    def make(model: FrameModel, memory: PageMemory) -> StepRunner:
        return CapturedRunner(
            model, memory, sizes, plain=Runner(talker, memory), attention=PagedKernels(CUDA, overlap=overlap)
        )

    return Batch(talker, make, model=FusedCsm(talker, overlap=overlap), pages=pages)


@pytest.mark.parametrize("pages", [PageMemory, QuantisedPageMemory], ids=["plain", "float8"])
@pytest.mark.parametrize("overlap", [False, True])
def test_greedy_frames_equal_the_plain_loops_over_200_steps(
    talker: CsmTalker, pages: type[PageMemory], overlap: bool
) -> None:
    plain, fast = Batch(talker, pages=pages), fused(talker, pages, overlap=overlap)
    found = [batch.draw(batch.join([3, 14, 15, 9, 26], drawing=GREEDY), 200) for batch in (plain, fast)]
    assert torch.equal(*found)
    assert len(found[0].unique(dim=0)) > 20


@pytest.mark.parametrize("pages", [PageMemory, QuantisedPageMemory], ids=["plain", "float8"])
@pytest.mark.parametrize("overlap", [False, True])
def test_guided_rows_that_begin_alike_are_drawn_as_in_the_plain_loop(
    talker: CsmTalker, pages: type[PageMemory], overlap: bool
) -> None:
    """Pages that one row still computes are the other's too, within a step and over several."""
    said = [5 + number % 40 for number in range(45)]
    drawing = Drawing(first=GREEDY.first, rest=GREEDY.rest, scale=1.5)
    found = []
    for batch in (Batch(talker, pages=pages), fused(talker, pages, rows=2, overlap=overlap)):
        gang = batch.join([*said, 8, 9], [*said, 1], drawing=drawing)
        batch.step()
        assert len(set(gang.rows[0].pages) & set(gang.rows[1].pages)) == 45 // PAGE_SIZE
        found.append(batch.draw(gang, 100))
    assert torch.equal(*found)


def test_a_mixed_batch_that_joins_and_leaves_draws_what_each_draws_alone(talker: CsmTalker) -> None:
    fast = fused(talker, PageMemory)
    captures = fast.runner.captures
    gangs = []
    texts = [[1, 2, 3], [7] * 23, [50, 40, 30, 20, 10], [5]]
    for ids in texts:
        gangs.append(fast.join(ids, drawing=SAMPLED))
        for _ in range(6):
            fast.step()
    drawn = [fast.draw(gang, 30) for gang in gangs]
    for ids, frames in zip(texts, drawn, strict=True):
        plain = Batch(talker)
        assert torch.equal(plain.draw(plain.join(ids, drawing=SAMPLED), 30), frames)
    assert fast.runner.captures == captures


def test_guided_gangs_draw_what_the_plain_loop_draws(talker: CsmTalker) -> None:
    drawing = Drawing(first=SAMPLED.first, rest=SAMPLED.rest, scale=2.0)
    plain, fast = Batch(talker), fused(talker, PageMemory, rows=2)
    found = [batch.draw(batch.join([8, 9, 10, 11], [1, 2], drawing=drawing), 40) for batch in (plain, fast)]
    assert torch.equal(*found)


@pytest.mark.parametrize(("pages", "bound"), [(PageMemory, 0.01), (QuantisedPageMemory, 0.02)])
def test_bfloat16_hidden_states_stay_within_the_stated_bound(pages: type[PageMemory], bound: float) -> None:
    """Of the float32 talker's, in relative norm, after a prompt of 64 positions."""
    exact = random_talker(SMALL, device="cuda")
    rounded = random_talker(SMALL, device="cuda")
    with torch.inference_mode():
        rounded = rounded.bfloat16()
        rounded.fill_tables()
    model = FusedCsm(rounded)
    inputs = torch.randint(40, (64, 5), device=CUDA)
    inputs[:, 0] = -1
    positions, owners = torch.arange(64, device=CUDA), torch.zeros(64, dtype=torch.int64, device=CUDA)
    tables = torch.arange(1, 9, dtype=torch.int32, device=CUDA)[None]
    backbone = SMALL.backbone
    shape = {"layers": 3, "pages": 9, "kv_heads": backbone.kv_heads, "head_dim": backbone.head_dim}
    ours = pages(page_size=PAGE_SIZE, like=rounded.projector.weight, **shape)
    theirs = PageMemory(page_size=PAGE_SIZE, like=exact.projector.weight, **shape)
    attention = PagedKernels(CUDA)(ours, positions, owners, tables, alone=False)
    found = rounded.backbone.norm(model.trunk(model.embed(inputs), attention)).float()
    expected = exact.trunk(exact.embed(inputs), TableAttention(theirs, positions, owners, tables, alone=False))
    assert float((found - expected).norm() / expected.norm()) < bound


def test_pages_take_what_a_share_of_the_device_has_over_what_steps_take() -> None:
    """`max_model_len` -1 is then what model and pages hold; what is reserved stays within the share."""
    share = 0.25
    device = MeasuredDevice(KvBudget(None, share), CUDA)
    talker = random_talker(SMALL, dtype=torch.bfloat16, device="cuda")
    loop = open_loop(talker, LoopSizes(gang_rows=1, max_rows=4, max_tokens=64, max_model_len=-1), device)
    total = torch.cuda.mem_get_info()[1]
    pages = loop.memory.keys.nbytes + loop.memory.values.nbytes
    assert 0.5 * share * total < pages < share * total
    assert loop.max_positions == SMALL.backbone.max_position_embeddings
    free, _ = torch.cuda.mem_get_info()
    assert total - free < (share + 0.1) * total
