"""SQLite: one file, nothing to install. Every write is one immediate transaction, one at a time among all processes."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from packhorse.clock import Clock, SystemClock
from packhorse.errors import ConfigError, SchemaError, StoreFull, StoreUnavailable, StoreUnsafe, StoreURLError
from packhorse.failpoints import failpoint
from packhorse.job import NewJob, Token
from packhorse.outcome import Outcome
from packhorse.queues import Selected
from packhorse.stores import sql_exchange, sqlite_backup, sqlite_exchange, sqlite_holders, sqlite_lent
from packhorse.stores.contract import ADMIT_AT_ONCE, Exchanged, Finding, Lent, ProcessInfo, Retention, Watch
from packhorse.stores.lending import is_async
from packhorse.stores.migrate import LEDGER_COLUMNS, in_parts, steps
from packhorse.stores.sql_admission import Freed, Runs
from packhorse.stores.sql_exchange import InUse
from packhorse.stores.sql_names import LEDGER, checked_prefix, named, prefixed_schema
from packhorse.stores.sql_store import Bell, SQLStore
from packhorse.stores.sqlite_ballast import Ballast
from packhorse.stores.sqlite_batches import Session
from packhorse.stores.sqlite_connections import Connections, first_use
from packhorse.stores.sqlite_health import WAL_WARNING, examine
from packhorse.stores.sqlite_key import kept_key
from packhorse.stores.sqlite_watch import SQLiteWatch

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")

log = logging.getLogger("packhorse.store")

OLDEST = (3, 35)
CROWD = 12  # threads of a worker that may write at once
SMALL = 64  # outcomes in an exchange that may grow a little while others write
WAL_WARNING_EVERY = 60.0
LASTS = "select boot = ? and lease_until > ? from process where id = ?"
# Who lives renews its lease four times in its length. So if the last renewal of all is older than two fifths of one,
# nobody could, or nobody lives: all that were good then last for half of their length from now on.
GIVE_BACK = """
    update process set lease_until = ? + lease / 2
    where boot = ? and lease_until < ? + lease / 2
      and lease_until > (select max(lease_until - lease) from process where boot = ?)
      and (? - (select max(lease_until - lease) from process where boot = ?)) * 5 > lease * 2
