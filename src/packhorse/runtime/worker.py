"""The worker: one exchange per turn. Batches form by themselves: what ends during one exchange goes into the next."""

from __future__ import annotations

import logging
import os
import random
import secrets
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from packhorse.app import Packhorse
from packhorse.clock import SECOND
from packhorse.errors import StoreDataError
from packhorse.failpoints import failpoint
from packhorse.ids import to_text
from packhorse.job import Claim, JobState, Token
from packhorse.outcome import Outcome, bare, broken, expire, release
from packhorse.queues import Selected
from packhorse.runtime.begun import Begun
from packhorse.runtime.cautious import Cautious, Held, tokens_of
from packhorse.runtime.isolated import Pool
from packhorse.runtime.perform import Performer
from packhorse.runtime.process import Process, memory_now, place_of
from packhorse.runtime.put_off import PutOff
from packhorse.runtime.seats import Why
from packhorse.runtime.slots import Slots
from packhorse.runtime.wakeup import Watcher
from packhorse.seals import is_varied
from packhorse.stores.contract import CLAIM_BYTES, EXCHANGE_BYTES, EXCHANGE_JOBS, Exchanged, Order

log = logging.getLogger("packhorse.worker")

AHEAD = 0.02  # seconds of work that a worker claims beyond its free slots
PATIENCE = 0.1  # seconds after which a claim that found no slot goes back
DOUBT_EVERY = 30.0  # seconds between looks at what the store thinks we hold
UNKNOWN_PACE = 1.0  # seconds a job takes, as long as nothing is known: too slow to claim ahead
# A worker is not woken for so many seconds after a look, and then looks once more: where its jobs are quick, the next
# exchange comes by itself, and where it woke for nothing, others are at work and would wake it for every commit.
LINGER = 0.005
MANY = 8  # claims for each slot from which on an exchange is worth a short wait for more outcomes
STALLED = 1.0  # seconds after which a blocked event loop is worth telling
LONG = 0.05  # seconds after which a job is no quick one: worth telling the store that it began, and orders may reach it
LISTEN_EVERY = 0.1  # seconds between looks for orders, as long as there is a reason to look


class Recycle(NamedTuple):
    """When a worker process has done enough: after so many jobs, or holding so many bytes."""

    jobs: int | None = None
    memory: int | None = None


NEVER = Recycle()


