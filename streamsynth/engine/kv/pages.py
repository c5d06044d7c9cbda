"""The page pool: reference-counted pages, shared prefixes, and an integrity check. Pure: no tensors."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NewType

PageId = NewType("PageId", int)
PrefixKey = NewType("PrefixKey", bytes)

NULL_PAGE = PageId(0)
"""Never handed out: what padding rows write goes here."""

ROOT_KEY = PrefixKey(b"")


def prefix_key(parent: PrefixKey, content: bytes) -> PrefixKey:
    """The name of a full page by everything up to its end: the page before it, and its own positions' inputs."""
    return PrefixKey(blake2b(content, digest_size=16, key=parent).digest())


class PagePool:
    """Hands out pages all or nothing. A page whose last holder lets go keeps its content while it is not needed.

    Not thread-safe; belongs to one step loop.
    """

    def __init__(self, pages: int) -> None:
        if pages < 2:
            raise ValueError(f"a pool of {pages} pages has none to use; it needs at least 2")
        self.usable = pages - 1
        self._free = [PageId(page) for page in range(pages - 1, 0, -1)]
        self._holders: Counter[PageId] = Counter()
        self._published: dict[PrefixKey, PageId] = {}
        self._keys: dict[PageId, PrefixKey] = {}
        self._idle: OrderedDict[PageId, None] = OrderedDict()  # Published pages that nobody holds, oldest first.
        self.prefix_hits = 0

    @property
    def available(self) -> int:
        """Pages that `allocate` can give, idle prefix pages included."""
        return len(self._free) + len(self._idle)

    def allocate(self, count: int) -> list[PageId] | None:
        """`count` pages held once each, or None (and nothing changed) if there are not so many."""
        if count > self.available:
            return None
        pages = [self._free.pop() if self._free else self._forget_oldest() for _ in range(count)]
        self._holders.update(pages)
        return pages

    def retain(self, pages: Iterable[PageId]) -> None:
        """Hold pages that somebody holds already, or that are idle."""
        for page in pages:
            self._holders[page] += 1
            self._idle.pop(page, None)

    def release(self, pages: Iterable[PageId]) -> None:
        """Let go. Raises ValueError for a page that nobody holds."""
        for page in pages:
            if not self._holders[page]:
                raise ValueError(f"page {page} is not held")
            self._holders[page] -= 1
            if not self._holders[page]:
                del self._holders[page]
                if page in self._keys:
                    self._idle[page] = None
                else:
                    self._free.append(page)

    def publish(self, page: PageId, key: PrefixKey) -> None:
        """Say that a held page is full and final, so that others with the same prefix can share it."""
        if key not in self._published and page not in self._keys:
            self._published[key] = page
            self._keys[page] = key

    def share(self, keys: Sequence[PrefixKey]) -> list[PageId]:
        """Hold and return the pages of the longest known beginning of a prefix."""
        shared: list[PageId] = []
        for key in keys:
            page = self._published.get(key)
            if page is None:
                break
            shared.append(page)
        self.retain(shared)
        self.prefix_hits += len(shared)
        return shared

    def check(self, held: Iterable[Sequence[PageId]]) -> None:
        """Raise AssertionError unless `held`, the pages of each holder, accounts for the whole pool."""
        counted = Counter(page for pages in held for page in pages)
        assert counted == self._holders, f"held {dict(counted)}, booked {dict(self._holders)}"
        everything = [*self._free, *self._idle, *self._holders]
        assert sorted(everything) == list(range(1, self.usable + 1)), "a page is lost or counted twice"
        assert NULL_PAGE not in self._holders

    def _forget_oldest(self) -> PageId:
        page, _ = self._idle.popitem(last=False)
        del self._published[self._keys.pop(page)]
        return page
