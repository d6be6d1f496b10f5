"""Middleware: what is enqueued, and what a task runs in."""

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from packhorse import (
    Cancel,
    ConfigError,
    Context,
    Draft,
    Embedded,
    FailureKind,
    Fixed,
    JobCancelled,
    JobFailed,
    JobState,
    Middleware,
    Packhorse,
    PayloadError,
    Secret,
    Snooze,
    current_context,
)
from packhorse.stores.contract import Selection

SOON = 60.0

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
KINDS = pytest.mark.parametrize("coroutine", [False, True], ids=["thread", "coroutine"])


class Refused(Exception):
    """A middleware's own."""


class Enqueuing(Middleware):
    """Does one thing to drafts."""

    def __init__(self, change: Callable[[Draft], Any]) -> None:
        self.change = change

    def enqueue(self, draft: Draft) -> Draft:
        changed: Draft = self.change(draft)
        return changed


class Around(Middleware):
    """Puts one context manager around each task."""

    def __init__(self, make: Callable[[Context], AbstractContextManager[Any]]) -> None:
        self.make = make

    def perform(self, context: Context) -> AbstractContextManager[Any]:
        return self.make(context)


def declared(app: Packhorse, function: Callable[..., Any], coroutine: bool, **options: Any) -> Any:
    """The same function as a task of either kind."""

    async def afunction(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return app.task(**{"name": "shop.work", **options})(afunction if coroutine else function)


# Enqueueing.


def test_a_draft_may_change_where_and_how_a_job_is_enqueued(app: Packhorse):
    """Queue, priority, tags, time and metadata, for each way of enqueueing."""

    def change(draft: Draft) -> Draft:
        assert draft.task == "shop.work"
        options = replace(
            draft.options,
            queue_name="night",
            priority=7,
            tags=(*draft.options.tags, "seen"),
            run_after=timedelta(days=1),
        )
        return replace(draft, options=options, metadata={**draft.metadata, "trace": "abc"})

    app.use(Enqueuing(change))

    @app.task(name="shop.work", tags=("mine",), metadata={"tenant": 1})
    def work() -> None: ...

    jobs = [
        work.enqueue(),
        work.using(priority=-3).enqueue(),
        app.enqueue(work.call()),
        *app.enqueue_many([work.call(), work.call()]),
    ]
    for job in (job.look() for job in jobs):
        assert (job.queue, job.priority, job.tags, job.state) == ("night", 7, ("mine", "seen"), JobState.SCHEDULED)
    stored = app.inspection.stored(jobs[0].id)
    assert app.inspection.arguments(stored).metadata == {"tenant": 1, "trace": "abc"}


def test_each_job_has_a_draft_of_its_own(app: Packhorse):
    """What is changed for one is not seen by the next, nor by the task."""
    calls: list[Draft] = []

    def change(draft: Draft) -> Draft:
        calls.append(draft)
        draft.metadata["number"] = len(calls)
        return draft

    app.use(Enqueuing(change))
    seen: dict[str, Any] = {}

    @app.task(takes_context=True, metadata={"tenant": 1})
    def work(context: Context) -> None:
        seen[context.job_id] = context.metadata

    jobs = app.enqueue_many([work.call() for _ in range(3)])
    with Embedded(app):
        for job in jobs:
            job.result(SOON)
    assert [seen[job.id] for job in jobs] == [{"tenant": 1, "number": number} for number in (1, 2, 3)]
    assert work.options.metadata == {"tenant": 1}
    assert len(calls) == 3


def test_metadata_carries_what_the_enqueuing_program_knows_to_the_task(app: Packhorse):
    """The two halves of one middleware: a context variable travels, typed and into either kind of task."""

    class Tenancy(Middleware):
        def enqueue(self, draft: Draft) -> Draft:
            return replace(draft, metadata={**draft.metadata, "tenant": Secret(tenant.get())})

        @contextmanager
        def perform(self, context: Context) -> Iterator[None]:
            token = tenant.set(context.metadata["tenant"].reveal())
            try:
                yield
            finally:
                tenant.reset(token)

    app.use(Tenancy())

    @app.task
    def who() -> str:
        return tenant.get()

    @app.task
    async def awho() -> str:
        return tenant.get()

    def enqueue(name: str) -> list[Any]:
        tenant.set(name)
        return [who.enqueue(), awho.enqueue()]

    with Embedded(app):
        jobs = [contextvars.copy_context().run(enqueue, name) for name in ("ann", "bob")]
        assert [[job.result(SOON) for job in pair] for pair in jobs] == [["ann", "ann"], ["bob", "bob"]]


async def test_a_middleware_sees_the_program_it_enqueues_for(app: Packhorse):
    """Also from the thread that an async program hops to."""
    app.use(Enqueuing(lambda draft: replace(draft, metadata={"tenant": tenant.get()})))

    @app.task
    def work() -> None: ...

    tenant.set("ann")
    jobs = [await work.aenqueue(), *await app.aenqueue_many([work.call()]), await app.aenqueue(work.call())]
    for job in jobs:
        assert app.inspection.arguments(app.inspection.stored(job.id)).metadata == {"tenant": "ann"}


def test_a_middleware_may_refuse_a_job(app: Packhorse):
    """Its error is the caller's, as it is, and nothing is stored."""

    def change(draft: Draft) -> Draft:
        if "forbidden" in draft.options.tags:
            raise Refused("not today")
        return draft

    app.use(Enqueuing(change))

    @app.task
    def work() -> None: ...

    with pytest.raises(Refused, match="not today"):
        work.using(tags=("forbidden",)).enqueue()
    with pytest.raises(Refused, match="not today") as caught:
        app.enqueue_many([work.call(), work.using(tags=("forbidden",)).call()])
    assert caught.value.__notes__ == ["0 jobs before it were enqueued; the others of its batch were not."]
    assert list(app.inspection.jobs()) == []
    assert work.enqueue().state is JobState.READY


@pytest.mark.parametrize("wrong", [None, "draft", {}])
def test_a_middleware_that_gives_no_draft_is_told(app: Packhorse, wrong: Any):
    """Most likely it forgot to return the one it changed."""
    app.use(Enqueuing(lambda draft: wrong))

    @app.task
    def work() -> None: ...

    with pytest.raises(ConfigError, match=r"Enqueuing.*must return a Draft"):
        work.enqueue()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda draft: replace(draft, options=replace(draft.options, priority=1_000)), "priority must be"),
        (lambda draft: replace(draft, options=replace(draft.options, queue_name="no good")), "queue name"),
        (lambda draft: replace(draft, metadata={"x": object()}), "Cannot store the metadata"),
        (lambda draft: replace(draft, metadata="text"), "metadata must be a dictionary"),
    ],
)
def test_a_draft_is_checked_like_any_other_option(app: Packhorse, change: Callable[[Draft], Draft], complaint: str):
    app.use(Enqueuing(change))

    @app.task
    def work() -> None: ...

    with pytest.raises((ConfigError, PayloadError), match=complaint):
        work.enqueue()
    assert list(app.inspection.jobs()) == []


