"""How the PostgreSQL store reaches its server: connections of its own, errors translated."""

from __future__ import annotations

import logging
import os
import random
import select
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

import psycopg
from psycopg import errors
from psycopg.types.numeric import Int8Dumper

from packhorse.clock import SECOND
from packhorse.errors import (
    ConfigError,
    SchemaError,
    StoreDataError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsafe,
)
from packhorse.stores import postgres_arrays
from packhorse.stores.postgres_clock import ASK, ServerClock
from packhorse.stores.postgres_places import OWN, POOL, Lanes, Place, Places
from packhorse.stores.postgres_session import Schema, Session, session_mark

log = logging.getLogger("packhorse.store")

OLDEST = 140_000
IDLE = 8  # connections kept for the next who needs one
POOLED_ANSWER = 10.0  # behind a pooler, where nobody can look
ANSWER = 3.0  # seconds without an answer, after which somebody looks whether the server is still at work on it
PATIENCE = 5.0  # seconds to wait for what somebody else has; less where leases are short
PROBE = 2  # seconds for that look; with ANSWER, after how long a silent server is given up
RESTED = 0.05  # seconds of rest after which a connection is looked at before it is used
SETTLE = 5.0  # seconds in which it must be found out what became of a commit
# No statistics, old ones or none: the plan is always the one along the indexes, which is made once.
SETTINGS = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "client_encoding": "UTF8",
    "bytea_output": "hex",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
    "plan_cache_mode": "force_generic_plan",
    "statement_timeout": "0",  # whoever waits has a deadline of its own
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "15s",  # a stopped process must not hold up the others for long
    # The server notices a client whose machine is gone; on a Unix socket they do nothing.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
# What a session says once, and a transaction does not need or cannot say.
OF_SESSIONS = (
    "default_transaction_isolation",
    "default_transaction_read_only",
    "client_encoding",
    "idle_session_timeout",
)
SET = "select set_config(name, value, $3::bigint = 1) from unnest($1::text[], $2::text[]) as setting (name, value)"
# What is ours is known by a lock that all our sessions share, and nobody else: a name may be anybody's.
SET_AND_MARK = f"with marked as materialized (select pg_advisory_lock_shared($4::bigint)) {SET}, marked"
MARKED = """
    select pid from pg_locks
    where locktype = 'advisory' and mode = 'ShareLock' and granted and objsubid = 1
      and database = (select oid from pg_database where datname = current_database())
      and (classid::bigint << 32 | objid::bigint) = $1::bigint
"""
BEGIN = "begin isolation level read committed"
ABOUT = f"""
    select pg_is_in_recovery(), current_setting('fsync'), current_setting('synchronous_commit'), pid, backend_start,
           ({ASK})
    from pg_stat_activity where pid = pg_backend_pid()
"""
# In the middle of a pipeline it counts as active also while it waits for us.
AT_WORK = """
    select state = 'active' and wait_event is distinct from 'ClientRead'
    from pg_stat_activity where pid = %s and backend_start = %s
"""
MARK = "select pg_current_xact_id()::text"
BECAME = "select pg_xact_status(%s::xid8)"
END = "select pg_terminate_backend(pid, 1000) from pg_stat_activity where pid = %s and backend_start = %s"
# In the middle of a pipeline the server does not count a session as idle, however long nothing comes from its client.
END_STOPPED = f"""
    select pg_terminate_backend(pid, 1000) from pg_stat_activity
    where pid in ({MARKED}) and datname = current_database() and usename = current_user
      and application_name = current_setting('application_name') and pid <> pg_backend_pid()
      and xact_start is not null and wait_event = 'ClientRead'
      and state_change < clock_timestamp() - make_interval(secs => $2::float8)
"""
_lines: WeakSet[Connection] = WeakSet()
_pools: WeakSet[Connections] = WeakSet()
# What a fork brought along stays referenced for good, so that nobody says goodbye to the server on the parent's line.
_inherited: list[Connection] = []


def _after_fork_in_child() -> None:
    """The lines are the parent's: to close one, or to end its TLS, would be said to the server in the parent's name.

    What leads to them leads nowhere from now on, so that they do not outlast the parent either.
    """
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connection in list(_lines):
        with suppress(psycopg.Error, OSError):
            os.dup2(nowhere, connection.fileno(), inheritable=False)
            _inherited.append(connection)
    os.close(nowhere)
    _lines.clear()
    for pool in list(_pools):
        pool.forget_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
