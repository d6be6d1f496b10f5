"""Does harm, one thing at a time, and writes down what it did. The same seed does the same things in the same order."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from chaos.clock import SteppedClock
from chaos.fleet import Crew, Member, Producers, TookTooLong, stands_still, wait_for
from chaos.history import SECOND, Effect, Fault
from chaos.ledger import now
from chaos.places import Place
from chaos.processes import descendants

CHILD_BOUND = 2.0  # seconds until what a killed worker held runs again
MARGIN = 1.0  # for a poll and a start
TRIES = 100
PATIENCE = 30.0  # seconds within which what must happen at once has happened, also on a busy machine


@dataclass(frozen=True)
class Times:
    """Of the workers, in seconds; `scan` is how often orphans are looked for."""

    lease: float
    heartbeat: float
    shutdown_timeout: float
    scan: float = 5.0

    @property
    def tree_bound(self) -> float:
        return self.lease + self.scan + MARGIN


@dataclass
class Nemesis:
    crews: list[Crew]
    producers: Producers
    clock: SteppedClock
    times: Times
    seed: int
    spare_lock: bool = False  # freeze nobody who holds the lock of an embedded store
    hasty: float = 0.5
    place: Place | None = None
    only: tuple[str, ...] = ()
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._has_lock = False
        self._kinds: dict[str, tuple[int, Callable[[str], Fault | None]]] = {
            "kill worker": (62, self._kill_worker),
            "kill isolated process": (14, self._kill_isolated),
            "kill dispatcher or scheduler": (10, self._kill_helper),
            "kill supervisor": (4, self._kill_supervisor),
            "kill tree": (6, self._kill_tree),
            "freeze worker": (46, self._freeze_worker),
            "freeze tree": (6, self._freeze_tree),
            "stop and start": (4, self._stop),
            "stop the whole group": (3, self._stop_group),
            "quit and start": (4, self._quit),
            "kill while starting": (4, self._kill_young),
            "set the clock": (3, self._step_clock),
            "kill producer": (4, self._kill_producer),
        }
        if self.place is not None:
            self._kinds |= self.place.kinds(self._dice, self.times.lease)
        if self.only:
            if missing := [kind for kind in self.only if kind not in self._kinds]:
                raise ValueError(
                    f"{missing[0]!r} is none of {', '.join(self._kinds)}, as far as they can be done here."
                )
            self._kinds = {kind: self._kinds[kind] for kind in self.only}

    @property
    def kinds(self) -> list[str]:
        return list(self._kinds)

    def choose(self) -> str:
        """Each kind once, in any order, before chance decides alone."""
        fresh = [kind for kind in self._kinds if kind not in {fault.kind for fault in self.faults}]
        if fresh:
            return self._dice.choice(fresh)
        return self._dice.choices(list(self._kinds), [weight for weight, _ in self._kinds.values()])[0]

    def strike(self, kind: str) -> Fault | None:
        """None where there is nobody to hit just now."""
        fault = self._kinds[kind][1](kind)
        if fault is not None:
            self.faults.append(fault)
        return fault

    def pause(self) -> float:
        """Seconds until the next one: mostly long enough to see what the last one cut short come back."""
        last = self.faults[-1] if self.faults else None
        if last is None or last.bound is None or self._dice.random() < self.hasty:
            return self._dice.uniform(0.3, 1.5)
        return max(0.3, last.bound - (now() - last.begin) / SECOND + 0.5)

    # Who is hit.

    def _crew(self) -> Crew:
        return self._dice.choice(self.crews)

    def _one_of(self, *roles: str) -> Member | None:
        found = sorted((member for crew in self.crews for member in crew.of_role(*roles)), key=lambda it: it.pid)
        return self._dice.choice(found) if found else None

    # Processes.

    def _kill_worker(self, kind: str) -> Fault | None:
        if (member := self._one_of("worker")) is None:
            return None
        pids = _with_descendants(member.pid)
        begin, end = self._kill(member)
        return Fault(kind, begin, end, Effect.KILL, pids, CHILD_BOUND)

    def _kill_isolated(self, kind: str) -> Fault | None:
        if (member := self._one_of("isolated")) is None:
            return None
        begin, end = self._kill(member)
        return Fault(kind, begin, end, Effect.KILL, frozenset([member.pid]), CHILD_BOUND)

    def _kill_helper(self, kind: str) -> Fault | None:
        if (member := self._one_of("dispatcher", "scheduler")) is None:
            return None
        begin, end = self._kill(member)
        return Fault(kind, begin, end, Effect.HARMLESS)

    def _kill(self, member: Member) -> tuple[int, int]:
        begin = now()
        member.send(signal.SIGKILL)
        wait_for(lambda: member.ended, f"{member.role} {member.pid} is dead", PATIENCE)
        return begin, now()

    def _kill_supervisor(self, kind: str) -> Fault:
        """Its children finish what they do and leave."""
        crew = self._crew()
        crew.look()
        begin = now()
        crew.supervisor.kill()
        crew.supervisor.wait()
        crew.wait_children_gone(self.times.shutdown_timeout + PATIENCE)
        crew.start()
        return Fault(kind, begin, now(), Effect.HARMLESS)

    def _kill_tree(self, kind: str) -> Fault:
        crew = self._crew()
        pids = crew.pids()
        begin = now()
        crew.signal_all(signal.SIGKILL)
        crew.supervisor.wait()
        crew.wait_children_gone(PATIENCE)
        end = now()
        time.sleep(self._dice.uniform(0, self.times.lease))
        crew.start()
        return Fault(kind, begin, end, Effect.KILL, pids, self.times.tree_bound)

    def _freeze_worker(self, kind: str) -> Fault | None:
        """Its supervisor still beats for it."""
        if (member := self._one_of("worker")) is None:
            return None
        pids = _with_descendants(member.pid)
        begin = self._freeze(member.send, frozenset([member.pid]))
        time.sleep(self.times.lease * self._dice.uniform(0.2, 1.8))
        end = self._thaw(member.send, begin)
        return Fault(kind, begin, end, Effect.FREEZE, pids)

    def _freeze_tree(self, kind: str) -> Fault:
        """Others take its jobs; it must not write over what they make of them."""
        crew = self._crew()
        pids = crew.pids()
        begin = self._freeze(crew.signal_all, pids)
        time.sleep(self.times.tree_bound + self._dice.uniform(0, 2))
        end = self._thaw(crew.signal_all, begin)
        return Fault(kind, begin, end, Effect.FREEZE, pids, self.times.tree_bound)

    def _freeze(self, send: Callable[[signal.Signals], None], pids: frozenset[int]) -> int:
        """Since when they stand still. Where one of them holds the lock of the store, nobody reaches that meanwhile."""
        for _ in range(TRIES):
            begin = now()
            send(signal.SIGSTOP)
            try:
                wait_for(lambda: all(map(stands_still, pids)), "they stand still", PATIENCE)
            except TookTooLong:
                send(signal.SIGCONT)
                raise
            self._has_lock = self.place is not None and bool(self.place.holders() & pids)
            if not (self._has_lock and self.spare_lock):
                break
            send(signal.SIGCONT)
            time.sleep(0.005)
        return begin

    def _thaw(self, send: Callable[[signal.Signals], None], begin: int) -> int:
        end = now()
        send(signal.SIGCONT)
        if self._has_lock:
            self.faults.append(Fault("frozen with the store's lock", begin, end, Effect.AWAY))
        return end

    def _stop(self, kind: str) -> Fault:
        crew = self._crew()
        begin = now()
        crew.stop(signal.SIGTERM, 2 * self.times.shutdown_timeout + PATIENCE)
        crew.start()
        return Fault(kind, begin, now(), Effect.HARMLESS)

    def _stop_group(self, kind: str) -> Fault:
        """As a terminal or a container does it, and more than once."""
        crew = self._crew()
        begin = now()
        for _ in range(5):
            crew.signal_all(signal.SIGTERM)
            time.sleep(0.02)
        crew.stop(signal.SIGTERM, 2 * self.times.shutdown_timeout + PATIENCE)
        crew.start()
        return Fault(kind, begin, now(), Effect.HARMLESS)

    def _kill_young(self, kind: str) -> Fault:
        """Stopped in good order, started, and killed before it was up."""
        crew = self._crew()
        crew.stop(signal.SIGTERM, 2 * self.times.shutdown_timeout + PATIENCE)
        crew.start()
        time.sleep(self._dice.uniform(0.05, 1.5))
        pids = crew.pids()
        begin = now()
        crew.signal_all(signal.SIGKILL)
        crew.supervisor.wait()
        crew.wait_children_gone(PATIENCE)
        end = now()
        crew.start()
        return Fault(kind, begin, end, Effect.KILL, pids, self.times.tree_bound)

    def _quit(self, kind: str) -> Fault:
        crew = self._crew()
        pids = crew.pids()
        begin = now()
        crew.stop(signal.SIGQUIT, PATIENCE)
        end = now()
        crew.start()
        return Fault(kind, begin, end, Effect.KILL, pids, CHILD_BOUND)

    def _kill_producer(self, kind: str) -> Fault:
        begin = now()
        self.producers.kill(self._dice.randrange(len(self.producers.processes)))
        return Fault(kind, begin, now(), Effect.HARMLESS)

    # The world around them.

    def _step_clock(self, kind: str) -> Fault:
        """Forward or back, and after a while to where it was."""
        begin = now()
        self.clock.set_ahead(round(self._dice.choice([-20, -5, 5, 20]) * SECOND))
        time.sleep(self._dice.uniform(1, 3))
        self.clock.set_ahead(0)
        return Fault(kind, begin, now(), Effect.HARMLESS)


def _with_descendants(pid: int) -> frozenset[int]:
    """What runs in processes of its own ends with the worker that started them."""
    return frozenset([pid, *descendants(pid)])
