"""Strokes on PostgreSQL: each is one transaction, made again where that is safe, whatever becomes of its line."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypedDict, TypeVar, cast

import psycopg

from packhorse.errors import HeldUp, StoreUnavailable
from packhorse.failpoints import failpoint
from packhorse.stores.contract import Exchanged
from packhorse.stores.postgres_connections import (
    MARK,
    PATIENCE,
    RETRIED,
    Connection,
    Connections,
    Silent,
    raise_translated,
)
from packhorse.stores.postgres_direct import LOCK_WAIT, REFUSALS
from packhorse.stores.postgres_holders import Holders
from packhorse.stores.postgres_session import Lock, Missing, Passing, Session
from packhorse.stores.postgres_watch import RING, ring_arguments
from packhorse.stores.sql_store import Bell

T = TypeVar("T")

TRIES = 20  # of a stroke that got into another's way
WAIT = "select set_config('lock_timeout', $1, true)"
PASSING_WAIT = "200ms"  # for others of ours, which are soon through
BREAKS = 3  # of its line, after which a stroke is given up


class How(TypedDict, total=False):
    """What may be said of a stroke.

    `repeatable`: it does nothing the second time, and needs no mark by which to find it again. `alone`: it is a single
    statement, which needs no more than that to be a transaction. `in_one_go`: it looks at no answer before the end of
    its pipeline, up to which all is one transaction. `gives_way`: it looks soon who holds it up, and
    does not wait for a transaction of somebody else. `passing`: it waits for no subject, and for rows not long.
    """

    repeatable: bool
    alone: bool
    in_one_go: bool
    gives_way: bool
    passing: bool


class Rolled(Exception):
    """There was nothing to write after all: rolled back, which costs no commit."""

    def __init__(self, answer: Exchanged) -> None:
        super().__init__()
        self.answer = answer


class Refused(Exception):
    """A statement ended the stroke on purpose; nothing was written."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Lost(Exception):
    """The connection is of no more use. Where there is a mark, the commit may have been sent with this answer."""

    def __init__(self, cause: BaseException, mark: str = "", answer: object = None) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.mark = mark
        self.answer = answer

    @property
    def is_for_long(self) -> bool:
        """The caller has waited for so long that it is told before anything else is tried."""
        return isinstance(self.cause, Silent) and not self.cause.reached


@contextmanager
def whole(connection: Connection, framed: bool) -> Iterator[None]:
    """Where no `begin` and `commit` frame it, the end of a pipeline commits, also if an error of ours cut it short."""
    try:
        yield
    except BaseException as error:
        if not framed and getattr(error, "sqlstate", None) is None:  # else the server has given it up already
            connection.close()
        raise


