"""Guidance and sampling of one codebook in one program a unit: what `engine.sampler` does, without sorting.

With `top_k` alone a token is drawn from all, and again from the better ones until it is one of the best. Where the
best are to be known, the k-th best logit, and the one where they reach the mass `top_p`, are found by bisection on the
bits of the numbers. Equal logits stay or go together. The noise is the sampler's own.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from streamsynth.engine.kernels.launching import let_next_start, wait_for_previous
from streamsynth.engine.kernels.product import Normed
from streamsynth.engine.sampler import SamplingBatch

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_A = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_B = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _mix(state):
    state = (state ^ (state >> 30)) * _MIX_A
    state = (state ^ (state >> 27)) * _MIX_B
    return state ^ (state >> 31)


@triton.jit
def _gumbel(seed, position, codebook, tokens):
    """`engine.sampler.gumbel` for one row, in unsigned arithmetic."""
    one = tl.full((), 1, tl.uint64)
    golden = tl.full((), _GOLDEN, tl.uint64)
    counter = (position * 64 + codebook).to(tl.uint64) + one
    row = _mix(seed.to(tl.uint64) + golden * counter)
    bits = _mix(row + golden * (tokens.to(tl.uint64) + one)) >> 40
    uniform = (bits.to(tl.uint32).to(tl.float32) + 0.5) * (1.0 / (1 << 24))
    return -tl.log(-tl.log(uniform))


@triton.jit
def _ordered(values):
    """float32 to uint32 that compares alike."""
    bits = values.to(tl.uint32, bitcast=True)
    return bits ^ tl.where(bits >> 31 != 0, 0xFFFFFFFF, 0x80000000)


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def _count_three(keys, low, middle, high):
    """How many reach each of three keys."""
    # Counts are below 2^16: two of them share an integer.
    both = (keys >= low).to(tl.int32) + ((keys >= middle).to(tl.int32) << 16)
    both, highest = tl.reduce((both, (keys >= high).to(tl.int32)), 0, _add_pairs)
    return both & 0xFFFF, both >> 16, highest


@triton.jit
def _least_of_best(values, keys, inside, count):
    """A key that the `count` best reach, and no others but equals of the least of them.

    The range of the values is quartered first: its ends are close to each other where the bits of numbers are not.
    Where that does not part the best from the rest, as with equals, two bits of the key are decided a round.
    """
    found = tl.full((), 0, tl.uint32)
    reached = tl.full((), 1 << 30, tl.int32)
    top = tl.max(tl.where(inside, values, float("-inf")), 0)
    bottom = tl.min(tl.where(inside, values, float("inf")), 0)
    quarter = (top - bottom) * 0.25
    rounds = tl.full((), 0, tl.int32)
    while (reached != count) & (rounds < 8):
        low = _ordered(bottom + quarter).to(tl.uint32)
        middle = _ordered(bottom + 2 * quarter).to(tl.uint32)
        high = _ordered(bottom + 3 * quarter).to(tl.uint32)
        lowest, second, highest = _count_three(keys, low, middle, high)
        if highest >= count:
            found = high
            reached = highest
            bottom += 3 * quarter
        elif second >= count:
            found = middle
            reached = second
            bottom += 2 * quarter
        elif lowest >= count:
            found = low
            reached = lowest
            bottom += quarter
        quarter *= 0.25
        rounds += 1
    shift = 30
    if reached != count:
        found = tl.full((), 0, tl.uint32)
    while (reached != count) & (shift >= 0):
        step = tl.full((), 1, tl.uint32) << shift
        low = found + step
        middle = low + step
        high = middle + step
        lowest, second, highest = _count_three(keys, low, middle, high)
        if highest >= count:
            found = high
            reached = highest
        elif second >= count:
            found = middle
            reached = second
        elif lowest >= count:
            found = low
            reached = lowest
        shift -= 2
    return found


@triton.jit
def _higher(chosen, value, token, other_chosen, other_value, other_token):
    stays = (chosen > other_chosen) | ((chosen == other_chosen) & (token < other_token))
    return (
        tl.where(stays, chosen, other_chosen),
        tl.where(stays, value, other_value),
        tl.where(stays, token, other_token),
    )


@triton.jit
def _higher_and_count(count, chosen, value, token, other_count, other_chosen, other_value, other_token):
    chosen, value, token = _higher(chosen, value, token, other_chosen, other_value, other_token)
    return count + other_count, chosen, value, token


@triton.jit
def _best_above(value, chosen, values, tokens):
    """How many of `values` are above one; value and token of the one that is chosen of them."""
    above = values > value
    chosen = tl.where(above, chosen, float("-inf"))
    count, _, best, token = tl.reduce((above.to(tl.int32), chosen, values, tokens), 0, _higher_and_count)
    return count, best, token


@triton.jit
def _least_of_mass(keys, mass, wanted):
    """The key down to which the best together have the mass `wanted`."""
    found = tl.full((), 0, tl.uint32)
    for shift in range(31, -1, -1):
        candidate = found + (tl.full((), 1, tl.uint32) << shift)
        found = tl.where(tl.sum(tl.where(keys >= candidate, mass, 0.0), 0) >= wanted, candidate, found)
    return found


@triton.jit(do_not_specialize=["codebook"])
def _sample(
    logits,
    scale,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    position,
    codes,
    table,
    fed,
    norm,
    fed_scaled,
    fed_squares,
    logits_stride,
    codes_stride,
    fed_stride,
    codebook,
    rows: tl.constexpr,
    vocabulary: tl.constexpr,
    block: tl.constexpr,
    width: tl.constexpr,
    block_width: tl.constexpr,
    feeds: tl.constexpr,
    prepares: tl.constexpr,
    overlap: tl.constexpr,
):
    let_next_start(overlap)
    unit = tl.program_id(0)
    tokens = tl.arange(0, block)
    inside = tokens < vocabulary
    hot = tl.load(temperature + unit)
    limit = tl.load(top_k + unit)
    mass_kept = tl.load(top_p + unit)
    least = tl.load(min_p + unit)
    noise_seed = tl.load(seed + unit)
    frame = tl.load(position + unit)
    guidance = tl.load(scale + unit)
    noise = tl.zeros((block,), tl.float32)
    if hot > 0.0:
        noise = _gumbel(noise_seed, frame, codebook, tokens)
    wait_for_previous(overlap)
    at = logits + unit * rows * logits_stride + tokens
    values = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
    if rows > 1:
        unconditional = tl.load(at + (rows - 1) * logits_stride, mask=inside, other=0.0).to(tl.float32)
        values = tl.where(inside, unconditional + guidance * (values - unconditional), float("-inf"))
    chosen = values
    if hot > 0.0:
        scaled = values / tl.maximum(hot, 1e-5)
        keep = inside
        if (mass_kept < 1.0) | (least > 0.0):
            weights = tl.exp(scaled - tl.max(scaled, 0))
            if mass_kept < 1.0:
                keys = tl.where(inside, _ordered(values), 0)
                if (limit > 0) & (limit < vocabulary):
                    keep = keys >= _least_of_best(values, keys, inside, limit.to(tl.int32))
                weights = tl.where(keep, weights, 0.0)
                keep = keep & (keys >= _least_of_mass(keys, weights, mass_kept * tl.sum(weights, 0)))
            keep = keep & (weights >= least)
        chosen = tl.where(keep, scaled + noise, float("-inf"))
    _, drawn, code = tl.reduce((chosen, values, tokens), 0, _higher)
    if (hot > 0.0) & (limit > 0):
        # What is drawn from all stands if it is one of the best; else it and all below it are none of them.
        better, next_drawn, next_code = _best_above(drawn, chosen, values, tokens)
        while better >= limit:
            drawn = next_drawn
            code = next_code
            better, next_drawn, next_code = _best_above(drawn, chosen, values, tokens)
    tl.store(codes + unit * codes_stride + codebook, code.to(tl.int64))
    if feeds:
        entry = table + (code.to(tl.int64) + codebook * vocabulary) * width
        squares_sum = 0.0
        for start in tl.static_range(0, width, block_width):
            place = start + tl.arange(0, block_width)
            piece = tl.load(entry + place, mask=place < width, other=0.0)
            scaled_piece = piece
            if prepares:
                wide = piece.to(tl.float32)
                squares_sum += tl.sum(wide * wide, 0)
                weight = tl.load(norm + place, mask=place < width, other=0.0).to(tl.float32)
                scaled_piece = (wide * weight).to(piece.dtype)
            for row in tl.static_range(rows):
                tl.store(fed + (unit * rows + row) * fed_stride + place, piece, mask=place < width)
                if prepares:
                    tl.store(fed_scaled + (unit * rows + row) * width + place, scaled_piece, mask=place < width)
        if prepares:
            for row in tl.static_range(rows):
                tl.store(fed_squares + unit * rows + row, squares_sum)


def sample_codebook(
    logits: Tensor,
    scale: Tensor,
    batch: SamplingBatch,
    position: Tensor,
    codes: Tensor,
    codebook: int,
    *,
    table: Tensor | None = None,
    fed: Tensor | Normed | None = None,
    warps: int = 8,
    overlap: bool = False,
) -> None:
    """Draw a code for each unit into `codes[:, codebook]`, int64 (units, codebooks).

    logits (units * rows, vocabulary); scale and position (units,). With `table` (codebooks * vocabulary, width), the
    drawn code's entry is written to `fed` (units * rows, width, contiguous in width) for every row of the unit, and
    to the other parts of a `Normed`.
    """
    normed = fed if isinstance(fed, Normed) else None
    fed = fed.x if isinstance(fed, Normed) else fed
    units = len(position)
    vocabulary = logits.shape[-1]
    feeds = table is not None and fed is not None
    width = table.shape[-1] if table is not None else 1
    _sample[(units,)](
        logits,
        scale,
        batch.temperature,
        batch.top_k,
        batch.top_p,
        batch.min_p,
        batch.seed,
        position,
        codes,
        table if table is not None else logits,
        fed if fed is not None else logits,
        normed.weight if normed is not None else logits,
        normed.scaled if normed is not None else logits,
        normed.squares if normed is not None else logits,
        logits.stride(0),
        codes.stride(0),
        fed.stride(0) if fed is not None else 0,
        codebook,
        rows=logits.shape[0] // units,
        vocabulary=vocabulary,
        block=triton.next_power_of_2(vocabulary),
        width=width,
        block_width=min(1024, triton.next_power_of_2(width)),
        feeds=feeds,
        prepares=normed is not None and normed.scaled is not None,
        overlap=overlap,
        num_warps=warps if vocabulary > 512 else 4,
        **({"launch_pdl": True} if overlap else {}),
    )
