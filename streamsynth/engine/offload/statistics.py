"""How much came to the device, how fast, and how long the model waited for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffloadStatistics:
    """Since the beginning or the last reset. `copy_ms` is how long copies ran, `stall_ms` how long the device's compute
    stood still for them; on the CPU every copy is waited for. `on_demand` blocks were asked for before they were
    fetched, `discarded` ones fetched and not used."""

    loads: int = 0
    nbytes: int = 0
    copy_ms: float = 0.0
    stall_ms: float = 0.0
    on_demand: int = 0
    discarded: int = 0

    @property
    def gigabytes_per_s(self) -> float:
        return self.nbytes / self.copy_ms / 1e6 if self.copy_ms else 0.0
