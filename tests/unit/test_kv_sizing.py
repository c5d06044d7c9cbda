"""The size of a page pool: the arithmetic, and what is refused."""

import pytest
import torch

from streamsynth.engine.kv.sizing import (
    KvBudget,
    MeasuredDevice,
    fitted_length,
    pool_pages,
    remaining_bytes,
    requested_bytes,
)
from streamsynth.errors import ErrorCode, StreamSynthError


def never() -> int:
    raise AssertionError("nothing is to be measured")


@pytest.mark.parametrize(("requested", "peak", "left"), [(750, 400, 350), (1000, 650, 350)])
def test_pages_get_what_the_share_has_over_the_peak(requested: int, peak: int, left: int) -> None:
    """T2.8."""
    assert remaining_bytes(requested, peak) == left


@pytest.mark.parametrize("peak", [750, 800])
def test_a_model_that_takes_the_whole_share_does_not_start_and_both_numbers_are_said(peak: int) -> None:
    """T2.9: equality fails too."""
    with pytest.raises(StreamSynthError, match=f"requested_memory=750 bytes, non_kv_cache_memory={peak} bytes"):
        remaining_bytes(750, peak)


def test_bytes_that_are_named_are_taken_as_they_are() -> None:
    """T2.8: whatever share is named beside them."""
    device = MeasuredDevice(KvBudget(4096, 0.9), torch.device("cpu"))
    assert device.kv_bytes(never) == 4096


def test_where_nothing_is_said_there_are_the_models_own_bytes() -> None:
    assert KvBudget(None, None, 640).explicit == 640
    assert KvBudget(4096, None, 640).explicit == 4096
    assert KvBudget(None, 0.5, 640).explicit is None
    assert KvBudget(0, 0.5, 640).explicit is None
    with pytest.raises(StreamSynthError, match="set, or gpu_memory_utilization"):
        KvBudget(0, None, 640)


@pytest.mark.parametrize("budget", [KvBudget(None, 0.5), KvBudget(0, 0.5), KvBudget(None, 0.5, 640)])
def test_a_share_of_a_device_without_memory_of_its_own_is_refused_by_name(budget: KvBudget) -> None:
    with pytest.raises(StreamSynthError, match="on the CPU name kv_cache_memory_bytes") as raised:
        MeasuredDevice(budget, torch.device("cpu"))
    assert raised.value.code is ErrorCode.INVALID_VALUE


@pytest.mark.parametrize(
    ("nbytes", "share", "field"),
    [(None, None, "kv_cache_memory_bytes"), (-1, None, "kv_cache_memory_bytes"), (0, 0.0, "gpu_memory_utilization")],
)
def test_a_budget_that_is_none_is_refused_by_name(nbytes: int | None, share: float | None, field: str) -> None:
    with pytest.raises(StreamSynthError) as raised:
        KvBudget(nbytes, share)
    assert raised.value.param == field


def test_a_share_that_is_not_free_is_refused_before_anything_is_loaded() -> None:
    assert requested_bytes(0.5, free_bytes=600, total_bytes=1000) == 500
    with pytest.raises(StreamSynthError, match="900 of the device's 1000 bytes, of which 600 are free"):
        requested_bytes(0.9, free_bytes=600, total_bytes=1000)


def test_so_many_bytes_are_so_many_pages() -> None:
    """T2.12."""
    assert pool_pages(32 * 640 + 639, 640) == 32
    with pytest.raises(StreamSynthError, match="at least two"):
        pool_pages(640, 640)


def test_a_length_of_minus_one_fits_to_the_usable_pages() -> None:
    """T2.13, with pages that are usable: pool - 1."""
    assert fitted_length(-1, model_limit=4096, usable_pages=16, page_size=16) == 256
    assert fitted_length(-1, model_limit=100, usable_pages=16, page_size=16) == 100
    assert fitted_length(200, model_limit=4096, usable_pages=16, page_size=16) == 200


@pytest.mark.parametrize("length", [0, -2, 257, 5000])
def test_a_length_that_cannot_be_names_the_limits(length: int) -> None:
    with pytest.raises(StreamSynthError, match="the model's limit is 4096, 16 usable pages of 16 hold 256"):
        fitted_length(length, model_limit=4096, usable_pages=16, page_size=16)
