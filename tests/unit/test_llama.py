"""Text models against transformers' own, at small random sizes, through pages and batches."""

import json
from pathlib import Path

import pytest
import torch
from llama_batch import FAMILIES, PAGE_SIZE, VOCABULARY, generator, ours, page_memory, reference_model
from transformers import PreTrainedModel

from streamsynth.engine.attention import PagedAttention, RowSpan
from streamsynth.engine.kv.pages import PageId
from streamsynth.engine.sampler import SamplingParams
from streamsynth.errors import StreamSynthError
from streamsynth.models.llama.config import LlamaConfig
from streamsynth.models.llama.generator import Generation, Piece, TextGenerator, TextRequest
from streamsynth.models.llama.weights import load_llama

GREEDY = SamplingParams(temperature=0.0)
NEVER: frozenset[int] = frozenset()
LEAD = 1e-2
"""Over 100 times the error of a logit, which is below 1e-4."""


@pytest.fixture(scope="module", params=FAMILIES)
def reference(request: pytest.FixtureRequest) -> PreTrainedModel:
    return reference_model(request.param)


def request(prompt: list[int], count: int) -> TextRequest:
    return TextRequest(prompt=prompt, max_tokens=count, sampling=GREEDY, stop_tokens=NEVER)


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """Checks that each token leads the next best by far more than rounding."""
    tokens = list(prompt)
    cache = None
    fed = torch.tensor([prompt])
    for _ in range(count):
        out = model(fed, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        best = out.logits[0, -1].topk(2)
        assert best.values[0] - best.values[1] > LEAD
        tokens.append(int(best.indices[0]))
        fed = torch.tensor([tokens[-1:]])
    return tokens[len(prompt) :]


def drain(texts: TextGenerator, generations: list[Generation]) -> dict[Generation, list[int]]:
    made: dict[Generation, list[int]] = {generation: [] for generation in generations}
    while any(generation.finish_reason is None for generation in generations):
        for generation, piece in texts.step(generations):
            assert isinstance(piece, Piece)
            made[generation].append(piece.token)
    return made


@torch.inference_mode()
def test_logits_are_those_of_the_reference(reference: PreTrainedModel) -> None:
    model = ours(reference)
    tokens = torch.randint(0, VOCABULARY, (2, 37), generator=torch.Generator().manual_seed(3))
    memory = page_memory(model)
    pages = [[PageId(page) for page in range(start, start + 5)] for start in (1, 6)]
    parts = []
    for start, count in ((0, 20), (20, 16), (36, 1)):
        spans = [RowSpan(start, count, row) for row in pages]
        inputs = tokens[:, start : start + count].reshape(-1, 1)
        hidden = model.trunk(model.embed(inputs), PagedAttention(memory, spans, torch.device("cpu")))
        parts.append(model.logits(hidden).view(2, count, -1))
    torch.testing.assert_close(torch.cat(parts, 1), reference(tokens).logits, atol=1e-4, rtol=0)


def test_greedy_tokens_equal_the_reference_over_200_steps(reference: PreTrainedModel) -> None:
    texts = generator(ours(reference))
    generation = texts.open(request([3, 14, 15, 9, 26], 200))
    assert drain(texts, [generation])[generation] == greedy(reference, [3, 14, 15, 9, 26], 200)


def test_a_mixed_batch_that_joins_and_leaves_says_what_each_says_alone(reference: PreTrainedModel) -> None:
    """The third leaves early by itself, the second is closed half-way."""
    texts = generator(ours(reference))
    prompts = [[1, 2, 3], [7] * 23, [50, 40, 30, 20, 10], [5, 6]]
    counts = [200, 60, 30, 200]
    running: list[Generation] = []
    made: dict[Generation, list[int]] = {}
    for prompt, count in zip(prompts, counts, strict=True):
        running.append(texts.open(request(prompt, count)))
        for _ in range(9):
            for generation, piece in texts.step(running):
                assert isinstance(piece, Piece)
                made.setdefault(generation, []).append(piece.token)
    texts.close(running[1])
    rest = drain(texts, [generation for generation in running if generation is not running[1]])
    for generation, prompt, count in zip(running, prompts, counts, strict=True):
        tokens = made.get(generation, []) + rest.get(generation, [])
        assert tokens == greedy(reference, prompt, count)[: len(tokens)]
        assert generation.finish_reason == ("length" if generation is not running[1] else None)


@pytest.mark.parametrize("shards", ["10GB", "60KB"], ids=["single", "sharded"])
def test_a_folder_as_transformers_saves_it_is_read(reference: PreTrainedModel, shards: str, tmp_path: Path) -> None:
    reference.save_pretrained(tmp_path, max_shard_size=shards)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shards == "60KB")
    loaded, direct = load_llama(tmp_path), ours(reference)
    assert loaded.config == direct.config
    assert loaded.config.eos == {7}
    for (name, tensor), (same, other) in zip(loaded.state_dict().items(), direct.state_dict().items(), strict=True):
        assert name == same
        assert torch.equal(tensor, other)


