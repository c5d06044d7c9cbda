"""Continuous batching over pages: which tokens of which requests the next step computes. Pure: no tensors, no clock.

The unit of everything is a gang: the k rows of one request (k is 2 under guidance). A gang is admitted, advanced,
preempted and finished as one, so its rows can never drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from streamsynth.engine.kv.pages import PageId, PagePool, PrefixKey
from streamsynth.errors import ErrorCode, StreamSynthError


@dataclass(slots=True, eq=False)
class Row:
    """One sequence. `length` positions are known, the first `computed` of them are in `pages`.

    `keys` name the full pages of its prompt, for sharing.
    """

    length: int
    keys: Sequence[PrefixKey] = ()
    computed: int = 0
    pages: list[PageId] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Gang:
    """The rows of one request. Its owner appends to all rows at once; the planner alone touches pages.

    `guessed` positions behind the known ones may be computed along with the last of these, where that costs nobody
    anything: `Row.computed` is then beyond `Row.length`, and whoever runs the step sets it back.
    """

    rows: Sequence[Row]
    guessed: int = 0

    @property
    def holds_pages(self) -> bool:
        return any(row.pages for row in self.rows)

    def extend(self) -> None:
        """Every row grew by one position."""
        for row in self.rows:
            row.length += 1


@dataclass(frozen=True, slots=True)
class Span:
    """`count` positions of a row, from `start` on, to be computed now."""

    row: Row
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. `spans` are in gang order; `ready` are the gangs whose rows it completes: they draw a frame."""

    spans: Sequence[Span]
    ready: Sequence[Gang]


