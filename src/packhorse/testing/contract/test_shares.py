"""Shares take turns: who brings many jobs does not keep out who brings few."""

from collections import Counter

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import JobState, NewJob
from packhorse.stores import Store
from packhorse.stores.contract import Act, Paused
from packhorse.testing.contract.helpers import (
    Worker,
    everything,
    holders,
    insert,
    job,
    limited,
    look,
    lost,
    move,
    names,
    released,
    retried,
    snoozed,
    state,
    states,
    succeeded,
)


def some(share: str, number: int, begin: int = 0, **fields: object) -> list[NewJob]:
    """ann-000, ann-001 and so on."""
    return [job(f"{share}-{begin + n:03}", share=share, **fields) for n in range(number)]


def work(worker: Worker, number: int, **how: object) -> list[str]:
    """Claim so many and finish them; the names of their shares, in order."""
    claims = worker.claim(number, **how)
    worker.finish(*map(succeeded, claims))
    return [name.partition("-")[0] for name in names(claims)]


def test_a_job_of_a_share_waits_for_its_turn(store: Store, worker: Worker):
    """The caller's insert gives no place; a promotion or an exchange does."""
    insert(store, *some("ann", 2))
    assert set(states(store).values()) == {JobState.WAITING}
    assert worker.claim(0) == []
    assert store.promote(10).jobs == 2
    assert set(states(store).values()) == {JobState.READY}
    assert look(store, "ann-000").share == "ann"


def test_shares_take_turns(store: Store, worker: Worker):
    """One each, whoever came first and however many they brought."""
    insert(store, *some("ann", 6), *some("bob", 3), *some("eve", 2))
    rounds = [Counter(work(worker, 3)) for _ in range(2)]
    assert rounds == [{"ann": 1, "bob": 1, "eve": 1}] * 2
    assert Counter(work(worker, 2)) == {"ann": 1, "bob": 1}
    assert work(worker, 5) == ["ann"] * 3


def test_jobs_of_one_share_keep_their_order(store: Store, worker: Worker, clock: ManualClock):
    """Among themselves they go by age."""
    insert(store, job("ann-9", share="ann"), job("bob-9", share="bob"))
    clock.advance(1)
    insert(store, *some("ann", 3), *some("bob", 3))
    order = names(worker.claim())
    assert [name for name in order if name.startswith("ann")] == ["ann-9", "ann-000", "ann-001", "ann-002"]
    assert [name for name in order if name.startswith("bob")] == ["bob-9", "bob-000", "bob-001", "bob-002"]


def test_a_newcomer_stands_with_the_first(store: Store, worker: Worker, clock: ManualClock):
    """Behind a crowd of another share nobody waits for more than a turn."""
    insert(store, *some("big", 700))
    store.promote(1_000)
    assert work(worker, 10) == ["big"] * 10
    clock.advance(1)
    insert(store, *some("small", 3))
    assert Counter(work(worker, 2))["small"] == 1
    assert Counter(work(worker, 4))["small"] == 2


def test_a_second_newcomer_waits_for_nobody_either(store: Store, worker: Worker):
    """Each one new stands with those who are first then."""
    insert(store, *some("big", 50))
    work(worker, 5)
    insert(store, *some("one", 10))
    work(worker, 6)
    insert(store, *some("two", 10))
    assert Counter(work(worker, 9)) == pytest.approx({"big": 3, "one": 3, "two": 3}, abs=1)


def test_weights_give_more_turns(store: Store, worker: Worker):
    """Three where another gets one, while both want them."""
    store.set_weight("ann", 3, "eve", "pays more")
    insert(store, *some("ann", 60), *some("bob", 60))
    assert Counter(work(worker, 40)) == pytest.approx({"ann": 30, "bob": 10}, abs=1)


def test_a_weight_counts_for_those_that_come(store: Store, worker: Worker):
    """It may be changed and taken back at any time."""
    store.set_weight("ann", 9, "eve", "")
    store.set_weight("ann", None, "eve", "")
    store.set_weight("bob", None, "eve", "")
    insert(store, *some("ann", 20), *some("bob", 20))
    assert Counter(work(worker, 20)) == {"ann": 10, "bob": 10}
    store.set_weight("ann", 3, "eve", "")
    insert(store, *some("ann", 60, 100), *some("bob", 60, 100))
    work(worker, 20)
    assert Counter(work(worker, 40)) == pytest.approx({"ann": 30, "bob": 10}, abs=2)


def test_weights_are_shown_and_audited(store: Store, clock: ManualClock):
    """By share, as they were set."""
    assert store.weights() == {}
    store.set_weight("bob", 2, "eve", "why")
    store.set_weight("ann", 1_000, "eve", "")
    assert list(store.weights().items()) == [("ann", 1_000), ("bob", 2)]
    store.set_weight("ann", None, "eve", "")
    assert store.weights() == {"bob": 2}
    assert store.audit() == [
        (clock.now(), "eve", "set_weight", "", 0),
        (clock.now(), "eve", "set_weight", "", 0),
        (clock.now(), "eve", "set_weight", "why", 0),
    ]


def test_looking_at_weights_changes_nothing(store: Store):
    """As often as one likes."""
    store.set_weight("bob", 2, "eve", "why")
    insert(store, *some("bob", 2))
    before = everything(store)
    assert store.weights() == store.weights()
    assert everything(store) == before


def test_who_was_alone_is_not_punished_later(store: Store, worker: Worker, clock: ManualClock):
    """Turns that nobody else wanted are owed to nobody."""
    insert(store, *some("ann", 300))
    assert len(work(worker, 500)) == 300
    clock.advance(0.001)
    insert(store, *some("bob", 20), *some("ann", 20, 500))
    assert Counter(work(worker, 20)) == {"ann": 10, "bob": 10}


