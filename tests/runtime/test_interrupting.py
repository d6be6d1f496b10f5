"""Interruptions of tasks in threads that are just then inside a call of a store, or of others of our own."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from packhorse import Context, Embedded, FailureKind, Interrupted, JobFailed, Packhorse, TimedOut
from packhorse.errors import PackhorseError
from packhorse.ids import new_id
from packhorse.interrupting import Guard, uninterrupted, waits
from packhorse.job import Token
from packhorse.runtime.seats import Seat
from packhorse.stores import Store
from packhorse.stores.contract import Lent
from packhorse.stores.sql_store import LentSQL
from tests.waiting import wait_until

SOON = 60.0


def token() -> Token:
    return Token(new_id(), 1, new_id(), 1)


class Sitting:
    """A thread that performs one thing after the other; what became of each."""

    def __init__(self) -> None:
        self.seat: Seat | None = None
        self.came: list[object] = []
        self._work: list[tuple[Token, Callable[[], object]]] = []
        self._some = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_until(lambda: self.seat)

    def perform(self, work: Callable[[], object]) -> Token:
        its = token()
        self._work.append((its, work))
        self._some.release()
        return its

    def _run(self) -> None:
        self.seat = seat = Seat()
        while True:
            self._some.acquire()
            its, work = self._work.pop(0)
            try:
                self.came.append(seat.call(its, work))
            except BaseException as error:
                seat.rise()
                self.came.append(type(error))

    def became(self) -> object:
        wait_until(lambda: self.came)
        return self.came.pop(0)


@pytest.fixture
def sitting() -> Sitting:
    return Sitting()


def interrupt(sitting: Sitting, its: Token, error: type[BaseException] = TimedOut) -> bool:
    assert sitting.seat is not None
    wait_until(lambda: sitting.seat and sitting.seat.token == its)
    return sitting.seat.interrupt(its, error)


class Gate:
    """What a guarded function waits at, and whether it is there."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.passed = 0

    @uninterrupted
    def hold(self) -> str:
        self.reached.set()
        while not self.open.wait(0.001):
            pass
        self.passed += 1
        return "held"


def test_it_waits_for_the_end_of_what_is_guarded(sitting: Sitting):
    """And is raised right there, once."""
    gate, went_on = Gate(), []

    def work() -> None:
        gate.hold()
        went_on.append(True)

    its = sitting.perform(work)
    gate.reached.wait(SOON)
    assert interrupt(sitting, its)
    time.sleep(0)
    assert sitting.came == []
    gate.open.set()
    assert sitting.became() is TimedOut
    assert gate.passed == 1
    assert not went_on
    assert sitting.perform(lambda: "next")
    assert sitting.became() == "next"


def test_the_inner_of_two_guards_raises_nothing(sitting: Sitting):
    gate, after = Gate(), []

    @uninterrupted
    def outer() -> None:
        gate.hold()
        after.append(True)

    its = sitting.perform(outer)
    gate.reached.wait(SOON)
    assert interrupt(sitting, its)
    gate.open.set()
    assert sitting.became() is TimedOut
    assert after == [True]


def test_who_catches_it_may_go_on_with_guarded_things(sitting: Sitting):
    """It is not raised a second time."""
    gate = Gate()

    def work() -> list[str]:
        try:
            gate.hold()
        except TimedOut:
            return [gate.hold(), gate.hold()]
        return []

    its = sitting.perform(work)
    gate.reached.wait(SOON)
    assert interrupt(sitting, its)
    gate.open.set()
    assert sitting.became() == ["held", "held"]


def test_of_two_that_wait_the_last_is_raised(sitting: Sitting):
    gate = Gate()

    def work() -> None:
        try:
            gate.hold()
        finally:
            gate.hold()

    its = sitting.perform(work)
    gate.reached.wait(SOON)
    assert interrupt(sitting, its, TimedOut)
    assert interrupt(sitting, its, Interrupted)
    gate.open.set()
    assert sitting.became() is Interrupted
    assert gate.passed == 2


def test_an_error_of_what_is_guarded_does_not_lose_it(sitting: Sitting):
    reached, go = threading.Event(), threading.Event()

    @uninterrupted
    def fail() -> None:
        reached.set()
        go.wait(SOON)
        raise PackhorseError("something else")

    its = sitting.perform(fail)
    reached.wait(SOON)
    assert interrupt(sitting, its)
    go.set()
    assert sitting.became() is TimedOut


def test_one_that_waits_is_not_for_the_next_job(sitting: Sitting):
    """The seat forgets it with the job it was for, where the guard never came down as it should."""
    gate = Gate()
    its = sitting.perform(gate.hold)
    gate.reached.wait(SOON)
    seat = sitting.seat
    assert seat is not None
    assert interrupt(sitting, its)
    seat.token = None
    gate.open.set()
    assert sitting.became() == "held"
    assert not seat.is_expecting
    assert not seat.interrupt(its, TimedOut)


def test_however_the_guard_goes_up_and_down_nothing_is_struck_inside_or_lost(sitting: Sitting):
    """One that is on its way when the guard goes up strikes before anything is done behind it."""
    entered = left = 0

    @uninterrupted
    def guarded() -> None:
        nonlocal entered, left
        entered += 1
        sum(range(20))
        left += 1

    def work() -> str:
        while True:
            guarded()

    for _ in range(300):
        its = sitting.perform(work)
        while not interrupt(sitting, its):
            pass
        assert sitting.became() is TimedOut
        assert entered == left
    assert sitting.seat is not None
    assert not sitting.seat.is_expecting


