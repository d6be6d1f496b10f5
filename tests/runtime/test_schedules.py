"""Schedules as a program uses them: declared, made and edited at run time, and ticked by any number of schedulers."""

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from packhorse import Context, Embedded, JobState, Packhorse, Selection, every, once
from packhorse.clock import SECOND, ManualClock, to_datetime
from packhorse.control import me
from packhorse.errors import ConfigError, PayloadError, ScheduleNotFound, StoreDataError, StoreUnavailable
from packhorse.pickling import PickleCodec
from packhorse.runtime.scheduler import PATIENCE, Scheduler
from packhorse.stores.contract import StoredSchedule
from packhorse.testing import inline
from tests.waiting import wait_until

MakeApp = Callable[..., Packhorse]
MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock() -> ManualClock:
    clock = ManualClock()
    clock.advance(1)  # between two moments
    return clock


@pytest.fixture
def app(make_app: MakeApp, clock: ManualClock) -> Packhorse:
    return make_app(clock=clock)


def scheduler(app: Packhorse) -> Scheduler:
    role = Scheduler(app)
    role.begin(None)  # type: ignore[arg-type]
    return role


def broken(app: Packhorse) -> set[str]:
    return {view.key for view in app.schedules.all() if view.error}


def enqueued(app: Packhorse) -> list[str]:
    return [job.task for job in app.inspection.jobs(Selection())]


def test_a_declared_schedule_gets_a_job_at_each_moment(app: Packhorse, clock: ManualClock):
    @app.recurring(every(60), key="often", args=(1,), kwargs={"colour": "red"}, queue_name="slow", priority=5)
    @app.task(name="work")
    def work(number: int, *, colour: str) -> None: ...

    role = scheduler(app)
    for _ in range(3):
        clock.advance(60)
        role.turn()
        role.turn()
    jobs = list(app.inspection.jobs(Selection()))
    assert [(job.task, job.queue, job.priority, job.tags) for job in jobs] == [
        ("work", "slow", 5, ("schedule:often",))
    ] * 3
    moments = [job.run_at.timestamp() for job in jobs if job.run_at is not None]
    assert [later - earlier for earlier, later in pairwise(moments)] == [60, 60]


def test_the_task_sees_its_moment(make_app: MakeApp):
    app = make_app()
    seen = []

    @app.recurring(every(1), key="second")
    @app.task(takes_context=True)
    def work(context: Context) -> None:
        seen.append((context.schedule, context.moment))

    with Embedded(app):
        wait_until(lambda: len(seen) >= 2)
    (key, first), (_, second) = seen[:2]
    assert key == "second"
    assert first is not None
    assert second is not None
    assert second - first == timedelta(seconds=1)
    assert first.microsecond == 0


def test_a_job_begins_within_a_second_of_its_moment(make_app: MakeApp):
    app = make_app()
    late = []

    @app.recurring(every(1))
    @app.task(name="work", takes_context=True)
    def work(context: Context) -> None:
        assert context.moment is not None
        late.append((datetime.now(UTC) - context.moment).total_seconds())

    with Embedded(app):
        wait_until(lambda: len(late) >= 3 and min(late) < 1, "one begins in time")
    assert [view.key for view in app.schedules.all()] == ["work"]


def test_several_schedules_stand_above_one_task_and_fall_back_to_its_own(app: Packhorse, clock: ManualClock):
    @app.recurring("0 3 * * *", key="nightly")
    @app.recurring("@hourly", key="hourly", args=("h",))
    @app.task(name="clean", queue_name="low", priority=-3)
    def clean(what: str = "all") -> None: ...

    with pytest.raises(ConfigError, match="already"):
        app.recurring("@daily", key="nightly")(clean)
    with pytest.raises(TypeError, match="cannot be called like this"):
        app.recurring("@daily", key="wrong", args=(1, 2))(clean)
    with pytest.raises(ConfigError, match=r"above @app\.task"):
        app.recurring("@daily", key="wrong")(lambda: None)  # type: ignore[type-var]
    with pytest.raises(ConfigError):
        app.recurring("61 * * * *", key="wrong")
    scheduler(app)
    views = {view.key: view for view in app.schedules.all()}
    assert sorted(views) == ["hourly", "nightly"]
    assert views["nightly"].declared
    assert "03:00" in views["nightly"].words
    job = app.schedules.run_now("hourly").look()
    assert (job.queue, job.priority, job.task) == ("low", -3, "clean")


