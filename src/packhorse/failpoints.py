"""Named places where a test can make the program die, stop, fail or wait.

PACKHORSE_FAILPOINTS="exchange.before_commit=kill@3;insert.after_commit=raise" arms them in any process:
`kill` and `stop` send SIGKILL and SIGSTOP to the process itself, `raise` raises, `sleep(0.2)` waits;
`@3` means the third time the place is reached (once), nothing means each time. Off, a place costs one look
at an empty dictionary.
"""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass

POINTS: dict[str, str] = {
    "insert.before_write": "the store is about to write new jobs",
    "insert.before_commit": "new jobs are written, not yet committed",
    "insert.after_commit": "new jobs are committed, the caller does not know yet",
    "exchange.before_write": "an exchange is about to write outcomes",
    "exchange.between": "outcomes are written, nothing is claimed yet",
    "exchange.before_commit": "outcomes and claims are written, not yet committed",
    "exchange.after_commit": "an exchange is committed, the worker does not know yet",
    "beat.before_commit": "a beat is written, not yet committed",
    "beat.after_commit": "a beat is committed",
    "record.before_commit": "entries of a running job are written, not yet committed",
    "record.after_commit": "entries of a running job are committed",
    "promote.before_commit": "due jobs are made ready, not yet committed",
    "promote.after_commit": "due jobs are ready and committed",
    "adopt.before_commit": "orphans are taken over, not yet committed",
    "adopt.after_commit": "orphans are taken over, no verdict is written yet",
    "prune.before_commit": "old jobs are deleted, not yet committed",
    "prune.after_commit": "old jobs are deleted and committed",
    "tick.before_write": "a schedule is seen to be due, and is about to be ticked",
    "tick.before_commit": "the job of a moment is written, not yet committed",
    "tick.after_commit": "the job of a moment is committed, and the schedule has moved on",
    "schedule.before_commit": "a schedule is written, not yet committed",
    "schedule.after_commit": "a schedule is committed",
    "move.before_commit": "an operator's act is written, not yet committed",
    "move.after_commit": "an operator's act is committed",
    "pause.before_commit": "a pause or its end is written, not yet committed",
    "pause.after_commit": "a pause or its end is committed",
    "signal.before_commit": "a signal is kept and those who await it are due, not yet committed",
    "signal.after_commit": "a signal is kept and those who await it are due",
    "enroll.before_commit": "a process is about to be known",
    "enroll.after_commit": "a process is known",
    "leave.before_commit": "a process is about to be gone",
    "leave.after_commit": "a process is gone from the store",
    "worker.claimed": "claims came back, no slot has seen them",
    "worker.before_exchange": "the worker collected outcomes for an exchange",
    "worker.after_exchange": "the exchange is answered, claims not yet handed to slots",
    "worker.release": "the worker is about to hand back what it did not start",
    "slot.before_perform": "a slot took a job, the task has not begun",
    "slot.after_perform": "the task ended, its outcome is not yet handed over",
    "dispatcher.before_verdict": "orphans are adopted, the verdict is not yet written",
    "supervisor.after_start": "a child was started",
    "supervisor.before_stop": "the supervisor is about to stop its children",
}


class FailpointError(RuntimeError):
    """Raised by a failpoint armed with `raise`."""


@dataclass
class _Armed:
    action: str
    seconds: float
    at: int | None
    hits: int = 0

    def hit(self, name: str) -> None:
        self.hits += 1
        if self.at is not None and self.hits != self.at:
            return
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.action == "sleep":
            time.sleep(self.seconds)
        else:
            raise FailpointError(name)


_armed: dict[str, _Armed] = {}
_FORM = re.compile(r"(?P<name>[\w.]+)=(?P<action>kill|stop|raise|sleep)(\((?P<seconds>[\d.]+)\))?(@(?P<at>\d+))?")


def failpoint(name: str) -> None:
    if _armed and name in _armed:
        _armed[name].hit(name)


def arm(text: str) -> None:
    """Arm the places named in the text; an empty text disarms all."""
    _armed.clear()
    for part in filter(None, (part.strip() for part in text.split(";"))):
        match = _FORM.fullmatch(part)
        if match is None or match["name"] not in POINTS:
            raise ValueError(f"{part!r} is no failpoint; `packhorse failpoints` lists them.")
        at = int(match["at"]) if match["at"] else None
        _armed[match["name"]] = _Armed(match["action"], float(match["seconds"] or 0), at)


arm(os.environ.get("PACKHORSE_FAILPOINTS", ""))
