"""Reads a history and says what was broken. Pure: no clock, no files, no processes."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from chaos.history import APART, SECOND, SELF, STRICT, Ack, Effect, Fault, History, Line, Pace, Row, What

FINISHED = ("succeeded", "failed", "cancelled")
RATE_WINDOW = 10 * SECOND
# Nobody is left to see who dies.
UNSEEN = frozenset({"kill tree", "freeze tree", "kill while starting"})
# Whatever else they hurt, the supervisor sees who dies and judges what they held.
SEEN = frozenset({"kill worker", "kill isolated process", "freeze worker", "kill producer", "set the clock", SELF})


class Broken(StrEnum):
    """Promises, by what is left of them."""

    LOST = "acknowledged and lost"
    UNFINISHED = "never finished"
    NEVER_RAN = "succeeded without having run"
    REPEATED = "ran again without a fault"
    OVERLAP = "two attempts at once"
    STALE = "an old attempt was recorded"
    AFTER_END = "ran after its end was recorded"
    OVERRUN = "more at once than the limit"
    TOO_FAST = "more begun than the rate"
    MISSED = "a moment without a job"
    DOUBLED = "a moment with two jobs"
    DROPPED = "a follower did not run"
    EARLY = "a follower ran too early"
    TWICE_FOLLOWED = "two jobs for one place of a flow"
    STEP = "a finished step ran again"
    STATE = "ended in a state nobody asked for"
    COUNT = "attempts or losses miscounted"
    LEFTOVER = "something is left though all is done"
    LATE = "came back too late"
    TWICE = "a strict job began twice"
    UNCOUNTED = "lost its worker without a loss"


@dataclass(frozen=True)
class Violation:
    broken: Broken
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.broken}: {self.subject}: {self.text}"


@dataclass
class Recovery:
    """How soon what a kind of fault cut short ran again, in seconds."""

    bound: float | None
    faults: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def worst(self) -> float | None:
        return max(self.seconds, default=None)

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


@dataclass
class Verdict:
    counts: dict[str, int]
    violations: list[Violation]
    recoveries: dict[str, Recovery]

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def by_kind(self) -> Counter[Broken]:
        return Counter(violation.broken for violation in self.violations)


@dataclass
class Run:
    """One call of a task's function, as its lines tell."""

    job: str
    name: str
    generation: int
    pid: int
    kind: str
    start: int
    last: int
    about: dict[str, str]
    how: What | None = None  # finished or raised; None where nothing tells of its end
    effects: list[tuple[int, str]] = field(default_factory=list)
    kept: list[tuple[int, str]] = field(default_factory=list)

    def see(self, line: Line) -> None:
        self.start, self.last = min(self.start, line.at), max(self.last, line.at)
        if line.what in (What.FINISH, What.RAISED, What.DIES):
            self.how = line.what
        elif line.what is What.EFFECT:
            self.effects.append((line.at, line.about["step"]))
        elif line.what is What.KEPT:
            self.kept.append((line.at, line.about["step"]))
        elif line.what is What.START:
            self.about.update(line.about)


def check(history: History) -> Verdict:
    return _Check(history).verdict()


