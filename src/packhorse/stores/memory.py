"""The readable specification of a store: plain dictionaries behind one lock. Lives and dies with its process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate, count, islice
from pathlib import Path

from packhorse.clock import SECOND, Clock, SystemClock, to_datetime
from packhorse.errors import ConfigError, StoreDataError
from packhorse.ids import to_text
from packhorse.job import Claim, JobState, Need, NewJob, StoredAttempt, StoredJob, Token, with_callbacks
from packhorse.limits import CATCH_UP, MERGES_CAP, TURN, Bucket, Conflict, Hold, Pace, UniqueConflict
from packhorse.outcome import Outcome, release
from packhorse.queues import Selected, local_owner
from packhorse.signing import generate_secret
from packhorse.stores.contract import (
    ADMIT_AT_ONCE,
    CLAIM_BYTES,
    FAIR,
    GATE,
    HURT,
    LIMIT,
    MERGED,
    NOBODY,
    NOT_NEEDED,
    ORDERS,
    PARKED,
    RELOAD,
    RESULT_PRUNED,
    SIGNAL,
    TICKS_KEPT,
    Act,
    Audit,
    Change,
    DueSchedules,
    Entry,
    Exchanged,
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
    Watch,
    fair_line,
    fair_scope,
    kept_reason,
    limit_line,
    parked_line,
    rate_line,
    signal_entry,
    stranger,
)

RETRYING = (Act.RETRY, Act.RESTART, Act.RELOAD)
INSERTED = ("_jobs", "_members", "_children", "_unique", "_permits", "_rates")  # what an insert may change


@dataclass
class _Job:
    new: NewJob
    created_at: int
    state: JobState
    queue: str
    priority: int
    order_key: int
    run_at: int | None
    expires_at: int | None
    waits_on: str = ""
    awaits: str | None = None
    epoch: int = 0
    attempts: int = 0
    losses: int = 0
    strays: int = 0
    suspect: bool = False
    token: Token | None = None
    claimed_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    prune_at: int | None = None
    result_until: int | None = None
    order: Order | None = None
    outcome: Outcome | None = None
    failures: list[tuple[int, bytes, int | None, int, bytes, bool]] = field(default_factory=list)
    entries: dict[tuple[str, str], bytes] = field(default_factory=dict)
    parents: dict[bytes, tuple[Need, bool | None]] = field(default_factory=dict)  # how each ended; None: not yet

    @property
    def gated(self) -> bool:
        """It waits for others; of failures the first is enough."""
        return any(well is None for _, well in self.parents.values()) and not self.alarmed

    @property
    def alarmed(self) -> bool:
        return any(need is Need.FAILURE and well is False for need, well in self.parents.values())

    @property
    def ageing(self) -> int:
        return self.new.ageing if self.new.share is None else 0

    @property
    def rank(self) -> int:
        return 0 if self.ageing else -self.priority

    @property
    def place(self) -> tuple[int, int, bytes]:
        return (self.rank, self.order_key, self.new.id)

    @property
    def lines(self) -> list[str]:
        """Where it may have to wait for others."""
        terms = self.new.terms
        return [limit_line(hold.key) for hold in terms.holds] + [rate_line(pace.key) for pace in terms.paces]

    def become_due(self, moment: int) -> None:
        """Its time has come, and it may have to wait for its turn, a permit or a token."""
        self.order_key = moment - self.priority * self.ageing
        self.state = JobState.WAITING
        self.waits_on = ""
        self.awaits = None
        if self.gated:
            self.waits_on = GATE
        elif self.new.share is not None:
            self.waits_on = fair_line(self.queue, self.new.share)
        elif not self.new.terms.limited:
            self.state = JobState.READY


@dataclass
class _Rate:
    pace: Pace
    brought_by: bytes
    bucket: Bucket = field(default_factory=Bucket)
    tickets: set[bytes] = field(default_factory=set)  # who has a token and did not begin yet

    def is_open(self, now: int) -> bool:
        return self.bucket.opens_at(self.pace) <= now and len(self.tickets) < self.pace.depth


@dataclass
class _Process:
    info: ProcessInfo
    started_at: int
    lease: int
    lease_until: int
    boot: str

    def lease_left(self, clock: Clock) -> int:
        return self.lease_until - clock.ticks() if self.boot == clock.boot() else 0


class _Changed(type(threading.RLock())):  # type: ignore[misc]
    """A condition whose `with` is the interpreter's own: no exception from outside strikes between lock and guard."""

    def __init__(self) -> None:
        condition = threading.Condition(self)
        self.wait_for, self.notify_all = condition.wait_for, condition.notify_all


