"""SQLite: one file, nothing to install. Every write is one immediate transaction, one at a time among all processes."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from packhorse.clock import SECOND, Clock, SystemClock, to_datetime
from packhorse.errors import ConfigError, SchemaError, StoreFull, StoreUnsafe, StoreURLError
from packhorse.failpoints import failpoint
from packhorse.ids import to_text
from packhorse.job import JobState, NewJob, StoredJob, Token
from packhorse.limits import Pace
from packhorse.outcome import Outcome, release
from packhorse.queues import Selected
from packhorse.stores import sqlite_admission as admission
from packhorse.stores import sqlite_due, sqlite_exchange, sqlite_jobs, sqlite_schedules, sqlite_signals
from packhorse.stores.contract import (
    ADMIT_AT_ONCE,
    NOBODY,
    RESULT_PRUNED,
    Act,
    Audit,
    Beaten,
    Change,
    DueSchedules,
    Entry,
    Exchanged,
    Finding,
    LimitView,
    Moved,
    Order,
    OrderKind,
    Orphan,
    Pause,
    Paused,
    ProcessInfo,
    ProcessView,
    Promoted,
    QueueCounts,
    RateView,
    Retention,
    Selection,
    Signal,
    Store,
    StoredSchedule,
    Tick,
    Waiter,
    Watch,
    stranger,
)
from packhorse.stores.migrate import steps
from packhorse.stores.sqlite_admission import Runs
from packhorse.stores.sqlite_ballast import Ballast
from packhorse.stores.sqlite_connections import Connections, Transaction, first_use
from packhorse.stores.sqlite_exchange import InUse
from packhorse.stores.sqlite_health import WAL_WARNING, examine
from packhorse.stores.sqlite_key import kept_key
from packhorse.stores.sqlite_watch import SQLiteWatch

log = logging.getLogger("packhorse.store")

OLDEST = (3, 35)
SMALL = 64  # outcomes in an exchange that may grow a little while others write
WAL_WARNING_EVERY = 60.0
HELD = "select process, nonce, id, epoch from job where state = 4 and process = ?"
ALIVE = "select 1 from process where id = ? and boot = ? and lease_until > ?"
PROMOTE = f"""
    update job set {sqlite_due.DUE}, order_key = order_key - {sqlite_due.LED}
    where state = 1 and (order_key, id) <= (?, ?)
"""
ENDED_PAUSES = "select kind, name from pause where until <= ?"
KEPT_BY_RULE = """
    select finished_at + ? as due, finished_at, id from job
    where state = ? and state > 4 and prune_at is null and finished_at <= ? order by finished_at, id limit ?
"""
KEPT_APART = """
    select prune_at, finished_at, id from job
    where state = ? and state > 4 and prune_at <= ? order by prune_at, finished_at, id limit ?
