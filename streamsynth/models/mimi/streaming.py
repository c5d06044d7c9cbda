"""What streams remember between steps, many streams in one batch, and one step under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from streamsynth.errors import invalid_value
from streamsynth.models.mimi.ring import AttentionShape, AttentionStep, RingCache
from streamsynth.models.mimi.windows import Contexts, ConvBuffers, ConvShape, ConvViews


class StreamState:
    """Preallocated memory for `slots` independent streams, each at a position of its own; positions have no end.

    The caller gives a stream a slot for as long as it lives, and resets the slot before giving it to another. A step
    may hold `max_frames` frames.
    """

    def __init__(
        self,
        convolutions: Sequence[ConvShape],
        attention: AttentionShape,
        *,
        slots: int,
        max_frames: int,
        dtype: torch.dtype,
    ) -> None:
        for name, value in (("slots", slots), ("max_frames", max_frames)):
            if value < 1:
                raise invalid_value(name, value, "at least 1")
        device = attention.signed_frequencies.device
        self.slots = slots
        self.max_frames = max_frames
        self.positions = torch.zeros(slots, dtype=torch.int64, device=device)
        self._convolutions = convolutions
        self._contexts = Contexts(convolutions, slots, dtype, device)
        self._borrowed: dict[int, Contexts] = {}
        self._buffers = ConvBuffers(convolutions, slots, max_frames, dtype, device)
        self._ring = RingCache(attention, slots, 2 * max_frames, dtype)
        self._all_slots = torch.arange(slots, device=device)
        self._steps = torch.arange(2 * max_frames, device=device)

    @property
    def bytes_per_slot(self) -> int:
        """What a stream keeps between steps."""
        return sum(kept.nbytes for kept in (self._contexts.flat, self._ring.kv, self.positions)) // self.slots

    def reset(self, slot: int) -> None:
        """Make a slot new, whatever the others are doing."""
        if not 0 <= slot < self.slots:
            raise invalid_value("slot", slot, f"0 to {self.slots - 1}")
        self._contexts.flat[slot] = 0
        self._ring.kv[:, slot] = 0
        self.positions[slot] = 0

    def begin(
        self, size: tuple[int, int], rows: Tensor | None, active: Tensor | None, ends_at: Fraction | None = None
    ) -> Step:
        """Start a step of `size` (rows, frames); `rows` and `active` as in `MimiDecoder.forward`."""
        count, frames = size
        if not 1 <= frames <= self.max_frames:
            raise invalid_value("frames", frames, f"1 to {self.max_frames}")
        slots = self._all_slots if rows is None else rows
        if count != len(slots) or count > self.slots:
            limit = f"{self.slots}, the number of slots" if rows is None else f"one a row, at most {self.slots}"
            raise invalid_value("rows", count if rows is None else len(slots), limit)
        start = self.positions if rows is None else self.positions.index_select(0, rows)
        return Step(
            slots=slots,
            active=active,
            contexts=self._take_contexts(slots, owned=rows is None and active is None),
            views=self._buffers.views(count, frames),
            attention=self._ring.begin(start[:, None] + self._steps[: 2 * frames], slots, rows is not None),
            fresh=(start == 0)[:, None, None],
            frames=frames,
            ends_at=ends_at,
        )

    def commit(self, step: Step) -> None:
        """Keep what the step left behind, for its active rows."""
        if step.contexts is self._contexts:
            self.positions.add_(2 * step.frames)
            return
        contexts, advance = step.contexts.flat, torch.full_like(step.slots, 2 * step.frames)
        if step.active is not None:
            before = self._contexts.flat.index_select(0, step.slots)
            contexts, advance = torch.where(step.active[:, None], contexts, before), advance * step.active
        self._contexts.flat.index_copy_(0, step.slots, contexts)
        self.positions.index_add_(0, step.slots, advance)

    def _take_contexts(self, slots: Tensor, *, owned: bool) -> Contexts:
        """The state's own where every slot advances, else a copy to work on."""
        if owned:
            return self._contexts
        count, flat = len(slots), self._contexts.flat
        if count not in self._borrowed:
            self._borrowed[count] = Contexts(self._convolutions, count, flat.dtype, flat.device)
        borrowed = self._borrowed[count]
        torch.index_select(flat, 0, slots, out=borrowed.flat)
        return borrowed


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step under way. `ends_at`, where given, is the part of it after which the stream ends inside a frame."""

    slots: Tensor
    active: Tensor | None
    contexts: Contexts
    views: Sequence[ConvViews]
    attention: AttentionStep
    fresh: Tensor
    frames: int
    ends_at: Fraction | None
