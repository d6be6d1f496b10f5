"""Options of a single job: what `using` says of it, its workers heed."""

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from packhorse import (
    Embedded,
    Exponential,
    FailureKind,
    JobFailed,
    JobNotFound,
    JobState,
    Packhorse,
    ResultUnavailable,
    limit,
    unique,
)
from packhorse.ids import from_text
from packhorse.pickling import PickleCodec
from packhorse.testing import recorded
from packhorse.varying import USING
from tests.waiting import wait_until

SOON = 60.0
MakeApp = Callable[..., Packhorse]


def size(app: Packhorse, id: str) -> int:
    job = app.store.job(from_text(id))
    assert job is not None
    return len(job.payload)


@pytest.mark.parametrize("codec", [None, PickleCodec()])
def test_retries_of_one_job(app: Packhorse, codec: Any):
    """More than its task has, or fewer; for threads, for coroutines, and for tasks with a codec of their own."""
    runs: Counter[str] = Counter()

    @app.task(codec=codec)
    def once(key: str) -> None:
        runs[key] += 1
        raise ValueError

    @app.task(retries=5, backoff=0, codec=codec)
    async def often(key: str) -> None:
        runs[key] += 1
        raise ValueError

    jobs = [
        once.enqueue("plain"),
        once.using(retries=2, backoff=0).enqueue("thread"),
        once.using(retries=1, backoff=Exponential(base=0)).enqueue("exponential"),
        often.using(retries=0).enqueue("coroutine"),
        often.using(retries=1).using(priority=3).enqueue("twice"),
    ]
    with Embedded(app):
        for job in jobs:
            with pytest.raises(JobFailed):
                job.result(SOON)
    assert runs == {"plain": 1, "thread": 3, "exponential": 2, "coroutine": 1, "twice": 2}


def test_only_what_differs_travels(app: Packhorse):
    @app.task(retries=3, isolate=False, keep_failed=timedelta(days=1))
    def task() -> None: ...

    plain = size(app, task.enqueue().id)
    same = task.using(retries=3, isolate=False, on_worker_lost="retry", keep_failed=86_400, priority=5)
    assert size(app, same.enqueue().id) == plain
    assert size(app, task.using(retries=4).using(retries=3).enqueue().id) == plain
    assert plain < size(app, task.using(retries=None).enqueue().id) < plain + 50


def test_its_worker_is_lost(app: Packhorse):
    @app.task
    def task() -> None: ...

    with recorded(app) as jobs:
        strict = task.using(on_worker_lost="fail").enqueue()
        assert jobs.lose_worker(strict).state is JobState.FAILED
        assert jobs.lose_worker(task.enqueue()).state is JobState.READY


def test_what_is_kept_of_one_job(app: Packhorse):
    @app.task
    def task() -> str:
        return "something"

    @app.task
    def wrong() -> None:
        raise ValueError

    with Embedded(app):
        unkept, bare, gone = [
            task.using(keep_succeeded=0).enqueue(),
            task.using(results=False).enqueue(),
            wrong.using(keep_failed=0).enqueue(),
        ]
        ids = [from_text(job.id) for job in (unkept, gone)]
        wait_until(lambda: not any(map(app.store.job, ids)), "the jobs to be gone")
        with pytest.raises(ResultUnavailable):
            bare.result(SOON)
        with pytest.raises(JobNotFound):
            app.job(gone.id)
        assert task.enqueue().result(SOON) == "something"


def test_a_limit_and_a_unique_key_of_one_job(app: Packhorse):
    running: list[str] = []
    go_on = threading.Event()

    @app.task
    def task(key: str) -> None:
        running.append(key)
        assert go_on.wait(SOON)

    limited = task.using(limit=limit("one"))
    jobs = [limited.enqueue("a"), limited.enqueue("b"), task.enqueue("free")]
    only = task.using(unique=unique("the only one"), run_after=3600)
    assert only.enqueue("c").id == only.enqueue("d").id
    with Embedded(app, concurrency=4):
        wait_until(lambda: len(running) == 2, "two of them to run")
        assert sorted(running)[1] == "free"
        go_on.set()
        for job in jobs:
            job.result(SOON)


def test_an_operator_who_sends_it_round_again_changes_none_of_them(app: Packhorse):
    runs: Counter[str] = Counter()

    @app.task
    def task(key: str) -> None:
        runs[key] += 1
        raise ValueError

    with recorded(app) as jobs:
        job = task.using(retries=1, backoff=0, results=False, expires=60).enqueue("first")
        jobs.drain()
        assert job.look().state is JobState.FAILED
        assert app.control.retry([job.id]) == 1
        jobs.drain()
        assert app.control.reload(job.id, ("second",))
        jobs.drain()
        assert runs == {"first": 4, "second": 2}


@pytest.mark.parametrize(
    "said", [7, {"nonsense": 1}, {"retries": "many"}, {"backoff": [1]}, {"backoff": "soon"}, {"timeout": -1}]
)
def test_options_that_make_no_sense_fail_the_job_and_nothing_else(app: Packhorse, said: Any):
    @app.task
    def task() -> int:
        return 42

    with Embedded(app):
        job = task.using(metadata={USING: said}).enqueue()
        with pytest.raises(JobFailed, match="option"):
            job.result(SOON)
        failure = job.look().failure
        assert failure is not None
        assert failure.kind is FailureKind.UNDECODABLE
        assert task.enqueue().result(SOON) == 42
