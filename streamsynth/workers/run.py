"""The worker: one thread steps, one reads commands, one sends what is finished.

The same code runs in a process of its own and, for tests, in a thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec

from streamsynth.engine.opening import open_engine
from streamsynth.engine.parallel.seat import Follower, FollowingSeat, LeadingSeat
from streamsynth.engine.stream import Engine, WholeClips
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.workers import wire
from streamsynth.workers.command_reader import CommandReader
from streamsynth.workers.loop import StepLoop
from streamsynth.workers.output_sender import OutputSender
from streamsynth.workers.shared import MemoryWriter

logger = logging.getLogger(__name__)

FAILED_GRACE_S = 5.0
"""A rank that cannot load leaves rank 0 this time to say why the stage does not start."""


def run_worker(
    connection: socket.socket, descriptor: int, *, on_server_gone: Callable[[], None], seat: LeadingSeat | None = None
) -> None:
    """Serve one stage over `connection` until Stop or until the server is gone; with other ranks, if there is a seat.

    `on_server_gone` is called from the reading thread, and may end the process at once: a step can take long.
    `descriptor` is the shared memory to fill. Owns and closes both.
    """
    first = _first_command(connection)
    if first is None:
        return
    memory = MemoryWriter(descriptor, first.memory_bytes)
    os.close(descriptor)
    reader = CommandReader(connection, memory, on_server_gone)
    sender = OutputSender(connection, memory)
    sender.start()
    began = time.monotonic()

    def refuse(why: str) -> None:
        message = f"stage {first.stage} did not load: {why}"[:500]
        sender.put(wire.StartFailed(StreamSynthError(ErrorCode.START_FAILED, message).to_wire()))
        sender.finish()

    try:
        if seat is not None:
            seat.on_lost = refuse
            seat.patience_s = first.heartbeat_timeout_s
            seat.watch()
            seat.tell(wire.encode_body(first))
        engine: Engine = _load(first) if seat is None else _load(first, seat=seat)
    except Exception as error:
        if isinstance(error, StreamSynthError):
            refuse(error.message)
        else:
            logger.error("stage %s did not load", first.stage, exc_info=error)
            refuse(f"{type(error).__name__}: {error}")
        connection.close()
        return
    if seat is not None:
        seat.on_lost = None
    reader.start()
    traits = msgspec.to_builtins(engine.traits) if isinstance(engine, WholeClips) else None
    sender.put(wire.Ready(time.monotonic() - began, traits))
    loop = StepLoop(engine, first, memory, reader, sender)
    try:
        loop.run()
    finally:
        engine.close()
        sender.finish()
        # A close alone would wait for the reading thread to let go of the socket.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def _first_command(connection: socket.socket) -> wire.Start | None:
    """The Start frame, read byte-exact so that nothing behind it is taken; None if the server is gone already."""
    splitter = wire.FrameSplitter()
    wanted = 4
    header = b""
    while len(header) < wanted:
        data = connection.recv(wanted - len(header))
        if not data:
            return None
        header += data
        if len(header) == 4:
            wanted += int.from_bytes(header, "little")
    (body,) = splitter.feed(header)
    command = wire.decode_to_worker(body)
    if not isinstance(command, wire.Start):
        raise ValueError(f"the first frame to a worker is Start, not {type(command).__name__}")
    return command


def run_follower(seat: FollowingSeat) -> None:
    """Be a rank that has no connection to the server: load the stage's engine, and do as rank 0 says."""
    start = wire.decode_to_worker(seat.hear())
    if not isinstance(start, wire.Start):
        raise ValueError(f"the first command to a rank is Start, not {type(start).__name__}")
    try:
        follower: Follower = _load(start, seat=seat)
        follower.follow()
    except Exception as error:
        said = None if isinstance(error, StreamSynthError) else error
        logger.error("stage %s ends on this rank: %s", start.stage, error, exc_info=said)
        seat.wait_for_end(FAILED_GRACE_S)
        os._exit(1)
    # What torch.distributed has begun is not taken down in step: a rank that is gone already would be waited for.
    os._exit(0)


def _load(start: wire.Start, **seat: LeadingSeat | FollowingSeat) -> Any:
    return open_engine(start.engine, start.options, **seat)
