"""PostgreSQL: the server people run. Strokes of many processes at once, each one transaction and one commit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Event
from threading import Lock as ThreadLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import psycopg
from psycopg import sql

from packhorse.clock import Clock
from packhorse.errors import SchemaError, StoreUnavailable, StoreURLError
from packhorse.failpoints import failpoint
from packhorse.job import NewJob, Token
from packhorse.outcome import Outcome
from packhorse.queues import Selected
from packhorse.stores import postgres_copy, postgres_direct, postgres_exchange, postgres_history, sql_exchange
from packhorse.stores.contract import ADMIT_AT_ONCE, Exchanged, Finding, ProcessInfo, Retention, Watch
from packhorse.stores.migrate import LEDGER_COLUMNS, steps
from packhorse.stores.postgres_connections import (
    MARK,
    RETRIED,
    Connection,
    Connections,
    Silent,
    quoted,
    raise_translated,
)
from packhorse.stores.postgres_direct import Direct, Sent
from packhorse.stores.postgres_health import examine
from packhorse.stores.postgres_lent import WHERE, Borrower, LentSession, Outdated, waiters
from packhorse.stores.postgres_session import Lock, Missing, Schema, Session, lock_key
from packhorse.stores.postgres_watch import RING, PostgresWatch, ring_arguments
from packhorse.stores.sql_admission import ARRIVED, Freed
from packhorse.stores.sql_names import LEDGER, checked_prefix, named, prefixed_schema
from packhorse.stores.sql_store import RENEW, Bell, SQLStore

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")

POLL = 1.0  # seconds after which who waits for a job looks anyway
TRIES = 20  # of a stroke that got into another's way
# Exchanges step by step, after one in one go that was refused: what was in its way is likely to be in the next one's.
DETOUR, LONGEST_DETOUR = 4, 256
BREAKS = 3  # of its line, after which a stroke is given up
TEND_EVERY = 300.0  # seconds: looking after the partitions of history
SCHEMA = "packhorse"
PREFIX = "packhorse_"  # where everybody else's tables are, too
# What the driver is told unless the URL says otherwise: a line that was cut without a word is noticed by the kernel.
DRIVER = {
    "application_name": "packhorse",
    "connect_timeout": "5",
    "tcp_user_timeout": "10000",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
}
LOCAL_HOSTS = ("", "localhost", "127.0.0.1", "::1", "[::1]")


class PostgresStore(SQLStore):
    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__()
        self.url = url
        found = parse(url)
        self.schema = found.schema
        self._connections = Connections(
            found.conninfo, found.schema, pooled=found.pooled, skip_locked=found.skip_locked
        )
        self.clock = clock or self._connections.clock
        self._borrower = Borrower(self.schema, self._where)
        self._period = found.period
        self._tend_at = 0.0
        self._migrated = False
        self._migrating = ThreadLock()
        self._called = Event()
        self._guess: str | None = None  # the queue where the last jobs came from, where any would do
        self._detours, self._detour = 0, DETOUR

    # Hot.

    def insert(self, jobs: Sequence[NewJob]) -> list[bytes]:
        failpoint("insert.before_write")
        if len(jobs) == 1 and postgres_exchange.is_plain(jobs[0]):
            ring = ring_arguments(self.schema, Bell.READY)

            def write(c: Session) -> list[bytes]:
                return postgres_exchange.insert_one(c, jobs[0], self.clock.now(), ring)

            return self._stroke("insert", write, repeatable=True, alone=True)
        if len(jobs) >= postgres_copy.LEAST and (ids := self._copy(jobs)):
            return ids
        return self._stroke("insert", lambda c: self._insert(c, jobs, self.clock.now()), Bell.READY, repeatable=True)

    def exchange(
        self,
        process: bytes,
        nonce: int,
        outcomes: Sequence[Outcome],
        queues: Selected,
        limit: int,
        *,
        starting: int = 0,
        started: Sequence[Token] = (),
        run: int = 1,
    ) -> Exchanged:
        if not outcomes and not started and (answer := self._nothing_to_do(process, queues, limit)):
            return answer

        def stroke(c: Session) -> Exchanged:
            return self._exchange(c, process, nonce, outcomes, queues, limit, starting, started, run)

        failpoint("exchange.before_write")
        bell = Bell.ENDED if any(outcome.state.finished for outcome in outcomes) else Bell.NOBODY
        if any(not outcome.state.finished for outcome in outcomes):
            bell |= Bell.READY
        it = postgres_direct.direct(process, nonce, outcomes, queues, limit, starting, started, self._guess)
        exchanged = None
        if self._detours > 0:
            self._detours -= 1
        elif it is not None:
            exchanged = self._exchange_directly(it, bell)
        if exchanged is None:
            exchanged = self._stroke("exchange", stroke, bell)
        if exchanged.claims and any(entry.wildcard for entry in queues):
            self._guess = exchanged.claims[-1].queue
        return exchanged

    def _exchange_directly(self, it: Direct, bell: Bell) -> Exchanged | None:
        """None where it takes more after all."""

        def send(c: Session) -> Sent:
            sent = postgres_direct.send(c, it, self.clock.now(), self.clock.ticks(), self.clock.boot())
            failpoint("exchange.between")
            return sent

        try:
            exchanged = postgres_direct.read(it, self._stroke("exchange", send, bell, repeatable=True))
        except Refused as refused:
            if refused.why == postgres_direct.KNOWN:
                with self._cursor() as c:
                    return postgres_direct.read_again(c, it, self.clock.now())
            self._detours, self._detour = self._detour, min(2 * self._detour, LONGEST_DETOUR)
            return None
        self._detour = DETOUR
        return exchanged

    def enroll(self, process: ProcessInfo, lease: int) -> None:
        self._connections.outlive(lease)
        super().enroll(process, lease)

    def _exchange(
        self,
        c: Session,
        process: bytes,
        nonce: int,
        outcomes: Sequence[Outcome],
        queues: Selected,
        limit: int,
        starting: int,
        started: Sequence[Token],
        run: int,
    ) -> Exchanged:
        now, ticks = self.clock.now(), self.clock.ticks()
        # All these travel together.
        renewed = c.execute(RENEW, (ticks, process, self.clock.boot(), ticks))
        ended = postgres_exchange.write(c, outcomes, now)
        for token in started:
            c.execute(sql_exchange.STARTED, (now, *token))
        looked = postgres_exchange.look(c)
        door = c.execute(ARRIVED, (now,))
        names_of = postgres_exchange.look_for_names(c, queues) if limit else {}
        alive = renewed.rowcount == 1
        in_use = postgres_exchange.in_use(looked)
        refused, freed = postgres_exchange.finish(c, ended, now, in_use)
        failpoint("exchange.between")
        arrived = self._admission.has_arrived(door.fetchall()[0])
        unfinished = any(not outcome.state.finished for outcome in ended.outcomes)
        admitted = 0
        if arrived or freed or in_use.edges or unfinished:
            admitted = self._admission.admit(c, now, ADMIT_AT_ONCE, freed)
            names_of = postgres_exchange.look_for_names(c, queues) if limit else {}
        claims = []
        if alive and limit:
            claims = postgres_exchange.take(
                c, process, nonce, queues, names_of, limit, starting, run, now, in_use.pauses
            )
        answer = Exchanged(claims, refused, alive, now)
        if not outcomes and not started and not claims and not admitted and not c.holds:
            raise Rolled(answer)  # another worker was first; a renewed lease alone is not worth a commit
        return answer

    def beat(self, processes: Collection[bytes]) -> list[bytes]:
        def renew(c: Session) -> list[bytes]:
            return postgres_exchange.beat(c, processes, self.clock.boot(), self.clock.ticks())

        return self._stroke("beat", renew, repeatable=True, alone=True) if processes else []

    def _nothing_to_do(self, process: bytes, queues: Selected, limit: int) -> Exchanged | None:
        """A look that writes nothing; None where there is something to claim."""
        if limit and self._called.is_set():
            self._called.clear()
            return None
        with self._cursor() as c:
            now = self.clock.now()
            seen = postgres_exchange.look_around(c, process, self.clock.boot(), self.clock.ticks(), queues, now)
        if limit and (seen.ready or self._admission.has_arrived(seen.door)):
            return None
        return Exchanged([], [], seen.alive, now)

    # Housekeeping.

    def prune(self, retention: Retention, limit: int) -> int:
        pruned = super().prune(retention, limit)
        if pruned < limit and time.monotonic() >= self._tend_at:
            self._tend_at = time.monotonic() + TEND_EVERY
            self.tend_history(retention)
        return pruned

    def _forget(self, c: Session, ids: Sequence[bytes]) -> None:
        if postgres_history.is_divided(c):
            postgres_history.forget(c, ids)
        else:
            super()._forget(c, ids)

    def tend_history(self, retention: Retention) -> None:
        """Where it is divided: partitions for the time to come are made, and one that is over is dropped."""
        with self._cursor() as c:
            if not postgres_history.is_divided(c):
                return
        for tend in (
            lambda connection: postgres_history.make_ahead(
                connection, self.schema.prefix, self._period, self.clock.now()
            ),
            lambda connection: postgres_history.remove_old(connection, self.schema.prefix, retention, self.clock.now()),
        ):
            # Somebody else does it, or somebody is in the way: another time will do.
            with suppress(StoreUnavailable), self._changing("history", postgres_history.PATIENCE) as connection:
                tend(connection)

    # Waiting.

    def watch(self, queues: Selected) -> Watch:
        self._ensure_schema()
        return PostgresWatch(self._connections, Bell.READY, self._called.set)

    def wait_jobs(self, ids: Collection[bytes], timeout: float) -> set[bytes]:
        if (ended := self._ended(ids)) or timeout <= 0:
            return ended
        watch = PostgresWatch(self._connections, Bell.ENDED)
        deadline = time.monotonic() + timeout
        try:
            while True:
                ended = self._ended(ids)
                left = deadline - time.monotonic()
                if ended or left <= 0:
                    return ended
                watch.wait(min(left, POLL))
        finally:
            watch.close()

    # The store itself.

    def exists(self) -> bool:
        with self._connections.session() as c:
            find = "select 1 from pg_tables where schemaname = $1 and tablename = $2"
            return c.plain(find, [self.schema, named(LEDGER, self.schema.prefix)]).fetchone() is not None

    def examine(self) -> list[Finding]:
        with self._cursor() as c:
            return examine(c, self.schema, self.clock.now(), pooled=self._connections.seen_pooled)

    def migrate(self) -> list[str]:
        known = steps("postgres")
        with self._changing("migrate", "5s") as connection:
            find = "select 1 from pg_namespace where nspname = %s"
            if connection.execute(find, [self.schema]).fetchone() is None:
                connection.execute(sql.SQL("create schema {}").format(sql.Identifier(self.schema)))
            ledger = named(LEDGER, self.schema.prefix)
            connection.execute(f"create table if not exists {ledger} ({LEDGER_COLUMNS['postgres']})".encode())
            done = {number for (number,) in connection.execute(f"select number from {ledger}".encode())}
            if (newest := max(done, default=0)) > known[-1].number + 1:
                # One step ahead is a deploy under way, and its schema keeps us working.
                raise SchemaError(
                    f"The database has schema {newest}, but this Packhorse knows {known[-1].number}. Upgrade it."
                )
            missing = [step for step in known if step.number not in done]
            for step in missing:
                connection.execute(prefixed_schema(step.sql, "postgres", self.schema.prefix).encode())
                row = (step.number, step.name)
                connection.execute(f"insert into {ledger} values (%s, %s)".encode(), row)
            if self._period is not None:
                postgres_history.divide(connection, self.schema.prefix, self._period, self.clock.now())
        return [step.name for step in missing]

    @contextmanager
    def _changing(self, what: str, patience: str) -> Iterator[Connection]:
        """A transaction that changes tables; one at a time for each schema."""
        connection = self._connections.take()
        try:
            with connection.transaction():
                # Behind a pooler nothing is left of what a session was told.
                path = "select set_config('search_path', %s, true), set_config('lock_timeout', %s, true)"
                connection.execute(path, [quoted(self.schema), patience])
                connection.execute("select pg_advisory_xact_lock(%s)", [lock_key(self.schema, what)])
                yield connection
        except BaseException as error:
            connection.close()
            raise_translated(error)
            raise
        self._connections.give_back(connection)

    def schema_version(self) -> int:
        with self._cursor() as c:
            [(version,)] = c.plain("select max(number) from packhorse_schema").fetchall()
        return int(version)

    def close(self) -> None:
        self._connections.close()

    def _cursor(self) -> AbstractContextManager[Session]:
        self._ensure_schema()
        return self._connections.session()

    def _stroke(
        self,
        point: str,
        work: Callable[[Session], T],
        bell: Bell = Bell.NOBODY,
        *,
        repeatable: bool = False,
        alone: bool = False,
    ) -> T:
        """`repeatable` is a stroke that does nothing the second time; it needs no mark by which to find it again.

        `alone` is one of a single statement, which needs no more than that to be a transaction.
        """
        self._ensure_schema()
        locks: frozenset[Lock] = frozenset()
        gone: Connection | None = None  # in whose place a connection was made for this stroke
        breaks = 0
        for number in range(TRIES):
            connection = self._connections.take() if gone is None else self._connections.connect(gone)
            try:
                if alone and not connection.pooled:
                    answer = self._try_alone(connection, point, work)
                else:
                    answer = self._try(connection, point, work, bell, locks, marked=not repeatable)
            except Rolled as rolled:
                self._connections.give_back(connection)
                return cast(T, rolled.answer)
            except Missing as missing:
                self._connections.give_back(connection)
                locks |= missing.locks
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
                if isinstance(error, psycopg.Error) and error.sqlstate in postgres_direct.REFUSALS:
                    raise Refused(error.sqlstate) from None
                if isinstance(error, psycopg.errors.LockNotAvailable) and self._connections.end_stopped():
                    continue
                raise_translated(error)
                raise
            else:
                self._connections.give_back(connection)
                if point:
                    failpoint(f"{point}.after_commit")
                return answer
        raise StoreUnavailable(f"PostgreSQL: others were in the way {TRIES} times. Try again.")

    def _try_alone(self, connection: Connection, point: str, work: Callable[[Session], T]) -> T:
        failpoint(f"{point}.before_commit")
        try:
            return work(Session(connection, self.schema))
        except psycopg.errors.ReadOnlySqlTransaction as error:
            raise Lost(error) from error  # it was the primary
        except psycopg.OperationalError as error:
            if connection.closed:
                raise Lost(error) from error
            raise

    def _try(
        self,
        connection: Connection,
        point: str,
        work: Callable[[Session], T],
        bell: Bell,
        locks: frozenset[Lock],
        *,
        marked: bool,
    ) -> T:
        c = Session(connection, self.schema, skip_locked=self._connections.skip_locked)
        mark = ""  # known as soon as the commit may be on its way
        answer: T | None = None
        try:
            with connection.pipeline():
                self._connections.begin(c, connection)
                found = c.plain(MARK) if marked else None
                c.take(locks)
                answer = work(c)
                if point:
                    failpoint(f"{point}.before_commit")
                for one in (Bell.READY, Bell.ENDED):
                    if one in bell or c.holds:  # others may have come to be ready, or to their end
                        c.plain(RING, ring_arguments(self.schema, one))
                if found is not None:
                    [(mark,)] = found.fetchall()
                c.plain("commit")
        except BaseException as error:
            self._roll_back(connection)
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                raise Lost(error) from error  # it was the primary
            if isinstance(error, psycopg.OperationalError) and connection.closed:
                raise Lost(error, mark, answer) from error
            raise
        return answer

    def _lent_stroke(
        self, lent: object, loop: AbstractEventLoop | None, work: Callable[[LentSession], T], bell: Bell
    ) -> T:
        self._ensure_schema()
        return self._borrower.stroke(lent, loop, work, bell, trusted=self.hosted)

    def _where(self) -> tuple[Any, ...]:
        with self._cursor() as c:
            [found] = c.plain(WHERE).fetchall()
        return found

    def _roll_back(self, connection: Connection) -> None:
        with suppress(psycopg.Error):
            if connection.closed or connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                return
            connection.execute("rollback")

    def _copy(self, jobs: Sequence[NewJob]) -> list[bytes]:
        """Nothing where they cannot go by COPY, or it failed: then they are there, or none of them is."""
        ids = [job.id for job in jobs]
        if len(set(ids)) < len(ids) or not all(map(postgres_exchange.is_plain, jobs)):
            return []
        self._ensure_schema()
        connection = self._connections.take()
        c = Session(connection, self.schema)
        try:
            with connection.pipeline():
                self._connections.begin(c, connection)
                numbers = postgres_copy.numbers(c, len(jobs))
            postgres_copy.write(connection, self.schema.prefix, jobs, numbers, self.clock.now())
            failpoint("insert.before_commit")
            with connection.pipeline():
                c.plain(RING, ring_arguments(self.schema, Bell.READY))
                c.plain("commit")
        except BaseException as error:
            connection.close()
            if not isinstance(error, psycopg.Error):
                raise
            if isinstance(error, Silent) and not error.reached:
                raise_translated(error)  # the caller has waited long enough
            return []
        self._connections.give_back(connection)
        failpoint("insert.after_commit")
        return ids

    def _insert(self, c: Session, jobs: Sequence[NewJob], now: int) -> list[bytes]:
        return postgres_exchange.insert(c, jobs, now)

    def _finish(self, c: Session, outcomes: Sequence[Outcome], now: int) -> Freed | None:
        ended = postgres_exchange.write(c, outcomes, now)
        return postgres_exchange.finish(c, ended, now, postgres_exchange.in_use(postgres_exchange.look(c)))[1]

    def _complete(self, c: Any, outcome: Outcome) -> bool:
        """A transaction that sees old rows would leave those behind for ever who have come to wait since it began.

        Its own look is compared with one that sees everything, while nobody else can come or go: the job is locked by
        then, and where somebody is seen to wait for it, the gates are held.
        """
        if not isinstance(c, LentSession) or not c.looks_back:
            return super()._complete(c, outcome)
        seen = waiters(c, outcome.token.id)
        completed = super()._complete(c, outcome)
        with self._cursor() as own:
            there = waiters(own, outcome.token.id)
        if completed and not there <= seen:
            raise Outdated(
                "others have come to wait for the job since the transaction began, or what they wait for ended"
            )
        return completed

    def _still_ours(self, c: Session, token: Token) -> bool:
        return c.execute(postgres_exchange.STILL_OURS, token).fetchone() is not None

    def _ensure_schema(self) -> None:
        """No command is needed before the first use."""
        if not self._migrated and not self.hosted:
            with self._migrating:
                if not self._migrated:
                    self.migrate()
                    self._migrated = True


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


class Parsed(NamedTuple):
    """A store URL: what the driver is told, and what only we know of."""

    conninfo: str
    schema: Schema
    pooled: bool | None
    skip_locked: bool
    period: int | None


POOLERS = {"": None, "transaction": True, "session": False}
YES_NO = {"true": True, "false": False}


def parse(url: str) -> Parsed:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    schema = options.pop("schema", SCHEMA)
    if not schema or "\0" in schema or len(schema.encode()) > 63:
        raise StoreURLError(url, "the schema's name must have 1 to 63 bytes")
    prefix = checked_prefix(url, options.pop("prefix", PREFIX if schema == "public" else ""))
    if (pooler := options.pop("pooler", "")) not in POOLERS:
        raise StoreURLError(url, "pooler must be transaction or session")
    if (skip_locked := options.pop("skip_locked", "true").lower()) not in YES_NO:
        raise StoreURLError(url, "skip_locked must be true or false")
    if (history := options.pop("history", "")) not in ("", *postgres_history.PERIODS):
        raise StoreURLError(url, f"history must be one of {', '.join(postgres_history.PERIODS)}")
    hosts = options.get("host", unquote(parts.hostname or "")).split(",")
    near = all(host in LOCAL_HOSTS or host.startswith(("/", "@")) for host in hosts)
    if not near and "sslmode" not in options:
        options["sslmode"] = "require"
    for name, value in DRIVER.items():
        options.setdefault(name, value)
    text = f"postgresql://{parts.netloc}{parts.path}?{urlencode(options, quote_via=quote)}"
    try:
        psycopg.conninfo.conninfo_to_dict(text)
    except psycopg.ProgrammingError as error:
        raise StoreURLError(url, str(error).strip()) from None
    return Parsed(
        text, Schema(schema, prefix), POOLERS[pooler], YES_NO[skip_locked], postgres_history.PERIODS.get(history)
    )
