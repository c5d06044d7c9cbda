"""Two kinds of load: a fixed number of clients that never rest, and arrivals that do not wait for anybody."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

Sleep = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]


async def closed_loop(
    clients: int,
    seconds: float,
    work: Callable[[int], Awaitable[T]],
    *,
    spread_s: float = 0.0,
    clock: Clock = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> list[T]:
    """Each of `clients` does `work(client)` again and again, at least once, until the time is over. All end cleanly.

    They begin evenly spread over `spread_s`.
    """
    done: list[T] = []
    end_s = clock() + seconds

    async def client(number: int) -> None:
        await sleep(spread_s * number / clients)
        while True:
            done.append(await work(number))
            if clock() >= end_s:
                return

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
    return done


async def open_loop(
    rate: float,
    seconds: float,
    work: Callable[[int], Awaitable[T]],
    *,
    rng: random.Random,
    clock: Clock = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> list[T]:
    """A Poisson stream of `rate` arrivals a second, each of which does `work(number)` whatever the others do.

    Waits for all that have arrived. Late arrivals are not forgiven: the next one is counted from when this one was due.
    """
    if rate <= 0:
        raise ValueError(f"rate is {rate}; it must be positive")
    done: list[T] = []

    async def arrival(number: int) -> None:
        done.append(await work(number))

    began_s = clock()
    due_s = rng.expovariate(rate)
    number = 0
    async with asyncio.TaskGroup() as group:
        while due_s <= seconds:
            await sleep(max(0.0, began_s + due_s - clock()))
            group.create_task(arrival(number))
            number += 1
            due_s += rng.expovariate(rate)
    return done
