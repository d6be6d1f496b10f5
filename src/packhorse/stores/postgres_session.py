"""A transaction on PostgreSQL as the shared statements use it: how they are said here, and who waits for whom.

The whole transaction is one pipeline: a statement travels with those before it as soon as its answer is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from typing import Any, ClassVar

import psycopg

from packhorse.errors import HeldUp
from packhorse.stores.postgres_arrays import columns
from packhorse.stores.sql import Subject
from packhorse.stores.sql_names import prefixed

Row = tuple[Any, ...]
Lock = tuple[Subject, int]

BUCKETS = 64  # names of a subject share so many locks: PostgreSQL has room for some thousands in all
# What SQLite is told, or has to be told, in other words.
LEFT_OUT = re.compile(r"\b(not indexed|indexed by \w+)\b")
SAID_DIFFERENTLY = {
    "cross join": "join",  # to SQLite it means: in this order
    "unlikely(": "(",
    "x''": "'\\x'::bytea",
    "not paused": "paused = 0",
}
ONE_OF = re.compile(r"\bin \(\{rows:(\w+)\}\)")
ROWS = re.compile(r"\{rows:([\w ]+)\}")
PLACE = re.compile(r"\?")
TAKE = "select pg_advisory_xact_lock(key) from unnest($1::bigint[]) as key"
TRY = "select bool_and(pg_try_advisory_xact_lock(key)) from unnest($1::bigint[]) as key"


class Schema(str):
    """Its name, and what the names of our tables in it begin with."""

    prefix: str

    def __new__(cls, name: str, prefix: str = "") -> Schema:
        schema = super().__new__(cls, name)
        schema.prefix = prefix
        return schema


@cache
def said(statement: str, prefix: str = "") -> str:
    """A shared statement in the words of PostgreSQL."""
    text = LEFT_OUT.sub("", prefixed(statement, prefix))
    for here, there in SAID_DIFFERENTLY.items():
        text = text.replace(here, there)
    text = ONE_OF.sub(r"= any(?::\1[])", text)
    text = ROWS.sub(lambda match: _unnest(match[1].split()), text)
    numbers = iter(range(1, text.count("?") + 1))
    return PLACE.sub(lambda _: f"${next(numbers)}", text)


@cache
def types_of(statement: str) -> tuple[str, ...]:
    """Of the columns of its batch."""
    [types] = ROWS.findall(statement)
    return tuple(types.split())


def _unnest(types: Sequence[str]) -> str:
    return f"select * from unnest({', '.join(f'?::{type}[]' for type in types)})"


def lock_key(schema: Schema, *name: object) -> int:
    """Stands for something of this store, among all advisory locks of the database."""
    return _lock_key(schema, schema.prefix, *name)


@cache
def _lock_key(schema: str, prefix: str, *name: object) -> int:
    text = "\0".join(["packhorse", schema, *([prefix] if prefix else []), *map(str, name)])
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big", signed=True)


class Missing(Exception):
    """Somebody else has what a stroke came to need while it had rows already: it begins again, and takes that first."""

    def __init__(self, locks: frozenset[Lock]) -> None:
        super().__init__("another stroke has it")
        self.locks = locks


class Found:
    """What a statement brought; it is fetched when somebody looks."""

    def __init__(self, cursor: psycopg.RawCursor[Row]) -> None:
        self._cursor = cursor

    @property
    def rowcount(self) -> int:
        if self._cursor.rowcount < 0:  # the answer has not been read yet
            try:
                self._cursor.fetchmany(1)
            except psycopg.ProgrammingError as error:
                if error.sqlstate is not None:
                    raise
                # There are no rows to read, only their number.
        return self._cursor.rowcount

    def fetchone(self) -> Row | None:
        return self._cursor.fetchone()

    def fetchall(self) -> list[Row]:
        return self._cursor.fetchall()

    def __iter__(self) -> Iterator[Row]:
        return iter(self._cursor.fetchall())


class Session:
    CONCURRENT: ClassVar[bool] = True
    FOR_UPDATE: ClassVar[str] = "for update of job"
    FOR_SHARE: ClassVar[str] = "for share of job"

    def __init__(
        self,
        connection: psycopg.Connection[Row],
        schema: Schema,
        *,
        skip_locked: bool = True,
        cursor: psycopg.RawCursor[Row] | None = None,
    ) -> None:
        """The cursor serves one statement after the other; without it each has its own, and they travel together."""
        self._connection = connection
        self._schema = schema
        self._held: frozenset[Lock] = frozenset()
        self._untouched = True
        self._skip_locked = skip_locked
        self._cursor = cursor

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> Found:
        self._untouched = False
        text = said(statement, self._schema.prefix)
        return self._run(text if self._skip_locked else text.replace("skip locked", ""), parameters)

    def plain(self, text: str, parameters: Sequence[Any] = ()) -> Found:
        """A text of PostgreSQL's own."""
        return self._run(prefixed(text, self._schema.prefix), parameters)

    def _run(self, text: str, parameters: Sequence[Any]) -> Found:
        cursor = self._cursor or psycopg.RawCursor(self._connection)
        cursor.execute(text, parameters, binary=True)
        return Found(cursor)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        self._untouched = False
        cursor = psycopg.RawCursor(self._connection)
        cursor.executemany(said(statement, self._schema.prefix).encode(), list(rows))

    def batched(self, statement: str, rows: Sequence[Row], *first: Any) -> Found | None:
        if not rows:
            return None
        return self.execute(statement, [*first, *columns(types_of(statement), rows)])

    def read(self, statement: str, values: Sequence[Any]) -> Iterator[Row]:
        if not values:
            return iter(())
        return iter(self.execute(statement, columns(types_of(statement), [(value,) for value in values])).fetchall())

    def hold(self, subject: Subject, *names: str) -> None:
        """One waits for a subject only while it has no row, and no later subject: so no two wait for each other."""
        wanted = {(subject, _bucket(name)) for name in names} if names else {(subject, 0)}
        self.take(frozenset(wanted))

    def take(self, locks: frozenset[Lock]) -> None:
        new = sorted(locks - self._held)
        if not new:
            return
        if self._untouched and (not self._held or new[0] > max(self._held)):
            self._wait_for(new)
        elif not self._try_to_take(new):
            raise Missing(self._held | locks)
        self._held |= locks

    def may_hold(self, subject: Subject) -> bool:
        """Hold it, if nobody else does."""
        lock = (subject, 0)
        if lock not in self._held and not self._try_to_take([lock]):
            return False
        self._held |= {lock}
        return True

    def _try_to_take(self, locks: Sequence[Lock]) -> bool:
        return bool(self.plain(TRY, [self._keys(locks)]).fetchall()[0][0])

    def _wait_for(self, locks: Sequence[Lock]) -> None:
        self.plain(TAKE, [self._keys(locks)])
        self._held |= frozenset(locks)

    def _keys(self, locks: Sequence[Lock]) -> list[int]:
        return [lock_key(self._schema, int(subject), bucket) for subject, bucket in locks]

    @property
    def holds(self) -> bool:
        return bool(self._held)


class Passing(Session):
    """Waits for no subject, and passes over the rows that others have and that it reads in order to change them."""

    FOR_UPDATE: ClassVar[str] = "for update of job skip locked"

    def take(self, locks: frozenset[Lock]) -> None:
        if (new := sorted(locks - self._held)) and not self._try_to_take(new):
            raise HeldUp("PostgreSQL: another transaction has what this needs. Try again.")
        self._held |= locks


def session_mark(schema: Schema) -> int:
    """The lock that all sessions of this store share."""
    return lock_key(schema, "connection")


def subject_keys(schema: Schema) -> list[int]:
    """Of all subjects, and their buckets."""
    named = {Subject.UNIQUE_KEYS, Subject.SIGNALS}
    return [
        lock_key(schema, int(subject), bucket)
        for subject in Subject
        for bucket in range(BUCKETS if subject in named else 1)
    ]


def _bucket(name: str) -> int:
    return sha256(name.encode("utf-8", "surrogatepass")).digest()[0] % BUCKETS
