"""PostgreSQL: the server people run. Strokes of many processes at once, each one transaction and one commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import sql

from packhorse.clock import Clock, SystemClock
from packhorse.errors import ConfigError, HeldUp, SchemaError, StoreUnavailable
from packhorse.failpoints import failpoint
from packhorse.job import Claim, NewJob, Token
from packhorse.outcome import Outcome
from packhorse.queues import Selected
from packhorse.stores import postgres_copy, postgres_direct, postgres_exchange, postgres_history, sql_exchange
from packhorse.stores.contract import ADMIT_AT_ONCE, Exchanged, Finding, Orphan, ProcessInfo, Promoted, Retention, Watch
from packhorse.stores.migrate import LEDGER_COLUMNS, steps
from packhorse.stores.postgres_careful import Asked, Careful
from packhorse.stores.postgres_clock import ServerClock, SiteClock
from packhorse.stores.postgres_connections import (
    Connection,
    Connections,
    Silent,
    quoted,
    raise_translated,
)
from packhorse.stores.postgres_direct import Direct, Numbers, Sent
from packhorse.stores.postgres_health import examine
from packhorse.stores.postgres_lent import WHERE, Borrower, LentSession, Outdated, waiters
from packhorse.stores.postgres_session import Missing, Session, lock_key
from packhorse.stores.postgres_strokes import How, Refused, Rolled, Strokes
from packhorse.stores.postgres_url import parse
from packhorse.stores.postgres_watch import RING, PostgresWatch, ring_arguments
from packhorse.stores.sql_admission import ARRIVED, Freed
from packhorse.stores.sql_names import LEDGER, named, prefixed_schema
from packhorse.stores.sql_store import Bell, SQLStore
from packhorse.stores.waiting_room import WaitingRoom

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from typing import Unpack

T = TypeVar("T")

# Exchanges step by step, after one in one go that was refused: what was in its way is likely to be in the next one's.
DETOUR, LONGEST_DETOUR = 4, 256
# Strokes that go on without what a transaction of somebody else holds, or come again another time.
GIVE_WAY = frozenset({"promote", "adopt", "prune", "tick"})
PASS_OVER = frozenset({"adopt", "prune"})
TEND_EVERY = 300.0  # seconds: looking after the partitions of history


class PostgresStore(SQLStore):
    batches_at_once = 5

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        super().__init__()
        self.url = url
        found = parse(url)
        self.schema = found.schema
        self._connections = Connections(
            found.conninfo, found.schema, pooled=found.pooled, skip_locked=found.skip_locked, bound=found.pool
        )
        self._strokes = Strokes(self._connections)
        self.clock = clock or self._connections.clock
        self._careful = Careful(self)
        self._borrower = Borrower(self.schema, self._where)
        self._period = found.period
        self._tend_at = 0.0
        self._migrated = False
        self._called = Event()
        self._numbers = Numbers()
        self._guess: str | None = None  # the queue where the last jobs came from, where any would do
        self._detours, self._detour = 0, DETOUR

    def host(self) -> None:
        super().host()
        self.clock = SiteClock(self._connections.clock)

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
        if not self._careful.is_on:
            try:
                return self._exchange_at_ease(process, nonce, outcomes, queues, limit, starting, started, run)
            except HeldUp:
                self._careful.begin()
        asked = Asked(process, nonce, outcomes, queues, limit, starting, started)
        return self._careful.exchange(asked, _bell_of(outcomes))

    def _exchange_at_ease(
        self,
        process: bytes,
        nonce: int,
        outcomes: Sequence[Outcome],
        queues: Selected,
        limit: int,
        starting: int,
        started: Sequence[Token],
        run: int,
    ) -> Exchanged:
        """As long as nobody else's transaction is in the way."""

        def stroke(c: Session) -> Exchanged:
            return self._exchange(c, process, nonce, outcomes, queues, limit, starting, started, run)

        failpoint("exchange.before_write")
        it = postgres_direct.direct(
            process, nonce, outcomes, queues, limit, starting, started, self._numbers, self._guess
        )
        exchanged = None
        if self._detours > 0:
            self._detours -= 1
        elif it is not None:
            exchanged = self._exchange_directly(it)
        if exchanged is None:
            exchanged = self._stroke("exchange", stroke, _bell_of(outcomes), gives_way=True)
        if exchanged.claims and any(entry.wildcard for entry in queues):
            self._guess = exchanged.claims[-1].queue
        return exchanged

    def _exchange_directly(self, it: Direct) -> Exchanged | None:
        """None where it takes more after all."""
        ring = ring_arguments(self.schema, Bell.ENDED)

        def send(c: Session) -> Sent:
            sent = postgres_direct.send(c, it, self.clock.now(), self.clock.ticks(), self.clock.boot(), ring)
            failpoint("exchange.between")
            return sent

        try:
            sent = self._stroke("exchange", send, repeatable=True, in_one_go=True, gives_way=True)
        except Refused as refused:
            if refused.why == postgres_direct.KNOWN:
                with self._cursor() as c:
                    clock = self.clock
                    return postgres_direct.read_again(c, it, clock.now(), clock.ticks(), clock.boot())
            self._detours, self._detour = self._detour, min(2 * self._detour, LONGEST_DETOUR)
            return None
        self._detour = DETOUR
        return postgres_direct.read(sent, self._numbers)

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
        now, boot = self.clock.now(), self.clock.boot()
        # All these travel together.
        living = c.execute(sql_exchange.ALIVE, (process, boot, self.clock.ticks()))
        ended = postgres_exchange.write(c, outcomes, now)
        for token in started:
            c.execute(sql_exchange.STARTED, (now, *token))
        looked = postgres_exchange.look(c)
        door = c.execute(ARRIVED, (now,))
        names_of = postgres_exchange.look_for_names(c, queues) if limit else {}
        alive = living.fetchone() is not None
        in_use = postgres_exchange.in_use(looked)
        refused, freed = postgres_exchange.finish(c, ended, now, in_use)
        failpoint("exchange.between")
        arrived = self._admission.has_arrived(door.fetchall()[0])
        unfinished = any(not outcome.state.finished for outcome in ended.outcomes)
        admitted = 0
        if arrived or freed or in_use.edges or unfinished:
            admitted = self._admission.admit(c, now, ADMIT_AT_ONCE, freed)
            names_of = postgres_exchange.look_for_names(c, queues) if limit else {}
        # As late as can be: nobody else can beat for the process from here on, however slow the line is.
        ticks = self.clock.ticks()
        renewed = c.execute(postgres_exchange.RENEW, (ticks, ticks, process, boot, ticks))
        claims: list[Claim] = []
        cut = False
        if alive and limit:
            claims, cut = postgres_exchange.take(
                c, process, nonce, queues, names_of, limit, starting, run, now, in_use.pauses
            )
        if alive and renewed.rowcount == 0:
            raise Missing(frozenset())  # the lease has just run out: again, as one who has none
        answer = Exchanged(claims, refused, alive, now, cut)
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

    def promote(self, limit: int) -> Promoted:
        if not self._careful.is_on or limit <= 0:
            try:
                return super().promote(limit)
            except HeldUp:
                self._careful.begin()
        return self._careful.promote(limit)

    def adopt(self, adopter: bytes, nonce: int, limit: int, *, dead: Collection[bytes] = ()) -> list[Orphan]:
        try:
            return super().adopt(adopter, nonce, limit, dead=dead)
        except HeldUp:
            self._careful.begin()
        return super().adopt(adopter, nonce, limit, dead=dead)  # without those whose rows somebody has

    def prune(self, retention: Retention, limit: int) -> int:
        try:
            pruned = super().prune(retention, limit)
        except HeldUp:
            self._careful.begin()
            return 0  # another time
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

    def watch_endings(self) -> Watch:
        self._ensure_schema()
        return PostgresWatch(self._connections, Bell.ENDED)

    def _new_room(self) -> WaitingRoom:
        return _Room(self)

    # The store itself.

    def exists(self) -> bool:
        with self._connections.session() as c:
            find = "select 1 from pg_tables where schemaname = $1 and tablename = $2"
            return c.plain(find, [self.schema, named(LEDGER, self.schema.prefix)]).fetchone() is not None

    def examine(self) -> list[Finding]:
        clock = SystemClock() if isinstance(self.clock, ServerClock | SiteClock) else self.clock
        with self._cursor() as c:
            return examine(c, self.schema, clock.now(), pooled=self._connections.seen_pooled)

    def backup(self, target: Path, *, replace: bool, progress: Callable[[int, int], None]) -> list[Path]:
        raise ConfigError(
            "The jobs are in a PostgreSQL database, which is backed up with pg_dump, or with the rest of the server."
        )

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
        self.close_room()
        self._connections.close()

    def _cursor(self) -> AbstractContextManager[Session]:
        self._ensure_schema()
        return self._connections.session()

    def _stroke(self, point: str, work: Callable[[Session], T], bell: Bell = Bell.NOBODY, **how: Unpack[How]) -> T:
        self._ensure_schema()
        if point in GIVE_WAY:
            how["gives_way"] = True
        if point in PASS_OVER and self._careful.is_on:
            how["passing"] = True
        return self._strokes.stroke(point, work, bell, **how)

    def _lent_stroke(
        self, lent: object, loop: AbstractEventLoop | None, work: Callable[[LentSession], T], bell: Bell
    ) -> T:
        self._ensure_schema()
        with self._connections.beyond_bound():
            return self._borrower.stroke(lent, loop, work, bell, trusted=self.hosted)

    def _where(self) -> tuple[Any, ...]:
        with self._cursor() as c:
            [found] = c.plain(WHERE).fetchall()
        return found

    def _copy(self, jobs: Sequence[NewJob]) -> list[bytes]:
        """Nothing where they cannot go by COPY, or it failed: then they are there, or none of them is."""
        ids = [job.id for job in jobs]
        if len(set(ids)) < len(ids) or not all(map(postgres_exchange.is_plain, jobs)):
            return []
        self._ensure_schema()
        connection = self._connections.take()
        kept = False
        try:
            c = Session(connection, self.schema)
            with connection.pipeline():
                self._connections.begin(c, connection)
                numbers = postgres_copy.numbers(c, len(jobs))
            postgres_copy.write(connection, self.schema.prefix, jobs, numbers, self.clock.now())
            failpoint("insert.before_commit")
            with connection.pipeline():
                c.plain(RING, ring_arguments(self.schema, Bell.READY))
                c.plain("commit")
            self._connections.give_back(connection)
            kept = True
        except BaseException as error:
            if not isinstance(error, psycopg.Error):
                raise
            if isinstance(error, Silent) and not error.reached:
                raise_translated(error)  # the caller has waited long enough
            return []
        finally:
            if not kept:
                connection.pgconn.finish()
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
            with self._connections.preparing, self._connections.on_own_lane():
                if not self._migrated:
                    self.migrate()
                    self._migrated = True


def _bell_of(outcomes: Sequence[Outcome]) -> Bell:
    bell = Bell.ENDED if any(outcome.state.finished for outcome in outcomes) else Bell.NOBODY
    return bell | Bell.READY if any(not outcome.state.finished for outcome in outcomes) else bell


class _Room(WaitingRoom):
    """Looks on behalf of all who wait, and waits for none of them."""

    store: PostgresStore

    def _run(self) -> None:
        with self.store._connections.on_own_lane():
            super()._run()


def _on_own_lane(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def on_own_lane(self: PostgresStore, /, *args: Any, **kwargs: Any) -> Any:
        with self._connections.on_own_lane():
            return method(self, *args, **kwargs)

    return on_own_lane


# A worker whose tasks have all connections in use, and wait for a lock with them, goes on beating and exchanging.
for _name in (
    "exchange",
    "beat",
    "orders",
    "held",
    "enroll",
    "leave",
    "promote",
    "adopt",
    "prune",
    "due_schedules",
    "tick",
):
    setattr(PostgresStore, _name, _on_own_lane(getattr(PostgresStore, _name)))
