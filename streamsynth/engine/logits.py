"""What some requests ask of their logits beyond sampling: masks, repetition penalties, log-probabilities.

A batch in which nobody asks has none of this. State is the request's: a place in a batch means nothing a step later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

MOST_LOGPROBS = 20


@dataclass(frozen=True, slots=True, eq=False)
class LogProbs:
    """Of one drawn frame, on the CPU: `tokens` int64 and `values` float32, both (codebooks, 1 + alternatives).

    The drawn token comes first, then the likeliest ones, best first. They are the model's own, after guidance and
    before masks, penalties and temperature.
    """

    tokens: Tensor
    values: Tensor

    @property
    def broken(self) -> bool:
        """The model computed something that is no number."""
        return bool(self.values.isnan().any())


class Wishes(Protocol):
    """What a request asks of its logits.

    `allowed` has, for a codebook, the tokens that may be drawn, bool (vocabulary,). `seen` is kept by `LogitControls`:
    for a codebook, the tokens that the request has drawn, bool (vocabulary,). `penalty` lowers them.
    """

    @property
    def allowed(self) -> Mapping[int, Tensor]: ...

    @property
    def logprobs(self) -> int | None: ...

    @property
    def seen(self) -> dict[int, Tensor]: ...

    def penalty(self, codebook: int) -> float: ...


class LogitControls:
    """A batch of requests that draw together, step after step: `adjust` each codebook's logits, `note` what was drawn.

    Tables for the whole batch are made once and serve as long as the same requests are drawn together. Each request's
    `seen` is a view of its row, so a batch of other requests can be begun, and this one be thrown away, at any time.
    """

    def __init__(self, requests: Sequence[Wishes]) -> None:
        self.requests = requests
        self._asked = [place for place, request in enumerate(requests) if request.logprobs is not None]
        self._most = max((request.logprobs or 0 for request in requests), default=0)
        self._noted: list[tuple[Tensor, Tensor]] = []
        self._seen: dict[int, Tensor] = {}
        self._penalties: dict[int, Tensor | None] = {}
        self._refused: dict[int, Tensor | None] = {}

    def adjust(self, logits: Tensor, codebook: int) -> Tensor:
        """Logits (rows, vocabulary) with penalties and masks."""
        if codebook not in self._penalties:
            self._make_tables(logits, codebook)
        penalty, refused = self._penalties[codebook], self._refused[codebook]
        if penalty is not None:
            logits = penalise_repetition(logits, self._seen[codebook], penalty)
        return logits if refused is None else logits.masked_fill(refused, -torch.inf)

    def note(self, logits: Tensor, tokens: Tensor, codebook: int) -> None:
        """`tokens` (rows,) were drawn; `logits` are those from before `adjust`."""
        if self._penalties[codebook] is not None:
            self._seen[codebook].scatter_(1, tokens[:, None], True)
        if self._asked:
            values = torch.log_softmax(logits[self._asked].float(), -1)
            drawn = tokens[self._asked][:, None]
            best = values.topk(self._most, -1)
            parts = torch.cat((drawn, best.indices), 1), torch.cat((values.gather(1, drawn), best.values), 1)
            self._noted.append(parts)

    def take_logprobs(self) -> dict[int, LogProbs]:
        """Those of the frame just drawn, by place in the batch, each with as many alternatives as were asked for."""
        if not self._asked:
            return {}
        tokens, values = (torch.stack(parts, 1).cpu() for parts in zip(*self._noted, strict=True))
        self._noted.clear()
        found = {}
        for number, place in enumerate(self._asked):
            count = 1 + (self.requests[place].logprobs or 0)
            found[place] = LogProbs(tokens[number, :, :count], values[number, :, :count])
        return found

    def _make_tables(self, logits: Tensor, codebook: int) -> None:
        nothing = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
        penalties = [request.penalty(codebook) for request in self.requests]
        self._penalties[codebook] = None
        if any(penalty != 1.0 for penalty in penalties):
            self._penalties[codebook] = torch.tensor(penalties, dtype=logits.dtype, device=logits.device)
            seen = torch.stack([request.seen.get(codebook, nothing) for request in self.requests])
            for request, row in zip(self.requests, seen, strict=True):
                request.seen[codebook] = row
            self._seen[codebook] = seen
        masks = [request.allowed.get(codebook) for request in self.requests]
        self._refused[codebook] = None
        if any(mask is not None for mask in masks):
            refused = [nothing if mask is None else ~mask.to(logits.device) for mask in masks]
            self._refused[codebook] = torch.stack(refused)


def penalise_repetition(logits: Tensor, drawn: Tensor, penalty: Tensor) -> Tensor:
    """Lower the logits of tokens that were drawn before. drawn (rows, vocabulary) bool; penalty (rows,)."""
    lowered = torch.where(logits > 0, logits / penalty[:, None], logits * penalty[:, None])
    return torch.where(drawn, lowered, logits)