def test_turns_are_taken_within_a_priority(store: Store, worker: Worker):
    """A share's turn does not make up for priority."""
    insert(store, *some("ann", 3), *some("bob", 3, priority=5), *some("ann", 2, 50, priority=5))
    first = work(worker, 5)
    assert Counter(first) == {"bob": 3, "ann": 2}
    assert Counter(first[:4]) == {"bob": 2, "ann": 2}
    assert work(worker, 5) == ["ann"] * 3


def test_turns_are_taken_within_a_queue(store: Store, worker: Worker):
    """What a share has had in one queue does not count in another."""
    insert(store, *some("ann", 9, queue="mail"))
    assert len(work(worker, 9, queues="mail")) == 9
    insert(store, *some("ann", 4, 100, queue="report"), *some("bob", 4, queue="report"))
    assert Counter(work(worker, 4, queues="report")) == {"ann": 2, "bob": 2}


def test_jobs_without_a_share_go_by_age(store: Store, worker: Worker, clock: ManualClock):
    """They take no turns, and stand among the others by when they came."""
    insert(store, *some("ann", 3))
    store.promote(10)
    clock.advance(1)
    insert(store, "plain")
    clock.advance(1)
    insert(store, *some("bob", 1))
    order = names(worker.claim())
    assert order[-1] == "plain"
    assert order.index("bob-000") <= 1


@pytest.mark.parametrize("how", ["retried", "snoozed"])
def test_who_comes_back_gets_a_new_turn(store: Store, worker: Worker, clock: ManualClock, how: str):
    """Behind those of its share that stand there, and no further."""
    insert(store, *some("ann", 4), *some("bob", 4))
    claim = next(claim for claim in worker.claim(2) if names([claim]) == ["ann-000"])
    clock.advance(0.1)
    worker.finish(retried(claim) if how == "retried" else snoozed(claim, SECOND))
    clock.advance(1)
    store.promote(10)
    order = names(worker.claim())
    assert [name for name in order if name.startswith("ann")] == ["ann-001", "ann-002", "ann-003", "ann-000"]


@pytest.mark.parametrize("how", [released, lost])
def test_what_is_put_back_keeps_its_turn(store: Store, worker: Worker, how):
    """As if it had never been claimed."""
    insert(store, *some("ann", 3), *some("bob", 3))
    store.promote(10)
    first = worker.claim(3)
    worker.finish(*map(how, first))
    assert names(worker.claim(3)) == names(first)


def test_delayed_jobs_get_their_turn_when_they_are_due(store: Store, worker: Worker, clock: ManualClock):
    """A scheduled job has none."""
    insert(store, *some("ann", 3), *some("bob", 1, delay=SECOND))
    assert look(store, "bob-000").state is JobState.SCHEDULED
    work(worker, 1)
    clock.advance(1)
    store.promote(10)
    assert Counter(work(worker, 2)) == {"ann": 1, "bob": 1}


def test_shares_take_turns_behind_a_limit(store: Store, worker: Worker):
    """A line of a limit is as fair as a queue."""
    insert(store, *(limited(f"ann-{number}", share="ann") for number in range(8)))
    claim = worker.claim_one()
    insert(store, *(limited(f"bob-{number}", share="bob") for number in range(3)))
    order: list[str] = []
    while claims := worker.exchange(succeeded(claim), limit=5).claims:
        [claim] = claims
        assert holders(store) == 1
        order += names(claims)
    assert sorted(order) == [*(f"ann-{number}" for number in range(1, 8)), *(f"bob-{number}" for number in range(3))]
    assert order.index("bob-0") <= 1
    assert order.index("bob-2") <= 5


def test_another_queue_before_its_turn(store: Store, worker: Worker):
    """A job that was moved before it had a place takes its turn in its new queue."""
    insert(store, *some("ann", 3), *some("bob", 3, queue="mail"))
    move(store, Act.CHANGE, "ann-000", queue="mail")
    assert Counter(work(worker, 2, queues="mail")) == {"ann": 1, "bob": 1}
    assert Counter(work(worker, 5)) == {"ann": 2, "bob": 2}


@pytest.mark.parametrize("act", [Act.CANCEL, Act.DISCARD])
def test_a_job_may_end_before_its_turn(store: Store, worker: Worker, act: Act):
    """The others take theirs."""
    insert(store, *some("ann", 2), *some("bob", 1))
    assert move(store, act, "ann-000").jobs == 1
    assert sorted(work(worker, 5)) == ["ann", "bob"]


def test_a_paused_task_and_its_shares(store: Store, worker: Worker):
    """Held back, they let others have their turns; afterwards they go on."""
    store.pause("birds.feed", None, "eve", "", kind=Paused.TASK)
    insert(store, *some("ann", 3, task="birds.feed"), *some("bob", 3))
    assert work(worker, 10) == ["bob"] * 3
    assert state(store, "ann-000") is JobState.WAITING
    store.resume("birds.feed", "eve", "", kind=Paused.TASK)
    assert work(worker, 10) == ["ann"] * 3


def test_many_shares(store: Store, worker: Worker):
    """As many as there are, each gets one before any gets two."""
    for number in range(120):
        insert(store, *some(f"s{number}", 1 + number % 3))
    store.promote(1_000)
    store.promote(1_000)
    assert len(set(work(worker, 120))) == 120
    assert len(work(worker, 500)) == 120
