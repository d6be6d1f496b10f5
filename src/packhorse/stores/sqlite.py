"""SQLite: one file, nothing to install.

Every write is one immediate transaction under the lock of `connections.py`. Statements move whole batches, because each
one lets go of the interpreter lock and may wait to get it back while the write lock is held.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from packhorse.clock import SECOND, Clock, SystemClock, to_datetime
from packhorse.errors import SchemaError, StoreURLError
from packhorse.failpoints import failpoint
from packhorse.ids import to_text
from packhorse.job import Attempt, Claim, Failure, Job, JobState, NewJob, Token
from packhorse.outcome import Outcome
from packhorse.queues import Selected
from packhorse.stores.connections import Connections
from packhorse.stores.contract import (
    Act,
    Audit,
    Beaten,
    Change,
    Entry,
    Exchanged,
    Moved,
    Order,
    OrderKind,
    Orphan,
    Pause,
    ProcessInfo,
    ProcessView,
    Promoted,
    QueueCounts,
    Retention,
    Selection,
    Store,
    Watch,
    stranger,
)
from packhorse.stores.migrate import steps
from packhorse.stores.sqlite_watch import SQLiteWatch

log = logging.getLogger("packhorse.store")

STATES = list(JobState)
CODE = {state: number for number, state in enumerate(STATES, 1)}
SCHEDULED, WAITING, READY, RUNNING, SUCCEEDED, FAILED, CANCELLED = range(1, 8)
WAL_WARNING = 256 << 20
WAL_WARNING_EVERY = 60.0
LAST_KEY = (1_000, 0, b"")  # behind every job of a queue
UNION_TERMS = 400  # SQLite takes at most 500 in one statement

INSERT_JOB = (
    "insert into job (id, state, queue, rank, order_key, run_at, expires_at, share) values {values} "
    "on conflict (id) do nothing"
)
INSERT_PAYLOAD = "insert into payload (id, task, body, created_at, tags) values {values} on conflict (id) do nothing"
INSERT_TAG = "insert into tag (name, id) select ?, id from payload where id = ? and tags = ? on conflict do nothing"
# The text must begin with its verb: for `with … update` Python's sqlite3 counts no rows.
FINISH = """
    update job set
        state       = ended.state,
        attempts    = attempts + ended.spent,
        losses      = losses + ended.lost,
        order_key   = coalesce(ended.order_key, job.order_key),
        run_at      = coalesce(ended.run_at, job.run_at),
        claimed_at  = null,
        started_at  = ? - ended.duration,
        finished_at = case when ended.state > 4 then ? end,
        asked       = null
    from (
        select column1 as process, column2 as nonce, column3 as id, column4 as epoch, column5 as state,
               column6 as spent, column7 as lost, column8 as order_key, column9 as run_at, column10 as duration
        from (values {values})
    ) as ended
    where job.id = ended.id and job.state = 4
      and job.process = ended.process and job.nonce = ended.nonce and job.epoch = ended.epoch
"""
STILL_OURS = """
    with token (process, nonce, id, epoch) as (values {values})
    select job.process, job.nonce, job.id, job.epoch from token join job on job.id = token.id
    where job.state = 4 and job.process = token.process and job.nonce = token.nonce and job.epoch = token.epoch
"""
INSERT_ENDING = "insert into ending (id, result, result_error, failure, reason, spent) values {values}"
INSERT_ATTEMPT = """
    insert into attempt (id, epoch, number, process, started_at, ended_at, failure, spent)
    select id, epoch, attempts + 1 - ?, process, ?, ?, ?, ? from job where id = ?
"""
STARTED = """
    update job set started_at = ?
    where state = 4 and process = ? and nonce = ? and id = ? and epoch = ? and started_at is null
"""
NEXT_QUEUE = """
    select queue from job indexed by job_to_claim where state = 3 and queue >= ? order by queue limit 1
