"""Limits: permits that jobs wait for, have, and give back exactly once."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import Claim, JobState, NewJob
from packhorse.limits import Conflict, Hold, Terms
from packhorse.outcome import Outcome, expire
from packhorse.stores import Store
from packhorse.stores.contract import Act, LimitView, Paused, Retention
from packhorse.testing.contract.behind import leftovers
from packhorse.testing.contract.helpers import (
    Worker,
    cancelled,
    everything,
    failed,
    holders,
    id_of,
    in_line,
    insert,
    job,
    limited,
    look,
    lost,
    move,
    names,
    new_nonce,
    released,
    retried,
    rounds,
    snoozed,
    state,
    states,
    strayed,
    succeeded,
)

Ending = Callable[[Claim], Outcome]

# What gives a permit back, and what keeps it.
GIVING_BACK: dict[str, Ending] = {
    "succeeded": succeeded,
    "failed": failed,
    "cancelled": cancelled,
    "expired": lambda claim: expire(claim.token),
    "lost for good": lambda claim: lost(claim, JobState.FAILED),
    "succeeded and not kept": lambda claim: succeeded(claim)._replace(keep=0),
    "failed and not kept": lambda claim: failed(claim)._replace(keep=0),
    "retried later": lambda claim: retried(claim, 5 * SECOND),
    "snoozed": lambda claim: snoozed(claim, 5 * SECOND),
    "strayed": lambda claim: strayed(claim, 5 * SECOND),
}
KEEPING: dict[str, Ending] = {"released": released, "lost, to run again": lost}

each_end = pytest.mark.parametrize("ending", GIVING_BACK.values(), ids=GIVING_BACK.keys())
each_put_back = pytest.mark.parametrize("ending", KEEPING.values(), ids=KEEPING.keys())


# Coming in.


def test_a_limited_job_waits_for_its_admission(store: Store, worker: Worker):
    """The caller's insert decides nothing, not even where every permit is free; a promotion does."""
    insert(store, limited("a"), limited("b"))
    assert states(store) == {"a": JobState.WAITING, "b": JobState.WAITING}
    assert store.limits() == []
    assert store.promote(10).jobs == 1
    assert states(store) == {"a": JobState.READY, "b": JobState.WAITING}
    assert names(worker.claim()) == ["a"]


def test_an_exchange_admits_and_takes_in_one_stroke(store: Store, worker: Worker):
    """A worker needs no dispatcher to come to limited jobs."""
    insert(store, limited("a"), limited("b"))
    assert names(worker.claim()) == ["a"]
    assert worker.claim() == []


@pytest.mark.parametrize("to", [1, 2, 7, 64])
def test_a_limit_is_exact_for_each_key(store: Store, worker: Worker, other: Worker, to: int):
    """As many run as the limit says, for each key by itself, whoever asks and however often."""
    for key in ("one", "two", "three"):
        insert(store, *(limited(f"{key} {number:03}", key, to=to) for number in range(to + 5)))
    held = [*worker.claim(1), *other.claim(500), *worker.claim(500), *other.claim(500)]
    assert Counter(name.split()[0] for name in names(held)) == {"one": to, "two": to, "three": to}
    assert [view.holders for view in store.limits()] == [to] * 3


def test_keys_of_different_groups_are_independent(store: Store, worker: Worker):
    """The same value under another group is another key."""
    insert(store, limited("a", "printer/1"), limited("b", "scanner/1"), limited("c", "printer/1"))
    assert names(worker.claim()) == ["a", "b"]


def test_tasks_of_one_group_share_their_keys(store: Store, worker: Worker):
    """A permit is of a key, whatever task the job has and whatever queue it stands in."""
    insert(store, limited("a", task="print.page"), limited("b", task="print.poster", queue="mail"))
    assert names(worker.claim()) == ["a"]


def test_unlimited_jobs_pass(store: Store, worker: Worker):
    """Those who wait hold nobody up who needs no permit, however late it comes and however low its priority."""
    insert(store, *(limited(f"a{number}", priority=9) for number in range(5)), job("z", priority=-9))
    assert names(worker.claim()) == ["a0", "z"]


