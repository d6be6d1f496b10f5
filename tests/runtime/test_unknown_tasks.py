"""Jobs of tasks that a worker does not know, or knows in another version: deploys overlap, and nothing is lost."""

import functools
import logging
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import pytest

from packhorse import (
    ConfigError,
    Context,
    DuplicateTask,
    Embedded,
    FailureKind,
    Fixed,
    JobFailed,
    JobState,
    Packhorse,
    PayloadError,
)
from packhorse.clock import SECOND, ManualClock
from packhorse.codec import Encoded
from packhorse.ids import new_id
from packhorse.job import NewJob
from tests.waiting import wait_until

SOON = 60.0
NEVER = 10.0**6  # seconds; a lease that outlasts every step of a clock
MakeApp = Callable[..., Packhorse]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make_app(make_app: MakeApp, clock: ManualClock) -> MakeApp:
    """Applications whose time the test moves; those of one test are versions of one program."""
    return functools.partial(make_app, clock=clock, lease=NEVER)


def put_back(job: Any, before: datetime | None = None) -> datetime:
    """When the job will be ready again, after it was put back anew."""

    def moved() -> datetime | None:
        seen = job.look()
        return seen.run_at if seen.state is JobState.SCHEDULED and seen.run_at != before else None

    moment = wait_until(moved, "the job is put back")
    assert moment is not None
    return moment


def failure_of(job: Any) -> Any:
    with pytest.raises(JobFailed) as caught:
        job.result(SOON)
    return caught.value.failure


# Unknown names.


def test_a_job_of_an_unknown_task_is_put_back_with_growing_waits(make_app: MakeApp, clock: ManualClock):
    """One second, then twice as long each time, up to a minute; it is no attempt and leaves no trace."""
    knowing, old = make_app(), make_app()

    @knowing.task(name="shop.novel", retries=0)
    def novel() -> None: ...

    job = novel.enqueue()
    waits: list[float] = []
    moment = None
    with Embedded(old):
        for _ in range(9):
            before = clock.now()
            moment = put_back(job, moment)
            waits.append(round(moment.timestamp() - before / SECOND, 3))
            seen = job.look()
            assert (seen.attempts, seen.losses, seen.failure, seen.failures) == (0, 0, None, ())
            assert (seen.process, seen.started_at, seen.finished_at) == (None, None, None)
            clock.advance(waits[-1])
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_worker_that_knows_it_performs_it(make_app: MakeApp, clock: ManualClock):
    """However often it came to others before, this is the first attempt."""
    knowing, old = make_app(), make_app()

    @knowing.task(name="shop.novel", takes_context=True)
    def novel(context: Context, number: int) -> tuple[int, int]:
        return context.attempt, number

    job = novel.enqueue(7)
    with Embedded(old):
        moment = put_back(job)
        clock.advance(1)
        put_back(job, moment)
    clock.advance(60)
    with Embedded(knowing):
        assert job.result(SOON) == (1, 7)
    assert job.look().attempts == 1
    assert job.look().failures == ()


def test_both_workers_at_once_perform_it_in_the_end(make_app: MakeApp, clock: ManualClock):
    """As during a deploy: it goes from the one to the other, and no slot is kept busy by it."""
    knowing, old = make_app(), make_app()

    @knowing.task(name="shop.novel")
    def novel(number: int) -> int:
        return number

    @old.task(name="shop.other")
    def other() -> str:
        return "fine"

    with Embedded(old, concurrency=1):
        jobs = [novel.enqueue(number) for number in range(20)]
        assert other.enqueue().result(SOON) == "fine"
        wait_until(lambda: all(job.state is JobState.SCHEDULED for job in jobs))
        with Embedded(knowing):

            def passing_time() -> bool:
                clock.advance(1)
                return all(job.state.finished for job in jobs)

            wait_until(passing_time)
    assert [job.result(0) for job in jobs] == list(range(20))


