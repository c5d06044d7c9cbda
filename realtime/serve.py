"""The server's life: bind, start the workers, accept, and on a signal end in order."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing

from aiohttp import web

from streamsynth.config.deployment import Deployment
from streamsynth.realtime.app import build_app
from streamsynth.realtime.draining import Draining
from streamsynth.realtime.keys import DRAINING
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.listener import accept_connections, open_listener, open_tls
from streamsynth.realtime.page import load_page
from streamsynth.realtime.settings import ServerSettings
from streamsynth.runtime import Runtime

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve(
    deployments: Sequence[Deployment], settings: ServerSettings, *, on_ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the draining.

    `on_ready` hears the server's URL once it answers and its workers are up. Must run in the main thread. Cancelling it
    ends everything at once. Raises StreamSynthError if it cannot start.
    """
    # The key would otherwise be logged when a client offers it without a protocol that we know.
    logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)
    tls = await asyncio.to_thread(open_tls, settings.tls_cert, settings.tls_key)
    page = await asyncio.to_thread(load_page)
    with closing(open_listener(settings.host, settings.port)) as listener:
        runtime = Runtime(deployments)
        app = build_app(runtime, deployments, settings, page)
        async with _ended_by_signals(app[DRAINING]) as stopping, _running(runtime, stopping) as started:
            if not started:
                return
            runner = web.AppRunner(app, handle_signals=False, handler_cancellation=True, shutdown_timeout=1.0)
            await runner.setup()
            assert runner.server is not None
            accepting = await accept_connections(runner.server, listener, settings.limits, tls)
            try:
                on_ready(_url(settings, listener))
                await stopping.wait()
                await drain(app[DRAINING], settings.limits)
            finally:
                accepting.close()
                await runner.cleanup()


async def drain(draining: Draining, limits: Limits) -> None:
    """Refuse new work, let what runs finish for `drain_s`, then give it `close_wait_s` to end."""
    logger.info("draining: %d at work", draining.running)
    draining.begin()
    for wait_s in (limits.drain_s, limits.close_wait_s + 0.5):
        try:
            async with asyncio.timeout(wait_s):
                await draining.idle()
            return
        except TimeoutError:
            draining.expire()


@asynccontextmanager
async def _ended_by_signals(draining: Draining) -> AsyncIterator[asyncio.Event]:
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            draining.expire()
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stopping
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _running(runtime: Runtime, stopping: asyncio.Event) -> AsyncIterator[bool]:
    """The runtime started, or False if a signal came first; stopped in either case."""
    starting = asyncio.create_task(runtime.start(), name="start of the workers")
    signalled = asyncio.create_task(stopping.wait(), name="signal before the start")
    try:
        await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        yield starting.done()
    finally:
        for task in (starting, signalled):
            task.cancel()
        await asyncio.wait([starting, signalled])
        await runtime.stop()


def _url(settings: ServerSettings, listener: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{settings.scheme}://{host}:{listener.getsockname()[1]}"
