"""What the SQL stores do alike: each stroke is a function of an open transaction, which the store may run again.

What is left to each of them: how it reaches its database, the exchange, and what only it knows of itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from enum import IntFlag
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from packhorse.clock import SECOND, Clock, to_datetime
from packhorse.failpoints import failpoint
from packhorse.ids import to_text
from packhorse.job import JobState, NewJob, StoredJob, Token
from packhorse.limits import Pace
from packhorse.outcome import Outcome, release
from packhorse.queues import LOCAL, local_owner
from packhorse.stores import sql_admission as admission
from packhorse.stores import sql_exchange, sql_jobs, sql_schedules, sql_signals
from packhorse.stores.contract import (
    NOBODY,
    ORDERS,
    RESULT_PRUNED,
    Audit,
    Change,
    DueSchedules,
    Entry,
    Lent,
    LimitView,
    Moved,
    Order,
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
    stranger,
)
from packhorse.stores.sql import Session, Subject
from packhorse.stores.sql_admission import Freed
from packhorse.stores.sql_due import BY_ID, DUE, LED

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")

HELD = "select process, nonce, id, epoch from job where state = 4 and process = ?"
FINISHED = f"select 1 from job where {BY_ID} and not (state > 4 and process = ? and nonce = ? and epoch = ?)"
PROMOTE = f"""
    update job set {DUE}, order_key = order_key - {LED}
    where state = 1 and (order_key, id) <= (?, ?)
"""
ENDED_PAUSES = "select kind, name from pause where until <= ?"
CALLS = "select min(wake_at) from rate where wake_at < ?"
# All that a dispatcher with nothing to do wants to know, in one statement.
LOOK_FOR_DUE = f"""
    select (select order_key from ({{first}}) as first), ({CALLS}), exists ({{pauses}}), arrived.*
    from ({{arrived}}) as arrived
"""
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
LOCAL_QUEUES = "select distinct queue from job indexed by job_to_claim where state = 3 and queue >= ?"
ADOPT = f"""
    update job set state = 4, process = ?, nonce = ?, epoch = epoch + 1, claimed_at = coalesce(claimed_at, ?)
    where {BY_ID}
"""
RENEW = "update process set lease_until = ? + lease where id = ? and boot = ? and lease_until > ?"
ENDED = """
    with wanted (id) as ({rows:bytea})
    select id from wanted where not exists (
        select 1 from payload join job on job.n = payload.n where payload.id = wanted.id and state <= 4
    )
"""
RECORD = """
    insert into entry (id, kind, name, data) {rows:bytea text text bytea}
    on conflict (id, kind, name) do update set data = excluded.data
"""
ENROLL = """
    insert into process (id, role, host, pid, queues, supervisor, started_at, lease, lease_until, boot)
    values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    on conflict (id) do update set
        role = excluded.role, host = excluded.host, pid = excluded.pid, queues = excluded.queues,
        supervisor = excluded.supervisor, started_at = excluded.started_at, lease = excluded.lease,
        lease_until = excluded.lease_until, boot = excluded.boot
"""
# It may have come back meanwhile, with a lease.
FORGET_PROCESS = "delete from process where id = ? and (? = 1 or not (boot = ? and lease_until > ?))"
PAUSE = """
    insert into pause (kind, name, until, reason, actor, paused_at) values (?, ?, ?, ?, ?, ?)
    on conflict (kind, name) do update set
        until = excluded.until, reason = excluded.reason, actor = excluded.actor, paused_at = excluded.paused_at
"""
SET_WEIGHT = """
    insert into share_weight (share, weight) values (?, ?) on conflict (share) do update set weight = excluded.weight
