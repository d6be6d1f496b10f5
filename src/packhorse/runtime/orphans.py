"""The verdict on jobs whose process is gone."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from packhorse.app import Packhorse
from packhorse.clock import to_datetime
from packhorse.errors import ProcessExitError, ProcessPrunedError, TimedOut
from packhorse.events import Event, EventKind
from packhorse.failpoints import failpoint
from packhorse.ids import to_text
from packhorse.job import Claim, JobState, Token
from packhorse.outcome import Outcome, decide, decide_lost, release
from packhorse.queues import EVERYTHING, local_owner
from packhorse.retry import RetryPolicy
from packhorse.runtime.exits import exit_error
from packhorse.runtime.worker import new_nonce
from packhorse.stores.contract import Orphan
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

    One that had to end because of jobs which did not is of no harm to the others, and theirs is the blame.
    """

    cause: str
    timed_out: frozenset[bytes] = frozenset()


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
            self._resolve_doubt(adopter)
        while orphans := self._adopt(adopter, causes):
            failpoint("dispatcher.before_verdict")
            self._write(adopter)
            if len(orphans) < BATCH:
                break

    def _adopt(self, adopter: bytes, causes: Mapping[bytes, Death]) -> list[Orphan]:
        self._in_doubt = True
        orphans = self._app.store.adopt(adopter, new_nonce(), BATCH, dead=causes)
        self._unwritten += [(orphan.claim, _verdict(self._app, orphan, causes)) for orphan in orphans]
        self._in_doubt = False
        return orphans

    def _resolve_doubt(self, adopter: bytes) -> None:
        """The reply was lost: whose they were and how that one ended is not known any more, so they go back unspent."""
        known = {outcome.token for _, outcome in self._unwritten}
        put_off: Sequence[Token] = ()
        if held := [token for token in self._app.store.held(adopter) if token not in known]:
            put_off = self._app.store.exchange(adopter, new_nonce(), [*map(release, held)], EVERYTHING, 0).put_off
        self._in_doubt = bool(put_off)

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


def _verdict(app: Packhorse, orphan: Orphan, deaths: Mapping[bytes, Death]) -> Outcome:
    owner, claim = orphan.owner, orphan.claim
    if local_owner(claim.queue) is not None:
        return Outcome(claim.token, JobState.CANCELLED, spent=False, duration=orphan.ran, reason=GONE, owner=owner.id)
    error: ProcessExitError | ProcessPrunedError
    task = task_of(app, claim)
    if orphan.ran is None:  # it was claimed ahead and had not begun
        log.info("job %s (%s) goes back: its worker was lost before it began", to_text(claim.token.id), claim.task)
        return release(claim.token)
    if (death := deaths.get(owner.id)) is not None:
        if death.timed_out:
            return app.sealed(
                _timed_out(claim, orphan, task) if claim.token.id in death.timed_out else release(claim.token)
            )
        error = exit_error(owner.role, owner.pid, owner.host, death.cause, app.clock.now())
    else:
        now = to_datetime(app.clock.now()).isoformat(timespec="seconds")
        who = f"The {owner.role} with pid {owner.pid} on {owner.host}"
        error = ProcessPrunedError(f"{who} stopped beating, and its lease had run out by {now}.")
    rule = task.performed.on_worker_lost if task is not None else app.settings.on_worker_lost
    outcome = decide_lost(claim, error, fail_at_once=rule == "fail", owner=owner.id, duration=orphan.ran)
    log.warning("job %s (%s) lost its worker and is %s: %s", to_text(claim.token.id), claim.task, outcome.state, error)
    return app.sealed(outcome)


def _timed_out(claim: Claim, orphan: Orphan, task: BaseTask[..., Any] | None) -> Outcome:
    error = TimedOut("The task ran longer than its timeout and did not end, so that its worker had to.")
    policy = RetryPolicy() if task is None else task.policy
    return decide(claim, error, policy, orphan.ran)._replace(owner=orphan.owner.id)
