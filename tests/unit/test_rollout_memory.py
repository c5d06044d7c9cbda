"""What a video that never ends keeps: nothing that grows."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
import torch
from rollout_driver import engine_of, open_video, pictures_of, settle
from rollout_models import STRIDE, SmallVideoModel
from torch import Tensor

from streamsynth.bench.statistics import slope
from streamsynth.bench.target import resident_bytes
from streamsynth.interactions.messages import Interaction, Kv
from streamsynth.video import Size

CHUNKS = 10_000
EVERY = 50


class EndlessModel(SmallVideoModel):
    """Its decoder remembers the frame before, not all of them."""

    def decode(self, latents: Tensor, states: Sequence[list[Tensor]]) -> list[Tensor]:
        made = []
        for row, state in zip(latents, states, strict=True):
            pictures = row[:3].repeat_interleave(2, 1)[:, int(not state) :]
            state[:] = [row[:3, -1]]
            larger = pictures.repeat_interleave(STRIDE, 2).repeat_interleave(STRIDE, 3)
            made.append((larger.permute(1, 2, 3, 0).sigmoid() * 255).round().to(torch.uint8))
        return made


@pytest.mark.slow
def test_ten_thousand_chunks_keep_memory_flat() -> None:
    """Steered with every way of keeping keys. Over the last three quarters the process grows by less than 64 bytes a
    chunk, with 95 % confidence; a picture alone would be 3,072."""
    torch.set_num_threads(1)
    model = EndlessModel()
    engine = engine_of(model, captured=(Size(width=32, height=32),))
    stream = open_video(engine, "a")
    held: list[int] = []
    for number in range(CHUNKS // EVERY):
        kv = (Kv.KEEP, Kv.RECACHE, Kv.RESET)[number % 3]
        stream.interact(Interaction(f"e{number}", {"prompt": "abc"[number % 3]}, transition_chunks=number % 4, kv=kv))
        pictures_of(engine, stream, EVERY)
        model.rows.clear()  # What this model notes for other tests.
        assert len(stream.rollout.latents) == len(stream.rollout.window.kept) <= 6
        held.append(resident_bytes(os.getpid()))
    last = held[len(held) // 4 :]
    assert slope([EVERY * number for number in range(len(last))], last).upper_95 < 64
    stream.close()
    settle(engine)
    counters = engine.counters()
    assert counters["chunks"] == CHUNKS and counters["free_pages"] == counters["pages"]
