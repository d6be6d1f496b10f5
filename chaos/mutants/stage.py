"""A stage on which workers, dispatchers and schedulers act turn by turn, in one thread and in a time that stands still.

They are the real ones, on a real store; only their processes are played. A task's body may let others act meanwhile, so
that every order of events can be told as a story, and comes out the same every time.
"""

from __future__ import annotations

import contextvars
import itertools
import secrets
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from chaos.checker import Verdict, check
from chaos.history import FATAL, STRICT, Ack, Bounds, Effect, Fault, History, Line, Pace, Row, Span, What
from chaos.ledger import deaths
from packhorse import Call, Context, Flow, JobState, Packhorse, limit, rate
from packhorse.clock import ManualClock, length
from packhorse.errors import StoreError
from packhorse.ids import from_text
from packhorse.job import Claim
from packhorse.outcome import Outcome
from packhorse.queues import EVERYTHING
from packhorse.runtime.begun import Mark, mark_of
from packhorse.runtime.dispatcher import Dispatcher
from packhorse.runtime.process import Process
from packhorse.runtime.scheduler import Scheduler
from packhorse.runtime.slots import Slots
from packhorse.runtime.worker import Worker
from packhorse.stores.contract import ProcessInfo, Selection
from packhorse.stores.memory import MemoryStore
from packhorse.stores.sqlite import SQLiteStore

SHARED_MEMORY = Path("/dev/shm")  # no story is about the disk
LEASE = 30.0
SCAN = 5.0
TREE_BOUND = LEASE + SCAN + 1
NARROW, BROAD = "narrow", "broad"
PACED = Pace(2, 1)
FAILURES = 2
ROUNDS = 150
STEP = 0.5  # seconds that pass between two rounds in the end


R = TypeVar("R", Dispatcher, Scheduler)


class Killed(BaseException):
    """The rest of a task never happens."""


class Away(StoreError):
    """The store fails because the story wants it to."""


