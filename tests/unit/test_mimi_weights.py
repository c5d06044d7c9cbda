"""Mimi weights from safetensors files: all of them under their own names, or an error that names the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from mimi_models import SMALL, config_of, random_codes, random_reference
from safetensors.torch import save_file
from torch import Tensor
from transformers import MimiModel

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.mimi.decoder import MimiDecoder
from streamsynth.models.mimi.encoder import MimiEncoder
from streamsynth.models.mimi.layout import tensor_shapes
from streamsynth.models.mimi.weights import DECODING, ENCODING, random_tensors, read_tensors


@pytest.fixture(scope="module")
def reference() -> MimiModel:
    return random_reference(SMALL)


@pytest.fixture(scope="module")
def tensors(reference: MimiModel) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in reference.state_dict().items()}


def write(folder: Path, reference: MimiModel, tensors: dict[str, Tensor]) -> Path:
    (folder / "config.json").write_text(json.dumps(reference.config.to_dict()))
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_what_transformers_saves_is_what_is_loaded(reference: MimiModel, tmp_path: Path) -> None:
    reference.save_pretrained(tmp_path)
    codes = random_codes(reference, rows=1, frames=9)
    ours, direct = MimiDecoder.load(tmp_path), MimiDecoder(config_of(reference), reference.state_dict())
    assert torch.equal(ours.decode(codes), direct.decode(codes))


@pytest.mark.parametrize("half", [MimiDecoder, MimiEncoder])
def test_float16_files_compute_in_float32(
    reference: MimiModel, tensors: dict[str, Tensor], tmp_path: Path, half: type[MimiDecoder | MimiEncoder]
) -> None:
    """The same numbers as if the rounded weights had been stored in float32; no parameter is left in half precision."""
    stored = {name: tensor.half() for name, tensor in tensors.items()}
    loaded = half.load(write(tmp_path, reference, stored))
    direct = half(config_of(reference), {name: tensor.float() for name, tensor in stored.items()})
    assert {name: tensor.dtype for name, tensor in loaded.state_dict().items()} == dict.fromkeys(
        direct.state_dict(), torch.float32
    )
    assert all(torch.equal(tensor, direct.state_dict()[name]) for name, tensor in loaded.state_dict().items())


def test_bfloat16_spares_the_last_layer_and_the_search(reference: MimiModel) -> None:
    config, tensors = config_of(reference), reference.state_dict()
    decoder = MimiDecoder(config, tensors, dtype=torch.bfloat16)
    exact = MimiDecoder(config, tensors)
    last = f"layers.{len(decoder.layers) - 1}."
    for name, tensor in decoder.state_dict().items():
        assert tensor.dtype == (torch.float32 if name.startswith(last) else torch.bfloat16), name
    assert torch.equal(decoder.layers[-1].weight, exact.layers[-1].weight)
    encoder = MimiEncoder(config, tensors, dtype=torch.bfloat16)
    for name, tensor in encoder.state_dict().items():
        assert tensor.dtype == (torch.float32 if name.startswith("quantizer.") else torch.bfloat16), name


def test_a_codec_inside_a_csm_checkpoint_loads_from_its_shards(
    reference: MimiModel, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    """Its names have a prefix, and the other names belong to the talker."""
    named = {f"codec_model.{name}": tensor for name, tensor in tensors.items()}
    named["lm_head.weight"] = torch.zeros(2, 2)
    shards = [dict(list(named.items())[part::2]) for part in (0, 1)]
    index = {name: f"model-{part}.safetensors" for part, shard in enumerate(shards) for name in shard}
    for part, shard in enumerate(shards):
        save_file(shard, tmp_path / f"model-{part}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "csm", "codec_config": reference.config.to_dict()}))
    codes = random_codes(reference, rows=1, frames=9)
    direct = MimiDecoder(config_of(reference), reference.state_dict())
    assert torch.equal(MimiDecoder.load(tmp_path).decode(codes), direct.decode(codes))


def test_each_half_reads_only_what_it_needs(reference: MimiModel, tensors: dict[str, Tensor], tmp_path: Path) -> None:
    folder, config = write(tmp_path, reference, tensors), config_of(reference)
    decoding, encoding = (set(read_tensors(folder, config, parts)) for parts in (DECODING, ENCODING))
    assert decoding | encoding == set(tensors)
    assert all(name.startswith("quantizer.") for name in decoding & encoding)


@pytest.mark.parametrize("half", [MimiDecoder, MimiEncoder])
def test_names_that_are_missing_unknown_or_misshapen_are_named(
    reference: MimiModel, tensors: dict[str, Tensor], tmp_path: Path, half: type[MimiDecoder | MimiEncoder]
) -> None:
    """Of the whole file, whichever half is loaded."""
    wrong = dict(tensors)
    del wrong["decoder.layers.0.conv.bias"], wrong["encoder.layers.0.conv.bias"]
    wrong["decoder.layers.0.conv.bias_g"] = torch.zeros(3)
    wrong["upsample.conv.weight"] = torch.zeros(16, 1, 6)
    with pytest.raises(StreamSynthError) as refused:
        half.load(write(tmp_path, reference, wrong))
    assert refused.value.code == ErrorCode.START_FAILED
    message = refused.value.message
    assert "missing: decoder.layers.0.conv.bias, encoder.layers.0.conv.bias;" in message
    assert "unknown: decoder.layers.0.conv.bias_g;" in message
    assert "of another shape: upsample.conv.weight (16, 1, 6), not (16, 1, 4)" in message


def test_a_file_of_something_else_is_not_listed_in_full(reference: MimiModel, tmp_path: Path) -> None:
    names = {f"layer.{index}.weight": torch.zeros(1) for index in range(200)}
    with pytest.raises(StreamSynthError, match=r"unknown: layer\.0\.weight.* and 195 more") as refused:
        MimiDecoder.load(write(tmp_path, reference, names))
    assert len(refused.value.message) < 1000


def test_random_weights_fill_a_codec_and_make_a_bounded_sound(reference: MimiModel) -> None:
    config = config_of(reference)
    tensors = random_tensors(config, seed=1)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == tensor_shapes(config)
    assert all(
        torch.equal(tensor, again)
        for tensor, again in zip(tensors.values(), random_tensors(config, seed=1).values(), strict=True)
    )
    sound = MimiDecoder(config, tensors).decode(random_codes(reference, rows=1, frames=30))
    assert 0.01 < float(sound.std()) < 100
    assert MimiEncoder(config, tensors).encode(sound).unique().numel() > 1
