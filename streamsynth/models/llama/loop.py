"""A text model ready to generate on a device: weights, pages that its budget holds, and the plain step loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from streamsynth.engine.attention import PagedAttention, PageMemory, RowSpan
from streamsynth.engine.guesses import Guessing
from streamsynth.engine.kv.pages import PageId, PagePool
from streamsynth.engine.kv.room import PageShape, make_room
from streamsynth.engine.kv.sizing import KvBudget, MeasuredDevice
from streamsynth.engine.planner import Planner
from streamsynth.engine.runner import Runner
from streamsynth.models.llama.detokenise import TokenBytes, load_tokenizer
from streamsynth.models.llama.generator import TextGenerator
from streamsynth.models.llama.model import LlamaModel
from streamsynth.models.llama.weights import load_llama

PAGE_SIZE = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSizes:
    """`max_rows` and `max_tokens` bound a step, `max_model_len` a text with its prompt (-1: what the model and the
    pages hold). `float8` keeps keys and values in eight bits. `guesses` are the tokens that a step may try of a text
    beside the one that it makes: None for as many as cost little in the model's dtype, 0 for none."""

    max_rows: int = 8
    max_tokens: int = 256
    max_model_len: int = -1
    float8: bool = False
    guesses: int | None = None


def open_texts(
    folder: Path, budget: KvBudget, sizes: TextSizes, *, dtype: torch.dtype, device: str = "cpu"
) -> TextGenerator:
    """A folder in the Hugging Face layout, its `tokenizer.json` among it. Raises START_FAILED for files that do not fit
    or where no page does."""
    measured = MeasuredDevice(budget, torch.device(device))
    model = load_llama(folder, dtype=dtype, device=device)
    return texts_of(model, TokenBytes(load_tokenizer(folder)), measured, sizes)


def texts_of(model: LlamaModel, tokens: TokenBytes, device: MeasuredDevice, sizes: TextSizes) -> TextGenerator:
    decoder, like = model.config.decoder, model.embedding.weight
    shape = PageShape(
        layers=decoder.layers,
        page_size=PAGE_SIZE,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        float8=sizes.float8,
    )
    limit = decoder.max_position_embeddings
    room = make_room(
        shape,
        like,
        device,
        lambda: run_at_largest(model, shape, sizes),
        gang_rows=1,
        max_model_len=sizes.max_model_len,
        model_limit=limit,
    )
    planner = Planner(PagePool(room.pages), page_size=PAGE_SIZE, max_rows=sizes.max_rows, max_tokens=sizes.max_tokens)
    runner = Runner(model, room.memory)
    return TextGenerator(
        model.config,
        tokens,
        runner,
        planner,
        page_size=PAGE_SIZE,
        max_positions=room.positions,
        guessing=_guessing(like, sizes.guesses),
    )


def _guessing(like: Tensor, guesses: int | None) -> Guessing:
    """Products of up to 16 rows take as long as those of one on matrix units; in float32 on a CPU four take 1.6 times
    as long, so that only what is likely is worth a try (docs/benchmarks.md)."""
    if like.is_cuda or like.dtype is torch.bfloat16:
        return Guessing(most=7 if guesses is None else guesses)
    return Guessing(most=3 if guesses is None else guesses, shortest=2, positions=4)


@torch.inference_mode()
def run_at_largest(model: LlamaModel, shape: PageShape, sizes: TextSizes) -> int:
    """The most prompt positions a step may have, then the most rows, each at the end of the longest text; returns the
    bytes of the pages that this took. All rows lie in the same pages: what they hold means nothing."""
    limit = model.config.decoder.max_position_embeddings
    length = limit if sizes.max_model_len == -1 else min(limit, sizes.max_model_len)
    pages = [PageId(page) for page in range(1 + -(-length // shape.page_size))]
    memory = shape.open(len(pages), model.embedding.weight)
    prompt = min(length, sizes.max_tokens)
    _run(model, memory, [RowSpan(length - prompt, prompt, pages[1:])])
    _run(model, memory, [RowSpan(length - 1, 1, pages[1:])] * sizes.max_rows)
    return shape.nbytes(len(pages), model.embedding.weight)


def _run(model: LlamaModel, memory: PageMemory, spans: list[RowSpan]) -> Tensor:
    device = memory.keys.device
    tokens = torch.zeros((sum(span.count for span in spans), 1), dtype=torch.int64, device=device)
    hidden = model.trunk(model.embed(tokens), PagedAttention(memory, spans, device))
    return model.logits(hidden[-len(spans) :])
