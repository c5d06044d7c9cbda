"""The embedded codec, as trained: the same sound and the same codes as transformers makes of the same file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
import torch
from mimi_models import pieces, random_codes
from torch import Tensor
from transformers import MimiModel

from streamsynth.models.mimi.decoder import MimiDecoder
from streamsynth.models.mimi.encoder import MimiEncoder

FOLDER = Path(str(files("streamsynth.models.tiny_speech"))) / "weights" / "codec"
FULL_SCALE_ERROR = 1e-5
BFLOAT16_ERROR = 0.02


@pytest.fixture(scope="module")
def reference() -> MimiModel:
    torch.set_num_threads(1)
    model: MimiModel = MimiModel.from_pretrained(FOLDER, dtype=torch.float32).eval()
    return model


@pytest.fixture(scope="module")
def decoder() -> MimiDecoder:
    return MimiDecoder.load(FOLDER)


@pytest.fixture(scope="module")
def codes(reference: MimiModel) -> Tensor:
    """Three seconds: past the window of 1.28 s."""
    return random_codes(reference, rows=2, frames=75)


@pytest.fixture(scope="module")
def sound(reference: MimiModel, codes: Tensor) -> Tensor:
    with torch.inference_mode():
        audio: Tensor = reference.decode(codes).audio_values[:, 0]
    return audio


def streamed(decoder: MimiDecoder, codes: Tensor, lengths: list[int]) -> Tensor:
    state = decoder.open_state(len(codes))
    return torch.cat([decoder(piece, state) for piece in pieces(codes, lengths)], 1)


@pytest.mark.parametrize("lengths", [[1], [2], [5], [1, 2, 5]])
def test_decoding_in_steps_is_transformers_decoding(
    decoder: MimiDecoder, codes: Tensor, sound: Tensor, lengths: list[int]
) -> None:
    assert decoder.config.frame_samples == 960
    assert float((streamed(decoder, codes, lengths) - sound).abs().max()) <= FULL_SCALE_ERROR


def test_bfloat16_is_at_least_40_db_above_its_error(decoder: MimiDecoder, codes: Tensor, sound: Tensor) -> None:
    half = MimiDecoder.load(FOLDER, dtype=torch.bfloat16)
    for lengths in ([1], [5]):
        error = streamed(half, codes, lengths) - sound
        assert float(error.abs().max()) <= BFLOAT16_ERROR
        assert float(error.square().mean()) <= 1e-4 * float(sound.square().mean())


def test_encoding_in_steps_gives_the_codes_of_transformers(reference: MimiModel, sound: Tensor) -> None:
    """Wherever the two nearest entries differ by over 20 errors of a float32 vector: nearly everywhere."""
    encoder = MimiEncoder.load(FOLDER)
    with torch.inference_mode():
        expected = reference.encode(sound[:, None]).audio_codes
        exact = reference.double()
        hidden = exact.encoder_transformer(exact.encoder(sound.double()[:, None]).transpose(1, 2))[0]
        vectors = exact.downsample(hidden.transpose(1, 2)).transpose(1, 2)
        quantizer = exact.quantizer
        parts = (quantizer.semantic_residual_vector_quantizer, quantizer.acoustic_residual_vector_quantizer)
        gaps = torch.cat([gaps_of(vectors, part) for part in parts], 1)
        reference.float()
        found = encoder._vectors(sound, encoder.open_state(2, max_frames=75), None, None)
    sure = gaps > 20 * float((found - vectors).abs().max())
    assert float(sure.float().mean()) > 0.95
    state = encoder.open_state(2)
    stepped = torch.cat([encoder(piece, state) for piece in pieces(sound, [960, 1920, 4800])], 2)
    for codes in (encoder.encode(sound), stepped):
        assert codes.shape == expected.shape
        assert torch.equal(codes[sure], expected[sure])


def gaps_of(vectors: Tensor, quantizer: torch.nn.Module) -> Tensor:
    """(rows, codebooks, frames): the least gap of this codebook's search and of those before it."""
    rest, gaps = vectors @ quantizer.input_proj.weight[:, :, 0].T, []
    for layer in quantizer.layers:
        book = layer.codebook.embed_sum / layer.codebook.cluster_usage[:, None]
        near = torch.cdist(rest, book.expand(len(rest), -1, -1)).topk(2, largest=False)
        gaps.append(near.values[..., 1] - near.values[..., 0])
        rest = rest - book[near.indices[..., 0]]
    return torch.stack(gaps, 1).cummin(1).values


def test_silence_is_never_the_code_that_ends_a_speech(reference: MimiModel) -> None:
    encoder = MimiEncoder.load(FOLDER)
    assert int(encoder.encode(torch.zeros(1, 9600))[:, 0].min()) > 0