def test_metadata_may_be_changed_on_either_side_of_a_draft(app: Packhorse):
    """A draft has it once more among its options; whichever was replaced counts."""
    app.use(Enqueuing(lambda draft: replace(draft, options=replace(draft.options, metadata={"from": "options"}))))

    @app.task(metadata={"from": "task"})
    def work() -> None: ...

    stored = app.inspection.stored(work.enqueue().id)
    assert app.inspection.arguments(stored).metadata == {"from": "options"}


def test_drafts_pass_from_the_first_used_to_the_last(app: Packhorse):
    """Each sees what the one before it made."""
    for name in ("first", "second", "third"):
        app.use(
            Enqueuing(
                lambda draft, name=name: replace(  # type: ignore[misc]
                    draft, options=replace(draft.options, tags=(*draft.options.tags, name))
                )
            )
        )

    @app.task
    def work() -> None: ...

    assert work.enqueue().look().tags == ("first", "second", "third")
    assert [job.tags for job in app.inspection.jobs(Selection(tags=["second"]))] == [("first", "second", "third")]


# Performing.


@KINDS
def test_a_task_runs_inside_its_middleware(app: Packhorse, coroutine: bool):
    """In one thread and one context, so that what it sets is seen, and it is left whatever happens."""
    seen: list[Any] = []

    @contextmanager
    def around(context: Context) -> Iterator[None]:
        assert current_context() is context
        seen.append(("in", context.job_id, threading.current_thread().name))
        token = tenant.set("ann")
        try:
            yield
        finally:
            tenant.reset(token)
            seen.append(("out", context.job_id, threading.current_thread().name))

    app.use(Around(around))

    def work(number: int) -> Any:
        seen.append((tenant.get(), current_context().job_id, threading.current_thread().name))
        if number:
            raise ValueError("no")
        return "fine"

    task = declared(app, work, coroutine)
    with Embedded(app, concurrency=1):
        good = task.enqueue(0)
        assert good.result(SOON) == "fine"
        bad = task.enqueue(1)
        with pytest.raises(JobFailed, match="no"):
            bad.result(SOON)
    assert [(what, id) for what, id, _ in seen] == [
        (what, job.id) for job in (good, bad) for what in ("in", "ann", "out")
    ]
    assert len({thread for *_, thread in seen}) == 1


