"""What a run left behind, as plain values: who was told what, what tasks did, what the store says, what was done to it.

Times are microseconds of a clock that never jumps, the same in all processes of a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

SECOND = 1_000_000


class Ack(NamedTuple):
    """The store said that it has the job. It takes so many `attempts` to succeed, and comes `after` others."""

    id: str
    kind: str
    at: int
    attempts: int = 1
    after: tuple[str, ...] = ()


class What(StrEnum):
    """What a line of the ledger tells of a run."""

    START = "start"
    FINISH = "finish"
    RAISED = "raised"
    BEAT = "beat"  # it still runs
    EFFECT = "effect"  # a step did its work
    KEPT = "kept"  # and that is on record
    DIES = "dies"  # it kills its process now; `pids` are those that end with it


class Line(NamedTuple):
    """A line of the ledger. A `run` is one call of a task's function, and has a name of its own.

    `generation` is the attempt and the losses before it: it never falls, and rises with most claims.
    """

    at: int
    what: What
    job: str
    run: str
    generation: int
    pid: int
    kind: str
    about: Mapping[str, str] = {}


class Row(NamedTuple):
    """What the store says of a job in the end. `accepted` names the run whose result it has, where that is known."""

    id: str
    task: str
    state: str
    attempts: int
    losses: int
    accepted: str | None = None


class Effect(StrEnum):
    """What a fault does to the processes it hits."""

    KILL = "kill"  # they are gone at its beginning
    FREEZE = "freeze"  # they stand still until its end
    AWAY = "away"  # nobody reaches the store until its end
    HARMLESS = "harmless"  # no attempt may be cut short by it


class Fault(NamedTuple):
    """`bound` is within how many seconds the attempts that it cut short must run again: of its beginning, or of its end
    where it kills.
    """

    kind: str
    begin: int
    end: int
    effect: Effect
    pids: frozenset[int] = frozenset()
    bound: float | None = None


class Span(NamedTuple):
    """The moments of a schedule that must have had their job: from the first to the last, one each `step`."""

    first: int
    last: int
    step: int


class Pace(NamedTuple):
    """So many beginnings in a second, and so many at once after a quiet time.

    What was not begun in time, though somebody waited, is made up for within `catch_up` seconds.
    """

    per_second: float
    depth: int
    catch_up: float = 1.0


APART = "apart"  # in a process of its own
STRICT = "strict"  # never begins twice
FATAL = "fatal"  # kills its process each time
SELF = "a task kills its process"  # as a fault


@dataclass(frozen=True)
class Bounds:
    """What is promised, in seconds.

    unwritten   how long after its end an attempt may not be on record, so that a fault can make it run again
    thaw        how long a task may go on in a process that was frozen for longer than its lease
    patience    how long the store may be away before leases run out
    backoff     how long a worker may wait before it tries again, where the store was away
    boot        how long a job of kind APART may wait for a process to begin
    verdict     how long after the end of a worker a fault may still keep others from judging what it held
    """

    max_losses: int = 3
    unwritten: float = 2.0
    thaw: float = 5.0
    patience: float = 1.5
    backoff: float = 6.0
    boot: float = 8.0
    verdict: float = 6.0


@dataclass(frozen=True)
class History:
    acks: Sequence[Ack] = ()
    lines: Sequence[Line] = ()
    rows: Mapping[str, Row] = field(default_factory=dict)
    faults: Sequence[Fault] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, Pace] = field(default_factory=dict)
    schedules: Mapping[str, Span] = field(default_factory=dict)
    leftovers: Sequence[str] = ()
    bounds: Bounds = field(default_factory=Bounds)
