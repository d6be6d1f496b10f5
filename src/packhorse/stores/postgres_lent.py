"""A stroke on a connection that somebody else opened, with settings of their own, in their transaction.

A second psycopg connection is made around the same line to the server, for as long as the stroke lasts. So it does not
matter how the caller's is set up, nor whether it is an async one: theirs waits meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakSet

import psycopg
from psycopg import pq

from packhorse.errors import ConfigError, StoreError, StoreUnavailable
from packhorse.stores.lending import async_driver_connection, driver_connection, is_async, named
from packhorse.stores.postgres_connections import RETRIED, SETTINGS, raise_translated, register_dumpers
from packhorse.stores.postgres_session import Lock, Row, Schema, Session
from packhorse.stores.postgres_watch import ring_arguments
from packhorse.stores.sql_store import Bell

T = TypeVar("T")
Theirs = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

# Of our own settings those that our statements rely on, and no more.
NEEDED = {name: value for name, value in SETTINGS.items() if name.startswith(("enable_", "jit", "plan_", "client_"))}
NEEDED |= {"standard_conforming_strings": "on"}
SET = """
    select name, current_setting(name), set_config(name, value, true)
    from unnest($1::text[], $2::text[]) as wanted (name, value)
"""
RING_AT_COMMIT = """
    insert into bell (transaction, channel, counter, writing, listening)
    values (pg_current_xact_id(), $1, $2, $3, $4) on conflict do nothing
"""
# All who wait for a job, directly or behind others, and how it stands with whom they wait for.
WAITERS = """
    with recursive below (id) as (
        select edge.child from edge where edge.parent = ?
        union
        select edge.child from below join edge on edge.parent = below.id
    )
    select edge.child, edge.parent, edge.need, edge.ended, its.state, its.watched,
           case when edge.parent <> ? then other.state end
    from below join edge on edge.child = below.id
         join payload as wide on wide.id = edge.child join job as its on its.n = wide.n
         left join payload as parent on parent.id = edge.parent left join job as other on other.n = parent.n
"""
WHERE = "select current_database()::text, system_identifier from pg_control_system()"


class Guest(psycopg.Connection[Row]):
    """On a line that is not ours to close."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        handlers = pgconn.notice_handler, pgconn.notify_handler
        super().__init__(pgconn)
        pgconn.notice_handler, pgconn.notify_handler = handlers
        self.prepare_threshold = None  # the names of prepared statements are the caller's
        register_dumpers(self)

    def __del__(self, *_: object) -> None:
        pass


class LentSession(Session):
    """Its transaction has rows already and cannot begin anew, so it waits for what it needs.

    No stroke of ours waits for a subject while it has rows. So a circle of waiting has to go through somebody's lent
    connection; the server finds it, and ends one of those in it.
    """

    @property
    def looks_back(self) -> bool:
        """It sees what was there when its transaction began, and not what is there behind a lock."""
        [(level,)] = self.plain("show transaction_isolation").fetchall()
        return bool(level != "read committed")

    def take(self, locks: frozenset[Lock]) -> None:
        if new := sorted(locks - self._held):
            self._wait_for(new)


class Outdated(psycopg.errors.SerializationFailure):
    """As the server says it, where it cannot know."""


def waiters(c: Session, id: bytes) -> set[Row]:
    return set(c.execute(WAITERS, (id, id)).fetchall())


class Borrower:
    """Strokes on what callers lend, for one store."""

    def __init__(self, schema: Schema, where: Callable[[], Row]) -> None:
        self._schema = schema
        self._where = where
        self._known: WeakSet[Any] = WeakSet()  # lines that lead to the store's own database

    def stroke(
        self,
        lent: object,
        loop: asyncio.AbstractEventLoop | None,
        work: Callable[[LentSession], T],
        bell: Bell,
        *,
        trusted: bool = False,
    ) -> T:
        """A trusted connection is known to lead to the store's own database."""

        def act(theirs: Theirs, guest: Guest) -> T:
            if trusted:
                self._known.add(theirs)
            with self._transaction(theirs, guest, bell) as c:
                return work(c)

        with _translating():
            return _borrow(lent, loop, act)

    @contextmanager
    def session(self, lent: object) -> Iterator[LentSession]:
        """For reading, on a connection that is known to lead to the store's own database."""
        theirs = _lent_here(lent)
        self._known.add(theirs)
        begun = False
        with _translating():
            while not begun:
                _end_pipeline(theirs)
                with theirs.lock:
                    if begun := _has_begun(theirs):
                        pipelined = _enter(theirs)
                        try:
                            with self._transaction(theirs, Guest(theirs.pgconn), Bell.NOBODY) as c:
                                yield c
                        finally:
                            _leave(theirs, pipelined)
                if not begun:
                    psycopg.Cursor(theirs).execute("select 1")

    def _check_place(self, line: Theirs, guest: Guest) -> None:
        if line in self._known:
            return
        own = self._where()
        theirs = psycopg.RawCursor(guest).execute(WHERE).fetchone()
        if theirs != own:
            there = "on another server" if theirs is None or theirs[0] == own[0] else repr(theirs[0])
            raise ConfigError(
                f"The jobs are in the PostgreSQL database {own[0]!r}, and the connection that was lent leads to one "
                f"{there}. One transaction needs one database."
            )
        self._known.add(line)

    @contextmanager
    def _transaction(self, line: Theirs, guest: Guest, bell: Bell) -> Iterator[LentSession]:
        c = LentSession(guest, self._schema)
        ours = guest.info.transaction_status == pq.TransactionStatus.IDLE
        if ours:
            guest.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        try:
            self._check_place(line, guest)
            with guest.pipeline():
                if not ours:
                    c.plain("savepoint packhorse")
                needed = NEEDED | {"search_path": psycopg.sql.Identifier(self._schema).as_string(guest)}
                found = c.plain(SET, [list(needed), list(needed.values())]).fetchall()
            with guest.pipeline():  # another one: only at the end of one the driver hears of another encoding
                yield c
                for one in (Bell.READY, Bell.ENDED):
                    if one in bell or c.holds:
                        c.plain(RING_AT_COMMIT, ring_arguments(self._schema, one))
                c.plain(SET, [[name for name, _, _ in found], [before for _, before, _ in found]])
                if not ours:
                    c.plain("release savepoint packhorse")
            if ours:
                guest.commit()
        except BaseException:
            with suppress(psycopg.Error):
                if ours:
                    guest.rollback()
                else:
                    guest.execute("rollback to savepoint packhorse")
                    guest.execute("release savepoint packhorse")
            raise


