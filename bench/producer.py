"""How a program enqueues while it is measured, the same loops for every system."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypedDict

Enqueue = Callable[[int], Awaitable[None]]


class Produced(TypedDict):
    jobs: int
    began: int
    ended: int
    calls: list[int]  # nanoseconds each
    errors: list[str]


async def one_by_one(enqueue: Enqueue, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await enqueue(number)


async def at_full_speed(enqueue: Enqueue, first: int, seconds: float) -> Produced:
    calls: list[int] = []
    errors: list[str] = []
    number = first
    now = began = time.monotonic_ns()
    end = began + int(seconds * 1e9)
    while now < end:
        try:
            await enqueue(number)
            number += 1
        except Exception as error:  # a locked database must not end the run
            errors.append(f"{type(error).__name__}: {error}")
        before, now = now, time.monotonic_ns()
        calls.append(now - before)
    return {"jobs": number - first, "began": began, "ended": now, "calls": calls, "errors": errors}