class Strokes:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.holders = Holders(connections)

    def stroke(
        self,
        point: str,
        work: Callable[[Session], T],
        bell: Bell = Bell.NOBODY,
        *,
        repeatable: bool = False,
        alone: bool = False,
        in_one_go: bool = False,
        gives_way: bool = False,
        passing: bool = False,
    ) -> T:
        locks: frozenset[Lock] = frozenset()
        gone: Connection | None = None  # in whose place a connection was made for this stroke
        breaks, began = 0, time.monotonic()
        for number in range(TRIES):
            connection = self._connections.take(once_more=True, instead_of=gone)
            kept = False
            try:
                if alone and not connection.pooled:
                    answer = self._try_alone(connection, point, work)
                else:
                    framed = connection.pooled or not in_one_go
                    c = self._session(connection, passing)
                    wait = PASSING_WAIT if passing else LOCK_WAIT if gives_way and framed else ""
                    answer = self._try(
                        c, connection, point, work, bell, locks, wait, marked=not repeatable, framed=framed
                    )
            except Rolled as rolled:
                self._connections.give_back(connection)
                kept = True
                return cast(T, rolled.answer)
            except Missing as missing:
                self._connections.give_back(connection)
                kept = True
                locks |= missing.locks
            except HeldUp:
                self._connections.give_back(connection)
                kept = True
                raise
            except RETRIED:
                connection.close()
                time.sleep(random.uniform(0, 0.002 * (number + 1)))
            except Lost as lost:
                self._connections.lose(connection)
                if lost.mark and self._connections.was_committed(lost.mark, connection):
                    return cast(T, lost.answer)
                # An idle connection may have died since its last use; nothing was committed on it.
                breaks += 1
                if breaks == BREAKS or lost.is_for_long:
                    raise_translated(lost.cause)
                    raise lost.cause from None
                gone = connection
            except BaseException as error:
                # What the driver takes for prepared may not be: the server passed over all that came after the error.
                connection.close()
                if isinstance(error, psycopg.Error) and error.sqlstate in REFUSALS:
                    raise Refused(error.sqlstate) from None
                if isinstance(error, psycopg.errors.LockNotAvailable):
                    in_time = time.monotonic() - began < PATIENCE
                    if self._look_who_holds(error, gives_way, passing, in_time) or in_time:
                        continue
                raise_translated(error)
                raise
            else:
                self._connections.give_back(connection)
                kept = True
                if point:
                    failpoint(f"{point}.after_commit")
                return answer
            finally:
                # One call of C, which nothing keeps from being made: whatever strikes where, no transaction is left.
                if not kept:
                    connection.pgconn.finish()
        raise StoreUnavailable(f"PostgreSQL: others were in the way {TRIES} times. Try again.")

    def _look_who_holds(
        self, error: psycopg.errors.LockNotAvailable, gives_way: bool, passing: bool, in_time: bool
    ) -> bool:
        """Whether one that was stopped is out of the way now; raises where it is no stroke of ours that is."""
        if passing:
            raise HeldUp("PostgreSQL: another transaction has what this needs. Try again.") from error
        holder = self.holders.look()
        if holder is not None and (gives_way or not in_time):
            raise HeldUp(f"PostgreSQL: {holder} has what this needs. Try again when it has ended.") from error
        return self._connections.end_stopped()

    def _session(self, connection: Connection, passing: bool) -> Session:
        kind = Passing if passing else Session
        return kind(connection, self._connections.schema, skip_locked=self._connections.skip_locked)

    def _try_alone(self, connection: Connection, point: str, work: Callable[[Session], T]) -> T:
        failpoint(f"{point}.before_commit")
        try:
            return work(Session(connection, self._connections.schema, cursor=connection.single))
        except psycopg.errors.ReadOnlySqlTransaction as error:
            raise Lost(error) from error  # it was the primary
        except psycopg.OperationalError as error:
            if connection.closed:
                raise Lost(error) from error
            raise

    def _try(
        self,
        c: Session,
        connection: Connection,
        point: str,
        work: Callable[[Session], T],
        bell: Bell,
        locks: frozenset[Lock],
        wait: str,
        *,
        marked: bool,
        framed: bool,
    ) -> T:
        mark = ""  # known as soon as the commit may be on its way
        answer: T | None = None
        try:
            with connection.pipeline(), whole(connection, framed):
                if framed:
                    self._connections.begin(c, connection)
                if wait:
                    c.plain(WAIT, [wait])
                found = c.plain(MARK) if marked else None
                c.take(locks)
                answer = work(c)
                if point:
                    failpoint(f"{point}.before_commit")
                for one in (Bell.READY, Bell.ENDED):
                    if one in bell or c.holds:  # others may have come to be ready, or to their end
                        c.plain(RING, ring_arguments(self._connections.schema, one))
                if found is not None:
                    [(mark,)] = found.fetchall()
                if framed:
                    c.plain("commit")
        except BaseException as error:
            if isinstance(error, psycopg.Error | Missing | Rolled):  # after anything else the connection is closed
                self._roll_back(connection)
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                raise Lost(error) from error  # it was the primary
            if isinstance(error, psycopg.OperationalError) and connection.closed:
                raise Lost(error, mark, answer) from error
            raise
        return answer

    def _roll_back(self, connection: Connection) -> None:
        with suppress(psycopg.Error):
            if connection.closed or connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                return
            connection.execute("rollback")
