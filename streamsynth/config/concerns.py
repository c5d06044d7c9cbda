"""The fields that every stage has, whatever its model. Each concern is one dataclass, and each field has one home."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from streamsynth.errors import invalid_value


@dataclass(frozen=True, slots=True)
class Limit:
    """An inclusive range of numbers; whole ones only where `whole`."""

    low: float
    high: float
    whole: bool

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.low:g} to {self.high:g}"

    def admits(self, value: object) -> bool:
        kinds = (int,) if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return False
        return math.isfinite(value) and self.low <= value <= self.high


class _Switch:
    """Yes or no."""

    def __str__(self) -> str:
        return "true or false"

    def admits(self, value: object) -> bool:
        return isinstance(value, bool)


class _Places:
    """Devices, by their places among those that the server sees."""

    def __str__(self) -> str:
        return "a list of different whole numbers from 0 to 1023"

    def admits(self, value: object) -> bool:
        if not isinstance(value, list):
            return False
        whole = all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 1024 for each in value)
        return whole and len(set(value)) == len(value)


def _whole(default: int, low: int, high: int) -> Any:
    return field(default=default, metadata={"limit": Limit(low, high, whole=True)})


def _number(default: float, low: float, high: float) -> Any:
    return field(default=default, metadata={"limit": Limit(low, high, whole=False)})


def _switch(default: bool) -> Any:
    return field(default=default, metadata={"limit": _Switch()})


def _places() -> Any:
    return field(default_factory=list, metadata={"limit": _Places()})


class _Checked:
    """Refuses a value outside its field's limit when the object is built."""

    def __post_init__(self) -> None:
        for spec in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            limit = spec.metadata.get("limit")
            if limit is not None and not limit.admits(value := getattr(self, spec.name)):
                raise invalid_value(spec.name, value, str(limit))


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig(_Checked):
    """How the stage's worker process runs.

    `num_gpus` is the number of its ranks: processes with a device each, which are one worker to the server. `devices`
    are theirs, in the order of ranks; none: `config.devices` decides. `threads` is the compute threads of each. The
    timeouts: from the start of the process to ready; between two heartbeats of the step loop; and for a request that
    could step but makes no output. A stage that `shares_worker` runs in that of the one stage it reads from, whose only
    reader it is.
    """

    threads: int = _whole(1, 1, 1024)
    num_gpus: int = _whole(1, 1, 64)
    devices: Sequence[int] = _places()
    start_timeout_s: float = _number(60.0, 0.1, 3600.0)
    heartbeat_timeout_s: float = _number(15.0, 0.1, 3600.0)
    stall_timeout_s: float = _number(30.0, 0.1, 3600.0)
    shares_worker: bool = _switch(default=False)


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(_Checked):
    """What the stage admits: `max_num_seqs` requests in the worker, each at most `lead_seconds` of media ahead of its
    reader, and no more than take `max_load` seconds of steps a second; `max_queued` more wait, for at most
    `queue_timeout_s`; beyond that a request is refused as overload."""

    max_num_seqs: int = _whole(256, 1, 65536)
    max_queued: int = _whole(64, 0, 65536)
    queue_timeout_s: float = _number(10.0, 0.0, 3600.0)
    lead_seconds: float = _number(10.0, 0.02, 600.0)
    # On a CPU the worker also reads and sends in the same second, and shares its machine.
    max_load: float = _number(0.7, 0.05, 1.0)


CONCERNS: Mapping[str, type[RuntimeConfig] | type[SchedulerConfig]] = {
    "runtime": RuntimeConfig,
    "scheduler": SchedulerConfig,
}

# Field name -> the concern that owns it. Model options are owned by the stage that declares them.
OWNERS: Mapping[str, str] = {spec.name: concern for concern, owner in CONCERNS.items() for spec in fields(owner)}
