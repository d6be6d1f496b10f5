"""What a worker holds of the payloads of the jobs that it claims."""

import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from packhorse import JobState, Packhorse
from packhorse.ids import new_id
from packhorse.job import Claim, Token
from packhorse.queues import EVERYTHING
from packhorse.runtime.embedded import Embedded
from packhorse.runtime.orphans import Death, Judge
from packhorse.runtime.worker import Worker
from packhorse.stores.contract import CLAIM_BYTES, Exchanged, Orphan, ProcessInfo
from tests.waiting import wait_until

SOON = 60.0
SLOTS = 4
LARGE = 250_000


class Scales:
    """Stands before a store's `exchange`, and weighs what was claimed and has not ended."""

    def __init__(self, app: Packhorse, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: dict[Token, Claim] = {}
        self.most = self.claims = 0
        self.cuts = 0
        self._exchange = app.store.exchange
        monkeypatch.setattr(app.store, "exchange", self)

    def __call__(self, process: bytes, nonce: int, outcomes: Any, *args: Any, **kwargs: Any) -> Exchanged:
        reply = self._exchange(process, nonce, outcomes, *args, **kwargs)
        for outcome in outcomes:
            self.held.pop(outcome.token, None)
        self.held.update((claim.token, claim) for claim in reply.claims)
        self.claims = max(self.claims, len(self.held))
        self.most = max(self.most, sum(len(claim.payload) for claim in self.held.values()))
        self.cuts += reply.cut
        return reply


def test_a_worker_holds_few_large_payloads(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """However quick the jobs before them: what waits for a slot is bounded by its bytes, and all are performed."""
    lengths = []

    @app.task
    def take(data: str) -> None:
        lengths.append(len(data))

    app.enqueue_many([take.call("x") for _ in range(400)])
    jobs = app.enqueue_many([take.call("x" * LARGE) for _ in range(80)])
    scales = Scales(app, monkeypatch)
    with Embedded(app, concurrency=SLOTS):
        for job in jobs:
            job.result(SOON)
    assert scales.claims > 2 * SLOTS, "nothing was claimed ahead"
    assert scales.most <= 2 * CLAIM_BYTES + SLOTS * 2 * LARGE
    assert sorted(lengths) == [1] * 400 + [LARGE] * 80


def test_large_payloads_that_run_do_not_stop_quick_jobs(
    make_app: Callable[..., Packhorse], monkeypatch: pytest.MonkeyPatch
):
    """What has its slot is bounded by the slots, and the others are claimed ahead as usual."""
    app = make_app(payload_cap=CLAIM_BYTES)
    goes_on = threading.Event()

    @app.task
    def hold(data: str) -> None:
        assert goes_on.wait(SOON)

    @app.task
    def take(number: int) -> None: ...

    scales = Scales(app, monkeypatch)
    with Embedded(app, concurrency=SLOTS):
        large = app.enqueue_many([hold.call("x" * LARGE * 10) for _ in range(SLOTS - 1)])
        wait_until(lambda: all(job.look().state is JobState.RUNNING for job in large))
        quick = app.enqueue_many([take.call(number) for number in range(600)])
        for job in quick:
            job.result(SOON)
        most = scales.claims
        goes_on.set()
        for job in large:
            job.result(SOON)
    assert most > 2 * SLOTS, "nothing was claimed ahead"


def test_free_slots_are_filled_at_once(make_app: Callable[..., Packhorse], monkeypatch: pytest.MonkeyPatch):
    """Where a reply was cut, the worker asks again, and does not rest before."""
    app = make_app(polling_interval=3_600, payload_cap=CLAIM_BYTES)
    inside = threading.Barrier(SLOTS)

    @app.task
    def meet(data: str) -> None:
        inside.wait(SOON)

    jobs = app.enqueue_many([meet.call("x" * (CLAIM_BYTES * 3 // 4)) for _ in range(SLOTS)])
    scales = Scales(app, monkeypatch)
    turn, rests = Worker.turn, []

    def turned(worker: Worker) -> float:
        before = scales.cuts
        rest = turn(worker)
        if scales.cuts > before and len(scales.held) < SLOTS:
            rests.append(rest)
        return rest

    monkeypatch.setattr(Worker, "turn", turned)
    with Embedded(app, concurrency=SLOTS):
        for job in jobs:
            job.result(SOON)
    assert set(rests) == {0}


def test_the_jobs_of_a_dead_worker_are_judged_a_few_at_a_time(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """As many payloads as one adoption carries are held at once, and in the end all jobs have their verdict."""

    @app.task
    def take(data: str) -> None: ...

    app.enqueue_many([take.call("x" * LARGE) for _ in range(40)])
    doomed, judge = (ProcessInfo(new_id(), "worker", "elsewhere", 7) for _ in range(2))
    for process in (doomed, judge):
        app.store.enroll(process, 60_000_000)
    nonces = count(1)
    while app.store.exchange(doomed.id, next(nonces), [], EVERYTHING, 100, starting=100).claims:
        pass
    real, adopted = app.store.adopt, []

    def adopt(*args: Any, **kwargs: Any) -> list[Orphan]:
        adopted.append(real(*args, **kwargs))
        return adopted[-1]

    monkeypatch.setattr(app.store, "adopt", adopt)
    Judge(app).judge(judge.id, {doomed.id: Death("was killed")})
    assert sum(map(len, adopted)) == 40
    assert all(sum(len(orphan.claim.payload) for orphan in page) <= CLAIM_BYTES for page in adopted)
    assert app.inspection.counts()[JobState.RUNNING] == 0
