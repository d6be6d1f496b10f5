"""A stroke on a connection to the file that somebody else opened, with settings of their own, in their transaction."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from packhorse.errors import ConfigError, StoreUnavailable
from packhorse.stores.lending import driver_connection, named
from packhorse.stores.sql_names import prefixed
from packhorse.stores.sqlite_batches import batched, read
from packhorse.stores.sqlite_connections import raise_translated
from packhorse.stores.sqlite_opening import as_text, is_locked

T = TypeVar("T")

# Takes the write lock before anything is read: what was read before it might be old, and then nothing can be written.
LOCK = "delete from packhorse_schema where 0"


class LentSession:
    CONCURRENT: ClassVar[bool] = False
    FOR_UPDATE: ClassVar[str] = ""
    FOR_SHARE: ClassVar[str] = ""

    def __init__(self, connection: sqlite3.Connection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> sqlite3.Cursor:
        return self._cursor().execute(prefixed(statement, self._prefix), parameters)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> sqlite3.Cursor:
        return self._cursor().executemany(prefixed(statement, self._prefix), rows)

    def batched(self, statement: str, rows: Sequence[tuple[Any, ...]], *first: Any) -> int:
        return batched(self, statement, rows, *first)

    def read(self, statement: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        return read(self, statement, values)

    def hold(self, *subject: object) -> None:
        pass

    @property
    def total_changes(self) -> int:
        return self._connection.total_changes

    def undo(self) -> None:
        """The transaction is not ours to roll back, and there is nothing in it that matters."""

    def _cursor(self) -> sqlite3.Cursor:
        return sqlite3.Cursor(self._connection)  # which knows nothing of the connection's row factory


def stroke(lent: object, path: Path | None, prefix: str, work: Callable[[LentSession], T], *, writes: bool = True) -> T:
    """In the transaction that is open, or the one that Python would open; where it opens none, in one of our own.

    Without a path the connection is known to be the right one. In one frame, so that no exception from outside leaves
    it as only we want it (see `sqlite_connections.Connections.write`).
    """
    connection = _known(lent, path)
    before = connection.text_factory
    try:
        connection.text_factory = as_text
        c = LentSession(connection, prefix)
        if path is not None:
            _check_file(c, path)
        return _in_transaction(connection, c, work) if writes else work(c)
    except Exception as error:
        _raise_translated(error)
        raise
    finally:
        connection.text_factory = before


@contextmanager
def session(lent: object, prefix: str) -> Iterator[LentSession]:
    """For reading, on a connection that is known to be the right one."""
    connection = _known(lent, None)
    before = connection.text_factory
    try:
        connection.text_factory = as_text
        yield LentSession(connection, prefix)
    except Exception as error:
        _raise_translated(error)
        raise
    finally:
        connection.text_factory = before


def _known(lent: object, path: Path | None) -> sqlite3.Connection:
    connection = driver_connection(lent)
    if not isinstance(connection, sqlite3.Connection):
        raise ConfigError(
            f"The jobs are in {'an' if path is None else 'the'} SQLite database {path or ''}: lend a connection of "
            f"Python's sqlite3 to it, or what leads to one, not a {named(connection)}."
        )
    return connection


def _raise_translated(error: Exception) -> None:
    if isinstance(error, sqlite3.ProgrammingError) and "thread" in str(error):
        raise ConfigError(
            "This sqlite3 connection belongs to the thread that opened it. Enqueue there: not with await, which "
            "does it in another thread."
        ) from error
    if isinstance(error, sqlite3.OperationalError) and is_locked(error):
        raise StoreUnavailable(
            f"SQLite: {error}. Another program writes, or has written since the transaction began to read. Roll "
            "back and try again; transactions that begin with BEGIN IMMEDIATE wait for their turn instead."
        ) from error
    raise_translated(error)


def _check_file(c: LentSession, path: Path) -> None:
    [file] = [file for _, name, file in c.execute("pragma database_list") if name == "main"]
    if not file or not os.path.samefile(file, path):
        raise ConfigError(
            f"The jobs are in the SQLite database {path}, and the connection that was lent has "
            f"{file or 'one in memory'} open. One transaction needs one file."
        )


def _in_transaction(connection: sqlite3.Connection, c: LentSession, work: Callable[[LentSession], T]) -> T:
    # `autocommit` came with Python 3.12; where it is not used, the isolation level tells.
    commits = getattr(connection, "autocommit", -1)
    ours = not connection.in_transaction and (commits is True or (commits == -1 and connection.isolation_level is None))
    saved = False
    try:
        if not connection.in_transaction:
            c.execute("begin immediate")
        saved = connection.in_transaction
        c.execute("savepoint packhorse")
        c.execute(LOCK)
        answer = work(c)
        c.execute("release packhorse")
        if ours:
            c.execute("commit")
        return answer
    except BaseException:
        if ours and connection.in_transaction:
            connection.execute("rollback")
        elif saved:
            try:
                connection.execute("rollback to packhorse")
                connection.execute("release packhorse")
            except sqlite3.Error:
                pass  # a full disk, for one, has rolled back everything
        raise