def test_what_the_code_no_longer_declares_is_removed_and_what_changed_begins_anew(
    make_app: MakeApp, clock: ManualClock
):
    app = make_app(clock=clock)

    def deploy(**rules: Any) -> None:
        fresh = Packhorse("shop", app.store, clock=clock)
        task = fresh.task(name="work")(lambda: None)
        for key, rule in rules.items():
            fresh.recurring(rule, key=key)(task)
        scheduler(fresh)

    deploy(a=every(60), b="@daily")
    app.schedules.pause("a", reason="holidays")
    before = app.store.schedule("b")
    clock.advance(10)
    deploy(a=every(30), b="@daily")
    assert app.store.schedule("b") == before
    [a, _] = app.schedules.all()
    assert (a.rule, a.paused) == ("every 30s", True)
    deploy(b="@daily")
    assert [view.key for view in app.schedules.all()] == ["b"]


def test_schedules_are_made_edited_paused_and_removed_at_run_time(app: Packhorse, clock: ManualClock):
    @app.task(name="mail")
    def mail(text: str) -> None: ...

    role = scheduler(app)
    view = app.schedules.add(mail.call("hello"), every(60), key="greet", repeats=2, reason="a trial")
    assert (view.repeats, view.declared, view.paused) == (2, False, False)
    with pytest.raises(ConfigError, match="already"):
        app.schedules.add(mail.call("hello"), every(60), key="greet")
    clock.advance(61)
    role.turn()
    app.schedules.edit("greet", rule=every(10), call=mail.call("bye"), queue_name="post")
    clock.advance(10)
    role.turn()
    clock.advance(100)
    role.turn()
    jobs = list(app.inspection.jobs(Selection()))
    assert [job.queue for job in jobs] == ["default", "post"]
    assert app.schedules.get("greet").next_at is None, "both repeats are used up"
    app.schedules.edit("greet", repeats=5)
    app.schedules.pause("greet")
    clock.advance(100)
    role.turn()
    assert len(enqueued(app)) == 2
    app.schedules.resume("greet")
    role.turn()
    assert len(enqueued(app)) == 2, "what passed meanwhile is not made up for"
    clock.advance(10)
    role.turn()
    assert len(enqueued(app)) == 3
    assert len(app.schedules.upcoming("greet", 3)) == 3
    app.schedules.remove("greet")
    with pytest.raises(ScheduleNotFound, match="greet"):
        app.schedules.get("greet")
    acts = [audit.act for audit in app.inspection.audit()]
    assert acts.count("schedule") == 5
    assert acts.count("remove_schedule") == 1


def test_declared_schedules_are_changed_in_code_only(app: Packhorse):
    @app.recurring("@daily", key="daily")
    @app.task(name="work")
    def work() -> None: ...

    scheduler(app)
    for act in (lambda: app.schedules.edit("daily", repeats=3), lambda: app.schedules.remove("daily")):
        with pytest.raises(ConfigError, match="declared in the code"):
            act()
    app.schedules.pause("daily")
    assert app.schedules.get("daily").next_at is None


