"""One run: workers and producers start, the nemesis strikes, all is let settle, and the history is gathered."""

from __future__ import annotations

import json
import os
import secrets
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from chaos import jobs
from chaos.clock import SteppedClock
from chaos.fleet import Crew, Crowd, Producers, TookTooLong, environment, role_of, wait_for
from chaos.history import SECOND, Ack, Bounds, History, Line, Row, Span
from chaos.keeping import keep
from chaos.ledger import Ledger, deaths
from chaos.nemesis import PATIENCE, Nemesis, Times
from chaos.places import open_place
from chaos.processes import descendants
from chaos.soak import Sampler, figures
from packhorse import JobState
from packhorse.clock import to_microseconds
from packhorse.moments import every
from packhorse.stores.contract import Selection

PAGE = 1_000
START = 60.0  # seconds within which workers must be there
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What a run is made of. Times are seconds."""

    store: str = "sqlite"
    seconds: float = 600.0
    at_least: int = 0  # faults, though it takes longer
    seed: int = 1
    crews: int = 2
    processes: int = 2
    concurrency: int = 8
    producers: int = 2
    per_second: float = 120.0
    awaited: float = 20.0  # jobs a second for whose results many wait
    heartbeat: float = 0.5
    lease: float = 3.0
    polling_interval: float = 0.5
    shutdown_timeout: float = 10.0
    settle: float = 180.0
    longest: float = 6.0  # of the tasks that take long
    long_share: float = 1.0  # percent of all jobs, roughly
    warm_up: float = 3.0
    hasty: float = 0.7  # share of faults after which the next one does not wait until all came back
    only: tuple[str, ...] = ()
    faults: bool = True
    spare_lock: bool = False  # freeze nobody who holds the store's lock
    soak: bool = False  # the first crew is left alone, and every process is sampled
    app: str = "chaos.jobs:app"
    extra_environment: tuple[tuple[str, str], ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        names = ("heartbeat", "lease", "polling_interval", "shutdown_timeout")
        return {name: getattr(self, name) for name in names}

    @property
    def times(self) -> Times:
        return Times(self.lease, self.heartbeat, self.shutdown_timeout)


@dataclass
class Done:
    """What a run gives: its history, and what a reader of the figures should know."""

    plan: Plan
    history: History
    seconds: float
    notes: list[str] = field(default_factory=list)
    warnings: Counter[str] = field(default_factory=Counter)
    growth: list[dict[str, Any]] = field(default_factory=list)


class Arena:
    """A private folder with everything of one run in it; gone when it ends, with all processes."""

    def __init__(self, plan: Plan, say: Say = lambda text: None, folder: Path | None = None) -> None:
        self.plan = plan
        self.say = say
        self.notes: list[str] = []
        self.leftovers: list[str] = []
        self._stack = ExitStack()
        self._given = folder

    def __enter__(self) -> Self:
        with self._stack as stack:
            if self._given is None:
                self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="packhorse-chaos-")))
            else:
                self.folder = self._given
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def _open(self, stack: ExitStack) -> None:
        plan = self.plan
        self.place = open_place(plan.store, stack, self.folder, plan.seconds)
        self.notes += self.place.notes
        settings = plan.settings | {"keys": [secrets.token_urlsafe(32)]}
        self.ledger = Ledger(self.folder / "ledger")
        self.clock = SteppedClock(self.folder / "clock")
        self.app = jobs.make_app(self.place.near_url, self.folder, **settings)
        stack.callback(self.app.close)
        long = {"CHAOS_LONGEST": str(plan.longest), "CHAOS_LONG_SHARE": str(plan.long_share)}
        more = long | dict(plan.extra_environment)
        env = environment(self.place.url, self.folder, settings, **more)
        self.firsts = {key: self._schedule(key, step) for key, step in jobs.SCHEDULES.items()}
        sizes = (plan.processes, plan.concurrency)
        self.crews = [Crew(f"crew{n}", self.folder, env, plan.app, *sizes) for n in range(1, plan.crews + 1)]
        for crew in self.crews:
            stack.callback(crew.end)
            crew.start()
        for crew in self.crews:
            wait_for(lambda crew=crew: crew.complete, f"{crew.name} is there", START)  # type: ignore[misc]
        self.producers = Producers(self.folder, env, plan.producers, plan.per_second, plan.seed)
        stack.callback(self.producers.end)
        self.crowd = Crowd(self.folder, env, plan.awaited, plan.seed)
        stack.callback(self.crowd.end)
        hurt = self.crews[1:] if plan.soak else self.crews
        self.nemesis = Nemesis(
            hurt,
            self.producers,
            self.clock,
            plan.times,
            plan.seed,
            spare_lock=plan.spare_lock,
            hasty=plan.hasty,
            place=self.place,
            only=plan.only,
        )

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _schedule(self, key: str, step: int) -> int:
        """Its first moment."""
        view = self.app.schedules.add(self.app.tasks["moment"].call(), every(step / SECOND), key=key, misfire="all")
        assert view.next_at is not None
        return to_microseconds(view.next_at)

    # The run.

    def run(self) -> Done:
        began = time.monotonic()
        with Sampler(self._members) as sampler:
            self._wait_for_hands()
            time.sleep(self.plan.warm_up)
            self._hurt(time.monotonic() + self.plan.seconds)
        self._tell("settling")
        lasts = self._settle()
        history = self._gather(lasts)
        if self._given is not None:
            keep(history, self.folder)
        growth = figures(sampler.samples) if self.plan.soak else []
        return Done(self.plan, history, time.monotonic() - began, self.notes, self._warnings(), growth)

    def _members(self) -> dict[int, str]:
        """Whose size is of interest: roles by pid."""
        found = {
            pid: f"{role_of(pid)} of {crew.name}" for crew in self.crews for pid in descendants(crew.supervisor.pid)
        }
        return found | {crew.supervisor.pid: f"supervisor of {crew.name}" for crew in self.crews}

    def _hurt(self, until: float) -> None:
        strikes = 0
        while (left := until - time.monotonic()) > 0 or strikes < self.plan.at_least:
            if self.plan.faults:
                strikes += 1
                kind = self.nemesis.choose()
                self._tell(f"{left:.0f} s left: {kind}")
                self._strike(kind)
                time.sleep(self.nemesis.pause())
                self._wait_for_hands()
            else:
                self._tell(f"{left:.0f} s left")
                time.sleep(min(left, 1.0))

    def _strike(self, kind: str) -> None:
        try:
            self.nemesis.strike(kind)
        except TookTooLong as error:
            self.leftovers.append(f"{kind}: {error}")
            for crew in self.crews:
                if not crew.running:
                    crew.end()
                    crew.start()

    def _wait_for_hands(self) -> None:
        """Until each crew has a worker: how soon work comes back says little where nobody is there to do it."""

        def at_work() -> bool:
            enrolled = {view.pid for view in self.app.inspection.processes() if view.role == "worker"}
            return all(enrolled & {member.pid for member in crew.of_role("worker")} for crew in self.crews)

        try:
            wait_for(at_work, "each crew has a worker", 2 * START)
        except TookTooLong as error:
            self.leftovers.append(str(error))

    def _tell(self, text: str) -> None:
        counts = self.app.inspection.counts()
        done = sum(number for state, number in counts.items() if state.finished)
        unfinished = sum(number for state, number in counts.items() if not state.finished)
        self.say(f"{done:,} jobs done, {unfinished:,} to do, {len(self.nemesis.faults)} faults; {text}")

    def _settle(self) -> dict[str, int]:
        """No more faults, no more jobs; the last moment that each schedule owes."""
        self.place.mend()
        self.clock.set_ahead(0)
        for crew in self.crews:
            if not crew.running:
                crew.start()
        if any(status not in (0, -signal.SIGTERM) for status in self.producers.stop()):
            self.notes.append("a producer ended with an error; see its log")
        self.crowd.stop_enqueuing()
        end = self.app.clock.now()
        lasts = {key: end - (end - first) % jobs.SCHEDULES[key] for key, first in self.firsts.items()}
        self._wait(lambda: all((self._handled(key) or 0) >= last for key, last in lasts.items()), "schedules caught up")
        for key in lasts:
            self.app.schedules.pause(key)
        self._wait(lambda: self._unfinished() == 0, "every job has finished")
        self._let_crowd_go()
        for crew in self.crews:
            try:
                if (status := crew.stop(signal.SIGTERM, 2 * self.plan.shutdown_timeout + PATIENCE)) != 0:
                    self.leftovers.append(f"{crew.name} stopped with status {status}")
                crew.wait_children_gone(PATIENCE)
            except TookTooLong as error:
                self.leftovers.append(str(error))
        return lasts

    def _let_crowd_go(self) -> None:
        try:
            if (status := self.crowd.wait(PATIENCE)) != 0:
                self.leftovers.append(f"the program in which many wait ended with status {status}")
        except TookTooLong as error:
            self.leftovers.append(str(error))

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_for(condition, what, self.plan.settle)
        except TookTooLong as error:
            self.leftovers.append(str(error))

    def _handled(self, key: str) -> int | None:
        row = self.app.store.schedule(key)
        return row.handled if row is not None else None

    def _unfinished(self) -> int:
        time.sleep(0.1)  # the pace of looking
        return sum(number for state, number in self.app.inspection.counts().items() if not state.finished)

    # What is left.

    def _gather(self, lasts: dict[str, int]) -> History:
        lines = list(self.ledger.read())
        plan = self.plan
        return History(
            acks=list(self._acks()),
            lines=lines,
            rows={row.id: row for row in self._rows(lines)},
            faults=[*self.nemesis.faults, *deaths(lines)],
            limits=jobs.LIMITS,
            rates=jobs.RATES,
            schedules={key: Span(self.firsts[key], last, jobs.SCHEDULES[key]) for key, last in lasts.items()},
            leftovers=[*self.leftovers, *self._leftovers()],
            bounds=Bounds(thaw=plan.longest + 1, patience=plan.lease - 2 * plan.heartbeat),
        )

    def _acks(self) -> Iterator[Ack]:
        for path in sorted(self.folder.glob("acks-*")):
            for text in path.read_text().splitlines(keepends=True):
                if text.endswith("\n"):
                    id, kind, at, attempts, after = json.loads(text)
                    yield Ack(id, kind, at, attempts, tuple(after))

    def _rows(self, lines: list[Line]) -> Iterator[Row]:
        runs: dict[str, set[str]] = {}
        for line in lines:
            runs.setdefault(line.job, set()).add(line.run)
        after = None
        while page := self.app.store.jobs(Selection(), after, PAGE):
            for job in page:
                # Whose result it is matters only where there are several who may have written it.
                several = job.state is JobState.SUCCEEDED and len(runs.get(job.id, ())) > 1
                accepted = str(self.app.job(job.id).result(timeout=0)) if several else None
                yield Row(job.id, job.task, str(job.state), job.attempts, job.losses, accepted)
            after = bytes.fromhex(page[-1].id.replace("-", ""))

    def _leftovers(self) -> Iterator[str]:
        for view in self.app.inspection.limits():
            if view.holders:
                yield f"{view.holders} permits of {view.key} are out"
        if damage := self.place.damage():
            yield f"the database is damaged: {damage}"

    def _warnings(self) -> Counter[str]:
        """What the workers' logs speak of, by kind; a traceback is always worth a look."""
        signs = {
            "late outcomes refused": "was refused",
            "leases lost": "lost its lease",
            "jobs that lost their worker": "lost its worker",
            "stores that failed": "the store failed",
            "tracebacks": "Traceback",
        }
        found: Counter[str] = Counter()
        for crew in self.crews:
            for path in crew.logs:
                text = path.read_text(errors="replace")
                found.update({name: text.count(sign) for name, sign in signs.items()})
        return found


def settings_of(plan: Plan) -> dict[str, Any]:
    """What the figures were taken with."""
    return {
        "store": plan.store,
        "seed": plan.seed,
        "supervisors": plan.crews,
        "workers of each": plan.processes,
        "slots of each": plan.concurrency,
        "producers": plan.producers,
        "jobs a second": plan.per_second,
        **{name.replace("_", " "): value for name, value in plan.settings.items()},
        "CPUs": os.cpu_count(),
        "load average": round(os.getloadavg()[0], 2),
    }