@KINDS
def test_the_first_used_is_the_outermost(app: Packhorse, coroutine: bool):
    seen: list[str] = []

    @contextmanager
    def layer(name: str) -> Iterator[None]:
        seen.append(f"{name} in")
        yield
        seen.append(f"{name} out")

    for name in ("outer", "middle", "inner"):
        app.use(Around(lambda context, name=name: layer(name)))  # type: ignore[misc]
    task = declared(app, lambda: seen.append("task"), coroutine)
    with Embedded(app):
        task.enqueue().result(SOON)
    assert seen == ["outer in", "middle in", "inner in", "task", "inner out", "middle out", "outer out"]


@KINDS
def test_an_error_on_the_way_in_is_the_attempts(app: Packhorse, coroutine: bool):
    """It follows the task's retries, the task does not run, and what was entered is left."""
    seen: list[str] = []

    @contextmanager
    def outer(context: Context) -> Iterator[None]:
        seen.append("in")
        try:
            yield
        finally:
            seen.append("out")

    def inner(context: Context) -> AbstractContextManager[Any]:
        if context.attempt < 3:
            raise Refused(f"attempt {context.attempt}")
        return nullcontext()

    app.use(Around(outer))
    app.use(Around(inner))
    task = declared(app, lambda: "at last", coroutine, retries=5, backoff=Fixed(0))
    with Embedded(app):
        job = task.enqueue()
        assert job.result(SOON) == "at last"
    assert [attempt.failure.message for attempt in job.look().failures] == ["attempt 1", "attempt 2"]
    assert job.look().attempts == 3
    assert seen == ["in", "out"] * 3
    failure = job.look().failures[0].failure
    assert failure.kind is FailureKind.EXCEPTION
    assert "in inner" in failure.traceback


@KINDS
@pytest.mark.parametrize("nonsense", [None, 7, "no manager"])
def test_a_middleware_that_gives_no_context_manager_fails_the_attempt(app: Packhorse, coroutine: bool, nonsense: Any):
    """And says so; the worker lives."""
    app.use(Around(lambda context: nonsense))
    task = declared(app, lambda: None, coroutine)
    with Embedded(app), pytest.raises(JobFailed, match="does not support the context manager protocol"):
        task.enqueue().result(SOON)


@KINDS
def test_a_swallowed_error_makes_the_result_none(app: Packhorse, coroutine: bool):
    """The attempt succeeded."""
    app.use(Around(lambda context: suppress(ValueError)))

    def work(kind: str) -> str:
        if kind == "swallowed":
            raise ValueError
        if kind == "let out":
            raise KeyError("out")
        return "fine"

    task = declared(app, work, coroutine, retries=3, backoff=Fixed(0))
    with Embedded(app):
        job = task.enqueue("swallowed")
        assert job.result(SOON) is None
        assert (job.look().attempts, job.look().failure, job.look().failures) == (1, None, ())
        assert task.enqueue("fine").result(SOON) == "fine"
        other = task.enqueue("let out")
        with pytest.raises(JobFailed, match="out"):
            other.result(SOON)
        assert other.look().attempts == 4


