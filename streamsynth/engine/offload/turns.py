"""Several shared models of one process, and requests that differ from rank to rank: one pass of one model at a time.

Nobody knows how often a pipeline will call which of its models. So each pass is a wave of its own: the ranks agree on
the model, those that want it pass it with their requests, and the others take part without.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from streamsynth.engine.offload.ranks import Ranks
from streamsynth.engine.offload.wave import Waves
from streamsynth.errors import StreamSynthError


class Turns:
    """Puts itself before the `forward` of each model. From one `rest` to the next, every rank runs its models as its
    request wants them, or not at all; one thread at a time.

    `models` is how many, `passes` counts those of this rank's requests, `idle` those of others that it took part in.
    """

    def __init__(self, ranks: Ranks, models: Sequence[tuple[nn.Module, Waves]]) -> None:
        self.models = len(models)
        self.passes = self.idle = 0
        self._lost: StreamSynthError | None = None
        self._ranks = ranks
        self._waves = [waves for _, waves in models]
        for number, (module, _) in enumerate(models):
            module.forward = self._in_turn(number, module.forward)

    def rest(self) -> None:
        """Take part in the passes of the others until no rank wants one. Raises WORKER_DIED when a rank is lost, and
        whatever else has put this one out of step: there is no going on then."""
        if self._lost is not None:
            raise self._lost
        while self._waves and (chosen := self._agreed(None)) is not None:
            self._take_part(chosen)

    def _in_turn(self, number: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def passed(*args: Any, **kwargs: Any) -> Any:
            try:
                while (chosen := self._agreed(number)) != number:
                    assert chosen is not None
                    self._take_part(chosen)
                self.passes += 1
                outcome = self._waves[number].run(lambda: forward(*args, **kwargs), 1)
            except StreamSynthError as error:
                self._lost = error
                raise
            if outcome.error is not None:
                raise outcome.error
            return outcome.result

        return passed

    def _take_part(self, chosen: int) -> None:
        self.idle += 1
        self._waves[chosen].run(None, None)

    def _agreed(self, wanted: int | None) -> int | None:
        """The first model that a rank wants."""
        said = self._ranks.words("" if wanted is None else str(wanted))
        return min((int(word) for word in said if word), default=None)