def test_1B_31_ten_schedulers_make_one_job_of_each_moment(make_app: MakeApp, clock: ManualClock):
    app = make_app(clock=clock)
    app.task(name="work", keep_succeeded=0)(lambda: None)
    for number in range(5):
        app.schedules.add(app.tasks["work"].call(), every(60), key=f"s{number}", misfire="all")
    roles = [Scheduler(app) for _ in range(10)]
    for _ in range(20):
        clock.advance(60)
        barrier = threading.Barrier(len(roles))

        def turn(role: Scheduler, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            role.turn()

        threads = [threading.Thread(target=turn, args=(role,)) for role in roles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(enqueued(app)) == 100
    assert len(app.schedules.ticks("s0")) == 20


def test_one_malformed_schedule_among_ten_is_reported_and_nine_run_on_time(app: Packhorse, clock: ManualClock):
    app.task(name="work")(lambda: None)
    for number in range(9):
        app.schedules.add(app.tasks["work"].call(), every(60), key=f"s{number}")
    rows: dict[str, Any] = {
        "bad-rule": {"rule": "cron: 99 * * * *"},
        "bad-zone": {"zone": "Europe/Atlantis"},
        "bad-payload": {"payload": b"forged"},
        "no-task": {"task": "gone"},
        "bad-overlap": {"overlap": "sometimes"},
    }
    good = app.store.schedule("s0")
    assert good is not None
    for key, fields in rows.items():
        row = StoredSchedule(key=key, task="work", rule="every 60s", payload=good.payload, next_at=good.next_at)
        app.store.put_schedule(replace(row, **fields), "eve", "")
    clock.advance(60)
    role = scheduler(app)
    role.turn()
    assert len(enqueued(app)) == 9
    assert broken(app) == {"bad-rule", "bad-zone", "bad-overlap"}, "another scheduler may know better of the others"
    clock.advance(PATIENCE / SECOND)
    role.turn()
    assert broken(app) == set(rows)
    clock.advance(60)
    role.turn()
    assert len(enqueued(app)) == 18


def test_missed_moments_are_made_up_for_as_the_schedule_says(app: Packhorse, clock: ManualClock):
    app.task(name="work")(lambda: None)
    for misfire in ("skip", "once", "all"):
        app.schedules.add(app.tasks["work"].call(), every(600), key=misfire, misfire=misfire)
    role = scheduler(app)
    clock.advance(600)
    role.turn()
    clock.advance(3_000 + 300)
    role.turn()
    counts = {key: len(app.schedules.ticks(key)) for key in ("skip", "once", "all")}
    assert counts == {"skip": 1, "once": 2, "all": 6}


def test_overlap_skip_leaves_moments_out_while_the_last_job_is_unfinished(app: Packhorse, clock: ManualClock):
    app.task(name="work")(lambda: None)
    app.schedules.add(app.tasks["work"].call(), every(60), key="s", overlap="skip")
    role = scheduler(app)
    for _ in range(3):
        clock.advance(60)
        role.turn()
    assert len(enqueued(app)) == 1
    assert [tick.job is None for tick in app.schedules.ticks("s")] == [True, True, False]
    app.control.cancel([job.id for job in app.inspection.jobs(Selection())])
    clock.advance(60)
    role.turn()
    assert len(enqueued(app)) == 2


def test_overlap_queue_lets_them_run_one_after_the_other(make_app: MakeApp, clock: ManualClock):
    app = make_app(clock=clock)
    app.task(name="work")(lambda: None)
    app.schedules.add(app.tasks["work"].call(), every(60), key="s", overlap="queue", misfire="all")
    clock.advance(180)
    scheduler(app).turn()
    app.store.promote(100)
    states = [job.state for job in app.inspection.jobs(Selection())]
    assert sorted(states) == [JobState.READY, JobState.WAITING, JobState.WAITING]


def test_a_moment_that_had_its_job_gets_no_second_one_though_the_schedule_was_set_back(
    app: Packhorse, clock: ManualClock
):
    app.task(name="work", keep_succeeded=0)(lambda: None)
    app.schedules.add(app.tasks["work"].call(), every(60), key="s", misfire="all")
    role = scheduler(app)
    clock.advance(120)
    role.turn()
    row = app.store.schedule("s")
    assert row is not None
    assert row.handled is not None
    app.control.cancel([job.id for job in app.inspection.jobs(Selection())])
    app.store.put_schedule(replace(row, handled=row.handled - 600 * SECOND, next_at=row.handled), "ann", "")
    role.turn()
    ticked = [tick.moment for tick in app.schedules.ticks("s")]
    assert len(ticked) == len(set(ticked))
    assert len(enqueued(app)) == len(ticked)


def test_once_runs_once_also_when_its_time_has_passed(app: Packhorse, clock: ManualClock):
    app.task(name="work")(lambda: None)
    now = to_datetime(clock.now())
    app.schedules.add(app.tasks["work"].call(), once(now + MINUTE), key="later")
    app.schedules.add(app.tasks["work"].call(), once(now - MINUTE), key="before")
    role = scheduler(app)
    role.turn()
    assert len(enqueued(app)) == 1
    for _ in range(5):
        clock.advance(60)
        role.turn()
    assert len(enqueued(app)) == 2


def test_the_rules_of_the_task_count_for_its_scheduled_jobs(app: Packhorse, clock: ManualClock):
    @app.task(name="work", unique=True)
    def work() -> None: ...

    app.schedules.add(work.call(), every(60), key="s")
    role = scheduler(app)
    for _ in range(3):
        clock.advance(60)
        role.turn()
    assert len(enqueued(app)) == 1
    assert len(app.schedules.ticks("s")) == 3


def test_old_ticks_are_pruned(app: Packhorse, clock: ManualClock):
    app.task(name="work")(lambda: None)
    app.schedules.add(app.tasks["work"].call(), every(86_400), key="s")
    role = scheduler(app)
    for _ in range(3):
        clock.advance(86_400)
        role.turn()
    clock.advance(29 * 86_400)
    app.store.prune(app.settings.retention, 10)
    assert len(app.schedules.ticks("s")) == 1


def test_the_applications_time_zone_counts_where_a_schedule_names_none(make_app: MakeApp):
    app = make_app(time_zone="Asia/Tokyo")
    app.task(name="work")(lambda: None)
    assert app.schedules.add(app.tasks["work"].call(), "0 3 * * *", key="a").zone == "Asia/Tokyo"
    assert app.schedules.add(app.tasks["work"].call(), "0 3 * * *", key="b", zone="UTC").zone == "UTC"
    with pytest.raises(ConfigError, match="time_zone must be"):
        make_app(time_zone="Nowhere")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rule": "every now and then"}, "rule|schedule|cron"),
        ({"rule": "0 0 30 2 *"}, "30"),
        ({"rule": "@daily", "zone": "Europe/Berlinn"}, "Europe/Berlin"),
        ({"rule": "@daily", "key": "no good"}, "schedule key"),
        ({"rule": "@daily", "key": "x" * 120}, "at most 100"),
        ({"rule": "@daily", "repeats": -2}, "repeats"),
        ({"rule": "@daily", "misfire": "never"}, "misfire"),
        ({"rule": "@daily", "overlap": "never"}, "overlap"),
        ({"rule": "@daily", "grace": -1}, "grace"),
        ({"rule": "@daily", "jitter": "long"}, "jitter"),
        ({"rule": "@daily", "start": "soon"}, "start takes a datetime"),
        ({"rule": "@daily", "start": datetime(2026, 5, 2), "end": datetime(2026, 5, 1)}, "no moment between"),
        ({"rule": "61 * * * *"}, "Cannot use the cron expression"),
        ({"rule": "@dayly"}, "There is no cron word"),
        ({"rule": "every 0s"}, "at least one second"),
        ({"rule": 5}, "rule of a schedule"),
        ({"rule": "@daily", "queue_name": "no good"}, "queue name"),
        ({"rule": "@daily", "priority": 1000}, "priority"),
    ],
)
def test_bad_schedules_are_refused_where_they_are_made(app: Packhorse, options: dict[str, Any], why: str):
    task = app.task(name="work")(lambda: None)
    bounds: Any = {name: value for name, value in {"key": "k", **options}.items() if name != "rule"}
    with pytest.raises(ConfigError, match=why):
        app.schedules.add(task.call(), options["rule"], **bounds)
    with pytest.raises(ConfigError, match=why):
        app.recurring(options["rule"], **bounds)(task)
    assert (list(app.schedules.all()), app.schedules.declared) == ([], [])


