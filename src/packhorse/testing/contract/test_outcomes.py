"""How an attempt ends, and what is kept of it."""

from collections.abc import Callable

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.ids import to_text
from packhorse.job import Claim, JobState, StoredAttempt, StoredJob
from packhorse.outcome import Outcome
from packhorse.stores import Store
from packhorse.stores.contract import Act, Entry, Selection
from packhorse.testing.contract.behind import leftovers
from packhorse.testing.contract.helpers import (
    FAILURE,
    LOST,
    OTHER_FAILURE,
    Worker,
    cancelled,
    failed,
    id_of,
    insert,
    job,
    look,
    lost,
    move,
    name_of,
    names,
    now,
    perhaps_lost,
    released,
    retried,
    snoozed,
    state,
    states,
    strayed,
    succeeded,
)


def test_success_with_a_result(store: Store, worker: Worker, clock: ManualClock):
    """A job that succeeded keeps its result, who performed it and how long that took."""
    insert(store, "a")
    claim = worker.claim_one()
    clock.advance(5)
    assert worker.finish(succeeded(claim, b"42", duration=3 * SECOND)) == []
    found = look(store, "a")
    assert found == StoredJob(
        id=found.id,
        task="birds.count",
        state=JobState.SUCCEEDED,
        queue="default",
        priority=0,
        attempts=1,
        losses=0,
        created_at=now(clock, plus=-5),
        started_at=now(clock, plus=-3),
        finished_at=now(clock),
        process=to_text(worker.id),
        result=b"42",
        payload=b"payload of a",
    )


@pytest.mark.parametrize("result", [None, b"", b"x", b"\0" * 300_000], ids=["none", "empty", "one byte", "large"])
def test_results_come_back_as_they_went(store: Store, worker: Worker, result: bytes | None):
    """No result, an empty one and a large one are three different things."""
    insert(store, "a")
    worker.finish(succeeded(worker.claim_one(), result))
    assert look(store, "a").result == result


def test_a_result_that_could_not_be_kept(store: Store, worker: Worker):
    """Why a result is missing is kept in its place."""
    insert(store, "a")
    claim = worker.claim_one()
    worker.finish(Outcome(claim.token, JobState.SUCCEEDED, duration=1, result_error="too large"))
    assert (look(store, "a").result, look(store, "a").result_error) == (None, "too large")


def test_failure(store: Store, worker: Worker, clock: ManualClock):
    """A job that failed for good keeps its failure with it; no row of an attempt is written beside it."""
    insert(store, "a")
    claim = worker.claim_one()
    clock.advance(5)
    worker.finish(failed(claim))
    found = look(store, "a")
    assert (found.state, found.failure, found.failures) == (JobState.FAILED, FAILURE, ())
    assert (found.attempts, found.started_at, found.finished_at) == (1, now(clock, plus=-2), now(clock))
    assert found.result is None


def test_a_failure_that_was_no_attempt(store: Store, worker: Worker):
    """A job may fail without an attempt being spent: its task is unknown."""
    insert(store, "a")
    worker.finish(failed(worker.claim_one(), spent=False))
    assert (state(store, "a"), look(store, "a").attempts) == (JobState.FAILED, 0)


def test_cancellation(store: Store, worker: Worker, clock: ManualClock):
    """A job that ended itself keeps the reason."""
    insert(store, "a")
    worker.finish(cancelled(worker.claim_one(), "no birds today"))
    found = look(store, "a")
    assert (found.state, found.reason, found.attempts) == (JobState.CANCELLED, "no birds today", 1)
    assert (found.finished_at, found.failure) == (now(clock), None)


def test_never_started_never_began(store: Store, worker: Worker):
    """An outcome without a duration leaves no start behind, even if the job had been marked as started."""
    insert(store, "a")
    worker.finish(succeeded(worker.claim_one(starting=1), duration=None))
    assert look(store, "a").started_at is None


def test_a_retry_now(store: Store, worker: Worker, clock: ManualClock):
    """With no delay a job is ready at once, with one attempt spent and the row of it kept."""
    insert(store, "a")
    claim = worker.claim_one()
    clock.advance(5)
    worker.finish(retried(claim))
    found = look(store, "a")
    assert (found.state, found.attempts, found.failure) == (JobState.READY, 1, None)
    assert (found.run_at, found.claimed_at, found.started_at, found.finished_at) == (now(clock), None, None, None)
    assert found.process is None
    assert found.failures == (
        StoredAttempt(1, to_text(worker.id), now(clock, plus=-2), now(clock), FAILURE, spent=True),
    )
    assert worker.claim_one().attempts == 1


