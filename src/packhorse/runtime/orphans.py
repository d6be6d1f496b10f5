"""The verdict on jobs whose process is gone."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from packhorse.app import Packhorse
from packhorse.clock import to_datetime
from packhorse.errors import ProcessExitError, ProcessPrunedError, TimedOut
from packhorse.events import Event, EventKind
from packhorse.failpoints import failpoint
from packhorse.ids import to_text
from packhorse.job import Claim, JobState
from packhorse.outcome import Outcome, decide, decide_lost, release
from packhorse.queues import EVERYTHING, local_owner
from packhorse.retry import RetryPolicy
from packhorse.runtime.begun import Mark, mark_of
from packhorse.runtime.exits import exit_error
from packhorse.runtime.worker import new_nonce
from packhorse.stores.contract import Orphan, stranger
from packhorse.task import BaseTask
from packhorse.varying import task_of

log = logging.getLogger("packhorse.runtime")

BATCH = 500
# Of a lease: one who was cut off itself waits so long before it judges, since others were, too, and may come back with
# what they have done.
COMING_BACK = 1 / 6
GONE = "its worker is gone"  # why a job of a local task is cancelled


class Death(NamedTuple):
    """How a process ended, as the end of a sentence about it.

    `begun` are the marks of the claims that had begun; None where nobody saw them. One that had to end because of jobs
    which did not is of no harm to the others, and theirs is the blame. Nobody is to blame where its end was `asked`
    for.
    """

    cause: str
    timed_out: frozenset[bytes] = frozenset()
    begun: frozenset[Mark] | None = None
    asked: bool = False
    pid: int = 0


class Judge:
    """Adopts orphans and writes their verdicts.

    A verdict that the store did not take is kept and written the next time: until then the job is held by a live
    process, so that nobody else would ever look after it. The same goes for orphans that we were never told of.
    """

    def __init__(self, app: Packhorse) -> None:
        self._app = app
        self._unwritten: list[tuple[Claim, Outcome]] = []
        self._in_doubt = False

    @property
    def owes(self) -> bool:
        """Verdicts that somebody else's transaction keeps from being written."""
        return bool(self._unwritten) or self._in_doubt

    def judge(self, adopter: bytes, seen_dying: Mapping[bytes, Death] | None = None) -> None:
        """`seen_dying` maps a process to how it ended."""
        causes = seen_dying or {}
        self._write(adopter)
        if self._in_doubt:
            self._resolve_doubt(adopter, causes)
        seen: set[bytes] = set()
        while orphans := {orphan.claim.token.id for orphan in self._adopt(adopter, causes)}:
            failpoint("dispatcher.before_verdict")
            self._write(adopter)
            if orphans <= seen:  # rows that make no sense, and for which no verdict can be written
                break
            seen |= orphans

    def _adopt(
        self, adopter: bytes, causes: Mapping[bytes, Death], dead: Collection[bytes] | None = None
    ) -> list[Orphan]:
        self._in_doubt = True
        orphans = self._app.store.adopt(adopter, new_nonce(), BATCH, dead=causes if dead is None else dead)
        if dead is not None:  # among them may be some of which the verdict is known and not written yet
            again = {orphan.claim.token.id for orphan in orphans}
            self._unwritten = [known for known in self._unwritten if known[0].token.id not in again]
        self._unwritten += [(orphan.claim, _verdict(self._app, adopter, orphan, causes)) for orphan in orphans]
        self._in_doubt = False
        return orphans

    def _resolve_doubt(self, adopter: bytes, causes: Mapping[bytes, Death]) -> None:
        """Adopt again what an answer that was lost gave. Whose it was shows only in what the dead had begun."""
        while self._unknown(adopter) and self._adopt(adopter, causes, dead=[adopter]):
            self._write(adopter)
        self._in_doubt = False

    def _unknown(self, adopter: bytes) -> bool:
        """Whether it holds jobs without a verdict."""
        known = {outcome.token for _, outcome in self._unwritten}
        return any(token not in known for token in self._app.store.held(adopter))

    def _write(self, adopter: bytes) -> None:
        if not self._unwritten:
            return
        outcomes = [outcome for _, outcome in self._unwritten]
        reply = self._app.store.exchange(adopter, new_nonce(), outcomes, EVERYTHING, 0)
        put_off = set(reply.put_off)
        unwritten = put_off.union(reply.refused)
        written = [(claim, outcome) for claim, outcome in self._unwritten if outcome.token not in unwritten]
        self._unwritten = [(claim, outcome) for claim, outcome in self._unwritten if outcome.token in put_off]
        if self._app.events:
            for claim, outcome in written:
                self._tell(claim, outcome)

    def _tell(self, claim: Claim, outcome: Outcome) -> None:
        lost = outcome.failure is not None
        kinds = [EventKind.LOST] * lost + [EventKind.FAILED] * (outcome.state is JobState.FAILED)
        for kind in filter(self._app.events.wants, kinds):
            event = Event(
                kind=kind,
                at=to_datetime(self._app.clock.now()),
                job_id=to_text(claim.token.id),
                task=claim.task,
                queue_name=claim.queue,
                attempt=claim.attempts + 1,
                failure=self._app.open_failure(claim.token.id, outcome.failure) if outcome.failure else None,
            )
            self._app.events.tell(event)