def test_several_limits_must_all_have_room(store: Store, worker: Worker):
    """A job runs when the last of its limits has room, and then has a permit of each."""
    insert(store, limited("a", "x"), limited("b", "y"), limited("c", "x", "y"))
    a, b = worker.claim()
    assert names(worker.exchange(succeeded(a), limit=5).claims) == []
    assert holders(store, "x") == 0, "who waits for another key has no permit of this one"
    assert names(worker.exchange(succeeded(b), limit=5).claims) == ["c"]
    assert (holders(store, "x"), holders(store, "y")) == (1, 1)


def test_who_waits_for_another_key_lets_others_pass(store: Store, worker: Worker):
    """The older one needs both, but one of them is taken; the younger needs only the free one."""
    insert(store, limited("a", "y"))
    worker.claim()
    insert(store, limited("b", "x", "y"), limited("c", "x"), limited("d", "x"))
    assert names(worker.claim()) == ["c"]


def test_several_limits_free_all_their_permits(store: Store, worker: Worker):
    """One end makes room behind each of them."""
    insert(store, limited("a", "x", "y"))
    a = worker.claim_one()
    insert(store, limited("b", "x"), limited("c", "y"), limited("d", "x", "y"))
    assert worker.claim() == []
    assert names(worker.exchange(succeeded(a), limit=5).claims) == ["b", "c"]