def test_it_fails_once_it_was_unknown_for_long_enough(make_app: MakeApp, clock: ManualClock):
    """After `unknown_task_timeout` of waiting, as an unknown task, and unspent."""
    knowing, old = make_app(), make_app(unknown_task_timeout=10)

    @knowing.task(name="shop.novel", retries=5)
    def novel() -> str:
        return "known"

    job = novel.enqueue()
    began, moment = clock.now(), None
    with Embedded(old):
        for wait in (1, 2, 4, 3):  # the last one is cut short
            moment = put_back(job, moment)
            assert moment.timestamp() == clock.now() / SECOND + wait
            clock.advance(wait)
        failure = failure_of(job)
    assert (clock.now() - began) / SECOND == 10
    assert failure.kind is FailureKind.UNKNOWN_TASK
    assert "there is no task 'shop.novel' in application 'shop'. Start a worker whose code has it" in failure.message
    assert job.look().attempts == 0
    assert job.retry()
    with Embedded(old):
        assert put_back(job, moment).timestamp() == clock.now() / SECOND + 1  # with all the patience it had at first
    clock.advance(1)
    with Embedded(knowing):
        assert job.result(SOON) == "known"


def test_without_patience_it_fails_at_once(make_app: MakeApp):
    knowing, old = make_app(), make_app(unknown_task_timeout=0)

    @knowing.task(name="shop.novel")
    def novel() -> None: ...

    job = novel.enqueue()
    with Embedded(old):
        assert failure_of(job).kind is FailureKind.UNKNOWN_TASK


def test_waiting_for_a_worker_that_knows_it_is_said_quietly(make_app: MakeApp, caplog: pytest.LogCaptureFixture):
    """A deploy is no emergency; giving up is one."""
    knowing, old, hasty = make_app(), make_app(), make_app(unknown_task_timeout=0)

    @knowing.task(name="shop.novel")
    def novel(password: str) -> None: ...

    job = novel.enqueue("unspeakable")
    with caplog.at_level(logging.DEBUG):
        with Embedded(old):
            put_back(job)
        knowing.control.run_now([job.id])
        with Embedded(hasty):
            failure_of(job)
    levels = [record.levelno for record in caplog.records if "was not performed" in record.getMessage()]
    assert levels == [logging.INFO, logging.ERROR]
    assert "unspeakable" not in caplog.text


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "__import__", "packhorse.app.Packhorse", "shop.n\u043evel"]
)
def test_a_name_is_looked_up_and_never_imported(make_app: MakeApp, name: str, monkeypatch: pytest.MonkeyPatch):
    """Whoever can sign a job still calls nothing but declared tasks; the last name has a Cyrillic letter."""
    app = make_app(unknown_task_timeout=0)
    called: list[Any] = []
    monkeypatch.setattr(os, "system", called.append)

    @app.task(name="shop.novel")
    def novel(*args: str) -> None:
        called.append(args)

    id, body = new_id(), app.codec.encode_arguments(("true",), {}).body
    payload = app.seals.job(id, name, Encoded(body, False), created=app.clock.now(), expires=None, version=1)
    app.store.insert([NewJob(id, name, payload)])
    with Embedded(app):
        assert failure_of(app.job(uuid.UUID(bytes=id))).kind is FailureKind.UNKNOWN_TASK
    assert called == []


def test_a_forged_job_of_an_unknown_task_is_not_put_back(make_app: MakeApp):
    """It is verified before its name is looked up."""
    app = make_app()
    assert app.seals.signed  # SQLite makes no key where jobs are that it never signed
    id = new_id()
    app.store.insert([NewJob(id, "shop.unknown", b"forged")])
    with Embedded(app):
        assert failure_of(app.job(uuid.UUID(bytes=id))).kind is FailureKind.UNDECODABLE


# Aliases.