@KINDS
def test_what_a_middleware_lets_out_is_what_is_decided_on(app: Packhorse, coroutine: bool):
    """It may turn one error into another: into a snooze, a cancellation, or one that is not retried."""
    runs: list[str] = []

    @contextmanager
    def translate(context: Context) -> Iterator[None]:
        try:
            yield
        except ConnectionError:
            if context.attempt == 1 and len(runs) < 2:
                raise Snooze(0.01) from None
            raise Refused("gone for good") from None
        except PermissionError:
            raise Cancel("not allowed") from None

    app.use(Around(translate))

    def work(kind: str) -> None:
        runs.append(kind)
        raise {"connection": ConnectionError, "permission": PermissionError}[kind]

    task = declared(app, work, coroutine, retries=5, backoff=Fixed(0), give_up_on=Refused)
    with Embedded(app):
        cancelled = task.enqueue("permission")
        with pytest.raises(JobCancelled, match="not allowed"):
            cancelled.result(SOON)
        runs.clear()
        job = task.enqueue("connection")
        with pytest.raises(JobFailed, match="gone for good"):
            job.result(SOON)
    assert runs == ["connection", "connection"]
    assert job.look().attempts == 1


@KINDS
def test_an_error_on_the_way_out_is_the_attempts(app: Packhorse, coroutine: bool):
    """The task may have done its work; it is tried again like after any other error."""
    runs: list[int] = []

    @contextmanager
    def commit(context: Context) -> Iterator[None]:
        yield
        if context.attempt == 1:
            raise Refused("commit failed")

    app.use(Around(commit))

    def work() -> int:
        runs.append(1)
        return len(runs)

    task = declared(app, work, coroutine, retries=1, backoff=Fixed(0))
    with Embedded(app):
        job = task.enqueue()
        assert job.result(SOON) == 2
    assert [attempt.failure.message for attempt in job.look().failures] == ["commit failed"]


@KINDS
def test_a_traceback_begins_outside_packhorse(app: Packhorse, coroutine: bool):
    """With middleware as without."""

    def work() -> None:
        raise ValueError("no")

    task = declared(app, work, coroutine)
    with Embedded(app):
        plain = task.enqueue()
        with pytest.raises(JobFailed):
            plain.result(SOON)
        app.use(Around(lambda context: nullcontext()))
        wrapped = task.enqueue()
        with pytest.raises(JobFailed):
            wrapped.result(SOON)
    for job in (plain, wrapped):
        failure = job.look().failure
        assert failure is not None
        assert "packhorse/runtime" not in failure.traceback
        assert "in work" in failure.traceback


@KINDS
def test_a_middleware_used_while_workers_run_counts_from_the_next_job_on(app: Packhorse, coroutine: bool):
    seen: list[str] = []

    @contextmanager
    def note(context: Context) -> Iterator[None]:
        seen.append(context.job_id)
        yield

    task = declared(app, lambda: None, coroutine)
    with Embedded(app):
        task.enqueue().result(SOON)
        app.use(Around(note))
        job = task.enqueue()
        job.result(SOON)
    assert seen == [job.id]


# Costs.


def test_middleware_that_overrides_nothing_is_never_called(app: Packhorse):
    """Each half is asked for only where it is overridden."""
    assert app.performing == []
    assert app._enqueuing == []

    class Idle(Middleware):
        pass

    class Enqueues(Middleware):
        def enqueue(self, draft: Draft) -> Draft:
            return draft

    class Performs(Middleware):
        def perform(self, context: Context) -> AbstractContextManager[Any]:
            return nullcontext()

    class More(Performs, Enqueues):
        pass

    for middleware in (Idle(), Enqueues(), Performs(), More()):
        app.use(middleware)
    assert [type(it) for it in app._enqueuing] == [Enqueues, More]
    assert [type(it) for it in app.performing] == [Performs, More]

    @app.task
    def work() -> None: ...

    plain: Any = work
    assert app.drafted(plain) == work.options


def test_without_middleware_the_options_are_not_even_copied(app: Packhorse):
    @app.task
    def work() -> None: ...

    plain: Any = work
    assert app.drafted(plain) is work.options


@pytest.mark.parametrize("wrong", [Middleware, Enqueuing, lambda draft: draft, None, "name"])
def test_what_is_no_middleware_is_refused(app: Packhorse, wrong: Any):
    """A class is not an instance."""
    with pytest.raises(ConfigError, match="an instance of a subclass"):
        app.use(wrong)
