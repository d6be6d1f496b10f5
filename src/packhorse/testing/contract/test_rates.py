"""Rates: so many beginnings in a time, spread evenly, and not one more."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import JobState
from packhorse.limits import CATCH_UP, Pace
from packhorse.stores import Store
from packhorse.stores.contract import Act, Paused, RateView, Retention
from packhorse.testing.contract.helpers import (
    Worker,
    everything,
    failed,
    holders,
    insert,
    job,
    limited,
    lost,
    move,
    names,
    rated,
    released,
    retried,
    state,
    states,
    succeeded,
)

FOUR = Pace("k", 4, SECOND)  # one every 250 ms
SLOW = Pace("k", 1, 60 * SECOND)
HURRIED = Pace("k", 1, SECOND, 3)  # three at once


def crowd(pace: Pace, size: int) -> list:
    return [rated(f"{number:04}", pace) for number in range(size)]


# Beginnings.


def test_a_rated_job_waits_for_its_admission(store: Store, steady: Worker):
    """The caller's insert decides nothing; a promotion or an exchange does."""
    insert(store, rated("a", FOUR), rated("b", FOUR))
    assert states(store) == {"a": JobState.WAITING, "b": JobState.WAITING}
    assert store.promote(10).jobs == 1
    assert states(store) == {"a": JobState.READY, "b": JobState.WAITING}
    assert names(steady.claim()) == ["a"]
    assert steady.claim() == []


def test_a_rate_spreads_beginnings_evenly(store: Store, steady: Worker, clock: ManualClock):
    """One every quarter of a second, to the microsecond."""
    insert(store, *crowd(FOUR, 6))
    assert names(steady.claim()) == ["0000"]
    for number in range(1, 6):
        clock.advance(0.249_999)
        assert steady.claim() == []
        clock.advance(0.000_001)
        assert names(steady.claim()) == [f"{number:04}"]


def test_a_burst_begins_at_once_after_a_quiet_time(store: Store, steady: Worker, clock: ManualClock):
    """Then one by one, until it was quiet long enough again."""
    insert(store, *crowd(HURRIED, 5))
    assert len(steady.claim()) == 3
    assert steady.claim() == []
    clock.advance(1)
    assert len(steady.claim()) == 1
    clock.advance(1)
    assert len(steady.claim()) == 1
    clock.advance(2)
    insert(store, *(rated(f"later {number}", HURRIED) for number in range(5)))
    assert len(steady.claim()) == 2
    assert steady.claim() == []