def test_names_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = reference_model("llama")
    model.save_pretrained(tmp_path)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    path = tmp_path / "model.safetensors"
    broken = {
        "unknown model.layers.0.self_attn.sinks": tensors | {"model.layers.0.self_attn.sinks": torch.ones(1)},
        r"missing decoder.norm.weight": {name: t for name, t in tensors.items() if name != "model.norm.weight"},
        r"missing decoder.layers.1.attention.qkv.weight": {
            name: t for name, t in tensors.items() if name != "model.layers.1.self_attn.k_proj.weight"
        },
        r"unknown decoder.layers.0.attention.out.bias": tensors
        | {"model.layers.0.self_attn.o_proj.bias": torch.ones(64)},
        "head.weight": tensors | {"lm_head.weight": torch.ones(2, 64)},
    }
    for message, wrong in broken.items():
        save_file(wrong, path)
        with pytest.raises(StreamSynthError, match=message):
            load_llama(tmp_path)
    path.unlink()
    with pytest.raises(StreamSynthError, match=r"no model\.safetensors"):
        load_llama(tmp_path)


def test_a_tied_head_that_is_stored_too_must_be_the_embedding(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = reference_model("llama-tied")
    model.save_pretrained(tmp_path)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert load_llama(tmp_path).head is None
    save_file(tensors | {"lm_head.weight": torch.ones(VOCABULARY, 64)}, tmp_path / "model.safetensors")
    with pytest.raises(StreamSynthError, match=r"unknown head\.weight"):
        load_llama(tmp_path)


def test_the_end_tokens_of_the_generation_config_count() -> None:
    config = json.loads(json.dumps(reference_model("llama").config.to_dict()))
    assert LlamaConfig.from_hf(config).eos == {7}
    assert LlamaConfig.from_hf(config, {"eos_token_id": [8, 9]}).eos == {8, 9}
    assert LlamaConfig.from_hf(config | {"eos_token_id": None}).eos == NEVER


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "gpt2"),
        ("hidden_act", "gelu"),
        ("use_sliding_window", True),
        ("rope_parameters", {"rope_type": "yarn"}),
    ],
)
def test_a_model_that_is_not_built_is_refused_by_name(field: str, value: object) -> None:
    config = reference_model("llama").config.to_dict()
    with pytest.raises(StreamSynthError, match="rope_type" if field == "rope_parameters" else field):
        LlamaConfig.from_hf(config | {field: value})


def test_pages_hold_the_whole_sequence() -> None:
    """What can never fit, or has no positions, is refused before anything is computed."""
    texts = generator(ours(reference_model("llama")), pages=9)
    texts.open(request([1] * 40, 24))
    with pytest.raises(StreamSynthError, match=f"needs 9 pages of {PAGE_SIZE} positions; the model has 8"):
        texts.open(request([1] * 41, 24))
    with pytest.raises(StreamSynthError, match="at most 512 together"):
        texts.open(request([1] * 500, 13))
