"""The application on its socket: built, accepting, and cleaned up. Importing it brings in aiohttp and the encoders."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from streamsynth.config.deployment import Deployment
from streamsynth.realtime.app import build_app
from streamsynth.realtime.connections import accept_connections
from streamsynth.realtime.draining import Draining
from streamsynth.realtime.page import load_page
from streamsynth.realtime.settings import ServerSettings
from streamsynth.runtime import Runtime

_CLEANUP_S = 1.0


@asynccontextmanager
async def open_site(
    runtime: Runtime,
    deployments: Sequence[Deployment],
    settings: ServerSettings,
    draining: Draining,
    listener: socket.socket,
    tls: ssl.SSLContext | None,
) -> AsyncIterator[None]:
    """Answer requests inside the block. What still runs at its end is cut off."""
    # It would log the key of a client that offers one without a protocol that we know.
    logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)
    page = await asyncio.to_thread(load_page)
    app = build_app(runtime, deployments, settings, draining, page)
    runner = web.AppRunner(app, handle_signals=False, handler_cancellation=True, shutdown_timeout=_CLEANUP_S)
    await runner.setup()
    assert runner.server is not None
    accepting = await accept_connections(runner.server, listener, settings.limits, tls)
    try:
        yield
    finally:
        accepting.close()
        await runner.cleanup()
