"""Ageing: waiting makes up for priority, so that nobody waits for good."""

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.stores.contract import Act
from packhorse.testing.contract.helpers import (
    Worker,
    insert,
    job,
    limited,
    look,
    lost,
    move,
    names,
    released,
    retried,
    succeeded,
)

TEN = 10 * SECOND  # of waiting for a point of priority


def test_a_job_of_low_priority_overtakes_in_time(store: Store, steady: Worker, clock: ManualClock):
    """Fifty seconds of waiting make up for five points: not for those before, but for those after."""
    insert(store, job("low", priority=-5, ageing=TEN))
    clock.advance(49.999_999)
    insert(store, job("before", ageing=TEN))
    clock.advance(0.000_002)
    insert(store, job("after", ageing=TEN))
    assert names(steady.claim()) == ["before", "low", "after"]


def test_a_job_of_high_priority_goes_first_for_so_long(store: Store, steady: Worker, clock: ManualClock):
    """The other direction: five points are worth fifty seconds."""
    insert(store, job("a", ageing=TEN), job("b", ageing=TEN))
    clock.advance(49)
    insert(store, job("high", priority=5, ageing=TEN))
    clock.advance(2)
    insert(store, job("late", priority=5, ageing=TEN))
    assert names(steady.claim()) == ["high", "a", "b", "late"]


def test_without_ageing_priority_is_strict(store: Store, steady: Worker, clock: ManualClock):
    """However long a job waits."""
    insert(store, job("low", priority=-1))
    clock.advance(1_000_000)
    insert(store, job("high"))
    assert names(steady.claim()) == ["high", "low"]


@pytest.mark.parametrize("priority", [-100, -1, 0, 1, 100])
def test_the_priority_is_shown_as_it_was_given(store: Store, steady: Worker, priority: int):
    """Whatever it does to the order: in every view and in the claim."""
    insert(store, job("a", priority=priority, ageing=TEN))
    assert look(store, "a").priority == priority
    assert steady.claim_one().priority == priority
    assert look(store, "a").priority == priority


def test_delayed_jobs_age_from_when_they_are_due(store: Store, steady: Worker, clock: ManualClock):
    """Not from their enqueueing."""
    insert(store, job("low", priority=-1, ageing=TEN, delay=60 * SECOND))
    clock.advance(60)
    store.promote(10)
    insert(store, job("high", ageing=TEN))
    clock.advance(11)
    insert(store, job("late", ageing=TEN))
    assert names(steady.claim()) == ["high", "low", "late"]


def test_a_promotion_that_comes_late_takes_nothing_from_its_age(store: Store, steady: Worker, clock: ManualClock):
    """It counts from the moment it was due, not from when somebody looked."""
    insert(store, job("low", priority=-1, ageing=TEN, delay=SECOND))
    clock.advance(30)
    insert(store, job("high", ageing=TEN))
    store.promote(10)
    assert names(steady.claim()) == ["low", "high"]


@pytest.mark.parametrize("how", [released, lost])
def test_what_is_put_back_keeps_its_age(store: Store, steady: Worker, clock: ManualClock, how):
    """As if it had never been claimed."""
    insert(store, job("low", priority=-1, ageing=TEN))
    claim = steady.claim_one()
    clock.advance(11)
    insert(store, job("high", ageing=TEN))
    steady.finish(how(claim))
    assert names(steady.claim()) == ["low", "high"]


def test_a_retry_begins_to_age_anew(store: Store, steady: Worker, clock: ManualClock):
    """From when it is due again."""
    insert(store, job("low", priority=-1, ageing=TEN))
    claim = steady.claim_one()
    clock.advance(11)
    insert(store, job("high", ageing=TEN))
    steady.finish(retried(claim))
    assert names(steady.claim()) == ["high", "low"]


