"""Captured steps of the codec on the device against the plain decoder there."""

import pytest
import torch

from streamsynth.models.mimi.captured import CapturedDecoder
from streamsynth.models.mimi.config import MimiConfig
from streamsynth.models.mimi.decoder import MimiDecoder
from streamsynth.models.mimi.weights import random_tensors

pytestmark = pytest.mark.gpu


def test_captured_steps_of_changing_streams_sound_as_whole_utterances_do() -> None:
    """Mimi's own sizes in float32, without TF32: within 1e-5 of full scale."""
    config = MimiConfig()
    torch.backends.cudnn.allow_tf32 = False
    decoder = MimiDecoder(config, random_tensors(config, 0)).to("cuda")
    captured = CapturedDecoder(decoder, slots=3, frames=(1, 2))
    codes = torch.randint(config.codebook_size, (3, config.num_quantizers, 4))
    whole = decoder.decode(codes.cuda()).cpu()
    samples = config.frame_samples
    scale = 1e-5 * float(whole.abs().max())
    first = captured(codes[:, :, :1], [2, 0, 1])
    assert torch.allclose(first, whole[:, :samples], atol=scale)
    alone = captured(codes[1:2, :, 1:3], [0])
    assert torch.allclose(alone[0], whole[1, samples : 3 * samples], atol=scale)
    others = captured(codes[[0, 2], :, 1:2], [2, 1])
    assert torch.allclose(others, whole[[0, 2], samples : 2 * samples], atol=scale)