def _verdict(app: Packhorse, adopter: bytes, orphan: Orphan, deaths: Mapping[bytes, Death]) -> Outcome:
    claim = orphan.claim
    if local_owner(claim.queue) is not None:
        owner = orphan.owner.id
        return Outcome(claim.token, JobState.CANCELLED, spent=False, duration=orphan.ran, reason=GONE, owner=owner)
    if orphan.owner.id == adopter:
        orphan, death = _former_owner(orphan, deaths)
    else:
        death = deaths.get(orphan.owner.id)
        if death is not None and death.begun is not None and not _marks(orphan) & death.begun:
            log.info("job %s (%s) goes back: its worker was lost before it began", to_text(claim.token.id), claim.task)
            return release(claim.token)
    if orphan.ran is None and (death is None or death.begun is None):
        # No reason to count a loss, but one to be told before it begins again, so that the next verdict knows.
        log.info("job %s (%s) goes back: it may have begun on a lost worker", to_text(claim.token.id), claim.task)
        return release(claim.token)._replace(suspect=True)
    return app.sealed(_lost(app, orphan, death))


def _marks(orphan: Orphan) -> set[Mark]:
    """Return what its owner's page says if it has begun."""
    if orphan.nonce is None:
        return set()
    return {mark_of(orphan.nonce, orphan.claim.token.id, alone=alone) for alone in (False, True)}


def _was_alone(orphan: Orphan, death: Death) -> bool:
    """Whether it ran in a process of its own when its worker died."""
    return any(nonce < 0 for nonce, _ in _marks(orphan) & (death.begun or frozenset()))


def _former_owner(orphan: Orphan, deaths: Mapping[bytes, Death]) -> tuple[Orphan, Death | None]:
    """Find out who held a job before its adopter, who was not told: among the dead, the worker that had begun it."""
    _, id = mark_of(0, orphan.claim.token.id)
    for process, death in deaths.items():
        if any(id == begun for _, begun in death.begun or ()):
            return orphan._replace(owner=orphan.owner._replace(id=process, role="worker", pid=death.pid)), death
    return orphan._replace(owner=stranger(b"")), None


def _lost(app: Packhorse, orphan: Orphan, death: Death | None) -> Outcome:
    """Judge a job that had begun."""
    owner, claim = orphan.owner, orphan.claim
    error: ProcessExitError | ProcessPrunedError
    task = task_of(app, claim)
    strict = (task.performed.on_worker_lost if task is not None else app.settings.on_worker_lost) == "fail"
    if death is not None:
        if claim.token.id in death.timed_out:
            return _timed_out(claim, orphan, task)
        if (death.timed_out or death.asked) and not strict:
            return release(claim.token)
        error = exit_error(owner.role, owner.pid, owner.host, death.cause, app.clock.now())
    else:
        now = to_datetime(app.clock.now()).isoformat(timespec="seconds")
        who = f"The {owner.role} with pid {owner.pid} on {owner.host}"
        error = ProcessPrunedError(f"{who} stopped beating, and its lease had run out by {now}.")
    alone = death is not None and _was_alone(orphan, death)
    outcome = decide_lost(claim, error, fail_at_once=strict, alone=alone, owner=owner.id or None, duration=orphan.ran)
    log.warning("job %s (%s) lost its worker and is %s: %s", to_text(claim.token.id), claim.task, outcome.state, error)
    return outcome


def _timed_out(claim: Claim, orphan: Orphan, task: BaseTask[..., Any] | None) -> Outcome:
    error = TimedOut("The task ran longer than its timeout and did not end, so that its worker had to.")
    policy = RetryPolicy() if task is None else task.policy
    return decide(claim, error, policy, orphan.ran)._replace(owner=orphan.owner.id)