def test_a_crossing_of_limits_holds_nobody_up_for_good(store: Store, worker: Worker):
    """Many jobs with two keys each, named in either order, all come to run; no key is ever overrun."""
    keys = ["p", "q", "r"]
    for number in range(30):
        first, second = keys[number % 3], keys[(number + 1 + number // 3 % 2) % 3]
        insert(store, limited(f"{number:02}", first, second))
    done: list[str] = []
    claims = worker.claim()
    while claims:
        assert all(view.holders <= 1 for view in store.limits())
        done += names(claims[:1])
        claims = claims[1:] + worker.exchange(succeeded(claims[0]), limit=5).claims
    assert sorted(done) == [f"{number:02}" for number in range(30)]
    assert store.limits() == []


def test_waiting_jobs_cannot_be_claimed(store: Store, worker: Worker):
    """Not by asking for their queue, not by asking for many, and not by an operator's hurry."""
    insert(store, limited("a", queue="mail"), limited("b", queue="mail", priority=-1))
    worker.claim()
    for queues in ("mail", "mail*", "*", "x,mail"):
        assert worker.claim(1_000, queues=queues) == []
    assert move(store, Act.RUN_NOW, "b").jobs == 0
    assert worker.claim() == []
    assert state(store, "b") is JobState.WAITING


def test_delayed_jobs_compete_when_they_are_due(store: Store, worker: Worker, clock: ManualClock):
    """A scheduled job has no permit; when its time has come it waits like the others."""
    insert(store, limited("a", delay=SECOND), limited("b"))
    b = worker.claim_one()
    clock.advance(1)
    store.promote(10)
    assert states(store) == {"a": JobState.WAITING, "b": JobState.RUNNING}
    assert names(worker.exchange(succeeded(b), limit=5).claims) == ["a"]


def test_a_scheduled_job_takes_no_room(store: Store, worker: Worker):
    """What comes later keeps nobody out now."""
    insert(store, limited("a", delay=SECOND), limited("b"))
    assert names(worker.claim()) == ["b"]
    assert in_line(store) == 0


@pytest.mark.parametrize("size", [1, 63, 64, 65, 256, 257, 1_001])
def test_any_number_of_jobs_comes_through(store: Store, worker: Worker, size: int):
    """However many wait at the door or in a line, each comes to run once, in order."""
    insert(store, *(limited(f"{number:04}", to=100) for number in range(size)))
    done: list[str] = []
    claims = worker.claim(1_000)
    while claims:
        assert len(claims) <= 100
        done += names(claims)
        claims = worker.exchange(*map(succeeded, claims), limit=1_000).claims
    assert done == [f"{number:04}" for number in range(size)]
    assert store.limits() == []


# The order of those who wait.


def test_waiting_jobs_leave_by_priority_then_age_then_id(store: Store, worker: Worker, clock: ManualClock):
    """The same order as that of claims."""
    insert(store, limited("first"))
    claim = worker.claim_one()
    insert(store, limited("d", priority=-1), limited("c"))
    store.promote(10)
    clock.advance(1)
    insert(store, limited("b"), limited("a"), limited("e", priority=5))
    order = []
    while claims := worker.exchange(succeeded(claim), limit=5).claims:
        [claim] = claims
        order += names([claim])
    assert order == ["e", "c", "a", "b", "d"]


def test_who_comes_later_with_more_priority_goes_first(store: Store, worker: Worker):
    """Also where the others stand in the line already."""
    insert(store, limited("a"), limited("b"), limited("c"))
    a = worker.claim_one()
    insert(store, limited("z", priority=1))
    [z] = worker.exchange(succeeded(a), limit=5).claims
    assert names([z]) == ["z"]
    assert names(worker.exchange(succeeded(z), limit=5).claims) == ["b"]


def test_another_priority_gives_another_place_in_the_line(store: Store, worker: Worker):
    """An operator lets one of those who wait go first, and another last."""
    insert(store, *(limited(name) for name in "abcd"))
    claim = worker.claim_one()
    move(store, Act.CHANGE, "d", priority=3)
    move(store, Act.CHANGE, "b", priority=-3)
    order = []
    while claims := worker.exchange(succeeded(claim), limit=5).claims:
        [claim] = claims
        order += names([claim])
    assert order == ["d", "c", "b"]


def test_retries_compete_anew(store: Store, worker: Worker, clock: ManualClock):
    """Who comes back, even at once, stands behind those who waited."""
    insert(store, limited("a"), limited("b"))
    a = worker.claim_one()
    clock.advance(1)
    [b] = worker.exchange(retried(a), limit=5).claims
    assert names([b]) == ["b"]
    assert state(store, "a") is JobState.WAITING
    assert names(worker.exchange(succeeded(b), limit=5).claims) == ["a"]


def test_a_job_that_is_retried_by_hand_competes_anew(store: Store, worker: Worker):
    """An operator's retry needs a permit like every other beginning."""
    insert(store, limited("a"), limited("b"))
    [b] = worker.exchange(failed(worker.claim_one()), limit=5).claims
    assert move(store, Act.RETRY, "a").jobs == 1
    assert worker.claim() == []
    assert state(store, "a") is JobState.WAITING
    assert names(worker.exchange(succeeded(b), limit=5).claims) == ["a"]


# Giving back.


@each_end
def test_an_end_hands_the_permit_on_in_the_same_exchange(store: Store, worker: Worker, ending: Ending):
    """Whatever the end, the next one is claimed by the exchange that writes it, and only one."""
    insert(store, *(limited(name) for name in "abc"))
    a = worker.claim_one()
    assert worker.claim() == []
    assert names(worker.exchange(ending(a), limit=5).claims) == ["b"]
    assert holders(store) == 1
    assert worker.claim() == []


@each_end
def test_a_permit_is_handed_on_where_nothing_is_taken(store: Store, worker: Worker, ending: Ending):
    """An exchange that only writes makes the next one ready, for whoever comes."""
    insert(store, *(limited(name) for name in "abc"))
    a = worker.claim_one()
    worker.finish(ending(a))
    assert [state(store, name) for name in "bc"] == [JobState.READY, JobState.WAITING]


@each_end
def test_a_permit_is_freed_once(store: Store, worker: Worker, ending: Ending):
    """The same outcome twice, in one exchange and in the next, is refused and lifts no limit."""
    insert(store, *(limited(name, to=2) for name in "abcdef"))
    a, b = worker.claim()
    reply = worker.exchange(ending(a), ending(a), limit=5)
    assert reply.refused == [a.token]
    assert names(reply.claims) == ["c"]
    assert worker.exchange(ending(a), limit=5).claims == []
    assert worker.finish(succeeded(a)) == [a.token]
    assert (holders(store), worker.claim()) == (2, [])
    assert names(worker.exchange(ending(b), limit=5).claims) == ["d"]


@each_end
def test_a_permit_that_has_a_new_holder_is_not_freed_by_the_old_one(
    store: Store, worker: Worker, other: Worker, ending: Ending
):
    """A late worker, whose job another one has finished meanwhile, takes no permit from those who have it now."""
    insert(store, *(limited(name) for name in "abc"))
    late = worker.claim_one()
    [orphan] = store.adopt(other.id, new_nonce(), 5, dead=[worker.id])
    assert names(other.exchange(ending(orphan.claim), limit=5).claims) == ["b"]
    assert worker.exchange(ending(late), limit=5).refused == [late.token]
    assert (holders(store), worker.claim(), other.claim()) == (1, [], [])


@each_end
def test_a_refused_outcome_frees_no_permit(store: Store, worker: Worker, other: Worker, ending: Ending):
    """The job runs elsewhere, with its permit: what a late worker says of it makes no room."""
    insert(store, *(limited(name) for name in "abc"))
    late = worker.claim_one()
    [orphan] = store.adopt(other.id, new_nonce(), 5, dead=[worker.id])
    assert worker.finish(ending(late)) == [late.token]
    assert (holders(store), other.claim(), worker.claim()) == (1, [], [])
    assert names(other.exchange(ending(orphan.claim), limit=5).claims) == ["b"]


def test_as_many_come_as_have_ended(store: Store, worker: Worker):
    """Several ends in one exchange make room for as many."""
    insert(store, *(limited(f"{number:02}", to=4) for number in range(12)))
    first = worker.claim()
    assert len(first) == 4
    second = worker.exchange(*map(succeeded, first[:3]), limit=50).claims
    assert names(second) == ["04", "05", "06"]
    third = worker.exchange(succeeded(first[3]), *map(failed, second), limit=50).claims
    assert names(third) == ["07", "08", "09", "10"]


@each_put_back
def test_a_job_that_is_put_back_keeps_its_permit(store: Store, worker: Worker, ending: Ending):
    """It goes back in place with what it has: no other gets in, and it waits for nothing."""
    insert(store, *(limited(name) for name in "abc"))
    a = worker.claim_one()
    worker.finish(ending(a))
    assert (state(store, "a"), holders(store)) == (JobState.READY, 1)
    [again] = worker.claim()
    assert names([again]) == ["a"]
    assert names(worker.exchange(succeeded(again), limit=5).claims) == ["b"]


def test_who_leaves_puts_its_jobs_back_with_their_permits(store: Store, worker: Worker, other: Worker):
    """A clean stop frees no permit of a job that will go on elsewhere."""
    insert(store, *(limited(name, to=2) for name in "abcd"))
    worker.claim()
    store.leave(worker.id)
    assert holders(store) == 2
    assert names(other.claim()) == ["a", "b"]


def test_who_leaves_a_job_that_was_asked_to_end_hands_its_permit_on(store: Store, worker: Worker, other: Worker):
    """The job ends cancelled instead of going back, so the next one may come."""
    insert(store, limited("a"), limited("b"))
    worker.claim()
    assert move(store, Act.CANCEL, "a").asked == 1
    store.leave(worker.id)
    assert state(store, "a") is JobState.CANCELLED
    assert names(other.claim()) == ["b"]


def test_an_orphan_keeps_its_permit_until_the_verdict(store: Store, worker: Worker, clock: ManualClock):
    """A permit stays with its job, whatever becomes of the worker: not time, only a verdict frees it."""
    insert(store, limited("a"), limited("b"))
    worker.claim()
    clock.advance(1_000_000)
    heir = Worker(store, "heir")
    store.promote(10)
    store.prune(Retention(0, 0, 0), 10)
    assert (heir.claim(), holders(store)) == ([], 1)
    [orphan] = store.adopt(heir.id, new_nonce(), 5)
    assert (heir.claim(), holders(store)) == ([], 1)
    heir.finish(lost(orphan.claim))
    [again] = heir.claim()
    assert names([again]) == ["a"]
    assert names(heir.exchange(lost(again, JobState.FAILED), limit=5).claims) == ["b"]


@pytest.mark.parametrize("act", [Act.CANCEL, Act.DISCARD])
def test_an_operator_frees_the_permit_of_a_ready_job(store: Store, worker: Worker, act: Act):
    """Ended before it began, it makes room for the next, and for one only."""
    insert(store, *(limited(name) for name in "abc"))
    store.promote(10)
    assert move(store, act, "a").jobs == 1
    assert names(worker.claim()) == ["b"]
    assert worker.claim() == []


@pytest.mark.parametrize("act", [Act.CANCEL, Act.DISCARD])
def test_an_operator_frees_nothing_by_ending_one_that_waits(store: Store, worker: Worker, act: Act):
    """It had no permit; those behind it move up when one is free."""
    insert(store, *(limited(name) for name in "abc"))
    a = worker.claim_one()
    assert move(store, act, "b").jobs == 1
    assert (worker.claim(), holders(store), in_line(store)) == ([], 1, 1)
    assert names(worker.exchange(succeeded(a), limit=5).claims) == ["c"]


@pytest.mark.parametrize("act", [Act.CANCEL, Act.DISCARD])
def test_the_next_comes_where_the_first_of_the_line_goes(store: Store, worker: Worker, act: Act):
    """A permit was freed and its heir ended before anybody looked: the one behind it inherits."""
    insert(store, *(limited(name) for name in "abcd"))
    store.promote(10)
    move(store, Act.CANCEL, "a")
    move(store, act, "b")
    assert names(worker.claim()) == ["c"]


@pytest.mark.parametrize("act", [Act.CANCEL, Act.DISCARD])
def test_ending_all_that_wait_leaves_nothing_behind(store: Store, worker: Worker, act: Act):
    """Neither permits nor lines."""
    insert(store, *(limited(name, to=2) for name in "abcdef"))
    store.promote(10)
    assert move(store, act, *"abcdef").jobs == 6
    assert store.limits() == []
    assert leftovers(store) == []
    insert(store, limited("z", to=2))
    assert names(worker.claim()) == ["z"]


@pytest.mark.parametrize("ending", [released, retried, lost, succeeded])
def test_a_job_that_was_asked_to_end_frees_its_permit(store: Store, worker: Worker, ending: Ending):
    """Also where its owner would have put it back."""
    insert(store, limited("a"), limited("b"))
    a = worker.claim_one()
    assert move(store, Act.CANCEL, "a").asked == 1
    assert holders(store) == 1
    assert names(worker.exchange(ending(a), limit=5).claims) == ["b"]


def test_pruning_frees_no_permit_of_another(store: Store, worker: Worker):
    """The job gave its permit back when it ended; when it is deleted it has none."""
    insert(store, limited("a"), limited("b"), limited("c"))
    worker.exchange(succeeded(worker.claim_one()), limit=5)
    assert store.prune(Retention(0, 0, 0), 10) == 1
    assert (holders(store), worker.claim()) == (1, [])


def test_nothing_is_held_when_all_is_done(store: Store, worker: Worker, clock: ManualClock):
    """Whatever happened on the way, an idle store has no holders and nobody waits."""
    insert(store, *(limited(f"{number:02}", "x", "y", to=3) for number in range(len(GIVING_BACK) + 3)))
    for ending in [*GIVING_BACK.values(), *KEEPING.values(), retried]:
        claims = worker.claim()
        if claims:
            worker.finish(ending(claims[0]), *map(released, claims[1:]))
    clock.advance(10)
    while store.promote(10).jobs or (claims := worker.claim()):
        worker.finish(*map(succeeded, worker.claim()))
        worker.finish(*map(succeeded, claims))
        claims = []
    assert store.limits() == []
    assert all(one.finished for one in states(store).values())


# Conflicts.


def test_who_discards_is_cancelled_where_there_is_no_room(store: Store, worker: Worker):
    """It ends cancelled, with the key for a reason; nobody else is touched."""
    insert(store, limited("a"))
    a = worker.claim_one()
    insert(store, limited("b", conflict=Conflict.DISCARD), limited("c"))
    assert worker.claim() == []
    assert [state(store, name) for name in "bc"] == [JobState.CANCELLED, JobState.WAITING]
    assert "k" in (look(store, "b").reason or "")
    assert names(worker.exchange(succeeded(a), limit=5).claims) == ["c"]


def test_who_discards_runs_where_there_is_room(store: Store, worker: Worker):
    """Up to the limit."""
    insert(store, *(limited(name, to=2, conflict=Conflict.DISCARD) for name in "abc"))
    assert names(worker.claim()) == ["a", "b"]
    assert state(store, "c") is JobState.CANCELLED


def test_who_discards_and_is_put_back_keeps_its_permit(store: Store, worker: Worker):
    """It is not discarded because of itself."""
    insert(store, limited("a", conflict=Conflict.DISCARD))
    worker.finish(released(worker.claim_one()))
    store.promote(10)
    assert names(worker.claim()) == ["a"]


def test_who_discards_may_be_discarded_when_it_comes_back(store: Store, worker: Worker, clock: ManualClock):
    """A retry finds the key taken by another, and ends."""
    insert(store, limited("a", conflict=Conflict.DISCARD))
    a = worker.claim_one()
    insert(store, limited("b"))
    worker.exchange(retried(a, SECOND), limit=5)
    clock.advance(1)
    store.promote(10)
    assert state(store, "a") is JobState.CANCELLED


def test_who_replaces_cancels_older_ones_that_wait(store: Store, worker: Worker, clock: ManualClock):
    """Only the newest of those that replace is left to wait; who runs goes on, and who blocks stays."""
    insert(store, limited("run", conflict=Conflict.REPLACE), limited("block", priority=-1))
    run = worker.claim_one()
    for name in ("a", "b", "c"):
        clock.advance(1)
        insert(store, limited(name, conflict=Conflict.REPLACE))
        store.promote(10)
    assert states(store) == {
        "a": JobState.CANCELLED,
        "b": JobState.CANCELLED,
        "block": JobState.WAITING,
        "c": JobState.WAITING,
        "run": JobState.RUNNING,
    }
    assert look(store, "a").reason == "replaced"
    [c] = worker.exchange(succeeded(run), limit=5).claims
    assert names([c]) == ["c"]
    assert names(worker.exchange(succeeded(c), limit=5).claims) == ["block"]


def test_the_newest_that_replaces_stays_whatever_its_priority(store: Store, worker: Worker, clock: ManualClock):
    """Newest by when it was enqueued."""
    insert(store, limited("run"))
    worker.claim_one()
    insert(store, limited("old", conflict=Conflict.REPLACE, priority=50))
    clock.advance(1)
    insert(store, limited("new", conflict=Conflict.REPLACE, priority=-50))
    store.promote(10)
    assert (state(store, "old"), state(store, "new")) == (JobState.CANCELLED, JobState.WAITING)


def test_a_job_that_was_replaced_stays_so(store: Store, worker: Worker):
    """Also where more room is found for its key in the same stroke."""
    insert(store, limited("a"))
    a = worker.claim_one()
    insert(store, limited("early", conflict=Conflict.REPLACE, priority=-5))
    store.promote(10)
    store.set_limit("full", 0, "ann", "")
    crowd = [limited(f"crowd {number:04}", "full") for number in range(1_100)]
    rival = limited("rival", priority=9)
    new = limited("new", priority=8, conflict=Conflict.REPLACE)
    insert(store, rival, new, *crowd, limited("wide", to=7, priority=-1))
    worker.finish(succeeded(a))
    store.promote(10_000)
    assert state(store, "early") in (JobState.READY, JobState.CANCELLED)
    if state(store, "early") is JobState.READY:  # room was seen before the two met
        assert look(store, "early").reason is None
    else:
        assert look(store, "early").reason == "replaced"
    assert [state(store, name) for name in ("rival", "new", "wide")] == [JobState.READY] * 3
    assert leftovers(store) == []


# Numbers.


def test_the_newest_jobs_number_counts_for_all(store: Store, worker: Worker):
    """A deployment that allows more lets the older ones in too."""
    insert(store, *(limited(f"a{number}", to=1) for number in range(4)))
    assert names(worker.claim()) == ["a0"]
    insert(store, limited("b", to=3))
    assert names(worker.claim()) == ["a1", "a2"]


def test_a_smaller_number_of_a_newer_job_counts_too(store: Store, worker: Worker):
    """Who has a permit keeps it; nobody comes in before there is room under the new number."""
    insert(store, *(limited(f"a{number}", to=3) for number in range(6)))
    first = worker.claim()
    insert(store, limited("b", to=1, priority=-1))
    assert worker.exchange(*map(succeeded, first[:2]), limit=5).claims == []
    assert names(worker.exchange(succeeded(first[2]), limit=5).claims) == ["a3"]


def test_an_older_job_that_comes_later_brings_no_number(store: Store, worker: Worker):
    """By its id, not by when it came: a retry of last week changes nothing."""
    insert(store, limited("b", to=2), limited("c", to=2))
    worker.claim()
    insert(store, limited("a", to=9))
    assert worker.claim() == []


def test_a_number_that_makes_room_lets_in_who_was_turned_away_before(store: Store, worker: Worker):
    """Also where both come in the same stroke, with a crowd between them."""
    crowd = [limited(f"crowd {number:04}", "full") for number in range(1_100)]
    store.set_limit("full", 0, "ann", "")
    insert(store, limited("a", priority=9), limited("b", priority=8), limited("c", priority=8))
    insert(store, *crowd, limited("z", to=3, priority=-1))
    store.promote(10_000)
    store.promote(10_000)
    waiting = [name for name, one in states(store).items() if one is JobState.WAITING and not name.startswith("crowd")]
    assert (holders(store), len(waiting)) == (3, 1)


def test_a_number_is_forgotten_when_nobody_uses_it(store: Store, worker: Worker):
    """A key that comes back after a prune has the number of its first job then."""
    insert(store, limited("b", to=5))
    worker.finish(succeeded(worker.claim_one()))
    store.prune(Retention(None, None, None), 10)
    insert(store, limited("a1", to=1), limited("a2", to=1))
    assert names(worker.claim()) == ["a1"]


def test_a_number_set_at_run_time_counts_instead(store: Store, worker: Worker):
    """More, or fewer, than the jobs bring along, for those that wait already and those that come."""
    insert(store, *(limited(f"a{number}", to=2) for number in range(6)))
    store.set_limit("k", 3, "ann", "more paper")
    claims = worker.claim()
    assert len(claims) == 3
    insert(store, limited("b", to=50))
    assert worker.claim() == []
    store.set_limit("k", 1, "ann", "less paper")
    assert worker.exchange(*map(succeeded, claims[:2]), limit=5).claims == []
    assert names(worker.exchange(succeeded(claims[2]), limit=5).claims) == ["a3"]


def test_a_limit_raised_while_all_permits_are_out(store: Store, worker: Worker):
    """The next exchange or promotion admits as many more as fit."""
    insert(store, *(limited(f"a{number}") for number in range(6)))
    worker.claim()
    store.set_limit("k", 3, "ann", "")
    assert store.promote(10).jobs == 2
    assert holders(store) == 3
    store.set_limit("k", 4, "ann", "")
    assert names(worker.claim()) == ["a1", "a2", "a3"]
    assert worker.claim() == []


def test_a_limit_lowered_while_permits_are_out(store: Store, worker: Worker):
    """Nobody loses a permit, and nobody gets one until enough have ended."""
    insert(store, *(limited(f"a{number}", to=4) for number in range(8)))
    claims = worker.claim()
    store.set_limit("k", 2, "ann", "")
    for claim in claims[:2]:
        assert worker.exchange(succeeded(claim), limit=5).claims == []
    assert holders(store) == 2
    assert names(worker.exchange(succeeded(claims[2]), limit=5).claims) == ["a4"]


def test_zero_admits_nobody(store: Store, worker: Worker):
    """Until it is taken back or raised; who has a permit goes on."""
    insert(store, limited("a"))
    a = worker.claim_one()
    store.set_limit("k", 0, "ann", "out of paper")
    insert(store, limited("b"), limited("c"))
    assert worker.exchange(succeeded(a), limit=5).claims == []
    assert store.promote(10).jobs == 0
    assert (holders(store), in_line(store)) == (0, 2)
    store.set_limit("k", None, "ann", "paper is there")
    assert names(worker.claim()) == ["b"]


def test_taking_a_number_back_lets_the_jobs_decide_again(store: Store, worker: Worker):
    """None where nothing was set does nothing."""
    store.set_limit("k", None, "ann", "")
    insert(store, *(limited(f"a{number}", to=2) for number in range(5)))
    store.set_limit("k", 1, "ann", "")
    assert names(worker.claim()) == ["a0"]
    store.set_limit("k", None, "ann", "")
    assert names(worker.claim()) == ["a1"]
    assert worker.claim() == []


def test_a_number_set_before_the_first_job(store: Store, worker: Worker):
    """It waits for its key, and pruning does not forget it."""
    store.set_limit("k", 2, "ann", "")
    store.prune(Retention(0, 0, 0), 10)
    insert(store, *(limited(f"a{number}", to=1) for number in range(5)))
    assert names(worker.claim()) == ["a0", "a1"]


def test_setting_a_limit_is_audited(store: Store, clock: ManualClock):
    """Also taking it back."""
    store.set_limit("k", 2, "ann", "why")
    store.set_limit("k", None, "bob", "")
    assert store.audit() == [
        (clock.now(), "bob", "set_limit", "", 0),
        (clock.now(), "ann", "set_limit", "why", 0),
    ]


# Looking.


def test_limits_are_shown(store: Store, worker: Worker):
    """The keys that are held, waited for or set, in their order, with how many."""
    store.set_limit("set", 7, "ann", "")
    insert(store, *(limited(name, "b", to=2) for name in "abcd"), limited("e", "a"))
    worker.claim()
    assert store.limits() == [
        LimitView("a", None, 1, 0),
        LimitView("b", None, 2, 2),
        LimitView("set", 7, 0, 0),
    ]
    store.set_limit("b", 0, "ann", "")
    worker.finish(*(succeeded(token) for token in store.held(worker.id)))
    assert store.limits() == [LimitView("b", 0, 0, 2), LimitView("set", 7, 0, 0)]


def test_limits_come_in_pages(store: Store, worker: Worker):
    """Behind a key, up to a number."""
    keys = ["b/1", "a/1", "a/2", "c/é", "c/z", "d"]
    insert(store, *(limited(f"{number}", key) for number, key in enumerate(keys)))
    worker.claim()
    pages = []
    after = ""
    while page := store.limits(after, 4):
        pages.append([view.key for view in page])
        after = page[-1].key
    assert pages == [["a/1", "a/2", "b/1", "c/z"], ["c/é", "d"]]


def test_looking_at_limits_changes_nothing(store: Store, worker: Worker):
    """As often as one likes."""
    insert(store, limited("a"), limited("b"))
    worker.claim()
    before = everything(store)
    assert store.limits() == store.limits()
    assert everything(store) == before


# Paused tasks.


def test_a_job_of_a_paused_task_keeps_no_permit(store: Store, worker: Worker):
    """What is held back makes room for others of its key, and needs a permit again afterwards."""
    store.pause("birds.feed", None, "ann", "", kind=Paused.TASK)
    insert(store, limited("a", task="birds.feed"), limited("b"), limited("c"))
    claims = [*worker.claim(), *worker.claim()]
    assert names(claims) == ["b"]
    assert (state(store, "a"), holders(store)) == (JobState.WAITING, 1)
    store.resume("birds.feed", "ann", "", kind=Paused.TASK)
    assert worker.claim() == []
    assert names(worker.exchange(succeeded(claims[0]), limit=5).claims) == ["a"]


# Many at once.


def test_a_limit_holds_while_many_work_at_once(store: Store):
    """Threads that insert, claim, finish, promote and change the number: never more inside than the largest number."""
    workers = [Worker(store, f"worker {number}") for number in range(3)]
    inside: Counter[str] = Counter()
    most: Counter[str] = Counter()
    lock = threading.Lock()
    endings: list[Ending] = [succeeded, failed, retried, released, cancelled]

    def insert_some(seed: int) -> None:
        for number in range(20):
            insert(store, *(limited(f"{seed}-{number}-{key}", key, to=2) for key in "xyz"))

    def work(worker: Worker) -> None:
        outcomes: list[Outcome] = []
        for number in rounds(40, inserting):
            reply = worker.exchange(*outcomes, limit=4)
            assert reply.refused == []
            keys = [name.rpartition("-")[2] for name in names(reply.claims)]
            with lock:
                inside.update(keys)
                for key in keys:
                    most[key] = max(most[key], inside[key])
            outcomes = [endings[(number + n) % 5](claim) for n, claim in enumerate(reply.claims)]
            with lock:
                inside.subtract(keys)
        worker.finish(*outcomes)

    def operate(_: int) -> None:
        for number in range(20):
            store.set_limit("xyz"[number % 3], (1, 2, None)[number % 3], "ann", "")
            store.promote(10)
        for key in "xyz":
            store.set_limit(key, None, "ann", "")

    with ThreadPoolExecutor(6) as threads:
        inserting = [threads.submit(insert_some, seed) for seed in (0, 1)]
        running = [threads.submit(work, worker) for worker in workers]
        running += [threads.submit(operate, 0)]
        for future in inserting + running:
            future.result()
    assert max(most.values()) <= 2
    while claims := workers[0].claim(1_000):
        workers[0].finish(*map(succeeded, claims))
    assert store.limits() == []
    assert all(one.finished for one in states(store).values())
    assert len(states(store)) == 120


def test_a_job_may_bring_several_limits_of_different_sizes(store: Store, worker: Worker):
    """The smallest decides."""

    def wide(name: str, **fields: Any) -> NewJob:
        return NewJob(id_of(name), "t", b"", terms=Terms((Hold("all", 3), Hold(f"one {name[0]}", 1))), **fields)

    insert(store, wide("a1"), wide("a2"), wide("b1"), wide("c1"), wide("d1"))
    claims = worker.claim()
    assert names(claims) == ["a1", "b1", "c1"]
    assert names(worker.exchange(succeeded(claims[1]), limit=5).claims) == ["d1"]
    assert names(worker.exchange(succeeded(claims[0]), limit=5).claims) == ["a2"]