def test_a_schedule_is_declared_once_and_on_a_task(app: Packhorse):
    task = app.recurring("@daily")(app.task(name="work")(lambda: None))
    for make, why in (
        (lambda: app.recurring("@weekly")(task), "There is a schedule 'work' already"),
        (lambda: app.recurring("@weekly", key="other")(print), "goes on a task"),  # type: ignore[type-var]
    ):
        with pytest.raises(ConfigError, match=why):
            make()
    with pytest.raises(TypeError, match="cannot be called like this"):
        app.recurring("@weekly", key="other", args=(1,))(task)
    assert [it.key for it in app.schedules.declared] == ["work"]


async def test_the_async_names_do_the_same(app: Packhorse):
    task = app.task(name="work")(lambda: None)
    view = await app.schedules.aadd(task.call(), "@daily", key="k")
    assert await app.schedules.aget("k") == view
    assert [it.key async for it in app.schedules.aall()] == ["k"]
    assert (await app.schedules.arun_now("k")).id
    await app.schedules.aremove("k")


# Arguments that only their codec reads, or that nobody may see.


@pytest.mark.parametrize(
    "settings", [{}, {"encryption": True, "keys": (secrets.token_urlsafe(32),)}], ids=["plain", "encrypted"]
)
@pytest.mark.parametrize("codec", [None, PickleCodec()], ids=["own", "pickle"])
def test_changed_arguments_begin_anew_and_equal_ones_do_not(
    make_app: MakeApp, clock: ManualClock, settings: dict[str, Any], codec: PickleCodec | None
):
    """Whoever wrote them, in whatever order, and though nothing of them is shown."""
    store = make_app(clock=clock).store
    seen: list[Any] = []

    def deploy(*args: Any) -> Packhorse:
        fresh = Packhorse("shop", store, clock=clock, **settings)
        options: Any = {"codec": codec}
        task = fresh.task(name="work", **options)(lambda *args: seen.append(args))
        fresh.recurring(every(60), key="often", args=args)(task)
        scheduler(fresh)
        return fresh

    deploy({"a": 1, "b": 2}, {5, 6})
    before = store.schedule("often")
    clock.advance(10)
    deploy({"b": 2, "a": 1} if codec is not None else {"a": 1, "b": 2}, {6, 5})
    assert store.schedule("often") == before
    app = deploy({"a": 1, "b": 3}, {5, 6})
    after = store.schedule("often")
    assert before is not None
    assert after is not None
    assert after.fingerprint != before.fingerprint
    role = Scheduler(app)
    clock.advance(60)
    role.turn()
    with Embedded(app):
        wait_until(lambda: seen == [({"a": 1, "b": 3}, {5, 6})])
        app.schedules.run_now("often")
        wait_until(lambda: len(seen) == 2)


