"""Callbacks of single jobs: what begins when one has ended, whatever becomes of its record."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from packhorse import (
    Batch,
    Cancel,
    Context,
    Draft,
    Embedded,
    Flow,
    JobNotFound,
    JobState,
    Middleware,
    Packhorse,
    Selection,
    chain,
    limit,
    unique,
)
from packhorse.clock import ManualClock
from packhorse.errors import ConfigError
from packhorse.ids import from_text
from packhorse.runtime.scheduler import Scheduler
from packhorse.testing import inline, recorded
from tests.waiting import wait_until

MakeApp = Callable[..., Packhorse]


class Kit:
    """A task that ends as it is told, and callbacks that note what they were told."""

    def __init__(self, app: Packhorse, **options: Any) -> None:
        self.told: list[tuple[str, str]] = []
        self.broken = {"bad"}
        self.runs: Counter[str] = Counter()
        lock = threading.Lock()

        def noting(name: str) -> Any:
            @app.task(name=name)
            def note(id: str) -> None:
                with lock:
                    self.told.append((name, id))

            return note

        self.well, self.badly, self.over = map(noting, ("well", "badly", "over"))
        callbacks = {"on_success": self.well, "on_failure": self.badly, "on_finish": self.over}

        def work(name: str) -> str:
            with lock:
                self.runs[name] += 1
            if name == "cancelled":
                raise Cancel
            if name in self.broken:
                raise ValueError(name)
            return name

        self.work: Any = app.task(name="work", **callbacks | options)(work)

    def of(self, id: str) -> set[str]:
        return {name for name, its_id in self.told if its_id == id}


@pytest.fixture
def kit(app: Packhorse) -> Kit:
    return Kit(app)


@pytest.mark.parametrize(("name", "told"), [("good", "well"), ("bad", "badly"), ("cancelled", "badly")])
def test_callbacks_are_told_which_job_has_ended_and_how(app: Packhorse, kit: Kit, name: str, told: str):
    job = kit.work.enqueue(name)
    assert kit.told == []
    with Embedded(app):
        wait_until(lambda: kit.of(job.id) == {told, "over"})
        wait_until(lambda: not app.inspection.count(Selection(states={JobState.WAITING, JobState.RUNNING})))
    assert len(kit.told) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"keep_succeeded": 0, "keep_failed": 0},
        {"results": False},
        {"result_ttl": 0},
        {"retries": 2, "backoff": 0},
        {"limit": limit(to=1)},
        {"unique": True},
        {"share": "ann"},
        {"queue_name": "other"},
    ],
    ids=str,
)
def test_they_begin_once_however_jobs_are_stored_and_tried(make_app: MakeApp, options: dict[str, Any]):
    app = make_app()
    kit = Kit(app, **options)
    jobs = {name: kit.work.enqueue(name) for name in ("good", "bad", "fine")}
    with Embedded(app):
        wait_until(lambda: len(kit.told) == 6)
        wait_until(lambda: not any(app.inspection.counts()[state] for state in JobState if not state.finished))
    assert Counter(kit.told) == {
        (name, job.id): 1
        for told, job in jobs.items()
        for name in ("badly" if told == "bad" else "well", "over")
    }  # fmt: skip
    assert kit.runs["bad"] == 1 + options.get("retries", 0)
    if "keep_succeeded" in options:
        with pytest.raises(JobNotFound):
            jobs["good"].look()


def test_one_that_an_operator_ends_or_discards_has_ended(app: Packhorse, kit: Kit):
    cancelled, discarded = kit.work.enqueue("good"), kit.work.enqueue("good")
    cancelled.cancel()
    app.control.discard([discarded.id])
    with Embedded(app):
        wait_until(lambda: len(kit.told) == 4)
    assert kit.of(cancelled.id) == kit.of(discarded.id) == {"badly", "over"}


def test_one_whose_workers_die_has_ended_with_the_verdict(app: Packhorse, kit: Kit):
    with recorded(app) as jobs:
        job = kit.work.enqueue("good")
        for _ in range(3):
            assert kit.told == []
            jobs.lose_worker(job)
        jobs.drain()
        assert job.state is JobState.FAILED
    assert kit.of(job.id) == {"badly", "over"}


def test_a_success_after_a_retry_by_hand_is_told_too(app: Packhorse, kit: Kit):
    """What was told before is not told again."""
    job = kit.work.enqueue("bad")
    with Embedded(app):
        wait_until(lambda: len(kit.told) == 2)
        kit.broken = set()
        assert job.retry()
        wait_until(lambda: len(kit.told) == 3)
    assert kit.told[2] == ("well", job.id)


def test_a_job_that_another_stands_for_tells_nobody(make_app: MakeApp):
    app = make_app()
    kit = Kit(app, unique=unique("all"))
    first, second = kit.work.enqueue("good"), kit.work.enqueue("good")
    assert first.id == second.id
    with Embedded(app):
        wait_until(lambda: len(kit.told) == 2)
        wait_until(lambda: not any(app.inspection.counts()[state] for state in JobState if not state.finished))
    assert sorted(kit.told) == [("over", first.id), ("well", first.id)]


def test_using_changes_them_for_one_job(app: Packhorse, kit: Kit):
    """A call gets no more arguments than it has."""
    seen: list[str] = []
    app.task(name="say")(seen.append)
    say: Any = app.tasks["say"]
    quiet = kit.work.using(on_success=None, on_failure=None, on_finish=say.using(queue_name="quiet").call("done"))
    quiet.enqueue("good")
    assert app.inspection.count(Selection(queues={"quiet"})) == 1
    with Embedded(app):
        wait_until(lambda: seen == ["done"])
    assert kit.told == []


def test_callbacks_may_be_coroutines_with_a_context_and_callbacks_of_their_own(app: Packhorse, kit: Kit):
    told: list[tuple[str, str]] = []

    @app.task(name="listen", takes_context=True, on_finish=kit.over)
    async def listen(context: Context, id: str) -> None:
        told.append((context.job_id, id))

    @app.task(name="other", on_finish=listen)
    async def other() -> None: ...

    job = other.enqueue()
    with Embedded(app):
        wait_until(lambda: len(kit.told) == 1)
    [(listener, of)] = told
    assert of == job.id
    assert kit.told == [("over", listener)]


def test_jobs_of_flows_children_and_schedules_have_theirs(make_app: MakeApp):
    clock = ManualClock()
    app = make_app(clock=clock)
    kit = Kit(app)

    @app.task(name="parent", takes_context=True)
    def parent(context: Context) -> list[str]:
        return context.children("work", [kit.work.call("child")])

    steps = chain(kit.work.call("a"), kit.work.call("bad"), kit.work.call("never"))
    flow, batch = steps.enqueue(), Batch(kit.work.map(["b", "c"]), on_finish=kit.over).enqueue()
    [added] = batch.add([kit.work.call("d")])
    family = parent.enqueue()
    app.schedules.add(kit.work.call("now and then"), "every 60s", key="often")
    role = Scheduler(app)
    role.begin(None)  # type: ignore[arg-type]
    clock.advance(61)
    role.turn()
    asked = app.schedules.run_now("often")
    ticked = app.schedules.get("often").last_job
    assert ticked is not None
    with Embedded(app):
        assert family.result(20) == ["child"]
        expected = 3 * 2 + 3 * 2 + 1 + 2 + 2 * 2
        wait_until(lambda: len(kit.told) == expected)
    assert [kit.of(job.id) for job in flow.jobs()] == [{"well", "over"}, {"badly", "over"}, {"badly", "over"}]
    for id in (*(job.id for job in batch.jobs()), added.id, ticked, asked.id):
        assert kit.of(id) == {"well", "over"}
    assert kit.of(batch.id) == {"over"}
    assert flow.counts() == {JobState.SUCCEEDED: 1, JobState.FAILED: 1, JobState.CANCELLED: 1}


def test_children_that_are_enqueued_anew_bring_no_second_callbacks(app: Packhorse, kit: Kit):
    """As after a crash between the two writes: the ids of callbacks are found the same way each time."""
    job = kit.work.call("good").new_job(b"7" * 16)
    again = kit.work.call("good").new_job(b"7" * 16)
    assert [it.id for it in job.callbacks] == [it.id for it in again.callbacks]
    app.store.insert([job])
    app.store.insert([again])
    with Embedded(app):
        wait_until(lambda: not any(app.inspection.counts()[state] for state in JobState if not state.finished))
    assert len(kit.told) == 2


def test_subscribers_and_tests_see_them(app: Packhorse, kit: Kit):
    events: list[str] = []
    app.subscribe("enqueued")(lambda event: events.append(event.task))
    with recorded(app) as jobs:
        kit.work.enqueue("good")
        assert sorted(job.task for job in jobs.enqueued) == ["badly", "over", "well", "work"]
        assert sorted(job.task for job in jobs.drain()) == ["over", "well", "work"]
    app.events.flush()
    assert sorted(events) == ["badly", "over", "well", "work"]
    with inline(app):
        job = kit.work.enqueue("bad")
    assert kit.of(job.id) == {"badly", "over"}


def test_middleware_sees_their_drafts_and_may_add_some(app: Packhorse, kit: Kit):
    drafts: list[str] = []

    class Adding(Middleware):
        def enqueue(self, draft: Draft) -> Draft:
            drafts.append(draft.task)
            options = draft.options if draft.task != "plain" else replace(draft.options, on_finish=kit.over)
            return replace(draft, options=options)

    app.use(Adding())
    plain = app.task(name="plain")(lambda: None)
    job = plain.enqueue()
    assert drafts == ["plain", "over"]
    with Embedded(app):
        wait_until(lambda: kit.told == [("over", job.id)])


def test_they_are_found_below_the_id_of_their_job(app: Packhorse, kit: Kit):
    job = kit.work.enqueue("good")
    found = app.store.members(from_text(job.id), -4)
    assert [(place, it.task, it.state) for place, it in found] == [
        (-3, "over", JobState.WAITING),
        (-2, "badly", JobState.WAITING),
        (-1, "well", JobState.WAITING),
    ]


def test_bad_callbacks_are_refused_where_they_are_made(make_app: MakeApp):
    app = make_app()
    other = Packhorse("other", "memory://")
    one = app.task(name="one")(lambda id: None)
    none = app.task(name="none")(lambda: None)
    two = app.task(name="two")(lambda id, more: None)
    single = app.task(name="single", unique=True)(lambda id: None)
    strange = other.task(name="strange")(lambda id: None)
    later = one.call(Flow().add(none.call()).result)
    cases: list[tuple[Any, str]] = [
        ("one", "takes a task or a call"),
        (print, "takes a task or a call"),
        (none, "called with one argument"),
        (two, "called with one argument"),
        (single, "it has a unique key"),
        (single.call("id"), "it has a unique key"),
        (later, "cannot take results"),
    ]
    for callback, why in cases:
        for make in (
            lambda callback: app.task(name="bad", on_finish=callback)(lambda: None),
            lambda callback: one.using(on_finish=callback),
            lambda callback: Batch(on_finish=callback),
        ):
            with pytest.raises(ConfigError, match=why):
                make(callback)
    for given in (strange, strange.call("id")):
        with pytest.raises(ConfigError, match="on_failure is a task of another application"):
            one.using(on_failure=given)
        with pytest.raises(ConfigError, match="on_failure is a task of another application"):
            app.task(name="bad", on_failure=given)(lambda: None)
    with pytest.raises(ConfigError, match="one application"):
        Batch([one.call("id")], on_finish=strange).enqueue()
    assert "bad" not in app.tasks
