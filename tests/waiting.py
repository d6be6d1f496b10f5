"""Waiting for conditions, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0


def wait_until(condition: Callable[[], T], what: str = "", patience: float = PATIENCE) -> T:
    """Look until there is something true to see, and give that; the sleep only sets the pace."""
    deadline = time.monotonic() + patience
    while not (seen := condition()):
        assert time.monotonic() < deadline, f"waited {patience:g} s in vain: {what or condition}"
        time.sleep(0.002)
    return seen