def test_a_codec_that_cannot_compare_its_arguments_begins_anew(make_app: MakeApp, clock: ManualClock):
    """Rather than keep what may be old."""
    store = make_app(clock=clock).store

    def deploy() -> str:
        fresh = Packhorse("shop", store, clock=clock)
        task: Any = fresh.task(name="work", codec=PickleCodec())(lambda thing: None)
        fresh.recurring(every(60), key="often", args=(Incomparable(),))(task)
        scheduler(fresh)
        row = store.schedule("often")
        assert row is not None
        assert row.error == ""
        return row.fingerprint

    assert deploy() != deploy()


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise ValueError

    __hash__ = None  # type: ignore[assignment]


def test_a_store_that_fails_is_no_fault_of_a_schedule(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch):
    """It is not written down as its error."""
    app = make_app()
    task: Any = app.task(name="work", codec=PickleCodec())(lambda: None)
    app.recurring(every(60))(task)

    def fail(key: str) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(app.store, "schedule", fail)
    with pytest.raises(StoreUnavailable):
        app.schedules.save()


def test_a_task_with_a_codec_is_scheduled_at_run_time_too(app: Packhorse, clock: ManualClock):
    seen: list[Any] = []
    task: Any = app.task(name="work", codec=PickleCodec())(lambda *args, **kwargs: seen.append((args, kwargs)))
    app.schedules.add(task.call(1, at={2}), every(60), key="often")
    role = scheduler(app)
    clock.advance(61)
    role.turn()
    app.schedules.edit("often", call=task.call(frozenset({3})))
    clock.advance(60)
    role.turn()
    with Embedded(app):
        wait_until(lambda: len(seen) == 2)
    assert seen == [((1,), {"at": {2}}), ((frozenset({3}),), {})]
    with pytest.raises(PayloadError, match="the task's own codec"):
        app.schedules.shown_arguments("often")


# By hand.


def test_a_job_besides_the_moments_says_who_asked_and_why(app: Packhorse):
    task = app.task(name="work")(lambda: None)
    app.schedules.add(task.call(), "@daily", key="k", actor="ann")
    app.schedules.run_now("k", reason="they cannot wait", actor="bob")
    app.schedules.run_now("k")
    mine, bobs, _ = app.inspection.audit()
    assert (bobs.actor, bobs.act, bobs.reason, bobs.jobs) == ("bob", "run_schedule", "they cannot wait", 1)
    assert (mine.actor, mine.reason) == (me(), "")
    with pytest.raises(ScheduleNotFound):
        app.schedules.run_now("unknown", reason="no")
    assert len(app.inspection.audit()) == 3


def test_inline_a_job_besides_the_moments_is_performed_at_once(app: Packhorse):
    """Behind the stroke that inserts it: others may use the store meanwhile."""

    @app.task(name="ask")
    def ask() -> int:
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(lambda: len(app.inspection.audit())).result(timeout=20)

    with inline(app):
        app.schedules.add(ask.call(), "@daily", key="k")
        assert app.schedules.run_now("k").result(timeout=0) == 2


# One that another scheduler may understand, and one that nobody does.


def test_a_single_moment_outlives_a_scheduler_that_does_not_know_its_task(make_app: MakeApp, clock: ManualClock):
    """However long the code with the task takes to come."""
    app = make_app(clock=clock)
    old = Packhorse("shop", app.store, clock=clock)
    app.task(name="work")(lambda: None)
    app.schedules.add(app.tasks["work"].call(), once(to_datetime(clock.now()) + MINUTE), key="s")
    clock.advance(60)
    for _ in range(5):
        scheduler(old).turn()
        clock.advance(30)
    assert app.schedules.get("s").error
    clock.advance(60)
    scheduler(app).turn()
    assert enqueued(app) == ["work"]
    assert app.schedules.get("s").error == ""


