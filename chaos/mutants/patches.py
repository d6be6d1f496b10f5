"""The mutants. Each changes one thing; what it needs of Packhorse's inside is looked up by name, and missed aloud."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch as mock_patch

from packhorse import outcome as outcomes
from packhorse.interrupting import Guard
from packhorse.job import JobState, Token
from packhorse.runtime import dispatcher, orphans, process, slots, supervisor, worker
from packhorse.steps import Steps
from packhorse.stores import contract, memory, sql_store, sqlite, sqlite_connections, sqlite_exchange
from packhorse.stores import sql_admission as sqlite_admission
from packhorse.stores import sql_gates as sqlite_gates
from packhorse.stores import sql_schedules as sqlite_schedules
from packhorse.stores.contract import Orphan, Retention
from packhorse.stores.memory import MemoryStore
from packhorse.stores.sqlite import SQLiteStore

BOTH, MEMORY, SQLITE = ("memory", "sqlite"), ("memory",), ("sqlite",)


class Patches:
    """Put on together, taken off together."""

    def __init__(self) -> None:
        self._patches: list[Any] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        if not hasattr(owner, name):
            raise AttributeError(f"{owner.__name__} has no {name} any more: the mutant changes nothing")
        patching = mock_patch.object(owner, name, value)
        patching.start()
        self._patches.append(patching)

    def text(self, owner: Any, name: str, old: str, new: str) -> None:
        """In a statement."""
        statement: str = getattr(owner, name)
        if old not in statement:
            raise AttributeError(f"{name} does not say {old!r} any more: the mutant changes nothing")
        self.set(owner, name, statement.replace(old, new))

    def undo(self) -> None:
        for patching in reversed(self._patches):
            patching.stop()


@dataclass(frozen=True)
class Mutant:
    name: str
    put_on: Callable[[Patches], None]
    stores: tuple[str, ...] = BOTH
    shown_by: str = ""  # the scene that is played first
    processes: bool = False

    @property
    def says(self) -> str:
        return (self.put_on.__doc__ or "").strip()

    @contextmanager
    def on(self) -> Iterator[None]:
        patches = Patches()
        try:
            self.put_on(patches)
            yield
        finally:
            patches.undo()


MUTANTS: dict[str, Mutant] = {}


def mutant(
    *stores: str, shown_by: str = "", processes: bool = False
) -> Callable[[Callable[[Patches], None]], Callable[[Patches], None]]:
    def registered(put_on: Callable[[Patches], None]) -> Callable[[Patches], None]:
        name = put_on.__name__
        MUTANTS[name] = Mutant(name, put_on, stores or BOTH, shown_by, processes)
        return put_on

    return registered


# The fence.


@mutant(*MEMORY, shown_by="a_restored_machine_repeats_its_random_numbers")
def no_epoch_check(patches: Patches) -> None:
    """An old claim of the same process and nonce counts."""

    def held_under(self: Any, token: Any) -> Any:
        job = self._jobs.get(token.id)
        return job if job is not None and job.token is not None and job.token[:3] == token[:3] else None

    patches.set(MemoryStore, "_held_under", held_under)


@mutant(*MEMORY, shown_by="the_store_falls_back")
def no_nonce_check(patches: Patches) -> None:
    """A claim of the same process and epoch counts."""

    def held_under(self: Any, token: Any) -> Any:
        job = self._jobs.get(token.id)
        same = job is not None and job.token is not None
        same = same and (job.token.process, job.token.epoch) == (token.process, token.epoch)
        return job if same else None

    patches.set(MemoryStore, "_held_under", held_under)


@mutant(*MEMORY, shown_by="a_frozen_worker_comes_back_while_another_performs")
def rescue_and_finish_by_id_only(patches: Patches) -> None:
    """Whoever says so ends a running job."""

    def held_under(self: Any, token: Any) -> Any:
        job = self._jobs.get(token.id)
        return job if job is not None and job.token is not None else None

    patches.set(MemoryStore, "_held_under", held_under)


@mutant(*MEMORY, shown_by="a_frozen_worker_comes_back_when_all_is_over")
def finished_jobs_are_finished_again(patches: Patches) -> None:
    """An outcome is written over another."""
    patches.set(MemoryStore, "_held_under", lambda self, token: self._jobs.get(token.id))


_SQL_EPOCH = " and job.epoch = ended.epoch"
_SQL_NONCE = " and job.nonce = ended.nonce"


@mutant(*SQLITE, shown_by="a_restored_machine_repeats_its_random_numbers")
def sql_no_epoch_check(patches: Patches) -> None:
    """The statement that ends jobs well does not ask for the epoch."""
    patches.text(sqlite_exchange, "SUCCEED", _SQL_EPOCH, "")


@mutant(*SQLITE, shown_by="the_store_falls_back")
def sql_no_nonce_check(patches: Patches) -> None:
    """Nor for the nonce."""
    patches.text(sqlite_exchange, "SUCCEED", _SQL_NONCE, "")


@mutant(*SQLITE, shown_by="a_frozen_worker_comes_back_while_another_performs")
def sql_finish_by_id_only(patches: Patches) -> None:
    """Running is enough, whoever runs it."""
    fence = "job.process = ended.process and job.nonce = ended.nonce and job.epoch = ended.epoch"
    patches.text(sqlite_exchange, "SUCCEED", fence, "true")
    patches.text(sqlite_exchange, "FINISH", fence, "true")
    for name in ("SUCCEED", "FINISH"):
        patches.text(sqlite_exchange, name, "update job indexed by job_held set", "update job set")


@mutant(*SQLITE, shown_by="a_frozen_worker_comes_back_when_all_is_over")
def sql_finished_jobs_are_finished_again(patches: Patches) -> None:
    """Nor must it run at all."""
    fence = "job.process = ended.process and job.nonce = ended.nonce and job.epoch = ended.epoch"
    patches.text(sqlite_exchange, "SUCCEED", f"and job.state = 4\n      and {fence}", "")
    patches.text(sqlite_exchange, "SUCCEED", "update job indexed by job_held set", "update job set")
    original = sqlite_exchange.finish

    def finish(c: Any, outcomes: Any, now: int, in_use: Any) -> Any:
        for it in outcomes:
            c.execute("delete from ending where id = ?", (it.token.id,))
        return original(c, outcomes, now, in_use)

    patches.set(sqlite_exchange, "finish", finish)


@mutant(*SQLITE, shown_by="a_verdict_comes_late")
def sql_releases_by_id_only(patches: Patches) -> None:
    """What goes back or is tried again needs no token."""
    fence = "job.process = ended.process and job.nonce = ended.nonce and job.epoch = ended.epoch"
    patches.text(sqlite_exchange, "FINISH", fence, "true")
    patches.text(sqlite_exchange, "FINISH", "update job indexed by job_held set", "update job set")


@mutant(shown_by="a_restored_machine_repeats_its_random_numbers")
def epoch_is_reset_on_release(patches: Patches) -> None:
    """A job that goes back begins to count anew."""
    leave_memory, leave_sqlite = MemoryStore.leave, SQLiteStore.leave

    def in_memory(self: Any, process: bytes) -> None:
        leave_memory(self, process)
        for job in self._jobs.values():
            if job.state is JobState.READY:
                job.epoch = 0

    def in_sqlite(self: Any, process: bytes) -> None:
        leave_sqlite(self, process)
        self._write(lambda c: c.execute("update job set epoch = 0 where state = 3"))

    patches.set(MemoryStore, "leave", in_memory)
    patches.set(SQLiteStore, "leave", in_sqlite)


@mutant(shown_by="the_reply_to_a_release_is_lost")
def double_release(patches: Patches) -> None:
    """A release is taken as it comes, also from who has the job no longer."""
    exchange_memory, exchange_sqlite = MemoryStore.exchange, SQLiteStore.exchange

    def in_memory(self: Any, process: bytes, nonce: int, given: Any, *rest: Any, **named: Any) -> Any:
        for it in given:
            job = self._jobs.get(it.token.id)
            if it.state is JobState.READY and job is not None and job.token is not None:
                job.token, job.state = None, JobState.READY
        return exchange_memory(self, process, nonce, given, *rest, **named)

    def in_sqlite(self: Any, process: bytes, nonce: int, given: Any, *rest: Any, **named: Any) -> Any:
        back = "update job set state = 3 where state = 4 and id = ?"
        for it in given:
            if it.state is JobState.READY:
                self._write(lambda c, it=it: c.execute(back, (it.token.id,)))
        return exchange_sqlite(self, process, nonce, given, *rest, **named)

    patches.set(MemoryStore, "exchange", in_memory)
    patches.set(SQLiteStore, "exchange", in_sqlite)


@mutant(shown_by="a_frozen_worker_finds_that_its_job_is_gone")
def refused_records_are_ignored(patches: Patches) -> None:
    """A step that could not be kept is taken for kept."""

    def record(self: Any, kind: str, name: str, data: bytes) -> None:
        self._app.store.record(self._token, [contract.Entry(kind, name, data)])

    patches.set(Steps, "_record", record)


@mutant(shown_by="a_frozen_worker_finds_that_its_job_is_gone")
def records_need_no_claim(patches: Patches) -> None:
    """Anybody keeps steps of any job."""

    def in_memory(self: Any, token: Any, entries: Any) -> bool:
        job = self._jobs[token.id]
        job.entries.update({(entry.kind, entry.name): entry.data for entry in entries})
        return True

    patches.set(MemoryStore, "record", in_memory)
    patches.set(sqlite_exchange, "still_ours", lambda c, tokens: set(tokens))


# Leases.


@mutant(shown_by="a_machine_is_gone")
def late_renewal(patches: Patches) -> None:
    """A beat brings a lease back that had run out."""

    def renew(self: Any, process: bytes) -> bool:
        known = self._processes.get(process)
        if known is None:
            return False
        known.lease_until = self.clock.ticks() + known.lease
        return True

    patches.set(MemoryStore, "_renew", renew)
    patches.text(sql_store, "RENEW", "lease_until > ?", "? is not null")


@mutant(shown_by="a_worker_that_lives_keeps_its_job")
def adopt_without_lease_check(patches: Patches) -> None:
    """Jobs of the living are taken over, too."""
    adopt_memory, adopt_sqlite = MemoryStore.adopt, SQLiteStore.adopt

    def everybody(self: Any, adopter: bytes) -> list[bytes]:
        from packhorse.ids import from_text

        return [from_text(view.id) for view in self.processes() if from_text(view.id) != adopter]

    def in_memory(self: Any, adopter: bytes, nonce: int, limit: int, *, dead: Any = ()) -> list[Orphan]:
        return adopt_memory(self, adopter, nonce, limit, dead=everybody(self, adopter))

    def in_sqlite(self: Any, adopter: bytes, nonce: int, limit: int, *, dead: Any = ()) -> list[Orphan]:
        return adopt_sqlite(self, adopter, nonce, limit, dead=everybody(self, adopter))

    patches.set(MemoryStore, "adopt", in_memory)
    patches.set(SQLiteStore, "adopt", in_sqlite)


@mutant(shown_by="a_worker_is_killed")
def orphans_are_never_adopted(patches: Patches) -> None:
    """Who is dead keeps its jobs."""
    patches.set(MemoryStore, "adopt", lambda self, *given, **named: [])
    patches.set(SQLiteStore, "adopt", lambda self, *given, **named: [])


@mutant(shown_by="a_worker_without_a_lease_claims_nothing")
def claims_need_no_lease(patches: Patches) -> None:
    """A process whose lease is over goes on claiming, without enrolling anew."""
    exchange_memory = MemoryStore.exchange

    def in_memory(self: Any, process: bytes, *given: Any, **named: Any) -> Any:
        known = self._processes.get(process)
        before = None if known is None else known.lease_until
        if known is not None:
            known.lease_until = self.clock.ticks() + 1
        answer = exchange_memory(self, process, *given, **named)
        if known is not None:
            known.lease_until = before
        return answer

    patches.set(MemoryStore, "exchange", in_memory)
    patches.set(SQLiteStore, "_renew", _without_renewing(SQLiteStore._renew))
    patches.set(sqlite, "LASTS", "select ? is not null and ? is not null and ? is not null")


def _without_renewing(original: Any) -> Any:
    def renew(self: Any, c: Any, process: bytes) -> bool:
        original(self, c, process)
        return True

    return renew


@mutant(shown_by="a_frozen_worker_goes_on_under_a_new_name")
def a_lost_lease_is_not_noticed(patches: Patches) -> None:
    """A process without a lease goes on under its old name, and gets nothing any more."""
    patches.set(process.Process, "enroll_anew", lambda self: None)


@mutant(*MEMORY, shown_by="a_rescue_comes_between")
def a_rescue_goes_by_what_it_read_before(patches: Patches) -> None:
    """Who was an orphan when it looked is taken over by its id, whatever has become of it."""
    adopt = MemoryStore.adopt

    def by_id(self: Any, adopter: bytes, nonce: int, limit: int, *, dead: Any = ()) -> list[Orphan]:
        gone = {id for id in self._processes if not self._alive(id)} | set(dead)
        ids = [job.new.id for job in self._jobs.values() if job.token is not None and job.token.process in gone]
        if (act := STAGE_BETWEEN.get("act")) is not None and ids:
            act()
        for id in ids:
            job = self._jobs[id]
            job.state, job.finished_at, job.outcome = JobState.RUNNING, None, None
            job.token = job.token or Token(next(iter(gone)), 0, id, job.epoch)
        return adopt(self, adopter, nonce, limit, dead=dead)

    patches.set(MemoryStore, "adopt", by_id)


STAGE_BETWEEN: dict[str, Callable[[], None]] = {}  # what a story lets happen between such a look and the act


# Outcomes.


@mutant(shown_by="an_exchange_fails_before_it_wrote")
def outcomes_are_lost_with_a_failed_exchange(patches: Patches) -> None:
    """The worker forgets what it could not write."""
    original = worker.Worker._exchange

    def exchange(self: Any, *given: Any) -> Any:
        try:
            return original(self, *given)
        except BaseException:
            self._ended.clear()
            raise

    patches.set(worker.Worker, "_exchange", exchange)


@mutant(shown_by="the_reply_of_a_claim_is_lost")
def doubt_is_not_resolved(patches: Patches) -> None:
    """What came with a reply that was lost stays with a worker that knows nothing of it."""

    def resolve(self: Any) -> None:
        self._in_doubt = False

    patches.set(worker.Worker, "_resolve_doubt", resolve)


@mutant(shown_by="a_job_claimed_ahead_kills_its_worker")
def not_announced_means_not_begun(patches: Patches) -> None:
    """A verdict goes by what the store was told, and by nothing else."""
    original = orphans._verdict

    def verdict(app: Any, adopter: bytes, orphan: Orphan, deaths: Any) -> Any:
        if orphan.ran is None:
            return outcomes.release(orphan.claim.token)
        return original(app, adopter, orphan, deaths)

    patches.set(orphans, "_verdict", verdict)


@mutant(shown_by="a_machine_is_gone_with_a_strict_job_claimed_ahead")
def strict_jobs_begin_untold(patches: Patches) -> None:
    """Like any other that was claimed ahead."""
    patches.set(worker.Worker, "_without_cautious", lambda self, fresh, cautious: fresh)


@mutant(shown_by="a_verdict_is_not_taken_at_first")
def verdicts_are_forgotten(patches: Patches) -> None:
    """A verdict that the store did not take is not written again."""
    original = orphans.Judge._write

    def write(self: Any, adopter: bytes) -> None:
        try:
            original(self, adopter)
        except BaseException:
            self._unwritten = []
            raise

    patches.set(orphans.Judge, "_write", write)


@mutant(shown_by="work_as_usual")
def retry_forgets_attempts(patches: Patches) -> None:
    """What is tried again is tried as if for the first time."""
    original = outcomes.decide

    def decide(*given: Any, **named: Any) -> Any:
        found = original(*given, **named)
        return found._replace(spent=False) if found.state is JobState.SCHEDULED else found

    from packhorse.runtime import perform

    patches.set(perform, "decide", decide)


@mutant(shown_by="unstarted_claims_go_back")
def release_counts_as_spent(patches: Patches) -> None:
    """To go back costs an attempt."""
    original = outcomes.release

    def release(token: Any) -> Any:
        return original(token)._replace(spent=True)

    for module in (worker, memory, sql_store):
        patches.set(module, "release", release)


@mutant(shown_by="unstarted_claims_go_back")
def losses_count_where_nobody_died(patches: Patches) -> None:
    """To go back counts as a loss."""
    original = outcomes.release

    def release(token: Any) -> Any:
        return original(token)._replace(lost=True)

    for module in (worker, memory, sql_store):
        patches.set(module, "release", release)


@mutant(shown_by="a_worker_is_killed")
def one_loss_is_too_many(patches: Patches) -> None:
    """A job fails with its first worker."""
    original = outcomes.decide_lost

    def decide_lost(*given: Any, **named: Any) -> Any:
        return original(*given, **named | {"max_losses": 1})

    patches.set(orphans, "decide_lost", decide_lost)


@mutant(shown_by="a_worker_leaves")
def leaving_keeps_what_it_held(patches: Patches) -> None:
    """A process signs off, and hands nothing back."""
    patches.set(MemoryStore, "leave", lambda self, process: self._processes.pop(process, None))

    def leave(self: Any, process: bytes) -> None:
        self._write(lambda c: c.execute("delete from process where id = ?", (process,)))

    patches.set(SQLiteStore, "leave", leave)


@mutant(shown_by="work_as_usual")
def the_last_of_a_batch_is_not_written(patches: Patches) -> None:
    """Acknowledged all the same."""
    insert_memory, insert_sqlite = MemoryStore.insert, sqlite_exchange._insert

    def in_memory(self: Any, jobs: Any) -> list[bytes]:
        insert_memory(self, jobs[: max(1, len(jobs) - 1)])
        return [job.id for job in jobs]

    def in_sqlite(c: Any, jobs: Any, now: int) -> Any:
        return insert_sqlite(c, jobs[: max(1, len(jobs) - 1)], now)

    patches.set(MemoryStore, "insert", in_memory)
    patches.set(sqlite_exchange, "_insert", in_sqlite)


@mutant(shown_by="finished_jobs_are_kept")
def pruned_at_once(patches: Patches) -> None:
    """Nothing finished is kept."""
    patches.set(Retention, "of", lambda self, state: 0)


# Limits and rates.


@mutant(shown_by="a_limit_is_kept")
def permits_are_not_freed(patches: Patches) -> None:
    """Who ends takes the permit along."""
    patches.set(MemoryStore, "_free_permits", lambda self, job: setattr(job, "waits_on", ""))
    patches.set(sqlite_admission, "free_claimed", lambda c, ended, put_back: {})


@mutant(shown_by="a_limit_is_kept")
def limits_are_overrun(patches: Patches) -> None:
    """There is always room."""
    patches.set(MemoryStore, "_has_room", lambda self, hold: True)
    patches.set(sqlite_admission._Key, "has_room", property(lambda self: True))
    patches.set(sqlite_admission._Key, "room", property(lambda self: 99))


@mutant(*MEMORY, shown_by="a_lost_job_keeps_its_permit")
def a_lost_job_loses_its_permit(patches: Patches) -> None:
    """What goes back in place runs without one."""
    finish = MemoryStore._finish

    def and_free(self: Any, given: Any, now: int) -> bool:
        done = finish(self, given, now)
        if done and given.state is JobState.READY:
            self._free_permits(self._jobs[given.token.id])
        return done

    patches.set(MemoryStore, "_finish", and_free)


@mutant(shown_by="a_late_outcome_frees_no_permit")
def late_outcomes_free_permits(patches: Patches) -> None:
    """The outcome is refused, and its permit is given away."""
    finish_memory, finish_sqlite = MemoryStore._finish, sqlite_exchange.finish

    def in_memory(self: Any, given: Any, now: int) -> bool:
        done = finish_memory(self, given, now)
        if not done and given.token.id in self._jobs:
            job = self._jobs[given.token.id]
            line = job.waits_on
            self._free_permits(job)
            job.waits_on = line
        return done

    def in_sqlite(c: Any, given: Any, now: int, in_use: Any) -> Any:
        refused, freed = finish_sqlite(c, given, now, in_use)
        more = sqlite_admission.free_claimed(c, refused, []) if refused else {}
        return refused, {**(freed or {}), **more}

    patches.set(MemoryStore, "_finish", in_memory)
    patches.set(sqlite_exchange, "finish", in_sqlite)


@mutant(shown_by="a_rate_is_kept")
def rates_are_ignored(patches: Patches) -> None:
    """A token is always there."""
    patches.set(memory._Rate, "is_open", lambda self, now: True)
    patches.set(sqlite_admission._Rate, "is_open", lambda self, now: True)


# Flows, steps and schedules.


@mutant(shown_by="one_after_the_other")
def followers_are_dropped(patches: Patches) -> None:
    """Nobody opens their gate."""
    patches.set(MemoryStore, "_open_gates", lambda self, how, now: None)
    patches.set(sqlite_gates, "settle", lambda c, well, badly, now: None)


@mutant(shown_by="one_after_the_other")
def gates_open_with_the_first(patches: Patches) -> None:
    """One of those before it is enough."""
    never = property(lambda self: bool(self.parents) and all(well is None for _, well in self.parents.values()))
    patches.set(memory._Job, "gated", never)
    next_one = sqlite_gates.UNENDED.format(child="job.id", after="job.watched")
    patches.text(sqlite_gates, "WATCHERS", f"({next_one}) as heir", "null as heir")


@mutant(shown_by="one_after_the_other")
def followers_do_not_wait(patches: Patches) -> None:
    """They are ready at once."""
    insert_memory, insert_sqlite = MemoryStore.insert, sqlite_exchange.insert

    def freed(jobs: Any) -> list[Any]:
        return [job._replace(after=()) for job in jobs]

    patches.set(MemoryStore, "insert", lambda self, jobs: insert_memory(self, freed(jobs)))
    patches.set(sqlite_exchange, "insert", lambda c, jobs, now: insert_sqlite(c, freed(jobs), now))


@mutant(shown_by="steps_are_done_once")
def steps_are_not_kept(patches: Patches) -> None:
    """What a step returned is forgotten."""
    patches.set(Steps, "_record", lambda self, kind, name, data: None)


@mutant(shown_by="every_moment_gets_its_job")
def moments_are_not_unique(patches: Patches) -> None:
    """A moment gets a job each time somebody comes to it."""
    tick_memory, tick_sqlite = MemoryStore.tick, sqlite_schedules.tick

    def in_memory(self: Any, schedule: Any, *given: Any, **named: Any) -> Any:
        self._ticks.clear()
        return tick_memory(self, schedule, *given, **named)

    def in_sqlite(c: Any, *given: Any) -> Any:
        c.execute("delete from tick")
        return tick_sqlite(c, *given)

    patches.set(MemoryStore, "tick", in_memory)
    patches.set(sqlite_schedules, "tick", in_sqlite)


@mutant(shown_by="every_moment_gets_its_job")
def moments_pass_without_a_job(patches: Patches) -> None:
    """A schedule moves on, and its job is not inserted."""
    tick_memory, tick_sqlite = MemoryStore.tick, sqlite_schedules.tick

    def in_memory(self: Any, schedule: Any, jobs: Any, **named: Any) -> Any:
        return tick_memory(self, schedule, jobs[1:], **named)

    def in_sqlite(c: Any, schedule: Any, jobs: Any, *rest: Any) -> Any:
        return tick_sqlite(c, schedule, jobs[1:], *rest)

    patches.set(MemoryStore, "tick", in_memory)
    patches.set(sqlite_schedules, "tick", in_sqlite)


# Exceptions from outside.


@mutant(*SQLITE, shown_by="an_exception_strikes_anywhere_in_a_write")
def the_lock_is_taken_outside_its_guard(patches: Patches) -> None:
    """An exception that strikes right behind the lock leaves it taken."""

    def write(self: Any, work: Any, *, patient: bool = False) -> Any:
        connection = self.take()
        connection.acquire(patient)
        try:
            connection.sqlite.execute("begin immediate")
            answer = work(connection.sqlite)
            if connection.sqlite.in_transaction:
                connection.sqlite.execute("commit")
        except BaseException as error:
            connection.sqlite.rollback()
            connection.close()
            sqlite_connections.raise_translated(error)
            raise
        connection.release()
        self.give_back(connection)
        return answer

    def acquire(self: Any, patient: bool = False) -> None:
        while not self._try_lock():
            time.sleep(0.001)

    patches.set(sqlite_connections.Connections, "write", write)
    patches.set(sqlite_connections.Connection, "acquire", acquire)


@mutant(shown_by="a_timeout_comes_in_the_midst_of_a_call")
def timeouts_strike_inside_the_store(patches: Patches) -> None:
    """Wherever a thread is just then, an interruption is raised."""

    def interrupt(self: Any, whom: object, error: type[BaseException]) -> bool:
        return bool(self._raise(whom, error))

    patches.set(Guard, "interrupt", interrupt)


# In processes of their own.


@mutant(processes=True)
def children_outlive_their_supervisor(patches: Patches) -> None:
    """A child does not listen for the end of its supervisor."""
    import __main__

    if hasattr(__main__, "_listen"):  # this is such a child; the supervisor has nothing to change
        patches.set(__main__, "_listen", lambda line, process: None)


@mutant(processes=True)
def nobody_judges_for_dead_children(patches: Patches) -> None:
    """The supervisor starts another worker, and leaves the jobs of the dead one to the end of its lease."""
    patches.set(supervisor.Supervisor, "_judge_children", lambda self: self._unjudged.clear())


@mutant(processes=True)
def workers_do_not_stop_themselves(patches: Patches) -> None:
    """Tasks run on in a worker that cannot reach the store, for longer than its lease, and also when it is back."""
    patches.set(process.LeaseWatch, "_run", lambda self: None)
    patches.set(supervisor.Supervisor, "_look_after_children", lambda self: None)
    patches.set(slots.Slots, "interrupt_all", lambda self, why: None)
    for module in (dispatcher, supervisor):
        patches.set(module, "COMING_BACK", 0.0)
