"""Decoding steps of rounded sizes against whole utterances."""

from __future__ import annotations

import torch
from mimi_models import SMALL, config_of, random_reference

from streamsynth.models.mimi.captured import CapturedDecoder
from streamsynth.models.mimi.decoder import MimiDecoder


def test_streams_that_join_a_rounded_step_and_leave_it_sound_as_they_do_whole() -> None:
    """Design rule 5: three of five slots, in steps of four rows, the last of which is padding."""
    torch.set_num_threads(1)
    reference = random_reference(SMALL)
    decoder = MimiDecoder(config_of(reference), dict(reference.state_dict()))
    captured = CapturedDecoder(decoder, slots=5, frames=(1, 2))
    codes = torch.randint(SMALL["codebook_size"], (3, SMALL["num_quantizers"], 6))
    slots = [4, 0, 2]
    heard: list[list[torch.Tensor]] = [[], [], []]

    def step(who: list[int], first: int, frames: int) -> None:
        made = captured(codes[who][:, :, first : first + frames], [slots[number] for number in who])
        for number, samples in zip(who, made, strict=True):
            heard[number].append(samples.clone())

    step([0, 1, 2], 0, 2)
    step([1], 2, 2)
    step([0, 2], 2, 1)
    step([2, 0], 3, 1)
    step([0, 1, 2], 4, 2)
    whole = decoder.decode(codes)
    for number, pieces in enumerate(heard):
        assert torch.allclose(torch.cat(pieces), whole[number], atol=1e-5 * float(whole.abs().max()))
    captured.reset(slots[1])
    again = captured(codes[1:2, :, :2], [slots[1]])[0]
    assert torch.allclose(again, heard[1][0], atol=1e-6)