class Worker:
    name = "worker"

    def __init__(
        self,
        app: Packhorse,
        queues: Selected,
        concurrency: int,
        *,
        burst: bool = False,
        max_jobs: int | None = None,
        recycle: Recycle = NEVER,
        pool: Pool | None = None,
        begun: Begun | None = None,
    ) -> None:
        self.queues = ",".join(map(str, queues))
        self._app = app
        self._selected = queues
        self._concurrency = concurrency
        self._burst = burst
        self._jobs_left = max_jobs
        self._recycle = recycle
        self._performed = 0
        self._pool = pool
        self._performer = Performer(app, self._stop_by, self._ask, self._force, pool=pool)
        self._slots = Slots(concurrency, self._performer, self._hand_in, pool, begun)
        self._begun = begun
        self._handed = 0  # to the slots, since what ran was kept in `begun`
        if pool is not None and begun is not None:
            pool.mark_begun = begun.begin_alone
        self._cautious = Cautious(app)
        self._stuck: set[Token] = set()
        self._stall_told = False
        self._ended: deque[Outcome] = deque()
        self._held: dict[Token, Claim | None] = {}  # None where the store has it as ours and never told us
        self._put_off = PutOff()
        self._unannounced: set[Token] = set()
        self._pace = UNKNOWN_PACE
        self._bytes = 0  # of the payloads that it holds
        self._size = 1.0  # bytes of a payload, of late
        self._quiet = False
        self._quiet_told = False
        self._lingers = False
        self._awaited = 0  # outcomes that the next exchange may wait for, while it lingers
        self._took = 0.0  # seconds, by the last exchange
        self._called = False
        self._in_doubt = False
        self._lost_lease = False
        self._doubt_at = time.monotonic() + DOUBT_EVERY
        self._long: list[Token] = []
        self._listen_at = 0.0
        self._watcher: Watcher | None = None

    def begin(self, process: Process) -> None:
        self._process = process
        process.guard_tasks()
        if self._watcher is None:
            self._warn()
            self._watcher = Watcher(self._app.store, self._selected, self._call)
            if self._pool is not None and any(task.performed.isolate for task in self._app.tasks.values()):
                self._pool.warm(min(self._concurrency, os.cpu_count() or 1))

    def _call(self) -> None:
        """Called by the watcher: there may be something."""
        self._called = True
        self._process.wake.set()

    def _warn(self) -> None:
        if names := [it.name for it in self._app.tasks.values() if getattr(it.stored.codec, "runs_code", False)]:
            log.warning(
                "the codec of %s can run any code: whoever has a key of application %r can run it in this worker",
                ", ".join(sorted(names)),
                self._app.name,
            )

    def turn(self) -> float:
        self._awaited = 0
        if self._quiet and self._pool is not None and (stop_by := self._stop_by()) is not None:
            self._pool.tell_leaving(max(0.0, stop_by - time.monotonic()))
        if self._quiet and not self._quiet_told and self._stop_by() is None:
            self._quiet_told = True
            log.info("the worker with pid %d claims no more jobs", os.getpid())
        after_failure = self._in_doubt
        if after_failure or time.monotonic() >= self._doubt_at:
            self._resolve_doubt()
        self._take_back(older_than=0 if self._quiet else PATIENCE)
        self._gather()
        self._ended.extendleft(self._put_off.due())
        outcomes = self._collect()
        busy = self._in_hand - len(self._stuck) - len(outcomes)
        announced = [] if after_failure else self._cautious.next(self._concurrency - busy + len(self._cautious))
        room = 0 if after_failure else self._room(busy, outcomes)
        starting = max(0, min(room, self._concurrency - busy))
        reply = self._exchange(outcomes, room, starting, announced)
        self._hand_out(reply, starting)
        if outcomes and self._recycle != NEVER:
            self._look_at_age(len(outcomes))
        if self._long:
            self._listen(active=bool(outcomes or reply.claims))
        return min(self._rest(room, outcomes, reply), self._put_off.rest)

    @property
    def _in_hand(self) -> int:
        """Jobs that have a slot, wait for one, or are about to be written."""
        return len(self._held) - len(self._put_off)

    def _listen(self, active: bool) -> None:
        """Hear what operators ask of jobs that have run for a while; quick ones end before an order could come."""
        now = time.monotonic()
        if active and now < self._listen_at:
            return
        self._listen_at = now + LISTEN_EVERY
        if orders := self._app.store.orders([self._process.id]):
            self.obey(self._app.control.trusted(orders))

    def _look_at_age(self, ended: int) -> None:
        jobs, memory = self._recycle
        self._performed += ended
        if jobs is not None and self._performed >= jobs:
            self._process.recycle(f"it has performed {self._performed:,} jobs")
        elif memory is not None and (held := memory_now()) > memory:
            self._process.recycle(f"it holds {held / 1e6:.0f} MB")

    def obey(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if order.token in self._held:
                self._slots.obey(order)

    def quiet(self) -> None:
        self._quiet = True

    def leave(self) -> None:
        """The time to finish is over. Called by the watch over the lease, too, whatever the turn waits for."""
        self._take_back(older_than=0)
        self._slots.interrupt_all(Why.LEAVING)

    @property
    def drained(self) -> bool:
        return not self._held and not self._ended

    @property
    def performing(self) -> bool:
        return self._slots.busy or self._slots.waiting

    @property
    def stuck(self) -> bool:
        return bool(self._stuck) and not self._ended and self._stuck.issuperset(self._held)

    def end(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
        self._slots.close()
        if self._pool is not None:
            self._pool.close()
        self._performer.close()

    def _ask(self, token: Token, why: Why) -> bool:
        """Called by the deadlines."""
        reached = self._slots.interrupt(token, why)
        if reached and why is not Why.LEAVING:
            log.warning("job %s is interrupted: %s", to_text(token.id), why)
        return reached

    def _force(self, token: Token, why: Why) -> None:
        """A thread cannot be ended but with its process, which ends once the others have finished."""
        if self._slots.end(token, why):
            return
        if why is not Why.TIMEOUT:
            if token.process != self._process.id:  # others may perform it; nothing was claimed since
                self._process.end_by_force()
                self._stuck.add(token)
                self._slots.give_up(token)
            return
        self._stuck.add(token)
        log.error("job %s does not end though its time is over", to_text(token.id))
        if not self._process.replace(token, "a job that does not end"):
            self._slots.give_up(token)
            self._process.wake.set()

    def _stop_by(self) -> float | None:
        return self._process.stop_by

    def _hand_in(self, outcome: Outcome) -> None:
        """Called by the slots."""
        self._ended.append(outcome if outcome.failure is None else self._app.sealed(outcome))
        if len(self._ended) >= self._awaited:
            self._process.wake.set()

    def _take_back(self, older_than: float) -> None:
        """Claims that found no slot return to their place; the pace that asked for them was wrong."""
        for claim in [*self._slots.unstarted(older_than), *self._cautious.waited(older_than)]:
            failpoint("worker.release")
            self._ended.append(release(claim.token))
            self._pace = UNKNOWN_PACE

    def _gather(self) -> None:
        """Quick jobs by the hundred: an exchange of half of them costs little more than one of the first few."""
        until = time.monotonic() + LINGER
        many = MANY * self._concurrency + len(self._cautious)
        while self._pace < LINGER and self._in_hand > max(2 * len(self._ended), many):
            if time.monotonic() >= until:
                return
            time.sleep(LINGER / 5)

    def _collect(self) -> list[Outcome]:
        """What ended, within the bounds of one exchange."""
        batch: list[Outcome] = []
        size = 0
        while self._ended and len(batch) < EXCHANGE_JOBS:
            size += self._ended[0].size
            if batch and size > EXCHANGE_BYTES:
                break
            batch.append(self._ended.popleft())
        self._measure(batch)
        return batch

    def _measure(self, outcomes: list[Outcome]) -> None:
        """Keep the mean length of a job. Slower is believed sooner than faster, so that slow jobs are not hoarded."""
        durations = [outcome.duration for outcome in outcomes if outcome.duration is not None]
        if durations:
            mean = max(1e-6, sum(durations) / len(durations) / SECOND)
            self._pace = (self._pace + mean) / 2 if mean > self._pace else (self._pace * mean) ** 0.5

    def _room(self, busy: int, outcomes: list[Outcome]) -> int:
        """How many jobs to ask for: the free slots, and what will start within AHEAD at the pace of late."""
        free = self._concurrency - busy
        if self._slots.stalled:
            self._tell_stalled()
            return 0
        self._stall_told = False
        if self._quiet or self._put_off.is_full or (free <= 0 and not outcomes):
            return 0
        if self._lost_lease and self._holds_for_another():
            return 0
        ahead = min(self._app.settings.lookahead, int(self._concurrency * AHEAD / self._pace), self._fitting())
        if self._cautious:
            ahead = 0  # so that slots become free for them
        room = min(free + ahead, EXCHANGE_JOBS)
        if self._jobs_left is not None:
            room = min(room, self._jobs_left - busy - sum(outcome.spent for outcome in outcomes))
        return max(0, room)

    def _fitting(self) -> int:
        """How many payloads may come to wait for a slot, beside those that do."""
        waiting = self._bytes if self._bytes < CLAIM_BYTES // 2 else self._slots.bytes_waiting
        return max(0, int((CLAIM_BYTES - waiting) / self._size))

    def _holds_for_another(self) -> bool:
        """Under an id whose lease was lost. The next claim may be of the same job, which must not run twice at once."""
        id = self._process.id
        self._lost_lease = any(token.process != id for token in self._held if token not in self._stuck)
        return self._lost_lease

    def _tell_stalled(self) -> None:
        if self._slots.stalled < STALLED or self._stall_told:
            return
        self._stall_told = True
        names = {claim.task for token in self._slots.on_loop if (claim := self._held.get(token)) is not None}
        log.error(
            "the event loop is blocked, and no job is claimed meanwhile: one of %s waits or computes without await",
            ", ".join(sorted(names)),
        )

    def _exchange(self, outcomes: list[Outcome], room: int, starting: int, announced: list[Held]) -> Exchanged:
        failpoint("worker.before_exchange")
        self._long = self._slots.running_for(LONG)
        started = [token for token in self._long if token in self._unannounced]
        started += tokens_of(announced)
        id, sent_at = self._process.id, time.monotonic()
        try:
            offered = [outcome for outcome in outcomes if not outcome.written]
            reply, told = self._offer(offered, room, starting, started)
        except BaseException:
            self._ended.extendleft(reversed(outcomes))
            self._cautious.put_back(announced)
            self._in_doubt = True
            raise
        self._took = time.monotonic() - sent_at
        failpoint("worker.after_exchange")
        if told:
            self._unannounced.difference_update(started)
        if reply.put_off or self._put_off:
            outcomes = self._keep_put_off(outcomes, started, set(reply.put_off))
        told_events, refused = bool(self._app.events), set(reply.refused)
        for outcome in outcomes:
            claim = self._held.pop(outcome.token, None)
            if claim is not None:
                self._bytes -= len(claim.payload)
            if self._stuck:
                self._stuck.discard(outcome.token)
            self._unannounced.discard(outcome.token)
            if self._performer.orders:
                self._performer.orders.pop(outcome.token, None)
            if self._jobs_left is not None:
                self._jobs_left -= outcome.spent
            if told_events and claim is not None and outcome.token not in refused:
                self._performer.tell_ended(claim, outcome)
        for token in reply.refused:
            log.warning("job %s had moved on; what this worker made of it was refused", to_text(token.id))
        if reply.alive and (offered or reply.claims):
            self._process.note_renewed(id, sent_at)
        untold = set(reply.put_off) if told else set(started)
        self._cautious.put_back([one for one in announced if one[1].token in untold])
        if not self._begin_announced([one for one in announced if one[1].token not in untold], reply):
            return reply._replace(claims=[], alive=False)
        return reply

    def _begin_announced(self, announced: list[Held], reply: Exchanged) -> bool:
        """Let them begin. Returns whether what the exchange gave may begin, too."""
        beginning = [claim for _, claim in announced]
        try:
            may_begin = reply.alive and self._may_begin([*reply.claims, *beginning])
        except BaseException:
            self._cautious.put_back(announced)
            raise
        if may_begin:
            self._put(beginning)
        else:
            self._lose_lease([*reply.claims, *beginning])
        return may_begin

    def _keep_put_off(self, outcomes: list[Outcome], started: list[Token], tokens: set[Token]) -> list[Outcome]:
        """The others, which are written."""
        self._unannounced.update(tokens.intersection(started))
        put_off = [outcome for outcome in outcomes if outcome.token in tokens]
        written = [outcome for outcome in outcomes if outcome.token not in tokens]
        self._put_off.note(len(written), put_off)
        return written

    def _may_begin(self, claims: Sequence[Claim]) -> bool:
        """The answer may have come so late that the lease is over, and others perform what it gives."""
        try:
            return not claims or self._process.confirm_lease()
        except BaseException:
            self._in_doubt = True
            raise

    def _lose_lease(self, claims: Sequence[Claim]) -> None:
        """Others may perform its jobs already: those that have begun are stopped, the others go back."""
        for claim in claims:
            if claim.token not in self._held:
                self._held[claim.token] = claim
                self._bytes += len(claim.payload)
            self._ended.append(release(claim.token))
        self._lost_lease = True
        self.leave()
        self._process.enroll_anew()

    def _offer(self, outcomes: list[Outcome], room: int, starting: int, started: list[Token]) -> tuple[Exchanged, bool]:
        """Exchange. Returns the answer, and whether the store was told of the started ones."""
        store, process = self._app.store, self._process.id
        try:
            run = int(AHEAD / self._pace) if self._pace < LINGER else 1
            reply = store.exchange(
                process, new_nonce(), outcomes, self._selected, room, starting=starting, started=started, run=run
            )
        except StoreDataError as error:
            return self._write_apart(outcomes, error), not started
        return reply, True

    def _write_apart(self, outcomes: list[Outcome], error: StoreDataError) -> Exchanged:
        """Some value the store will never take: halve the batch until it stands alone, then write that one bare."""
        store, process = self._app.store, self._process.id
        if len(outcomes) == 1:
            log.error("job %s: its outcome is stored bare: %s", to_text(outcomes[0].token.id), error)
            return self._write_bare(outcomes[0], error)
        middle = len(outcomes) // 2
        refused: list[Token] = []
        put_off: list[Token] = []
        for half in (outcomes[:middle], outcomes[middle:]):
            try:
                reply = store.exchange(process, new_nonce(), half, self._selected, 0)
            except StoreDataError as again:
                reply = self._write_apart(half, again)
            refused += reply.refused
            put_off += reply.put_off
        return reply._replace(refused=refused, put_off=put_off)

    def _write_bare(self, outcome: Outcome, error: StoreDataError) -> Exchanged:
        store, process = self._app.store, self._process.id
        try:
            return store.exchange(process, new_nonce(), [self._app.sealed(bare(outcome, error))], self._selected, 0)
        except StoreDataError:  # the row itself is spoiled; to try it again and again would hold up the others
            return store.exchange(process, new_nonce(), [], self._selected, 0)._replace(refused=[outcome.token])

    def _resolve_doubt(self) -> None:
        """What the store gave us in an exchange that failed, and so never told us, goes back unspent."""
        for token in self._app.store.held(self._process.id):
            if token not in self._held:
                self._held[token] = None
                self._ended.append(release(token))
        self._in_doubt = False
        self._doubt_at = time.monotonic() + DOUBT_EVERY

    def _hand_out(self, reply: Exchanged, starting: int) -> None:
        if not reply.claims:
            return
        failpoint("worker.claimed")
        fresh: list[Claim] = []
        strict, perhaps, size = self._cautious.strict, [], 0
        for place, claim in enumerate(reply.claims):
            self._held[claim.token] = claim
            size += len(claim.payload)
            if place >= starting and (
                claim.losses or claim.suspect or claim.task in strict or is_varied(claim.payload)
            ):
                perhaps.append(claim)
            try:
                if claim.expires_at is not None and claim.expires_at <= reply.now:
                    self._ended.append(self._performer.kept(claim, expire(claim.token)))
                elif type(claim.token.id) is not bytes:
                    raise TypeError("a job's id must be bytes")
                else:
                    fresh.append(claim)
            except Exception as error:  # whatever is wrong with one job, the others go on
                self._ended.append(self._spoiled(claim, error))
        self._bytes += size
        self._size = max(1.0, size / len(reply.claims), (self._size + size / len(reply.claims)) / 2)
        self._unannounced.update(claim.token for claim in reply.claims[starting:])
        self._put(self._without_cautious(fresh, perhaps) if perhaps else fresh)

    def _without_cautious(self, fresh: list[Claim], perhaps: list[Claim]) -> list[Claim]:
        """Hold those back that must not begin before the store was told."""
        at_once, going_back = self._cautious.hold_back(fresh, perhaps)
        self._ended.extend(release(claim.token) for claim in going_back)
        return at_once

    def _put(self, claims: list[Claim]) -> None:
        if self._begun is not None:
            self._handed += len(claims)
            if self._handed > self._begun.quarter:
                alone = [] if self._pool is None else self._pool.performing
                self._begun.keep([*self._slots.running, *self._put_off.tokens], alone)
                self._handed = len(claims)
        self._slots.put(claims)

    def _spoiled(self, claim: Claim, error: Exception) -> Outcome:
        log.error("a claimed job makes no sense and fails: %s", place_of(error))
        try:
            return self._app.sealed(broken(claim.token, error)._replace(spent=False))
        except Exception:  # nothing can be sealed for such an id
            return Outcome(claim.token, JobState.FAILED, spent=False)

    def _rest(self, room: int, outcomes: list[Outcome], reply: Exchanged) -> float:
        if self._ended or (reply.cut and len(self._held) < self._concurrency and not self._quiet):
            return 0
        if not self._held and not self._quiet and self._finished_its_part(room, reply):
            self._process.stop()
            return 0
        active = bool(outcomes or reply.claims)
        self._lingers = self._pace < LINGER if active else self._called and not self._lingers
        self._called = False
        free = self._in_hand < self._concurrency and not self._quiet
        if self._watcher is not None:
            free = self._in_hand - len(self._stuck) < self._concurrency and not self._quiet
            self._watcher.set_armed((free or bool(self._long)) and not self._lingers)
        if self._lingers:
            return LISTEN_EVERY if self._long and not free else self._linger(room, reply)
        # Not all workers of a site at the same moment.
        rest = (
            PATIENCE
            if self._slots.waiting or self._cautious
            else self._app.settings.polling_interval * random.uniform(1, 1.2)
        )
        if self._held and (active or not self._long):  # an order may be there that was not heard
            rest = min(rest, LISTEN_EVERY)
        return rest

    def _linger(self, room: int, reply: Exchanged) -> float:
        """Where nobody waits for a slot, outcomes may wait for each other.

        Where several jobs came and no more are there, others will come: at most half of the time goes into exchanges,
        and each has more to carry.
        """
        if self._in_hand > self._concurrency:
            return LINGER
        if 1 < len(reply.claims) < room:
            self._awaited = EXCHANGE_JOBS
            return min(LINGER, self._took)
        self._awaited = self._in_hand - len(self._long)
        return LINGER

    def _finished_its_part(self, room: int, reply: Exchanged) -> bool:
        nothing_ready = room > 0 and reply.alive and not reply.claims
        return (self._burst and nothing_ready) or (self._jobs_left is not None and self._jobs_left <= 0)


def new_nonce() -> int:
    return secrets.randbits(63)
