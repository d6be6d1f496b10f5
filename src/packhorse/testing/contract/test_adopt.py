"""`adopt`: jobs of dead processes go to whoever will give the verdict."""

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.ids import to_text
from packhorse.job import JobState
from packhorse.queues import EVERYTHING, Entry, local_queue
from packhorse.stores import Store
from packhorse.stores.contract import Orphan
from packhorse.testing.contract.behind import leftovers
from packhorse.testing.contract.helpers import (
    Worker,
    cancelled,
    everything,
    id_of,
    insert,
    job,
    look,
    lost,
    name_of,
    names,
    new_nonce,
    now,
    retried,
    state,
    states,
    succeeded,
)


def adopt(adopter: Worker, limit: int = 100, dead: tuple[Worker, ...] = ()) -> list[Orphan]:
    return adopter.store.adopt(adopter.id, new_nonce(), limit, dead=[worker.id for worker in dead])


def adopted(adopter: Worker, limit: int = 100, dead: tuple[Worker, ...] = ()) -> list[str]:
    return names(orphan.claim for orphan in adopt(adopter, limit, dead))


def test_nobody_is_dead(store: Store, worker: Worker, other: Worker):
    """Jobs of living processes are left alone, and the look changes nothing."""
    insert(store, "a")
    worker.claim_one()
    before = everything(store)
    assert adopt(other) == []
    assert everything(store) == before


def test_jobs_of_a_dead_process(store: Store, worker: Worker, clock: ManualClock):
    """Once the lease has run out, its jobs belong to the adopter, under a new token and with their old facts."""
    insert(store, job("a", queue="mail", priority=3), "b")
    worker.finish(retried(worker.claim_one(queues="mail")))
    claim = worker.claim_one(queues="mail")
    clock.advance(30)
    heir = Worker(store, "heir")
    [orphan] = store.adopt(heir.id, 99, 10)
    assert (orphan.owner, orphan.nonce) == (worker.info, claim.token.nonce)
    token = claim.token._replace(process=heir.id, nonce=99, epoch=claim.token.epoch + 1)
    assert orphan.claim == claim._replace(token=token)
    assert store.held(heir.id) == [token]
    assert (worker.holds, state(store, "a")) == ([], JobState.RUNNING)
    assert name_of(look(store, "a").process or "") == "heir"


def test_orphans_come_in_the_order_of_their_ids(store: Store, worker: Worker, other: Worker, clock: ManualClock):
    """Up to the limit, whoever they belonged to; the rest comes next time."""
    insert(store, job("a", priority=-1), "b", "c", job("d", priority=1))
    worker.claim(2)
    other.claim(2)
    clock.advance(30)
    heir = Worker(store, "heir")
    assert adopted(heir, 3) == ["a", "b", "c"]
    assert adopted(heir, 3) == ["d"]
    assert adopted(heir, 3) == []


def test_the_verdict_puts_the_job_back_in_place(store: Store, worker: Worker, clock: ManualClock):
    """A lost job stands where it stood, with one loss and the row of it."""
    insert(store, "a")
    worker.claim_one()
    clock.advance(30)
    insert(store, "0")
    heir = Worker(store, "heir")
    [orphan] = adopt(heir)
    assert heir.finish(lost(orphan.claim)) == []
    found = look(store, "a")
    assert (found.losses, found.attempts, [name_of(row.process) for row in found.failures]) == (1, 0, ["heir"])
    assert names(heir.claim()) == ["a", "0"]


def test_the_dead_is_forgotten_with_its_last_job(store: Store, worker: Worker, clock: ManualClock):
    """A dead process is listed as long as it holds something, then no more."""
    insert(store, "a", "b")
    worker.claim()
    clock.advance(30)
    heir = Worker(store, "heir")
    adopt(heir, 1)
    assert [name_of(view.id) for view in store.processes()] == ["heir", "worker"]
    adopt(heir, 1)
    assert [name_of(view.id) for view in store.processes()] == ["heir"]


def test_a_dead_process_without_jobs_is_forgotten(store: Store, worker: Worker, clock: ManualClock):
    """Whoever died with empty hands is cleared away as well."""
    clock.advance(30)
    heir = Worker(store, "heir")
    assert adopt(heir) == []
    assert [name_of(view.id) for view in store.processes()] == ["heir"]


def test_an_adopter_is_told_again_of_what_it_holds(store: Store, worker: Worker, other: Worker):
    """Where it never heard the answer that gave it jobs; it lives on, and its former claims are old."""
    insert(store, "a", "b", "c")
    worker.claim(2)
    other.claim_one()
    [first, _] = adopt(other, dead=(worker,))
    again = adopt(other, dead=(other,))
    assert names(orphan.claim for orphan in again) == ["a", "b", "c"]
    assert {orphan.owner.id for orphan in again} == {other.id}
    assert again[0].nonce == first.claim.token.nonce
    assert other.finish(succeeded(first.claim)) == [first.claim.token]
    assert other.finish(*(succeeded(orphan.claim) for orphan in again)) == []
    assert other.alive


def test_named_dead(store: Store, worker: Worker, other: Worker):
    """A supervisor that saw its child die need not wait for the lease."""
    insert(store, "a")
    claim = worker.claim_one()
    assert adopted(other, dead=(worker,)) == ["a"]
    assert worker.finish(succeeded(claim)) == [claim.token]
    assert worker.exchange(limit=5).alive is False


def test_only_the_named_are_dead(store: Store, worker: Worker, other: Worker):
    """Naming one as dead harms no other."""
    insert(store, "a", "b")
    worker.claim(1)
    bystander = Worker(store, "bystander")
    bystander.claim(1)
    assert adopted(other, dead=(worker,)) == ["a"]
    assert (bystander.holds, bystander.alive) == (["b"], True)