def test_threads_that_perform_nothing_are_not_guarded():
    gate = Gate()
    gate.open.set()
    assert gate.hold() == "held"


def test_waiting_is_interrupted_between_two_slices(sitting: Sitting):
    """However long the wait is to be."""
    slept: list[float] = []

    class Waiting:
        @waits
        def wait_jobs(self, ids: list[bytes], timeout: float) -> set[bytes]:
            slept.append(timeout)
            time.sleep(min(timeout, 0.01))
            return set()

    its = sitting.perform(lambda: Waiting().wait_jobs([b"a"], 3_600))
    wait_until(lambda: len(slept) > 2)
    assert interrupt(sitting, its)
    assert sitting.became() is TimedOut
    assert max(slept) < 1


def test_one_that_strikes_in_a_destructor_is_raised_again(sitting: Sitting):
    """Python tells of it, and goes on as if nothing had been."""
    inside = threading.Event()

    class Slow:
        def __del__(self) -> None:
            inside.set()
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                pass

    def work() -> None:
        thing = Slow()
        del thing
        while True:
            time.sleep(0.001)

    its = sitting.perform(work)
    inside.wait(SOON)
    assert interrupt(sitting, its)
    assert sitting.became() is TimedOut


def test_whoever_writes_a_log_record_is_let_finish():
    """Some versions of Python take the handler's lock where an exception would leave it taken."""
    guard: list[Guard] = []
    reached, go, done = threading.Event(), threading.Event(), threading.Event()

    def emit() -> None:
        reached.set()
        go.wait(SOON)

    logs: dict[str, Any] = {"__name__": "logging", "emit": emit}
    exec("def handle():\n    emit()", logs)

    def run() -> None:
        guard.append(Guard())
        try:
            logs["handle"]()
            while True:
                time.sleep(0.001)
        except TimedOut:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    reached.wait(SOON)
    assert not guard[0].interrupt(guard[0], TimedOut)
    go.set()
    wait_until(lambda: guard[0].interrupt(guard[0], TimedOut))
    assert done.wait(SOON)


# Tasks.


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Packhorse]:
    if request.param == "postgres":
        server = request.getfixturevalue("postgres")
        url = server.url("postgres", schema="interrupting")
    else:
        url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"
    app = Packhorse("shop", url, heartbeat=0.05, lease=30, polling_interval=0.2, keys=[secrets.token_urlsafe(32)])
    yield app
    app.close()
    if request.param == "postgres":
        server.run("drop schema if exists interrupting cascade")


@contextmanager
def held_up(store: Store, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, Any]]:
    """A method of the store that ends only when it may; whether somebody is in it, and what lets it."""
    method: Any = getattr(type(store), name).__wrapped__
    reached, go = threading.Event(), threading.Event()

    def slow(self: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().name.startswith("packhorse-slot"):
            reached.set()
            while not go.wait(0.001):
                pass
        return method(self, *args, **kwargs)

    monkeypatch.setattr(type(store), name, uninterrupted(slow))
    try:
        yield reached, go.set
    finally:
        go.set()


CALLS = ("insert", "record", "signal", "entries")


@pytest.mark.parametrize("method", CALLS)
def test_a_timeout_in_a_call_of_the_store_comes_after_it(app: Packhorse, method: str, monkeypatch: pytest.MonkeyPatch):
    """What was written is written; the task meets it once, and may go on with the store."""
    met: list[str] = []

    @app.task
    def other() -> None: ...

    @app.task(timeout=0.2, takes_context=True)
    def busy(context: Context) -> str:
        try:
            match method:
                case "insert":
                    other.enqueue()
                case "signal":
                    app.signal("go", 1)
                case _:
                    context.step("one", lambda: 1)
            while True:
                time.sleep(0.001)
        except TimedOut:
            met.append("once")
        other.enqueue()
        return str(context.step("two", lambda: 2))

    with held_up(app.store, method, monkeypatch) as (reached, let_go), Embedded(app, concurrency=2) as embedded:
        job = busy.enqueue()
        assert reached.wait(SOON)
        seats = embedded._processes[0].role._slots._seats  # type: ignore[attr-defined]
        wait_until(lambda: any(seat._note is not None for seat in list(seats.values())))
        assert met == []
        let_go()
        assert job.result(SOON) == "2"
        assert met == ["once"]
        if method == "record":
            assert {step.name for step in app.inspection.steps(job.id)} >= {"one", "two"}


def test_a_timeout_is_no_error_of_what_it_strikes(app: Packhorse):
    """Where values are encoded anything may be raised, and is told of in our own words; not this."""

    class Slow:
        def __init__(self, number: int) -> None:
            self.number = number

    def encode(value: Slow) -> int:
        while True:
            time.sleep(0.001)

    app.register_type(Slow, name="slow", encode=encode, decode=Slow)

    @app.task
    def take(value: Any) -> None: ...

    @app.task(timeout=0.1)
    def give() -> None:
        take.enqueue(Slow(1))

    with Embedded(app):
        job = give.enqueue()
        with pytest.raises(JobFailed):
            job.result(SOON)
        failure = job.look().failure
        assert failure is not None
        assert failure.kind is FailureKind.TIMEOUT


def test_the_guard_is_a_part_of_every_store(app: Packhorse):
    """Of all that the contract has, also in stores that others write."""
    for base, kind in ((Store, type(app.store)), (Lent, LentSQL)):
        for name, declared in vars(base).items():
            if callable(declared) and not name.startswith("_") and getattr(kind, name) is not declared:
                assert getattr(kind, name).is_guarded, name
