"""What must hold after every call of the store, and in every attempt, whatever happens to whom.

It keeps its own books from what it sees of the calls: leases by the virtual clock, jobs by the rows of the store before
and after. So it does not believe the code it judges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from packhorse.clock import SECOND
from packhorse.job import Claim, JobState, Need, NewJob, Token
from packhorse.outcome import MAX_LOSSES, MAX_LOSSES_ALONE, Outcome
from packhorse.steps import STEP
from packhorse.stores.memory import MemoryStore
from packhorse.stores.sqlite import SQLiteStore
from simulation.tasks import EVERY, RETRIES, STRICT

if TYPE_CHECKING:
    from simulation.world import Proc, World

# Calls that write, or may: after them the rows are compared.
MOVING = frozenset({"insert", "exchange", "signal", "leave", "promote", "adopt", "prune", "tick", "move", "record"})


class Row(NamedTuple):
    state: JobState
    epoch: int
    attempts: int
    losses: int
    token: Token | None


class Attempt:
    def __init__(self, claim: Claim, proc: Proc, now: int) -> None:
        self.claim = claim
        self.proc = proc
        self.began = now
        self.ended = False
        self.returned = False

    @property
    def live(self) -> bool:
        return not self.ended and not self.proc.dead


class Ledger:
    """What tasks themselves say."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.attempts: dict[bytes, list[Attempt]] = defaultdict(list)
        self.returned: Counter[bytes] = Counter()
        self.kept: dict[tuple[bytes, str], int] = {}

    def begin(self, claim: Claim) -> Attempt:
        world, id = self._world, claim.token.id
        world.kernel.check()
        attempt = Attempt(claim, world.proc, world.kernel.now)
        world.note("begins", id, claim.task)
        for other in self.attempts[id]:
            if other.live:
                self._overlap(other, attempt)
            elif claim.task == STRICT and (other.returned or not other.ended):
                self._world.kernel.fail(f"{world.name(id)} begins again, and its worker was lost with it before")
        self.attempts[id].append(attempt)
        world.checker.check_parents(id)
        self._check_limits(id)
        return attempt

    def _overlap(self, other: Attempt, attempt: Attempt) -> None:
        """One of them is past its lease, and then only who was frozen may not have stopped in time.

        The same goes for one whose supervisor was frozen: nobody beats for it, and it does not know.
        """
        world = self._world
        row = world.checker.rows[attempt.claim.token.id]
        late = other if row.token != other.claim.token else attempt
        name = f"{world.name(attempt.claim.token.id)} begins while {other.proc.name} still performs it"
        if world.checker.alive(late.claim.token.process):
            world.kernel.fail(f"{name}, and both have a lease")
        elif not late.proc.was_frozen and not (world.unsupervised(late.proc) and late.claim.task in THREADS):
            world.kernel.fail(f"{name}, and {late.proc.name} was never frozen")

    def _check_limits(self, id: bytes) -> None:
        """A run of jobs may have one permit together, but they are performed one after the other."""
        checker = self._world.checker
        for hold in checker.new[id].terms.holds:
            rivals = [rival for rival, new in checker.new.items() if hold in new.terms.holds]
            tokens = [row.token for rival in rivals if (row := checker.rows.get(rival)) is not None and row.token]
            if sum(map(self.performs, tokens)) > hold.to:
                self._world.kernel.fail(f"{self._world.name(id)} begins, and {hold.to} others of its limit run")

    def end(self, attempt: Attempt, error: BaseException | None) -> None:
        if attempt.proc.dead:
            return
        attempt.ended = True
        attempt.returned = error is None
        id = attempt.claim.token.id
        self._world.note("ends", id, "" if error is None else type(error).__name__)
        self.returned[id] += error is None

    def step(self, token: Token, name: str) -> str:
        self._world.kernel.check()
        kept_at = self.kept.get((token.id, name))
        attempt = next(it for it in self.attempts[token.id] if it.claim.token == token)
        if kept_at is not None and kept_at <= attempt.began:
            self._world.kernel.fail(f"step {name} of {self._world.name(token.id)} is done again")
        return name

    def performs(self, token: Token) -> bool:
        return any(it.live and it.claim.token == token for it in self.attempts[token.id])


THREADS = frozenset({"threaded", "single", "timed"})


class Call(NamedTuple):
    proc: Proc
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


