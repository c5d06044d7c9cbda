"""Masks, penalties and log-probabilities of a talker, codebook by codebook."""

import pytest
import torch
from talker_batch import SMALL, Batch

from streamsynth.engine.logits import penalise_repetition
from streamsynth.engine.runner import Drawing
from streamsynth.engine.sampler import SamplingParams
from streamsynth.errors import StreamSynthError
from streamsynth.models.csm.model import CsmTalker
from streamsynth.models.csm.random_weights import random_talker


@pytest.fixture(scope="module")
def talker() -> CsmTalker:
    torch.set_num_threads(1)  # At these sizes a second thread only waits.
    return random_talker(SMALL, head_gain=2.0)


def only(*tokens: int) -> torch.Tensor:
    mask = torch.zeros(SMALL.vocab_size, dtype=torch.bool)
    mask[list(tokens)] = True
    return mask


def test_each_codebook_has_its_own_mask(talker: CsmTalker) -> None:
    """The first without its end of audio, the third between two codes, beside a request that may draw anything."""
    params = SamplingParams(temperature=2.0, seed=3)
    free = Drawing(first=params, rest=params)
    masked = Drawing(first=params, rest=params, allowed={0: ~only(SMALL.eos_code), 2: only(5, 6)})
    batch = Batch(talker)
    one, other = batch.join([1, 2, 3], drawing=masked), batch.join([1, 2, 3], drawing=free)
    while len(batch.frames[one]) < 100:
        batch.step()
    frames = batch.leave(one)
    assert SMALL.eos_code not in frames[:, 0]
    assert set(frames[:, 2].tolist()) == {5, 6}
    alone = Batch(talker)
    assert torch.equal(batch.leave(other)[:20], alone.draw(alone.join([1, 2, 3], drawing=free), 20))


def test_a_penalty_counts_the_codes_of_each_codebook_apart(talker: CsmTalker) -> None:
    """So strong that no code comes back while there are others: frames repeat no code in their first codebook."""
    first = SamplingParams(temperature=0.0, repetition_penalty=100.0)
    batch = Batch(talker)
    gang = batch.join([4, 5], drawing=Drawing(first=first, rest=SamplingParams(temperature=0.0)))
    frames = batch.draw(gang, 12)
    assert len(frames[:, 0].unique()) == 12
    assert gang.seen.keys() == {0}
    assert sorted(gang.seen[0].nonzero()[:, 0].tolist()) == sorted(frames[:, 0].tolist())


def test_a_mask_that_leaves_no_token_is_refused() -> None:
    params = SamplingParams()
    with pytest.raises(StreamSynthError, match=r"allowed\[3\] is 'no token'"):
        Drawing(first=params, rest=params, allowed={3: only()})


def test_repetition_penalty_lowers_what_was_drawn() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    drawn = torch.tensor([[True, True, False]])
    assert penalise_repetition(logits, drawn, torch.tensor([2.0])).tolist() == [[1.0, -4.0, 1.0]]
