"""Statements over many rows on SQLite, in few steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

_SIZES = (256, 128, 64, 32, 16, 8, 4, 2, 1)


def batched(c: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]], *first: Any) -> int:
    """Run a statement over rows in few large steps, so that few texts are ever prepared; rows changed in all.

    `first` are the parameters before the rows.
    """
    if len(rows) == 1:
        return c.execute(prepared(statement, 1, len(rows[0])), (*first, *rows[0])).rowcount
    changed = start = 0
    for size in _SIZES:
        while len(rows) - start >= size:
            text = prepared(statement, size, len(rows[0]))
            changed += c.execute(text, [*first, *chain.from_iterable(rows[start : start + size])]).rowcount
            start += size
    return changed


def read(c: sqlite3.Connection, statement: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """What a statement finds for values, few large steps likewise."""
    start = 0
    for size in _SIZES:
        while len(values) - start >= size:
            yield from c.execute(prepared(statement, size, 1), values[start : start + size])
            start += size


_texts: dict[tuple[str, int, int], str] = {}


def prepared(statement: str, size: int, width: int) -> str:
    key = (statement, size, width)
    if key not in _texts:
        row = "(" + ", ".join("?" * width) + ")"
        _texts[key] = statement.format(values=", ".join([row] * size))
    return _texts[key]