class _Check:
    def __init__(self, history: History) -> None:
        self.history = history
        self.bounds = history.bounds
        self.violations: list[Violation] = []
        self.faults = sorted(history.faults, key=lambda fault: fault.begin)
        self.cutting = [fault for fault in self.faults if self._cuts(fault)]
        self.acks: dict[str, Ack] = {}
        for ack in history.acks:
            self.acks.setdefault(ack.id, ack)  # a unique job is told of more than once
        self.runs = self._read(history.lines)
        self.explained = 0
        self.zombies = 0

    def verdict(self) -> Verdict:
        self._check_ends()
        for id, runs in self.runs.items():
            self._check_repeats(runs)
            self._check_strict(runs)
            self._check_overlaps(runs)
            self._check_accepted(self.history.rows.get(id), runs)
            self._check_steps(runs)
        self._check_limits()
        self._check_rates()
        self._check_moments()
        self._check_followers()
        self.violations += [Violation(Broken.LEFTOVER, "the store", text) for text in self.history.leftovers]
        recoveries = self._recoveries()
        return Verdict(self._counts(), self.violations, recoveries)

    def _read(self, lines: Iterable[Line]) -> dict[str, list[Run]]:
        """The runs of each job, by generation and start."""
        found: dict[tuple[str, str], Run] = {}
        for line in lines:
            run = found.get((line.job, line.run))
            if run is None:
                run = Run(line.job, line.run, line.generation, line.pid, line.kind, line.at, line.at, {})
                found[line.job, line.run] = run
            run.see(line)
        of_jobs: dict[str, list[Run]] = defaultdict(list)
        for run in sorted(found.values(), key=lambda run: (run.generation, run.start)):
            of_jobs[run.job].append(run)
        return dict(of_jobs)

    def _break(self, broken: Broken, subject: str, text: str) -> None:
        self.violations.append(Violation(broken, subject, text))

    # What faults may do.

    def _cuts(self, fault: Fault) -> bool:
        """Whether it may cut attempts short at all."""
        if fault.effect is Effect.AWAY:
            return fault.end - fault.begin > self.bounds.patience * SECOND
        return fault.effect is not Effect.HARMLESS

    def _hits(self, fault: Fault, run: Run) -> bool:
        return fault.effect is Effect.AWAY or run.pid in fault.pids

    def _cut_short(self, run: Run, before: int) -> bool:
        """Whether a fault explains that the run is not on record by then."""
        written_by = self._written_by(run) if run.how else before
        return any(
            self._hits(fault, run) and run.start <= self._over(fault) and fault.begin <= min(before, written_by)
            for fault in self.cutting
        )

    def _written_by(self, run: Run) -> int:
        """When its end must be on record; later where the store was away, however shortly."""
        at = run.last + round(self.bounds.unwritten * SECOND)
        for fault in self.faults:
            if fault.effect is Effect.AWAY and fault.begin <= at and fault.end >= run.last:
                at = max(at, fault.end + round(self.bounds.backoff * SECOND))
        return at

    def _over(self, fault: Fault) -> int:
        """What stood still may take a moment to learn that it has lost its jobs, and begin some of them meanwhile."""
        return fault.end + (round(self.bounds.thaw * SECOND) if fault.effect is Effect.FREEZE else 0)

    def _thawed(self, run: Run, at: int) -> Fault | None:
        """The freeze that the run was in, or came from, at that time or before."""
        freezes = [fault for fault in self.faults if fault.effect is Effect.FREEZE and run.pid in fault.pids]
        for place, fault in enumerate(freezes):
            over = self._over(fault)
            for later in freezes[place + 1 :]:  # time in which it stands still again does not count
                over += later.end - later.begin if later.begin <= over else 0
            if fault.begin <= at and run.last <= over:
                return fault
        return None

    # The promises.

    def _check_ends(self) -> None:
        for gone in self.acks.values():
            if gone.id not in self.history.rows:
                self._break(Broken.LOST, gone.id, f"a {gone.kind} job is gone")
        of_kind = {ack.kind: ack.attempts for ack in self.acks.values()}
        for row in self.history.rows.values():
            runs, ack = self.runs.get(row.id, []), self.acks.get(row.id)
            if row.state not in FINISHED:
                self._break(Broken.UNFINISHED, row.id, f"{row.task} is {row.state}, {len(runs)} runs")
            elif row.state == "succeeded":
                if not any(run.how is What.FINISH for run in runs):
                    self._break(Broken.NEVER_RAN, row.id, f"{row.task} has {len(runs)} runs, none to its end")
                if row.attempts != (expected := ack.attempts if ack else of_kind.get(row.task, 1)):
                    self._break(Broken.COUNT, row.id, f"{row.task} took {row.attempts} attempts, not {expected}")
            elif row.state == "failed":
                strict = row.task == STRICT
                # What nobody saw dying had said that the job begins, and was perhaps about to do so.
                begun = row.losses if strict else len(runs) + sum(fault.kind in UNSEEN for fault in self.cutting)
                if row.losses < (1 if strict else self.bounds.max_losses) or begun < row.losses:
                    text = f"{row.task} failed after {row.losses} losses, and had begun {len(runs)} times"
                    self._break(Broken.STATE, row.id, text)
            elif not self._doomed(ack):
                self._break(Broken.STATE, row.id, f"{row.task} was cancelled by nobody")
            self._check_losses(row, ack, runs)
            self._check_fatal(row, runs)

    def _doomed(self, ack: Ack | None) -> bool:
        """Whether something before it in its flow did not succeed."""
        parents = (self.history.rows.get(id) for id in (ack.after if ack else ()))
        return any(parent is not None and parent.state != "succeeded" for parent in parents)

    def _check_losses(self, row: Row, ack: Ack | None, runs: Sequence[Run]) -> None:
        begin = ack.at if ack else 0
        end = max((run.last for run in runs), default=None) if row.state == "succeeded" else None
        while_it_lived = [
            fault for fault in self.cutting if fault.end >= begin - SECOND and (end is None or fault.begin <= end)
        ]
        if row.losses > len(while_it_lived):
            self._break(Broken.COUNT, row.id, f"{row.task} counts {row.losses} losses, {len(while_it_lived)} faults")

    def _check_repeats(self, runs: Sequence[Run]) -> None:
        """Each run but the last must have raised, or a fault must have cut it short."""
        for run, following in pairwise(runs):
            if run.how is What.RAISED:
                continue
            before = max(run.start, following.start)
            if self._cut_short(run, before):
                self.explained += 1
            elif self._thawed(following, following.start) and following.start > run.start:
                self.zombies += 1  # it was claimed first, and stood still before it began
            else:
                ended = "finished" if run.how else "was never heard of again"
                text = f"{run.kind} in pid {run.pid} {ended}, and ran again {_since(run.last, following.start)} later"
                self._break(Broken.REPEATED, run.job, text)

    def _check_strict(self, runs: Sequence[Run]) -> None:
        """Only what was told to stop, and did, may begin again."""
        for run, following in pairwise(runs):
            if run.kind == STRICT and run.how is not What.RAISED:
                text = f"in pid {run.pid}, and {_since(run.start, following.start)} later in pid {following.pid}"
                self._break(Broken.TWICE, run.job, text)

    def _check_fatal(self, row: Row, runs: Sequence[Run]) -> None:
        """Each death was a loss, unless another fault kept those from seeing it who count."""
        deaths = [run for run in runs if run.how is What.DIES]
        blind = sum(any(self._blinds(fault, run) for fault in self.faults) for run in deaths)
        if row.losses + blind < len(deaths):
            self._break(Broken.UNCOUNTED, row.id, f"{row.task} killed {len(deaths)} workers, {row.losses} are counted")

    def _blinds(self, fault: Fault, run: Run) -> bool:
        """Whether it may have kept the supervisor, or its verdict, from the store."""
        until = run.last + round(self.bounds.verdict * SECOND)
        return fault.kind not in SEEN and fault.begin <= until and fault.end >= run.last

    def _check_overlaps(self, runs: Sequence[Run]) -> None:
        ordered = sorted(runs, key=lambda run: run.start)
        for place, run in enumerate(ordered):
            for other in ordered[place + 1 :]:
                if other.start >= run.last:
                    continue
                if self._thawed(run, other.start) or self._thawed(other, other.start):
                    self.zombies += 1
                    continue
                text = f"{run.kind} in pid {run.pid} went on for {_since(other.start, run.last)} beside pid {other.pid}"
                self._break(Broken.OVERLAP, run.job, text)

    def _check_accepted(self, row: Row | None, runs: Sequence[Run]) -> None:
        """The run whose result is on record is the last that was claimed."""
        if row is None or row.accepted is None:
            return
        accepted = next((run for run in runs if run.name == row.accepted), None)
        if accepted is None:
            self._break(Broken.STALE, row.id, f"the result is of run {row.accepted}, which nobody saw")
            return
        for run in runs:
            later = run.generation > accepted.generation
            again = run.generation == accepted.generation and run.start > accepted.start
            if not (later or again) or (again and self._thawed(run, run.start)):
                continue
            if run.start < accepted.last or later:
                text = f"generation {accepted.generation} in pid {accepted.pid}, though {run.generation} had begun"
                self._break(Broken.STALE, row.id, text)
            else:
                self._break(Broken.AFTER_END, row.id, f"{_since(accepted.last, run.start)} later in pid {run.pid}")

    def _check_steps(self, runs: Sequence[Run]) -> None:
        kept: dict[str, int] = {}
        for run in runs:
            for at, step in run.kept:
                kept[step] = min(at, kept.get(step, at))
        for run in runs:
            for at, step in run.effects:
                if step in kept and at > kept[step] and not self._thawed(run, at):
                    self._break(Broken.STEP, run.job, f"{step} {_since(kept[step], at)} after it was kept")

    def _check_limits(self) -> None:
        spans: dict[str, list[tuple[int, int, Run]]] = defaultdict(list)
        for runs in self.runs.values():
            for place, run in enumerate(runs):
                if "limit" not in run.about:
                    continue
                end = min([run.last, *(other.start for other in runs[place + 1 :])])
                for fault in self.faults:  # who stands still for longer than a lease has no permit any more
                    if fault.effect is Effect.FREEZE and run.pid in fault.pids and fault.end >= run.start:
                        end = min(end, fault.begin)
                if end > run.start:
                    spans[run.about["limit"]].append((run.start, end, run))
        for key, found in spans.items():
            most, at = _most_at_once([(start, end) for start, end, _ in found])
            if most > self.history.limits[key]:
                there = ", ".join(run.job for start, end, run in found if start <= at < end)
                self._break(Broken.OVERRUN, key, f"{most} at once, {self.history.limits[key]} allowed: {there}")

    def _check_rates(self) -> None:
        starts: dict[str, list[int]] = defaultdict(list)
        for runs in self.runs.values():
            if "rate" in runs[0].about and runs[0].generation == 1:
                starts[runs[0].about["rate"]].append(runs[0].start)
        for key, found in starts.items():
            found.sort()
            pace = self.history.rates[key]
            for place, at in enumerate(found):
                if (first := self._too_fast(found, place, pace)) is not None:
                    text = f"{place - first + 1} began within {_since(found[first], at)}"
                    self._break(Broken.TOO_FAST, key, text)
                    break

    def _too_fast(self, starts: Sequence[int], place: int, pace: Pace) -> int | None:
        """The first of those in the seconds before that are more, together with this one, than the pace allows.

        Each may begin a little after it was let in, so that those of a quiet time meet those of the next; and a fault
        may hold some of them back.
        """
        for first in range(place - 1, -1, -1):
            if (passed := starts[place] - starts[first]) > RATE_WINDOW:
                break
            allowed = pace.per_second * (passed / SECOND + pace.catch_up) + 2 * pace.depth + 1
            surplus = place - first + 1 - allowed
            if surplus > 0 and surplus > pace.depth * self._stirred(starts[first], starts[place]):
                return first
        return None

    def _stirred(self, begin: int, end: int) -> int:
        return sum(fault.begin <= end and fault.end + 5 * SECOND >= begin for fault in self.faults)

    def _check_moments(self) -> None:
        seen: dict[tuple[str, int], set[str]] = defaultdict(set)
        for runs in self.runs.values():
            for run in runs:
                if "schedule" in run.about:
                    seen[run.about["schedule"], int(run.about["moment"])].add(run.job)
        for (key, moment), jobs in seen.items():
            if len(jobs) > 1:
                self._break(Broken.DOUBLED, key, f"{moment} has {', '.join(sorted(jobs))}")
        for key, span in self.history.schedules.items():
            missed = [at for at in range(span.first, span.last + 1, span.step) if (key, at) not in seen]
            if missed:
                self._break(Broken.MISSED, key, f"{len(missed)} moments, the first is {missed[0]}")
        self.moments = len(seen)

    def _check_followers(self) -> None:
        places: dict[str, set[str]] = defaultdict(set)
        for runs in self.runs.values():
            for run in runs:
                if "place" in run.about:
                    places[run.about["place"]].add(run.job)
        for place, jobs in places.items():
            if len(jobs) > 1:
                self._break(Broken.TWICE_FOLLOWED, place, ", ".join(sorted(jobs)))
        for ack in self.acks.values():
            if not ack.after:
                continue
            parents = [self.history.rows.get(id) for id in ack.after]
            row = self.history.rows.get(ack.id)
            all_well = all(parent is not None and parent.state == "succeeded" for parent in parents)
            if all_well and row is not None and row.state not in ("succeeded", "failed"):
                self._break(Broken.DROPPED, ack.id, f"it is {row.state}, though all before it succeeded")
            began = min((run.start for run in self.runs.get(ack.id, ())), default=None)
            if began is None:
                continue
            for id in ack.after:
                ends = [run.last for run in self.runs.get(id, ()) if run.how is What.FINISH]
                if not ends or began < min(ends):
                    self._break(Broken.EARLY, ack.id, f"it began before {id} had ended")

    # Recovery.

    def _recoveries(self) -> dict[str, Recovery]:
        found: dict[str, Recovery] = {}
        on_pid: dict[int, list[tuple[Run, Run]]] = defaultdict(list)
        for runs in self.runs.values():
            for run, following in pairwise(runs):
                on_pid[run.pid].append((run, following))
        for fault in self.faults:
            recovery = found.setdefault(fault.kind, Recovery(fault.bound))
            recovery.faults += 1
            if fault.bound is None:
                continue
            for run, following in self._cut_by(fault, on_pid):
                since = fault.end if fault.effect is Effect.KILL else fault.begin
                took = max(0, following.start - since) / SECOND
                recovery.seconds.append(took)
                bound = fault.bound + (self.bounds.boot if run.kind == APART else 0)
                if took > bound:
                    text = f"{run.job} after {took:.2f} s, {bound:g} s are promised"
                    self._break(Broken.LATE, fault.kind, text)
        return found

    def _cut_by(self, fault: Fault, on_pid: dict[int, list[tuple[Run, Run]]]) -> Iterator[tuple[Run, Run]]:
        """Runs that were open when it came, with the next of the job, where no other fault came between."""
        for pid in fault.pids:
            for run, following in on_pid.get(pid, ()):
                open_then = run.start <= fault.begin and (run.how is None or run.last > fault.begin)
                if open_then and following.start > fault.begin and not self._disturbed(fault, following.start):
                    yield run, following

    def _disturbed(self, fault: Fault, until: int) -> bool:
        return any(other is not fault and other.begin <= until and other.end >= fault.begin for other in self.faults)

    # Sums.

    def _counts(self) -> dict[str, int]:
        rows = self.history.rows
        states = Counter(row.state for row in rows.values())
        runs = sum(map(len, self.runs.values()))
        violations = Counter(violation.broken for violation in self.violations)
        return {
            "acknowledged": len(self.acks),
            "in the store": len(rows),
            "never acknowledged, but there": sum(
                id not in self.acks and not any("schedule" in run.about for run in self.runs.get(id, ())) for id in rows
            ),
            **{state: states[state] for state in FINISHED},
            "unfinished": sum(count for state, count in states.items() if state not in FINISHED),
            "lost": violations[Broken.LOST],
            "runs": runs,
            "repeated because of a fault": self.explained,
            "zombies of a freeze": self.zombies,
            "losses counted": sum(row.losses for row in rows.values()),
            "moments": self.moments,
            "followers": sum(bool(ack.after) for ack in self.acks.values()),
            "steps kept": sum(len(run.kept) for its in self.runs.values() for run in its),
            "faults": len(self.faults),
            "violations": len(self.violations),
        }


def _since(begin: int, end: int) -> str:
    return f"{(end - begin) / SECOND:.3f} s"


def _most_at_once(spans: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """How many there are at most, and when."""
    changes = sorted(change for start, end in spans for change in ((start, 1), (end, -1)))
    most = now = at = 0
    for moment, change in changes:  # an end sorts before a start of the same moment
        now += change
        if now > most:
            most, at = now, moment
    return most, at
