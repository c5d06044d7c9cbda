"""The server's life: bind, start the workers, answer, and on a signal end in order."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, closing, contextmanager

from streamsynth.config.deployment import Deployment
from streamsynth.realtime.binding import open_listener, open_tls
from streamsynth.realtime.draining import Draining
from streamsynth.realtime.limits import Limits
from streamsynth.realtime.settings import ServerSettings
from streamsynth.runtime import Runtime

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def serve(
    deployments: Sequence[Deployment], settings: ServerSettings, *, on_ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then drain; a second signal ends the draining (a second SIGHUP does not).

    `on_ready` hears the server's URL once it answers and its workers are up. Must run in the main thread. Cancelling it
    ends everything at once. Raises StreamSynthError if it cannot start.
    """
    tls = await asyncio.to_thread(open_tls, settings.tls_cert, settings.tls_key)
    draining = Draining()
    runtime = Runtime(deployments)
    with closing(open_listener(settings.host, settings.port)) as listener, _signals(draining) as stopping:
        try:
            starting = asyncio.create_task(_start(runtime), name="start")
            if (open_site := await _unless(stopping, starting)) is None:
                return
            async with open_site(runtime, deployments, settings, draining, listener, tls):
                on_ready(_url(settings, listener))
                await stopping.wait()
                await _drain(draining, settings.limits)
        finally:
            await runtime.stop()


OpenSite = Callable[..., AbstractAsyncContextManager[None]]


async def _start(runtime: Runtime) -> OpenSite:
    # A worker takes about as long to start as aiohttp and the encoders take to import: both at once.
    importing = asyncio.create_task(asyncio.to_thread(_import_site), name="import")
    try:
        await runtime.start()
    finally:
        await asyncio.wait([importing])
    return importing.result()


def _import_site() -> OpenSite:
    from streamsynth.realtime.site import open_site

    return open_site


async def _unless(stopping: asyncio.Event, starting: asyncio.Task[OpenSite]) -> OpenSite | None:
    """What `starting` gives, or None if a signal came first."""
    signalled = asyncio.create_task(stopping.wait(), name="signal")
    try:
        await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
        return starting.result() if starting.done() else None
    finally:
        signalled.cancel()
        starting.cancel()
        await asyncio.wait([starting, signalled])


@contextmanager
def _signals(draining: Draining) -> Iterator[asyncio.Event]:
    stopping = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        # A terminal that closes may say so twice, by the kernel and by the shell.
        if stopping.is_set() and number != signal.SIGHUP:
            draining.expire()
        stopping.set()

    loop = asyncio.get_running_loop()
    # Under nohup the server outlives its terminal.
    heard = [each for each in _SIGNALS if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stopping
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


async def _drain(draining: Draining, limits: Limits) -> None:
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


def _url(settings: ServerSettings, listener: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{settings.scheme}://{host}:{listener.getsockname()[1]}"