@pytest.mark.parametrize(
    "pace", [Pace("k", 7, SECOND), Pace("k", 3, 2 * SECOND, 2), Pace("k", 90, 60 * SECOND)], ids=str
)
def test_a_rate_is_exact_over_time(store: Store, steady: Worker, clock: ManualClock, pace: Pace):
    """However unevenly it is looked at, as long as that is often: no token is lost, and none is given twice."""
    insert(store, *crowd(pace, 200))
    done = len(steady.claim(1_000))
    seconds = 0.0
    for step in range(200):
        length = 0.1 + step % 7 * 0.011_111
        clock.advance(length)
        seconds += round(length * SECOND) / SECOND
        done += len(steady.claim(1_000))
    assert done == pace.burst + int(seconds * SECOND * pace.tokens // pace.period)


def test_keys_have_their_own_rate(store: Store, steady: Worker):
    """One that is used up holds up nobody of another."""
    slow = Pace("other", 1, 60 * SECOND)
    insert(store, rated("a", SLOW), rated("b", SLOW), rated("c", slow), rated("d", slow), "e")
    assert names(steady.claim()) == ["a", "c", "e"]


def test_several_rates_must_all_have_a_token(store: Store, steady: Worker):
    """And who waits for one takes none of the other."""
    ann, all_together = Pace("ann", 1, 60 * SECOND), Pace("all", 3, 60 * SECOND, 3)
    bob = Pace("bob", 1, 60 * SECOND)
    insert(store, *(rated(f"a{number}", ann, all_together) for number in range(4)))
    insert(store, *(rated(f"b{number}", bob, all_together) for number in range(4)), rated("c", all_together))
    assert sorted(names([*steady.claim(), *steady.claim()])) == ["a0", "b0", "c"]
    assert steady.claim() == []


def test_the_first_in_line_gets_the_token(store: Store, steady: Worker, clock: ManualClock):
    """By priority, then age."""
    insert(store, rated("first", SLOW))
    steady.claim()
    insert(store, rated("a", SLOW), rated("b", SLOW, priority=1))
    store.promote(10)
    clock.advance(60)
    assert names(steady.claim()) == ["b"]
    clock.advance(60)
    assert names(steady.claim()) == ["a"]


def test_delayed_jobs_wait_for_a_token_when_they_are_due(store: Store, steady: Worker, clock: ManualClock):
    """A scheduled job takes none."""
    insert(store, rated("a", SLOW, delay=SECOND), rated("b", SLOW))
    assert names(steady.claim()) == ["b"]
    clock.advance(1)
    store.promote(10)
    assert (state(store, "a"), steady.claim()) == (JobState.WAITING, [])
    clock.advance(59)
    assert names(steady.claim()) == ["a"]


def test_what_is_put_back_needs_no_other_token(store: Store, steady: Worker):
    """It has begun once; that is what the rate counted."""
    insert(store, rated("a", SLOW), rated("b", SLOW))
    steady.finish(released(steady.claim_one()))
    assert state(store, "a") is JobState.READY
    [again] = steady.claim()
    steady.finish(lost(again))
    assert names(steady.claim()) == ["a"]


@pytest.mark.parametrize("ending", [retried, lambda claim: retried(claim, SECOND)], ids=["now", "later"])
def test_a_retry_needs_another_token(store: Store, steady: Worker, clock: ManualClock, ending: Callable):
    """It begins again, and others wait too."""
    insert(store, rated("a", SLOW))
    steady.finish(ending(steady.claim_one()))
    clock.advance(1)
    store.promote(10)
    assert (state(store, "a"), steady.claim()) == (JobState.WAITING, [])
    clock.advance(59)
    assert names(steady.claim()) == ["a"]


def test_a_job_that_is_retried_by_hand_needs_another_token(store: Store, steady: Worker, clock: ManualClock):
    """An operator's wish does not lift a rate."""
    insert(store, rated("a", SLOW))
    steady.finish(failed(steady.claim_one()))
    move(store, Act.RETRY, "a")
    assert steady.claim() == []
    clock.advance(60)
    assert names(steady.claim()) == ["a"]


def test_an_end_gives_no_token_back(store: Store, steady: Worker):
    """A rate counts beginnings, not who is inside."""
    insert(store, rated("a", SLOW), rated("b", SLOW))
    assert steady.exchange(succeeded(steady.claim_one()), limit=5).claims == []


# Tokens that nobody takes.


def test_tokens_do_not_pile_up_while_nobody_works(store: Store, steady: Worker, clock: ManualClock):
    """However long a dispatcher goes on alone: no more are admitted than a second gives, or a burst."""
    insert(store, *crowd(FOUR, 100))
    for _ in range(200):
        clock.advance(1)
        store.promote(1_000)
    assert list(states(store).values()).count(JobState.READY) == FOUR.depth == 4
    assert len(steady.claim(100)) == 4


def test_tokens_do_not_pile_up_while_nobody_asks(store: Store, steady: Worker, clock: ManualClock):
    """After a quiet hour a rate without a burst gives one."""
    insert(store, rated("a", FOUR))
    steady.claim()
    clock.advance(3_600)
    insert(store, *(rated(f"b{number}", FOUR) for number in range(50)))
    assert len([*steady.claim(), *steady.claim(), *steady.claim()]) == 1


def test_catching_up_is_bounded(store: Store, steady: Worker, clock: ManualClock):
    """Who waited while nobody looked gets the tokens of the last second, and no more."""
    insert(store, *crowd(FOUR, 100))
    steady.claim()
    clock.advance(3_600)
    caught_up = 0
    while claims := steady.claim(100):
        caught_up += len(claims)
    assert CATCH_UP == SECOND
    assert 4 <= caught_up <= 4 + FOUR.burst
    clock.advance(0.25)
    assert len(steady.claim(100)) == 1


def test_a_short_delay_loses_no_token(store: Store, steady: Worker, clock: ManualClock):
    """Looked at half a second late, the rate makes up for it."""
    insert(store, *crowd(FOUR, 20))
    steady.claim()
    clock.advance(0.5)
    assert len(steady.claim(100)) == 2
    clock.advance(0.375)
    assert len(steady.claim(100)) == 1
    clock.advance(0.125)
    assert len(steady.claim(100)) == 1


ENDING_EARLY: dict[str, Callable[[Store, Worker], object]] = {
    "cancelled": lambda store, _: move(store, Act.CANCEL, "a"),
    "discarded": lambda store, _: move(store, Act.DISCARD, "a"),
    "held back with its task": lambda store, steady: (
        store.pause("birds.feed", None, "ann", "", kind=Paused.TASK),
        steady.claim(),
    ),
}


@pytest.mark.parametrize("end", ENDING_EARLY.values(), ids=ENDING_EARLY.keys())
def test_a_ready_job_that_never_begins_lets_another_have_its_turn(
    store: Store, steady: Worker, clock: ManualClock, end: Callable[[Store, Worker], object]
):
    """Only so many may be ready and not begun; one that ends so is not counted any more."""
    insert(store, rated("a", SLOW, task="birds.feed"), rated("b", SLOW))
    store.promote(10)
    clock.advance(120)
    store.promote(10)
    assert state(store, "b") is JobState.WAITING, "one is ready already, and has not begun"
    end(store, steady)
    assert names(steady.claim()) == ["b"]


def test_a_job_of_a_paused_task_needs_a_token_again(store: Store, steady: Worker, clock: ManualClock):
    """It was let in and did not begin; when its task goes on it waits its turn."""
    store.pause("birds.feed", None, "ann", "", kind=Paused.TASK)
    insert(store, rated("a", SLOW, task="birds.feed"))
    assert steady.claim() == []
    store.resume("birds.feed", "ann", "", kind=Paused.TASK)
    assert steady.claim() == []
    clock.advance(60)
    assert names(steady.claim()) == ["a"]


# When to look again.


def test_the_next_token_is_what_is_due_next(store: Store, steady: Worker, clock: ManualClock):
    """So that a dispatcher knows how long to sleep."""
    insert(store, *crowd(SLOW, 3))
    steady.claim()
    assert store.promote(10) == (0, 60 * SECOND)
    clock.advance(59)
    assert store.promote(10) == (0, SECOND)
    insert(store, job("soon", delay=SECOND // 2))
    assert store.promote(10) == (0, SECOND // 2)
    clock.advance(1)
    assert store.promote(10).jobs > 0
    assert state(store, "0001") is JobState.READY


def test_nobody_waits_for_a_token_so_nothing_is_due(store: Store, steady: Worker):
    """A used-up rate alone is no reason to look again."""
    insert(store, rated("a", SLOW))
    steady.claim()
    assert store.promote(10).next_due is None


def test_a_token_that_is_there_wakes_nobody_where_no_ticket_is_left(store: Store, clock: ManualClock):
    """Those admitted must begin first: until then no look brings anything."""
    insert(store, *crowd(SLOW, 3))
    store.promote(10)
    clock.advance(600)
    assert store.promote(10) == (0, None)


# Numbers.


def test_the_newest_jobs_rate_counts_for_all(store: Store, steady: Worker, clock: ManualClock):
    """A deployment with another rate is not read two ways."""
    insert(store, *(rated(f"a{number}", SLOW) for number in range(6)))
    steady.claim()
    insert(store, rated("b", FOUR, priority=-1))
    steady.claim()
    clock.advance(60)
    assert store.rates()[0].pace == FOUR
    before = len([*steady.claim(), *steady.claim()])
    clock.advance(0.25)
    assert len(steady.claim()) == 1
    assert before >= 1


def test_an_older_job_that_comes_later_brings_no_rate(store: Store, steady: Worker):
    """By its id."""
    insert(store, rated("b", SLOW))
    steady.claim()
    insert(store, rated("a", Pace("k", 1_000, SECOND, 1_000)))
    assert steady.claim() == []
    assert store.rates()[0].pace == SLOW


def test_what_was_used_up_stays_so_under_another_rate(store: Store, steady: Worker, clock: ManualClock):
    """In time: a minute to wait is a minute to wait."""
    insert(store, rated("a", SLOW))
    steady.claim()
    insert(store, rated("b", FOUR))
    assert steady.claim() == []
    clock.advance(59.9)
    assert steady.claim() == []
    clock.advance(0.1)
    assert names(steady.claim()) == ["b"]


# Tokens for the taking.


def test_tokens_are_taken_one_after_the_other(store: Store, clock: ManualClock):
    """Each says after how long it counts."""
    assert [store.take_token(FOUR, SECOND) for _ in range(4)] == [0, 250_000, 500_000, 750_000]
    clock.advance(0.75)
    assert store.take_token(FOUR, 0) is None
    clock.advance(0.25)
    assert store.take_token(FOUR, 0) == 0


def test_a_burst_of_tokens(store: Store, clock: ManualClock):
    """Three are there at once, then one a second."""
    assert [store.take_token(HURRIED, 10 * SECOND) for _ in range(5)] == [0, 0, 0, SECOND, 2 * SECOND]


def test_who_is_impatient_takes_nothing(store: Store):
    """However often it asks, the next one waits no longer for that."""
    assert store.take_token(SLOW, 0) == 0
    assert [store.take_token(SLOW, 59_999_999) for _ in range(5)] == [None] * 5
    assert store.take_token(SLOW, 60 * SECOND) == 60 * SECOND


def test_jobs_and_takers_share_a_rate(store: Store, steady: Worker, clock: ManualClock):
    """A token that a task took is gone for the jobs, and the other way round."""
    assert store.take_token(SLOW, 0) == 0
    insert(store, rated("a", SLOW))
    assert steady.claim() == []
    clock.advance(60)
    assert names(steady.claim()) == ["a"]
    assert store.take_token(SLOW, 0) is None


def test_who_takes_brings_the_rate_along(store: Store):
    """The numbers of the call count from then on."""
    store.take_token(SLOW, 0)
    assert store.take_token(Pace("k", 2, 60 * SECOND), 60 * SECOND) == 60 * SECOND
    assert store.take_token(Pace("k", 2, 60 * SECOND), 90 * SECOND) == 90 * SECOND


def test_many_takers_at_once(store: Store):
    """Exactly as many tokens as there are, each to one."""
    pace = Pace("k", 10, SECOND, 7)
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda _: store.take_token(pace, SECOND), range(40)))
    expected = [0] * 7 + [100_000 * number for number in range(1, 11)]
    assert Counter(taken) == Counter([*expected, *[None] * 23])


# Rates and limits.


def test_who_waits_for_a_permit_takes_no_token(store: Store, steady: Worker):
    """A token is taken when all is there."""
    insert(store, limited("a", "room"))
    steady.claim()
    insert(store, limited("b", "room", paces=[SLOW]), rated("c", SLOW))
    assert names(steady.claim()) == ["c"]


def test_who_waits_for_a_token_has_no_permit(store: Store, steady: Worker, clock: ManualClock):
    """Others of the key pass."""
    insert(store, rated("a", SLOW))
    steady.claim()
    insert(store, limited("b", "room", paces=[SLOW]), limited("c", "room"))
    c = steady.claim_one()
    assert names([c]) == ["c"]
    clock.advance(60)
    assert steady.claim() == []
    assert holders(store, "room") == 1
    assert names(steady.exchange(succeeded(c), limit=5).claims) == ["b"]


# Looking.


def test_rates_are_shown(store: Store, steady: Worker, clock: ManualClock):
    """In how long the next token is there, and how many wait for it; in their order, in pages."""
    insert(store, *(rated(f"a{number}", SLOW) for number in range(3)), rated("b", Pace("a", 4, SECOND)))
    steady.claim()
    clock.advance(10)
    assert store.rates() == [
        RateView("a", Pace("a", 4, SECOND), 0, 0),
        RateView("k", SLOW, 50 * SECOND, 2),
    ]
    assert [view.key for view in store.rates("a")] == ["k"]
    assert [view.key for view in store.rates(limit=1)] == ["a"]


def test_looking_at_rates_changes_nothing(store: Store, steady: Worker):
    """As often as one likes."""
    insert(store, *crowd(SLOW, 3))
    steady.claim()
    before = everything(store)
    assert store.rates() == store.rates()
    assert everything(store) == before


def test_a_rate_is_forgotten_when_nobody_uses_it(store: Store, steady: Worker, clock: ManualClock):
    """When all its tokens are back and nobody waits, pruning forgets it, at the latest a period later."""
    insert(store, *crowd(SLOW, 2))
    steady.claim()
    keep = Retention(None, None, None)
    clock.advance(60)
    store.prune(keep, 10)
    assert len(store.rates()) == 1, "somebody waits"
    steady.finish(*(succeeded(claim) for claim in steady.claim()))
    clock.advance(59.999_999)
    store.prune(keep, 10)
    assert len(store.rates()) == 1, "it is used up"
    clock.advance(60.000_001)
    store.prune(keep, 10)
    assert store.rates() == []
