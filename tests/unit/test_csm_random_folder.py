"""The csm stages on a folder of random weights, on the CPU: what they take, and when they end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from csm_sizes import SMALL_CODEC, SMALL_TALKER
from tokenizers import Tokenizer
from transformers import CsmForConditionalGeneration

from streamsynth.bench.ar_sides import StreamSynthSide, TransformersSide
from streamsynth.config.unset import UNSET
from streamsynth.engine.kv.sizing import KvBudget, MeasuredDevice
from streamsynth.engine.stream import Emission
from streamsynth.errors import StreamSynthError
from streamsynth.graph.chunk import Chunk, Unit
from streamsynth.models.csm.codec import CsmCodec
from streamsynth.models.csm.engine import CsmEngine
from streamsynth.models.csm.loop import LoopSizes, open_loop
from streamsynth.models.csm.model import ABSENT
from streamsynth.models.csm.pipeline import CODEBOOKS, CSM, FRAME_SAMPLES, TOKEN_RATE
from streamsynth.models.csm.prompts import CsmReader, PromptWriter
from streamsynth.models.csm.random_folder import write_random_csm
from streamsynth.models.csm.weights import load_talker
from streamsynth.speech import Granularity, SpeechRequest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    made = tmp_path_factory.mktemp("csm")
    write_random_csm(made, SMALL_TALKER, SMALL_CODEC, dtype=torch.float32)
    return made


def of_bytes(nbytes: int) -> MeasuredDevice:
    return MeasuredDevice(KvBudget(nbytes, None), torch.device("cpu"))


def test_an_utterance_ends_at_its_limit_and_sounds_for_as_long(folder: Path) -> None:
    """S18: finish reason "length"; the frames arrive as tokens, 400 a second."""
    options = {"folder": str(folder), "device": "cpu", "dtype": "float32"}
    declared = {name: value for name, value in CSM.stage("talker").options.items() if value is not UNSET}
    chosen = declared | options | {"kv_cache_memory_bytes": 1 << 20, "max_rows": 4}
    talker = CsmEngine(**chosen)
    codec = CsmCodec(**options, max_streams=2)
    request = SpeechRequest(voice="3", max_new_tokens=5).to_wire()
    speaking, sounding = talker.open(request), codec.open(request)
    speaking.push("Nothing is said here.")
    speaking.finish()
    fed, heard, tokens = None, [], 0
    while fed is None or not fed.final:
        for _, fed in talker.step([speaking]).made:
            assert isinstance(fed, Emission)
            assert fed.rate == TOKEN_RATE
            chunk = Chunk(fed.media, tokens, len(fed.media), Unit.TOKEN, fed.rate, fed.final, fed.marks())
            tokens += len(fed.media)
            sounding.feed(chunk)
    while not heard or not heard[-1].final:
        heard += [made for _, made in codec.step([sounding]).made]
    assert fed.finish_reason == "length"
    assert tokens == 5 * CODEBOOKS == heard[-1].consumed
    assert sum(len(made.media) for made in heard) == 5 * FRAME_SAMPLES
    assert np.isfinite(np.concatenate([made.media for made in heard])).all()


def said_before_the_second(folder: Path) -> tuple[torch.Tensor | None, list[list[int]]]:
    """What the second of two sentences goes on from, and the frames until that is known."""
    options = {"folder": str(folder), "device": "cpu", "dtype": "float32", "context": True, "context_positions": 96}
    declared = {name: value for name, value in CSM.stage("talker").options.items() if value is not UNSET}
    talker = CsmEngine(**declared | options | {"kv_cache_memory_bytes": 1 << 20, "max_rows": 4})
    stream = talker.open(SpeechRequest(voice="3", seed=1).to_wire())
    stream.push("One. Two. ")
    stream.finish()
    frames: list[list[int]] = []
    while stream.said is None and not stream.done:
        for _, made in talker.step([stream]).made:
            assert isinstance(made, Emission)
            frames += made.media.reshape(-1, CODEBOOKS).tolist()
    stream.close()
    return stream.said, frames


def test_with_context_a_sentence_goes_on_from_the_one_before_and_the_end_of_its_sound(
    folder: Path, tmp_path: Path
) -> None:
    """Of the 256 positions of a row 96 are kept for what stands before a sentence."""
    prompt = PromptWriter(Tokenizer.from_file(str(folder / "tokenizer.json")), CODEBOOKS)("3", "One. ")
    said, frames = said_before_the_second(folder)
    assert said is None, "a sentence that was cut off is not gone on from"
    assert len(frames) == 2 * (256 - 96 - len(prompt))
    # The folder's weights never end by themselves: here the code that is latest to be drawn is the end.
    codes = [frame[0] for frame in frames[:60]]
    eos = max(codes, key=codes.index)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"codebook_eos_token_id": eos}))
    said, sound = said_before_the_second(tmp_path)
    assert sound == frames[: codes.index(eos)]
    assert len(sound) > 20
    assert said is not None
    assert said.tolist() == [*prompt.tolist(), *([ABSENT, *frame] for frame in sound), [ABSENT, *[eos] * CODEBOOKS]]


def test_a_sentence_that_leaves_no_room_for_its_sound_is_refused_behind_what_comes_before(folder: Path) -> None:
    writer = PromptWriter(Tokenizer.from_file(str(folder / "tokenizer.json")), CODEBOOKS)
    reader = CsmReader(writer, "3", Granularity.SENTENCE, positions=40)
    reader.push("One. This is a sentence of over forty letters, so it has no room. ")
    reader.finish()
    first = reader.take()
    assert first is not None
    assert first.max_frames == 30
    with pytest.raises(StreamSynthError, match="it may take 39"):
        reader.take()


def test_transformers_reads_the_folder_and_draws_the_same_frames(folder: Path) -> None:
    ours = load_talker(folder)
    sizes = LoopSizes(gang_rows=1, max_rows=2, max_tokens=64, max_model_len=128)
    side = StreamSynthSide(ours, open_loop(ours, sizes, of_bytes(1 << 20)), temperature=0.0, top_k=0)
    theirs = TransformersSide(folder, dtype=torch.float32, device="cpu", temperature=0.0, top_k=0)
    prompts = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    assert torch.equal(side.generate(prompts, 6).frames, theirs.generate(prompts, 6).frames)
    assert CsmForConditionalGeneration.from_pretrained(folder).config.num_codebooks == CODEBOOKS


def test_names_of_marks_in_a_text_are_spelled_out(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    said = "<|end_of_text|>"
    prompt = PromptWriter(tokenizer, CODEBOOKS)("0", said)
    assert len(prompt) == 2 + len("[0]") + len(said)
    assert prompt[1:-1, 0].max() < 256


@pytest.mark.parametrize(
    ("max_model_len", "kv_cache_memory_bytes", "positions"),
    [(-1, 1 << 20, 256), (-1, 9 * 4096, 128), (40, 1 << 20, 40)],
)
def test_a_row_has_the_positions_that_were_asked_for_or_that_model_and_pages_hold(
    folder: Path, max_model_len: int, kv_cache_memory_bytes: int, positions: int
) -> None:
    sizes = LoopSizes(gang_rows=1, max_rows=2, max_tokens=64, max_model_len=max_model_len)
    assert open_loop(load_talker(folder), sizes, of_bytes(kv_cache_memory_bytes)).max_positions == positions


def test_more_positions_than_the_pages_hold_are_refused_with_the_limits(folder: Path) -> None:
    sizes = LoopSizes(gang_rows=1, max_rows=2, max_tokens=64, max_model_len=200)
    with pytest.raises(StreamSynthError, match="the model's limit is 256, 8 usable pages of 16 hold 128"):
        open_loop(load_talker(folder), sizes, of_bytes(9 * 4096))


def test_a_share_of_memory_that_is_not_a_gpus_is_refused_before_anything_is_read() -> None:
    """Nothing is measured on a CPU: bytes are named there."""
    options = {name: value for name, value in CSM.stage("talker").options.items() if value is not UNSET}
    with pytest.raises(StreamSynthError, match="on the CPU name kv_cache_memory_bytes") as raised:
        CsmEngine(**options | {"folder": "/nowhere", "device": "cpu", "gpu_memory_utilization": 0.5})
    assert raised.value.param == "gpu_memory_utilization"
