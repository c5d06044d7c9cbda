"""A text model opened by its budget: the pages it gets, the texts that fit, and the run that they are measured by."""

from collections.abc import Callable

import pytest
import torch
from llama_batch import letters, ours, reference_model

from streamsynth.engine.kv.room import PageShape
from streamsynth.engine.kv.sizing import KvBudget, MeasuredDevice
from streamsynth.errors import StreamSynthError
from streamsynth.models.llama import loop
from streamsynth.models.llama.detokenise import TokenBytes
from streamsynth.models.llama.generator import TextGenerator, TextRequest
from streamsynth.models.llama.loop import TextSizes, run_at_largest, texts_of
from streamsynth.models.llama.model import LlamaModel


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    return ours(reference_model("llama"))


def page_bytes(model: LlamaModel) -> int:
    decoder = model.config.decoder
    return 2 * decoder.layers * loop.PAGE_SIZE * decoder.kv_heads * decoder.head_dim * 4


@pytest.fixture
def opened(model: LlamaModel) -> Callable[..., TextGenerator]:
    def open_(pages: int, **sizes: int) -> TextGenerator:
        device = MeasuredDevice(KvBudget(pages * page_bytes(model), None), torch.device("cpu"))
        return texts_of(model, TokenBytes(letters()), device, TextSizes(**sizes))

    return open_


def test_a_text_may_be_as_long_as_the_usable_pages_hold(opened: Callable[..., TextGenerator]) -> None:
    texts = opened(4)
    texts.close(texts.open(TextRequest(prompt=[1, 2], max_tokens=46)))
    with pytest.raises(StreamSynthError, match="at most 48 together"):
        texts.open(TextRequest(prompt=[1, 2], max_tokens=47))


def test_a_text_may_be_as_long_as_was_asked_for(opened: Callable[..., TextGenerator]) -> None:
    with pytest.raises(StreamSynthError, match="at most 20 together"):
        opened(4, max_model_len=20).open(TextRequest(prompt=[1, 2], max_tokens=19))
    with pytest.raises(StreamSynthError, match="3 usable pages of 16 hold 48"):
        opened(4, max_model_len=49)


def test_the_largest_run_says_the_bytes_of_its_pages(model: LlamaModel) -> None:
    """Every row at the end of the longest text, over pages that all share, and the null page."""
    decoder = model.config.decoder
    shape = PageShape(
        layers=decoder.layers, page_size=loop.PAGE_SIZE, kv_heads=decoder.kv_heads, head_dim=decoder.head_dim
    )
    sizes = TextSizes(max_rows=3, max_tokens=8, max_model_len=40)
    assert run_at_largest(model, shape, sizes) == 4 * page_bytes(model)
