"""What steers a running video, and what is reported back: the same structs in server, wire and worker."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

import msgspec


class Mode(StrEnum):
    """How an interaction stands to those before it."""

    REPLACE = "replace"
    """Takes effect at the next chunk boundary, instead of everything that waits and of the transition that runs."""
    APPEND = "append"
    """Waits until its predecessor has completed."""


class Kv(StrEnum):
    """What becomes of the pages of keys and values that were made under the old conditioning."""

    KEEP = "keep"
    RECACHE = "recache"
    """Compute them anew under the conditioning in force."""
    RESET = "reset"
    """Drop them all, the sink's too. Decoder state and picture count go on."""


class Interaction(msgspec.Struct, frozen=True, array_like=True):
    """A target for the running video. `event` maps fields of `interactions.events.EVENT_FIELDS` to checked values.

    `transition_chunks`: over how many chunks the target is reached, 0 for a cut, None for the model's default. `kv`
    None is RECACHE for a cut and KEEP otherwise.
    """

    event_id: str
    event: dict[str, Any]
    transition_chunks: int | None = None
    mode: Mode = Mode.REPLACE
    kv: Kv | None = None


class Applied(msgspec.Struct, frozen=True, array_like=True, tag="applied"):
    """The interaction first affects chunk `chunk`, whose first picture is `first_frame`. It holds even if the rest of
    the transition never comes."""

    event_id: str
    chunk: int
    first_frame: int


class Superseded(msgspec.Struct, frozen=True, array_like=True, tag="superseded"):
    """The interaction will not start, or will not complete: because of `by`, or of the end of the video (None)."""

    event_id: str
    by: str | None


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The model cannot serve the interaction; the video goes on. `error` is `StreamSynthError.to_wire()`."""

    event_id: str
    error: dict[str, Any]


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """A whole clip has come `step` of its `steps` far."""

    step: int
    steps: int


Notice: TypeAlias = Applied | Superseded | Refused | Progress


class ChunkReport(msgspec.Struct, frozen=True, array_like=True):
    """Which chunk a piece of video belongs to, counted from 0, and the ids of the interactions that had a part in it.

    `started` first affect it, `active` are under way in it (the started and the completed ones included), `completed`
    reach their target in it. `last`: no further piece of this chunk follows.
    """

    chunk: int
    started: tuple[str, ...] = ()
    active: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    last: bool = True