@pytest.mark.parametrize("coroutine", [False, True])
def test_an_alias_is_another_name_for_the_same_task(make_app: MakeApp, coroutine: bool):
    """Jobs enqueued under the old name are performed by the task it has become, with its options."""
    old, new = make_app(), make_app()

    @old.task(name="shop.resize")
    def resize(photo: int) -> Any: ...

    @old.task(name="shop.photos.resize")
    def moved(photo: int) -> Any: ...

    runs: list[str] = []

    def work(context: Context, photo: int) -> int:
        runs.append(context.task)
        if len(runs) == 1:
            raise ValueError
        return photo

    async def awork(context: Context, photo: int) -> int:
        return work(context, photo)

    task: Any = new.task(
        name="shop.media.resize",
        aliases=("shop.resize", "shop.photos.resize"),
        takes_context=True,
        retries=1,
        backoff=Fixed(0),
    )(awork if coroutine else work)
    with Embedded(new, concurrency=1):
        assert [job.result(SOON) for job in (resize.enqueue(1), moved.enqueue(2), task.enqueue(3))] == [1, 2, 3]
    assert sorted(runs) == sorted([runs[0], "shop.resize", "shop.photos.resize", "shop.media.resize"])
    assert list(new.tasks) == ["shop.media.resize"]


def test_an_alias_must_be_free(make_app: MakeApp):
    """Of the names and the aliases of other tasks."""
    app = make_app()

    @app.task(name="one", aliases=("uno",))
    def one() -> None: ...

    for name, aliases in (("two", ("one",)), ("two", ("uno",)), ("uno", ()), ("one", ())):
        with pytest.raises(DuplicateTask):
            app.task(name=name, aliases=aliases)(lambda: None)
    assert list(app.known_tasks) == ["one", "uno"]


@pytest.mark.parametrize("aliases", ["old", ["old"], ("no good",), (7,)])
def test_aliases_are_checked(make_app: MakeApp, aliases: Any):
    """A text would be many aliases of one letter."""
    with pytest.raises(ConfigError, match="alias"):
        make_app().task(name="new", aliases=aliases)(lambda: None)


# Payload versions.


def versions(make_app: MakeApp, old: dict[str, Any], new: dict[str, Any], function: Callable[..., Any]) -> Any:
    """The old task, and the new application with the function as the task of the same name."""
    before, after = make_app(), make_app()

    def greet(*args: Any, **kwargs: Any) -> Any: ...

    task = before.task(name="shop.greet", **old)(greet)
    after.task(name="shop.greet", **new)(function)
    return task, after


