"""Numbered SQL files are the schema's one truth; a ledger in the database says which were applied."""

from __future__ import annotations

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
