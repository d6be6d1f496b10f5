"""One seed: which processes there are, what is enqueued, and what goes wrong, when."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

from packhorse.app import Packhorse
from packhorse.clock import SECOND
from packhorse.errors import StoreError, StoreUnavailable
from packhorse.ids import to_text
from packhorse.queues import EVERYTHING
from packhorse.runtime import child as child_module
from packhorse.runtime.begun import Begun, make_page
from packhorse.runtime.child import Plan
from packhorse.runtime.dispatcher import Dispatcher
from packhorse.runtime.process import Process, Role
from packhorse.runtime.scheduler import Scheduler
from packhorse.runtime.supervisor import Child, Supervisor
from packhorse.runtime.worker import Worker
from packhorse.stores.contract import Store
from packhorse.stores.memory import MemoryStore
from packhorse.stores.sqlite import SQLiteStore
from simulation.checker import Call, Checker, Ledger
from simulation.kernel import Kernel, Killed, Owner, Thread
from simulation.loop import Loop, Task
from simulation.machine import Clock, Line, Popen, Skewed, Watcher, stand_ins
from simulation.tasks import SETTINGS, make_app
from simulation.workload import Workload

FIRST_PID = 100
LEASE = SETTINGS["lease"]
FAULTY = (25, 55)  # seconds in which things go wrong
SLOTS = (1, 2, 4)
BOUND = 600  # seconds within which everything has ended after they stopped
SHORT, LONG = (0.5, 4.0), (LEASE * 1.05, LEASE * 2.2)

FAULTS = {
    # At a call of the store: how likely at each.
    "slow": (0.02, 0.2),
    "lost_call": (0.003, 0.03),
    "lost_reply": (0.003, 0.04),
    "crash_before": (0.001, 0.008),
    "crash_after": (0.001, 0.01),
    "freeze_before": (0.001, 0.008),
    "freeze_after": (0.001, 0.008),
}
VERDICT = 5
SELDOM = {
    "adopt": 6,
    "tick": 2,
    "signal": 2,
    "record": 2,
}  # what is worth so many times the trouble when it did something
TROUBLES = (
    "crash",
    "crash_all",
    "freeze",
    "freeze_all",
    "sleep",
    "cut",
    "silence",
    "outage",
    "step",
    "stop",
    "operator",
    "reboot",
)


class Proc(Owner):
    """A simulated process."""

    def __init__(self, name: str, pid: int, app: Packhorse, host: Host) -> None:
        super().__init__(name)
        self.pid = pid
        self.app = app
        self.host = host
        self.cut_until = 0
        self.silent_until = 0
        self.was_frozen = False
        self.process: Process | None = None
        self.status: int | None = None
        self.parent: Proc | None = None
        self.on_death: Callable[[], None] = lambda: None


@dataclass
class Host:
    """What is started again when it ends, with all below it."""

    make: Callable[[Host], Proc]
    procs: list[Proc]


class Apps:
    """Applications are kept from seed to seed; a process gets one that no other of its seed has."""

    def __init__(self) -> None:
        self._made: list[Packhorse] = []

    def get(self, n: int) -> Packhorse:
        while len(self._made) <= n:
            self._made.append(make_app())
        return self._made[n]


APPS = Apps()


class Verdict(NamedTuple):
    seed: int
    failure: str | None
    calls: int
    jobs: int
    finished: int
    faults: int
    seconds: float  # virtual
    trace: list[str]
    error: BaseException | None = None


class World:
    def __init__(self, seed: int, *, keep: int | None = 60) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.kernel = Kernel(self.rng)
        self.clock = Clock(self.kernel)
        self.trace: deque[tuple[int, str, str, object, object]] = deque(maxlen=keep)
        self.ids: dict[bytes, Proc] = {}
        self.watchers: list[Watcher] = []
        self.tasks: list[Task] = []
        self.procs: list[Proc] = []
        self.hosts: list[Host] = []
        self.calls = 0
        self.faults = 0
        self.outage_until = 0
        self.faulty = False
        self._names: dict[bytes, str] = {}
        self._stack = ExitStack()
        self.is_alive_again = seed % 2 == 1  # faults stop, and everything must end; else they go on until the end
        self.store: Store = self._make_store()
        self.checker = Checker(self)
        self.ledger = Ledger(self)
        self.workload = Workload(self)
        rng = self.rng
        self.rates = {name: rng.uniform(*span) for name, span in FAULTS.items() if rng.random() < 0.5}
        self.troubles = [name for name in TROUBLES if rng.random() < 0.4]

    def _make_store(self) -> Store:
        if self.seed % 50 != 7:
            return MemoryStore(self.clock)
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="packhorse-simulation-"))
        store = SQLiteStore(f"sqlite:///{folder}/jobs.db?synchronous=normal", self.clock)
        store.migrate()
        self._stack.callback(store.close)
        return store

    def sqlite_rows(self) -> list[tuple[Any, ...]]:
        return self._ask("select id, state, epoch, attempts, losses, process, nonce from job")

    def sqlite_lease(self, process: bytes) -> int | None:
        return next((until for (until,) in self._ask("select lease_until from process where id = ?", process)), None)

    def _ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        assert isinstance(self.store, SQLiteStore)
        with self.store._connections.cursor() as cursor:
            return cursor.execute(question, values).fetchall()

    # Telling.

    @property
    def proc(self) -> Proc:
        return cast(Proc, self.kernel.current.owner)

    def note(self, what: str, about: object = "", more: object = "") -> None:
        self.trace.append((self.kernel.now, self.kernel.current.owner.name, what, about, more))

    def name(self, id: bytes) -> str:
        if id not in self._names:
            self._names[id] = f"{self.checker.new[id].task}#{len(self._names)}"
        return self._names[id]

    def told(self) -> list[str]:
        def text(about: object) -> str:
            return self.name(about) if isinstance(about, bytes) and about in self.checker.new else str(about)

        return [
            f"{now / SECOND:9.3f} {who:14} {what} {text(about)} {more}".rstrip()
            for now, who, what, about, more in self.trace
        ]

    # Calls of the store.

    def call(self, proc: Proc, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        kernel = self.kernel
        kernel.check()
        self.calls += 1
        is_verdict = name == "exchange" and any(outcome.lost for outcome in args[2])
        fault = self._fault(VERDICT if is_verdict else 1)
        if fault == "slow":
            kernel.sleep(self.rng.uniform(0.01, 1.5))
        elif fault == "crash_before":
            self.crash(proc)
        elif fault == "freeze_before":
            self.freeze([proc], self._span())
        kernel.check()
        if is_late := self.rng.random() < 0.5 and proc.silent_until > kernel.now:
            self._wait_in_silence(proc, name)
        if fault == "lost_call" or proc.cut_until > kernel.now or self.outage_until > kernel.now:
            kernel.sleep(self.rng.choice((0.001, 0.5, 2.0)))
            self.note("never reached the store:", name)
            raise StoreUnavailable("simulated: the call was lost")
        self.checker.before(name, args, kwargs)
        self.note("calls", name)
        result = real(*args, **kwargs)
        if self.checker.after(Call(proc, name, args, kwargs, result)):
            for watcher in self.watchers:
                watcher.tell()
        if fault is None and name in SELDOM and result:
            fault = self._fault(SELDOM[name])
        if not is_late:
            self._wait_in_silence(proc, name)
        if fault == "lost_reply":
            kernel.sleep(self.rng.choice((0.001, 0.5, 2.0)))
            self.note("got no reply of", name)
            raise StoreUnavailable("simulated: the reply was lost")
        if fault == "crash_after":
            self.crash(proc)
        elif fault == "freeze_after":
            self.freeze([proc], self._span())
        elif fault == "slow":
            kernel.sleep(self.rng.uniform(0.01, 1.5))
        kernel.check()
        return result

    def _wait_in_silence(self, proc: Proc, name: str) -> None:
        """The call, or its answer, comes through when the line does; until then nobody is told anything."""
        if (left := proc.silent_until - self.kernel.now) > 0:
            self.note("hears nothing of", name)
            self.kernel.sleep(left / SECOND)
            self.kernel.check()

    def _fault(self, so_many_times: int = 1) -> str | None:
        if self.faulty:
            dice = self.rng.random() / so_many_times
            for name, rate in self.rates.items():
                if (dice := dice - rate) < 0:
                    self.faults += 1
                    return name
        return None

    def _span(self) -> float:
        return self.rng.uniform(*(LONG if self.rng.random() < 0.6 else SHORT))

    # Processes.

    def start(self, name: str, host: Host, run: Callable[[Proc], int]) -> Proc:
        n = len(self.procs)
        app = APPS.get(n)
        proc = Proc(f"{name} {n}", FIRST_PID + n, app, host)
        proc.ticks_behind = self.rng.randrange(-100, 100) * SECOND
        self.procs.append(proc)
        host.procs.append(proc)
        app.store = cast(Store, Line(self, proc))
        app.clock = Skewed(self.clock, self.rng.randrange(-20, 20) * SECOND)
        Thread(self.kernel, proc, lambda: self._run(proc, run), "main").start()
        return proc

    def _run(self, proc: Proc, run: Callable[[Proc], int]) -> None:
        self.note("starts")
        status = run(proc)
        self.note("leaves with status", status)
        self._end(proc, status)

    def crash(self, proc: Proc, status: int = -signal.SIGKILL) -> None:
        if not proc.dead:
            self.note("dies:", proc.name)
            self._end(proc, status)

    def _end(self, proc: Proc, status: int) -> None:
        proc.dead = True
        proc.status = status
        proc.on_death()
        for other in self.procs:
            if other.parent is proc and not other.dead:
                self.kernel.at(self.kernel.now, other, partial(self._orphan, other))
        if proc.parent is None and proc.host in self.hosts:
            delay = self.rng.uniform(0.1, 6.0)
            self.kernel.at(self.kernel.now + round(delay * SECOND), self.kernel.main.owner, partial(self._again, proc))

    def _again(self, proc: Proc) -> None:
        if proc.host in self.hosts:
            proc.host.make(proc.host)

    def _orphan(self, proc: Proc) -> None:
        """Its supervisor is gone."""
        if proc.process is not None:
            proc.process.beat_alone()
            proc.process.stop()

    def exit(self, status: int) -> None:
        """As os._exit, by the process itself."""
        self.crash(self.proc, status)
        raise Killed

    def freeze(self, procs: Collection[Proc], seconds: float, *, asleep: bool = False) -> None:
        until = self.kernel.now + round(seconds * SECOND)
        for proc in procs:
            self.note(f"is frozen for {seconds:.1f} s{' with its clock' * asleep}:", proc.name)
            proc.was_frozen = True
            if asleep:
                proc.ticks_behind += max(0, until - max(self.kernel.now, proc.frozen_until))
            proc.frozen_until = max(proc.frozen_until, until)
        if self.proc in procs:
            self.kernel.sleep(0)

    def unsupervised(self, proc: Proc) -> bool:
        return proc.parent is None or proc.parent.dead

    def is_frozen(self, pid: int) -> bool:
        return self.procs[pid - FIRST_PID].frozen_until > self.kernel.now

    # Who runs what.

    def new_page(self) -> Begun:
        page = make_page(SLOTS[-1])
        try:
            begun = Begun(page, SLOTS[-1])
        finally:
            os.close(page)
        self._stack.callback(begun.close)
        return begun

    def _role(self, app: Packhorse, role: str, proc: Proc, begun: Begun | None = None) -> Role:
        if role == "dispatcher":
            return Dispatcher(app)
        if role == "scheduler":
            return Scheduler(app)
        made = Worker(app, EVERYTHING, self.rng.choice(SLOTS), begun=begun)
        made._slots._loop = cast(Any, Loop(self.kernel, proc, self.tasks))
        return made

    def alone(self, role: str) -> Callable[[Host], Proc]:
        def run(proc: Proc) -> int:
            proc.process = Process(proc.app, self._role(proc.app, role, proc))
            proc.process.run()
            return 0

        return lambda host: self.start(role, host, run)

    def supervised(self, roles: list[str]) -> Callable[[Host], Proc]:
        plans = [Plan("simulated", cast(Any, role)) for role in roles]

        def run(proc: Proc) -> int:
            try:
                return Supervisor(proc.app, plans).run()
            except StoreUnavailable:  # it does not begin without the store
                return 1

        return lambda host: self.start("supervisor", host, run)

    def start_child(self, child: Child) -> Popen:
        parent = self.proc
        said = json.dumps

        def run(proc: Proc) -> int:
            role = self._role(proc.app, child.plan.role, proc, child.begun)
            process = Process(proc.app, role, id=child.id, supervisor=child.supervisor, report=report)
            proc.process = process
            if parent.dead:  # before this one could see the end of its line
                self._orphan(proc)
            report({"ready": True})
            process.run()
            return child_module._status(process)

        def report(word: dict[str, Any]) -> None:
            text = said(word)
            self.kernel.at(self.kernel.now, parent, lambda: child._hear(json.loads(text)))

        proc = self.start(child.plan.role, parent.host, run)
        proc.parent = parent
        proc.on_death = lambda: self.kernel.at(self.kernel.now, parent, child.wake)
        return Popen(self, proc)

    # The seed.

    def run(self) -> Verdict:
        state, level = random.getstate(), logging.root.manager.disable
        random.seed(self.seed)
        logging.disable(logging.CRITICAL)
        kernel, rng = self.kernel, self.rng
        try:
            with self._stack, stand_ins(self):
                try:
                    self._begin()
                    self._go_wrong(kernel.now + round(rng.uniform(*FAULTY) * SECOND))
                    if self.is_alive_again and kernel.failure is None:
                        self._heal()
                except Killed:
                    pass
                finally:
                    kernel.unwind()
                    for task in self.tasks:  # which may begin others as they end
                        task.close()
        finally:
            random.setstate(state)
            logging.disable(level)
        rows = self.checker.rows.values()
        finished = sum(row.state.finished for row in rows)
        counts = (self.calls, len(rows), finished, self.faults)
        return Verdict(self.seed, kernel.failure, *counts, kernel.now / SECOND, self.told(), kernel.error)

    def _begin(self) -> None:
        rng = self.rng
        if rng.random() < 0.5:
            roles = ["worker"] * rng.randint(1, 2) + ["dispatcher", "scheduler"]
            hosts = [self.supervised(roles) for _ in range(rng.randint(1, 2))]
        else:
            roles = ["worker"] * rng.randint(1, 3) + ["dispatcher"] * rng.randint(1, 2)
            roles += ["scheduler"] * rng.randint(0, 2)
            hosts = [self.alone(role) for role in roles]
        for make in hosts:
            host = Host(make, [])
            self.hosts.append(host)
            make(host)
        client = Host(lambda host: self.start("client", host, self.workload.enqueue), [])
        client.make(client)

    def _wait(self, seconds: float) -> None:
        self.kernel.sleep(seconds)
        if self.kernel.failure is not None:
            raise Killed

    def _go_wrong(self, until: int) -> None:
        kernel, rng = self.kernel, self.rng
        self.faulty = True
        while kernel.now < until:
            self._wait(rng.uniform(0.5, 8))
            if self.troubles:
                self._trouble(rng.choice(self.troubles))
        self.faulty = False

    def _trouble(self, kind: str) -> None:
        rng, kernel = self.rng, self.kernel
        living = [proc for proc in self.procs if not proc.dead and proc.host in self.hosts]
        self.faults += 1
        self.note("trouble:", kind)
        if kind == "outage":
            self.outage_until = kernel.now + round(self._span() * SECOND)
        elif kind == "step":
            self.clock.step(rng.uniform(-20, 20))
        elif kind == "reboot":
            for proc in living:
                self.crash(proc)
            self.clock.reboot()
        elif living:
            proc = rng.choice(living)
            together = [it for it in living if it.host is proc.host]
            if kind == "operator":
                kernel.at(kernel.now, proc, partial(self._operate, proc))
            elif kind == "stop" and proc.process is not None:
                kernel.at(kernel.now, proc, proc.process.stop)
            elif kind == "crash":
                self.crash(proc)
            elif kind == "crash_all":
                for it in together:
                    self.crash(it)
            elif kind == "freeze":
                self.freeze([proc], self._span())
            elif kind == "freeze_all":
                self.freeze(together, self._span())
            elif kind == "sleep":
                self.freeze(together, self._span(), asleep=True)
            elif kind == "silence":
                until = kernel.now + round(self._span() * SECOND)
                for it in rng.choice(([proc], together)):
                    it.silent_until = until
            elif kind == "cut":
                proc.cut_until = kernel.now + round(self._span() * SECOND)

    def _operate(self, proc: Proc) -> None:
        """Somebody cancels a job."""
        unfinished = [id for id, row in self.checker.rows.items() if not row.state.finished]

        def cancel() -> None:
            with suppress(StoreError):
                proc.app.control.cancel([to_text(self.rng.choice(unfinished))])

        if unfinished:
            Thread(self.kernel, proc, cancel, "operator").start()

    def _heal(self) -> None:
        """Nothing goes wrong any more: all that was enqueued comes to an end."""
        kernel = self.kernel
        self.outage_until = 0
        for proc in self.procs:
            proc.cut_until = proc.silent_until = 0
            proc.frozen_until = min(proc.frozen_until, kernel.now + SECOND)
        helper = Host(lambda host: self.start("helper", host, self.workload.signal_all), [])
        if not any("scheduler" in proc.name for proc in self.procs):
            self.hosts.append(Host(self.alone("scheduler"), []))
            self.hosts[-1].make(self.hosts[-1])
        helper.make(helper)
        self.note("nothing goes wrong any more")
        awaited = set(self.checker.rows)
        if not self.workload.acknowledged <= awaited:
            kernel.fail("a job that was acknowledged is not there")
        deadline = kernel.now + BOUND * SECOND
        while any(not self.checker.rows[id].state.finished for id in awaited):
            if kernel.now > deadline:
                rows = self.checker.rows
                left = [f"{self.name(id)} is {rows[id].state}" for id in awaited if not rows[id].state.finished]
                kernel.fail(f"after {BOUND} s without faults {', '.join(sorted(left))}")
                raise Killed
            self._wait(2)


def simulate(seed: int, *, keep: int | None = 60) -> Verdict:
    return World(seed, keep=keep).run()


def simulate_each(seeds: Collection[int]) -> list[Verdict]:
    """Without errors, which may not travel, and without the stories of what went well."""
    verdicts = map(simulate, seeds)
    return [it._replace(error=None, trace=it.trace if it.failure else []) for it in verdicts]
