"""The verdict on jobs whose process is gone."""

from __future__ import annotations

import logging

from packhorse.app import Packhorse
from packhorse.clock import to_datetime
from packhorse.errors import ProcessExitError, ProcessPrunedError
from packhorse.failpoints import failpoint
from packhorse.ids import to_text
from packhorse.outcome import Outcome, decide_lost
from packhorse.queues import EVERYTHING
from packhorse.runtime.worker import new_nonce
from packhorse.stores.contract import Orphan

log = logging.getLogger("packhorse.runtime")

BATCH = 500


def judge_orphans(app: Packhorse, adopter: bytes, seen_dying: dict[bytes, str] | None = None) -> int:
    """Adopt orphans and write their verdicts; how many. `seen_dying` maps a process to how it ended."""
    causes = seen_dying or {}
    total = 0
    while orphans := app.store.adopt(adopter, new_nonce(), BATCH, dead=causes):
        failpoint("dispatcher.before_verdict")
        verdicts = [_verdict(app, orphan, causes) for orphan in orphans]
        app.store.exchange(adopter, new_nonce(), verdicts, EVERYTHING, 0)
        total += len(orphans)
        if len(orphans) < BATCH:
            break
    return total


def _verdict(app: Packhorse, orphan: Orphan, causes: dict[bytes, str]) -> Outcome:
    owner, claim = orphan.owner, orphan.claim
    who = f"The {owner.role} with pid {owner.pid} on {owner.host}"
    error: ProcessExitError | ProcessPrunedError
    if (cause := causes.get(owner.id)) is not None:
        error = ProcessExitError(f"{who} {cause} while it held the job.")
    else:
        now = to_datetime(app.clock.now()).isoformat(timespec="seconds")
        error = ProcessPrunedError(f"{who} stopped beating, and its lease had run out by {now}.")
    task = app.tasks.get(claim.task)
    rule = task.on_worker_lost if task is not None else app.settings.on_worker_lost
    outcome = decide_lost(claim, error, fail_at_once=rule == "fail")
    log.warning("job %s (%s) lost its worker and is %s: %s", to_text(claim.token.id), claim.task, outcome.state, error)
    return outcome
