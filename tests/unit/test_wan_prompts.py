"""The text encoder against transformers' UMT5, and what becomes of a prompt on its way to the transformer."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import UMT5Config, UMT5EncoderModel
from wan_models import assert_near

from streamsynth.errors import StreamSynthError
from streamsynth.models.wan.prompts import PromptEncoder, build_text_encoder, clean, load_prompt_encoder
from streamsynth.models.wan.text_encoder import TextEncoder, TextEncoderConfig

WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "ball", "over", "the", "sea", "&"]


@pytest.fixture(scope="module")
def reference() -> UMT5EncoderModel:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = UMT5Config(vocab_size=50, d_model=48, d_kv=10, d_ff=72, num_layers=3, num_heads=5)
    made = UMT5EncoderModel(config).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3)
    return made


@pytest.fixture(scope="module")
def encoder(reference: UMT5EncoderModel) -> TextEncoder:
    return build_text_encoder(
        TextEncoderConfig.from_hf(reference.config.to_dict()), reference.state_dict(), "the reference"
    )


@pytest.fixture
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return made


@torch.inference_mode()
def test_embeddings_are_those_of_the_reference(reference: UMT5EncoderModel, encoder: TextEncoder) -> None:
    """Long enough that distances run past the largest bucket; padding is zeros, as the pipeline makes it."""
    tokens = torch.randint(0, 50, (2, 300), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([300, 17])
    seen = torch.arange(300) < lengths[:, None]
    expected = reference(tokens, attention_mask=seen.long()).last_hidden_state * seen[..., None]
    assert_near(encoder(tokens, lengths), expected)


@torch.inference_mode()
def test_a_prompt_is_encoded_alike_alone_and_beside_longer_ones(encoder: TextEncoder, tokenizer: Tokenizer) -> None:
    prompts = PromptEncoder(tokenizer, encoder, length=12)
    both = prompts.encode(["a  red\nball", "the red ball over the red sea &amp;amp; the ball"])
    assert both.shape == (2, 12, 48)
    assert_near(both[:1], prompts.encode(["a red ball"]), 1e-5)
    assert not both[0, 4:].any()
    assert both[0, :4].any(1).all()


def test_an_empty_prompt_is_its_end_mark(encoder: TextEncoder, tokenizer: Tokenizer) -> None:
    made = PromptEncoder(tokenizer, encoder, length=12).encode([""])
    assert made[0, 0].any()
    assert not made[0, 1:].any()


def test_a_prompt_with_too_many_tokens_is_refused_not_cut(encoder: TextEncoder, tokenizer: Tokenizer) -> None:
    with pytest.raises(StreamSynthError, match="prompt is 13 tokens; it must be at most 12"):
        PromptEncoder(tokenizer, encoder, length=12).tokens("a " * 12)


def test_prompts_are_cleaned_as_the_reference_pipeline_does() -> None:
    assert clean("  a &amp;lt;red&gt; ball\n\t over ") == "a <red> ball over"


def test_the_pipelines_folders_load(
    reference: UMT5EncoderModel, encoder: TextEncoder, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """In shards; a tokenizer's file may say to pad and to cut: the one is done here, and the other refused."""
    reference.save_pretrained(tmp_path / "text_encoder", max_shard_size="40KB")
    (tmp_path / "tokenizer").mkdir()
    tokenizer.enable_padding(length=20)
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    assert len(list((tmp_path / "text_encoder").glob("*.safetensors"))) > 1
    prompts = load_prompt_encoder(tmp_path / "text_encoder", tmp_path / "tokenizer")
    assert prompts.tokens("a red ball over the sea") == [3, 4, 5, 6, 7, 8, 1]
    assert prompts.encode(["a red ball"]).shape == (1, 512, 48)


def test_another_feed_forward_is_refused_by_name() -> None:
    with pytest.raises(StreamSynthError, match="feed_forward_proj"):
        TextEncoderConfig.from_hf({"feed_forward_proj": "relu"})