class Planner:
    """Decides steps; the pool's only user.

    `max_rows` bounds the rows of a step, `max_tokens` the positions (a long prompt is computed over several steps).
    """

    def __init__(self, pool: PagePool, *, page_size: int, max_rows: int, max_tokens: int) -> None:
        self._pool = pool
        self._page_size = page_size
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._holders: dict[int, Gang] = {}
        self.preemptions = 0

    @property
    def free_pages(self) -> int:
        return self._pool.available

    def check_fits(self, lengths: Sequence[int]) -> None:
        """Raise INVALID_VALUE if rows that grow to these lengths can never be in the pool, or in a step, together."""
        need = sum(self._pages(length) for length in lengths)
        if need > self._pool.usable:
            message = (
                f"the request needs {need} pages of {self._page_size} positions; the model has {self._pool.usable}"
            )
            raise StreamSynthError(ErrorCode.INVALID_VALUE, message, param="input")
        if len(lengths) > self._max_rows:
            message = f"the request needs {len(lengths)} rows; a step has {self._max_rows}"
            raise StreamSynthError(ErrorCode.INVALID_VALUE, message, param="input")

    def plan(self, gangs: Iterable[Gang]) -> Plan:
        """The next step for gangs that want one, the neediest first. What does not fit waits, and keeps its place.

        A gang that holds pages may take those of one that needs less; one that holds none waits for free pages.
        """
        order = list(gangs)
        spans: list[Span] = []
        ready: list[Gang] = []
        stepping: set[int] = set()
        rows, tokens = 0, self._max_tokens
        for gang in order:
            if rows + len(gang.rows) > self._max_rows or tokens < len(gang.rows):
                continue
            part = self._place(gang, tokens, order, stepping)
            if part is None:
                continue
            stepping.add(id(gang))
            spans += part
            rows += len(gang.rows)
            tokens -= sum(span.count for span in part)
            if all(row.computed >= row.length for row in gang.rows):
                ready.append(gang)
        return Plan(spans, ready)

    def release(self, gang: Gang) -> None:
        """Give all pages back: the gang has ended, or must compute its positions again when it returns. Idempotent."""
        for row in gang.rows:
            self._pool.release(row.pages)
            row.pages = []
            row.computed = 0
        self._holders.pop(id(gang), None)

    def check(self) -> None:
        """Raise AssertionError unless every page is accounted for."""
        self._pool.check([row.pages for gang in self._holders.values() for row in gang.rows])

    def _pages(self, positions: int) -> int:
        return -(-positions // self._page_size)

    def _place(self, gang: Gang, tokens: int, order: Sequence[Gang], stepping: set[int]) -> list[Span] | None:
        """Pages for the gang's next positions, or None and nothing changed but what was preempted for it."""
        if self._continues(gang):
            guessed = self._room_for_guesses(gang, tokens)
            return [self._advance(row, 1 + guessed) for row in gang.rows]
        entering = not gang.holds_pages
        if entering:
            self._share_prefixes(gang)
        counts = self._counts(gang, tokens)
        need = sum(
            max(0, self._pages(row.computed + count) - len(row.pages))
            for row, count in zip(gang.rows, counts, strict=True)
        )
        # A newcomer leaves one page a row for those inside: else it would be the next to be preempted.
        spare = sum(len(other.rows) for other in self._holders.values()) if entering else 0
        if need + spare > self._pool.available and not (
            not entering and self._preempt_for(need, gang, order, stepping)
        ):
            if entering:
                self.release(gang)
            return None
        taken = iter(self._pool.allocate(need) or ())
        self._holders[id(gang)] = gang
        spans = []
        for row, count in zip(gang.rows, counts, strict=True):
            while len(row.pages) < self._pages(row.computed + count):
                row.pages.append(next(taken))
            if count:
                spans.append(self._advance(row, count))
        return spans

    def _continues(self, gang: Gang) -> bool:
        """Each row has one position to compute, and room for it in its last page: so it is in most steps."""
        return all(row.length - row.computed == 1 and row.computed % self._page_size for row in gang.rows)

    def _room_for_guesses(self, gang: Gang, tokens: int) -> int:
        """How many guesses each row takes along; pages for them are taken only of those that nobody else will need."""
        guessed = min(gang.guessed, tokens // len(gang.rows) - 1)
        if guessed < 1:
            return 0
        others = sum(len(other.rows) for other in self._holders.values() if other is not gang)
        for row in gang.rows:
            need = self._pages(row.length + guessed) - len(row.pages)
            if 0 < need <= self._pool.available - others:
                row.pages += self._pool.allocate(need) or ()
            guessed = min(guessed, len(row.pages) * self._page_size - row.length)
        return guessed

    def _advance(self, row: Row, count: int) -> Span:
        span = Span(row, row.computed, count)
        row.computed += count
        return span

    def _counts(self, gang: Gang, tokens: int) -> list[int]:
        """How many positions each row computes now: all that are left, within the step's tokens.

        The last positions of all rows are computed in one step: a frame is drawn from them together.
        """
        left = [row.length - row.computed for row in gang.rows]
        held_back = int(sum(left) > tokens)
        counts = []
        for positions in left:
            count = min(positions - held_back, tokens)
            counts.append(count)
            tokens -= count
        return counts

    def _share_prefixes(self, gang: Gang) -> None:
        """Start each row behind the pages that others with the same beginning have computed, or its first row will."""
        # The last position is always computed: its hidden state is what the next frame is drawn from.
        keys = [row.keys[: (row.length - 1) // self._page_size] for row in gang.rows]
        for row, own in zip(gang.rows, keys, strict=True):
            row.pages = self._pool.share(own)
            row.computed = len(row.pages) * self._page_size
        # The first row is never behind the others: a step takes its positions first, and stores before it attends.
        for row, own in zip(gang.rows[1:], keys[1:], strict=True):
            self._share_with_first(gang.rows[0], row, _in_common(keys[0], own))

    def _share_with_first(self, first: Row, row: Row, common: int) -> None:
        """Let a row begin with the first's pages, computed or not; where too few are left, it will have its own."""
        missing = max(0, common - len(first.pages))
        if missing > self._pool.available:
            return
        first.pages += self._pool.allocate(missing) or ()
        shared = first.pages[len(row.pages) : common]
        self._pool.retain(shared)
        row.pages += shared
        row.computed = len(row.pages) * self._page_size

    def publish(self, gang: Gang) -> None:
        """Offer the full prompt pages that have been computed to other requests; call after the step has run."""
        for row in gang.rows:
            for page, key in zip(row.pages[: row.computed // self._page_size], row.keys, strict=False):
                self._pool.publish(page, key)

    def _preempt_for(self, need: int, gang: Gang, order: Sequence[Gang], stepping: set[int]) -> bool:
        """Take pages from those that need them least: idle holders first, then the end of the line."""
        wanting = {id(other) for other in order}
        idle = [other for other in self._holders.values() if id(other) not in wanting]
        behind = [other for other in reversed(order) if id(other) in self._holders]
        for victim in [*idle, *behind]:
            if need <= self._pool.available:
                break
            if victim is not gang and id(victim) not in stepping:
                self.preemptions += 1
                self.release(victim)
        return need <= self._pool.available


def _in_common(one: Sequence[PrefixKey], other: Sequence[PrefixKey]) -> int:
    """How many pages two prompts begin with alike: a key names everything up to its end."""
    return sum(mine == its for mine, its in zip(one, other, strict=False))