def test_moments_come_in_time_though_another_application_sees_them_first(make_app: MakeApp, clock: ManualClock):
    """Two applications may share a store, and so may old code and new."""
    app = make_app(clock=clock)
    app.task(name="work")(lambda: None)
    app.schedules.add(app.tasks["work"].call(), every(60), key="s")
    others = scheduler(Packhorse("blog", app.store, clock=clock))
    ours = scheduler(app)
    for _ in range(3):
        clock.advance(60)
        others.turn()
        ours.turn()
    assert len(enqueued(app)) == 3


def test_one_that_the_store_does_not_take_holds_up_no_other(
    app: Packhorse, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    app.task(name="work")(lambda: None)
    for key in "abc":
        app.schedules.add(app.tasks["work"].call(), every(60), key=key)
    tick = app.store.tick

    def picky(schedule: StoredSchedule, jobs: Any, **rest: Any) -> Any:
        if schedule.key == "a" and jobs:
            raise StoreDataError("no such bird")
        return tick(schedule, jobs, **rest)

    monkeypatch.setattr(app.store, "tick", picky)
    clock.advance(60)
    scheduler(app).turn()
    assert len(enqueued(app)) == 2
    assert app.schedules.get("a").error == "no such bird"


def test_a_declared_one_with_impossible_arguments_is_reported_and_the_others_run(app: Packhorse, clock: ManualClock):
    app.task(name="work")(lambda what=None: None)
    for key, args in {"a": (), "b": (object(),), "c": (1,)}.items():
        app.recurring(every(60), key=key, args=args)(app.tasks["work"])
    app.schedules.add(app.tasks["work"].call(), every(60), key="d")
    role = scheduler(app)
    clock.advance(60)
    role.turn()
    assert len(enqueued(app)) == 3
    view = app.schedules.get("b")
    assert (view.declared, view.next_at) == (True, None)
    assert "object" in view.error


# What others do between a look and an act.


def ticked_meanwhile(app: Packhorse, monkeypatch: pytest.MonkeyPatch, role: Scheduler) -> None:
    """Whoever looks at a schedule next acts upon it only after a tick."""
    look = app.store.schedule

    def late(key: str) -> StoredSchedule | None:
        found = look(key)
        monkeypatch.setattr(app.store, "schedule", look)
        role.turn()
        return found

    monkeypatch.setattr(app.store, "schedule", late)


@pytest.mark.parametrize("act", ["edit", "pause", "resume"])
def test_an_act_takes_back_nothing_that_a_tick_did_meanwhile(
    app: Packhorse, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, act: str
):
    app.task(name="work")(lambda: None)
    app.schedules.add(app.tasks["work"].call(), every(60), key="s", repeats=1, overlap="skip")
    role = scheduler(app)
    clock.advance(60)
    ticked_meanwhile(app, monkeypatch, role)
    if act == "edit":
        app.schedules.edit("s", queue_name="slow")
    else:
        getattr(app.schedules, act)("s")
    view = app.schedules.get("s")
    assert (view.repeats, view.last_job is None) == (0, False)


def test_a_changed_declaration_remembers_the_job_that_still_runs(make_app: MakeApp, clock: ManualClock):
    """Or a deployment would let two of them overlap."""
    app = make_app(clock=clock)

    def deploy(**options: Any) -> Scheduler:
        fresh = Packhorse("shop", app.store, clock=clock)
        fresh.recurring(every(60), key="s", overlap="skip", **options)(fresh.task(name="work")(lambda: None))
        return scheduler(fresh)

    for priority in (0, 1):
        role = deploy(priority=priority)
        clock.advance(60)
        role.turn()
    assert len(enqueued(app)) == 1


def test_subscribers_are_told_of_the_jobs(app: Packhorse, clock: ManualClock):
    told = []
    app.subscribe("enqueued")(lambda event: told.append(event.job_id))
    app.task(name="work")(lambda: None)
    app.schedules.add(app.tasks["work"].call(), every(60), key="s", overlap="skip")
    role = scheduler(app)
    for _ in range(2):
        clock.advance(60)
        role.turn()
    app.schedules.run_now("s")
    app.events.flush()
    assert told == [job.id for job in app.inspection.jobs(Selection())]
    assert len(told) == 2
