"""The orderly end: no new work, those that run hear of it, and it waits for them."""

from __future__ import annotations

import pytest

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.draining import Draining


async def test_work_hears_of_the_beginning_and_of_the_end_of_its_time_once() -> None:
    draining = Draining()
    heard: list[str] = []
    with draining.work(on_begin=lambda: heard.append("begin"), on_expiry=lambda: heard.append("expiry")):
        draining.begin()
        draining.begin()
        assert heard == ["begin"]
        draining.expire()
        draining.expire()
    assert heard == ["begin", "expiry"]
    await draining.idle()


async def test_no_work_starts_once_draining_has_begun() -> None:
    draining = Draining()
    with draining.work():
        assert draining.running == 1
    draining.begin()
    with pytest.raises(StreamSynthError) as caught, draining.work():
        pass
    assert (caught.value.code, caught.value.rendering.http_status) == (ErrorCode.SHUTTING_DOWN, 503)
    assert draining.running == 0


async def test_work_that_has_ended_hears_nothing() -> None:
    draining = Draining()
    heard: list[str] = []
    with draining.work(on_expiry=lambda: heard.append("expiry")):
        pass
    draining.expire()
    assert heard == []