def test_a_retry_later(store: Store, worker: Worker, clock: ManualClock):
    """With a delay a job is scheduled for the store's now plus the delay."""
    insert(store, "a")
    worker.finish(retried(worker.claim_one(), delay=5 * SECOND))
    assert (state(store, "a"), look(store, "a").run_at) == (JobState.SCHEDULED, now(clock, plus=5))
    assert worker.claim() == []
    clock.advance(5)
    store.promote(1)
    assert worker.claim_one().attempts == 1


def test_a_snooze_spends_nothing(store: Store, worker: Worker, clock: ManualClock):
    """A job that comes back later has neither an attempt nor a failure more."""
    insert(store, "a")
    worker.finish(snoozed(worker.claim_one(), 5 * SECOND))
    found = look(store, "a")
    assert (found.state, found.attempts, found.failures) == (JobState.SCHEDULED, 0, ())
    assert found.run_at == now(clock, plus=5)


def test_a_release_leaves_no_trace(store: Store, worker: Worker, clock: ManualClock):
    """A job put back looks as if it had never been claimed."""
    insert(store, job("a", run_at=5))
    before = look(store, "a")
    claim = worker.claim_one(starting=1)
    clock.advance(5)
    worker.finish(released(claim))
    assert look(store, "a") == before


def test_every_attempt_that_did_not_succeed_is_a_row(store: Store, worker: Worker, other: Worker, clock: ManualClock):
    """Attempts are numbered from one and kept in their order, each with who, when and why."""
    insert(store, "a")
    for who, failure in ((worker, FAILURE), (other, OTHER_FAILURE), (worker, FAILURE)):
        claim = who.claim_one()
        clock.advance(10)
        who.finish(retried(claim, failure=failure))
    worker.finish(succeeded(worker.claim_one(), b"42"))
    found = look(store, "a")
    assert (found.attempts, found.failure, found.result) == (4, None, b"42")
    assert [(row.number, name_of(row.process), row.failure) for row in found.failures] == [
        (1, "worker", FAILURE),
        (2, "other", OTHER_FAILURE),
        (3, "worker", FAILURE),
    ]
    assert [row.ended_at for row in found.failures] == [now(clock, plus=plus) for plus in (-20, -10, 0)]


def test_an_unspent_failure_has_the_number_of_the_attempt_it_would_have_been(store: Store, worker: Worker):
    """A loss between two attempts is a row of its own that spends nothing."""
    insert(store, "a")
    worker.finish(retried(worker.claim_one()))
    worker.finish(lost(worker.claim_one()))
    worker.finish(retried(worker.claim_one()))
    found = look(store, "a")
    assert (found.attempts, found.losses) == (2, 1)
    assert [(row.number, row.spent, row.failure) for row in found.failures] == [
        (1, True, FAILURE),
        (2, False, LOST),
        (2, True, FAILURE),
    ]


def test_a_loss_is_counted_apart(store: Store, worker: Worker):
    """A lost job goes back in place; its claim says how often that happened."""
    insert(store, "a", "b")
    worker.finish(lost(worker.claim_one()))
    [again] = worker.claim(1)
    assert (names([again]), again.losses, again.attempts) == (["a"], 1, 0)


def test_a_loss_too_many(store: Store, worker: Worker):
    """A job that is lost for good fails, with the loss counted and no attempt spent."""
    insert(store, "a")
    worker.finish(lost(worker.claim_one(), JobState.FAILED))
    found = look(store, "a")
    assert (found.state, found.losses, found.attempts, found.failure) == (JobState.FAILED, 1, 0, LOST)


def test_the_last_failure_becomes_a_row_when_an_operator_retries(store: Store, worker: Worker, clock: ManualClock):
    """Nothing is forgotten when a failed job begins anew with fresh attempts."""
    insert(store, "a")
    worker.finish(retried(worker.claim_one(), failure=OTHER_FAILURE))
    worker.finish(failed(worker.claim_one()))
    ended = now(clock)
    clock.advance(20)
    move(store, Act.RETRY, "a")
    found = look(store, "a")
    assert (found.attempts, found.losses, found.failure, found.finished_at) == (0, 0, None, None)
    assert [(row.number, row.failure, row.ended_at) for row in found.failures] == [
        (1, OTHER_FAILURE, ended),
        (2, FAILURE, ended),
    ]
    worker.finish(retried(worker.claim_one()))
    assert [row.number for row in look(store, "a").failures] == [1, 2, 1]


