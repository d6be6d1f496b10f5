"""Django's tasks with our options, as both type checkers have to read them. Nothing here is run."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, assert_type

from packhorse import chain, limit
from packhorse.django import Call, Task, TaskContext, TaskResult, aenqueue_many, enqueue_many, recurring, task
from packhorse.django.testing import adrain, drain


@task
def resize(photo: int, width: int = 100) -> str:
    return f"{photo} {width}"


@task(retries=3, backoff=timedelta(seconds=5), timeout=60, limit=limit("{url}"), enqueue_on_commit=True)
async def fetch(url: str) -> bytes:
    return url.encode()


@recurring("0 4 * * *", key="nightly", args=(2026,))
@task(takes_context=True)
def report(context: TaskContext, year: int) -> float:
    assert_type(context.attempt, int)
    assert_type(context.packhorse.job_id, str)
    return year / 2


assert_type(resize.enqueue(1), TaskResult)
assert_type(resize.enqueue(1, width=5), TaskResult)
assert_type(fetch.enqueue("a"), TaskResult)
assert_type(report.enqueue(2026), TaskResult)
assert_type(resize.call(1, 2), str)
assert_type(resize.later(1), Call[str])
assert_type(report.later(2026), Call[float])
assert_type(enqueue_many([resize.later(1), fetch.later("a")]), list[TaskResult])
assert_type(drain(), list[TaskResult])

varied = resize.using(priority=5, run_after=timedelta(hours=1), retries=2, backoff=1, timeout=5, isolate=True)
varied.using(on_worker_lost="fail", unique=True, expires=60, enqueue_on_commit=False, results=False).enqueue(1)
resize.using(on_success=report, on_failure=report.later(2026), tags=("a",), metadata={"b": 1}, keep_failed=None)
chain(resize.later(1), report.later(2026)).enqueue()
tasks: list[Task[..., Any]] = [resize, fetch, report]
decorate: Callable[[Callable[[int], int]], Task[[int], int]] = task(queue_name="mail")


async def later() -> None:
    assert_type(await fetch.aenqueue("a"), TaskResult)
    assert_type(await fetch.acall("a"), bytes)
    assert_type(await aenqueue_many([fetch.later("a")]), list[TaskResult])
    assert_type(await adrain(raise_errors=True), list[TaskResult])
