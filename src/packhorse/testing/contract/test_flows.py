"""Jobs that come after others: they wait at their gate, and go on in the stroke that ends what they wait for."""

from itertools import pairwise
from typing import Any

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.errors import StoreDataError
from packhorse.job import Claim, JobState, Need, NewJob, Parent
from packhorse.limits import Claimed, Conflict, Hold, Terms, UniqueConflict
from packhorse.outcome import Outcome
from packhorse.stores import Store
from packhorse.stores.contract import HURT, NOT_NEEDED, Act, Change, Moved, Retention, Selection, StoredSchedule
from packhorse.testing.contract.behind import epochs
from packhorse.testing.contract.helpers import (
    Worker,
    cancelled,
    everything,
    failed,
    id_of,
    insert,
    job,
    look,
    lost,
    move,
    name_of,
    names,
    new_nonce,
    now,
    released,
    retried,
    snoozed,
    state,
    states,
    succeeded,
)

READY, WAITING, SCHEDULED = JobState.READY, JobState.WAITING, JobState.SCHEDULED
SUCCEEDED, FAILED, CANCELLED = JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED
FLOW = id_of("flow")


def after(name: str, parents: str, need: Need = Need.SUCCESS, **fields: Any) -> NewJob:
    """A job after those named by a letter each."""
    return job(name, after=tuple(Parent(id_of(parent), need) for parent in parents), **fields)


def claim_named(worker: Worker, name: str) -> Claim:
    """Claims all, and puts back all others."""
    claims = {name_of(claim.token.id): claim for claim in worker.claim()}
    mine = claims.pop(name)
    worker.finish(*map(released, claims.values()))
    return mine


# Coming after.


def test_one_after_another(store: Store, worker: Worker):
    """A chain is performed in order, though all of it is there from the beginning."""
    insert(store, "a", after("b", "a"), after("c", "b"))
    for expected in (
        {"a": READY, "b": WAITING, "c": WAITING},
        {"a": SUCCEEDED, "b": READY, "c": WAITING},
        {"a": SUCCEEDED, "b": SUCCEEDED, "c": READY},
    ):
        assert states(store) == expected
        worker.finish(succeeded(worker.claim_one()))
    assert states(store) == dict.fromkeys("abc", SUCCEEDED)


def test_the_next_is_taken_in_the_same_exchange(store: Store, worker: Worker):
    """What ends opens the gate before what is next is taken."""
    insert(store, "a", after("b", "a"))
    [a] = worker.claim()
    assert names(worker.exchange(succeeded(a), limit=5).claims) == ["b"]


def test_a_gate_opens_with_the_last_it_waits_for(store: Store, worker: Worker):
    """In whatever order, in one exchange or several."""
    insert(store, *"abc", after("z", "abc"))
    a, b, c = worker.claim()
    worker.finish(succeeded(c))
    assert state(store, "z") is WAITING
    worker.finish(succeeded(a), succeeded(b))
    assert state(store, "z") is READY


def test_jobs_of_one_insert_may_come_in_any_order(store: Store):
    """Children before their parents."""
    insert(store, after("c", "ab"), after("b", "a"), "a")
    assert states(store) == {"a": READY, "b": WAITING, "c": WAITING}


def test_an_opened_gate_counts_as_the_moment_it_became_due(store: Store, worker: Worker, clock: ManualClock):
    """It stands behind what was ready before."""
    insert(store, "m", after("a", "m"))
    m = worker.claim_one()
    insert(store, "z")
    clock.advance(1)
    worker.finish(succeeded(m))
    assert names(worker.claim()) == ["z", "a"]


def test_waiting_jobs_are_neither_claimed_nor_promoted(store: Store, worker: Worker, clock: ManualClock):
    """However long it takes."""
    insert(store, job("a", delay=100 * SECOND), after("b", "a"))
    for _ in range(3):
        clock.advance(10)
        worker.beat()
        store.promote(100)
        assert worker.claim() == []
    assert state(store, "b") is WAITING


@pytest.mark.parametrize("how", [retried, lambda claim: snoozed(claim, 0), released, lost])
def test_a_parent_that_comes_back_has_not_ended(store: Store, worker: Worker, how: Any):
    """Its followers wait for its end, not for an attempt."""
    insert(store, "a", after("b", "a"), after("c", "a", Need.END), after("d", "a", Need.FAILURE))
    worker.finish(how(worker.claim_one()))
    assert [state(store, name) for name in "bcd"] == [WAITING] * 3
    worker.finish(succeeded(worker.claim_one()))
    assert [state(store, name) for name in "bcd"] == [READY, READY, CANCELLED]