@contextmanager
def _translating() -> Iterator[None]:
    try:
        yield
    except RETRIED as error:  # what the transaction has seen is no longer so: only its owner can do it all again
        text = str(error).strip().split("\n")[0]
        raise StoreUnavailable(f"PostgreSQL: {text}. Roll back, and do the whole transaction again.") from error
    except Exception as error:
        raise_translated(error)
        raise


def _borrow(lent: object, loop: asyncio.AbstractEventLoop | None, act: Callable[[Theirs, Guest], T]) -> T:
    """Have the line to oneself, in a transaction that began as the caller's own first statement would have begun it.

    In one frame, so that an exception from outside does not keep the lock of the caller's connection.
    """
    if loop is not None:
        borrowed = _on(loop, _begin_async(lent))
        try:
            return _as_guest(borrowed, act)
        finally:
            loop.call_soon_threadsafe(borrowed.lock.release)
    theirs = _lent_here(lent)
    while True:
        _end_pipeline(theirs)
        with theirs.lock:
            if _has_begun(theirs):
                return _as_guest(theirs, act)
        psycopg.Cursor(theirs).execute("select 1")


def _as_guest(theirs: Theirs, act: Callable[[Theirs, Guest], T]) -> T:
    pipelined = _enter(theirs)
    try:
        return act(theirs, Guest(theirs.pgconn))
    finally:
        _leave(theirs, pipelined)


def _enter(theirs: Theirs) -> bool:
    """Whether it is in pipeline mode, where it is to be afterwards."""
    pipelined = theirs.pgconn.pipeline_status != pq.PipelineStatus.OFF
    if pipelined:
        theirs.pgconn.exit_pipeline_mode()
    return pipelined


def _leave(theirs: Theirs, pipelined: bool) -> None:
    line = theirs.pgconn
    if line.pipeline_status != pq.PipelineStatus.OFF or line.transaction_status == pq.TransactionStatus.ACTIVE:
        # An exception from outside struck in the midst of it. What the caller did in this transaction is undone by the
        # server, as it is when a line breaks: nobody could say what was written of ours.
        line.finish()
    if pipelined and line.status == pq.ConnStatus.OK:
        line.enter_pipeline_mode()


def _lent_here(lent: object) -> psycopg.Connection[Any]:
    if is_async(lent):
        raise ConfigError("An async connection is lent with `async with app.on(connection)`.")
    theirs = _known(driver_connection(lent))
    assert isinstance(theirs, psycopg.Connection)
    return theirs


def _end_pipeline(connection: psycopg.Connection[Any]) -> None:
    if connection.info.pipeline_status != pq.PipelineStatus.OFF:
        with connection.pipeline():  # waits for what is on its way
            pass


def _known(connection: object) -> Theirs:
    if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        raise ConfigError(
            "The jobs are in a PostgreSQL database: lend a connection of psycopg (version 3) to it, or what leads to "
            f"one, not a {named(connection)}. SQLAlchemy uses psycopg where the URL begins with postgresql+psycopg."
        )
    if connection.closed:
        raise StoreUnavailable("The connection that was lent is closed.")
    return connection


def _has_begun(connection: Theirs) -> bool:
    """Whether it is as the caller's own next statement would find it; for who has the line to himself."""
    status = connection.info.transaction_status
    if status == pq.TransactionStatus.INERROR:
        raise StoreError(
            "A statement before this one has failed, and with it the transaction of the connection that was lent. Roll "
            "it back, or back to a savepoint."
        )
    if status == pq.TransactionStatus.ACTIVE:
        raise StoreError("The connection that was lent is in the middle of a statement. End that first.")
    return connection.autocommit or status == pq.TransactionStatus.INTRANS


async def _begin_async(lent: object) -> psycopg.AsyncConnection[Any]:
    connection = _known(await async_driver_connection(lent))
    assert isinstance(connection, psycopg.AsyncConnection)
    while True:
        if connection.info.pipeline_status != pq.PipelineStatus.OFF:
            async with connection.pipeline():
                pass
        await connection.lock.acquire()
        try:
            if _has_begun(connection):
                return connection
        except BaseException:
            connection.lock.release()
            raise
        connection.lock.release()
        await psycopg.AsyncCursor(connection).execute("select 1")


def _on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """In the thread of the loop that the connection belongs to, from another one."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run_coroutine_threadsafe(work, loop).result()
    work.close()
    if here is loop:
        raise ConfigError("An async connection was lent: await `aenqueue` and its like, which leave the loop free.")
    raise ConfigError("The connection that was lent belongs to another event loop.")