"""
READY_OF_QUEUE = """
    select rank, order_key, id from job indexed by job_to_claim where state = 3 and queue = ?
"""
CLAIM = """
    update job indexed by job_to_claim set
        state = 4, epoch = epoch + 1, process = ?, nonce = ?, claimed_at = ?,
        started_at = case when (rank, order_key, id) <= (?, ?, ?) then ? end
    where state = 3 and queue = ? and (rank, order_key, id) <= (?, ?, ?)
"""
CLAIM_COLUMNS = """
    job.process, job.nonce, job.id, job.epoch, task, body, queue, rank, attempts, losses, created_at, expires_at
    from job {index} join payload on payload.id = job.id
"""
CLAIMED = (
    "select"
    + CLAIM_COLUMNS.format(index="indexed by job_held")
    + ("where state = 4 and process = ? and nonce = ? order by rank, order_key, job.id")
)
PUT_BACK = """
    update job set state = 3, epoch = epoch + 1, claimed_at = null, started_at = null, asked = null
    where state = 4 and process = ?
"""
ALIVE = "select 1 from process where id = ? and boot = ? and lease_until > ?"
RENEW = "update process set lease_until = ? + lease where id = ? and boot = ? and lease_until > ?"
NARROW = """
    job.id, task, state, queue, rank, attempts, losses, created_at, run_at, expires_at, claimed_at, started_at,
    finished_at, process, share, tags, reason, failure, result_error
