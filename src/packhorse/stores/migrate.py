"""Numbered SQL files are the schema's one truth; a ledger in the database says which were applied."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Step(NamedTuple):
    number: int
    name: str
    sql: str


@cache
def steps(dialect: str) -> tuple[Step, ...]:
    folder = files("packhorse.stores") / "migrations" / dialect
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return tuple(Step(int(name[:4]), name.removesuffix(".sql"), (folder / name).read_text()) for name in names)


LEDGER_COLUMNS = {
    "sqlite": "number integer primary key, name text not null",
    "postgres": 'number bigint not null primary key, name text collate "C" not null',
}


def in_parts(script: str) -> Iterator[str]:
    """The statements of one of SQLite's files, so that they can share a transaction (executescript would commit)."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