def test_mixed_outcomes_in_one_exchange(store: Store, worker: Worker):
    """One exchange carries every kind of ending at once."""
    insert(store, *"abcdefg")
    a, b, c, d, e, f, g = worker.claim()
    outcomes = [
        succeeded(a, b"1"),
        failed(b),
        retried(c),
        retried(d, SECOND),
        snoozed(e, SECOND),
        released(f),
        cancelled(g),
    ]
    assert worker.finish(*outcomes) == []
    assert [(state(store, name), look(store, name).attempts) for name in "abcdefg"] == [
        (JobState.SUCCEEDED, 1),
        (JobState.FAILED, 1),
        (JobState.READY, 1),
        (JobState.SCHEDULED, 1),
        (JobState.SCHEDULED, 0),
        (JobState.READY, 0),
        (JobState.CANCELLED, 1),
    ]
    assert worker.holds == []


@pytest.mark.parametrize("size", [1, 4, 5, 64, 300, 1_000])
def test_outcomes_of_any_number(store: Store, worker: Worker, size: int):
    """Each outcome of a large exchange lands at its own job."""
    insert(store, *(f"{number:04}" for number in range(size)))
    claims = worker.claim(size)
    kinds: list[Callable[[Claim], Outcome]] = [succeeded, failed, retried, released]
    assert worker.finish(*(kinds[number % 4](claim) for number, claim in enumerate(claims))) == []
    expected = [JobState.SUCCEEDED, JobState.FAILED, JobState.READY, JobState.READY]
    assert [state(store, f"{number:04}") for number in range(size)] == [expected[number % 4] for number in range(size)]
    assert [look(store, f"{number:04}").attempts for number in range(size)] == [
        [1, 1, 1, 0][number % 4] for number in range(size)
    ]


# Jobs that came to a worker that does not know their task.


def test_a_stray_comes_back_and_is_counted(store: Store, worker: Worker, clock: ManualClock):
    """It spends nothing and leaves no row; the next claim tells how often it happened."""
    insert(store, "a")
    for number in range(3):
        claim = worker.claim_one()
        assert (claim.strays, claim.attempts, claim.losses) == (number, 0, 0)
        worker.finish(strayed(claim, 5 * SECOND))
        assert (state(store, "a"), look(store, "a").run_at) == (JobState.SCHEDULED, now(clock, plus=5))
        clock.advance(5)
        store.promote(1)
    assert (look(store, "a").attempts, look(store, "a").failures) == (0, ())


def test_other_endings_leave_the_strays_alone(store: Store, worker: Worker):
    """Once it found its worker, a job keeps the count through retries, releases, losses and adoption."""
    insert(store, "a")
    worker.finish(strayed(worker.claim_one()))
    for ending in (retried, released, lost, lambda claim: snoozed(claim, 0)):
        claim = worker.claim_one()
        assert claim.strays == 1
        worker.finish(ending(claim))
    worker.claim_one()
    heir = Worker(store, "heir")
    [orphan] = store.adopt(heir.id, 99, 1, dead=[worker.id])
    assert orphan.claim.strays == 1


def test_a_suspect_is_one_until_an_attempt_is_spent(store: Store, worker: Worker):
    """It spends nothing, counts no loss and leaves no row. Releases, losses and adoption leave it as it is."""
    insert(store, "a")
    worker.finish(perhaps_lost(worker.claim_one()))
    found = look(store, "a")
    assert (found.state, found.attempts, found.losses, found.failures) == (JobState.READY, 0, 0, ())
    for ending in (released, lost, lambda claim: snoozed(claim, 0)):
        claim = worker.claim_one()
        assert claim.suspect is True
        worker.finish(ending(claim))
    worker.claim_one()
    heir = Worker(store, "heir")
    [orphan] = store.adopt(heir.id, 99, 1, dead=[worker.id])
    assert orphan.claim.suspect is True
    heir.finish(retried(orphan.claim))
    assert heir.claim_one().suspect is False


