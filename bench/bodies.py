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


def nap(number: int, seconds: float) -> None:
    began = time.monotonic_ns()
    time.sleep(seconds)
    mark_span(number, began)