RETRIED = (errors.SerializationFailure, errors.DeadlockDetected)

T = TypeVar("T")
Row = tuple[Any, ...]


class Silent(psycopg.OperationalError):
    """No answer came, and nobody is at work on one; or the server does not say."""

    def __init__(self, seconds: float, *, reached: bool) -> None:
        super().__init__(f"the server has not answered for {seconds:g} seconds")
        self.reached = reached


class Connection(psycopg.Connection[Row]):
    """Waits for no answer for ever: neither the kernel nor the driver notices a server that only keeps silent."""

    rests_since = 0.0
    backend: Backend | None = None  # None behind a pooler, where it may be another in each transaction
    pooled = False
    place: Place | None = None

    def close(self) -> None:
        super().close()
        self.leave_place()

    def leave_place(self) -> None:
        place, self.place = self.place, None
        if place is not None:
            place.leave()

    def __del__(self, *_: object) -> None:
        """Where an exception from outside struck whoever had it, the line is closed with what stands for it here."""

    @cached_property
    def single(self) -> psycopg.RawCursor[Row]:
        """For who says one statement: to make a cursor takes a while."""
        return psycopg.RawCursor(self)

    def wait(self, gen: Generator[Any, Any, T], interval: float = 0.1, *args: Any, **more: Any) -> T:
        return super().wait(self._in_time(gen), interval, *args, **more)

    def _in_time(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        patience = POOLED_ANSWER if self.pooled else ANSWER
        deadline = time.monotonic() + patience
        try:
            wanted = next(gen)
            while True:
                came = yield wanted
                if not came and time.monotonic() >= deadline:
                    if not (at_work := self._at_work()):
                        self.pgconn.finish()
                        raise Silent(patience, reached=at_work is not None)
                    deadline = time.monotonic() + patience
                wanted = gen.send(came)
        except StopIteration as end:
            answer: T = end.value
            return answer

    def _at_work(self) -> bool | None:
        """Whether the server is slow and not silent: asked on a line of its own. None where it is not reached."""
        if self.backend is None:
            return None
        try:
            with psycopg.connect(self.backend.conninfo, connect_timeout=PROBE) as probe:
                found = probe.execute(AT_WORK, [self.backend.pid, self.backend.since]).fetchone()
        except psycopg.Error:
            return None
        return found is not None and bool(found[0])


class Backend(NamedTuple):
    """The server's side of a connection; a pid alone may be another's tomorrow."""

    conninfo: str
    pid: int
    since: Any


class Connections:
    """A pool that grows with the threads that use it at once, up to a bound; then they queue.

    What keeps a worker alive has places of its own, so that it need not wait for its tasks. What listens, and what
    finds out about a connection that was lost, takes none.
    """

    def __init__(
        self,
        conninfo: str,
        schema: Schema,
        *,
        pooled: bool | None = None,
        skip_locked: bool = True,
        bound: int = POOL,
    ) -> None:
        """`pooled` tells whether a pooler that hands out transactions stands between; None finds out."""
        self._conninfo = conninfo
        self.schema = schema
        self.mark = session_mark(schema)
        self._pooled = pooled
        self.skip_locked = skip_locked
        self.seen_pooled = bool(pooled)
        self._idle: list[Connection] = []
        self._bound = bound
        self._make_room()
        self._warned = False
        self._patience = PATIENCE
        self.clock = ServerClock(lambda: self.give_back(self.connect()))
        _pools.add(self)

    def forget_parent(self) -> None:
        """In a forked child, where nobody is left who could give a place back, or open the lock."""
        self._idle = []
        self._make_room()

    def _make_room(self) -> None:
        self._lock = Lock()
        self.preparing = Lock()  # held while the tables are made, before the first use
        self._lanes = Lanes(Places(self._bound), Places(OWN))

    @contextmanager
    def on_own_lane(self) -> Iterator[None]:
        """What this thread does must not wait until the program's other threads give connections back."""
        before, self._lanes.own = self._lanes.own, True
        try:
            yield
        finally:
            self._lanes.own = before

    @contextmanager
    def beyond_bound(self) -> Iterator[None]:
        """This thread has a transaction in hand that others may wait for, so it must wait for nobody's connection."""
        before, self._lanes.beyond = self._lanes.beyond, True
        try:
            yield
        finally:
            self._lanes.beyond = before

    @contextmanager
    def session(self) -> Iterator[Session]:
        """For reading, each statement by itself."""
        connection = self.take()
        try:
            with connection.pipeline():
                c = Session(connection, self.schema)
                if connection.pooled:
                    self.begin(c, connection)
                yield c
                if connection.pooled:
                    c.plain("commit")
        except BaseException as error:
            connection.close()
            raise_translated(error)
            raise
        self.give_back(connection)

    def begin(self, c: Session, connection: Connection) -> None:
        """A transaction; behind a pooler its settings come with it, as the next one may be another session's."""
        c.plain(f"{BEGIN} read write" if connection.pooled else BEGIN)
        if connection.pooled:
            settings = {name: value for name, value in self._settings.items() if name not in OF_SESSIONS}
            c.plain(SET, [list(settings), list(settings.values()), True])

    @property
    def _settings(self) -> dict[str, str]:
        lock_timeout = f"{self._patience * 1000:.0f}ms"
        return SETTINGS | {"search_path": quoted(self.schema), "lock_timeout": lock_timeout}

    def outlive(self, lease: int) -> None:
        """A process whose lease is that long must not wait so long for one that is stopped that its own runs out."""
        patience = min(PATIENCE, lease / SECOND / 6)
        if patience < self._patience:
            self._patience = patience
            self.drop_idle()  # they have the old one

    def take(self, *, once_more: bool = False, instead_of: Connection | None = None) -> Connection:
        """A connection of one's own, until it is given back or closed, as soon as there is a place for it.

        `once_more`: whoever finds it broken takes another. `instead_of` is one that was lost, as for `connect`.
        """
        place = self._lanes.take()
        try:
            connection = None if instead_of is not None else self._take_idle(once_more)
            if connection is None or (self.clock.is_old and not self._ask_time(connection)):
                connection = self.connect(instead_of)
        except BaseException:
            if place is not None:  # the traceback would keep it
                place.leave()
            raise
        connection.place = place
        return connection

    def _take_idle(self, once_more: bool) -> Connection | None:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                fresh = once_more and time.monotonic() < connection.rests_since + RESTED
                if not connection.closed and (fresh or not _was_left(connection)):
                    return connection
                connection.close()
        return None

    def _ask_time(self, connection: Connection) -> bool:
        """False where the connection is of no more use."""
        before = self.clock.local()
        try:
            [(now,)] = connection.execute(ASK).fetchall()
        except psycopg.Error:
            connection.close()
            return False
        self.clock.learn(before, now, self.clock.local())
        return True

    def connect(self, instead_of: Connection | None = None) -> Connection:
        """A new one. The other end of one that was lost may not have heard of it, and have rows to itself."""
        try:
            connection = Connection.connect(self._conninfo, autocommit=True)
            _lines.add(connection)
        except psycopg.Error as error:
            raise_translated(error)
            raise
        try:
            self._prepare(connection)
            if instead_of is not None and instead_of.backend is not None:
                connection.execute(END, [instead_of.backend.pid, instead_of.backend.since])
        except BaseException as error:
            connection.close()
            raise_translated(error)
            raise
        return connection

    def _prepare(self, connection: Connection) -> None:
        register_dumpers(connection)
        if connection.info.server_version < OLDEST:
            raise ConfigError(f"The server is PostgreSQL {connection.info.server_version // 10_000}; 14 is the oldest.")
        before = self.clock.local()
        [(standby, fsync, durable, pid, since, now)] = connection.execute(ABOUT.encode()).fetchall()
        self.clock.learn(before, now, self.clock.local())
        # A pooler knows nothing of the pids that the server gives.
        connection.pooled = pid != connection.info.backend_pid if self._pooled is None else self._pooled
        self.seen_pooled = connection.pooled
        if connection.pooled:
            connection.prepare_threshold = None
        else:
            connection.backend = Backend(self._conninfo, pid, since)
            settings = self._settings
            if connection.info.server_version >= 170_000:
                settings["transaction_timeout"] = "0"
            told = [list(settings), list(settings.values()), False, self.mark]
            psycopg.RawCursor(connection).execute(SET_AND_MARK, told)
        if standby:
            raise StoreUnsafe(
                "The server is a standby, on which nothing can be written. Name the primary in the store URL, or name "
                "both hosts and add target_session_attrs=read-write."
            )
        if not self._warned and "off" in (fsync, durable):
            self._warned = True
            setting = "fsync" if fsync == "off" else "synchronous_commit"
            log.warning("the server runs with %s = off: when it crashes, jobs that were acknowledged are lost", setting)

    def lose(self, connection: Connection) -> None:
        """It broke, or leads to a server that takes no writes; the idle ones may be no better."""
        connection.close()
        self.drop_idle()

    def end_stopped(self) -> bool:
        """Of ours, those who say nothing in the middle of a stroke: stopped, or cut off; whether there were any.

        They find their line broken when they go on, and do it again. Behind a pooler nobody can tell which are ours.
        """
        with suppress(psycopg.Error, StoreUnavailable):
            connection = self.connect()
            try:
                ended = psycopg.RawCursor(connection).execute(END_STOPPED, [self.mark, self._patience])
                return bool(ended.fetchall())
            finally:
                connection.close()
        return False

    def was_committed(self, mark: str, lost: Connection) -> bool:
        """What became of a transaction whose commit was sent and not answered; final, as its other end was ended."""
        deadline = time.monotonic() + SETTLE
        while True:
            try:
                connection = self.connect(lost)
                try:
                    [(became,)] = connection.execute(BECAME, [mark]).fetchall()
                finally:
                    connection.close()
                if became != "in progress":
                    return bool(became == "committed")
            except (psycopg.Error, StoreUnavailable):
                pass  # it is not back yet
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    "PostgreSQL: the connection was lost during a commit, and the server is not there to ask what "
                    "became of it. It may have been written."
                )
            time.sleep(random.uniform(0.05, 0.25))

    def give_back(self, connection: Connection) -> None:
        """For the next; one that is in the middle of something is closed instead."""
        idle = connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
        connection.rests_since = time.monotonic()
        place, connection.place = connection.place, None  # whoever takes it from here brings another
        try:
            with self._lock:
                if len(self._idle) < IDLE and idle and connection not in _inherited:
                    self._idle.append(connection)
                    return
            connection.close()
        finally:
            if place is not None:
                place.leave()

    def drop_idle(self) -> None:
        """The server went away: those it knew are no use any more."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            with suppress(psycopg.Error):
                connection.close()

    def close(self) -> None:
        self.drop_idle()


def quoted(name: str) -> str:
    """As the name of a schema stands in a list of them."""
    return '"' + name.replace('"', '""') + '"'


def _was_left(connection: Connection) -> bool:
    """An idle connection on which the server has said something: most often, that it goes."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def register_dumpers(connection: psycopg.Connection[Row]) -> None:
    for kind in (int, bool):  # the columns are wide enough for both, and one statement serves every size of number
        connection.adapters.register_dumper(kind, Int8Dumper)
    connection.adapters.register_dumper(bool, _BoolDumper)
    postgres_arrays.register(connection.adapters)


