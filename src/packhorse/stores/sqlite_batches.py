"""Statements over many rows on SQLite, in few steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar, Protocol

from packhorse.stores.sql_names import prefixed

_SIZES = (256, 128, 64, 32, 16, 8, 4, 2, 1)


class Executes(Protocol):
    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> sqlite3.Cursor: ...


def batched(c: Executes, statement: str, rows: Sequence[tuple[Any, ...]], *first: Any) -> int:
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


def read(c: Executes, statement: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """What a statement finds for values, few large steps likewise."""
    start = 0
    for size in _SIZES:
        while len(values) - start >= size:
            yield from c.execute(prepared(statement, size, 1), values[start : start + size])
            start += size


class Session(sqlite3.Connection):
    """A connection as the shared statements use it. There is one writer at a time, who has everything to itself."""

    CONCURRENT: ClassVar[bool] = False
    FOR_UPDATE: ClassVar[str] = ""
    FOR_SHARE: ClassVar[str] = ""

    batched = batched
    read = read

    def hold(self, *subject: object) -> None:
        pass

    def undo(self) -> None:
        """Whoever wrote nothing that matters spares the commit."""
        self.execute("rollback")


class PrefixedSession(Session):
    """Where the names of our tables begin with something."""

    prefix = ""

    def execute(self, statement: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return super().execute(prefixed(statement, self.prefix), parameters)

    def executemany(self, statement: str, rows: Any, /) -> sqlite3.Cursor:
        return super().executemany(prefixed(statement, self.prefix), rows)


_texts: dict[tuple[str, int, int], str] = {}


def prepared(statement: str, size: int, width: int) -> str:
    key = (statement, size, width)
    if key not in _texts:
        _texts[key] = statement.format(rows=_Rows(size, width))
    return _texts[key]


class _Rows:
    """A batch in a statement. Its types are the other's business: SQLite takes values as they are."""

    def __init__(self, size: int, width: int) -> None:
        row = "(" + ", ".join("?" * width) + ")"
        self._text = "values " + ", ".join([row] * size)

    def __format__(self, types: str) -> str:
        return self._text