class Tray(Slots):
    """Holds claims until the story lets them be performed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.claims: list[Claim] = []
        self.giving_back: list[Claim] = []

    def put(self, claims: list[Claim]) -> None:
        self.claims += claims

    def unstarted(self, older_than: float) -> list[Claim]:
        """Those that are to go back; the story decides which."""
        taken, self.giving_back = self.giving_back, []
        return taken


class Still(Process):
    """A process without threads, whose beats the story makes."""

    def __init__(self, stage: Stage, role: Any, pid: int) -> None:
        super().__init__(stage.app, role)
        self.pid = pid

    def _enroll(self) -> None:
        info = ProcessInfo(self.id, self.role.name, "here", self.pid, self.role.queues)
        self.app.store.enroll(info, length(LEASE))

    def beat_alone(self) -> None:
        """The story does."""


class Hand(Worker):
    """The real worker, one step at a time."""

    def __init__(self, stage: Stage, pid: int) -> None:
        super().__init__(stage.app, EVERYTHING, 8)
        self._slots = self.tray = Tray(8, self._performer, self._hand_in)
        self.stage = stage
        self.pid = pid
        self.room = 0
        self.begun: set[Mark] = set()  # as its slots mark it, and its supervisor reads it
        self.process = self._process = Still(stage, self, pid)
        self._process._enroll()
        stage.hands.append(self)

    @property
    def id(self) -> bytes:
        return self._process.id

    def _room(self, busy: int, outcomes: list[Outcome]) -> int:
        return self.room

    def claim(self, at_most: int = 1) -> list[Claim]:
        """Exchange, also what ended; a store that is away is no end of the story."""
        self.room = at_most
        try:
            self.turn()
        except Away:
            pass
        finally:
            self.room = 0
        if at_most == 0:
            return []
        taken, self.tray.claims = self.tray.claims, []
        return taken

    def perform(self, claim: Claim) -> Outcome:
        """What the task made of it, not yet handed in."""
        alone = contextvars.Context()  # another task of the story may be under way
        return alone.run(self._perform, claim)

    def _perform(self, claim: Claim) -> Outcome:
        before, self.stage.pid = self.stage.pid, self.pid
        self.begun.add(mark_of(claim.token.nonce, claim.token.id))
        try:
            return self._performer.in_thread(claim, self._slots.seat())
        finally:
            self.stage.pid = before

    def hand_in(self, *outcomes: Outcome) -> None:
        for outcome in outcomes:
            self._hand_in(outcome)
        self.claim(0)

    def give_back(self, *claims: Claim) -> None:
        self.tray.giving_back = list(claims)
        self.claim(0)

    def work(self, at_most: int = 1) -> int:
        """Claim, perform and hand in; how many."""
        claims = self.claim(at_most)
        for claim in claims:
            self._hand_in(self.perform(claim))
        self.claim(0)
        return len(claims)

    def beat(self) -> None:
        self._app.store.beat([self.id])


class Stage:
    """One story: `with Stage("memory") as stage: scene(stage); stage.verdict()`."""

    def __init__(self, store: str) -> None:
        self._kind = store
        self._stack = ExitStack()
        self._numbers = itertools.count(1)
        self._pids = itertools.count(1)
        self.pid = 0
        self.hands: list[Hand] = []
        self.dead: set[int] = set()
        self.acks: list[Ack] = []
        self.lines: list[Line] = []
        self.faults: list[Fault] = []
        self.schedules: dict[str, Span] = {}
        self.leftovers: list[str] = []
        self.meanwhile: dict[str, Callable[[], None]] = {}
        self.between: Callable[[], None] | None = None  # for mutants that act on what they read before

    def __enter__(self) -> Self:
        self.clock = ManualClock()
        self.store: MemoryStore | SQLiteStore
        if self._kind == "memory":
            self.store = MemoryStore(self.clock)
        else:
            where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
            made = tempfile.TemporaryDirectory(prefix="packhorse-chaos-", dir=where)
            folder = Path(self._stack.enter_context(made))
            self.store = SQLiteStore(f"sqlite:///{folder}/jobs.db?synchronous=normal", self.clock)
        self.app = Packhorse("stage", self.store, clock=self.clock, lease=LEASE, signing=False)
        self._stack.callback(self.app.close)
        self._make_tasks()
        self._maker = Still(self, _Nobody(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # Tasks.

    def _make_tasks(self) -> None:
        app = self.app

        @app.task(name="plain", takes_context=True)
        def plain(context: Context, name: str, place: str = "") -> str:
            about: dict[str, Any] = {"place": place} if place else {}
            return self._run(context, name, **about)

        @app.task(name="flaky", takes_context=True, retries=FAILURES, backoff=1.0)
        def flaky(context: Context, name: str) -> str:
            return self._run(context, name, fails=context.attempt <= FAILURES)

        @app.task(name=NARROW, takes_context=True, limit=limit(NARROW, to=1))
        def narrow(context: Context, name: str) -> str:
            return self._run(context, name, limit=NARROW)

        @app.task(name=BROAD, takes_context=True, limit=limit(BROAD, to=2))
        def broad(context: Context, name: str) -> str:
            return self._run(context, name, limit=BROAD)

        @app.task(name="paced", takes_context=True, rate=rate(f"{PACED.per_second:g}/s"))
        def paced(context: Context, name: str) -> str:
            return self._run(context, name, rate="paced")

        @app.task(name="steps", takes_context=True, retries=1, backoff=1.0)
        def steps(context: Context, name: str, fails: bool = False) -> str:
            return self._run(context, name, fails=fails and context.attempt == 1, steps=3)

        @app.task(name=STRICT, takes_context=True, on_worker_lost="fail")
        def strict(context: Context, name: str) -> str:
            return self._run(context, name)

        @app.task(name=FATAL, takes_context=True)
        def fatal(context: Context, name: str) -> str:
            return self._run(context, name, dies=context.losses == 0)

        @app.task(name="moment", takes_context=True)
        def moment(context: Context) -> str:
            key, at = context.metadata["packhorse.moment"]
            return self._run(context, key, schedule=key, moment=str(at))

    def _run(
        self, context: Context, name: str, *, fails: bool = False, dies: bool = False, steps: int = 0, **about: Any
    ) -> str:
        run, pid = secrets.token_hex(4), self.pid

        def write(what: What, **about: str) -> None:
            generation = context.attempt + context.losses
            self.lines.append(Line(self.now(), what, context.job_id, run, generation, pid, context.task, about))

        write(What.START, **about)
        for n in range(steps):
            self._between_steps(f"{name}/{n}")
            write(What.BEAT)
            try:
                context.step(f"step-{n}", lambda n=n: write(What.EFFECT, step=f"step-{n}"))  # type: ignore[misc]
            except Exception as error:
                write(What.RAISED, error=type(error).__name__)
                raise
            write(What.KEPT, step=f"step-{n}")
        self._between_steps(name)
        if dies:
            write(What.DIES, pids=str(pid))
            raise Killed
        if fails:
            write(What.RAISED)
            raise ConnectionError("as planned")
        write(What.FINISH)
        return run

    def _between_steps(self, name: str) -> None:
        if (act := self.meanwhile.pop(name, None)) is not None:
            act()

    # Time and faults.

    def now(self) -> int:
        """Later with each look, so that one thing comes after another."""
        return self.clock.ticks() + next(self._numbers)

    def pass_time(self, seconds: float, *alive: Hand) -> None:
        """Beats of those who live come in time."""
        while seconds > 0:
            part = min(seconds, LEASE / 3)
            self.clock.advance(part)
            seconds -= part
            for hand in alive:
                hand.beat()

    def fault(self, effect: Effect, *hands: Hand, begin: int | None = None, bound: float | None = None) -> None:
        """From `begin`, or from now, until now."""
        at = self.now()
        pids = frozenset(hand.pid for hand in hands)
        self.faults.append(Fault(str(effect), begin or at, self.now(), effect, pids, bound))
        if effect is Effect.KILL:
            self.dead |= pids

    def away(self, method: str, *, after: bool = False) -> None:
        """The next call of that method fails, before it did anything, or after it did all."""
        original = getattr(self.store, method)

        def failing(*given: Any, **named: Any) -> Any:
            delattr(self.store, method)
            if after:
                original(*given, **named)
            raise Away("as the story wants it")

        setattr(self.store, method, failing)

    def fall_back(self, id: str) -> None:
        """The store forgets the last claim of a job, as one does that takes over without having heard all."""
        raw = from_text(id)
        if isinstance(self.store, MemoryStore):
            job = self.store._jobs[raw]
            job.state, job.token, job.epoch = JobState.READY, None, job.epoch - 1
        else:
            forget = "update job set state = 3, process = null, nonce = null, epoch = epoch - 1 where id = ?"
            self.store._write(lambda c: c.execute(forget, (raw,)))

    # Who acts.

    def hand(self) -> Hand:
        return Hand(self, next(self._pids))

    def dispatcher(self) -> Dispatcher:
        return self._with_process(Dispatcher(self.app))

    def scheduler(self) -> Scheduler:
        return self._with_process(Scheduler(self.app))

    def _with_process(self, role: R) -> R:
        process = Still(self, role, next(self._pids))
        process._enroll()
        role.begin(process)
        return role

    # What is enqueued.

    def enqueue(self, task: str, *names: str, attempts: int = 1, **arguments: Any) -> list[str]:
        calls: list[Call[Any]] = [self.app.tasks[task].call(name, **arguments) for name in names]
        at = self.now()
        ids = [handle.id for handle in self.app.enqueue_many(calls)]
        self.acks += [Ack(id, task, at, attempts) for id in ids]
        return ids

    def enqueue_flow(self, flow: Flow) -> list[str]:
        at = self.now()
        handles = flow.enqueue().jobs()  # in the order of the nodes
        ids = {node.id: handle.id for node, handle in zip(flow.nodes, handles, strict=True)}
        for node in flow.nodes:
            self.acks.append(Ack(ids[node.id], "plain", at, 1, tuple(ids[parent.id] for parent in node.parents)))
        return list(ids.values())

    # The end.

    def settle(self) -> None:
        """Everybody who lives goes on until nothing is left to do; some time passes, and beats come."""
        dispatcher = self.dispatcher()
        alive = [hand for hand in self.hands if hand.pid not in self.dead]
        for _ in range(ROUNDS):
            dispatcher._adopt_at = 0.0
            dispatcher.turn()
            done = sum(hand.work(8) for hand in alive)
            if not done and not self._unfinished():
                return
            if not done:
                self.pass_time(STEP, *alive)

    def _unfinished(self) -> int:
        return sum(count for state, count in self.app.inspection.counts().items() if not state.finished)

    def verdict(self) -> Verdict:
        for view in self.store.limits():
            if view.holders:
                self.leftovers.append(f"{view.holders} permits of {view.key} are out")
        return check(
            History(
                acks=self.acks,
                lines=self.lines,
                rows={row.id: row for row in self._rows()},
                faults=[*self.faults, *deaths(self.lines)],
                limits={NARROW: 1, BROAD: 2},
                rates={"paced": PACED},
                schedules=self.schedules,
                leftovers=self.leftovers,
                bounds=Bounds(thaw=0.5, unwritten=1.0, patience=LEASE),
            )
        )

    def _rows(self) -> Sequence[Row]:
        runs: dict[str, set[str]] = {}
        for line in self.lines:
            runs.setdefault(line.job, set()).add(line.run)
        rows = []
        for job in self.store.jobs(Selection(), limit=1_000):
            several = job.state is JobState.SUCCEEDED and len(runs.get(job.id, ())) > 1
            accepted = str(self.app.job(job.id).result(timeout=0)) if several else None
            rows.append(Row(job.id, job.task, str(job.state), job.attempts, job.losses, accepted))
        return rows


class _Nobody:
    name = "nobody"
    queues = ""
