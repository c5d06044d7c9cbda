"""Whole clips on the device: the pipeline's own pictures, copied to the host beside the next clip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_pipelines.clips import FAMILIES, make, options, request, save

from streamsynth.engine.diffusion.output import OutputThread
from streamsynth.models.diffusers.loading import load_clips

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")]

MADE_OF_PROMPTS = [name for name, family in FAMILIES.items() if not family.picture]


@pytest.mark.parametrize("name", MADE_OF_PROMPTS)
def test_a_seed_means_nearly_the_same_on_the_device_as_on_the_host(name: str, tmp_path: Path) -> None:
    """Noise is drawn on the host; the rest differs by rounding, in float32 without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    folder = save(name, tmp_path)
    (expected,) = make(load_clips(**options(folder)), request(name))
    engine = load_clips(**options(folder, device="cuda"))
    (made,) = make(engine, request(name))
    assert made.error is None
    assert np.abs(made.pictures.astype(int) - expected.pictures.astype(int)).mean() < 1
    engine.close()


@pytest.mark.parametrize("name", MADE_OF_PROMPTS)
def test_offloaded_equals_resident_bit_for_bit_fifty_times(name: str, tmp_path: Path) -> None:
    """V49"""
    folder = save(name, tmp_path)
    (resident,) = make(load_clips(**options(folder, device="cuda")), request(name))
    engine = load_clips(**options(folder, device="cuda", offload=True))
    for _ in range(50):
        (made,) = make(engine, request(name))
        np.testing.assert_array_equal(made.pictures, resident.pictures)
    engine.close()


def test_pictures_are_copied_whole_while_the_device_goes_on() -> None:
    """AO-10: as a blocking copy has them, though their memory is let go and written to at once."""
    device = torch.device("cuda")
    outputs = OutputThread(device)
    for number in range(50):
        source = torch.full((9, 256, 256, 3), number, dtype=torch.uint8, device=device)
        copy = outputs.begin(source)
        del source
        torch.full((9, 256, 256, 3), 255, dtype=torch.uint8, device=device)
        copy.wait()
        assert copy.error is None
        assert copy.pictures is not None
        assert (copy.pictures == number).all()
    outputs.close()


def test_the_device_s_memory_is_reported_by_the_allocator_and_as_a_whole(tmp_path: Path) -> None:
    """V68: two figures, named as what they are."""
    engine = load_clips(**options(save("wan", tmp_path), device="cuda"))
    counters = engine.counters()
    assert 0 < counters["allocator_peak_bytes"] <= counters["allocator_reserved_bytes"] <= counters["device_used_bytes"]
    engine.close()
