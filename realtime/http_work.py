"""Work that somebody waits for on an HTTP connection: draining waits for it too, and it ends with either."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from aiohttp import web

from streamsynth.flows import RequestFlow, VideoFlow
from streamsynth.observe.metrics import Metrics
from streamsynth.realtime.clip_fields import ClipSettings
from streamsynth.realtime.http_writer import break_off
from streamsynth.realtime.keys import ADMISSION, CALLER, DRAINING, METRICS, RUNTIME

logger = logging.getLogger(__name__)

_IDLE_WAIT_S = 5.0


@contextmanager
def work_of(request: web.Request) -> Iterator[None]:
    """Draining waits for the block. When its time is over, an answer that has begun is broken off, another refused."""
    draining = request.app[DRAINING]
    task = asyncio.current_task()
    assert task is not None

    def end_now() -> None:
        if request.writer.output_size > 0:
            break_off(request)
        else:
            task.cancel()

    try:
        with draining.work(on_expiry=end_now):
            yield
    except asyncio.CancelledError:
        if draining.expired and request.writer.output_size == 0:
            task.uncancel()
            draining.refuse_if_begun()
        raise


@asynccontextmanager
async def video_flow(request: web.Request, settings: ClipSettings) -> AsyncIterator[VideoFlow]:
    """The flow of a clip or an image, in its turn; cancelled at the end of the block, however that comes."""
    app = request.app
    with app[ADMISSION].request(request[CALLER]) as ticket:
        await ticket.granted()
        flow = app[RUNTIME].open_video(settings.model, settings.request, lambda _: None)
        try:
            yield flow
        except (asyncio.CancelledError, ConnectionError):
            await until_idle(flow, app[METRICS])
            raise
        finally:
            flow.cancel()


async def until_idle(flow: RequestFlow, metrics: Metrics) -> None:
    """The client left: the place is free when the worker has let go, at most one step later."""
    cancelled_s = time.monotonic()
    flow.cancel()
    idle = asyncio.create_task(flow.idle())
    while not idle.done() and (left_s := cancelled_s + _IDLE_WAIT_S - time.monotonic()) > 0:
        # A failed write is followed by the cancellation for the same lost connection: both mean what is done here.
        with suppress(asyncio.CancelledError):
            await asyncio.wait([idle], timeout=left_s)
    if idle.done():
        metrics.cancel_idle(time.monotonic() - cancelled_s)
    else:
        idle.cancel()
        logger.warning("%s: its worker did not let go within %g s", flow.id, _IDLE_WAIT_S)
