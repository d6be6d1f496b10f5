"""What the jobs do, the same functions for every system."""

from __future__ import annotations

import time
from datetime import datetime
from decimal import Decimal

from bench.tape import mark, mark_span


def noop(number: int, text: str, *, three: int) -> None:
    mark(number)


def typed(number: int, when: datetime, price: Decimal) -> None:
    mark(number)


def burn(number: int, seconds: float) -> None:
    """Uses so much CPU, however long that takes."""
    began = time.monotonic_ns()
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    mark_span(number, began)


def nap(number: int, seconds: float) -> None:
    began = time.monotonic_ns()
    time.sleep(seconds)
    mark_span(number, began)
