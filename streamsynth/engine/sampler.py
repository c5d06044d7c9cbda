"""Sampling whose noise is a function of (seed, position, codebook, token) alone: batch neighbours change nothing.

A token is drawn by the Gumbel-max rule over the candidates that top-k, top-p and min-p leave. Noise comes from a 64-bit
finaliser (the constants of SplitMix64; Steele, Lea, Flood 2014) of a counter, so that no generator state exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from streamsynth.engine.logits import LogitControls
from streamsynth.errors import invalid_value


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How one request draws its tokens. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep every token.

    `repetition_penalty` above 1 lowers tokens that the request has drawn before (Keskar et al. 2019).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        limits = (
            ("temperature", 0.0 <= self.temperature <= 100.0, "from 0 to 100"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", 0.0 <= self.min_p < 1.0, "at least 0 and below 1"),
            ("repetition_penalty", 0.0 < self.repetition_penalty <= 100.0, "above 0 and at most 100"),
            ("seed", 0 <= self.seed < 2**63, "from 0 to 2^63 - 1"),
        )
        for name, good, limit in limits:
            if not good:
                raise invalid_value(name, getattr(self, name), limit)


_MIX_A = -4658895280553007687  # 0xBF58476D1CE4E5B9 as a signed 64-bit integer
_MIX_B = -7723592293110705685  # 0x94D049BB133111EB
_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15


def _mix_(state: Tensor) -> Tensor:
    """The SplitMix64 finaliser, in place on int64, wrapping; right shifts are logical."""
    state ^= _shift(state, 30)
    state *= _MIX_A
    state ^= _shift(state, 27)
    state *= _MIX_B
    state ^= _shift(state, 31)
    return state


def _shift(state: Tensor, bits: int) -> Tensor:
    return (state >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def gumbel(seed: Tensor, position: Tensor, codebook: int, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise for each token: seed and position (rows,), tokens (rows, n), int64; float32 (rows, n)."""
    row = _mix_(position.mul(64).add_(codebook + 1).mul_(_GOLDEN).add_(seed))
    return _noise(row, tokens)


def _noise(row: Tensor, tokens: Tensor) -> Tensor:
    state = _mix_(tokens.add(1).mul_(_GOLDEN) + row[..., None])
    uniform = _shift(state, 40).float().add_(0.5).mul_(1.0 / (1 << 24))
    return uniform.log_().neg_().log_().neg_()


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """The parameters of a batch as tensors of shape (rows,), and what the batch as a whole needs."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    greedy: bool
    candidates: int
    """How many of the best tokens need to be looked at (0: all of them)."""
    only_top_k: bool = False
    """Every row keeps just its `candidates` best: there is no other filter, and no row is greedy."""
    controls: LogitControls | None = None

    @classmethod
    def of(
        cls,
        params: list[SamplingParams],
        device: torch.device | str = "cpu",
        controls: LogitControls | None = None,
    ) -> SamplingBatch:
        def column(values: list[float] | list[int], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        top_ks = [p.top_k for p in params]
        return cls(
            temperature=column([p.temperature for p in params], torch.float32),
            top_k=column(top_ks, torch.int64),
            top_p=column([p.top_p for p in params], torch.float32),
            min_p=column([p.min_p for p in params], torch.float32),
            seed=column([p.seed for p in params], torch.int64),
            greedy=all(p.temperature == 0.0 for p in params),
            candidates=max(top_ks) if all(top_ks) else 0,
            only_top_k=len(set(top_ks)) == 1
            and all(p.temperature > 0.0 and p.top_p == 1.0 and p.min_p == 0.0 for p in params),
            controls=controls,
        )


def frame_noise(first: SamplingBatch, rest: SamplingBatch, position: Tensor, codebooks: int, vocabulary: int) -> Tensor:
    """The noise of whole frames at once, (rows, codebooks, vocabulary): fewer operations than for each codebook's
    candidates. `first` draws codebook 0, `rest` the others."""
    numbers = torch.arange(1, codebooks + 1, device=position.device)
    seed = torch.where(numbers == 1, first.seed[:, None], rest.seed[:, None])
    row = _mix_((position.mul(64)[:, None] + numbers).mul_(_GOLDEN).add_(seed))
    return _noise(row, torch.arange(vocabulary, device=position.device))


def sample(
    logits: Tensor, batch: SamplingBatch, position: Tensor, codebook: int = 0, noise: Tensor | None = None
) -> Tensor:
    """Draw one token a row. logits (rows, vocabulary), float; position (rows,) int64; returns int64 (rows,).

    `noise` is what `frame_noise` gave for these rows; without it the noise is made here.
    """
    if batch.controls is None:
        return _draw(logits, batch, position, codebook, noise)
    tokens = _draw(batch.controls.adjust(logits, codebook), batch, position, codebook, noise)
    batch.controls.note(logits, tokens, codebook)
    return tokens


def _draw(logits: Tensor, batch: SamplingBatch, position: Tensor, codebook: int, frame: Tensor | None) -> Tensor:
    if batch.greedy:
        return _best(logits)
    count = min(batch.candidates or logits.shape[-1], logits.shape[-1])
    # Sorted best first; equal logits keep no promised order, as with any argmax.
    best, tokens = logits.float().topk(count, dim=-1)
    scaled = best / batch.temperature.clamp_min(1e-5)[:, None]
    noise = gumbel(batch.seed, position, codebook, tokens) if frame is None else frame[:, codebook].gather(-1, tokens)
    if batch.only_top_k:
        return tokens.gather(-1, (scaled + noise).argmax(-1, keepdim=True))[:, 0]
    rank = torch.arange(count, device=logits.device)
    limit = torch.where(batch.top_k > 0, batch.top_k, count)[:, None]
    scaled = scaled.masked_fill(rank >= limit, -torch.inf)
    probability = torch.softmax(scaled, -1)
    # A token stays while the mass before it is below top_p: the best one always does.
    before = probability.cumsum(-1) - probability
    keep = before < batch.top_p[:, None]
    keep &= probability >= batch.min_p[:, None] * probability[:, :1]
    drawn = (scaled + noise).masked_fill(~keep, -torch.inf).argmax(-1)
    drawn = torch.where(batch.temperature == 0.0, 0, drawn)
    return tokens.gather(-1, drawn[:, None])[:, 0]


def _best(logits: Tensor) -> Tensor:
    """The first of each row's best. On the CPU by NumPy: torch takes eight to twenty times as long for a vocabulary."""
    return logits.argmax(-1) if logits.is_cuda else torch.from_numpy(logits.float().numpy().argmax(-1))


def guide(logits: Tensor, scale: Tensor, rows: int) -> Tensor:
    """Classifier-free guidance: (units * rows, vocabulary) to (units, vocabulary).

    The first of a unit's rows is the conditional one, the last the unconditional. `scale` is (units,).
    """
    if rows == 1:
        return logits
    grouped = logits.view(-1, rows, logits.shape[-1])
    conditional, unconditional = grouped[:, 0], grouped[:, -1]
    return unconditional + scale[:, None] * (conditional - unconditional)
