"""`watch` and `wait_jobs`: sleeping until something happens, told by another thread."""

import time
from collections.abc import Callable, Iterator
from threading import Thread

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.queues import EVERYTHING
from packhorse.stores import Store
from packhorse.stores.contract import Act, Watch
from packhorse.testing.contract.helpers import (
    Worker,
    cancelled,
    failed,
    id_of,
    insert,
    job,
    move,
    released,
    retried,
    succeeded,
)

LONG = 30.0  # seconds that no test takes
ENOUGH = 10.0  # seconds in which every wake-up must have come


@pytest.fixture
def watch(store: Store) -> Iterator[Watch]:
    watch = store.watch(EVERYTHING)
    yield watch
    watch.close()


def meanwhile(act: Callable[[], object]) -> Thread:
    thread = Thread(target=act)
    thread.start()
    return thread


def test_a_job_from_another_thread_ends_the_sleep(store: Store, watch: Watch):
    """A watch wakes up when a job is inserted elsewhere."""
    began = time.monotonic()
    thread = meanwhile(lambda: insert(store, "a"))
    assert watch.wait(LONG) is True
    assert time.monotonic() - began < ENOUGH
    thread.join()


def test_a_quiet_store_lets_it_sleep(store: Store, watch: Watch):
    """Where nothing happens, a watch says so when its time is up."""
    assert watch.wait(0.01) is False
    assert watch.wait(0) is False


def test_a_change_in_between_is_not_missed(store: Store, watch: Watch):
    """What happened since the last call returned is told by the next one, once."""
    insert(store, "a")
    insert(store, "b")
    assert watch.wait(LONG) is True
    assert watch.wait(0) is False
    insert(store, "c")
    assert watch.wait(0) is True


def test_a_change_before_the_watch_is_not_told(store: Store):
    """A watch sees changes from its beginning on."""
    insert(store, "a")
    watch = store.watch(EVERYTHING)
    assert watch.wait(0) is False
    watch.close()


def test_wake_ends_the_sleep(store: Store, watch: Watch):
    """Another thread can end the sleep although nothing changed."""
    began = time.monotonic()
    thread = meanwhile(watch.wake)
    assert watch.wait(LONG) is False
    assert time.monotonic() - began < ENOUGH
    thread.join()


def test_a_wake_before_the_sleep_is_not_missed(store: Store, watch: Watch):
    """Whoever is woken while awake does not fall asleep; afterwards it does."""
    began = time.monotonic()
    watch.wake()
    assert watch.wait(LONG) is False
    assert time.monotonic() - began < ENOUGH
    assert watch.wait(0) is False


@pytest.mark.parametrize("what", ["release", "retry", "promote", "leave", "run now", "operator's retry", "resume"])
def test_whatever_makes_a_job_claimable_wakes(store: Store, worker: Worker, clock: ManualClock, what: str):
    """There is more than one way for a job to become ready."""
    insert(store, "a", "b", job("c", delay=SECOND))
    a, b = worker.claim()
    worker.finish(failed(b))
    store.pause("default", None, "ann", "")
    watch = store.watch(EVERYTHING)
    clock.advance(1)
    match what:
        case "release":
            worker.finish(released(a))
        case "retry":
            worker.finish(retried(a))
        case "promote":
            store.promote(10)
        case "leave":
            store.leave(worker.id)
        case "run now":
            move(store, Act.RUN_NOW, "c")
        case "operator's retry":
            move(store, Act.RETRY, "b")
        case "resume":
            store.resume("default", "ann", "")
    assert watch.wait(0) is True
    watch.close()


def test_watches_do_not_take_from_each_other(store: Store, watch: Watch):
    """Each watch hears of each change."""
    second = store.watch(EVERYTHING)
    insert(store, "a")
    assert (watch.wait(LONG), second.wait(LONG)) == (True, True)
    second.close()


# Waiting for jobs.


def test_looking_for_endings_tells_those_that_are_gone_too(store: Store, worker: Worker):
    """However many are asked for, and whichever way they ended."""
    insert(store, *(f"{number}" for number in range(1_000)), "a", "b", "c", "d")
    move(store, Act.DISCARD, "b")
    claims = {claim.token.id: claim for claim in worker.claim(2_000)}
    worker.finish(succeeded(claims[id_of("a")]), failed(claims[id_of("c")]), retried(claims[id_of("1")]))
    ids = [id_of(name) for name in (*(f"{number}" for number in range(1_000)), "a", "b", "c", "d", "nobody")]
    assert store.ended(ids) == {id_of(name) for name in ("a", "b", "c", "nobody")}
    assert store.ended([]) == set()


