"""Each kernel against what it replaces, on the device."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from streamsynth.engine.attention import DenseAttention, PageMemory, QuantisedPageMemory
from streamsynth.engine.kernels.dense import DenseKernel
from streamsynth.engine.kernels.embedding import embed_positions
from streamsynth.engine.kernels.paged import PagedKernels
from streamsynth.engine.kernels.product import Products, Turn
from streamsynth.engine.kernels.sampling import sample_codebook
from streamsynth.engine.sampler import SamplingBatch, SamplingParams, guide, sample
from streamsynth.engine.table_attention import TableAttention
from streamsynth.models.llama.modules import rotate

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def on_cuda() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.device(CUDA):
        yield


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 5, 64, 100, 200])
@pytest.mark.parametrize(
    ("k", "n"),
    [(4096, 1024), (1024, 1024), (2048, 2048), (4096, 2048), (576, 192), (320, 320), (768, 320), (1024, 1000)],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_products_equal_the_plain_ones(dtype: torch.dtype, k: int, n: int, rows: int, overlap: bool) -> None:
    products, close = Products(CUDA, overlap=overlap), 1.0 if dtype == torch.bfloat16 else 1e-3
    x, norm, next_norm = torch.randn(rows, k).to(dtype), torch.rand(k).to(dtype) + 0.5, torch.rand(n).to(dtype) + 0.5
    weight, residual = torch.randn(n, k).div(64).to(dtype), torch.randn(rows, n).to(dtype)
    normed = F.rms_norm(x.double(), (k,), norm.double(), 1e-5)
    torch.cuda.synchronize()
    assert error(products.plain(x, weight), x.double() @ weight.double().T) < 4e-3 * close
    begun = products.norm(x, norm, 1e-5)
    wide = products.plain(begun, weight, torch.full((rows, n), torch.nan))
    assert error(wide, normed @ weight.double().T) < 4e-3 * close
    gate, up = (normed @ weight.double().T).chunk(2, -1)
    assert error(products.gated(begun, weight), F.silu(gate) * up) < 6e-3 * close

    expected = residual.double() + x.double() @ weight.double().T
    following = products.add(x, weight, residual, next_norm, 1e-5)
    assert error(residual, expected) < 4e-3 * close
    narrow = torch.randn(48, n).div(32).to(dtype)
    normed = F.rms_norm(residual.double(), (n,), next_norm.double(), 1e-5)
    assert error(products.plain(following, narrow), normed @ narrow.double().T) < 6e-3 * close
    if rows % 2 == 0:
        half = products.plain(following.every_second(), narrow)
        assert error(half, normed[1::2] @ narrow.double().T) < 6e-3 * close


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize(("head_dim", "k"), [(64, 512), (64, 1024), (128, 2048), (40, 1024)])
def test_a_rotary_product_turns_queries_and_keys_and_leaves_values(
    head_dim: int, k: int, rows: int, overlap: bool
) -> None:
    heads = 12
    x, weight = torch.randn(rows, k).bfloat16(), torch.randn(heads * head_dim, k).div(22).bfloat16()
    angle = torch.rand(100, 1, head_dim // 2).mul(6).repeat(1, 1, 2)
    cos, sin, positions = angle.cos().bfloat16(), angle.sin().bfloat16(), torch.randint(100, (rows,))
    plain = (x.double() @ weight.double().T).view(rows, heads, head_dim)
    turned = rotate(plain[:, :9], cos[positions].double(), sin[positions].double())
    found = Products(CUDA, overlap=overlap).turned(x, weight, Turn(positions, cos, sin, 9, head_dim))
    assert error(found.view_as(plain), torch.cat((turned, plain[:, 9:]), 1)) < 4e-3


@pytest.mark.parametrize("kind", [PageMemory, QuantisedPageMemory])
@pytest.mark.parametrize("programs", [1, 4096])
def test_paged_attention_equals_the_gathered_one_and_leaves_the_same_pages(
    kind: type[PageMemory], programs: int
) -> None:
    heads, kv_heads, head_dim, lengths = 32, 8, 64, [1, 16, 17, 200, 501]
    shape = {"layers": 2, "pages": 200, "page_size": 16, "kv_heads": kv_heads, "head_dim": head_dim}
    ours, theirs = (kind(**shape, like=torch.zeros(1).bfloat16()) for _ in range(2))
    tables = (torch.randperm(199) + 1)[: 5 * 32].view(5, 32).int()
    kernels = PagedKernels(CUDA, programs=programs)

    def both(positions: Tensor, owners: Tensor, alone: bool) -> float:
        parts = torch.randn(len(positions), heads + 2 * kv_heads, head_dim).bfloat16()
        q, k, v = parts.split((heads, kv_heads, kv_heads), 1)
        torch.cuda.synchronize()
        found = kernels(ours, positions, owners, tables, alone=alone).attend(1, q, k, v)
        return error(found, TableAttention(theirs, positions, owners, tables, alone=alone).attend(1, q, k, v))

    owners = torch.cat([torch.full((length,), row) for row, length in enumerate(lengths)])
    assert both(torch.cat([torch.arange(length) for length in lengths]), owners, False) < 6e-3
    for ahead in range(3):
        assert both(torch.tensor(lengths) + ahead, torch.arange(5), True) < 6e-3
    assert torch.equal(ours.keys.view(torch.uint8), theirs.keys.view(torch.uint8))
    assert torch.equal(ours.values.view(torch.uint8), theirs.values.view(torch.uint8))
    if ours.key_scales is not None and theirs.key_scales is not None:
        assert torch.equal(ours.key_scales, theirs.key_scales)


def test_dense_attention_equals_the_plain_one() -> None:
    shape = {"layers": 2, "rows": 5, "length": 32, "kv_heads": 2, "head_dim": 128, "like": torch.zeros(1).bfloat16()}
    plain, kernel = DenseAttention(**shape), DenseKernel(**shape)
    for start, count in ((0, 2), *((start, 1) for start in range(2, 32))):
        q, k, v = torch.randn(5 * count, 12, 128).bfloat16().split((8, 2, 2), 1)
        plain.begin(start, count)
        kernel.begin(start, count)
        assert error(kernel.attend(1, q, k, v), plain.attend(1, q, k, v)) < 6e-3


def test_an_embedded_position_is_a_text_entry_or_the_sum_of_a_frame() -> None:
    text, codes = torch.randn(20, 2048).bfloat16(), torch.randn(32 * 50, 2048).bfloat16()
    inputs = torch.cat((torch.tensor([[-1], [7], [-1]]), torch.randint(50, (3, 32))), 1)
    inputs[1, 1:] = -1
    found = embed_positions(inputs, text, codes)
    frame = codes[inputs[0, 1:] + torch.arange(32) * 50].double().sum(0)
    assert torch.equal(found[1], text[7])
    assert error(found[0], frame) < 4e-3


@pytest.mark.parametrize("rows", [1, 2])
def test_codes_are_the_plain_samplers(rows: int) -> None:
    """From the same float32 logits, over every filter, 14,000 draws; two logits may tie to the last bit."""
    kinds = [
        SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
        for temperature, top_k, top_p, min_p, seed in [
            (0.0, 0, 1.0, 0.0, 3),
            (1.0, 0, 1.0, 0.0, 4),
            (0.8, 5, 1.0, 0.0, 5),
            (0.8, 50, 0.9, 0.0, 2**62),
            (1.5, 0, 0.5, 0.0, 7),
            (1.0, 0, 1.0, 0.1, 8),
            (1.0, 1, 1.0, 0.0, 9),
        ]
    ] * 100
    batch, units = SamplingBatch.of(kinds, CUDA), len(kinds)
    scale, table = torch.rand(units) * 3, torch.randn(32 * 2051, 64).bfloat16()
    different = 0
    for codebook in range(20):
        logits, position = torch.randn(units * rows, 2051) * 3, torch.randint(100_000, (units,))
        codes, fed = torch.zeros(units, 32, dtype=torch.int64), torch.zeros(units * rows, 64).bfloat16()
        sample_codebook(logits, scale, batch, position, codes, codebook, table=table, fed=fed)
        drawn = codes[:, codebook]
        different += int((drawn != sample(guide(logits, scale, rows), batch, position, codebook)).sum())
        assert torch.equal(fed, table[drawn + codebook * 2051].repeat_interleave(rows, 0))
    assert different <= 2
