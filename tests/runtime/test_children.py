"""Child jobs: a task enqueues others and waits for them without holding a slot."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from packhorse import Context, Embedded, JobFailed, JobState, Packhorse
from packhorse.errors import ConfigError, DuplicateStep
from packhorse.job import Token
from packhorse.outcome import Outcome
from packhorse.queues import EVERYTHING
from packhorse.stores.contract import ProcessInfo
from tests.waiting import wait_until

SOON = 60.0
MakeApp = Callable[..., Packhorse]


def test_a_task_waits_for_its_children_without_holding_a_slot(app: Packhorse):
    """With one slot it could never end if it kept it."""
    runs: Counter[str] = Counter()

    @app.task(name="child")
    def child(number: int) -> int:
        runs["child"] += 1
        return number * number

    @app.task(name="parent", takes_context=True)
    def parent(context: Context, count: int) -> int:
        runs["parent"] += 1
        return sum(context.children("squares", [child.call(number) for number in range(count)]))

    job = parent.enqueue(10)
    with Embedded(app, concurrency=1):
        assert job.result(SOON) == 285
    assert runs["child"] == 10
    assert runs["parent"] <= 3
    assert (job.look().attempts, job.look().losses) == (1, 0)


def test_children_have_children_and_coroutines_too(app: Packhorse):
    @app.task(name="tree", takes_context=True)
    async def tree(context: Context, depth: int) -> int:
        if depth == 0:
            return 1
        return sum(await context.achildren("below", [tree.call(depth - 1), tree.call(depth - 1)]))

    with Embedded(app, concurrency=2):
        assert tree.enqueue(4).result(SOON) == 16


def test_they_are_enqueued_once_though_the_parent_fails_and_comes_again(make_app: MakeApp):
    app = make_app()
    runs: Counter[Any] = Counter()

    @app.task(name="child")
    def child(number: int) -> int:
        runs[number] += 1
        return number

    @app.task(name="parent", takes_context=True, retries=5, backoff=0)
    def parent(context: Context) -> list[int]:
        runs["parent"] += 1
        if runs["parent"] % 2:
            raise ValueError
        first = context.children("first", [child.call(n) for n in range(3)])
        return first + context.children("second", [child.call(n) for n in range(10, 12)])

    with Embedded(app):
        assert parent.enqueue().result(SOON) == [0, 1, 2, 10, 11]
    assert [runs[n] for n in (0, 1, 2, 10, 11)] == [1] * 5


def test_a_child_that_failed_is_met_as_its_result_would_be(app: Packhorse):
    @app.task(name="child")
    def child(number: int) -> int:
        return 1 // number

    @app.task(name="parent", takes_context=True)
    def parent(context: Context) -> str:
        try:
            context.children("c", [child.call(1), child.call(0)])
        except JobFailed as error:
            return error.failure.type
        return "well"

    with Embedded(app):
        assert parent.enqueue().result(SOON) == "ZeroDivisionError"


def test_no_children_are_no_reason_to_wait(app: Packhorse):
    @app.task(name="parent", takes_context=True)
    def parent(context: Context) -> list[int]:
        return context.children("none", [])

    with Embedded(app):
        assert parent.enqueue().result(SOON) == []


def test_one_that_is_not_kept_counts_as_ended(make_app: MakeApp):
    """The store lets a job go on that waits for one nobody knows any more."""
    app = make_app()

    @app.task(name="work")
    def work() -> None: ...

    work.enqueue()
    me = b"m" * 16
    app.store.enroll(ProcessInfo(me, "worker", "here", 1), 10**9)
    [claim] = app.store.exchange(me, 1, [], EVERYTHING, 1).claims
    back = Outcome(claim.token, JobState.SCHEDULED, spent=False, after=(b"x" * 16,))
    [again] = app.store.exchange(me, 2, [back], EVERYTHING, 1).claims
    assert again.token == Token(me, 2, claim.token.id, claim.token.epoch + 1)


def test_a_parent_may_be_cancelled_while_it_waits(app: Packhorse):
    @app.task(name="child")
    def child() -> None: ...

    @app.task(name="parent", takes_context=True)
    def parent(context: Context) -> None:
        context.children("c", [child.using(queue_name="elsewhere").call()])

    job = parent.enqueue()
    with Embedded(app, queues="default"):
        wait_until(lambda: job.state is JobState.WAITING)
        assert job.cancel()
    assert job.state is JobState.CANCELLED


def test_bad_use_gets_one_clear_error(app: Packhorse):
    @app.task(name="child")
    def child() -> None: ...

    @app.task(name="twice", takes_context=True)
    def twice(context: Context) -> None:
        context.children("c", [])
        context.children("c", [])

    @app.task(name="nameless", takes_context=True)
    def nameless(context: Context) -> None:
        context.children("", [child.call()])

    with pytest.raises(ConfigError, match="Only a job can have children"):
        twice()
    with Embedded(app):
        for task, why in ((twice, DuplicateStep.__name__), (nameless, ConfigError.__name__)):
            with pytest.raises(JobFailed, match=why):
                task.enqueue().result(SOON)
