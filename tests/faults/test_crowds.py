"""Many at one moment: jobs that are due or fail together, workers that come together, and more than can be done."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from packhorse import Embedded
from packhorse.clock import SECOND, ManualClock
from packhorse.errors import StoreUnavailable
from packhorse.ids import new_id
from packhorse.job import JobState, NewJob
from packhorse.queues import EVERYTHING
from packhorse.retry import Exponential
from packhorse.runtime.process import Process, Trouble
from packhorse.runtime.worker import Worker
from packhorse.stores import open_store
from packhorse.stores.contract import ProcessInfo
from tests.contract.stores import quick_folder
from tests.faults.apps import drop_isolated, make_app
from tests.faults.harness import Place
from tests.waiting import wait_until

DUE = 10_000
FAILING = 5_000
AT_ONCE = 1_000
WINDOW = 10 * SECOND


# Due at one instant.


def test_a_crowd_is_promoted_in_batches_and_keeps_its_order():
    """Each stroke moves as many as it may and no more; then all are claimed, by priority and age, each once."""
    clock = ManualClock()
    moment = clock.now() + 60 * SECOND
    crowd = [NewJob(new_id(), "task", b"", priority=n % 3, run_at=moment) for n in range(DUE)]
    with quick_folder() as folder:
        store = open_store(f"sqlite:///{folder}/jobs.db", clock)
        store.insert(crowd)
        assert store.promote(AT_ONCE) == (0, 60 * SECOND)
        clock.advance(60)
        for batch in range(1, DUE // AT_ONCE + 1):
            assert store.promote(AT_ONCE).jobs == AT_ONCE
            [queue] = store.queues()
            assert (queue.of(JobState.READY), queue.of(JobState.SCHEDULED)) == (batch * AT_ONCE, DUE - batch * AT_ONCE)
        assert store.promote(AT_ONCE) == (0, None)
        process = new_id()
        store.enroll(ProcessInfo(process, "worker", "here", 1), 600 * SECOND)
        claimed: list[bytes] = []
        for nonce in range(DUE // AT_ONCE):
            claims = store.exchange(process, nonce, [], EVERYTHING, AT_ONCE).claims
            assert len(claims) == AT_ONCE
            claimed += [claim.token.id for claim in claims]
        store.close()
    assert claimed == [job.id for job in sorted(crowd, key=lambda job: (-job.priority, job.id))]


@pytest.mark.timeout(600)
def test_ten_thousand_jobs_due_at_one_instant_are_all_performed_once(place: Place):
    """By real processes. How long the last waited is told beside how long as many take that are simply ready."""
    place.app.control.pause("default")
    workers = place.workers("--concurrency", "4", "--processes", "2")
    wait_until(lambda: len(place.sql("select 1 from process where role = 'worker'")) == 2, "both workers are there")
    ids = crowd(place, "ready")
    since = place.app.clock.now()
    place.app.control.resume("default")
    place.wait_all_finished(120)
    ideal = seconds_to_last_start(place, "ready", since)
    ids += crowd(place, "due", run_after=3_600)
    moment = place.app.clock.now() + 2 * SECOND
    place.sql("update job set run_at = ?, order_key = ? where state = 1", moment, moment)  # now that all are there
    place.wait_all_finished(120)
    assert workers.stop() == 0
    place.check(ids)
    starts = place.lines(what="start")
    assert Counter(line.key for line in starts) == dict.fromkeys(keys("ready") + keys("due"), 1)
    assert all(line.at >= moment for line in starts if line.key.startswith("due")), "one began before its time"
    took = seconds_to_last_start(place, "due", moment)
    print(
        f"{DUE:,} due at one instant: the last began {took:.2f} s later, {took / ideal:.2f} of the ideal {ideal:.2f} s"
    )


def keys(name: str) -> list[str]:
    return [f"{name}-{n}" for n in range(DUE)]


def crowd(place: Place, name: str, **using: float) -> list[str]:
    return place.enqueue_many("note", *[(key,) for key in keys(name)], **using)


def seconds_to_last_start(place: Place, name: str, since: int) -> float:
    return (max(line.at for line in place.lines(what="start") if line.key.startswith(name)) - since) / SECOND


# Failing together.


@pytest.mark.parametrize("failed_before", [5, 7])
def test_jobs_that_fail_together_come_back_spread(place: Place, failed_before: int):
    """A dependency is down for long. By default the next attempts use all of the jitter, and evenly."""

    @place.app.task(retries=20)
    def call_it(key: str) -> None:
        raise ConnectionError("nobody answers")

    place.app.enqueue_many(call_it.call(f"call-{n}") for n in range(FAILING))
    place.sql("update job set attempts = ?", failed_before)
    drop_isolated(place.app)  # which no other process could import from here
    with Embedded(place.app, concurrency=4):
        failed = "select count(*) from job where state = 1 and attempts = ?"
        wait_until(lambda: place.sql(failed, failed_before + 1) == [(FAILING,)], "all have failed again", 60)
    delays = [delay for (delay,) in place.sql("select run_at - ended_at from job join attempt on attempt.id = job.id")]
    windows = Counter((delay - min(delays)) // WINDOW for delay in delays)
    peak, mean = max(windows.values()), FAILING / (max(windows) + 1)
    print(
        f"attempt {failed_before + 1}: {max(windows) + 1} windows, {peak} at most in one, {peak / mean:.2f} of the mean"
    )
    shortest = Exponential(draw=lambda: 0.0)(failed_before + 1, ConnectionError())
    assert max(delays) - min(delays) >= 0.9 * Exponential().jitter * shortest * SECOND, "they crowd at the beginning"
    assert peak <= 2 * mean


# Workers that come together.


def test_those_who_wait_for_a_store_do_not_come_back_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.runtime.process.random.uniform", random.Random(1).uniform)
    waiting = [Trouble() for _ in range(100)]
    for trouble in waiting:
        for _ in range(8):
            trouble.delay()
    delays = [trouble.delay() for trouble in waiting]
    assert max(delays) - min(delays) >= 5.0
    assert max(Counter(map(int, delays)).values()) <= 33, "a third of them in one second"


def test_a_hundred_workers_that_find_the_store_locked_all_come_in(place: Place, monkeypatch: pytest.MonkeyPatch):
    """Each has a store of its own, as in a process of its own. All are told to wait before anybody may write."""
    monkeypatch.setattr("packhorse.stores.sqlite_connections.DEADLINE", 0.3)
    place.settings |= {"heartbeat": 10.0, "lease": 300.0}  # a hundred hearts in one process
    monkeypatch.setattr("packhorse.stores.sqlite.CROWD", 1)  # nor a hundred crowds
    ids = place.enqueue_many("note", *[(f"job-{n}",) for n in range(200)])
    apps = [make_app(place.url, place.ledger.path, **place.settings) for _ in range(100)]
    processes = [Process(app, Worker(app, EVERYTHING, 1)) for app in apps]
    threads = [threading.Thread(target=process.run) for process in processes]
    refused = Counter[int]()
    for number, app in enumerate(apps):
        monkeypatch.setattr(app.store, "enroll", counting(app.store.enroll, refused, number))
    with place.locked():
        for thread in threads:
            thread.start()
        wait_until(lambda: len(refused) == 100, "all have been refused", 60)
    wait_until(lambda: place.sql("select count(*) from process where role = 'worker'") == [(100,)], "all are there", 60)
    place.wait_all_finished(60)
    for process in processes:
        process.stop()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    place.check(ids)
    assert Counter(line.key for line in place.lines(what="start")) == {f"job-{n}": 1 for n in range(200)}


def counting(enroll: Callable[..., None], refused: Counter[int], number: int) -> Callable[..., None]:
    def enroll_or_count(info: ProcessInfo, lease: int) -> None:
        try:
            enroll(info, lease)
        except StoreUnavailable:
            refused[number] += 1
            raise

    return enroll_or_count


# More than can be done.


def test_what_comes_ten_times_as_quickly_as_it_is_done_waits_and_is_done(place: Place):
    """One slow worker, which goes on meanwhile; then help comes. Nothing is lost."""
    place.enqueue("nap", "first", 0.01)
    slow = place.workers("--concurrency", "1", "--processes", "1")
    place.wait_started("first")
    ids: list[str] = []
    unfinished = "select count(*) from job where state < 5"
    while place.sql(unfinished)[0][0] < 2_000:
        done = place.lines(what="finish")
        keys = [f"nap-{len(ids) + n}" for n in range(200)]
        ids += place.enqueue_many("nap", *[(key, 0.01) for key in keys])
        place.wait_ran(f"nap-{len(done) + 10}")
    more = place.workers("--concurrency", "8", "--processes", "2")
    place.wait_all_finished(120)
    assert (slow.stop(), more.stop()) == (0, 0)
    place.check(ids)
    assert Counter(line.key for line in place.lines(what="start") if line.key != "first") == {
        f"nap-{n}": 1 for n in range(len(ids))
    }
