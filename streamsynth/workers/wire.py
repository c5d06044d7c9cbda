"""Messages between the server and a worker: length-prefixed msgpack frames over a Unix stream socket.

A frame is a 4-byte little-endian length and one msgpack array, [tag, field, ...]. Large arrays travel beside it in
shared memory, small ones inside it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from streamsynth.interactions.messages import Interaction, Notice

MAX_FRAME_BYTES = 32 << 20
"""Room for a request that brings its largest picture; all else is far smaller."""

INLINE_BYTES = 32 << 10
"""Arrays up to this size travel inside the frame: below it a copy through the socket beats a slot and its release."""

_LENGTH = struct.Struct("<I")


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Whose message this is. A reply whose address is not live (an older generation, say) is dropped and counted."""

    session: int
    generation: int
    request: int


class Array(msgspec.Struct, frozen=True, array_like=True):
    """A C-contiguous array: numpy dtype string, shape, and its bytes or its offset in the sender's shared memory."""

    dtype: str
    shape: tuple[int, ...]
    inline: bytes | None = None
    offset: int | None = None
    nbytes: int = 0


# To the worker.


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """First frame: load this stage. `memory_bytes` is the size of the shared memory the worker may fill."""

    stage: str
    engine: str
    options: dict[str, Any]
    memory_bytes: int
    heartbeat_s: float
    heartbeat_timeout_s: float
    stall_timeout_s: float


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """Begin a request; `granted` units may be made before more are granted."""

    address: Address
    request: dict[str, Any]
    granted: int


class Check(msgspec.Struct, frozen=True, array_like=True, tag="check"):
    """Would this request be taken? Answered by Ended, with the error that `Open` would have ended it with, if any."""

    address: Address
    request: dict[str, Any]


class Text(msgspec.Struct, frozen=True, array_like=True, tag="text"):
    address: Address
    text: str


class Feed(msgspec.Struct, frozen=True, array_like=True, tag="feed"):
    """A chunk that another stage made, its array always inline. The last one is `final`; no Finish follows it."""

    address: Address
    first_unit: int
    units: int
    unit: str
    rate: int
    array: Array
    marks: dict[str, Any]
    final: bool


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    address: Address


class Interact(msgspec.Struct, frozen=True, array_like=True, tag="interact"):
    """Steer a running video. Answered by Noticed: when and where it takes effect, or why it does not."""

    address: Address
    interaction: Interaction


class Grant(msgspec.Struct, frozen=True, array_like=True, tag="grant"):
    """The total that may have been made, so that a lost or repeated grant does no harm."""

    address: Address
    granted: int


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    address: Address


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """The memory at these offsets may be filled again."""

    offsets: tuple[int, ...]


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Close the engine and exit."""


# To the server.


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """`traits` are those of a model that only shows what it is once it is loaded: `VideoTraits` as plain data."""

    load_s: float
    traits: dict[str, Any] | None = None


class StartFailed(msgspec.Struct, frozen=True, array_like=True, tag="start_failed"):
    error: dict[str, Any]


class Output(msgspec.Struct, frozen=True, array_like=True, tag="output"):
    """`units` units of the request's media from `first_unit` on, at `rate` units a second.

    `consumed` is how many units of its input the request has used up by now: the credit of whoever feeds it.
    """

    address: Address
    first_unit: int
    units: int
    rate: int
    array: Array
    marks: dict[str, Any]
    final: bool
    consumed: int = 0


class Noticed(msgspec.Struct, frozen=True, array_like=True, tag="noticed"):
    """What became of interactions; overtakes the media that waits for its reader."""

    address: Address
    notices: tuple[Notice, ...]


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The last message of a request, whatever ended it; its stream is closed. `error` is None unless it failed."""

    address: Address
    finish_reason: str
    error: dict[str, Any] | None
    steps: int


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """Sent by the step loop itself. `live` are the requests it holds, `demand` those of them that somebody listens to
    and that have something to say. Seconds of work for a second of media: `cost_each` of one of them, and `cost_shared`
    of all that are stepped together (both 0: not known). `behind_s`: by how much the most starved one is late for a
    listener (0: all are in time); `stuck_s`: how long the most stuck one has been stepped and made nothing."""

    steps: int
    live: int
    steps_after_cancel: int
    demand: int
    cost_each: float
    cost_shared: float
    behind_s: float
    stuck_s: float
    memory_in_use: int
    counters: dict[str, int]


ToWorker: TypeAlias = Start | Open | Check | Text | Feed | Interact | Finish | Grant | Cancel | Release | Stop
ToServer: TypeAlias = Ready | StartFailed | Output | Noticed | Ended | Beat

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_to_server = msgspec.msgpack.Decoder(ToServer)


def encode(message: ToWorker | ToServer) -> bytes:
    """The whole frame, length included. Raises ValueError above MAX_FRAME_BYTES."""
    buffer = bytearray(_LENGTH.size)
    _encoder.encode_into(message, buffer, _LENGTH.size)
    body = len(buffer) - _LENGTH.size
    if body > MAX_FRAME_BYTES:
        raise ValueError(f"a worker frame has {body} bytes; the limit is {MAX_FRAME_BYTES}")
    _LENGTH.pack_into(buffer, 0, body)
    return bytes(buffer)


def encode_body(message: ToWorker) -> bytes:
    """For who frames it otherwise."""
    return _encoder.encode(message)


def decode_to_worker(body: bytes | memoryview) -> ToWorker:
    return _to_worker.decode(body)


def decode_to_server(body: bytes | memoryview) -> ToServer:
    return _to_server.decode(body)


class FrameSplitter:
    """Cuts a byte stream into frame bodies. Raises ValueError on a length above MAX_FRAME_BYTES."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """The bodies that are complete with `data`. Take them all before the next call."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a worker frame announces {length} bytes; the limit is {MAX_FRAME_BYTES}")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            yield bytes(buffer[start + _LENGTH.size : end])
            start = end
        del buffer[:start]