"""
OLD_RESULTS = "select id from ending where result_until <= ? order by result_until, id limit ?"
FORGET_RESULTS = f"update ending set result = null, result_until = null, result_error = ? where id in ({OLD_RESULTS})"
RENEW = "update process set lease_until = ? + lease where id = ? and boot = ? and lease_until > ?"


class SQLiteStore(Store):
    def __init__(self, url: str, clock: Clock | None = None) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigError(f"Python uses SQLite {sqlite3.sqlite_version} here; Packhorse needs 3.35 or later.")
        self.url = url
        self.clock = clock or SystemClock()
        path, options = _parse(url)
        self.path = path
        self._connections = Connections(path, options.get("synchronous", "full"))
        self._ballast = Ballast(path)
        self._admission = admission.Admission()
        self._migrated = False
        self._warn_at = 0.0

    # Hot.

    def insert(self, jobs: Sequence[NewJob]) -> list[bytes]:
        failpoint("insert.before_write")
        with self._transaction() as c:
            ids = sqlite_exchange.insert(c, jobs, self.clock.now())
            failpoint("insert.before_commit")
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
        with self._transaction(patient=len(outcomes) < SMALL) as c:
            now = self.clock.now()
            alive = self._renew(c, process)
            before = c.total_changes
            in_use = InUse.of(c)
            refused, freed = sqlite_exchange.finish(c, outcomes, now, in_use) if outcomes else ([], None)
            for token in started:
                c.execute(sqlite_exchange.STARTED, (now, *token))
            failpoint("exchange.between")
            if self._admission.admit(c, now, ADMIT_AT_ONCE, freed):
                in_use = in_use._replace(permits=True, tickets=in_use.tickets or self._admission.gave_tickets)
            entries: list[list[str]] = []
            runs: Runs = {}
            claims = None
            if alive and limit:
                taken = sqlite_exchange.take(c, process, nonce, queues, limit, starting, run, now, in_use)
                entries, runs = taken
            if not outcomes and not started and not entries and c.total_changes == before:
                c.execute("rollback")  # another worker was first; a renewed lease alone is not worth a commit
                return Exchanged([], [], alive, now)
            if not entries:
                claims = []
            elif limit <= SMALL:  # to read many would hold up others
                claims = sqlite_exchange.claimed(c, process, nonce, entries, runs)
            failpoint("exchange.before_commit")
        failpoint("exchange.after_commit")
        if claims is None:
            with self._cursor() as c:
                claims = sqlite_exchange.claimed(c, process, nonce, entries, runs)
        return Exchanged(claims, refused, alive, now)

    def _nothing_to_do(self, process: bytes, queues: Selected, limit: int) -> Exchanged | None:
        """A look without the write lock; None where there is something to claim."""
        with self._cursor() as c:
            now = self.clock.now()
            closed = sqlite_exchange.paused_queues(c, now)
            if limit and (self._admission.arrived(c, now) or any(sqlite_exchange.open_queues(c, queues, closed))):
                return None
            alive = c.execute(ALIVE, (process, self.clock.boot(), self.clock.ticks())).fetchone() is not None
            return Exchanged([], [], alive, now)

    def _renew(self, c: sqlite3.Connection, process: bytes) -> bool:
        ticks = self.clock.ticks()
        return c.execute(RENEW, (ticks, process, self.clock.boot(), ticks)).rowcount == 1

    def take_token(self, pace: Pace, patience: int) -> int | None:
        with self._transaction() as c:
            return admission.take_token(c, pace, patience, self.clock.now())

    def beat(self, processes: Collection[bytes]) -> Beaten:
        with self._transaction() as c:
            dead = [id for id in processes if not self._renew(c, id)]
            failpoint("beat.before_commit")
        failpoint("beat.after_commit")
        with self._cursor() as c:
            rows = [row for id in processes for row in c.execute(sqlite_exchange.ASKED, (id,))]
        orders = [Order(OrderKind.CANCEL, Token(*token), reason, seal or b"") for reason, seal, *token in rows]
        return Beaten(dead, sorted(orders, key=lambda order: order.token.process))

    # Fenced by the claim token.

    def record(self, token: Token, entries: Sequence[Entry]) -> bool:
        with self._transaction() as c:
            if not sqlite_exchange.still_ours(c, [token]):
                return False
            c.executemany(
                "insert into entry (id, kind, name, data) values (?, ?, ?, ?) "
                "on conflict (id, kind, name) do update set data = excluded.data",
                [(token.id, *entry) for entry in entries],
            )
            failpoint("record.before_commit")
        failpoint("record.after_commit")
        return True

    def now(self) -> int:
        return self.clock.now()

    def held(self, process: bytes) -> list[Token]:
        with self._cursor() as c:
            return [Token(*row) for row in c.execute(f"{HELD} order by nonce, id, epoch", (process,))]

    # Signals.

    def signal(self, name: str, data: bytes, keep: int) -> int:
        with self._transaction() as c:
            woken = sqlite_signals.signal(c, name, data, keep, self.clock.now())
            failpoint("signal.before_commit")
        failpoint("signal.after_commit")
        return woken

    def signals(self, name: str, after: int = 0, limit: int = 100) -> list[Signal]:
        with self._cursor() as c:
            return sqlite_signals.signals(c, name, after, limit)

    def waiters(self, after: Waiter = NOBODY, limit: int = 100) -> list[Waiter]:
        with self._cursor() as c:
            return sqlite_signals.waiters(c, after, limit)

    # Membership.

    def enroll(self, process: ProcessInfo, lease: int) -> None:
        with self._transaction() as c:
            until = self.clock.ticks() + lease
            c.execute(
                "insert or replace into process "
                "(id, role, host, pid, queues, supervisor, started_at, lease, lease_until, boot) "
                "values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*process, self.clock.now(), lease, until, self.clock.boot()),
            )
            failpoint("enroll.before_commit")
        failpoint("enroll.after_commit")

    def leave(self, process: bytes) -> None:
        with self._transaction() as c:
            c.execute("update job set epoch = epoch + 1 where state = 4 and process = ?", (process,))
            held = [Token(*row) for row in c.execute(HELD, (process,))]
            _, freed = sqlite_exchange.finish(c, [release(token) for token in held], self.clock.now(), InUse.of(c))
            admission.call(c, freed or {})  # of those that were asked to end, and of runs; others keep their permits
            c.execute("delete from process where id = ?", (process,))
            failpoint("leave.before_commit")
        failpoint("leave.after_commit")

    # Housekeeping.

    def promote(self, limit: int) -> Promoted:
        # Every number is smaller than every text, so that what is no moment is left where it is.
        nth = "select order_key, id from job where state = 1 and order_key < '' order by order_key, id limit 1 offset ?"
        now = self.clock.now()
        with self._cursor() as c:
            first = c.execute(nth, (0,)).fetchone()
            idle = not (self._admission.arrived(c, now) or c.execute(ENDED_PAUSES, (now,)).fetchone())
            if limit <= 0 or (idle and (first is None or first[0] > now)):
                return Promoted(0, _next_due(c, first, now))
        with self._transaction() as c:
            last = c.execute(nth, (limit - 1,)).fetchone()
            bound = last if last and last[0] <= now else (now + 1, b"")
            jobs = c.execute(PROMOTE, bound).rowcount
            self._end_pauses(c, now)
            jobs = max(jobs, self._admission.admit(c, now, limit))
            next_due = _next_due(c, c.execute(nth, (0,)).fetchone(), now)
            failpoint("promote.before_commit")
        failpoint("promote.after_commit")
        return Promoted(jobs, next_due)

    def _end_pauses(self, c: sqlite3.Connection, now: int) -> None:
        for kind, name in c.execute(ENDED_PAUSES, (now,)).fetchall():
            c.execute("delete from pause where kind = ? and name = ?", (kind, name))
            if kind == Paused.TASK:
                admission.unpark(c, name)

    def adopt(self, adopter: bytes, nonce: int, limit: int, *, dead: Collection[bytes] = ()) -> list[Orphan]:
        owners = "select distinct process from job where state = 4"
        live = "select id from process where boot = ? and lease_until > ?"
        with self._cursor() as c:
            alive = {id for (id,) in c.execute(live, (self.clock.boot(), self.clock.ticks()))} - set(dead)
            known = {id for (id,) in c.execute("select id from process")}
            if known <= alive and {id for (id,) in c.execute(owners)} <= alive:
                return []
        with self._transaction() as c:
            boot, ticks = self.clock.boot(), self.clock.ticks()
            if not self._renew(c, adopter):
                return []
            alive = {id for (id,) in c.execute(live, (boot, ticks))} - set(dead)
            gone = [id for (id,) in c.execute(owners) if id not in alive]
            orphans = [orphan for id in gone for orphan in _orphans(c, id, self.clock.now())]
            orphans = sorted(orphans, key=lambda orphan: sqlite_exchange.comparable([orphan.claim.token.id]))[:limit]
            take = f"update job set process = ?, nonce = ?, epoch = epoch + 1 where {sqlite_exchange.BY_ID}"
            c.executemany(take, [(adopter, nonce, orphan.claim.token.id) for orphan in orphans])
            for (id,) in c.execute("select id from process").fetchall():
                if (
                    id not in alive
                    and not c.execute("select 1 from job where state = 4 and process = ?", (id,)).fetchone()
                ):
                    c.execute("delete from process where id = ?", (id,))
            failpoint("adopt.before_commit")
        failpoint("adopt.after_commit")
        return [_adopted(orphan, adopter, nonce) for orphan in orphans]

    def prune(self, retention: Retention, limit: int) -> int:
        self._ballast.keep()
        self._look_at_wal()
        with self._cursor() as c:
            old_results = c.execute(OLD_RESULTS, (self.clock.now(), 1)).fetchone()
            old = old_results or sqlite_signals.has_old(c, self.clock.now()) or self._prunable(c, retention, 1)
            if not (old or admission.remembers(c)):
                return 0
        with self._transaction() as c:
            ids = self._prunable(c, retention, limit)
            sqlite_exchange.delete(c, ids)
            c.execute("delete from unique_key where lapses_at <= ?", (self.clock.now(),))
            admission.forget_unused(c, self.clock.now())
            sqlite_schedules.forget_ticks(c, self.clock.now())
            results = c.execute(FORGET_RESULTS, (RESULT_PRUNED, self.clock.now(), limit)).rowcount
            signals = sqlite_signals.forget_old(c, self.clock.now(), limit)
            failpoint("prune.before_commit")
        failpoint("prune.after_commit")
        return len(ids) + results + signals

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

    def _prunable(self, c: sqlite3.Connection, retention: Retention, limit: int) -> list[bytes]:
        found: list[tuple[int, int, bytes]] = []
        now = self.clock.now()
        for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
            code = sqlite_exchange.CODE[state]
            found += c.execute(KEPT_APART, (code, now, limit))
            if (kept := retention.of(state)) is not None:
                found += c.execute(KEPT_BY_RULE, (kept, code, now - kept, limit))
        return [id for _, _, id in sorted(found, key=sqlite_exchange.comparable)[:limit]]

    # Schedules.

    def save_schedules(self, source: str, schedules: Sequence[StoredSchedule]) -> list[str]:
        with self._cursor() as c:
            if not sqlite_schedules.differs(c, source, schedules):
                return []
        with self._transaction() as c:
            left_alone = sqlite_schedules.save(c, source, schedules)
            failpoint("schedule.before_commit")
        failpoint("schedule.after_commit")
        return left_alone

    def put_schedule(self, schedule: StoredSchedule, actor: str, reason: str) -> bool:
        with self._transaction() as c:
            written = sqlite_schedules.put(c, schedule)
            if written:
                self._audit(c, self.clock.now(), actor, "schedule", reason)
            failpoint("schedule.before_commit")
        failpoint("schedule.after_commit")
        return written

    def remove_schedule(self, key: str, actor: str, reason: str) -> bool:
        with self._transaction() as c:
            removed = sqlite_schedules.remove(c, key)
            if removed:
                self._audit(c, self.clock.now(), actor, "remove_schedule", reason)
            failpoint("schedule.before_commit")
        failpoint("schedule.after_commit")
        return removed

    def due_schedules(self, limit: int) -> DueSchedules:
        with self._cursor() as c:
            return sqlite_schedules.due(c, limit, self.clock.now())

    def tick(
        self,
        schedule: StoredSchedule,
        jobs: Sequence[tuple[int, NewJob]],
        *,
        handled: int | None,
        next_at: int | None,
        repeats: int | None,
        error: str = "",
    ) -> list[Tick] | None:
        failpoint("tick.before_write")
        with self._transaction() as c:
            after = (handled, next_at, repeats)
            ticked = sqlite_schedules.tick(c, schedule, jobs, after, error, self.clock.now())
            failpoint("tick.before_commit")
        failpoint("tick.after_commit")
        return ticked

    def schedules(self, after: str = "", limit: int = 100) -> list[StoredSchedule]:
        with self._cursor() as c:
            return sqlite_schedules.page(c, after, limit)

    def schedule(self, key: str) -> StoredSchedule | None:
        with self._cursor() as c:
            return sqlite_schedules.one(c, key)

    def ticks(self, key: str, limit: int = 100) -> list[Tick]:
        with self._cursor() as c:
            return sqlite_schedules.ticks(c, key, limit)

    # Operating.

    def move(
        self,
        selection: Selection,
        change: Change,
        actor: str,
        reason: str,
        *,
        after: bytes | None = None,
        limit: int = 1_000,
    ) -> Moved:
        with self._transaction() as c:
            now = self.clock.now()
            dense = sqlite_jobs.is_dense(c, selection)
            rows = c.execute(*sqlite_jobs.select("payload.id, state", selection, after, limit, dense=dense)).fetchall()
            asked = 0
            if change.act is Act.CANCEL:
                running = [id for id, state in rows if state == sqlite_exchange.RUNNING]
                ask = f"update job set asked = ?, asked_seal = ? where {sqlite_exchange.BY_ID}"
                c.executemany(ask, [(reason or "cancelled", change.seal, id) for id in running])
                asked = len(running)
            ids = [id for id, state in rows if state in sqlite_jobs.MOVABLE[change.act]]
            sqlite_jobs.move(c, ids, change, reason, now)
            self._audit(c, now, actor, change.act, reason, len(ids) + asked)
            failpoint("move.before_commit")
        failpoint("move.after_commit")
        return Moved(len(ids), asked, rows[-1][0] if len(rows) == limit else None)

    def reseal(self, id: bytes, payload: bytes, actor: str, reason: str) -> bool:
        with self._transaction() as c:
            changed = c.execute(sqlite_jobs.RESEAL, (payload, id)).rowcount
            if changed:
                self._audit(c, self.clock.now(), actor, "reseal", reason, changed)
            failpoint("move.before_commit")
        failpoint("move.after_commit")
        return changed == 1

    def pause(
        self,
        name: str,
        until: int | None,
        actor: str,
        reason: str,
        *,
        length: int | None = None,
        kind: Paused = Paused.QUEUE,
    ) -> None:
        with self._transaction() as c:
            now = self.clock.now()
            until = now + length if length is not None else until
            columns = "(kind, name, until, reason, actor, paused_at)"
            row = (kind, name, until, reason, actor, now)
            c.execute(f"insert or replace into pause {columns} values (?, ?, ?, ?, ?, ?)", row)
            self._audit(c, now, actor, "pause", reason)
            failpoint("pause.before_commit")
        failpoint("pause.after_commit")

    def resume(self, name: str, actor: str, reason: str, *, kind: Paused = Paused.QUEUE) -> bool:
        with self._transaction() as c:
            was_paused = c.execute("delete from pause where kind = ? and name = ?", (kind, name)).rowcount == 1
            if kind is Paused.TASK:
                admission.unpark(c, name)
            self._audit(c, self.clock.now(), actor, "resume", reason)
            failpoint("pause.before_commit")
        failpoint("pause.after_commit")
        return was_paused

    def set_limit(self, key: str, to: int | None, actor: str, reason: str) -> None:
        with self._transaction() as c:
            admission.set_limit(c, key, to)
            self._audit(c, self.clock.now(), actor, "set_limit", reason)
            failpoint("move.before_commit")
        failpoint("move.after_commit")

    def set_weight(self, share: str, weight: int | None, actor: str, reason: str) -> None:
        with self._transaction() as c:
            if weight is None:
                c.execute("delete from share_weight where share = ?", (share,))
            else:
                c.execute("insert or replace into share_weight (share, weight) values (?, ?)", (share, weight))
            self._audit(c, self.clock.now(), actor, "set_weight", reason)
            failpoint("move.before_commit")
        failpoint("move.after_commit")

    def _audit(self, c: sqlite3.Connection, now: int, actor: str, act: str, reason: str, jobs: int = 0) -> None:
        row = (now, actor, act, reason, jobs)
        c.execute("insert into audit (at, actor, act, reason, jobs) values (?, ?, ?, ?, ?)", row)

    # Looking.

    def jobs(self, selection: Selection, after: bytes | None = None, limit: int = 100) -> list[StoredJob]:
        with self._cursor() as c:
            dense = sqlite_jobs.is_dense(c, selection)
            rows = c.execute(*sqlite_jobs.select(sqlite_jobs.COLUMNS, selection, after, limit, dense=dense))
            return [StoredJob(**sqlite_jobs.narrow(row)) for row in rows]

    def job(self, id: bytes) -> StoredJob | None:
        with self._cursor() as c:
            row = c.execute(f"{sqlite_jobs.WIDE} where payload.id = ?", (id,)).fetchone()
            if row is None:
                return None
            columns = "number, process, started_at, ended_at, failure, spent"
            attempts = c.execute(f"select {columns} from attempt where id = ? order by epoch", (id,)).fetchall()
        return sqlite_jobs.wide(row, tuple(sqlite_jobs.attempt(*attempt) for attempt in attempts))

    def entries(self, id: bytes) -> list[Entry]:
        with self._cursor() as c:
            rows = c.execute("select kind, name, data from entry where id = ? order by kind, name", (id,))
            return [Entry(*row) for row in rows]

    def members(self, flow: bytes, after: int = -1, limit: int = 100) -> list[tuple[int, StoredJob]]:
        with self._cursor() as c:
            rows = c.execute(sqlite_jobs.MEMBERS, (flow, after, limit)).fetchall()
        return [(place, sqlite_jobs.wide(row)) for place, *row in rows]

    def flow_counts(self, flow: bytes) -> dict[JobState, int]:
        count = """
            select state, count(*) from member join payload on payload.id = member.id join job on job.n = payload.n
            where flow = ? and place >= 0 group by state
        """
        with self._cursor() as c:
            return {sqlite_jobs.state_of(state): number for state, number in c.execute(count, (flow,))}

    def queues(self) -> list[QueueCounts]:
        with self._cursor() as c:
            rows = c.execute("select cast(queue as text), state, count(*) from job group by 1, 2").fetchall()
        paused = {pause.name: pause for pause in self.pauses() if pause.kind is Paused.QUEUE}
        counts: dict[str, dict[JobState, int]] = {queue: {} for queue in paused}
        for queue, state, number in rows:
            counts.setdefault(queue, {})[sqlite_jobs.state_of(state)] = number
        return [QueueCounts(queue, counts[queue], paused.get(queue)) for queue in sorted(counts)]

    def pauses(self) -> list[Pause]:
        with self._cursor() as c:
            rows = c.execute(
                "select kind, name, until, reason, actor from pause where until is null or until > ? "
                "order by kind, name",
                (self.clock.now(),),
            ).fetchall()
        return [
            Pause(name, sqlite_jobs.moment(until), reason, actor, Paused(kind))
            for kind, name, until, reason, actor in rows
        ]

    def limits(self, after: str = "", limit: int = 100) -> list[LimitView]:
        with self._cursor() as c:
            return admission.limits(c, after, limit)

    def rates(self, after: str = "", limit: int = 100) -> list[RateView]:
        with self._cursor() as c:
            return admission.rates(c, after, limit, self.clock.now())

    def weights(self) -> dict[str, int]:
        with self._cursor() as c:
            return dict(c.execute("select share, weight from share_weight order by share").fetchall())

    def processes(self) -> list[ProcessView]:
        with self._cursor() as c:
            running = dict(c.execute("select process, count(*) from job where state = 4 group by process").fetchall())
            columns = "id, role, host, pid, queues, started_at, lease_until, boot"
            rows = c.execute(f"select {columns} from process order by id").fetchall()
        ticks, boot = self.clock.ticks(), self.clock.boot()
        views = []
        for id, role, host, pid, queues, started_at, until, its_boot in rows:
            left = (until - ticks) / SECOND if its_boot == boot else 0.0
            views.append(
                ProcessView(to_text(id), role, host, pid, queues, to_datetime(started_at), left, running.get(id, 0))
            )
        return views

    def audit(self, limit: int = 100) -> list[Audit]:
        with self._cursor() as c:
            rows = c.execute("select at, actor, act, reason, jobs from audit order by n desc limit ?", (limit,))
            return [Audit(*row) for row in rows]

    # Waiting.

    def watch(self, queues: Selected) -> Watch:
        self._ensure_schema()
        return SQLiteWatch(self._connections)

    def wait_jobs(self, ids: Collection[bytes], timeout: float) -> set[bytes]:
        if (ended := self._ended(ids)) or timeout <= 0:  # opening a watch takes milliseconds
            return ended
        watch = self.watch(())
        deadline = time.monotonic() + timeout
        try:
            while True:
                ended = self._ended(ids)
                left = deadline - time.monotonic()
                if ended or left <= 0:
                    return ended
                watch.wait(left)
        finally:
            watch.close()

    def _ended(self, ids: Collection[bytes]) -> set[bytes]:
        unfinished = f"select state <= 4 from job where {sqlite_exchange.BY_ID}"
        with self._cursor() as c:
            return {id for id in ids if not any(flag for (flag,) in c.execute(unfinished, (id,)))}

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

    def exists(self) -> bool:
        return self.path.exists()

    def examine(self) -> list[Finding]:
        return examine(self.path)

    def migrate(self) -> list[str]:
        known = steps("sqlite")
        with self._connections.transaction() as c:
            c.execute("create table if not exists packhorse_schema (number integer primary key, name text not null)")
            done = {number for (number,) in c.execute("select number from packhorse_schema")}
            if (newest := max(done, default=0)) > known[-1].number + 1:
                # One step ahead is a deploy under way, and its schema keeps us working.
                raise SchemaError(
                    f"The database has schema {newest}, but this Packhorse knows {known[-1].number}. Upgrade it."
                )
            missing = [step for step in known if step.number not in done]
            for step in missing:
                for statement in _statements(step.sql):
                    c.execute(statement)
                c.execute("insert into packhorse_schema values (?, ?)", (step.number, step.name))
        return [step.name for step in missing]

    def schema_version(self) -> int:
        with self._cursor() as c:
            return int(c.execute("select max(number) from packhorse_schema").fetchone()[0])

    def close(self) -> None:
        self._connections.close()

    def _cursor(self) -> AbstractContextManager[sqlite3.Connection]:
        self._ensure_schema()
        return self._connections.cursor()

    def _transaction(self, *, patient: bool = False) -> Transaction:
        self._ensure_schema()
        return self._connections.transaction(patient=patient)

    def _ensure_schema(self) -> None:
        """The embedded store needs no command before its first use."""
        if not self._migrated:
            with first_use:
                self.migrate()
                self._migrated = True


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
    if unknown := set(options) - {"synchronous"}:
        raise StoreURLError(url, f"there is no option {sorted(unknown)[0]!r}; there is only synchronous=full|normal")
    if options.get("synchronous", "full") not in ("full", "normal"):
        raise StoreURLError(url, "synchronous must be full or normal")
    return Path(path).absolute(), options


def _statements(script: str) -> Iterable[str]:
    """The statements of a schema file, so that they can share one transaction (executescript would commit)."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _orphans(c: sqlite3.Connection, owner: bytes, now: int) -> list[Orphan]:
    columns = "id, role, host, pid, queues, supervisor"
    row = c.execute(f"select {columns} from process where id = ?", (owner,)).fetchone()
    info = ProcessInfo(*row) if row else stranger(owner if type(owner) is bytes else b"")
    rows = c.execute(
        "select" + sqlite_exchange.CLAIM_COLUMNS.format(index="") + "where state = 4 and process = ?", (owner,)
    )
    claims = [sqlite_exchange.as_claim(claim) for claim in rows]
    began = dict(c.execute("select id, started_at from job where state = 4 and process = ?", (owner,)).fetchall())
    return [Orphan(claim, info, _ago(began[claim.token.id], now)) for claim in claims]


def _ago(moment: int | None, now: int) -> int | None:
    return now - moment if type(moment) is int else None


def _adopted(orphan: Orphan, adopter: bytes, nonce: int) -> Orphan:
    token = orphan.claim.token
    mine = Token(adopter, nonce, token.id, token.epoch + 1)
    return orphan._replace(claim=orphan.claim._replace(token=mine))


def _next_due(c: sqlite3.Connection, first: tuple[int, bytes] | None, now: int) -> int | None:
    """When the first scheduled job is due, or a rate calls who waits for it."""
    (calls,) = c.execute("select min(wake_at) from rate where wake_at < ?", (admission.NOBODY_KNOWS,)).fetchone()
    moments = [moment for moment in (calls, first and first[0]) if moment is not None]
    return max(0, min(moments) - now) if moments else None
