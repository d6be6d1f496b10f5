"""Runs: jobs of one limit key that one worker has at once and performs one after the other, under one permit."""

import random
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from packhorse import Embedded, Packhorse, gather, limit
from packhorse.clock import SECOND, ManualClock
from packhorse.job import Claim, JobState, NewJob
from packhorse.limits import Hold, Terms
from packhorse.outcome import Outcome, release, succeed
from packhorse.queues import parse_queues
from packhorse.stores import open_store
from packhorse.stores.contract import CLAIM_BYTES, Act, Change, Paused, ProcessInfo, Selection, Store
from tests.contract.stores import quick_folder

ANN, BOB = b"a" * 16, b"b" * 16
EVERY = parse_queues("*")
nonces = count(1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with quick_folder() as folder:
        store = open_store(f"sqlite:///{folder}/jobs.db", clock)
        for process in (ANN, BOB):
            store.enroll(ProcessInfo(process, "worker", "here", 1), 30 * SECOND)
        yield store
        store.close()


def fill(store: Store, number: int, to: int = 1, queue: str = "default", key: str = "k/") -> list[bytes]:
    ids = [n.to_bytes(16, "big") for n in range(1, number + 1)]
    store.insert([NewJob(id, "work", b"", queue, terms=Terms((Hold(key, to),))) for id in ids])
    return ids


def claim(store: Store, process: bytes, *ended: Outcome, run: int = 10, queues: str = "*") -> list[Claim]:
    return store.exchange(process, next(nonces), ended, parse_queues(queues), 20, starting=1, run=run).claims


def done(claims: list[Claim]) -> list[Outcome]:
    return [succeed(it.token, 1, None) for it in claims]


def permits(store: Store) -> int:
    return sum(view.holders for view in store.limits())


def states(store: Store) -> list[str]:
    return [str(job.state) for job in store.jobs(Selection())]


def test_a_run_has_one_permit_and_nobody_else_gets_in(store: Store):
    ids = fill(store, 30)
    claims = claim(store, ANN)
    assert [it.token.id for it in claims] == ids[:10]
    assert len({it.run for it in claims}) == 1
    assert permits(store) == 1
    assert claim(store, BOB) == []
    assert [it.token.id for it in claim(store, ANN, *done(claims))] == ids[10:20]


def test_a_run_carries_so_many_bytes(store: Store):
    """Of its payloads and those of the others that were claimed; the rest of its line waits on."""
    jobs = [NewJob(n.to_bytes(16, "big"), "work", b"x" * (1 << 20), terms=Terms((Hold("k/", 1),))) for n in range(9)]
    store.insert(jobs)
    first = claim(store, ANN)
    assert sum(len(it.payload) for it in first) == CLAIM_BYTES
    assert [it.token.id for it in first] == [job.id for job in jobs[: len(first)]]
    second = claim(store, ANN, *done(first))
    assert [it.token.id for it in second] == [job.id for job in jobs[len(first) : 2 * len(first)]]


def test_who_does_not_ask_for_runs_gets_none(store: Store):
    fill(store, 5)
    assert [it.run for it in claim(store, ANN, run=1)] == [None]


def test_the_permit_stays_until_the_last_of_a_run_has_ended(store: Store):
    ids = fill(store, 12)
    claims = claim(store, ANN, run=5)
    store.exchange(ANN, next(nonces), done(claims[:3]), EVERY, 0)
    assert claim(store, BOB) == []
    store.exchange(ANN, next(nonces), done(claims[4:]), EVERY, 0)  # the last one before the one in front of it
    assert permits(store) == 1
    assert claim(store, BOB) == []
    store.exchange(ANN, next(nonces), done(claims[3:4]), EVERY, 0)
    assert [it.token.id for it in claim(store, BOB, run=1)] == ids[5:6]


def test_the_rest_of_a_run_goes_back_to_wait_in_its_place(store: Store):
    ids = fill(store, 8)
    claims = claim(store, ANN, run=6)
    store.exchange(ANN, next(nonces), [release(it.token) for it in claims[1:]], EVERY, 0)
    assert states(store) == ["running"] + ["waiting"] * 7
    assert claim(store, BOB) == []
    assert [it.token.id for it in claim(store, ANN, *done(claims[:1]))] == ids[1:]


def test_a_run_given_back_as_a_whole_is_free_for_others_at_once(store: Store):
    ids = fill(store, 6)
    claims = claim(store, ANN, run=4)
    store.exchange(ANN, next(nonces), [release(it.token) for it in claims], EVERY, 0)
    assert [it.token.id for it in claim(store, BOB, run=1)] == ids[:1]
    assert permits(store) == 1


def test_who_leaves_frees_its_run(store: Store):
    ids = fill(store, 6)
    claim(store, ANN, run=4)
    store.leave(ANN)
    assert [it.token.id for it in claim(store, BOB, run=1)] == ids[:1]
    assert permits(store) == 1


def test_the_run_of_a_lost_worker_comes_back_under_its_limit(store: Store, clock: ManualClock):
    ids = fill(store, 6)
    claim(store, ANN, run=4)
    clock.advance(20)
    store.beat([BOB])
    clock.advance(20)
    orphans = store.adopt(BOB, next(nonces), 100)
    assert len(orphans) == 4
    assert claim(store, BOB, run=1) == []
    back = [Outcome(it.claim.token, JobState.READY, spent=False, lost=True) for it in orphans]
    first = store.exchange(BOB, next(nonces), back[:2], EVERY, 5).claims
    assert first == [], "two of the run are still to be judged, and have its permit"
    again = store.exchange(BOB, next(nonces), back[2:], EVERY, 5).claims
    assert [it.token.id for it in again] == ids[:1]
    assert permits(store) == 1


def test_several_permits_of_a_key_are_used_beside_a_run(store: Store):
    ids = fill(store, 20, to=3)
    claims = claim(store, ANN, run=5)
    assert len(claims) == 7
    assert permits(store) == 3
    run = [it for it in claims if it.run]
    alone = [it for it in claims if not it.run]
    assert (len(run), len(alone)) == (5, 2)
    store.exchange(ANN, next(nonces), done(run), EVERY, 0)
    assert permits(store) == 3, "its permit was passed on"
    assert [it.token.id for it in claim(store, BOB, run=1)] == ids[7:8]


def test_a_run_is_of_the_queues_that_the_worker_serves(store: Store):
    terms = Terms((Hold("k/", 1),))
    store.insert([NewJob(n.to_bytes(16, "big"), "work", b"", "ab"[n % 3 == 2], terms=terms) for n in range(6)])
    assert [it.queue for it in claim(store, ANN, queues="a")] == ["a", "a"]


def test_while_anything_is_paused_there_are_no_runs(store: Store):
    fill(store, 4)
    store.pause("other", None, "ann", "", kind=Paused.TASK)
    assert len(claim(store, ANN)) == 1


def test_random_histories_keep_the_limit_and_lose_nobody(store: Store, clock: ManualClock):
    luck = random.Random(7)
    keys = {"a/": 1, "b/": 2, "c/": 5}
    jobs = [
        NewJob(luck.randbytes(16), "work", b"", luck.choice("xy"), luck.randint(-1, 1), terms=Terms((Hold(key, to),)))
        for _ in range(400)
        for key, to in [luck.choice(list(keys.items()))]
    ]
    key_of = {job.id: job.terms.holds[0].key for job in jobs}
    held: dict[bytes, list[Claim]] = {ANN: [], BOB: []}
    rest = list(jobs)
    for _ in range(3_000):
        if rest and luck.random() < 0.3:
            store.insert([rest.pop() for _ in range(min(len(rest), luck.randint(1, 20)))])
        process = luck.choice([ANN, BOB])
        mine = held[process]
        ended = luck.sample(mine, luck.randint(0, len(mine)))
        held[process] = [it for it in mine if it not in ended]
        outcomes = [
            luck.choices([succeed(it.token, 1, None), release(it.token), retried(it)], [6, 2, 1])[0] for it in ended
        ]
        run = luck.choice([1, 4, 30])
        answer = store.exchange(process, next(nonces), outcomes, EVERY, luck.randint(0, 12), run=run)
        assert answer.refused == []
        held[process] += answer.claims
        if luck.random() < 0.05:
            store.move(Selection(ids=[luck.choice(jobs).id]), Change(Act.CHANGE, priority=1), "ann", "")
        inside: dict[str, set[object]] = {key: set() for key in keys}
        for it in held[ANN] + held[BOB]:
            inside[key_of[it.token.id]].add(it.run or it.token.id)
        for key, to in keys.items():
            assert len(inside[key]) <= to, "more runs and single jobs than permits"
        clock.advance(0.01)
        store.beat([ANN, BOB])
    for process in (ANN, BOB):
        store.exchange(process, next(nonces), done(held[process]), EVERY, 0)
    store.insert(rest)
    while claims := store.exchange(ANN, next(nonces), [], EVERY, 50, run=9).claims:
        store.exchange(ANN, next(nonces), done(claims), EVERY, 0)
    assert set(states(store)) == {"succeeded"}
    assert permits(store) == 0


def retried(claim: Claim) -> Outcome:
    return Outcome(claim.token, JobState.SCHEDULED, delay=0)


def test_workers_with_runs_never_perform_two_at_once():
    """Quick ones make runs, a slow one among them makes the rest go back, and two processes want them all."""
    inside, most, lock, seen = 0, 0, threading.Lock(), set()

    def enter(number: int) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        if number % 400 == 399:
            threading.Event().wait(0.25)
        with lock:
            inside -= 1
            seen.add(number)

    with quick_folder() as folder:
        apps = [Packhorse("shop", f"sqlite:///{folder}/jobs.db", signing=False) for _ in range(2)]
        for app in apps:
            app.task(name="work", limit=limit(to=1))(enter)
        task = apps[0].tasks["work"]
        jobs = apps[0].enqueue_many(task.call(number) for number in range(2_000))
        with Embedded(apps[0], concurrency=4), Embedded(apps[1], concurrency=4):
            gather(*jobs, timeout=60)
        for app in apps:
            app.close()
    assert (most, len(seen)) == (1, 2_000)