"""
VIEW = "from job join payload on payload.id = job.id left join ending on ending.id = job.id"
WIDE_TABLES = ("payload", "ending", "attempt", "tag", "entry")


class SQLiteStore(Store):
    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self.clock = clock or SystemClock()
        path, options = _parse(url)
        self.path = path
        self._connections = Connections(path, options.get("synchronous", "full"))
        self._migrating = threading.Lock()
        self._migrated = False
        self._warn_at = 0.0

    # Hot.

    def insert(self, jobs: Sequence[NewJob]) -> list[bytes]:
        self._ensure_schema()
        failpoint("insert.before_write")
        with self._connections.transaction() as c:
            now = self.clock.now()
            # An insert may be repeated, in part too: what is there already stays as it is.
            _batched(c, INSERT_JOB, [_narrow_row(job, now) for job in jobs])
            _batched(c, INSERT_PAYLOAD, [_wide_row(job, now) for job in jobs])
            if tags := [(name, job.id, json.dumps(job.tags)) for job in jobs for name in job.tags]:
                c.executemany(INSERT_TAG, tags)
            failpoint("insert.before_commit")
        failpoint("insert.after_commit")
        return [job.id for job in jobs]

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
    ) -> Exchanged:
        self._ensure_schema()
        if not outcomes and not started and (answer := self._nothing_to_do(process, queues, limit)):
            return answer
        failpoint("exchange.before_write")
        with self._connections.transaction() as c:
            now = self.clock.now()
            alive = self._renew(c, process)
            refused = self._finish(c, outcomes, now) if outcomes else []
            for token in started:
                c.execute(STARTED, (now, *token))
            failpoint("exchange.between")
            entries = self._take(c, process, nonce, queues, limit, starting, now) if alive and limit else []
            if not outcomes and not started and not entries:
                c.execute("rollback")  # another worker was first; a renewed lease alone is not worth a commit
                return Exchanged([], [], alive, now)
            failpoint("exchange.before_commit")
        failpoint("exchange.after_commit")
        claims = self._claimed(process, nonce, entries) if entries else []
        return Exchanged(claims, refused, alive, now)

    def _nothing_to_do(self, process: bytes, queues: Selected, limit: int) -> Exchanged | None:
        """A look without the write lock; None where there is something to claim."""
        with self._connections.cursor() as c:
            now = self.clock.now()
            if limit and any(self._open_queues(c, queues, now)):
                return None
            alive = c.execute(ALIVE, (process, self.clock.boot(), self.clock.ticks())).fetchone() is not None
            return Exchanged([], [], alive, now)

    def _renew(self, c: sqlite3.Connection, process: bytes) -> bool:
        ticks = self.clock.ticks()
        return c.execute(RENEW, (ticks, process, self.clock.boot(), ticks)).rowcount == 1

    def _finish(self, c: sqlite3.Connection, outcomes: Sequence[Outcome], now: int) -> list[Token]:
        c.execute("savepoint finishing")
        refused: list[Token] = []
        if _batched(c, FINISH, [_finish_row(outcome, now) for outcome in outcomes], now, now) < len(outcomes):
            # Some token is old, or came twice. Find out which ones stand, and write those alone.
            c.execute("rollback to finishing")
            outcomes, refused = _fenced(c, outcomes)
            _batched(c, FINISH, [_finish_row(outcome, now) for outcome in outcomes], now, now)
        c.execute("release finishing")
        _batched(c, INSERT_ENDING, [_ending_row(outcome) for outcome in outcomes if _has_ending(outcome)])
        for outcome in outcomes:
            if outcome.failure is not None and not outcome.state.finished:
                began = None if outcome.duration is None else now - outcome.duration
                row = (outcome.spent, began, now, outcome.failure, outcome.spent, outcome.token.id)
                c.execute(INSERT_ATTEMPT, row)
        return refused

    def _take(
        self, c: sqlite3.Connection, process: bytes, nonce: int, queues: Selected, limit: int, starting: int, now: int
    ) -> list[list[str]]:
        """Claim the first `limit` ready jobs; the queues that served, one list for each entry."""
        served = []
        for names in self._open_queues(c, queues, now):
            last = _nth_ready(c, names, limit)
            begins = _nth_ready(c, names, starting) if starting else (-1_000, 0, b"")
            taken = sum(c.execute(CLAIM, (process, nonce, now, *begins, now, queue, *last)).rowcount for queue in names)
            served.append(names)
            limit -= taken
            starting = max(0, starting - taken)
            if limit <= 0:
                break
        return served

    def _open_queues(self, c: sqlite3.Connection, queues: Selected, now: int) -> Iterable[list[str]]:
        """For each entry, the queues that have ready jobs, are not paused and not served by an earlier entry."""
        paused = {name for (name,) in c.execute("select queue from pause where until is null or until > ?", (now,))}
        seen: set[str] = set()
        for entry in queues:
            names = []
            name = entry.text
            while (row := c.execute(NEXT_QUEUE, (name,)).fetchone()) and entry.matches(row[0]):
                if row[0] not in seen:
                    seen.add(row[0])
                    if row[0] not in paused:
                        names.append(row[0])
                name = row[0] + "\0"  # the smallest text behind it
            if names:
                yield names

    def _claimed(self, process: bytes, nonce: int, entries: list[list[str]]) -> list[Claim]:
        with self._connections.cursor() as c:
            claims = [_as_claim(row) for row in c.execute(CLAIMED, (process, nonce))]
        if len(entries) > 1:
            place = {queue: number for number, names in enumerate(entries) for queue in names}
            claims.sort(key=lambda claim: place.get(claim.queue, 0))
        return claims

    def beat(self, processes: Collection[bytes]) -> Beaten:
        self._ensure_schema()
        with self._connections.transaction() as c:
            dead = [id for id in processes if not self._renew(c, id)]
            failpoint("beat.before_commit")
        failpoint("beat.after_commit")
        asked = "select asked, process, nonce, id, epoch from job where state = 4 and process = ? and asked is not null"
        with self._connections.cursor() as c:
            rows = [row for id in processes for row in c.execute(asked, (id,))]
        orders = [Order(OrderKind.CANCEL, Token(*token), reason) for reason, *token in rows]
        return Beaten(dead, sorted(orders, key=lambda order: order.token))

    # Fenced by the claim token.

    def record(self, token: Token, entries: Sequence[Entry]) -> bool:
        self._ensure_schema()
        with self._connections.transaction() as c:
            if not _ours(c, [token]):
                return False
            c.executemany(
                "insert into entry (id, kind, name, data) values (?, ?, ?, ?) "
                "on conflict (id, kind, name) do update set data = excluded.data",
                [(token.id, *entry) for entry in entries],
            )
            failpoint("record.before_commit")
        failpoint("record.after_commit")
        return True

    def held(self, process: bytes) -> list[Token]:
        self._ensure_schema()
        with self._connections.cursor() as c:
            rows = c.execute("select process, nonce, id, epoch from job where state = 4 and process = ?", (process,))
            return sorted(Token(*row) for row in rows)

    # Membership.

    def enroll(self, process: ProcessInfo, lease: int) -> None:
        self._ensure_schema()
        with self._connections.transaction() as c:
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
        self._ensure_schema()
        with self._connections.transaction() as c:
            c.execute(PUT_BACK, (process,))
            c.execute("delete from process where id = ?", (process,))
            failpoint("leave.before_commit")
        failpoint("leave.after_commit")

    # Housekeeping.

    def promote(self, limit: int) -> Promoted:
        self._ensure_schema()
        nth = "select order_key, id from job where state = 1 order by order_key, id limit 1 offset ?"
        now = self.clock.now()
        with self._connections.cursor() as c:
            first = c.execute(nth, (0,)).fetchone()
        if first is None or first[0] > now:
            return Promoted(0, None if first is None else first[0] - now)
        with self._connections.transaction() as c:
            last = c.execute(nth, (limit - 1,)).fetchone()
            bound = min(last, (now + 1, b"")) if last else (now + 1, b"")
            jobs = c.execute("update job set state = 3 where state = 1 and (order_key, id) <= (?, ?)", bound).rowcount
            following = c.execute(nth, (0,)).fetchone()
            failpoint("promote.before_commit")
        failpoint("promote.after_commit")
        return Promoted(jobs, None if following is None else max(0, following[0] - now))

    def adopt(self, adopter: bytes, nonce: int, limit: int, *, dead: Collection[bytes] = ()) -> list[Orphan]:
        self._ensure_schema()
        owners = "select distinct process from job where state = 4"
        live = "select id from process where boot = ? and lease_until > ?"
        with self._connections.cursor() as c:
            alive = {id for (id,) in c.execute(live, (self.clock.boot(), self.clock.ticks()))} - set(dead)
            known = {id for (id,) in c.execute("select id from process")}
            if known <= alive and {id for (id,) in c.execute(owners)} <= alive:
                return []
        with self._connections.transaction() as c:
            boot, ticks = self.clock.boot(), self.clock.ticks()
            if not self._renew(c, adopter):
                return []
            alive = {id for (id,) in c.execute(live, (boot, ticks))} - set(dead)
            gone = [id for (id,) in c.execute(owners) if id not in alive]
            orphans = [orphan for id in gone for orphan in self._orphans(c, id)]
            orphans = sorted(orphans, key=lambda orphan: orphan.claim.token.id)[:limit]
            take = "update job set process = ?, nonce = ?, epoch = epoch + 1 where id = ?"
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

    def _orphans(self, c: sqlite3.Connection, owner: bytes) -> list[Orphan]:
        columns = "id, role, host, pid, queues, supervisor"
        row = c.execute(f"select {columns} from process where id = ?", (owner,)).fetchone()
        info = ProcessInfo(*row) if row else stranger(owner)
        rows = c.execute("select" + CLAIM_COLUMNS.format(index="") + "where state = 4 and process = ?", (owner,))
        return [Orphan(_as_claim(claim), info) for claim in rows]

    def prune(self, retention: Retention, limit: int) -> int:
        self._ensure_schema()
        self._look_at_wal()
        with self._connections.cursor() as c:
            if not self._prunable(c, retention, 1):
                return 0
        with self._connections.transaction() as c:
            ids = self._prunable(c, retention, limit)
            _delete(c, ids)
            failpoint("prune.before_commit")
        failpoint("prune.after_commit")
        return len(ids)

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
        found: list[tuple[int, bytes]] = []
        now = self.clock.now()
        for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
            if (kept := retention.of(state)) is not None:
                found += c.execute(
                    "select finished_at, id from job where state = ? and finished_at <= ? "
                    "order by finished_at, id limit ?",
                    (CODE[state], now - kept, limit),
                )
        return [id for _, id in sorted(found)[:limit]]

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
        self._ensure_schema()
        with self._connections.transaction() as c:
            now = self.clock.now()
            where, parameters = _where(selection, after)
            rows = c.execute(
                f"select job.id, state {VIEW} {where} order by job.id limit ?", (*parameters, limit)
            ).fetchall()
            asked = 0
            if change.act is Act.CANCEL:
                running = [(reason or "cancelled", id) for id, state in rows if state == RUNNING]
                c.executemany("update job set asked = ? where id = ?", running)
                asked = len(running)
            ids = [id for id, state in rows if state in _MOVABLE[change.act]]
            _move(c, ids, change, reason, now)
            audit = (now, actor, change.act, reason, len(ids) + asked)
            c.execute("insert into audit (at, actor, act, reason, jobs) values (?, ?, ?, ?, ?)", audit)
            failpoint("move.before_commit")
        failpoint("move.after_commit")
        return Moved(len(ids), asked, rows[-1][0] if len(rows) == limit else None)

    def pause(self, queue: str, until: int | None, actor: str, reason: str) -> None:
        self._ensure_schema()
        with self._connections.transaction() as c:
            now = self.clock.now()
            c.execute("insert or replace into pause values (?, ?, ?, ?, ?)", (queue, until, reason, actor, now))
            c.execute(
                "insert into audit (at, actor, act, reason, jobs) values (?, ?, 'pause', ?, 0)", (now, actor, reason)
            )
            failpoint("pause.before_commit")
        failpoint("pause.after_commit")

    def resume(self, queue: str, actor: str, reason: str) -> bool:
        self._ensure_schema()
        with self._connections.transaction() as c:
            was_paused = c.execute("delete from pause where queue = ?", (queue,)).rowcount == 1
            audit = (self.clock.now(), actor, reason)
            c.execute("insert into audit (at, actor, act, reason, jobs) values (?, ?, 'resume', ?, 0)", audit)
            failpoint("pause.before_commit")
        failpoint("pause.after_commit")
        return was_paused

    # Looking.

    def jobs(self, selection: Selection, after: bytes | None = None, limit: int = 100) -> list[Job]:
        self._ensure_schema()
        where, parameters = _where(selection, after)
        with self._connections.cursor() as c:
            rows = c.execute(f"select {NARROW} {VIEW} {where} order by job.id limit ?", (*parameters, limit))
            return [Job(**_narrow(row)) for row in rows]

    def job(self, id: bytes) -> Job | None:
        self._ensure_schema()
        with self._connections.cursor() as c:
            row = c.execute(f"select {NARROW}, body, result {VIEW} where job.id = ?", (id,)).fetchone()
            if row is None:
                return None
            columns = "number, process, started_at, ended_at, failure, spent"
            attempts = c.execute(f"select {columns} from attempt where id = ? order by epoch", (id,)).fetchall()
        failures = tuple(_attempt(*attempt) for attempt in attempts)
        return Job(**_narrow(row[:-2]), payload=row[-2], result=row[-1], failures=failures)

    def entries(self, id: bytes) -> list[Entry]:
        self._ensure_schema()
        with self._connections.cursor() as c:
            rows = c.execute("select kind, name, data from entry where id = ? order by kind, name", (id,))
            return [Entry(*row) for row in rows]

    def queues(self) -> list[QueueCounts]:
        self._ensure_schema()
        with self._connections.cursor() as c:
            rows = c.execute("select queue, state, count(*) from job group by queue, state").fetchall()
            pauses = c.execute(
                "select queue, until, reason, actor from pause where until is null or until > ?", (self.clock.now(),)
            ).fetchall()
        paused = {queue: Pause(queue, _moment(until), reason, actor) for queue, until, reason, actor in pauses}
        counts: dict[str, dict[JobState, int]] = {queue: {} for queue in paused}
        for queue, state, number in rows:
            counts.setdefault(queue, {})[STATES[state - 1]] = number
        return [QueueCounts(queue, counts[queue], paused.get(queue)) for queue in sorted(counts)]

    def processes(self) -> list[ProcessView]:
        self._ensure_schema()
        with self._connections.cursor() as c:
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
        self._ensure_schema()
        with self._connections.cursor() as c:
            rows = c.execute("select at, actor, act, reason, jobs from audit order by n desc limit ?", (limit,))
            return [Audit(*row) for row in rows]

    # Waiting.

    def watch(self, queues: Selected) -> Watch:
        self._ensure_schema()
        return SQLiteWatch(self._connections)

    def wait_jobs(self, ids: Collection[bytes], timeout: float) -> set[bytes]:
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
        unfinished = "select state <= 4 from job where id = ?"
        with self._connections.cursor() as c:
            return {id for id in ids if not any(flag for (flag,) in c.execute(unfinished, (id,)))}

    # The store itself.

    def migrate(self) -> list[str]:
        known = steps("sqlite")
        with self._connections.transaction() as c:
            c.execute("create table if not exists packhorse_schema (number integer primary key, name text not null)")
            done = {number for (number,) in c.execute("select number from packhorse_schema")}
            if unknown := done - {step.number for step in known}:
                raise SchemaError(
                    f"The database has schema {max(unknown)}, but this Packhorse knows {known[-1].number}. Upgrade it."
                )
            missing = [step for step in known if step.number not in done]
            for step in missing:
                for statement in _statements(step.sql):
                    c.execute(statement)
                c.execute("insert into packhorse_schema values (?, ?)", (step.number, step.name))
        return [step.name for step in missing]

    def schema_version(self) -> int:
        self._ensure_schema()
        with self._connections.cursor() as c:
            return int(c.execute("select max(number) from packhorse_schema").fetchone()[0])

    def close(self) -> None:
        self._connections.close()

    def _ensure_schema(self) -> None:
        """The embedded store needs no command before its first use."""
        if not self._migrated:
            with self._migrating:
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


_SIZES = (256, 64, 16, 4, 1)


def _batched(c: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]], *first: Any) -> int:
    """Run a statement over rows in few large steps, so that few texts are ever prepared; rows changed in all.

    `first` are the parameters before the rows.
    """
    changed = start = 0
    for size in _SIZES:
        while len(rows) - start >= size:
            text = _prepared(statement, size, len(rows[0]))
            changed += c.execute(text, [*first, *chain.from_iterable(rows[start : start + size])]).rowcount
            start += size
    return changed


_texts: dict[tuple[str, int, int], str] = {}


def _prepared(statement: str, size: int, width: int) -> str:
    key = (statement, size, width)
    if key not in _texts:
        row = "(" + ", ".join("?" * width) + ")"
        _texts[key] = statement.format(values=", ".join([row] * size))
    return _texts[key]


def _narrow_row(job: NewJob, now: int) -> tuple[Any, ...]:
    run_at = now + job.delay if job.delay is not None else job.run_at
    expires_at = now + job.lifetime if job.lifetime is not None else job.expires_at
    if run_at is None or run_at <= now:
        return (job.id, READY, job.queue, -job.priority, now, run_at, expires_at, job.share)
    return (job.id, SCHEDULED, job.queue, -job.priority, run_at, run_at, expires_at, job.share)


def _wide_row(job: NewJob, now: int) -> tuple[Any, ...]:
    return (job.id, job.task, job.payload, now, json.dumps(job.tags) if job.tags else None)


def _finish_row(outcome: Outcome, now: int) -> tuple[Any, ...]:
    order_key = run_at = duration = None
    state = CODE[outcome.state]
    if state == SCHEDULED:
        order_key = run_at = now + outcome.delay
        if outcome.delay <= 0:
            state = READY
    elif state > RUNNING:
        duration = outcome.duration
    return (*outcome.token, state, outcome.spent, outcome.lost, order_key, run_at, duration)


def _fenced(c: sqlite3.Connection, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Token]]:
    ours = _ours(c, [outcome.token for outcome in outcomes])
    accepted, refused = [], []
    for outcome in outcomes:
        if outcome.token in ours:
            ours.remove(outcome.token)
            accepted.append(outcome)
        else:
            refused.append(outcome.token)
    return accepted, refused


def _ours(c: sqlite3.Connection, tokens: Sequence[Token]) -> set[Token]:
    """The tokens under which their job still runs."""
    found: set[Token] = set()
    for start in range(0, len(tokens), 256):
        part = tokens[start : start + 256]
        text = _prepared(STILL_OURS, len(part), 4)
        found |= {Token(*row) for row in c.execute(text, [value for token in part for value in token])}
    return found


def _has_ending(outcome: Outcome) -> bool:
    return outcome.state.finished and (
        outcome.result is not None
        or outcome.failure is not None
        or outcome.reason is not None
        or outcome.result_error is not None
    )


def _ending_row(outcome: Outcome) -> tuple[Any, ...]:
    token = outcome.token
    return (token.id, outcome.result, outcome.result_error, outcome.failure, outcome.reason, outcome.spent)


def _nth_ready(c: sqlite3.Connection, names: Sequence[str], n: int) -> tuple[int, int, bytes]:
    """The key of the n-th ready job of these queues taken together, or one behind them all."""
    if len(names) <= UNION_TERMS:
        merged = " union all ".join([READY_OF_QUEUE] * len(names))
        row = c.execute(f"{merged} order by 1, 2, 3 limit 1 offset ?", (*names, n - 1)).fetchone()
        return row or LAST_KEY
    first: list[tuple[int, int, bytes]] = []
    for start in range(0, len(names), UNION_TERMS):
        part = names[start : start + UNION_TERMS]
        merged = " union all ".join([READY_OF_QUEUE] * len(part))
        first += c.execute(f"{merged} order by 1, 2, 3 limit ?", (*part, n))
    return sorted(first)[n - 1] if n <= len(first) else LAST_KEY


def _as_claim(row: Sequence[Any]) -> Claim:
    process, nonce, id, epoch, task, body, queue, rank, attempts, losses, created_at, expires_at = row
    token = Token(process, nonce, id, epoch)
    return Claim(token, task, body, queue, -rank, attempts, losses, created_at, expires_at)


def _adopted(orphan: Orphan, adopter: bytes, nonce: int) -> Orphan:
    token = orphan.claim.token
    mine = Token(adopter, nonce, token.id, token.epoch + 1)
    return orphan._replace(claim=orphan.claim._replace(token=mine))


_MOVABLE = {
    Act.CANCEL: {SCHEDULED, WAITING, READY},
    Act.RETRY: {FAILED, CANCELLED},
    Act.RUN_NOW: {SCHEDULED},
    Act.DISCARD: {SCHEDULED, WAITING, READY, SUCCEEDED, FAILED, CANCELLED},
    Act.CHANGE: {SCHEDULED, WAITING, READY},
}


def _move(c: sqlite3.Connection, ids: list[bytes], change: Change, reason: str, now: int) -> None:
    match change.act:
        case Act.CANCEL:
            c.executemany(
                f"update job set state = {CANCELLED}, finished_at = ?, process = null, epoch = epoch + 1 where id = ?",
                [(now, id) for id in ids],
            )
            c.executemany(
                "insert into ending (id, reason, spent) values (?, ?, 0)", [(id, reason or "cancelled") for id in ids]
            )
        case Act.RETRY:
            one = [(id,) for id in ids]
            c.executemany(
                "insert into attempt (id, epoch, number, process, started_at, ended_at, failure, spent) "
                "select job.id, epoch, attempts + 1 - spent, process, started_at, finished_at, failure, spent "
                "from job join ending on ending.id = job.id where job.id = ? and failure is not null",
                one,
            )
            c.executemany("delete from ending where id = ?", one)
            c.executemany(
                "update job set state = 3, attempts = 0, losses = 0, order_key = ?, epoch = epoch + 1, "
                "started_at = null, finished_at = null, expires_at = null where id = ?",
                [(now, id) for id in ids],
            )
        case Act.RUN_NOW:
            c.executemany(
                "update job set state = 3, order_key = ?, epoch = epoch + 1 where id = ?", [(now, id) for id in ids]
            )
        case Act.DISCARD:
            _delete(c, ids)
        case Act.CHANGE:
            rank = None if change.priority is None else -change.priority
            c.executemany(
                "update job set queue = coalesce(?, queue), rank = coalesce(?, rank), epoch = epoch + 1 where id = ?",
                [(change.queue, rank, id) for id in ids],
            )


def _delete(c: sqlite3.Connection, ids: Sequence[bytes]) -> None:
    rows = [(id,) for id in ids]
    for table in ("job", *WIDE_TABLES):
        _batched(c, f"delete from {table} where id in (values {{values}})", rows)


def _where(selection: Selection, after: bytes | None) -> tuple[str, list[Any]]:
    conditions = ["true"]
    parameters: list[Any] = []
    states = None if selection.states is None else [CODE[state] for state in selection.states]
    for column, allowed in (
        ("job.id", selection.ids),
        ("state", states),
        ("queue", selection.queues),
        ("task", selection.tasks),
    ):
        if allowed is not None:
            conditions.append(f"{column} in ({', '.join('?' * len(allowed))})")
            parameters += allowed
    if selection.tags is not None:
        conditions.append(f"job.id in (select id from tag where name in ({', '.join('?' * len(selection.tags))}))")
        parameters += selection.tags
    if after is not None:
        conditions.append("job.id > ?")
        parameters.append(after)
    return "where " + " and ".join(conditions), parameters


def _narrow(row: Sequence[Any]) -> dict[str, Any]:
    (id, task, state, queue, rank, attempts, losses, created_at, run_at, expires_at, claimed_at, started_at) = row[:12]
    finished_at, process, share, tags, reason, failure, result_error = row[12:]
    owned = process is not None and state >= RUNNING
    return {
        "id": to_text(id),
        "task": task,
        "state": STATES[state - 1],
        "queue": queue,
        "priority": -rank,
        "attempts": attempts,
        "losses": losses,
        "created_at": to_datetime(created_at),
        "run_at": _moment(run_at),
        "expires_at": _moment(expires_at),
        "claimed_at": _moment(claimed_at),
        "started_at": _moment(started_at),
        "finished_at": _moment(finished_at),
        "process": to_text(process) if owned else None,
        "share": share,
        "tags": tuple(json.loads(tags)) if tags else (),
        "reason": reason,
        "failure": Failure.decode(failure) if failure is not None else None,
        "result_error": result_error,
    }


def _attempt(number: int, process: bytes, began: int | None, ended: int, failure: bytes, spent: int) -> Attempt:
    return Attempt(number, to_text(process), _moment(began), to_datetime(ended), Failure.decode(failure), bool(spent))


def _moment(microseconds: int | None) -> Any:
    return to_datetime(microseconds) if microseconds is not None else None


def _statements(script: str) -> Iterable[str]:
    """The statements of a schema file, so that they can share one transaction (executescript would commit)."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
