"""Signals: who awaits one is due when it comes, whichever of the two was first."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import Claim, JobState, Token
from packhorse.limits import Hold, Terms
from packhorse.outcome import Awaits, Outcome
from packhorse.stores import Store
from packhorse.stores.contract import SIGNAL, Act, Entry, Retention, Signal, Waiter, signal_entry
from packhorse.testing.contract.helpers import (
    Worker,
    id_of,
    insert,
    job,
    look,
    lost,
    move,
    name_of,
    names,
    now,
    retried,
    state,
    states,
    succeeded,
)

HOUR = 3_600 * SECOND
EVERYTHING = Retention(None, None, None)


def awaiting(claim: Claim | Token, signal: str = "go", after: int = 0, delay: int = HOUR) -> Outcome:
    token = claim.token if isinstance(claim, Claim) else claim
    return Outcome(token, JobState.SCHEDULED, spent=False, delay=delay, awaits=Awaits(signal, after))


def let_wait(store: Store, worker: Worker, *jobs: str, signal: str = "go") -> None:
    """Insert them, and let them await the signal."""
    insert(store, *jobs)
    assert worker.finish(*(awaiting(claim, signal) for claim in worker.claim())) == []


def waiting(store: Store) -> list[tuple[str, str]]:
    return [(it.signal, name_of(it.id)) for it in store.waiters()]


def got(store: Store, name: str) -> list[bytes]:
    return [entry.data for entry in store.entries(id_of(name)) if entry.kind == SIGNAL]


def test_who_awaits_a_signal_is_scheduled(store: Store, worker: Worker, clock: ManualClock):
    """With the timeout as its time, no attempt spent, and everybody sees what it awaits."""
    let_wait(store, worker, "a")
    found = look(store, "a")
    assert (found.state, found.attempts, found.awaits) == (JobState.SCHEDULED, 0, "go")
    assert found.run_at == now(clock, plus=3_600)
    assert waiting(store) == [("go", "a")]
    assert store.promote(10).jobs == 0


def test_a_signal_makes_them_due(store: Store, worker: Worker, clock: ManualClock):
    """All who await that name, none who awaits another, each with the signal as an entry."""
    let_wait(store, worker, "a", "b")
    let_wait(store, worker, "c", signal="come")
    clock.advance(5)
    assert store.signal("go", b"\0data", HOUR) == 2
    assert states(store) == {"a": JobState.READY, "b": JobState.READY, "c": JobState.SCHEDULED}
    assert [look(store, name).awaits for name in "abc"] == [None, None, "come"]
    assert waiting(store) == [("come", "c")]
    assert [got(store, name) for name in "abc"] == [[b"\0data"], [b"\0data"], []]
    insert(store, "d")
    clock.advance(1)
    assert names(worker.claim()) == ["a", "b", "d"]


def test_a_signal_without_anybody_to_wait(store: Store):
    """It is kept for those who come, in the order they came."""
    assert store.signal("go", b"1", HOUR) == 0
    assert store.signal("come", b"x", HOUR) == 0
    assert store.signal("go", b"2", HOUR) == 0
    first, second = store.signals("go")
    assert (first.data, second.data, first.name) == (b"1", b"2", "go")
    assert 0 < first.n < second.n
    assert store.signals("go", first.n) == [second]
    assert store.signals("go", limit=1) == [first]
    assert store.signals("go", second.n) == store.signals("gone") == store.signals("g") == []


def test_a_signal_that_was_first(store: Store, worker: Worker):
    """Who comes to await it is due at once, with its entry: none is missed between the look and the sleep."""
    insert(store, "a")
    claim = worker.claim_one()
    store.signal("go", b"1", HOUR)
    [signal] = store.signals("go")
    assert worker.finish(awaiting(claim)) == []
    assert (state(store, "a"), look(store, "a").awaits, waiting(store)) == (JobState.READY, None, [])
    assert store.entries(id_of("a")) == [Entry(SIGNAL, signal_entry("go", signal.n), b"1")]


def test_only_a_signal_behind_the_last(store: Store, worker: Worker):
    """A job that had one awaits the next; where there are several, it gets the first of them."""
    for data in (b"1", b"2", b"3"):
        store.signal("go", data, HOUR)
    first, second, third = store.signals("go")
    insert(store, "a")
    worker.finish(awaiting(worker.claim_one(), after=first.n))
    assert got(store, "a") == [second.data]
    worker.finish(awaiting(worker.claim_one(), after=third.n))
    assert (state(store, "a"), got(store, "a")) == (JobState.SCHEDULED, [second.data])
    store.signal("go", b"4", HOUR)
    assert (state(store, "a"), got(store, "a")) == (JobState.READY, [b"2", b"4"])


def test_an_exchange_gives_and_takes_at_once(store: Store, worker: Worker):
    """A job that is due at once may be claimed by the same exchange."""
    insert(store, "a")
    claim = worker.claim_one()
    store.signal("go", b"1", HOUR)
    assert names(worker.exchange(awaiting(claim), limit=1).claims) == ["a"]


def test_the_timeout(store: Store, worker: Worker, clock: ManualClock):
    """Whose time has come awaits nothing any more, and gets no signal that comes later."""
    let_wait(store, worker, "a")
    clock.advance(3_600)
    assert store.promote(10).jobs == 1
    assert (state(store, "a"), look(store, "a").awaits, waiting(store)) == (JobState.READY, None, [])
    assert store.signal("go", b"1", HOUR) == 0
    assert got(store, "a") == []


def test_an_outcome_without_a_delay_awaits_nothing(store: Store, worker: Worker):
    """It is due anyway."""
    insert(store, "a")
    worker.finish(awaiting(worker.claim_one(), delay=0))
    assert (state(store, "a"), waiting(store)) == (JobState.READY, [])


def test_a_refused_outcome_awaits_nothing(store: Store, worker: Worker, other: Worker):
    """A late worker cannot make a job wait, nor give it a signal."""
    insert(store, "a", "b")
    claim, beside = worker.claim()
    worker.finish(retried(claim))
    again = other.claim_one()
    assert worker.finish(awaiting(claim), awaiting(beside, "come")) == [claim.token]
    assert waiting(store) == [("come", "b")]
    store.signal("go", b"1", HOUR)
    assert worker.finish(awaiting(claim)) == [claim.token]
    assert (got(store, "a"), other.finish(succeeded(again))) == ([], [])


def test_a_job_whose_end_was_asked_for_does_not_wait(store: Store, worker: Worker):
    """It ends cancelled, as with any other put-back."""
    insert(store, "a")
    claim = worker.claim_one()
    move(store, Act.CANCEL, "a")
    worker.finish(awaiting(claim))
    assert (state(store, "a"), look(store, "a").awaits, waiting(store)) == (JobState.CANCELLED, None, [])


@pytest.mark.parametrize("act", [Act.CANCEL, Act.DISCARD, Act.RUN_NOW])
def test_acts_end_the_waiting(store: Store, worker: Worker, act: Act):
    """Nobody is left behind among those who wait, also after a retry of what was cancelled."""
    let_wait(store, worker, "a", "b")
    move(store, act, "a")
    assert waiting(store) == [("go", "b")]
    assert store.signal("go", b"1", HOUR) == 1
    if act is Act.CANCEL:
        assert state(store, "a") is JobState.CANCELLED
        move(store, Act.RETRY, "a")
        assert (state(store, "a"), waiting(store)) == (JobState.READY, [])
    assert got(store, "a") == []


def test_a_change_goes_on_waiting(store: Store, worker: Worker):
    """Another queue or priority is no reason to wake."""
    let_wait(store, worker, "a")
    move(store, Act.CHANGE, "a", queue="mail", priority=5)
    assert waiting(store) == [("go", "a")]
    assert store.signal("go", b"1", HOUR) == 1
    assert names(worker.claim(queues="mail")) == ["a"]


def test_the_signal_outlives_attempts_and_losses(store: Store, worker: Worker, clock: ManualClock):
    """What a job got it keeps, however its attempts end, also when the signal itself is gone."""
    let_wait(store, worker, "a")
    store.signal("go", b"1", 0)
    worker.finish(lost(worker.claim_one()))
    worker.finish(retried(worker.claim_one()))
    clock.advance(1)
    store.prune(EVERYTHING, 10)
    assert store.signals("go") == []
    assert got(store, "a") == [b"1"]


def test_a_woken_job_goes_by_the_same_door(store: Store, worker: Worker):
    """One with limits waits for its permit like any other that is due."""
    terms = Terms(holds=(Hold("printer/", 1),))
    insert(store, job("a", terms=terms), job("b", terms=terms))
    worker.finish(awaiting(worker.claim_one()))
    [b] = worker.claim()
    store.signal("go", b"1", HOUR)
    assert (worker.claim(), state(store, "a")) == ([], JobState.WAITING)
    assert names(worker.exchange(succeeded(b), limit=5).claims) == ["a"]


def test_signals_are_pruned_when_their_time_is_over(store: Store, clock: ManualClock):
    """Those first whose time was over first, and a number is never given again."""
    for keep, data in ((3, b"1"), (2, b"2"), (9, b"3")):
        store.signal("go", data, keep * SECOND)
    last = store.signals("go")[-1].n
    assert store.prune(EVERYTHING, 10) == 0
    clock.advance(3)
    assert store.prune(EVERYTHING, 1) == 1
    clock.step(-3)
    assert [signal.data for signal in store.signals("go")] == [b"1", b"3"]
    clock.step(3)
    assert store.prune(EVERYTHING, 10) == 1
    clock.advance(9)
    assert store.prune(EVERYTHING, 10) == 1
    assert store.signals("go") == []
    store.signal("go", b"4", HOUR)
    [signal] = store.signals("go")
    assert signal > Signal(last, "go", b"")


def test_pages_of_waiters(store: Store, worker: Worker):
    """In the order of names and ids, each once."""
    let_wait(store, worker, "b", "a", signal="x")
    let_wait(store, worker, "c", signal="go")
    pages, after = [], Waiter("", b"")
    while page := store.waiters(after, limit=1):
        pages += page
        after = page[-1]
    assert [(it.signal, name_of(it.id)) for it in pages] == [("go", "c"), ("x", "a"), ("x", "b")]


def test_the_store_tells_its_time(store: Store, clock: ManualClock):
    before = store.now()
    clock.advance(5)
    assert store.now() - before == 5 * SECOND


def test_no_signal_is_missed_while_jobs_go_to_sleep(store: Store):
    """However a put-back and a signal meet, the job has the signal in the end."""
    workers = [Worker(store, f"worker {number}") for number in range(3)]
    jobs = [f"{number:02}" for number in range(60)]
    insert(store, *jobs)

    def work(worker: Worker) -> None:
        while claims := worker.claim(1):
            [name] = names(claims)
            worker.finish(succeeded(claims[0]) if got(store, name) else awaiting(claims[0], f"go-{name}"))

    def signal(some: list[str]) -> None:
        for name in some:
            store.signal(f"go-{name}", name.encode(), HOUR)

    with ThreadPoolExecutor(5) as threads:
        running = [threads.submit(work, worker) for worker in workers]
        running += [threads.submit(signal, jobs[start::2]) for start in range(2)]
        for future in running:
            future.result()
    work(workers[0])
    assert set(states(store).values()) == {JobState.SUCCEEDED}
    assert [got(store, name) for name in jobs] == [[name.encode()] for name in jobs]