def test_naming_strangers_as_dead(store: Store, worker: Worker, other: Worker):
    """A process that nobody knows, and one named twice, are no trouble."""
    insert(store, "a")
    worker.claim_one()
    dead = [id_of("stranger"), worker.id, worker.id]
    assert names(orphan.claim for orphan in store.adopt(other.id, new_nonce(), 10, dead=dead)) == ["a"]


@pytest.mark.parametrize("signed_off", [False, True])
def test_the_dead_adopt_nothing(store: Store, worker: Worker, other: Worker, clock: ManualClock, signed_off: bool):
    """Adopting needs a living lease; one that ran out or was given up is none."""
    insert(store, "a")
    worker.claim_one()
    clock.advance(30)
    if signed_off:
        store.leave(other.id)
    before = everything(store)
    assert adopt(other, dead=(worker,)) == []
    assert everything(store) == before


def test_an_adopter_that_dies_is_adopted_from(store: Store, worker: Worker, clock: ManualClock):
    """An orphan without a verdict is an orphan again when its adopter dies."""
    insert(store, "a")
    worker.claim_one()
    clock.advance(30)
    heir = Worker(store, "heir")
    [first] = adopt(heir)
    clock.advance(30)
    second_heir = Worker(store, "second heir")
    [second] = adopt(second_heir)
    assert second.owner == heir.info
    assert heir.finish(lost(first.claim)) == [first.claim.token]
    assert second_heir.finish(lost(second.claim)) == []
    assert look(store, "a").losses == 1


def test_a_process_that_enrols_anew_keeps_its_jobs(store: Store, worker: Worker, other: Worker, clock: ManualClock):
    """A late process that nobody buried has its lease and its jobs again."""
    insert(store, "a")
    worker.claim_one()
    clock.advance(30)
    worker.enroll()
    other.enroll()
    assert adopt(other) == []
    assert worker.holds == ["a"]


def test_finished_and_ready_jobs_are_nobodys_orphans(store: Store, worker: Worker, clock: ManualClock):
    """Only what runs can be orphaned."""
    insert(store, *"abc")
    a, b = worker.claim(2)
    worker.finish(succeeded(a), retried(b))
    clock.advance(30)
    assert adopt(Worker(store, "heir")) == []


def test_many_orphans(store: Store, worker: Worker, other: Worker):
    """A thousand jobs are taken over in bounded steps, each once."""
    wanted = [f"{number:04}" for number in range(1_000)]
    insert(store, *wanted)
    worker.claim(1_000)
    found: list[str] = []
    while len(found) <= len(wanted) and (batch := adopted(other, 400, dead=(worker,))):
        found += batch
    assert found == wanted


@pytest.mark.parametrize("verdict", [JobState.READY, JobState.FAILED])
def test_the_attempt_is_the_dead_owners(
    store: Store, worker: Worker, other: Worker, clock: ManualClock, verdict: JobState
):
    """Whoever looks must see who held the job and since when, not who judged it."""
    insert(store, "a")
    store.exchange(worker.id, new_nonce(), [], EVERYTHING, 1, starting=1)
    began = now(clock)
    clock.advance(3)
    [orphan] = adopt(other, dead=(worker,))
    assert orphan.ran == 3 * SECOND
    other.finish(lost(orphan.claim, verdict)._replace(owner=orphan.owner.id, duration=orphan.ran))
    seen = look(store, "a")
    if verdict is JobState.FAILED:
        assert (seen.process, seen.started_at) == (to_text(worker.id), began)
    else:
        [attempt] = seen.failures
        assert (attempt.process, attempt.started_at) == (to_text(worker.id), began)


# Local queues.


def test_a_local_queue_is_served_by_its_process_alone(store: Store, worker: Worker):
    """No star matches it."""
    mine = local_queue(worker.id)
    insert(store, job("a", queue=mine), "b")
    assert names(worker.claim()) == ["b"]
    own = store.exchange(worker.id, new_nonce(), [], (Entry(mine, False),), 5).claims
    assert names(own) == ["a"]


def test_what_only_a_dead_process_would_have_served_is_adopted(store: Store, worker: Worker, other: Worker):
    """Ready jobs of its local queue: nobody else may claim them. Those of a living one are left alone."""
    gone = id_of("gone")
    insert(store, job("a", queue=local_queue(worker.id)), job("b", queue=local_queue(other.id)))
    insert(store, job("c", queue=local_queue(gone)), job("d", queue=local_queue(gone), delay=SECOND), "e")
    orphans = store.adopt(other.id, new_nonce(), 10, dead=[worker.id])
    assert [(name_of(orphan.claim.token.id), orphan.owner.id, orphan.ran) for orphan in orphans] == [
        ("a", worker.id, None),
        ("c", gone, None),
    ]
    assert other.holds == ["a", "c"]
    assert leftovers(store) == []
    assert other.finish(*(cancelled(orphan.claim) for orphan in orphans)) == []
    assert states(store) == {
        "a": JobState.CANCELLED,
        "b": JobState.READY,
        "c": JobState.CANCELLED,
        "d": JobState.SCHEDULED,
        "e": JobState.READY,
    }


def test_a_scheduled_job_of_a_dead_process_is_adopted_once_it_is_due(store: Store, worker: Worker, clock: ManualClock):
    insert(store, job("a", queue=local_queue(id_of("gone")), delay=SECOND))
    assert store.adopt(worker.id, new_nonce(), 10) == []
    clock.advance(1)
    store.promote(10)
    assert names([orphan.claim for orphan in store.adopt(worker.id, new_nonce(), 10)]) == ["a"]