class Checker:
    def __init__(self, world: World) -> None:
        self._world = world
        self.rows: dict[bytes, Row] = {}
        self.new: dict[bytes, NewJob] = {}
        self.leases: dict[bytes, tuple[int, int, str]] = {}  # until, length, boot
        self.cancelled: set[bytes] = set()
        self._claimed: set[bytes] = set()  # processes that ever did
        self._moments: set[tuple[str, int]] = set()
        self._last_moment: int | None = None
        store = world.store
        self._read: Callable[[], dict[bytes, Row]] = (
            self._read_memory if isinstance(store, MemoryStore) else self._read_sqlite
        )

    # Leases.

    def alive(self, process: bytes) -> bool:
        clock = self._world.clock
        until, _, boot = self.leases.get(process, (0, 0, ""))
        return boot == clock.boot() and until > clock.ticks()

    def _fresh(self, process: bytes) -> int:
        return self._world.clock.ticks() + self.leases[process][1] if process in self.leases else 0

    def _renew(self, process: bytes) -> None:
        if self.alive(process):
            _, length, boot = self.leases[process]
            self.leases[process] = (self._fresh(process), length, boot)

    # Calls.

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "insert":
            self.new |= {job.id: job for job in args[0]}
        elif name == "tick":
            self.new |= {job.id: job for _, job in args[1]}
        elif name == "move" and args[1].act == "cancel":
            self.cancelled |= set(args[0].ids or ())

    def after(self, call: Call) -> bool:
        """Whether some job has moved."""
        look = getattr(self, f"_after_{call.name}", None)
        if look is not None:
            look(call, *call.args)
        return call.name in MOVING and self._compare(call)

    def fail(self, text: str) -> None:
        self._world.kernel.fail(text)

    def _after_enroll(self, call: Call, info: Any, lease: int) -> None:
        clock = self._world.clock
        if info.id in self._claimed and not self.alive(info.id):
            self.fail(f"{call.proc.name} lost its lease and goes on under the same id")
        self.leases[info.id] = (clock.ticks() + lease, lease, clock.boot())
        self._world.ids[info.id] = call.proc

    def _after_beat(self, call: Call, processes: Sequence[bytes]) -> None:
        if set(call.result) != {process for process in processes if not self.alive(process)}:
            self.fail("a beat tells wrongly who has a lease")
        for process in processes:
            self._renew(process)

    def _after_exchange(
        self, call: Call, process: bytes, nonce: int, outcomes: Sequence[Outcome], queues: Any, limit: int
    ) -> None:
        result = call.result
        if result.alive != self.alive(process):
            self.fail("an exchange tells wrongly whether there is a lease")
        if result.claims and not self.alive(process):
            self.fail("a process without a lease has claimed")
        if result.claims:
            self._claimed.add(process)
        refused = set(result.refused)
        for outcome in outcomes:
            row = self.rows.get(outcome.token.id)
            if (row is not None and row.token == outcome.token) == (outcome.token in refused):
                self.fail(f"an outcome of {self._world.name(outcome.token.id)} was wrongly taken or refused")
        if outcomes or call.kwargs.get("started") or result.claims:
            self._renew(process)

    def _after_adopt(self, call: Call, adopter: bytes, *_: Any) -> None:
        """SQLite writes nothing where there is nothing to adopt, and so renews nothing."""
        if isinstance(self._world.store, MemoryStore) or self._world.sqlite_lease(adopter) == self._fresh(adopter):
            self._renew(adopter)

    def _after_leave(self, call: Call, process: bytes) -> None:
        self.leases.pop(process, None)

    def _after_record(self, call: Call, token: Token, entries: Sequence[Any]) -> None:
        row = self.rows.get(token.id)
        if call.result != (row is not None and row.token == token):
            self.fail(f"entries of {self._world.name(token.id)} were wrongly taken or refused")
        if call.result:
            for entry in entries:
                if entry.kind == STEP:
                    self._world.ledger.kept.setdefault((token.id, entry.name), self._world.kernel.now)

    def _after_tick(self, call: Call, schedule: Any, jobs: Sequence[Any]) -> None:
        for moment, job in call.result or ():
            if (schedule.key, moment) in self._moments:
                self.fail(f"a moment of schedule {schedule.key} has a second job")
            self._moments.add((schedule.key, moment))
            if schedule.key == "each":
                if self._last_moment is not None and moment != self._last_moment + EVERY * SECOND:
                    self.fail("a moment of schedule each was left out, or came back")
                self._last_moment = moment
            if job is None and schedule.overlap != "skip":
                self.fail(f"a moment of schedule {schedule.key} has no job")

    # Rows.

    def _read_memory(self) -> dict[bytes, Row]:
        store = self._world.store
        assert isinstance(store, MemoryStore)
        make = tuple.__new__  # Row(…) would take twice as long, and this is the most frequent thing of all
        return {id: make(Row, (it.state, it.epoch, it.attempts, it.losses, it.token)) for id, it in store._jobs.items()}

    def _read_sqlite(self) -> dict[bytes, Row]:
        store = self._world.store
        assert isinstance(store, SQLiteStore)
        found = {}
        for id, state, epoch, attempts, losses, process, nonce in self._world.sqlite_rows():
            known = STATES[state]
            token = Token(process, nonce, id, epoch) if known is JobState.RUNNING else None
            found[id] = Row(known, epoch, attempts, losses, token)
        return found

    def _compare(self, call: Call) -> bool:
        before, self.rows = self.rows, self._read()
        if before == self.rows:
            return False
        for id, row in self.rows.items():
            old = before.get(id)
            if old != row:
                self._world.note("is", id, row.state)
                if old is None:
                    if call.name not in ("insert", "tick"):
                        self.fail(f"{self._world.name(id)} came from nowhere, by {call.name}")
                else:
                    self._moved(call, id, old, row)
        if len(self.rows) < len(before) or before.keys() - self.rows.keys():
            self.fail(f"a job is gone, by {call.name}")
        self._check_keys()
        return True

    def _moved(self, call: Call, id: bytes, old: Row, new: Row) -> None:
        name = f"{self._world.name(id)}, by {call.name} of {call.proc.name}:"
        if new.epoch < old.epoch:
            self.fail(f"{name} its epoch went back")
        if call.name == "move":
            return
        if old.state.finished:
            self.fail(f"{name} it was {old.state} and is {new.state}")
        spent, lost = new.attempts - old.attempts, new.losses - old.losses
        if old.token is not None and old.token != new.token:
            outcome = next((it for it in self._outcomes(call) if it.token == old.token), None)
            if outcome is not None:
                self._check_end(name, outcome, old, new)
                spent, lost = spent - outcome.spent, lost - outcome.lost
            elif call.name == "leave":
                self._check_left(name, call, old.token)
            elif call.name == "adopt" and new.token is not None:
                self._check_adopted(name, call, old.token)
            else:
                self.fail(f"{name} its owner was not asked")
        if spent or lost:
            self.fail(f"{name} attempts or losses are counted wrongly")
        if new.token is not None and new.token != old.token and call.name == "exchange":
            process, nonce = call.args[:2]
            if (new.token.process, new.token.nonce) != (process, nonce) or new.epoch <= old.epoch:
                self.fail(f"{name} it was claimed under a wrong token")
            if id not in {claim.token.id for claim in call.result.claims}:
                self.fail(f"{name} it was claimed, and nobody told")
        elif new.token is not None and old.token is None:
            self.fail(f"{name} it runs, and nobody claimed it")
        if new.state.finished:
            self._check_finished(name, id, new)

    def _outcomes(self, call: Call) -> Sequence[Outcome]:
        return call.args[2] if call.name == "exchange" else ()

    def _check_end(self, name: str, outcome: Outcome, old: Row, new: Row) -> None:
        ledger = self._world.ledger
        assert old.token is not None
        if ledger.performs(old.token):
            self.fail(f"{name} it ended {outcome.state} while its task runs")
        if outcome.state.finished and new.state is not outcome.state:
            self.fail(f"{name} it should have ended {outcome.state}")

    def _check_left(self, name: str, call: Call, token: Token) -> None:
        if token.process != call.args[0]:
            self.fail(f"{name} it was given back by another")
        if self._world.ledger.performs(token):
            self.fail(f"{name} it was given back while its task runs")

    def _check_adopted(self, name: str, call: Call, token: Token) -> None:
        owner = self._world.ids.get(token.process)
        is_named = token.process in call.kwargs.get("dead", ())
        if is_named and token.process != call.args[0] and (owner is None or not owner.dead):
            self.fail(f"{name} its owner was said to be dead, and lives")
        if not is_named and self.alive(token.process):
            self.fail(f"{name} its owner has a lease")

    def _check_finished(self, name: str, id: bytes, row: Row) -> None:
        ledger, task = self._world.ledger, self.new[id].task
        budget = RETRIES.get(task, 0) + 1
        if row.attempts > min(budget, len(ledger.attempts[id])):
            self.fail(f"{name} {row.attempts} attempts are counted, and {len(ledger.attempts[id])} were made")
        if row.losses > MAX_LOSSES_ALONE:
            self.fail(f"{name} it was lost {row.losses} times")
        if row.state is JobState.SUCCEEDED and not ledger.returned[id]:
            self.fail(f"{name} it succeeded, and its task never returned")
        if row.state is JobState.FAILED:
            lost = row.losses >= (1 if task == STRICT else MAX_LOSSES)
            if not lost and row.attempts < budget:
                self.fail(f"{name} it failed after {row.attempts} attempts and {row.losses} losses")
        if row.state is JobState.CANCELLED and id not in self.cancelled:
            parents = [self.rows[parent.id].state for parent in self.new[id].after]
            if not any(state in (JobState.FAILED, JobState.CANCELLED) for state in parents):
                self.fail(f"{name} it was cancelled, and nobody asked for that")

    def check_parents(self, id: bytes) -> None:
        for parent in self.new[id].after:
            state = self.rows[parent.id].state
            if not state.finished or (parent.need is Need.SUCCESS and state is not JobState.SUCCEEDED):
                self.fail(f"{self._world.name(id)} begins, and the one before it is {state}")

    def _check_keys(self) -> None:
        unique: Counter[str] = Counter()
        for id, row in self.rows.items():
            terms = self.new[id].terms
            if terms.unique is not None and not row.state.finished:
                unique[terms.unique.key] += row.epoch == 0 or not terms.unique.until_start
        if any(count > 1 for count in unique.values()):
            self.fail("a unique key is held twice")
        store = self._world.store
        if isinstance(store, MemoryStore):
            holders = {id for taken in store._permits.values() for id in taken.values()}
            if any(self.rows[id].state not in (JobState.READY, JobState.RUNNING) for id in holders):
                self.fail("a permit is held by a job that neither runs nor may")


STATES = [JobState.SCHEDULED, *JobState]  # as SQLite numbers them, from 1 on
