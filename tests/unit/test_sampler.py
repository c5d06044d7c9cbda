"""Sampling: the right distribution, from (seed, position) alone."""

import pytest
import torch

from streamsynth.engine.sampler import SamplingBatch, SamplingParams, frame_noise, guide, gumbel, sample
from streamsynth.errors import StreamSynthError


def draw(logits: torch.Tensor, params: SamplingParams, positions: int) -> torch.Tensor:
    """`positions` tokens drawn from one row of logits."""
    batch = SamplingBatch.of([params] * positions)
    return sample(logits.expand(positions, -1), batch, torch.arange(positions))


def frequencies(tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    return torch.bincount(tokens, minlength=vocabulary) / len(tokens)


LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, -3.0]])


def test_tokens_follow_the_softmax_of_the_logits() -> None:
    drawn = frequencies(draw(LOGITS, SamplingParams(seed=3), 40_000), 5)
    torch.testing.assert_close(drawn, torch.softmax(LOGITS[0], -1), atol=0.01, rtol=0)


def test_temperature_divides_the_logits() -> None:
    drawn = frequencies(draw(LOGITS, SamplingParams(temperature=2.0, seed=3), 40_000), 5)
    torch.testing.assert_close(drawn, torch.softmax(LOGITS[0] / 2, -1), atol=0.01, rtol=0)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=2), {0, 1}),
        (SamplingParams(top_k=1), {0}),
        (SamplingParams(top_p=0.6), {0}),
        (SamplingParams(top_p=0.7), {0, 1}),
        (SamplingParams(min_p=0.1), {0, 1, 2}),
        (SamplingParams(temperature=0.0), {0}),
    ],
)
def test_filters_keep_the_tokens_they_are_said_to_keep(params: SamplingParams, kept: set[int]) -> None:
    """The softmax here is .64 .24 .09 .03 .004."""
    assert set(draw(LOGITS, params, 4000).tolist()) == kept


def test_a_row_samples_the_same_whatever_else_is_in_the_batch() -> None:
    logits = torch.randn(6, 200, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(seed=seed, top_k=50 if seed % 2 else 0, temperature=0.8) for seed in range(6)]
    position = torch.tensor([5, 9, 2, 7, 7, 1])
    together = sample(logits, SamplingBatch.of(params), position)
    alone = [sample(logits[i : i + 1], SamplingBatch.of([params[i]]), position[i : i + 1]) for i in range(6)]
    assert together.tolist() == torch.cat(alone).tolist()


def test_greedy_rows_beside_sampling_ones_stay_greedy() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    batch = SamplingBatch.of([SamplingParams(temperature=0.0), SamplingParams()])
    for position in range(50):
        assert sample(logits, batch, torch.tensor([position, position]))[0] == logits[0].argmax()


def test_noise_differs_between_seeds_positions_codebooks_and_tokens() -> None:
    tokens = torch.arange(100)[None].expand(2, -1)
    seed, position = torch.tensor([1, 2]), torch.tensor([0, 0])
    noise = torch.cat(
        [
            gumbel(seed, position, 0, tokens),
            gumbel(seed, position, 1, tokens),
            gumbel(seed, position + 1, 0, tokens),
        ]
    )
    assert len(noise.flatten().unique()) > 0.999 * noise.numel()
    correlation = torch.corrcoef(noise)
    assert (correlation - torch.eye(6)).abs().max() < 0.4


def test_the_noise_of_a_whole_frame_is_that_of_each_codebook_and_draws_the_same() -> None:
    first, rest = (
        SamplingBatch.of([SamplingParams(top_k=5, seed=seed) for seed in seeds]) for seeds in ((1, 2), (3, 4))
    )
    position, tokens = torch.tensor([9, 4]), torch.arange(40).expand(2, -1)
    noise = frame_noise(first, rest, position, 3, 40)
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(0))
    for codebook, batch in enumerate((first, rest, rest)):
        assert torch.equal(noise[:, codebook], gumbel(batch.seed, position, codebook, tokens))
        drawn = sample(logits, batch, position, codebook, noise)
        assert torch.equal(drawn, sample(logits, batch, position, codebook))


def test_noise_is_standard_gumbel() -> None:
    noise = gumbel(torch.tensor([7]), torch.tensor([0]), 0, torch.arange(200_000)[None])
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    assert abs(float(noise.std()) - 1.2825) < 0.01


def test_guidance_blends_the_rows_of_a_unit() -> None:
    logits = torch.tensor([[3.0], [1.0], [5.0], [4.0]])
    assert guide(logits, torch.tensor([1.5, 1.0]), 2).tolist() == [[4.0], [5.0]]
    assert guide(logits, torch.tensor([1.5] * 4), 1) is logits


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1.0), ("top_k", -1), ("top_p", 0.0), ("min_p", 1.0), ("repetition_penalty", 0.0), ("seed", -1)],
)
def test_a_bad_parameter_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(StreamSynthError, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]  # the point of the test