# What is needed.


ENDS: dict[str, tuple[Any, dict[Need, JobState]]] = {
    "succeeded": (succeeded, {Need.SUCCESS: READY, Need.END: READY, Need.FAILURE: CANCELLED}),
    "failed": (failed, {Need.SUCCESS: CANCELLED, Need.END: READY, Need.FAILURE: READY}),
    "cancelled": (cancelled, {Need.SUCCESS: CANCELLED, Need.END: READY, Need.FAILURE: READY}),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("need", list(Need))
@pytest.mark.parametrize("keep", [None, 0])
def test_each_need_meets_each_end(store: Store, worker: Worker, end: str, need: Need, keep: int | None):
    """Whether the record of the parent is kept or not."""
    insert(store, "a", after("b", "a", need), after("c", "b", need))
    how, expected = ENDS[end]
    worker.finish(how(worker.claim_one())._replace(keep=keep))
    assert state(store, "b") is expected[need]
    if expected[need] is CANCELLED:
        assert look(store, "b").reason == (HURT if need is Need.SUCCESS else NOT_NEEDED)
        assert state(store, "c") is expected_after_cancel(need)
    assert (store.job(id_of("a")) is None) == (keep == 0)


def expected_after_cancel(need: Need) -> JobState:
    return ENDS["cancelled"][1][need]


def test_one_failure_is_enough(store: Store, worker: Worker):
    """Who needs success is cancelled at once, who waits for a failure begins at once, who needs the end waits on."""
    insert(store, *"ab", after("s", "ab"), after("f", "ab", Need.FAILURE), after("e", "ab", Need.END))
    a, b = worker.claim()
    worker.finish(failed(a))
    assert [state(store, name) for name in "sfe"] == [CANCELLED, READY, WAITING]
    worker.finish(succeeded(b))
    assert [state(store, name) for name in "sfe"] == [CANCELLED, READY, READY]


def test_a_failure_cancels_all_that_comes_after(store: Store, worker: Worker, clock: ManualClock):
    """In the same stroke and moment, however far; what needs only the end goes on."""
    insert(store, "a", after("b", "a"), after("c", "b"), after("d", "c", Need.END), after("e", "d"))
    claim = worker.claim_one()
    clock.advance(3)
    worker.finish(failed(claim))
    assert states(store) == {"a": FAILED, "b": CANCELLED, "c": CANCELLED, "d": READY, "e": WAITING}
    assert [(look(store, name).reason, look(store, name).finished_at) for name in "bc"] == [(HURT, now(clock))] * 2


# Parents from before.


def test_parents_that_have_ended_count_as_they_ended(store: Store, worker: Worker):
    """The gate is judged when the job is inserted."""
    insert(store, *"ab")
    a, b = worker.claim()
    worker.finish(succeeded(a), failed(b))
    insert(store, after("m", "a"), after("n", "b"), after("o", "ab", Need.END), after("p", "b", Need.FAILURE))
    insert(store, after("q", "a", Need.FAILURE), after("r", "n"))
    assert [state(store, name) for name in "mnopqr"] == [READY, CANCELLED, READY, READY, CANCELLED, CANCELLED]


def test_parents_that_have_not_ended_are_waited_for(store: Store, worker: Worker):
    """Also where another has."""
    insert(store, *"ab")
    a, b = worker.claim()
    worker.finish(succeeded(a))
    insert(store, after("c", "ab"))
    assert state(store, "c") is WAITING
    worker.finish(succeeded(b))
    assert state(store, "c") is READY


def test_an_unknown_parent_is_refused(store: Store):
    """And nothing of that insert is written."""
    insert(store, "a")
    before = everything(store)
    with pytest.raises(StoreDataError, match="There is no job"):
        insert(store, "x", job("y", member=(FLOW, 0)), after("z", "aq"))
    assert everything(store) == before
    assert store.members(FLOW) == []


# Coming before.


def test_a_job_may_come_before_one_that_waits(store: Store, worker: Worker):
    """Which then waits for it too, with the need that was said."""
    insert(store, "a", after("y", "a"), after("z", "a", Need.END))
    insert(store, job("b", before=(Parent(id_of("y")), Parent(id_of("z"), Need.END))))
    a, b = worker.claim()
    worker.finish(succeeded(a))
    assert [state(store, name) for name in "yz"] == [WAITING, WAITING]
    worker.finish(failed(b))
    assert [state(store, name) for name in "yz"] == [CANCELLED, READY]


def test_nothing_comes_before_what_waits_no_more(store: Store, worker: Worker):
    """At its gate, that is: no other line counts. Nothing is written."""
    insert(store, "a", after("b", "a"), job("l", terms=Terms((Hold("k", 1),))), job("s", delay=SECOND))
    worker.finish(succeeded(worker.claim_one()))
    before = everything(store)
    for child in ("a", "b", "l", "s", "unknown"):
        with pytest.raises(StoreDataError, match="does not wait any more"):
            insert(store, "x", job("y", before=(Parent(id_of(child)),)))
    assert everything(store) == before


# Again and again.


def test_an_insert_of_a_flow_may_be_repeated(store: Store, worker: Worker):
    """Its reply may have been lost: whatever happened since, nothing changes."""
    first = [job("a", member=(FLOW, 0)), after("z", "a", member=(FLOW, 1))]
    more = [job("b", before=(Parent(id_of("z")),), member=(FLOW, 2))]
    for jobs in (first, more):
        store.insert(jobs)
        before = everything(store)
        assert store.insert(jobs) == [one.id for one in jobs]
        assert everything(store) == before
    a, b = worker.claim()
    worker.finish(succeeded(a))
    store.insert([*first, *more])
    assert state(store, "z") is WAITING
    worker.finish(succeeded(b))
    assert state(store, "z") is READY
    before = everything(store)
    store.insert([*first, *more])
    assert everything(store) == before
    worker.finish(succeeded(worker.claim_one()))
    move(store, Act.DISCARD, "a")
    store.insert(more)
    assert states(store) == {"b": SUCCEEDED, "z": SUCCEEDED}


def test_a_second_end_changes_nothing(store: Store, worker: Worker):
    """It is refused, and so moves nobody on."""
    insert(store, "a", after("b", "a"), after("c", "a"))
    claim = worker.claim_one()
    worker.finish(succeeded(claim))
    b, c = worker.claim()
    worker.finish(succeeded(b))
    before = everything(store)
    for again in (succeeded(claim), failed(claim)):
        assert worker.finish(again) == [claim.token]
        assert everything(store) == before
    assert worker.finish(succeeded(c), succeeded(claim)) == [claim.token]


def test_an_orphans_followers_wait_for_the_verdict(store: Store, worker: Worker, other: Worker):
    """The late outcome of a lost worker moves nobody; the verdict of the adopter does."""
    insert(store, "a", after("b", "a"), after("c", "a", Need.FAILURE))
    claim = worker.claim_one()
    [orphan] = store.adopt(other.id, new_nonce(), 10, dead=[worker.id])
    assert worker.finish(succeeded(claim)) == [claim.token]
    assert [state(store, name) for name in "bc"] == [WAITING, WAITING]
    other.finish(lost(orphan.claim))
    assert [state(store, name) for name in "bc"] == [WAITING, WAITING]
    again = other.claim_one()
    other.finish(lost(again, FAILED))
    assert [state(store, name) for name in "bc"] == [CANCELLED, READY]


def test_leaving_opens_no_gate(store: Store, worker: Worker, other: Worker):
    """What goes back has not ended."""
    insert(store, "a", after("b", "a"))
    worker.claim()
    store.leave(worker.id)
    assert states(store) == {"a": READY, "b": WAITING}
    other.finish(succeeded(other.claim_one()))
    assert state(store, "b") is READY


# Acts.


def test_cancelling_a_parent_cancels_what_needs_it(store: Store):
    """The others go on."""
    insert(store, "a", after("b", "a"), after("c", "b"), after("d", "a", Need.END), after("e", "a", Need.FAILURE))
    assert move(store, Act.CANCEL, "a") == Moved(1, 0, None)
    assert states(store) == {"a": CANCELLED, "b": CANCELLED, "c": CANCELLED, "d": READY, "e": READY}
    assert [look(store, name).reason for name in "abc"] == ["because", HURT, HURT]


def test_cancelling_several_is_one_act_on_each(store: Store):
    """All that were meant are counted, and have the operator's reason, though they hang together."""
    insert(store, "a", after("b", "a"), after("c", "b"), after("d", "c"), after("e", "a", Need.FAILURE))
    assert move(store, Act.CANCEL, *"abce") == Moved(4, 0, None)
    assert states(store) == dict.fromkeys("abcde", CANCELLED)
    assert [look(store, name).reason for name in "abcde"] == ["because", "because", "because", HURT, "because"]


def test_cancelling_a_job_at_its_gate_leaves_its_parents(store: Store, worker: Worker):
    """They go on, and their end changes nothing of it."""
    insert(store, "a", after("b", "a"), after("c", "b"))
    move(store, Act.CANCEL, "b")
    assert states(store) == {"a": READY, "b": CANCELLED, "c": CANCELLED}
    b = look(store, "b")
    worker.finish(succeeded(worker.claim_one()))
    assert look(store, "b") == b
    assert worker.claim() == []


def test_a_running_parent_that_is_asked_to_end(store: Store, worker: Worker):
    """Its followers learn of it when it has ended, one way or the other."""
    insert(store, "a", after("b", "a"))
    claim = worker.claim_one()
    assert move(store, Act.CANCEL, "a") == Moved(0, 1, None)
    assert state(store, "b") is WAITING
    worker.finish(retried(claim))
    assert states(store) == {"a": CANCELLED, "b": CANCELLED}


@pytest.mark.parametrize("done", [False, True])
def test_discarding_a_parent(store: Store, worker: Worker, done: bool):
    """One that had not ended counts as one that did not succeed; one that had counts as it ended."""
    insert(store, "a", "z", after("b", "az"), after("c", "az", Need.END))
    a, z = worker.claim()
    worker.finish(succeeded(a) if done else released(a))
    assert move(store, Act.DISCARD, "a") == Moved(1, 0, None)
    assert [state(store, name) for name in "bc"] == [WAITING if done else CANCELLED, WAITING]
    worker.finish(succeeded(z))
    assert [state(store, name) for name in "bc"] == [READY if done else CANCELLED, READY]


def test_discarding_a_job_at_its_gate(store: Store, worker: Worker):
    """Nothing of it is left for its parents to open."""
    insert(store, "a", after("b", "a"), after("c", "b", Need.END))
    move(store, Act.DISCARD, "b")
    assert states(store) == {"a": READY, "c": READY}
    worker.finish(succeeded(claim_named(worker, "a")))
    assert states(store) == {"a": SUCCEEDED, "c": READY}


def test_a_pruned_parent_has_ended(store: Store, worker: Worker):
    """As it did; its followers still wait for the others."""
    insert(store, "a", "z", after("b", "az"))
    a, z = worker.claim()
    worker.finish(succeeded(a))
    assert store.prune(Retention(0, 0, 0), 10) == 1
    assert state(store, "b") is WAITING
    worker.finish(succeeded(z))
    assert state(store, "b") is READY


def test_jobs_at_their_gates_are_changed(store: Store, worker: Worker):
    """And stay there."""
    insert(store, "a", after("b", "a", queue="mail", priority=1))
    assert move(store, Act.CHANGE, "b", queue="slow", priority=7) == Moved(1, 0, None)
    assert (look(store, "b").queue, look(store, "b").priority, state(store, "b")) == ("slow", 7, WAITING)
    worker.finish(succeeded(worker.claim_one()))
    assert names(worker.claim(queues="slow")) == ["b"]


def test_running_now_opens_no_gate(store: Store):
    """It is for scheduled jobs."""
    insert(store, "a", after("b", "a", delay=SECOND))
    assert move(store, Act.RUN_NOW, "b") == Moved(0, 0, None)
    assert state(store, "b") is WAITING


# Retrying.


def test_retrying_a_whole_flow_closes_its_gates(store: Store, worker: Worker):
    """It goes from where it stopped, in its order."""
    insert(store, "a", after("b", "a"), after("c", "b"), after("d", "c"))
    worker.finish(succeeded(worker.claim_one()))
    worker.finish(failed(worker.claim_one()))
    assert move(store, Act.RETRY, *"abcd") == Moved(3, 0, None)
    assert states(store) == {"a": SUCCEEDED, "b": READY, "c": WAITING, "d": WAITING}
    for name in "bcd":
        claim = worker.claim_one()
        assert names([claim]) == [name]
        worker.finish(succeeded(claim))
    assert states(store) == dict.fromkeys("abcd", SUCCEEDED)


def test_retrying_one_by_one(store: Store, worker: Worker):
    """A child that is retried after its parent waits for it, as if both had been retried together."""
    insert(store, "a", after("b", "a"))
    worker.finish(failed(worker.claim_one()))
    move(store, Act.RETRY, "a")
    assert states(store) == {"a": READY, "b": CANCELLED}
    move(store, Act.RETRY, "b")
    assert states(store) == {"a": READY, "b": WAITING}
    worker.finish(succeeded(worker.claim_one()))
    assert state(store, "b") is READY


def test_retrying_in_pages(store: Store, worker: Worker):
    """The order of a flow holds though it is larger than one page of the act."""
    letters = "abcdefgh"
    pairs = enumerate(pairwise(letters), 1)
    others = (after(child, parent, member=(FLOW, place)) for place, (parent, child) in pairs)
    insert(store, job("a", member=(FLOW, 0)), *others)
    store.move(Selection(flow=FLOW), Change(Act.CANCEL), "ann", "")
    moved, last = 0, None
    while True:
        done = store.move(Selection(flow=FLOW), Change(Act.RETRY), "ann", "", after=last, limit=3)
        moved += done.jobs
        if (last := done.after) is None:
            break
    assert moved == 8
    assert states(store) == {"a": READY} | dict.fromkeys(letters[1:], WAITING)


def test_a_child_alone_is_retried_at_the_operators_will(store: Store, worker: Worker):
    """Its parent has ended, and does not go round again."""
    insert(store, "a", after("b", "a"))
    worker.finish(failed(worker.claim_one()))
    assert move(store, Act.RETRY, "b") == Moved(1, 0, None)
    assert states(store) == {"a": FAILED, "b": READY}


def test_a_child_that_is_retried_alone_waits_only_for_what_is_to_come(store: Store, worker: Worker):
    """How the others ended is no longer held against it, while they stay as they are."""
    insert(store, *"abc", after("z", "abc"))
    a, b, c = worker.claim()
    worker.finish(failed(a), succeeded(b))
    move(store, Act.RETRY, "z")
    assert state(store, "z") is WAITING
    insert(store, after("y", "a", Need.END))
    assert state(store, "z") is WAITING
    worker.finish(succeeded(c))
    assert state(store, "z") is READY


def test_an_alarm_that_is_retried_does_not_wait_for_another_failure(store: Store, worker: Worker):
    """The first was enough."""
    insert(store, *"ab", after("f", "ab", Need.FAILURE))
    a, b = worker.claim()
    worker.finish(failed(a))
    worker.finish(failed(worker.claim_one()))
    move(store, Act.RETRY, "f")
    assert state(store, "f") is READY
    worker.finish(succeeded(b))
    assert state(store, "f") is READY


def test_what_waits_on_closes_with_a_parent_that_goes_round_again(store: Store, worker: Worker):
    """A gate that is not open yet forgets how that parent ended."""
    insert(store, *"ab", after("e", "ab", Need.END))
    a, b = worker.claim()
    worker.finish(failed(a))
    move(store, Act.RETRY, "a")
    worker.finish(succeeded(b))
    assert state(store, "e") is WAITING
    worker.finish(succeeded(worker.claim_one()))
    assert state(store, "e") is READY


def test_what_has_begun_is_not_called_back(store: Store, worker: Worker):
    """A parent that goes round again opens nothing a second time."""
    insert(store, "a", after("e", "a", Need.END))
    worker.finish(failed(worker.claim_one()))
    claim = worker.claim_one()
    move(store, Act.RETRY, "a")
    assert states(store) == {"a": READY, "e": JobState.RUNNING}
    worker.finish(succeeded(claim))
    worker.finish(succeeded(worker.claim_one()))
    assert states(store) == {"a": SUCCEEDED, "e": SUCCEEDED}
    assert worker.claim() == []


# Beside everything else.


def test_its_time_counts_after_its_gate(store: Store, worker: Worker, clock: ManualClock):
    """Scheduled where it is still to come when the gate opens, ready where it has passed."""
    insert(store, "a", after("b", "a", delay=60 * SECOND), after("c", "a", delay=SECOND))
    clock.advance(2)
    assert [state(store, name) for name in "bc"] == [WAITING, WAITING]
    worker.finish(succeeded(worker.claim_one()))
    assert [state(store, name) for name in "bc"] == [SCHEDULED, READY]
    with pytest.raises(StoreDataError, match="does not wait any more"):
        insert(store, job("d", before=(Parent(id_of("b")),)))
    clock.advance(58)
    store.promote(10)
    assert state(store, "b") is READY


def test_its_limits_count_after_its_gate(store: Store, worker: Worker):
    """It holds no permit while it waits at its gate, and waits for one afterwards."""
    one = Terms((Hold("k", 1),))
    insert(store, "a", after("b", "a", terms=one), job("c", terms=one))
    claims = {name_of(claim.token.id): claim for claim in worker.claim()}
    assert set(claims) == {"a", "c"}
    assert worker.exchange(succeeded(claims["a"]), limit=5).claims == []
    assert state(store, "b") is WAITING
    assert names(worker.exchange(succeeded(claims["c"]), limit=5).claims) == ["b"]


def test_who_comes_through_a_gate_while_others_are_judged_is_judged_next(store: Store, worker: Worker):
    """One is discarded for want of a permit, which opens the gate of another: the next round is that one's."""
    one = Terms((Hold("k", 1, Conflict.DISCARD),))
    insert(store, job("h", terms=Terms((Hold("k", 1),))), job("a"))
    claims = {name_of(claim.token.id): claim for claim in worker.claim()}
    insert(store, after("b", "a", Need.END, terms=one), after("c", "b", Need.END, terms=one), after("d", "c", Need.END))
    worker.finish(succeeded(claims["a"]))
    assert [state(store, name) for name in "bcd"] == [CANCELLED, WAITING, WAITING]
    store.promote(10)
    assert [state(store, name) for name in "bcd"] == [CANCELLED, CANCELLED, READY]


def test_a_round_tells_when_the_job_is_due_whose_gate_it_opened(store: Store, worker: Worker, clock: ManualClock):
    """One is discarded for want of a permit, which lets another through its gate that has a time of its own."""
    insert(
        store,
        job("h", terms=Terms((Hold("k", 1),))),
        job("b", delay=SECOND, terms=Terms((Hold("k", 1, Conflict.DISCARD),))),
    )
    insert(store, after("c", "b", Need.END, delay=5 * SECOND))
    worker.claim()
    assert store.promote(10).next_due == SECOND
    clock.advance(1)
    assert store.promote(10).next_due == 4 * SECOND
    assert [state(store, name) for name in "bc"] == [CANCELLED, SCHEDULED]


def test_its_share_counts_after_its_gate(store: Store, worker: Worker):
    """It takes its turn when the gate has opened."""
    insert(store, "a", after("m", "a", share="x"), after("n", "a", share="x"), after("o", "a", share="y"))
    assert names(worker.claim()) == ["a"]
    [token] = store.held(worker.id)
    assert names(worker.exchange(succeeded(token), limit=5).claims) == ["m", "o", "n"]


def test_a_unique_job_is_rescheduled_at_its_gate(store: Store, worker: Worker, clock: ManualClock):
    """It gets the new time, and still comes after the others."""
    terms = Terms((), Claimed("k", False, None, UniqueConflict.RESCHEDULE))
    insert(store, "a", after("b", "a", terms=terms))
    assert names(insert(store, job("c", terms=terms, delay=20 * SECOND))) == ["b"]
    assert state(store, "b") is WAITING
    clock.advance(21)
    store.promote(10)
    assert state(store, "b") is WAITING
    assert names(insert(store, job("d", terms=terms))) == ["b"]
    assert state(store, "b") is WAITING
    worker.finish(failed(worker.claim_one()))
    assert state(store, "b") is CANCELLED


def test_a_parent_that_another_job_stands_for_is_refused(store: Store):
    """It was not inserted, so nothing can come after it; nothing of that insert is written."""
    terms = Terms((), Claimed("k", False, None, UniqueConflict.KEEP))
    insert(store, job("a", terms=terms))
    before = everything(store)
    with pytest.raises(StoreDataError, match="There is no job"):
        insert(store, "x", job("b", terms=terms), after("c", "b"))
    assert everything(store) == before
    assert names(insert(store, job("b", terms=terms), "c")) == ["a", "c"]


def test_jobs_of_one_insert_may_give_way_to_each_other(store: Store, worker: Worker):
    """Whatever their order, and though one that is replaced comes before others."""
    keep = Terms((), Claimed("k", False, None, UniqueConflict.KEEP))
    replace = Terms((), Claimed("r", False, None, UniqueConflict.REPLACE))
    insert(store, after("b", "a", terms=keep), after("c", "a", terms=keep), "a")
    assert states(store) == {"a": READY, "b": WAITING}
    insert(store, after("z", "x", Need.END), job("x", terms=replace), job("y", terms=replace), after("w", "x"))
    assert [state(store, name) for name in "wxyz"] == [CANCELLED, CANCELLED, READY, READY]


def test_a_unique_key_is_held_at_the_gate(store: Store, worker: Worker):
    """And given back by one that is cancelled there."""
    terms = Terms((), Claimed("k", False, None, UniqueConflict.KEEP))
    insert(store, "a", after("b", "a", terms=terms))
    assert names(insert(store, job("c", terms=terms))) == ["b"]
    worker.finish(failed(worker.claim_one()))
    assert names(insert(store, job("d", terms=terms))) == ["d"]


def test_opening_a_gate_raises_no_epoch_but_cancelling_does(store: Store, worker: Worker):
    """As everywhere: an operator's act or an end without a claim."""
    insert(store, "a", after("b", "a"), after("c", "a", Need.FAILURE))
    worker.finish(succeeded(worker.claim_one()))
    if (found := epochs(store)) is not None:
        assert (found[id_of("b")], found[id_of("c")]) == (0, 1)


# Callbacks.


def watched(name: str, **fields: Any) -> NewJob:
    """A job with a callback for its success (s…), its failure (f…) and its end (e…)."""
    needs = {"s": (-1, Need.SUCCESS), "f": (-2, Need.FAILURE), "e": (-3, Need.END)}
    callbacks = [
        after(letter + name, name, need, member=(id_of(name), place)) for letter, (place, need) in needs.items()
    ]
    return job(name, callbacks=tuple(callbacks), **fields)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("keep", [None, 0])
def test_callbacks_begin_in_the_stroke_that_ends_their_job(store: Store, worker: Worker, end: str, keep: int | None):
    """They are inserted with it, and named by it alone."""
    assert names(insert(store, watched("a"), "b")) == ["a", "b"]
    assert states(store) == {"a": READY, "b": READY, "sa": WAITING, "fa": WAITING, "ea": WAITING}
    assert [name_of(one.id) for _, one in store.members(id_of("a"), -4)] == ["ea", "fa", "sa"]
    how, expected = ENDS[end]
    worker.finish(how(claim_named(worker, "a"))._replace(keep=keep))
    found = {need: state(store, name) for need, name in zip(Need, ("sa", "ea", "fa"), strict=True)}
    assert found == expected


def test_callbacks_may_have_callbacks(store: Store, worker: Worker):
    """As any job may."""
    inner = after("c", "a", member=(id_of("a"), -3))._replace(callbacks=(after("d", "c", member=(id_of("c"), -3)),))
    insert(store, job("a", callbacks=(inner,)))
    for expected in (["a"], ["c"], ["d"]):
        claims = worker.claim()
        assert names(claims) == expected
        worker.finish(*map(succeeded, claims))


@pytest.mark.parametrize("conflict", list(UniqueConflict))
def test_a_job_that_gives_way_has_no_callbacks(store: Store, worker: Worker, conflict: UniqueConflict):
    """Those of the one that stands for it are enough; one that is replaced has ended, and has its own."""
    terms = Terms((), Claimed("k", False, None, conflict))
    insert(store, watched("a", terms=terms))
    insert(store, watched("b", terms=terms), "x")
    if conflict is UniqueConflict.REPLACE:
        expected = {"a": CANCELLED, "sa": CANCELLED, "fa": READY, "ea": READY, "b": READY}
        expected |= dict.fromkeys(("sb", "fb", "eb"), WAITING)
    else:
        expected = {"a": READY} | dict.fromkeys(("sa", "fa", "ea"), WAITING)
    assert states(store) == expected | {"x": READY}


def test_callbacks_do_not_come_back_with_a_repeated_insert(store: Store, worker: Worker):
    """Though they have ended and are gone."""
    insert(store, watched("a"))
    worker.finish(succeeded(worker.claim_one()))
    worker.finish(*(succeeded(claim)._replace(keep=0) for claim in worker.claim()))
    left = {"a": SUCCEEDED, "fa": CANCELLED}
    assert states(store) == left
    insert(store, watched("a"))
    assert states(store) == left


def test_callbacks_of_a_tick_come_with_its_job(store: Store, worker: Worker):
    """And not where the moment gets none."""
    store.put_schedule(StoredSchedule(key="s", task="task", rule="", payload=b"", overlap="skip"), "ann", "")
    schedule = store.schedule("s")
    assert schedule is not None
    jobs = [(1, watched("a")), (2, watched("b"))]
    store.tick(schedule, jobs, handled=2, next_at=None, repeats=None)
    assert states(store) == {"a": READY, "sa": WAITING, "fa": WAITING, "ea": WAITING}


def test_a_retried_job_takes_along_the_callbacks_it_stopped(store: Store, worker: Worker):
    """Those that have begun do not begin again, and those that others cancelled stay so. None is counted."""
    insert(store, watched("a"), watched("b"))
    move(store, Act.CANCEL, "sb")
    worker.finish(*map(failed, worker.claim()))
    worker.finish(*map(succeeded, worker.claim()))
    assert states(store) == {
        "a": FAILED, "sa": CANCELLED, "fa": SUCCEEDED, "ea": SUCCEEDED,
        "b": FAILED, "sb": CANCELLED, "fb": SUCCEEDED, "eb": SUCCEEDED,
    }  # fmt: skip
    assert move(store, Act.RETRY, "a", "b") == Moved(2, 0, None)
    assert (state(store, "sa"), state(store, "sb")) == (WAITING, CANCELLED)
    a, b = worker.claim()
    worker.finish(failed(a), succeeded(b))
    assert (state(store, "sa"), state(store, "sb")) == (CANCELLED, CANCELLED)
    assert move(store, Act.RETRY, "a") == Moved(1, 0, None)
    worker.finish(succeeded(worker.claim_one()))
    assert names(worker.claim()) == ["sa"]


def test_a_callback_takes_its_own_along(store: Store, worker: Worker):
    """However far that goes. What comes after it in a flow is retried with the flow."""
    inner = after("c", "a", member=(id_of("a"), -1))._replace(callbacks=(after("d", "c", member=(id_of("c"), -1)),))
    insert(store, job("a", callbacks=(inner,), member=(FLOW, 0)), after("z", "a", member=(FLOW, 1)))
    worker.finish(failed(worker.claim_one()))
    assert states(store) == {"a": FAILED, "c": CANCELLED, "d": CANCELLED, "z": CANCELLED}
    move(store, Act.RETRY, "a")
    assert states(store) == {"a": READY, "c": WAITING, "d": WAITING, "z": CANCELLED}


# Looking at flows.


def test_members_come_by_their_places(store: Store, worker: Worker):
    """With payloads and results, in pages, callbacks only where they are asked for."""
    jobs = [job(name, member=(FLOW, place)) for place, name in ((5, "a"), (0, "b"), (-2, "c"), (1 << 62, "d"))]
    insert(store, *jobs, job("e", member=(id_of("other"), 0)), "f")
    claims = {name_of(claim.token.id): claim for claim in worker.claim()}
    worker.finish(Outcome(claims["a"].token, SUCCEEDED, result=b"result of a"))
    found = store.members(FLOW)
    assert [(place, name_of(one.id)) for place, one in found] == [(0, "b"), (5, "a"), (1 << 62, "d")]
    assert [(one.payload, one.result) for _, one in found[:2]] == [
        (b"payload of b", None),
        (b"payload of a", b"result of a"),
    ]
    assert [place for place, _ in store.members(FLOW, -4)] == [-2, 0, 5, 1 << 62]
    assert [place for place, _ in store.members(FLOW, 0, 1)] == [5]
    assert store.members(FLOW, 1 << 62) == []
    assert store.members(id_of("unknown")) == []


def test_counts_of_a_flow(store: Store, worker: Worker):
    """Places below 0 are not counted, nor what is no longer there."""
    insert(store, *(job(name, member=(FLOW, place)) for place, name in enumerate("abcd", -1)))
    insert(store, after("e", "d", member=(FLOW, 9)), job("f", member=(id_of("other"), 0)))
    assert store.flow_counts(FLOW) == {READY: 3, WAITING: 1}
    claims = {name_of(claim.token.id): claim for claim in worker.claim()}
    worker.finish(succeeded(claims["b"]), succeeded(claims["c"])._replace(keep=0), failed(claims["d"]))
    assert store.flow_counts(FLOW) == {SUCCEEDED: 1, FAILED: 1, CANCELLED: 1}
    assert store.flow_counts(id_of("unknown")) == {}
    move(store, Act.DISCARD, "b")
    assert store.flow_counts(FLOW) == {FAILED: 1, CANCELLED: 1}
    assert [name_of(one.id) for _, one in store.members(FLOW)] == ["d", "e"]


def test_a_flow_is_selected(store: Store):
    """With its callbacks, and together with other conditions."""
    insert(store, *(job(name, member=(FLOW, place)) for place, name in enumerate("abc", -1)), "d")
    assert names(store.jobs(Selection(flow=FLOW))) == ["a", "b", "c"]
    assert names(store.jobs(Selection(flow=FLOW), after=id_of("a"), limit=1)) == ["b"]
    assert names(store.jobs(Selection(flow=FLOW, ids=[id_of("b"), id_of("d")]))) == ["b"]
    assert names(store.jobs(Selection(flow=FLOW, states=[WAITING]))) == []
    assert names(store.jobs(Selection(flow=FLOW, states=[READY], queues=["default"]))) == ["a", "b", "c"]
    assert store.jobs(Selection(flow=id_of("unknown"))) == []
    assert store.move(Selection(flow=FLOW), Change(Act.CANCEL), "ann", "why") == Moved(3, 0, None)
    assert states(store) == {"a": CANCELLED, "b": CANCELLED, "c": CANCELLED, "d": READY}
