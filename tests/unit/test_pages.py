"""The page pool: all or nothing, shared prefixes, nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.engine.kv.pages import NULL_PAGE, ROOT_KEY, PageId, PagePool, PrefixKey, prefix_key


def keys(*contents: bytes) -> list[PrefixKey]:
    chain = [ROOT_KEY]
    for content in contents:
        chain.append(prefix_key(chain[-1], content))
    return chain[1:]


def test_usable_pages_are_the_pool_less_the_null_page() -> None:
    pool = PagePool(16)
    assert (pool.usable, pool.available) == (15, 15)
    pages = pool.allocate(15)
    assert pages is not None
    assert NULL_PAGE not in pages
    assert pool.allocate(1) is None


def test_allocation_is_all_or_nothing() -> None:
    pool = PagePool(4)
    assert pool.allocate(4) is None
    assert pool.available == 3


def test_a_page_comes_back_when_its_last_holder_lets_go() -> None:
    pool = PagePool(3)
    pages = pool.allocate(1)
    assert pages is not None
    pool.retain(pages)
    pool.release(pages)
    assert pool.available == 1
    pool.release(pages)
    assert pool.available == 2
    with pytest.raises(ValueError, match="not held"):
        pool.release(pages)


def test_a_published_prefix_is_shared_and_computed_once() -> None:
    """One voice prompt, many requests."""
    pool = PagePool(8)
    chain = keys(b"a", b"b", b"c")
    first = pool.allocate(3)
    assert first is not None
    for page, key in zip(first, chain, strict=True):
        pool.publish(page, key)
    assert pool.share(chain) == first
    assert pool.share(keys(b"a", b"x", b"c")) == first[:1]
    assert pool.share(keys(b"b")) == []
    assert pool.available == 4


def test_the_same_content_after_another_beginning_is_another_page() -> None:
    assert keys(b"a", b"c")[1] != keys(b"b", b"c")[1]


def test_an_idle_prefix_is_kept_until_its_page_is_needed() -> None:
    pool = PagePool(3)
    (key,) = keys(b"a")
    pages = pool.allocate(1)
    assert pages is not None
    pool.publish(pages[0], key)
    pool.release(pages)
    assert pool.share([key]) == pages
    pool.release(pages)
    assert pool.allocate(2) is not None
    assert pool.share([key]) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=120))
def test_whatever_happens_every_page_is_accounted_for(steps: list[tuple[int, int]]) -> None:
    pool = PagePool(12)
    held: list[list[PageId]] = []
    chain = keys(*(bytes([n]) for n in range(5)))
    for action, number in steps:
        if action == 0:
            pages = pool.allocate(number % 5)
            if pages is not None:
                held.append(pages)
        elif action == 1 and held:
            pool.release(held.pop(number % len(held)))
        elif action == 2 and held:
            for page, key in zip(held[number % len(held)], chain, strict=False):
                pool.publish(page, key)
        elif action == 3:
            held.append(pool.share(chain[: number % 6]))
        pool.check(held)
    for pages in held:
        pool.release(pages)
    pool.check([])
    assert pool.available == pool.usable


def test_a_lost_page_is_found_by_the_check() -> None:
    pool = PagePool(4)
    pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.check([])