"""


class Bell(IntFlag):
    """Whom a stroke may concern: who looks for something to claim, and who waits for jobs to end."""

    NOBODY = 0
    READY = 1
    ENDED = 2


class SQLStore(Store):
    NTH_DUE: ClassVar[str] = "select order_key, id from job where state = 1 order by order_key, id limit 1 offset ?"

    clock: Clock
    hosted = False
    """Whether another program makes the tables and lends its own connections to them: they need no looking at first."""

    def __init__(self) -> None:
        self._admission = admission.Admission()

    def host(self) -> None:
        """Be `hosted`."""
        self.hosted = True

    @abstractmethod
    def _cursor(self) -> AbstractContextManager[Any]:
        """A Session for reading, each statement by itself."""

    @abstractmethod
    def _stroke(self, point: str, work: Callable[[Any], T], bell: Bell = Bell.NOBODY) -> T:
        """Do the work in one transaction, all or nothing; again, where it got into another's way.

        `point` is what its failpoints are named by.
        """

    @abstractmethod
    def _lent_stroke(self, lent: object, loop: AbstractEventLoop | None, work: Callable[[Any], T], bell: Bell) -> T:
        """Do the work in the transaction of a connection that was lent."""

    @abstractmethod
    def _insert(self, c: Any, jobs: Sequence[NewJob], now: int) -> list[bytes]:
        """The ids that stand for them."""

    @abstractmethod
    def _finish(self, c: Any, outcomes: Sequence[Outcome], now: int) -> Freed | None:
        """Write outcomes of running jobs; the permits that are free now."""

    @abstractmethod
    def _still_ours(self, c: Any, token: Token) -> bool:
        """Whether the job runs under the token, and will until the stroke has ended."""

    # Hot.

    def take_token(self, pace: Pace, patience: int) -> int | None:
        return self._stroke("", lambda c: admission.take_token(c, pace, patience, self.clock.now()))

    def beat(self, processes: Collection[bytes]) -> list[bytes]:
        return self._stroke("beat", lambda c: [id for id in processes if not self._renew(c, id)])

    def orders(self, processes: Collection[bytes]) -> list[Order]:
        with self._cursor() as c:
            found = sql_exchange.orders(c, processes)
        return sorted(found, key=lambda order: order.token.process)

    # Fenced by the claim token.

    def record(self, token: Token, entries: Sequence[Entry]) -> bool:
        def keep(c: Session) -> bool:
            if not self._still_ours(c, token):
                return False
            c.batched(RECORD, list({entry[:2]: (token.id, *entry) for entry in entries}.values()))
            return True

        return self._stroke("record", keep)

    def finished(self, token: Token) -> bool:
        with self._cursor() as c:
            row = (token.id, token.process, token.nonce, token.epoch)
            return c.execute(FINISHED, row).fetchone() is None

    def now(self) -> int:
        return self.clock.now()

    def held(self, process: bytes) -> list[Token]:
        with self._cursor() as c:
            return [Token(*row) for row in c.execute(f"{HELD} order by nonce, id, epoch", (process,))]

    # Signals.

    def signal(self, name: str, data: bytes, keep: int) -> int:
        def send(c: Session) -> int:
            return sql_signals.signal(c, name, data, keep, self.clock.now())

        return self._stroke("signal", send, Bell.READY)

    def signals(self, name: str, after: int = 0, limit: int = 100) -> list[Signal]:
        with self._cursor() as c:
            return sql_signals.signals(c, name, after, limit, self.clock.now())

    def waiters(self, after: Waiter = NOBODY, limit: int = 100) -> list[Waiter]:
        with self._cursor() as c:
            return sql_signals.waiters(c, after, limit)

    # Membership.

    def enroll(self, process: ProcessInfo, lease: int) -> None:
        def write(c: Session) -> None:
            until = self.clock.ticks() + lease
            c.execute(ENROLL, (*process, self.clock.now(), lease, until, self.clock.boot()))

        self._stroke("enroll", write)

    def leave(self, process: bytes) -> None:
        def go(c: Session) -> None:
            c.execute("update job set epoch = epoch + 1 where state = 4 and process = ?", (process,))
            held = [Token(*row) for row in c.execute(HELD, (process,))]
            freed = self._finish(c, [release(token) for token in held], self.clock.now())
            admission.call(c, freed or {})  # of those that were asked to end, and of runs; others keep their permits
            c.execute("delete from process where id = ?", (process,))

        self._stroke("leave", go, Bell.READY | Bell.ENDED)

    # Housekeeping.

    def promote(self, limit: int) -> Promoted:
        now = self.clock.now()
        with self._cursor() as c:
            look = LOOK_FOR_DUE.format(first=self.NTH_DUE, pauses=ENDED_PAUSES, arrived=admission.ARRIVED)
            first, calls, paused, *door = c.execute(look, (0, admission.NOBODY_KNOWS, now, now)).fetchone()
        idle = not (paused or self._admission.has_arrived((door[0], door[1])))
        if limit <= 0 or (idle and (first is None or first > now)):
            return Promoted(0, _next_due(first, calls, now))

        def go_on(c: Session) -> Promoted:
            c.hold(Subject.ADMISSION)
            last = c.execute(self.NTH_DUE, (limit - 1,)).fetchone()
            bound = last if last and last[0] <= now else (now + 1, b"")
            jobs = c.execute(PROMOTE, bound).rowcount
            self._end_pauses(c, now)
            jobs = max(jobs, self._admission.admit(c, now, limit))
            first = c.execute(self.NTH_DUE, (0,)).fetchone()
            [calls] = c.execute(CALLS, (admission.NOBODY_KNOWS,)).fetchone()
            return Promoted(jobs, _next_due(first and first[0], calls, now))

        return self._stroke("promote", go_on, Bell.READY | Bell.ENDED)

    def _end_pauses(self, c: Session, now: int) -> None:
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
            left = _left_queues(c, alive)
            if known <= alive and {id for (id,) in c.execute(owners)} <= alive and not left:
                return []

        def take_over(c: Session) -> list[Orphan]:
            boot, ticks = self.clock.boot(), self.clock.ticks()
            if not self._renew(c, adopter):
                return []
            alive = {id for (id,) in c.execute(live, (boot, ticks))} - set(dead)
            gone = [id for (id,) in c.execute(owners) if id not in alive]
            now = self.clock.now()
            left = [_Left(id, HELD_BY, id) for id in gone]
            left += [_Left(id, LEFT_IN, queue) for queue, id in _left_queues(c, alive).items()]
            orphans = _orphans(c, left, limit, now)
            c.executemany(ADOPT, [(adopter, nonce, now, orphan.claim.token.id) for orphan in orphans])
            for (id,) in c.execute("select id from process").fetchall():
                holds = "select 1 from job where state = 4 and process = ?"
                if id not in alive and not c.execute(holds, (id,)).fetchone():
                    c.execute(FORGET_PROCESS, (id, int(id in dead), boot, ticks))
            return orphans

        return [_adopted(orphan, adopter, nonce) for orphan in self._stroke("adopt", take_over)]

    def prune(self, retention: Retention, limit: int) -> int:
        with self._cursor() as c:
            old_results = c.execute(OLD_RESULTS, (self.clock.now(), 1)).fetchone()
            old = old_results or sql_signals.has_old(c, self.clock.now()) or self._prunable(c, retention, 1, "")
            if not (old or admission.remembers(c)):
                return 0

        def forget(c: Session) -> int:
            admission.forget_unused(c, self.clock.now())
            ids = self._prunable(c, retention, limit, c.FOR_UPDATE)
            self._forget(c, ids)
            c.execute("delete from unique_key where lapses_at <= ?", (self.clock.now(),))
            sql_schedules.forget_ticks(c, self.clock.now())
            results = c.execute(FORGET_RESULTS, (RESULT_PRUNED, self.clock.now(), limit)).rowcount
            return len(ids) + results + sql_signals.forget_old(c, self.clock.now(), limit)

        return self._stroke("prune", forget)

    def _forget(self, c: Any, ids: Sequence[bytes]) -> None:
        sql_exchange.delete(c, ids)

    def _prunable(self, c: Session, retention: Retention, limit: int, locked: str) -> list[bytes]:
        found: list[tuple[int, int, bytes]] = []
        now = self.clock.now()
        for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
            code = sql_exchange.CODE[state]
            found += c.execute(f"{KEPT_APART} {locked}", (code, now, limit))
            if (kept := retention.of(state)) is not None:
                found += c.execute(f"{KEPT_BY_RULE} {locked}", (kept, code, now - kept, limit))
        return [id for _, _, id in sorted(found, key=sql_exchange.comparable)[:limit]]

    # Schedules.

    def save_schedules(self, source: str, schedules: Sequence[StoredSchedule]) -> list[str]:
        with self._cursor() as c:
            if not sql_schedules.differs(c, source, schedules):
                return []
        return self._stroke("schedule", lambda c: sql_schedules.save(c, source, schedules), Bell.READY)

    def put_schedule(self, schedule: StoredSchedule, actor: str, reason: str) -> bool:
        def put(c: Session) -> bool:
            written = sql_schedules.put(c, schedule)
            if written:
                self._audit(c, self.clock.now(), actor, "schedule", reason)
            return written

        return self._stroke("schedule", put, Bell.READY)

    def remove_schedule(self, key: str, actor: str, reason: str) -> bool:
        def remove(c: Session) -> bool:
            removed = sql_schedules.remove(c, key)
            if removed:
                self._audit(c, self.clock.now(), actor, "remove_schedule", reason)
            return removed

        return self._stroke("schedule", remove)

    def run_schedule(self, job: NewJob, actor: str, reason: str) -> bytes:
        failpoint("insert.before_write")
        return self._stroke("insert", lambda c: self._run_schedule(c, job, actor, reason), Bell.READY)

    def _run_schedule(self, c: Session, job: NewJob, actor: str, reason: str) -> bytes:
        now = self.clock.now()
        [id] = self._insert(c, [job], now)
        self._audit(c, now, actor, "run_schedule", reason, int(id == job.id))
        return id

    def due_schedules(self, limit: int) -> DueSchedules:
        with self._cursor() as c:
            return sql_schedules.due(c, limit, self.clock.now())

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
        def go_on(c: Session) -> list[Tick] | None:
            def insert(job: NewJob) -> bytes:
                [id] = self._insert(c, [job], self.clock.now())
                return id

            return sql_schedules.tick(c, schedule, jobs, (handled, next_at, repeats), error, insert)

        failpoint("tick.before_write")
        return self._stroke("tick", go_on, Bell.READY)

    def schedules(self, after: str = "", limit: int = 100) -> list[StoredSchedule]:
        with self._cursor() as c:
            return sql_schedules.page(c, after, limit)

    def schedule(self, key: str) -> StoredSchedule | None:
        with self._cursor() as c:
            return sql_schedules.one(c, key)

    def ticks(self, key: str, limit: int = 100) -> list[Tick]:
        with self._cursor() as c:
            return sql_schedules.ticks(c, key, limit)

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
        def act(c: Session) -> Moved:
            c.hold(Subject.GATES)
            c.hold(Subject.ADMISSION)
            now = self.clock.now()
            dense = sql_jobs.is_dense(c, selection)
            page = sql_jobs.select("payload.id, state", selection, after, limit, dense=dense, locked=c.FOR_UPDATE)
            rows = c.execute(*page).fetchall()
            asked = 0
            if change.act in ORDERS:
                running = [id for id, state in rows if state == sql_exchange.RUNNING]
                sql_jobs.ask(c, running, change, reason)
                asked = len(running)
            ids = [id for id, state in rows if state in sql_jobs.MOVABLE[change.act]]
            sql_jobs.move(c, ids, change, reason, now)
            self._audit(c, now, actor, change.act, reason, len(ids) + asked)
            return Moved(len(ids), asked, rows[-1][0] if len(rows) == limit else None)

        return self._stroke("move", act, Bell.READY | Bell.ENDED)

    def reseal(self, id: bytes, payload: bytes, actor: str, reason: str) -> bool:
        def write(c: Session) -> bool:
            c.execute(f"select 1 from job where {BY_ID} {c.FOR_UPDATE}", (id,)).fetchone()
            changed = c.execute(sql_jobs.RESEAL, (payload, id)).rowcount
            if changed:
                self._audit(c, self.clock.now(), actor, "reseal", reason, changed)
            return changed == 1

        return self._stroke("move", write)

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
        def write(c: Session) -> None:
            now = self.clock.now()
            end = now + length if length is not None else until
            c.execute(PAUSE, (kind, name, end, reason, actor, now))
            self._audit(c, now, actor, "pause", reason)

        self._stroke("pause", write)

    def resume(self, name: str, actor: str, reason: str, *, kind: Paused = Paused.QUEUE) -> bool:
        def write(c: Session) -> bool:
            if kind is Paused.TASK:
                c.hold(Subject.ADMISSION)
            was_paused = c.execute("delete from pause where kind = ? and name = ?", (kind, name)).rowcount == 1
            if kind is Paused.TASK:
                admission.unpark(c, name)
            self._audit(c, self.clock.now(), actor, "resume", reason)
            return was_paused

        return self._stroke("pause", write, Bell.READY)

    def set_limit(self, key: str, to: int | None, actor: str, reason: str) -> None:
        def write(c: Session) -> None:
            admission.set_limit(c, key, to)
            self._audit(c, self.clock.now(), actor, "set_limit", reason)

        self._stroke("move", write, Bell.READY)

    def set_weight(self, share: str, weight: int | None, actor: str, reason: str) -> None:
        def write(c: Session) -> None:
            if weight is None:
                c.execute("delete from share_weight where share = ?", (share,))
            else:
                c.execute(SET_WEIGHT, (share, weight))
            self._audit(c, self.clock.now(), actor, "set_weight", reason)

        self._stroke("move", write)

    def _audit(self, c: Session, now: int, actor: str, act: str, reason: str, jobs: int = 0) -> None:
        row = (now, actor, act, reason, jobs)
        c.execute("insert into audit (at, actor, act, reason, jobs) values (?, ?, ?, ?, ?)", row)

    # Looking.

    def jobs(
        self, selection: Selection, after: bytes | None = None, limit: int = 100, *, newest_first: bool = False
    ) -> list[StoredJob]:
        with self._cursor() as c:
            dense = sql_jobs.is_dense(c, selection)
            page = sql_jobs.select(sql_jobs.COLUMNS, selection, after, limit, dense=dense, newest_first=newest_first)
            now = self.clock.now()
            return [StoredJob(**sql_jobs.narrow(row, now)) for row in c.execute(*page)]

    def job(self, id: bytes) -> StoredJob | None:
        with self._cursor() as c:
            return self._job(c, id)

    def _job(self, c: Any, id: bytes) -> StoredJob | None:
        now = self.clock.now()
        row = c.execute(sql_jobs.WIDE, (id, now)).fetchone()
        if row is None:
            return None
        columns = "number, process, started_at, ended_at, failure, spent"
        attempts = c.execute(f"select {columns} from attempt where id = ? order by epoch", (id,)).fetchall()
        return sql_jobs.wide(row, now, tuple(sql_jobs.attempt(*attempt) for attempt in attempts))

    def entries(self, id: bytes) -> list[Entry]:
        with self._cursor() as c:
            rows = c.execute(sql_jobs.ENTRIES, (id, id, self.clock.now()))
            return [Entry(*row) for row in rows]

    def members(self, flow: bytes, after: int = -1, limit: int = 100) -> list[tuple[int, StoredJob]]:
        with self._cursor() as c:
            now = self.clock.now()
            sizes = c.execute(sql_jobs.MEMBER_SIZES, (flow, after, now, limit))
            number = sql_exchange.Load().take(size or 0 for (size,) in sizes.fetchall())
            rows = c.execute(sql_jobs.MEMBERS, (flow, after, now, number)).fetchall() if number else []
        return [(place, sql_jobs.wide(row, now)) for place, *row in rows]

    def flow_counts(self, flow: bytes) -> dict[JobState, int]:
        count = """
            select state, count(*) from member join payload on payload.id = member.id join job on job.n = payload.n
            where flow = ? and place >= 0 group by state
        """
        with self._cursor() as c:
            return {sql_jobs.state_of(state): number for state, number in c.execute(count, (flow,))}

    def queues(self) -> list[QueueCounts]:
        with self._cursor() as c:
            rows = c.execute("select cast(queue as text), state, count(*) from job group by 1, 2").fetchall()
        paused = {pause.name: pause for pause in self.pauses() if pause.kind is Paused.QUEUE}
        counts: dict[str, dict[JobState, int]] = {queue: {} for queue in paused}
        for queue, state, number in rows:
            counts.setdefault(queue, {})[sql_jobs.state_of(state)] = number
        return [QueueCounts(queue, counts[queue], paused.get(queue)) for queue in sorted(counts)]

    def pauses(self) -> list[Pause]:
        with self._cursor() as c:
            rows = c.execute(
                "select kind, name, until, reason, actor from pause where until is null or until > ? "
                "order by kind, name",
                (self.clock.now(),),
            ).fetchall()
        return [
            Pause(name, sql_jobs.moment(until), reason, actor, Paused(kind))
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

    def ended(self, ids: Collection[bytes]) -> set[bytes]:
        with self._cursor() as c:
            return {id for (id,) in c.read(ENDED, list(ids))}

    def _renew(self, c: Session, process: bytes) -> bool:
        ticks = self.clock.ticks()
        return c.execute(RENEW, (ticks, process, self.clock.boot(), ticks)).rowcount == 1

    # Lent connections.

    def lent(self, connection: object, loop: AbstractEventLoop | None = None) -> Lent:
        return LentSQL(self, connection, loop)

    def _complete(self, c: Session, outcome: Outcome) -> bool:
        if not self._still_ours(c, outcome.token):
            return False
        freed = self._finish(c, [outcome], self.clock.now())
        admission.call(c, freed or {})  # whoever exchanges next hands them on
        return True


class LentSQL(Lent):
    def __init__(self, store: SQLStore, connection: object, loop: AbstractEventLoop | None) -> None:
        self._store = store
        self._connection = connection
        self._loop = loop

    def insert(self, jobs: Sequence[NewJob]) -> list[bytes]:
        return self._do(lambda c: self._store._insert(c, jobs, self._store.clock.now()), Bell.READY)

    def run_schedule(self, job: NewJob, actor: str, reason: str) -> bytes:
        return self._do(lambda c: self._store._run_schedule(c, job, actor, reason), Bell.READY)

    def complete(self, outcome: Outcome) -> bool:
        return self._do(lambda c: self._store._complete(c, outcome), Bell.ENDED)

    def job(self, id: bytes) -> StoredJob | None:
        return self._do(lambda c: self._store._job(c, id), Bell.NOBODY)

    def _do(self, work: Callable[[Any], T], bell: Bell) -> T:
        return self._store._lent_stroke(self._connection, self._loop, work, bell)


def _left_queues(c: Session, alive: Collection[bytes]) -> dict[str, bytes]:
    """Local queues with ready jobs whose process is gone, and that."""
    found = {queue: local_owner(queue) for (queue,) in c.execute(LOCAL_QUEUES, (LOCAL,))}
    return {queue: owner for queue, owner in found.items() if owner is not None and owner not in alive}


ORPHANS = f"select {sql_exchange.CLAIM_COLUMNS.format(index='')} where job.n in ({{rows:bigint}})"
HELD_BY, LEFT_IN = "state = 4 and process = ?", "state = 3 and queue = ?"


class _Left(NamedTuple):
    """Jobs of a process that is gone, and how they are found."""

    owner: bytes
    which: str
    value: object


def _orphans(c: Session, left: Sequence[_Left], limit: int, now: int) -> list[Orphan]:
    """The first of them all by id, as many as may be carried at once: their sizes are looked at first."""
    sizes = "select job.id, job.n, length(body) from job left join payload on payload.id = job.id"
    found: list[tuple[Any, int, int, int]] = []  # id, number, size, and whose it is
    for place, (_, which, value) in enumerate(left):
        rows = c.execute(f"{sizes} where {which} order by job.id limit ? {c.FOR_UPDATE}", (value, limit))
        found += [(id, n, size or 0, place) for id, n, size in rows]
    found = sorted(found, key=lambda one: sql_exchange.comparable(one[:1]))[:limit]
    found = found[: sql_exchange.Load().take(size for _, _, size, _ in found)]
    chosen: dict[int, list[int]] = {}
    for _, n, _, place in found:
        chosen.setdefault(place, []).append(n)
    orphans = [orphan for place, numbers in chosen.items() for orphan in _orphans_of(c, left[place], numbers, now)]
    return sorted(orphans, key=lambda orphan: sql_exchange.comparable([orphan.claim.token.id]))


def _orphans_of(c: Session, left: _Left, numbers: Sequence[int], now: int) -> list[Orphan]:
    owner, which, _ = left
    columns = "id, role, host, pid, queues, supervisor"
    row = c.execute(f"select {columns} from process where id = ?", (owner,)).fetchone()
    info = ProcessInfo(*row) if row else stranger(owner if type(owner) is bytes else b"")
    claims = [sql_exchange.as_claim(claim) for claim in c.read(ORPHANS, numbers)]
    began = dict(c.read("select id, started_at from job where n in ({rows:bigint})", numbers))
    return [
        Orphan(claim, info, _ago(began.get(claim.token.id), now), claim.token.nonce if which == HELD_BY else None)
        for claim in claims
    ]


def _ago(moment: int | None, now: int) -> int | None:
    return now - moment if type(moment) is int else None


def _adopted(orphan: Orphan, adopter: bytes, nonce: int) -> Orphan:
    token = orphan.claim.token
    mine = Token(adopter, nonce, token.id, token.epoch + 1)
    return orphan._replace(claim=orphan.claim._replace(token=mine))


def _next_due(first: int | None, calls: int | None, now: int) -> int | None:
    """When the first scheduled job is due, or a rate calls who waits for it."""
    moments = [moment for moment in (calls, first) if moment is not None]
    return max(0, min(moments) - now) if moments else None