@pytest.mark.parametrize("act", [Act.RETRY, Act.RUN_NOW])
def test_an_operators_retry_begins_to_age_anew(store: Store, steady: Worker, clock: ManualClock, act: Act):
    """Also where one is made to run before its time."""
    insert(store, job("low", priority=-1, ageing=TEN, delay=3_600 * SECOND))
    if act is Act.RETRY:
        move(store, Act.CANCEL, "low")
    clock.advance(100)
    assert move(store, act, "low").jobs == 1
    clock.advance(9)
    insert(store, job("high", ageing=TEN))
    clock.advance(2)
    insert(store, job("late", ageing=TEN))
    assert names(steady.claim()) == ["high", "low", "late"]


def test_another_priority_gives_another_age(store: Store, steady: Worker, clock: ManualClock):
    """As if it had had it from the beginning."""
    insert(store, job("a", ageing=TEN), job("b", ageing=TEN, priority=1))
    clock.advance(5)
    insert(store, job("c", ageing=TEN))
    move(store, Act.CHANGE, "a", priority=3)
    move(store, Act.CHANGE, "b", priority=-1)
    assert look(store, "a").priority == 3
    assert names(steady.claim()) == ["a", "c", "b"]


def test_another_priority_before_it_is_due(store: Store, steady: Worker, clock: ManualClock):
    """A scheduled job takes it along."""
    insert(store, job("a", ageing=TEN, delay=SECOND), job("b", ageing=TEN, delay=SECOND))
    move(store, Act.CHANGE, "b", priority=1)
    clock.advance(1)
    store.promote(10)
    assert names(steady.claim()) == ["b", "a"]


def test_another_queue_changes_no_age(store: Store, steady: Worker):
    """Only where it stands."""
    insert(store, job("a", ageing=TEN, priority=1, queue="mail"), job("b", ageing=TEN))
    move(store, Act.CHANGE, "a", queue="default")
    assert names(steady.claim(queues="default")) == ["a", "b"]


def test_jobs_wait_for_permits_by_age_too(store: Store, steady: Worker, clock: ManualClock):
    """The line of a limit has the same order."""
    insert(store, limited("run"))
    claim = steady.claim_one()
    insert(store, limited("low", priority=-1, ageing=TEN))
    clock.advance(5)
    insert(store, limited("mid", ageing=TEN))
    clock.advance(6)
    insert(store, limited("late", ageing=TEN))
    order = []
    while claims := steady.exchange(succeeded(claim), limit=5).claims:
        [claim] = claims
        order += names(claims)
    assert order == ["mid", "low", "late"]


def test_a_priority_is_changed_in_the_line_too(store: Store, steady: Worker, clock: ManualClock):
    """It moves up by as much as it would have stood ahead."""
    insert(store, limited("run"))
    run = steady.claim_one()
    insert(store, limited("a", ageing=TEN))
    clock.advance(5)
    insert(store, limited("b", ageing=TEN))
    store.promote(10)
    move(store, Act.CHANGE, "b", priority=1)
    assert names(steady.exchange(succeeded(run), limit=5).claims) == ["b"]


def test_a_share_does_not_age(store: Store, steady: Worker, clock: ManualClock):
    """Its turns are taken within a priority, and its order key says nothing of age."""
    insert(store, job("low", priority=-1, share="ann", ageing=TEN))
    store.promote(10)
    clock.advance(1_000)
    insert(store, job("high", share="ann", ageing=TEN))
    assert names(steady.claim()) == ["high", "low"]


def test_who_ages_beside_who_does_not(store: Store, steady: Worker, clock: ManualClock):
    """It stands at priority 0, by its age; strict priorities stay above and below that."""
    insert(store, job("aged", priority=50, ageing=TEN), job("strict", priority=1), job("last", priority=-1))
    clock.advance(1)
    insert(store, "plain")
    assert names(steady.claim()) == ["strict", "aged", "plain", "last"]
    assert look(store, "aged").state is JobState.RUNNING
