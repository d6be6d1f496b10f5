"""The verdict on jobs whose process is gone."""

from __future__ import annotations

import logging

from packhorse.app import Packhorse
from packhorse.clock import to_datetime
from packhorse.errors import ProcessExitError, ProcessPrunedError
from packhorse.events import Event, EventKind
from packhorse.failpoints import failpoint
from packhorse.ids import to_text
from packhorse.job import Claim, JobState
from packhorse.outcome import Outcome, decide_lost
from packhorse.queues import EVERYTHING
from packhorse.runtime.worker import new_nonce
from packhorse.stores.contract import Orphan

log = logging.getLogger("packhorse.runtime")

BATCH = 500


class Judge:
    """Adopts orphans and writes their verdicts.

    A verdict that the store did not take is kept and written the next time: until then the job is held by a live
    process, so that nobody else would ever look after it.
    """

    def __init__(self, app: Packhorse) -> None:
        self._app = app
        self._unwritten: list[tuple[Claim, Outcome]] = []

    def judge(self, adopter: bytes, seen_dying: dict[bytes, str] | None = None) -> None:
        """`seen_dying` maps a process to how it ended."""
        causes = seen_dying or {}
        self._write(adopter)
        while orphans := self._app.store.adopt(adopter, new_nonce(), BATCH, dead=causes):
            failpoint("dispatcher.before_verdict")
            self._unwritten = [(orphan.claim, _verdict(self._app, orphan, causes)) for orphan in orphans]
            self._write(adopter)
            if len(orphans) < BATCH:
                break

    def _write(self, adopter: bytes) -> None:
        if not self._unwritten:
            return
        outcomes = [outcome for _, outcome in self._unwritten]
        refused = set(self._app.store.exchange(adopter, new_nonce(), outcomes, EVERYTHING, 0).refused)
        written = [(claim, outcome) for claim, outcome in self._unwritten if outcome.token not in refused]
        self._unwritten = []
        if self._app.events:
            for claim, outcome in written:
                self._tell(claim, outcome)

    def _tell(self, claim: Claim, outcome: Outcome) -> None:
        kinds = [EventKind.LOST] + [EventKind.FAILED] * (outcome.state is JobState.FAILED)
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


def _verdict(app: Packhorse, orphan: Orphan, causes: dict[bytes, str]) -> Outcome:
    owner, claim = orphan.owner, orphan.claim
    who = f"The {owner.role} with pid {owner.pid} on {owner.host}"
    error: ProcessExitError | ProcessPrunedError
    if (cause := causes.get(owner.id)) is not None:
        error = ProcessExitError(f"{who} {cause} while it held the job.")
    else:
        now = to_datetime(app.clock.now()).isoformat(timespec="seconds")
        error = ProcessPrunedError(f"{who} stopped beating, and its lease had run out by {now}.")
    task = app.known_tasks.get(claim.task)
    rule = task.on_worker_lost if task is not None else app.settings.on_worker_lost
    outcome = decide_lost(claim, error, fail_at_once=rule == "fail", owner=owner.id, duration=orphan.ran)
    log.warning("job %s (%s) lost its worker and is %s: %s", to_text(claim.token.id), claim.task, outcome.state, error)
    return app.sealed(outcome)
