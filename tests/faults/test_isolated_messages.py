"""What a worker and its isolated processes say to each other names the job it is about."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from packhorse.ids import new_id
from packhorse.job import Token
from packhorse.queues import EVERYTHING
from packhorse.runtime.isolated import Child, Plan
from packhorse.runtime.seats import Why
from packhorse.runtime.worker import new_nonce
from packhorse.stores.contract import Order, OrderKind, ProcessInfo
from tests.faults.harness import ROOT, Place

pytestmark = pytest.mark.slow


def test_what_is_said_of_another_job_is_no_outcome(place: Place):
    """The process cannot be trusted any more: its job is lost, and no later one gets what belongs to an earlier one."""
    babbling = place.enqueue("isolated_babble", "babbling")
    workers = place.workers("--concurrency", "1")
    job = place.wait_state(babbling, "succeeded")
    assert job.losses == 1
    after = [place.enqueue("isolated_echo", f"after-{n}") for n in range(3)]
    place.wait_all_finished()
    assert [place.app.job(id).result(0) for id in (babbling, *after)] == ["babbling", "after-0", "after-1", "after-2"]
    assert "spoke of a job that it does not have" in workers.log
    assert workers.stop() == 0
    place.check([babbling, *after])


def test_what_is_meant_for_another_job_is_not_obeyed(place: Place, monkeypatch: pytest.MonkeyPatch):
    """An order or an interruption that comes too late, for the job before."""
    place.enqueue("isolated_left", "held")
    for name, value in place.environment().items():
        monkeypatch.setenv(name, value)
    store, process = place.app.store, new_id()
    store.enroll(ProcessInfo(process, "worker", "here", 1), 60_000_000)
    [claim] = store.exchange(process, new_nonce(), [], EVERYTHING, 1).claims
    child = Child(Plan("tests.faults.apps:app", 0, "INFO", "text", None, str(ROOT)), 60.0)
    child.wait_ready()
    with ThreadPoolExecutor(1) as threads:
        outcome = threads.submit(child.perform, claim, 5.0)
        place.wait_started("held")
        child.token = another = Token(claim.token.process, claim.token.nonce + 1, claim.token.id, claim.token.epoch)
        child.tell(Order(OrderKind.CANCEL, another, "too late"))
        assert child.interrupt(another, Why.ORDERED)
        child.token = claim.token
        child.tell_leaving(600.0)  # heard after the others
        assert outcome.result(60).state == "succeeded"
    child.kill()
    child.bury()
    assert [line.what for line in place.lines("held")] == ["start", "later"]
