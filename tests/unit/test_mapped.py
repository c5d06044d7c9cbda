"""Weights as views of mapped files: the same manifest as an ordinary load, and no private memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from offload_models import Network, given, network
from safetensors.torch import save_file

from streamsynth.engine.mapped import load_weights, manifest, mapped_tensors, parameters_on_meta
from streamsynth.engine.offload.offloaded import offload_blocks
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.errors import StreamSynthError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(network().state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


def empty(blocks: int = 5, size: int = 33) -> Network:
    with parameters_on_meta():
        return Network(blocks, size).eval()


def test_a_mapped_model_is_the_saved_one(file: Path) -> None:
    """DL-11: what the file does not have, buffers that are not saved, is as it was built."""
    model = empty()
    loaded = load_weights(model, [file])
    assert loaded.copied_bytes == 0
    assert loaded.mapped_bytes == sum(each.nbytes for each in network().state_dict().values())
    assert manifest(model) == manifest(network())
    assert model.blocks[0].gain.item() == 0.5
    with torch.inference_mode():
        assert torch.equal(model(given()), network()(given()))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_every_way_of_loading_gives_the_same_manifest(file: Path, dtype: torch.dtype | None) -> None:
    """V55, DL-12: norms stay in float32 whatever the rest becomes."""

    def wanted(name: str) -> torch.dtype | None:
        return torch.float32 if "norm" in name else dtype

    mapped, ordinary = empty(), empty()
    one, other = load_weights(mapped, [file], wanted), load_weights(ordinary, [file], wanted, mapped=False)
    assert manifest(mapped) == manifest(ordinary)
    assert (one.mapped_bytes > 0, other.mapped_bytes) == (True, 0)
    assert (one.copied_bytes == 0) == (dtype is None)
    assert all(torch.equal(pair[0], pair[1]) for pair in zip(mapped.parameters(), ordinary.parameters(), strict=True))
    offload_blocks(mapped, OffloadOptions(host="in_place"))
    offload_blocks(ordinary)
    assert manifest(mapped) == manifest(ordinary)


def private_bytes() -> int:
    """Memory of this process that is no page of a file."""
    fields = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return 1024 * int(fields["Anonymous"].split()[0])


def test_mapped_weights_take_no_private_memory(tmp_path: Path) -> None:
    """DL-13: 236 MB of weights, read from in every pass, add two slots and two staging slabs."""
    with torch.device("meta"):
        state = Network(blocks=24, size=640).state_dict()
    save_file({name: torch.ones(each.shape) for name, each in state.items()}, tmp_path / "model.safetensors")
    model = empty(24, 640)
    before = private_bytes()
    loaded = load_weights(model, [tmp_path / "model.safetensors"])
    offloaded = offload_blocks(model, OffloadOptions(host="in_place"))
    with torch.inference_mode():
        model(given())
    grown = private_bytes() - before
    assert loaded.mapped_bytes > 200e6
    assert offloaded.host_bytes == 2 * offloaded.slab_bytes
    assert grown < 6 * offloaded.slab_bytes


def test_writing_to_a_mapped_weight_leaves_the_file(file: Path) -> None:
    content = file.read_bytes()
    tensors = mapped_tensors(file)
    tensors["first.weight"].zero_()
    assert file.read_bytes() == content
    assert mapped_tensors(file)["first.weight"].any()


def test_a_tensor_at_an_odd_place_is_copied(tmp_path: Path) -> None:
    """Nothing says that a float lies on a multiple of four bytes."""
    header = {
        "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
    }
    encoded = json.dumps(header).encode()
    data = bytes([1, 2, 3]) + torch.tensor([1.5, -2.0]).numpy().tobytes()
    (tmp_path / "odd.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    assert mapped_tensors(tmp_path / "odd.safetensors")["b"].tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{x",
        (200).to_bytes(8, "little") + b"{}",
        *(
            len(header).to_bytes(8, "little") + header
            for header in (
                b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
                b'{"a":{"dtype":"F99","shape":[0],"data_offsets":[0,0]}}',
                b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[-4,-4]}}',
                b'{"a":{"dtype":"F32","shape":[0]}}',
            )
        ),
    ],
)
def test_a_file_that_is_not_what_it_says_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(StreamSynthError, match=r"model\.safetensors is no safetensors file"):
        mapped_tensors(path)


def test_weights_that_do_not_fit_are_refused(file: Path) -> None:
    with pytest.raises(StreamSynthError, match="Missing key"):
        load_weights(empty(blocks=6), [file])
    with pytest.raises(StreamSynthError, match="Unexpected key"):
        load_weights(empty(blocks=4), [file])
    with pytest.raises(StreamSynthError, match="size mismatch"):
        load_weights(empty(size=32), [file])


def test_building_afterwards_draws_weights_again() -> None:
    with pytest.raises(ZeroDivisionError), parameters_on_meta():
        raise ZeroDivisionError
    assert network().first.weight.device.type == "cpu"