def test_an_operators_retry_clears_a_suspect(store: Store, worker: Worker):
    insert(store, "a")
    worker.finish(perhaps_lost(worker.claim_one()))
    worker.finish(cancelled(worker.claim_one())._replace(spent=False))
    move(store, Act.RETRY, "a")
    assert worker.claim_one().suspect is False


def test_an_operators_retry_forgets_the_strays(store: Store, worker: Worker):
    """A job that nobody knew begins anew with all the patience there is."""
    insert(store, "a")
    worker.finish(strayed(worker.claim_one()))
    worker.finish(failed(worker.claim_one(), spent=False))
    move(store, Act.RETRY, "a")
    assert worker.claim_one().strays == 0


# Jobs that are not kept.

each_finished = pytest.mark.parametrize("ending", [succeeded, failed, cancelled])


@each_finished
def test_a_job_that_is_not_kept_is_gone_at_once(store: Store, worker: Worker, ending: Callable[[Claim], Outcome]):
    """With its tags, attempts, entries and ending, in the stroke that ends it; others stay."""
    insert(store, job("a", tags=("x",), priority=1), job("b", tags=("x",)))
    claim = worker.claim_one()
    store.record(claim.token, [Entry("step", "x", b"1")])
    worker.finish(retried(claim))
    again = worker.claim_one()
    assert worker.finish(ending(again)._replace(keep=0, result=b"42", result_ttl=SECOND)) == []
    assert store.job(id_of("a")) is None
    assert store.entries(id_of("a")) == []
    assert names(store.jobs(Selection(tags=["x"]))) == ["b"]
    assert worker.holds == []
    assert leftovers(store) == []
    assert worker.finish(ending(again)) == [again.token]


def test_a_job_that_was_not_kept_may_come_again(store: Store, worker: Worker):
    """Its id is unknown, so it is new, and nothing of the old job is found with it."""
    insert(store, job("a", tags=("old",)))
    worker.finish(succeeded(worker.claim_one(), b"42")._replace(keep=0))
    insert(store, job("a", payload=b"again"))
    found = look(store, "a")
    assert (found.state, found.payload, found.result, found.tags) == (JobState.READY, b"again", None, ())
    assert worker.finish(succeeded(worker.claim_one())) == []


@pytest.mark.parametrize("ending", [retried, released, lambda claim: retried(claim, SECOND)])
def test_only_finished_jobs_go(store: Store, worker: Worker, ending: Callable[[Claim], Outcome]):
    """An outcome that brings the job back keeps it, whatever it says of keeping."""
    insert(store, "a")
    worker.finish(ending(worker.claim_one())._replace(keep=0))
    assert state(store, "a") in (JobState.READY, JobState.SCHEDULED)


@pytest.mark.parametrize("size", [1, 5, 70, 300])
def test_kept_and_not_kept_in_one_exchange(store: Store, worker: Worker, size: int):
    """Each outcome of a batch says for itself whether its job is kept."""
    insert(store, *(f"{number:04}" for number in range(size)))
    claims = worker.claim(size)
    keep = (None, 0, 60 * SECOND)
    kinds: list[Callable[[Claim], Outcome]] = [succeeded, failed]
    outcomes = [kinds[number % 2](claim)._replace(keep=keep[number % 3]) for number, claim in enumerate(claims)]
    assert worker.finish(*outcomes) == []
    expected = {f"{number:04}": (JobState.SUCCEEDED, JobState.FAILED)[number % 2] for number in range(size)}
    assert states(store) == {name: state for name, state in expected.items() if int(name) % 3 != 1}
    assert {look(store, name).attempts for name in states(store)} == {1}
    assert leftovers(store) == []


def test_what_keeps_a_job_changes_nothing_else(store: Store, worker: Worker, clock: ManualClock):
    """A success that is kept for its own time looks like any other."""
    insert(store, "a", "b")
    a, b = worker.claim()
    clock.advance(5)
    worker.finish(succeeded(a, b"42")._replace(keep=SECOND, result_ttl=SECOND), succeeded(b, b"42"))
    first, second = (
        {field: getattr(look(store, name), field) for field in StoredJob.__dataclass_fields__} for name in "ab"
    )
    assert first | {"id": "", "payload": b""} == second | {"id": "", "payload": b""}
