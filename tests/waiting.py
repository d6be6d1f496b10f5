"""Waiting for conditions, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0


def wait_until(condition: Callable[[], T], what: str = "", patience: float = PATIENCE) -> T:
    """Look until there is something true to see, and give that; the sleep only sets the pace.

    Where a look takes long there are fewer, so that most of the time is left to those who are waited for.
    """
    now = time.monotonic()
    deadline = now + patience
    while not (seen := condition()):
        looked, now = now, time.monotonic()
        assert now < deadline, f"waited {patience:g} s in vain: {what or condition}"
        time.sleep(min(max(0.002, 4 * (now - looked)), 0.1))
        now = time.monotonic()
    return seen