@pytest.mark.parametrize("ending", ["succeeded", "failed", "cancelled", "not kept", "operator's cancel", "discard"])
def test_every_ending_is_told_to_who_watches(store: Store, worker: Worker, ending: str):
    """By a watch that was there before a look found the job unfinished."""
    insert(store, "a", "b")
    claim = worker.claim_one()
    watch = store.watch_endings()
    assert store.ended([id_of("a"), id_of("b")]) == set()
    match ending:
        case "operator's cancel":
            move(store, Act.CANCEL, "b")
        case "discard":
            move(store, Act.DISCARD, "b")
        case "not kept":
            worker.finish(succeeded(claim)._replace(keep=0))
        case "succeeded":
            worker.finish(succeeded(claim))
        case "failed":
            worker.finish(failed(claim))
        case "cancelled":
            worker.finish(cancelled(claim))
    assert watch.wait(LONG) is True
    assert len(store.ended([id_of("a"), id_of("b")])) == 1
    watch.wake()
    while watch.wait(LONG):
        pass
    watch.close()


@pytest.mark.parametrize("ending", [succeeded, failed, cancelled])
def test_a_job_that_ends_elsewhere_ends_the_wait(store: Store, worker: Worker, ending):
    """Whoever waits for a job hears of its end, whichever it is."""
    insert(store, "a", "b")
    claim = worker.claim_one()
    began = time.monotonic()
    thread = meanwhile(lambda: worker.finish(ending(claim)))
    assert store.wait_jobs([id_of("a"), id_of("b")], LONG) == {id_of("a")}
    assert time.monotonic() - began < ENOUGH
    thread.join()


def test_a_job_that_is_not_kept_ends_the_wait(store: Store, worker: Worker):
    """Gone is ended."""
    insert(store, "a")
    claim = worker.claim_one()
    began = time.monotonic()
    thread = meanwhile(lambda: worker.finish(succeeded(claim)._replace(keep=0)))
    assert store.wait_jobs([id_of("a")], LONG) == {id_of("a")}
    assert time.monotonic() - began < ENOUGH
    thread.join()


@pytest.mark.parametrize("act", [Act.CANCEL, Act.DISCARD])
def test_an_operator_ends_the_wait(store: Store, act: Act):
    """A job that was cancelled or deleted is not waited for any longer."""
    insert(store, "a")
    began = time.monotonic()
    thread = meanwhile(lambda: move(store, act, "a"))
    assert store.wait_jobs([id_of("a")], LONG) == {id_of("a")}
    assert time.monotonic() - began < ENOUGH
    thread.join()


def test_all_that_have_ended_are_told(store: Store, worker: Worker):
    """One that has ended is enough to return, and all that have are answered, the unknown ones too."""
    insert(store, *"abc")
    a, b, _c = worker.claim()
    worker.finish(succeeded(a), failed(b))
    ids = [id_of(name) for name in ("a", "b", "c", "nobody")]
    assert store.wait_jobs(ids, LONG) == {id_of("a"), id_of("b"), id_of("nobody")}


def test_waiting_has_an_end(store: Store, worker: Worker):
    """Where none of the jobs ends in time, none is answered."""
    insert(store, "a", job("b", delay=SECOND), "c")
    worker.claim_one()
    assert store.wait_jobs([id_of(name) for name in "abc"], 0.01) == set()
    assert store.wait_jobs([id_of(name) for name in "abc"], 0) == set()


def test_other_changes_do_not_end_the_wait(store: Store, worker: Worker):
    """Claims, retries and other jobs' endings are not what is waited for."""
    insert(store, "a", "b")
    a, b = worker.claim()

    def much_happens() -> None:
        worker.finish(retried(a), succeeded(b))
        insert(store, "c")
        worker.finish(*map(succeeded, worker.claim()))

    thread = meanwhile(much_happens)
    assert store.wait_jobs([id_of("a")], LONG) == {id_of("a")}
    thread.join()
