"""The bench of text models on a small one: every side says the same, and its figures are those of what it did."""

from pathlib import Path

import pytest
from llama_batch import letters, reference_model
from transformers import PreTrainedTokenizerFast

from streamsynth.bench.llama import LlamaLoad, SideFailed, bench_llama
from streamsynth.errors import StreamSynthError

READ_WEIGHTS = 3 * (12_288 + 18_432 + 256 + 128) + 64 + 3_840
"""By every token: attention, feed-forward, its biases and the norms of each layer, the last norm, the head."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    reference_model("llama").save_pretrained(tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=letters()).save_pretrained(tmp_path)
    return tmp_path


def test_sides_in_processes_of_their_own_say_the_same_tokens(folder: Path) -> None:
    report = bench_llama(LlamaLoad(folder=folder, dtypes=("float32",), threads=(1,), texts=2, tokens=12))
    sides = ["streamsynth", "streamsynth, one by one", "transformers", "memory"]
    assert [row["side"] for row in report.rows] == sides
    assert not [note for note in report.notes if "another token" in note]
    for row in report.rows[:3]:
        speeds = ("tokens/s", "tokens a pass", "tokens per CPU s", "GB/s", "of memory")
        each = {name: float(row[name] or 0) for name in speeds}
        assert all(value > 0 for value in each.values()), each
        passes_s = each["tokens/s"] / each["tokens a pass"]
        assert each["GB/s"] == pytest.approx(passes_s * READ_WEIGHTS * 4 / 1e9)
    assert [row["tokens a pass"] for row in report.rows[1:3]] == [1.0, 1.0]
    assert isinstance(report.rows[3]["GB/s"], float)


def test_a_side_that_cannot_start_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SideFailed, match="streamsynth ended with status 1"):
        bench_llama(LlamaLoad(folder=folder, dtypes=("float32",), threads=(1,), tokens=1))


def test_a_dtype_that_is_not_measured_is_refused() -> None:
    with pytest.raises(StreamSynthError, match="float32 or bfloat16"):
        LlamaLoad(folder=Path(), dtypes=("float16",))
    with pytest.raises(StreamSynthError, match="from 1 to 8"):
        LlamaLoad(folder=Path(), texts=9)