@pytest.mark.parametrize("coroutine", [False, True])
def test_an_older_payload_is_upgraded(make_app: MakeApp, coroutine: bool):
    """By a function that is told the version, and gives the arguments as the task takes them now."""
    seen: list[tuple[Any, ...]] = []

    def upgrade(version: int, args: list[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        seen.append((version, args, kwargs))
        first, last = args
        return (f"{first} {last}",), {"loud": kwargs["shout"]}

    def work(name: str, *, loud: bool = False) -> str:
        return name.upper() if loud else name

    async def awork(name: str, *, loud: bool = False) -> str:
        return work(name, loud=loud)

    greet, after = versions(make_app, {}, {"version": 3, "upgrade": upgrade}, awork if coroutine else work)
    with Embedded(after):
        assert greet.enqueue("Ann", "Lee", shout=True).result(SOON) == "ANN LEE"
        assert after.tasks["shop.greet"].enqueue("Bob", loud=False).result(SOON) == "Bob"
    assert seen == [(1, ["Ann", "Lee"], {"shout": True})]


def test_an_upgrade_is_asked_once_for_each_attempt(make_app: MakeApp):
    """Each attempt begins with what was enqueued."""
    calls: list[int] = []

    def upgrade(version: int, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        calls.append(version)
        args[0].append("upgraded")
        return args, kwargs

    def work(context: Context, words: list[str]) -> list[str]:
        if context.attempt == 1:
            raise ValueError
        return words

    new = {"version": 2, "upgrade": upgrade, "takes_context": True, "retries": 1, "backoff": 0}
    greet, after = versions(make_app, {}, new, work)
    with Embedded(after):
        assert greet.enqueue(["hello"]).result(SOON) == ["hello", "upgraded"]
    assert calls == [1, 1]


def test_a_payload_newer_than_the_worker_is_put_back(make_app: MakeApp, clock: ManualClock):
    """As if the task were unknown, until a worker with the newer code comes."""
    new, old = make_app(), make_app()

    @new.task(name="shop.greet", version=2)
    def greet(name: str, loud: bool) -> str:
        return name.upper() if loud else name

    @old.task(name="shop.greet")
    def greet_before(name: str) -> str:
        raise AssertionError("performed by the wrong worker")

    job = greet.enqueue("Ann", True)
    with Embedded(old):
        moment = put_back(job)
        assert moment.timestamp() == clock.now() / SECOND + 1
        clock.advance(1)
        put_back(job, moment)
    clock.advance(60)
    with Embedded(new):
        assert job.result(SOON) == "ANN"
    assert job.look().attempts == 1


def test_a_payload_newer_than_every_worker_fails_in_the_end(make_app: MakeApp):
    new, old = make_app(), make_app(unknown_task_timeout=0)

    @new.task(name="shop.greet", version=2)
    def greet() -> None: ...

    old.task(name="shop.greet")(lambda: None)
    job = greet.enqueue()
    with Embedded(old):
        failure = failure_of(job)
    assert failure.kind is FailureKind.UNKNOWN_TASK
    assert "its payload is newer than this worker's version of task 'shop.greet'" in failure.message


@pytest.mark.parametrize(
    ("upgrade", "complaint"),
    [
        (None, "has payload version 1, and task 'shop.greet' has no upgrade function to make it 2"),
        (lambda version, args, kwargs: 1 / 0, "Upgrading from payload version 1 raised ZeroDivisionError"),
        (lambda version, args, kwargs: None, "Upgrading from payload version 1 raised TypeError"),
        (lambda version, args, kwargs: (1, 2), "Upgrading from payload version 1 raised TypeError"),
        (lambda version, args, kwargs: ((), {}, ()), "Upgrading from payload version 1 raised ValueError"),
        (lambda version, args, kwargs: ((1, 2, 3), {}), "cannot be called like this"),
    ],
    ids=["missing", "raises", "none", "numbers", "three", "wrong arguments"],
)
def test_a_payload_that_cannot_be_upgraded_is_undecodable(make_app: MakeApp, upgrade: Any, complaint: str):
    """It is not retried, the argument is not told, and the next job is performed."""
    runs: list[str] = []
    new = {"version": 2, "upgrade": upgrade, "retries": 5, "backoff": 0}
    greet, after = versions(make_app, {}, new, lambda name: runs.append(name))
    with Embedded(after, concurrency=1):
        job = greet.enqueue("unspeakable")
        failure = failure_of(job)
        after.tasks["shop.greet"].enqueue("next").result(SOON)
    assert failure.kind is FailureKind.UNDECODABLE
    assert complaint in failure.message
    assert "unspeakable" not in failure.message + failure.traceback
    assert job.look().attempts == 0
    assert runs == ["next"]


def test_an_upgrade_that_exits_fails_the_job_and_not_the_worker(make_app: MakeApp):
    def upgrade(version: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
        raise SystemExit(3)

    greet, after = versions(make_app, {}, {"version": 2, "upgrade": upgrade}, lambda name: name)
    with Embedded(after, concurrency=1):
        failure_of(greet.enqueue("Ann"))
        assert after.tasks["shop.greet"].enqueue("next").result(SOON) == "next"


@pytest.mark.parametrize("version", [-1, 65_536, 1.5, "2", True, None])
def test_a_version_is_a_small_whole_number(make_app: MakeApp, version: Any):
    with pytest.raises(ConfigError, match="version must be a whole number from 0 to 65,535"):
        make_app().task(name="greet", version=version)(lambda: None)


@pytest.mark.parametrize("version", [0, 65_535])
def test_the_smallest_and_the_largest_version_travel(make_app: MakeApp, version: int):
    app = make_app()

    @app.task(version=version)
    def greet() -> str:
        return "hello"

    with Embedded(app):
        assert greet.enqueue().result(SOON) == "hello"


# Signatures that changed without a version.


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    number: int


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda: None, (("unspeakable",), {})),
        (lambda name, other: None, (("unspeakable",), {})),
        (lambda *, name: None, (("unspeakable",), {})),
        (lambda name: None, ((), {"title": "unspeakable"})),
        (lambda name, /: None, ((), {"name": "unspeakable"})),
    ],
    ids=["fewer", "more", "keyword only", "renamed", "positional only"],
)
def test_a_task_whose_signature_changed_is_undecodable(make_app: MakeApp, function: Any, given: Any):
    """It is not retried: no attempt of this code would go better."""
    args, kwargs = given
    greet, after = versions(make_app, {}, {"retries": 5, "backoff": 0}, function)
    with Embedded(after):
        job = greet.enqueue(*args, **kwargs)
        failure = failure_of(job)
    assert failure.kind is FailureKind.UNDECODABLE
    assert "cannot be called like this" in failure.message
    assert "declare an upgrade, or enqueue anew" in failure.message
    assert "unspeakable" not in failure.message + failure.traceback
    assert job.look().attempts == 0


def test_an_argument_whose_type_changed_is_undecodable(make_app: MakeApp):
    """What is stored is loaded as the annotation says, or not at all."""

    def paint(value: Colour) -> None: ...

    def ship(value: Order) -> None: ...

    functions: list[Callable[..., Any]] = [paint, ship]
    for number, function in enumerate(functions):
        before, after = make_app(), make_app()
        name = f"shop.work{number}"

        @before.task(name=name)
        def work(value: Any) -> None: ...

        after.task(name=name, retries=5)(function)
        with Embedded(after):
            for value in ("unspeakable", {"unspeakable, as a key": 1}, ["unspeakable"]):
                failure = failure_of(work.enqueue(value))
                assert failure.kind is FailureKind.UNDECODABLE
                assert "Cannot load argument 'value'" in failure.message
                assert "unspeakable" not in failure.message + failure.traceback


def test_a_type_that_is_no_longer_registered_is_undecodable(make_app: MakeApp):
    """Its tag means nothing, and nothing is imported for it."""

    class Money:
        def __init__(self, cents: int) -> None:
            self.cents = cents

    before, after = make_app(), make_app()
    before.register_type(Money, name="money", encode=lambda it: it.cents, decode=Money)

    @before.task(name="shop.pay")
    def pay(amount: Any) -> None: ...

    after.task(name="shop.pay")(lambda amount: None)
    with Embedded(after):
        failure = failure_of(pay.enqueue(Money(5)))
    assert failure.kind is FailureKind.UNDECODABLE
    assert "a tag that this application does not know" in failure.message


def test_a_codec_that_a_task_no_longer_has_is_undecodable(make_app: MakeApp):
    class Plain:
        def encode(self, value: Any) -> bytes:
            return repr(value).encode()

        def decode(self, data: bytes) -> Any:
            raise AssertionError

    before, after = make_app(), make_app()

    @before.task(name="shop.pay", codec=Plain())
    def pay(amount: int) -> None: ...

    after.task(name="shop.pay")(lambda amount: None)
    with Embedded(after):
        failure = failure_of(pay.enqueue(5))
    assert failure.kind is FailureKind.UNDECODABLE
    assert "a codec that the task does not have" in failure.message
    with pytest.raises(PayloadError, match="the task's own codec"):
        after.inspection.arguments(after.inspection.stored(str(next(after.inspection.jobs()).id)))