class _BoolDumper(Int8Dumper):
    def dump(self, obj: Any) -> bytes:
        return b"1" if obj else b"0"


def raise_translated(error: BaseException) -> None:
    """Say PostgreSQL's errors in the words of the contract; others are left to the caller."""
    text = str(error).strip().split("\n")[0]
    match error:
        case (
            errors.UndefinedTable() | errors.UndefinedColumn() | errors.InvalidSchemaName() | errors.UndefinedFunction()
        ):
            why = f"{text}: the database has no schema, or an older one. Run `packhorse migrate`."
            raise SchemaError(why) from error
        case errors.InsufficientPrivilege() | errors.InvalidCatalogName() | errors.InvalidPassword():
            raise StoreUnsafe(f"PostgreSQL: {text}. Check the user and its rights.") from error
        case errors.DiskFull():
            raise StoreFull("The server's disk is full: nothing was written. Free some space.") from error
        case psycopg.OperationalError() | psycopg.InterfaceError() | errors.ReadOnlySqlTransaction():
            raise StoreUnavailable(f"PostgreSQL: {text}") from error
        case psycopg.DataError() | psycopg.IntegrityError() | OverflowError() | UnicodeEncodeError():
            raise StoreDataError(f"PostgreSQL cannot store this value: {text}") from error
        case psycopg.ProgrammingError() if "adapt" in text:
            raise StoreDataError(f"PostgreSQL cannot store this value: {text}") from error
        case psycopg.Error():
            raise StoreError(f"PostgreSQL: {text}") from error