"""


class SQLiteStore(SQLStore):
    # Every number is smaller than every text, so that what is no moment is left where it is.
    NTH_DUE = "select order_key, id from job where state = 1 and order_key < '' order by order_key, id limit 1 offset ?"

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigError(f"Python uses SQLite {sqlite3.sqlite_version} here; Packhorse needs 3.35 or later.")
        super().__init__()
        self.url = url
        self.clock = clock or SystemClock()
        path, options = _parse(url)
        self.path = path
        self.prefix = checked_prefix(url, options.get("prefix", ""))
        self._connections = Connections(path, options.get("synchronous", "full"), self.prefix)
        self._connections.after_waiting = self._give_time_back
        self._ballast = Ballast(path)
        self._migrated = False
        self._warn_at = 0.0

    # Hot.

    def insert(self, jobs: Sequence[NewJob]) -> list[bytes]:
        failpoint("insert.before_write")

        def write(c: Session) -> list[bytes]:
            ids = sqlite_exchange.insert(c, jobs, self.clock.now())
            failpoint("insert.before_commit")
            return ids

        ids = self._write(write)
        failpoint("insert.after_commit")
        return ids

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
        try:
            return self._exchange(process, nonce, outcomes, queues, limit, starting, started, run)
        except StoreFull:
            if not outcomes or not self._ballast.free():
                raise
        log.error("the disk of %s is full; its ballast was let go to write down what has been done", self.path)
        return self._exchange(process, nonce, outcomes, queues, 0, 0, started, 1)

    def _exchange(
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
        failpoint("exchange.before_write")
        entries: list[list[str]] = []
        runs: Runs = {}

        def write(c: Session) -> tuple[Exchanged, bool | None]:
            """What there is to answer, and whether the claims are yet to be read; None where nothing was written."""
            nonlocal entries, runs
            now = self.clock.now()
            alive = self._renew(c, process)
            before = c.total_changes
            in_use = InUse.of(c)
            refused, freed = sqlite_exchange.finish(c, outcomes, now, in_use) if outcomes else ([], None)
            for token in started:
                c.execute(sql_exchange.STARTED, (now, *token))
            failpoint("exchange.between")
            if self._admission.admit(c, now, ADMIT_AT_ONCE, freed):
                in_use = in_use._replace(permits=True, tickets=in_use.tickets or self._admission.gave_tickets)
            cut = False
            if alive and limit:
                entries, runs, cut = sqlite_exchange.take(c, process, nonce, queues, limit, starting, run, now, in_use)
            if not outcomes and not started and not entries and c.total_changes == before:
                c.undo()  # another worker was first; a renewed lease alone is not worth a commit
                return Exchanged([], [], alive, now), None
            later = bool(entries) and limit > SMALL  # to read many would hold up others
            claims = sqlite_exchange.claimed(c, process, nonce, entries, runs) if entries and not later else []
            failpoint("exchange.before_commit")
            return Exchanged(claims, refused, alive, now, cut), later

        answer, later = self._write(write, patient=len(outcomes) < SMALL)
        if later is None:
            return answer
        failpoint("exchange.after_commit")
        if later:
            with self._cursor() as c:
                claims = sqlite_exchange.claimed(c, process, nonce, entries, runs)
            answer = answer._replace(claims=claims)
        return answer

    def _nothing_to_do(self, process: bytes, queues: Selected, limit: int) -> Exchanged | None:
        """A look without the write lock; None where there is something to claim."""
        with self._cursor() as c:
            now = self.clock.now()
            closed = sqlite_exchange.paused_queues(c, now)
            if limit and (self._admission.arrived(c, now) or any(sqlite_exchange.open_queues(c, queues, closed))):
                return None
            row = c.execute(LASTS, (self.clock.boot(), self.clock.ticks(), process)).fetchone()
            if row == (0,):
                return None  # perhaps only as nobody could write
            return Exchanged([], [], row is not None, now)

    def is_held(self) -> bool:
        return sqlite_holders.is_held(self.path)

    def _give_time_back(self, c: Session) -> None:
        """A program outside had the write lock: where nobody could renew a lease for long, none has ended meanwhile.

        Whoever waited for it comes first, and so before anybody judges a lease.
        """
        ticks, boot = self.clock.ticks(), self.clock.boot()
        with suppress(sqlite3.OperationalError):  # the tables are about to be made
            c.execute(GIVE_BACK, (ticks, boot, ticks, boot, ticks, boot))

    def enroll(self, process: ProcessInfo, lease: int) -> None:
        super().enroll(process, lease)
        if process.role == "worker":
            self._connections.make_room(CROWD)

    # Housekeeping.

    def prune(self, retention: Retention, limit: int) -> int:
        self._ballast.keep()
        self._look_at_wal()
        return super().prune(retention, limit)

    def _look_at_wal(self) -> None:
        """As long as somebody reads one snapshot, SQLite cannot begin its write-ahead log anew."""
        try:
            size = os.stat(f"{self.path}-wal").st_size
        except OSError:
            return
        if size > WAL_WARNING and time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + WAL_WARNING_EVERY
            log.warning(
                "the write-ahead log %s-wal has grown to %d MiB. Some program has been reading the database for long "
                "without an end; find it and let it end its transaction.",
                self.path,
                size >> 20,
            )

    # Waiting.

    def watch(self, queues: Selected) -> Watch:
        self._ensure_schema()
        return SQLiteWatch(self._connections)

    def watch_endings(self) -> Watch:
        return self.watch(())

    # The store itself.

    def own_key(self, *, make: bool = True) -> bytes | None:
        if not make:
            return kept_key(self.path, make=False)
        self._ensure_schema()  # which looks at the folder first
        if (key := kept_key(self.path, make=False)) is not None:
            return key
        with self._cursor() as c:
            used = c.execute("select 1 from payload limit 1").fetchone() is not None
        # Whoever made the key since did so before the first job, so that this look finds it.
        if used and (key := kept_key(self.path, make=False)) is not None:
            return key
        if used:
            raise StoreUnsafe(
                f"The database {self.path} holds jobs, and its key {self.path}-key is not there: a new one would make "
                "all of them fail. Put the key back from the backup; or set PACKHORSE_KEYS, if they were signed with "
                "that; or, if the jobs are not wanted, discard them or move the database away."
            )
        return kept_key(self.path)

    def get_ready(self) -> None:
        with self._cursor():
            """A connection is open from now on, and the tables are there."""

    def exists(self) -> bool:
        return self.path.exists()

    def examine(self) -> list[Finding]:
        return examine(self.path)

    def backup(self, target: Path, *, replace: bool, progress: Callable[[int, int], None]) -> list[Path]:
        self._ensure_schema()
        return sqlite_backup.backup(self._connections, target, replace=replace, progress=progress)

    def migrate(self) -> list[str]:
        known = steps("sqlite")

        def write(c: Session) -> list[str]:
            ledger = named(LEDGER, self.prefix)
            c.execute(f"create table if not exists {ledger} ({LEDGER_COLUMNS['sqlite']})")
            done = {number for (number,) in c.execute("select number from packhorse_schema")}
            if (newest := max(done, default=0)) > known[-1].number + 1:
                # One step ahead is a deploy under way, and its schema keeps us working.
                raise SchemaError(
                    f"The database has schema {newest}, but this Packhorse knows {known[-1].number}. Upgrade it."
                )
            missing = [step for step in known if step.number not in done]
            for step in missing:
                for statement in in_parts(prefixed_schema(step.sql, "sqlite", self.prefix)):
                    c.execute(statement)
                c.execute("insert into packhorse_schema values (?, ?)", (step.number, step.name))
            return [step.name for step in missing]

        return self._connections.write(write)

    def schema_version(self) -> int:
        with self._cursor() as c:
            return int(c.execute("select max(number) from packhorse_schema").fetchone()[0])

    def close(self) -> None:
        self.close_room()
        self._connections.close()

    def _cursor(self) -> AbstractContextManager[Session]:
        self._ensure_schema()
        return self._connections.cursor()

    def _write(self, work: Callable[[Session], T], *, patient: bool = False) -> T:
        self._ensure_schema()
        return self._connections.write(work, patient=patient)

    def _stroke(self, point: str, work: Callable[[Session], T], bell: Bell = Bell.NOBODY) -> T:
        if not point:
            return self._write(work)

        def write(c: Session) -> T:
            answer = work(c)
            failpoint(f"{point}.before_commit")
            return answer

        answer = self._write(write)
        failpoint(f"{point}.after_commit")
        return answer

    def lent(self, connection: object, loop: AbstractEventLoop | None = None) -> Lent:
        try:
            self._ensure_schema()
        except StoreUnavailable as error:
            raise SchemaError(
                f"The database {self.path} could not be made ready for jobs while somebody writes to it, perhaps in "
                "the very transaction that is lent. Run `packhorse migrate` before the first one."
            ) from error
        return super().lent(connection, loop)

    def _lent_stroke(
        self, lent: object, loop: AbstractEventLoop | None, work: Callable[[sqlite_lent.LentSession], T], bell: Bell
    ) -> T:
        if loop is not None or is_async(lent):
            raise ConfigError(
                f"The jobs are in the SQLite database {self.path}: lend a connection of Python's sqlite3, which is no "
                "async one, with `with app.on(connection)`."
            )
        path = None if self.hosted else self.path
        if path is not None:
            self._connections.stay()
        return sqlite_lent.stroke(lent, path, self.prefix, work, writes=bell is not Bell.NOBODY)

    def _insert(self, c: Session, jobs: Sequence[NewJob], now: int) -> list[bytes]:
        return sqlite_exchange.insert(c, jobs, now)

    def _finish(self, c: Session, outcomes: Sequence[Outcome], now: int) -> Freed | None:
        return sqlite_exchange.finish(c, outcomes, now, InUse.of(c))[1]

    def _still_ours(self, c: Session, token: Token) -> bool:
        return token in sqlite_exchange.still_ours(c, [token])

    def _ensure_schema(self) -> None:
        """The embedded store needs no command before its first use."""
        if not self._migrated and not self.hosted:
            with first_use:
                if not self._is_current():
                    self.migrate()
                self._migrated = True

    def _is_current(self) -> bool:
        """Looked at without the write lock, which the caller may have who lends a connection."""
        with self._connections.cursor() as c:
            ledger = named(LEDGER, self.prefix)
            if c.execute("select 1 from sqlite_schema where name = ?", (ledger,)).fetchone() is None:
                return False
            [newest] = c.execute("select max(number) from packhorse_schema").fetchone()
            return bool(newest == steps("sqlite")[-1].number)


def _parse(url: str) -> tuple[Path, dict[str, str]]:
    parts = urlsplit(url)
    if parts.netloc:
        raise StoreURLError(
            url, "a SQLite URL has three slashes before a relative path and four before an absolute one"
        )
    path = unquote(parts.path.removeprefix("/"))
    if not path or path == ":memory:":
        raise StoreURLError(url, "it names no file (for jobs in memory use memory://)")
    options = dict(parse_qsl(parts.query))
    if unknown := set(options) - {"synchronous", "prefix"}:
        why = f"there is no option {sorted(unknown)[0]!r}; there are only synchronous=full|normal and prefix"
        raise StoreURLError(url, why)
    if options.get("synchronous", "full") not in ("full", "normal"):
        raise StoreURLError(url, "synchronous must be full or normal")
    return Path(path).absolute(), options