class MemoryStore(Store):
    shared = False

    def __init__(self, clock: Clock | None = None, url: str = "memory://") -> None:
        self.url = url
        self.clock = clock or SystemClock()
        self._jobs: dict[bytes, _Job] = {}
        self._processes: dict[bytes, _Process] = {}
        self._pauses: dict[tuple[Paused, str], Pause] = {}
        self._permits: dict[str, dict[int, bytes]] = {}  # for each key its numbers, and who has them
        self._caps: dict[str, tuple[bytes, int]] = {}
        self._set_limits: dict[str, int] = {}
        self._rates: dict[str, _Rate] = {}
        self._turns: dict[tuple[str, int], dict[str, int]] = {}  # for each scope and rank the last turn of its shares
        self._weights: dict[str, int] = {}
        self._members: dict[tuple[bytes, int], bytes] = {}
        self._children: dict[bytes, set[bytes]] = {}
        self._schedules: dict[str, StoredSchedule] = {}
        self._ticks: dict[tuple[str, int], bytes | None] = {}
        self._unique: dict[str, tuple[bytes, int | None]] = {}  # who has a key, and when it lapses by itself
        self._signals: list[tuple[Signal, int]] = []  # and until when each is kept
        self._signal_numbers = count(1)
        self._audit: list[Audit] = []
        self._changed = _Changed()
        self._changes = 0
        self._key = generate_secret()

    # Hot.

    def insert(self, jobs: Sequence[NewJob]) -> list[bytes]:
        with self._changed:
            now = self.clock.now()
            for new in with_callbacks(jobs):
                _times(new, now)  # what is no number is an error before anything is written
            fresh = [new for new in jobs if new.id not in self._jobs]
            before: dict[str, object] = {}
            if any(new.terms.unique for new in fresh) and any(new.after or new.before for new in fresh):
                # Some may be left out, so that others are to come after nobody. That is known only in the end.
                before = deepcopy({name: getattr(self, name) for name in INSERTED})
            else:
                self._check_family(fresh)
            ids = [self._insert(new, now) for new in jobs]
            try:
                self._join_family([new for new in fresh if new.id in self._jobs], now)
            except StoreDataError:
                vars(self).update(before)
                raise
            self._notify()
            return ids

    def _join_family(self, fresh: Sequence[NewJob], now: int) -> None:
        self._check_family(fresh)
        for new in fresh:
            for child in new.before:
                self._make_child(self._jobs[child.id], new.id, child.need)
        for new in fresh:
            for parent in new.after:
                if (state := self._jobs[parent.id].state).finished:
                    self._open_gates({parent.id: state is JobState.SUCCEEDED}, now)

    def _make_child(self, job: _Job, parent: bytes, need: Need) -> None:
        job.parents[parent] = (need, None)
        self._children.setdefault(parent, set()).add(job.new.id)

    def _stand_behind(self, job: _Job, parents: Sequence[bytes], now: int) -> None:
        """One that has begun already waits for others, however they end, or for nobody."""
        if parents:
            job.parents = {}
        for id in parents:
            self._make_child(job, id, Need.END)
        job.become_due(now)
        ended = {id: self._jobs.get(id) for id in parents}
        over = {
            id: it is None or it.state is JobState.SUCCEEDED for id, it in ended.items() if not it or it.state.finished
        }
        self._open_gates(over, now)

    def _check_family(self, jobs: Sequence[NewJob]) -> None:
        coming = {new.id for new in jobs}
        for new in jobs:
            for parent in new.after:
                if parent.id not in coming and parent.id not in self._jobs:
                    raise StoreDataError(f"There is no job {to_text(parent.id)} to come after.")
            for child in new.before:
                if child.id not in self._jobs or self._jobs[child.id].waits_on != GATE:
                    raise StoreDataError(f"Job {to_text(child.id)} does not wait any more: nothing can come before it.")

    def _open_gates(self, how: Mapping[bytes, bool], now: int) -> None:
        """Parents have ended, well or not: whoever waited for them goes on, or is cancelled with those behind it."""
        while how:
            doomed: dict[bytes, str] = {}
            children = {child for id in how for child in self._children.get(id, ()) if child in self._jobs}
            for job in [self._jobs[id] for id in sorted(children)]:
                ended = [id for id in job.parents.keys() & how.keys() if job.parents[id][1] is None]
                job.parents |= {id: (job.parents[id][0], how[id]) for id in ended}
                if not ended or job.waits_on != GATE:
                    continue
                needs = list(job.parents.values())
                if any(need is Need.SUCCESS and well is False for need, well in needs):
                    doomed[job.new.id] = HURT
                elif not job.gated:
                    if any(need is Need.FAILURE for need, _ in needs) and not job.alarmed:
                        doomed[job.new.id] = NOT_NEEDED
                    else:
                        self._schedule(job, job.run_at, now)
            for id, reason in doomed.items():
                self._end(self._jobs[id], reason, now)
            how = dict.fromkeys(doomed, False)

    def _insert(self, new: NewJob, now: int) -> bytes:
        if new.id in self._jobs:
            return new.id
        run_at, expires_at = _times(new, now)
        if new.terms.unique is not None and (earlier := self._give_way(new, run_at, now)) is not None:
            return earlier
        job = _Job(new, now, JobState.SCHEDULED, new.queue, new.priority, now, run_at, expires_at)
        for parent in new.after:
            self._make_child(job, parent.id, parent.need)
        self._jobs[new.id] = job
        if new.member is not None:
            self._members[new.member] = new.id
        if new.after:
            job.become_due(now)
        else:
            self._schedule(job, run_at, now)
        if (unique := new.terms.unique) is not None:
            self._unique[unique.key] = (new.id, None if unique.lasting is None else now + unique.lasting)
        for callback in new.callbacks:
            self._insert(callback, now)
        return new.id

    def _schedule(self, job: _Job, run_at: int | None, now: int) -> None:
        job.run_at = run_at
        if run_at is None or run_at <= now:
            job.become_due(now)
        else:
            job.state, job.waits_on, job.order_key = JobState.SCHEDULED, "", run_at

    def _give_way(self, new: NewJob, run_at: int | None, now: int) -> bytes | None:
        """The job that holds the key and stays; None where there is none, or it has given way."""
        unique = new.terms.unique
        assert unique is not None
        id, lapses_at = self._unique.get(unique.key, (b"", None))
        if not id or (lapses_at is not None and lapses_at <= now):
            return None
        holder = self._look_up(id, now)
        if holder is None:  # a handle must stand for a job that is there
            return None
        if holder.state.finished or holder.state is JobState.RUNNING:
            return id
        match unique.conflict:
            case UniqueConflict.RESCHEDULE:
                if holder.waits_on == GATE:
                    holder.run_at = run_at
                else:
                    self._free_permits(holder)
                    self._schedule(holder, run_at, now)
                holder.epoch += 1
            case UniqueConflict.REPLACE:
                self._cancel(holder, "replaced", now)
                return None
            case UniqueConflict.MERGE if (MERGED, new.id.hex()) not in holder.entries:
                if sum(kind == MERGED for kind, _ in holder.entries) == MERGES_CAP:
                    return None
                holder.entries[MERGED, new.id.hex()] = new.payload
        return id

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
        with self._changed:
            now = self.clock.now()
            alive = self._alive(process)
            refused = [outcome.token for outcome in outcomes if not self._finish(outcome, now)]
            if outcomes or started or limit:
                self._admit(now)
            for token in started:
                if (job := self._held_under(token)) is not None and job.started_at is None:
                    job.started_at = now
            ready = self._pick(queues, limit, now) if alive else []
            picked = ready[: _fitting(len(job.new.payload) for job in ready)]
            claims = [self._claim(job, process, nonce, now) for job in picked]
            for job in picked[:starting]:
                job.started_at = now
            if outcomes or started or claims:
                self._renew(process)
                self._notify()
            return Exchanged(claims, refused, alive, now, cut=len(picked) < len(ready))

    def beat(self, processes: Collection[bytes]) -> list[bytes]:
        with self._changed:
            return [process for process in processes if not self._renew(process)]

    def orders(self, processes: Collection[bytes]) -> list[Order]:
        with self._changed:
            held = [(job.order, job.token) for job in self._jobs.values()]
            orders = [order._replace(token=token) for order, token in held if order is not None and token is not None]
            mine = [order for order in orders if order.token.process in processes]
            return sorted(mine, key=lambda order: order.token)

    def _alive(self, process: bytes) -> bool:
        known = self._processes.get(process)
        return known is not None and known.lease_left(self.clock) > 0

    def _renew(self, process: bytes) -> bool:
        if not self._alive(process):
            return False
        known = self._processes[process]
        known.lease_until = self.clock.ticks() + known.lease
        return True

    def _held_under(self, token: Token) -> _Job | None:
        job = self._jobs.get(token.id)
        return job if job is not None and job.token == token else None

    def _finish(self, outcome: Outcome, now: int) -> bool:
        job = self._held_under(outcome.token)
        if job is None:
            return False
        if job.order is not None:
            outcome = job.order.heeded(outcome)
            if outcome.state is not JobState.SUCCEEDED:
                self._reload(job, outcome)
        if outcome.failure is not None and not outcome.state.finished:
            began = None if outcome.duration is None else now - outcome.duration
            number = job.attempts + 1
            owner = outcome.owner or outcome.token.process
            job.failures.append((number, owner, began, now, outcome.failure, outcome.spent))
        job.attempts += outcome.spent
        job.losses += outcome.lost
        job.strays += outcome.strayed
        job.suspect = outcome.suspect or (job.suspect and not outcome.spent)
        job.token = job.order = job.claimed_at = job.started_at = None
        job.state = outcome.state
        if outcome.state is not JobState.READY:
            self._free_permits(job)
        if outcome.state.finished:
            self._free_unique(job)
            if outcome.keep == 0:
                del self._jobs[job.new.id]
            job.outcome = outcome
            job.finished_at = now
            job.prune_at = None if outcome.keep is None else now + outcome.keep
            job.result_until = (
                None if outcome.result_ttl is None or outcome.result is None else now + outcome.result_ttl
            )
            job.started_at = None if outcome.duration is None else now - outcome.duration
            self._open_gates({job.new.id: outcome.state is JobState.SUCCEEDED}, now)
        elif outcome.state is JobState.SCHEDULED:
            job.run_at = job.order_key = now + outcome.delay
            if outcome.delay <= 0:
                self._stand_behind(job, outcome.after, now)
            elif outcome.awaits is not None:
                job.awaits = outcome.awaits.signal
                for signal in self.signals(*outcome.awaits, limit=1):
                    self._deliver(signal, job, now)
        return True

    def _reload(self, job: _Job, outcome: Outcome) -> None:
        """One that starts again may have been given another payload for it."""
        payload = job.entries.pop((RELOAD, ""), None)
        if payload is not None and outcome.state is JobState.READY:
            job.new = job.new._replace(payload=payload)
            job.expires_at = None

    # Turns, permits, tokens and unique keys.

    def _admit(self, now: int, limit: int = ADMIT_AT_ONCE) -> int:
        """Waiting jobs whose turn it is and that find all their permits and tokens become ready; how many moved on."""
        turns = self._take_turns(now)
        admitted = 0
        waiting = [job for job in self._jobs.values() if job.state is JobState.WAITING]
        waiting = [job for job in waiting if not job.waits_on.startswith((PARKED, GATE))]
        waited_for = {job.waits_on for job in waiting}
        for job in sorted(waiting, key=lambda it: it.new.id, reverse=True):
            self._note_numbers(job)
        for job in sorted(waiting, key=lambda it: it.place):
            if job.state is not JobState.WAITING or admitted == limit:
                continue
            full = next((hold for hold in job.new.terms.holds if not self._has_room(hold)), None)
            shut = next((pace for pace in job.new.terms.paces if not self._rates[pace.key].is_open(now)), None)
            if full is None and shut is None:
                self._give_permits(job)
                self._take_tokens(job, waited_for, now)
                job.state, job.waits_on = JobState.READY, ""
                admitted += 1
            elif full is None:
                assert shut is not None
                job.waits_on = rate_line(shut.key)
            elif full.conflict is Conflict.DISCARD:
                self._cancel(job, f"discarded: {full.key} was taken", now)
            elif full.conflict is Conflict.REPLACE:
                line = [other for other in self._jobs.values() if other.waits_on == limit_line(full.key)]
                line = [other for other in line if other is not job]
                rivals = [other for other in line if full.conflict in (hold.conflict for hold in other.new.terms.holds)]
                *older, _ = sorted([*rivals, job], key=lambda it: (it.created_at, it.new.id))
                for other in older:
                    self._cancel(other, "replaced", now)
            if job.state is JobState.WAITING and full is not None:
                job.waits_on = limit_line(full.key)
        return max(turns, admitted)

    def _take_turns(self, now: int) -> int:
        """Jobs of a share get their place among those of others: one turn of theirs behind the last; how many."""
        came = [job for job in self._jobs.values() if job.state is JobState.WAITING and job.waits_on.startswith(FAIR)]
        bases: dict[tuple[str, int], int] = {}
        for job in sorted(came, key=lambda it: it.place):
            scope = (fair_scope(job.queue, job.lines), job.rank)
            lasts = self._turns.setdefault(scope, {})
            if scope not in bases:
                standing = [other.order_key for other in self._jobs.values() if _stands_with(other, job)]
                bases[scope] = min(standing) if standing else max([now, *lasts.values()])
                if not standing:
                    lasts.clear()
            share = str(job.new.share)
            job.order_key = bases[scope]
            if share in lasts:
                job.order_key = max(bases[scope], lasts[share] + TURN // self._weights.get(share, 1))
            lasts[share] = job.order_key
        for job in came:
            job.state = JobState.WAITING if job.new.terms.limited else JobState.READY
            job.waits_on = ""
        return len(came)

    def _note_numbers(self, job: _Job) -> None:
        """The newest job of a key brings the numbers that count for all."""
        for hold in job.new.terms.holds:
            if job.new.id > self._caps.get(hold.key, (b"", 0))[0]:
                self._caps[hold.key] = (job.new.id, hold.to)
        for pace in job.new.terms.paces:
            rate = self._rates.setdefault(pace.key, _Rate(pace, job.new.id))
            if job.new.id > rate.brought_by:
                rate.bucket = rate.bucket.at(rate.pace, pace)
                rate.pace, rate.brought_by = pace, job.new.id

    def _take_tokens(self, job: _Job, waited_for: Collection[str], now: int) -> None:
        for pace in job.new.terms.paces:
            rate = self._rates[pace.key]
            late = CATCH_UP if rate_line(pace.key) in waited_for else 0
            rate.bucket = rate.bucket.less(rate.pace, now - late)
            rate.tickets.add(job.new.id)

    def take_token(self, pace: Pace, patience: int) -> int | None:
        with self._changed:
            now = self.clock.now()
            rate = self._rates.setdefault(pace.key, _Rate(pace, b""))
            rate.bucket = rate.bucket.at(rate.pace, pace)
            rate.pace = pace
            wait = max(0, rate.bucket.opens_at(pace) - now)
            if wait > patience:
                return None
            rate.bucket = rate.bucket.less(pace, now)
            return wait

    def _has_room(self, hold: Hold) -> bool:
        """By the number set at run time, else by that of the newest job that came with one."""
        return len(self._permits.get(hold.key, ())) < self._set_limits.get(hold.key, self._caps[hold.key][1])

    def _give_permits(self, job: _Job) -> None:
        for hold in job.new.terms.holds:
            taken = self._permits.setdefault(hold.key, {})
            taken[next(n for n in count(1) if n not in taken)] = job.new.id

    def _free_permits(self, job: _Job) -> None:
        for hold in job.new.terms.holds:
            taken = self._permits.get(hold.key, {})
            for n in [n for n, id in taken.items() if id == job.new.id]:
                del taken[n]
        self._free_tickets(job)
        job.waits_on = ""

    def _free_tickets(self, job: _Job) -> None:
        for pace in job.new.terms.paces:
            if pace.key in self._rates:
                self._rates[pace.key].tickets.discard(job.new.id)

    def _free_unique(self, job: _Job) -> None:
        unique = job.new.terms.unique
        if unique is not None and unique.lasting is None and self._unique.get(unique.key, (b"", None))[0] == job.new.id:
            del self._unique[unique.key]

    def _cancel(self, job: _Job, reason: str, now: int) -> None:
        self._end(job, reason, now)
        self._open_gates({job.new.id: False}, now)

    def _end(self, job: _Job, reason: str, now: int) -> None:
        self._free_permits(job)
        self._free_unique(job)
        job.state = JobState.CANCELLED
        job.awaits = None
        job.finished_at = now
        job.outcome = Outcome(Token(b"", 0, job.new.id, job.epoch), JobState.CANCELLED, reason=reason)
        job.epoch += 1

    def _pick(self, queues: Selected, limit: int, now: int) -> list[_Job]:
        picked: list[_Job] = []
        seen: set[str] = set()
        for entry in queues:
            names = {job.queue for job in self._jobs.values() if entry.matches(job.queue)} - seen
            seen |= names
            names -= {name for name in names if self._paused(Paused.QUEUE, name, now)}
            ready = [job for job in self._jobs.values() if job.state is JobState.READY and job.queue in names]
            for job in sorted(ready, key=lambda job: job.place):
                if len(picked) < limit and not self._park(job, now):
                    picked.append(job)
        return picked

    def _park(self, job: _Job, now: int) -> bool:
        """Whether its task is paused: then it goes and waits for the end of that."""
        if not self._paused(Paused.TASK, job.new.task, now):
            return False
        self._free_permits(job)
        job.state, job.waits_on = JobState.WAITING, parked_line(job.new.task)
        return True

    def _unpark(self, task: str) -> None:
        for job in self._jobs.values():
            if job.state is JobState.WAITING and job.waits_on == parked_line(task):
                job.state = JobState.WAITING if job.new.terms.limited else JobState.READY
                job.waits_on = ""

    def _end_pauses(self, now: int) -> None:
        for (kind, name), _ in list(self._pauses.items()):
            if not self._paused(kind, name, now):
                del self._pauses[kind, name]
                if kind is Paused.TASK:
                    self._unpark(name)

    def _claim(self, job: _Job, process: bytes, nonce: int, now: int) -> Claim:
        job.state = JobState.RUNNING
        job.epoch += 1
        job.token = Token(process, nonce, job.new.id, job.epoch)
        job.claimed_at = now
        job.started_at = None
        if job.new.terms.unique is not None and job.new.terms.unique.until_start:
            self._free_unique(job)
        self._free_tickets(job)
        return self._as_claim(job, job.token)

    def _as_claim(self, job: _Job, token: Token) -> Claim:
        return Claim(
            token,
            job.new.task,
            job.new.payload,
            job.queue,
            job.priority,
            job.attempts,
            job.losses,
            job.created_at,
            job.expires_at,
            job.strays,
            suspect=job.suspect,
        )

    # Fenced by the claim token.

    def record(self, token: Token, entries: Sequence[Entry]) -> bool:
        with self._changed:
            job = self._held_under(token)
            if job is None:
                return False
            job.entries.update({(entry.kind, entry.name): entry.data for entry in entries})
            return True

    def finished(self, token: Token) -> bool:
        with self._changed:
            job = self._jobs.get(token.id)
            return job is None or (job.outcome is not None and job.state.finished and job.outcome.token == token)

    def now(self) -> int:
        return self.clock.now()

    def held(self, process: bytes) -> list[Token]:
        with self._changed:
            tokens = (job.token for job in self._jobs.values() if job.token is not None)
            return sorted(token for token in tokens if token.process == process)

    # Signals.

    def signal(self, name: str, data: bytes, keep: int) -> int:
        with self._changed:
            now = self.clock.now()
            signal = Signal(next(self._signal_numbers), name, data)
            self._signals.append((signal, now + keep))
            waiting = [job for job in self._jobs.values() if job.awaits == name]
            for job in waiting:
                self._deliver(signal, job, now)
            self._notify()
            return len(waiting)

    def _deliver(self, signal: Signal, job: _Job, now: int) -> None:
        job.entries[SIGNAL, signal_entry(signal.name, signal.n)] = signal.data
        job.become_due(now)

    def signals(self, name: str, after: int = 0, limit: int = 100) -> list[Signal]:
        with self._changed:
            now = self.clock.now()
            kept = (signal for signal, until in self._signals if until > now)
            return [signal for signal in kept if signal.name == name and signal.n > after][:limit]

    def waiters(self, after: Waiter = NOBODY, limit: int = 100) -> list[Waiter]:
        with self._changed:
            waiting = [Waiter(job.awaits, job.new.id) for job in self._jobs.values() if job.awaits is not None]
            return sorted(waiter for waiter in waiting if waiter > after)[:limit]

    # Membership.

    def enroll(self, process: ProcessInfo, lease: int) -> None:
        with self._changed:
            until = self.clock.ticks() + lease
            self._processes[process.id] = _Process(process, self.clock.now(), lease, until, self.clock.boot())

    def leave(self, process: bytes) -> None:
        with self._changed:
            for job in self._jobs.values():
                if job.token is not None and job.token.process == process:
                    self._finish(release(job.token), self.clock.now())
                    job.epoch += 1
            self._processes.pop(process, None)
            self._notify()

    # Housekeeping.

    def promote(self, limit: int) -> Promoted:
        with self._changed:
            now = self.clock.now()
            scheduled = [job for job in self._jobs.values() if job.state is JobState.SCHEDULED]
            scheduled.sort(key=lambda job: (job.order_key, job.new.id))
            due = [job for job in scheduled if job.order_key <= now][:limit]
            for job in due:
                job.become_due(job.order_key)
            admitted = 0
            if limit > 0:
                self._end_pauses(now)
                admitted = self._admit(now, limit)
            if due or admitted:
                self._notify()
            moments = [job.order_key for job in self._jobs.values() if job.state is JobState.SCHEDULED]
            lines = {job.waits_on for job in self._jobs.values() if job.state is JobState.WAITING}
            for key, rate in self._rates.items():
                if rate_line(key) in lines and len(rate.tickets) < rate.pace.depth:
                    moments.append(rate.bucket.opens_at(rate.pace))
            return Promoted(max(len(due), admitted), max(0, min(moments) - now) if moments else None)

    def adopt(self, adopter: bytes, nonce: int, limit: int, *, dead: Collection[bytes] = ()) -> list[Orphan]:
        with self._changed:
            if not self._renew(adopter):
                return []
            gone = {id for id in self._processes if not self._alive(id)} | set(dead)
            owners: dict[bytes, bytes] = {}
            for job in sorted(self._jobs.values(), key=lambda job: job.new.id):
                owner = job.token.process if job.token is not None else None
                if job.state is JobState.READY:
                    owner = local_owner(job.queue)
                if owner is not None and (owner in gone or owner not in self._processes):
                    owners[job.new.id] = owner
            orphans: list[Orphan] = []
            left = [self._jobs[id] for id in owners][:limit]
            for job in left[: _fitting(len(job.new.payload) for job in left)]:
                owner = owners[job.new.id]
                info = self._processes[owner].info if owner in self._processes else stranger(owner)
                nonce_before = None if job.token is None else job.token.nonce
                job.epoch += 1
                job.token = Token(adopter, nonce, job.new.id, job.epoch)
                job.state = JobState.RUNNING
                job.claimed_at = self.clock.now() if job.claimed_at is None else job.claimed_at
                ran = None if job.started_at is None else self.clock.now() - job.started_at
                orphans.append(Orphan(self._as_claim(job, job.token), info, ran, nonce_before))
            holders = {job.token.process for job in self._jobs.values() if job.token is not None}
            for id in gone - holders:
                self._processes.pop(id, None)
            return orphans

    def prune(self, retention: Retention, limit: int) -> int:
        with self._changed:
            now = self.clock.now()
            old = []
            for job in self._jobs.values():
                due = job.prune_at
                if due is None and job.finished_at is not None and (kept := retention.of(job.state)) is not None:
                    due = job.finished_at + kept
                if due is not None and due <= now:
                    old.append((due, job.finished_at, job.new.id))
            for _, _, id in sorted(old)[:limit]:
                del self._jobs[id]
            self._forget_unused(now)
            for key, moment in [tick for tick in self._ticks if tick[1] < now - TICKS_KEPT]:
                del self._ticks[key, moment]
            return len(old[:limit]) + self._forget_results(now, limit) + self._forget_signals(now, limit)

    def _forget_unused(self, now: int) -> None:
        """Numbers of keys that nobody uses."""
        waiting = [job.new.terms for job in self._jobs.values() if job.state is JobState.WAITING]
        limited = {hold.key for terms in waiting for hold in terms.holds}
        rated = {pace.key for terms in waiting for pace in terms.paces}
        for key in [key for key in self._caps if not self._permits.get(key) and key not in limited]:
            del self._caps[key]
        for key, rate in list(self._rates.items()):
            if not rate.tickets and key not in rated and rate.bucket.since + rate.pace.period <= now:
                del self._rates[key]

    def _forget_results(self, now: int, limit: int) -> int:
        old = [job for job in self._jobs.values() if job.result_until is not None and job.result_until <= now]
        old.sort(key=lambda job: (job.result_until, job.new.id))
        for job in old[:limit]:
            assert job.outcome is not None
            job.outcome = job.outcome._replace(result=None, result_error=RESULT_PRUNED)
            job.result_until = None
        return len(old[:limit])

    def _forget_signals(self, now: int, limit: int) -> int:
        old = sorted((until, signal.n) for signal, until in self._signals if until <= now)[:limit]
        gone = {n for _, n in old}
        self._signals = [kept for kept in self._signals if kept[0].n not in gone]
        return len(old)

    # Schedules.

    def save_schedules(self, source: str, schedules: Sequence[StoredSchedule]) -> list[str]:
        with self._changed:
            theirs = {key for key, known in self._schedules.items() if known.source == source}
            for key in theirs - {schedule.key for schedule in schedules}:
                del self._schedules[key]
            left_alone = []
            for new in schedules:
                known = self._schedules.get(new.key)
                if known is None:
                    self._schedules[new.key] = replace(new, source=source, revision=1)
                elif known.source != source:
                    left_alone.append(new.key)
                elif known.fingerprint != new.fingerprint:
                    revision = known.revision + 1
                    changed = replace(new, source=source, paused=known.paused, last_job=known.last_job)
                    self._schedules[new.key] = replace(changed, revision=revision)
            self._notify()
            return left_alone

    def put_schedule(self, schedule: StoredSchedule, actor: str, reason: str) -> bool:
        with self._changed:
            known = self._schedules.get(schedule.key)
            if (0 if known is None else known.revision) != schedule.revision:
                return False
            self._schedules[schedule.key] = replace(schedule, revision=schedule.revision + 1)
            self._audit.append(Audit(self.clock.now(), actor, "schedule", reason, 0))
            self._notify()
            return True

    def remove_schedule(self, key: str, actor: str, reason: str) -> bool:
        with self._changed:
            removed = self._schedules.pop(key, None) is not None
            if removed:
                self._audit.append(Audit(self.clock.now(), actor, "remove_schedule", reason, 0))
            return removed

    def run_schedule(self, job: NewJob, actor: str, reason: str) -> bytes:
        with self._changed:
            [id] = self.insert([job])
            self._audit.append(Audit(self.clock.now(), actor, "run_schedule", reason, int(id == job.id)))
            return id

    def due_schedules(self, limit: int) -> DueSchedules:
        with self._changed:
            now = self.clock.now()
            live = [it for it in self._schedules.values() if it.next_at is not None and not it.paused]
            live.sort(key=lambda it: (it.next_at, it.key))
            due = [it for it in live if it.next_at is not None and it.next_at <= now][:limit]
            following = now if len(due) == limit else next((it.next_at for it in live[len(due) :]), None)
            return DueSchedules(due, None if following is None else following - now, now)

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
        with self._changed:
            known = self._schedules.get(schedule.key)
            if known is None or (known.revision, known.handled) != (schedule.revision, schedule.handled):
                return None
            last, ticked = known.last_job, []
            for moment, new in jobs:
                if (schedule.key, moment) in self._ticks:
                    continue
                job: bytes | None = None
                if known.overlap != "skip" or not self._unfinished(last):
                    [job] = self.insert([new])
                    last = job
                self._ticks[schedule.key, moment] = job
                ticked.append(Tick(moment, job))
            self._schedules[schedule.key] = replace(
                known,
                handled=handled,
                next_at=next_at,
                repeats=repeats,
                last_job=last,
                error=error,
                revision=known.revision + 1,
            )
            return ticked

    def _unfinished(self, id: bytes | None) -> bool:
        job = None if id is None else self._jobs.get(id)
        return job is not None and not job.state.finished

    def schedules(self, after: str = "", limit: int = 100) -> list[StoredSchedule]:
        with self._changed:
            return [self._schedules[key] for key in sorted(self._schedules) if key > after][:limit]

    def schedule(self, key: str) -> StoredSchedule | None:
        with self._changed:
            return self._schedules.get(key)

    def ticks(self, key: str, limit: int = 100) -> list[Tick]:
        with self._changed:
            found = [Tick(moment, job) for (its_key, moment), job in self._ticks.items() if its_key == key]
            return sorted(found, reverse=True)[:limit]

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
        with self._changed:
            now = self.clock.now()
            found = (job for id, job in sorted(self._jobs.items()) if after is None or id > after)
            batch = [job for job in found if self._selected(job, selection)][:limit]
            moved = asked = 0
            if change.act in RETRYING:
                stopped = self._stopped_callbacks(batch)
                self._close_gates([*batch, *stopped])
                for callback in stopped:
                    self._move(callback, Change(Act.RETRY), now)
            ended: dict[bytes, bool] = {}
            for job in batch:
                if job.token is not None:
                    asked += self._ask(job, change, job.token, reason)
                elif change.act in (Act.CANCEL, Act.STOP) and not job.state.finished:
                    self._end(job, kept_reason(change.act, reason), now)
                    ended[job.new.id] = False
                else:
                    moved += self._move(job, change, now)
            self._open_gates(ended, now)
            moved += len(ended)
            self._audit.append(Audit(now, actor, change.act, reason, moved + asked))
            self._notify()
            return Moved(moved, asked, batch[-1].new.id if len(batch) == limit else None)

    def _stopped_callbacks(self, batch: Sequence[_Job]) -> list[_Job]:
        """Of jobs that go round again, those that were cancelled because of how these ended, with theirs."""
        again = {job.new.id for job in batch if job.state in (JobState.FAILED, JobState.CANCELLED)}
        callbacks = [job for job in self._jobs.values() if job.new.member is not None and job.new.member[0] in again]
        hurt = [job for job in callbacks if job.outcome is not None and job.outcome.reason == HURT]
        return [*hurt, *self._stopped_callbacks(hurt)] if hurt else []

    def _ask(self, job: _Job, change: Change, token: Token, reason: str) -> bool:
        if change.act not in ORDERS:
            return False
        job.order = Order(ORDERS[change.act], token, kept_reason(change.act, reason), change.seal)
        job.entries.pop((RELOAD, ""), None)
        if change.act is Act.RELOAD:
            job.entries[RELOAD, ""] = change.payload
        return True

    def _close_gates(self, batch: Sequence[_Job]) -> None:
        """Whoever waits for one that goes round again, or may still go round with it, waits for its new end."""
        again = {job.new.id for job in batch if job.state in (JobState.FAILED, JobState.CANCELLED)}
        for job in self._jobs.values():
            if job.state in (JobState.FAILED, JobState.CANCELLED) or job.waits_on == GATE:
                job.parents |= {id: (job.parents[id][0], None) for id in job.parents.keys() & again}
            if job.new.id in again:  # how the others ended is no longer held against it
                hurt = [id for id, how in job.parents.items() if how == (Need.SUCCESS, False)]
                job.parents |= dict.fromkeys(hurt, (Need.SUCCESS, True))

    def _move(self, job: _Job, change: Change, now: int) -> bool:
        if change.act is Act.RELOAD and job.state is not JobState.SUCCEEDED:
            job.new = job.new._replace(payload=change.payload)
        match change.act:
            case Act.RETRY | Act.RESTART | Act.RELOAD if job.state in (JobState.FAILED, JobState.CANCELLED):
                self._keep_last_failure(job)
                job.attempts = job.losses = job.strays = 0
                job.suspect = False
                job.become_due(now)
                job.outcome = job.finished_at = job.started_at = job.expires_at = None
                job.prune_at = job.result_until = None
            case Act.RELOAD if not job.state.finished:
                job.expires_at = None
            case Act.RUN_NOW if job.state is JobState.SCHEDULED:
                job.become_due(now)
            case Act.DISCARD:
                self._free_permits(job)
                self._free_unique(job)
                del self._jobs[job.new.id]
                self._open_gates({job.new.id: False}, now)
            case Act.CHANGE if not job.state.finished:
                self._change(job, change)
            case _:
                return False
        job.epoch += 1
        return True

    def _change(self, job: _Job, change: Change) -> None:
        if change.priority is not None:
            if job.state is not JobState.SCHEDULED:
                job.order_key += (job.priority - change.priority) * job.ageing
            job.priority = change.priority
        if change.queue is not None:
            if job.waits_on.startswith(FAIR):
                job.waits_on = fair_line(change.queue, str(job.new.share))
            job.queue = change.queue

    def _keep_last_failure(self, job: _Job) -> None:
        last = job.outcome
        if last is not None and last.failure is not None and job.finished_at is not None:
            number = job.attempts + (not last.spent)
            job.failures.append(
                (number, last.owner or last.token.process, job.started_at, job.finished_at, last.failure, last.spent)
            )

    def reseal(self, id: bytes, payload: bytes, actor: str, reason: str) -> bool:
        with self._changed:
            job = self._jobs.get(id)
            if job is None or job.state not in (JobState.FAILED, JobState.CANCELLED):
                return False
            job.new = job.new._replace(payload=payload)
            self._audit.append(Audit(self.clock.now(), actor, "reseal", reason, 1))
            return True

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
        with self._changed:
            until = self.clock.now() + length if length is not None else until
            end = to_datetime(until) if until is not None else None
            self._pauses[kind, name] = Pause(name, end, reason, actor, kind)
            self._audit.append(Audit(self.clock.now(), actor, "pause", reason, 0))

    def resume(self, name: str, actor: str, reason: str, *, kind: Paused = Paused.QUEUE) -> bool:
        with self._changed:
            was_paused = self._pauses.pop((kind, name), None) is not None
            if kind is Paused.TASK:
                self._unpark(name)
            self._audit.append(Audit(self.clock.now(), actor, "resume", reason, 0))
            self._notify()
            return was_paused

    def _paused(self, kind: Paused, name: str, now: int) -> bool:
        pause = self._pauses.get((kind, name))
        return pause is not None and (pause.until is None or pause.until > to_datetime(now))

    def set_limit(self, key: str, to: int | None, actor: str, reason: str) -> None:
        with self._changed:
            if to is None:
                self._set_limits.pop(key, None)
            else:
                self._set_limits[key] = to
            self._audit.append(Audit(self.clock.now(), actor, "set_limit", reason, 0))
            self._notify()

    # Looking.

    def jobs(
        self, selection: Selection, after: bytes | None = None, limit: int = 100, *, newest_first: bool = False
    ) -> list[StoredJob]:
        with self._changed:
            ids = sorted(self._jobs, reverse=newest_first)
            found = (self._jobs[id] for id in ids if after is None or (id < after if newest_first else id > after))
            return [self._view(job) for job in found if self._selected(job, selection)][:limit]

    def job(self, id: bytes) -> StoredJob | None:
        with self._changed:
            job = self._look_up(id, self.clock.now())
            return self._view(job, wide=True) if job is not None else None

    def _look_up(self, id: bytes | None, now: int) -> _Job | None:
        """The job, unless it is kept no longer."""
        job = None if id is None else self._jobs.get(id)
        return None if job is None or (job.prune_at is not None and job.prune_at <= now) else job

    def entries(self, id: bytes) -> list[Entry]:
        with self._changed:
            job = self._look_up(id, self.clock.now())
            return [Entry(kind, name, data) for (kind, name), data in sorted(job.entries.items())] if job else []

    def members(self, flow: bytes, after: int = -1, limit: int = 100) -> list[tuple[int, StoredJob]]:
        with self._changed:
            now = self.clock.now()
            found = sorted((place, id) for (its_flow, place), id in self._members.items() if its_flow == flow)
            jobs = ((place, self._look_up(id, now)) for place, id in found if place > after)
            kept = islice(((place, job) for place, job in jobs if job is not None), limit)
            rows = [(place, replace(self._view(job, wide=True), failures=())) for place, job in kept]
            return rows[: _fitting(len(job.payload) + len(job.result or b"") for _, job in rows)]

    def flow_counts(self, flow: bytes) -> dict[JobState, int]:
        with self._changed:
            ids = [id for (its_flow, place), id in self._members.items() if its_flow == flow and place >= 0]
            return dict(Counter(self._jobs[id].state for id in ids if id in self._jobs))

    def queues(self) -> list[QueueCounts]:
        with self._changed:
            pauses = {pause.name: pause for pause in self.pauses() if pause.kind is Paused.QUEUE}
            found = {name: QueueCounts(name) for name in pauses}
            for job in self._jobs.values():
                counts = found.setdefault(job.queue, QueueCounts(job.queue)).counts
                counts[job.state] = counts.get(job.state, 0) + 1
            return [QueueCounts(name, found[name].counts, pauses.get(name)) for name in sorted(found)]

    def pauses(self) -> list[Pause]:
        with self._changed:
            now = self.clock.now()
            return [pause for (kind, name), pause in sorted(self._pauses.items()) if self._paused(kind, name, now)]

    def limits(self, after: str = "", limit: int = 100) -> list[LimitView]:
        with self._changed:
            lines = (job.waits_on for job in self._jobs.values() if job.state is JobState.WAITING)
            waiting = Counter(line.removeprefix(LIMIT) for line in lines if line.startswith(LIMIT))
            holders = {key: len(taken) for key, taken in self._permits.items() if taken}
            keys = sorted(key for key in {*waiting, *holders, *self._set_limits} if key > after)[:limit]
            return [LimitView(key, self._set_limits.get(key), holders.get(key, 0), waiting.get(key, 0)) for key in keys]

    def set_weight(self, share: str, weight: int | None, actor: str, reason: str) -> None:
        with self._changed:
            if weight is None:
                self._weights.pop(share, None)
            else:
                self._weights[share] = weight
            self._audit.append(Audit(self.clock.now(), actor, "set_weight", reason, 0))

    def weights(self) -> dict[str, int]:
        with self._changed:
            return dict(sorted(self._weights.items()))

    def rates(self, after: str = "", limit: int = 100) -> list[RateView]:
        with self._changed:
            now = self.clock.now()
            waiting = Counter(job.waits_on for job in self._jobs.values() if job.state is JobState.WAITING)
            found = sorted((key, rate) for key, rate in self._rates.items() if key > after)[:limit]
            return [
                RateView(key, it.pace, max(0, it.bucket.opens_at(it.pace) - now), waiting[rate_line(key)])
                for key, it in found
            ]

    def processes(self) -> list[ProcessView]:
        with self._changed:
            running: dict[bytes, int] = {}
            for job in self._jobs.values():
                if job.token is not None:
                    running[job.token.process] = running.get(job.token.process, 0) + 1
            return [
                ProcessView(
                    to_text(id),
                    known.info.role,
                    known.info.host,
                    known.info.pid,
                    known.info.queues,
                    to_datetime(known.started_at),
                    known.lease_left(self.clock) / SECOND,
                    running.get(id, 0),
                )
                for id, known in sorted(self._processes.items())
            ]

    def audit(self, limit: int = 100) -> list[Audit]:
        with self._changed:
            return self._audit[::-1][:limit]

    def _selected(self, job: _Job, selection: Selection) -> bool:
        return (
            _within(job.new.id, selection.ids)
            and _within(job.state, selection.states)
            and _within(job.queue, selection.queues)
            and _within(job.new.task, selection.tasks)
            and (selection.flow is None or (job.new.member is not None and job.new.member[0] == selection.flow))
            and (selection.tags is None or bool(set(job.new.tags) & set(selection.tags)))
            and _between(job.created_at, selection.created_from, selection.created_before)
            and _between(job.finished_at, selection.finished_from, selection.finished_before)
        )

    def _view(self, job: _Job, *, wide: bool = False) -> StoredJob:
        last = job.outcome
        if last is not None and job.result_until is not None and job.result_until <= self.clock.now():
            last = last._replace(result=None, result_error=RESULT_PRUNED)
        owner = job.token.process if job.token is not None else (last.owner or last.token.process) if last else None
        return StoredJob(
            id=to_text(job.new.id),
            task=job.new.task,
            state=job.state,
            queue=job.queue,
            priority=job.priority,
            attempts=job.attempts,
            losses=job.losses,
            created_at=to_datetime(job.created_at),
            run_at=_moment(job.run_at),
            expires_at=_moment(job.expires_at),
            claimed_at=_moment(job.claimed_at),
            started_at=_moment(job.started_at),
            finished_at=_moment(job.finished_at),
            process=to_text(owner) if owner else None,
            share=job.new.share,
            tags=job.new.tags,
            reason=last.reason if last is not None else None,
            failure=last.failure if last is not None else None,
            result=last.result if wide and last is not None else None,
            result_error=last.result_error if last is not None else None,
            awaits=job.awaits,
            failures=tuple(self._attempt(*row) for row in job.failures) if wide else (),
            payload=job.new.payload if wide else b"",
        )

    def _attempt(
        self, number: int, process: bytes, began: int | None, ended: int, failure: bytes, spent: bool
    ) -> StoredAttempt:
        return StoredAttempt(number, to_text(process), _moment(began), to_datetime(ended), failure, spent)

    # Waiting.

    def watch(self, queues: Selected) -> Watch:
        return _MemoryWatch(self._changed, lambda: self._changes)

    def _notify(self) -> None:
        self._changes += 1
        self._changed.notify_all()

    def watch_endings(self) -> Watch:
        return self.watch(())

    def ended(self, ids: Collection[bytes]) -> set[bytes]:
        with self._changed:
            return {id for id in ids if id not in self._jobs or self._jobs[id].state.finished}

    # The store itself.

    def own_key(self, *, make: bool = True) -> bytes:
        return self._key

    def backup(self, target: Path, *, replace: bool, progress: Callable[[int, int], None]) -> list[Path]:
        raise ConfigError("Jobs in memory end with their process: there is nothing to back up. Use a SQLite store.")

    def migrate(self) -> list[str]:
        return []

    def schema_version(self) -> int:
        return 0

    def close(self) -> None:
        self.close_room()


def _fitting(sizes: Iterable[int]) -> int:
    """How many of the first may come along at once."""
    return sum(number == 0 or size <= CLAIM_BYTES for number, size in enumerate(accumulate(sizes)))


def _times(new: NewJob, now: int) -> tuple[int | None, int | None]:
    """When it may run, and when it expires."""
    run_at = now + new.delay if new.delay is not None else new.run_at
    return run_at, now + new.lifetime if new.lifetime is not None else new.expires_at


class _MemoryWatch(Watch):
    def __init__(self, changed: _Changed, changes: Callable[[], int]) -> None:
        self._changed = changed
        self._changes = changes
        self._seen = changes()
        self._woken = False

    def wait(self, timeout: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._woken or self._changes() != self._seen, timeout)
            changed = self._changes() != self._seen
            self._seen = self._changes()
            self._woken = False
            return changed

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def close(self) -> None:
        pass


def _stands_with(other: _Job, job: _Job) -> bool:
    """Whether it has its turn already and stands where the job may come to stand."""
    if other.rank != job.rank:
        return False
    if other.state is JobState.READY:
        return other.queue == job.queue
    return other.state is JobState.WAITING and other.waits_on in ("", *job.lines)


def _moment(microseconds: int | None) -> datetime | None:
    return to_datetime(microseconds) if microseconds is not None else None


def _between(moment: int | None, begin: int | None, end: int | None) -> bool:
    if moment is None:
        return begin is None and end is None
    return (begin is None or begin <= moment) and (end is None or moment < end)


def _within(value: object, allowed: Collection[object] | None) -> bool:
    return allowed is None or value in allowed
