"""A worker whose store fails, forgets to answer, or will not take a value."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from packhorse import Context, JobState, Packhorse, ResultUnavailable
from packhorse.errors import Interrupted, StoreDataError, StoreUnavailable
from packhorse.flow import chain
from packhorse.job import StoredJob
from packhorse.outcome import Outcome
from packhorse.runtime.embedded import Embedded
from packhorse.stores.contract import Exchanged, Selection
from packhorse.testing.contract.helpers import Worker as Other
from packhorse.testing.contract.helpers import succeeded
from tests.waiting import wait_until

SOON = 60.0
POISON = "poison"


class Trouble:
    """Stands before a store's `exchange`."""

    def __init__(self, app: Packhorse, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exchange = app.store.exchange
        self.calls = 0
        monkeypatch.setattr(app.store, "exchange", self)

    def __call__(self, process: bytes, nonce: int, outcomes: Sequence[Outcome], *args: Any, **kwargs: Any) -> Exchanged:
        self.calls += 1
        self.before(outcomes)
        reply = self.exchange(process, nonce, outcomes, *args, **kwargs)
        self.after(reply, outcomes)
        return reply

    def before(self, outcomes: Sequence[Outcome]) -> None: ...

    def after(self, reply: Exchanged, outcomes: Sequence[Outcome]) -> None: ...


@pytest.fixture
def runs() -> Counter[int]:
    """How often each job was performed."""
    return Counter()


@pytest.fixture
def count(app: Packhorse, runs: Counter[int]) -> Any:
    @app.task
    def count(number: int) -> str:
        runs[number] += 1
        return POISON if number % 25 == 7 else "sound"

    return count


def perform_all(app: Packhorse, count: Any, number: int) -> list[Any]:
    jobs = app.enqueue_many(count.call(n) for n in range(number))
    with Embedded(app, concurrency=3):
        wait_until(lambda: app.inspection.counts()[JobState.SUCCEEDED] == number)
    assert app.inspection.processes() == []
    return jobs


@pytest.mark.parametrize("kind", ["claims", "outcomes"])
def test_a_lost_reply_strands_nothing_and_doubles_nothing(
    app: Packhorse, count: Any, runs: Counter[int], monkeypatch: pytest.MonkeyPatch, kind: str
):
    """The store did it, but the worker never heard: each job is performed once and ends."""

    class Forgetful(Trouble):
        lost = 0

        def after(self, reply: Exchanged, outcomes: Sequence[Outcome]) -> None:
            if (reply.claims if kind == "claims" else outcomes) and self.lost < 3:
                self.lost += 1
                raise StoreUnavailable("the reply was lost")

    trouble = Forgetful(app, monkeypatch)
    jobs = perform_all(app, count, 100)
    assert trouble.lost == 3
    assert runs == dict.fromkeys(range(100), 1)
    assert {(job.look().attempts, job.look().losses) for job in jobs} == {(1, 0)}


def test_a_store_that_is_away_for_a_while_is_waited_for(
    app: Packhorse, count: Any, runs: Counter[int], monkeypatch: pytest.MonkeyPatch
):
    """What ended meanwhile is kept and written later, once."""

    class Away(Trouble):
        def before(self, outcomes: Sequence[Outcome]) -> None:
            if self.calls in (1, 2, 4):
                raise StoreUnavailable("away")

    perform_all(app, count, 100)
    Away(app, monkeypatch)
    perform_again = app.enqueue_many(count.call(n) for n in range(100, 150))
    with Embedded(app, concurrency=3):
        for job in perform_again:
            job.result(SOON)
    assert runs == dict.fromkeys(range(150), 1)


class Picky(Trouble):
    """Takes no poison."""

    def before(self, outcomes: Sequence[Outcome]) -> None:
        if any(outcome.result is not None and POISON.encode() in outcome.result for outcome in outcomes):
            raise StoreDataError("this value cannot be stored")


def check_poison(jobs: list[Any], runs: Counter[int]) -> None:
    for number, job in enumerate(jobs):
        if number % 25 == 7:
            with pytest.raises(ResultUnavailable, match=r"the store refused it \(StoreDataError\)"):
                job.result(SOON)
        else:
            assert job.result(SOON) == "sound"
    assert runs == dict.fromkeys(range(len(jobs)), 1)


def test_an_outcome_the_store_will_not_take_is_stored_bare(
    app: Packhorse, count: Any, runs: Counter[int], monkeypatch: pytest.MonkeyPatch
):
    """The others of its batch are written as they are, and nothing is performed twice."""
    Picky(app, monkeypatch)
    check_poison(perform_all(app, count, 100), runs)


def test_an_outcome_is_not_lost_when_the_store_fails_while_it_is_set_apart(
    app: Packhorse, count: Any, runs: Counter[int], monkeypatch: pytest.MonkeyPatch
):
    """Two kinds of trouble at once: the batch is offered again as a whole."""

    class PickyAndAway(Picky):
        apart = away = 0

        def before(self, outcomes: Sequence[Outcome]) -> None:
            if self.apart and self.away < 3:
                self.apart = 0
                self.away += 1
                raise StoreUnavailable("away")
            try:
                super().before(outcomes)
            except StoreDataError:
                self.apart = 1
                raise

    trouble = PickyAndAway(app, monkeypatch)
    check_poison(perform_all(app, count, 100), runs)
    assert trouble.away == 3


def test_a_worker_that_stops_while_its_store_is_away_gives_up_in_time(
    app: Packhorse, count: Any, monkeypatch: pytest.MonkeyPatch
):
    """Leaving must not take for ever."""
    away = threading.Event()

    class Away(Trouble):
        def before(self, outcomes: Sequence[Outcome]) -> None:
            if away.is_set():
                raise StoreUnavailable("away")

    Away(app, monkeypatch)
    with Embedded(app) as embedded:
        count.enqueue(1).result(SOON)
        away.set()
        for process in embedded._processes:
            process.stop(within=0.2)
    assert not any(thread.is_alive() for thread in embedded._threads)


def test_a_store_that_is_away_fails_no_step(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """For a moment: it is asked again. For longer: the job comes back, unspent, and what was kept is there."""
    done: list[str] = []

    @app.task(takes_context=True)
    def pay(context: Context) -> list[str]:
        context.step("charge", done.append, "charged")
        context.step("ship", done.append, "shipped")
        return done

    record, times = app.store.record, [0]

    def flaky(*args: Any) -> bool:
        times[0] += 1
        if times[0] in (1, 3, 4, 5):
            raise StoreUnavailable("away")
        return record(*args)

    monkeypatch.setattr(app.store, "record", flaky)
    monkeypatch.setattr("packhorse.steps.WAITS", (0.01, 0.01))
    monkeypatch.setattr("packhorse.steps.AGAIN", 0)
    with Embedded(app):
        job = pay.enqueue()
        assert job.result(20) == ["charged", "shipped", "shipped"]
    assert (job.look().attempts, job.look().failures) == (1, ())


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_job_that_could_not_ask_for_results_goes_back(
    app: Packhorse, coroutine: bool, monkeypatch: pytest.MonkeyPatch
):
    """Nothing of it has begun, so that a moment without the store neither fails it nor spends an attempt."""
    app.task(name="first")(lambda: 20)

    async def double(number: int) -> int:
        return 2 * number

    app.task(name="double")(double if coroutine else lambda number: 2 * number)
    ask, asked = app.store.job, Counter[str]()

    def job(id: bytes) -> StoredJob | None:
        if threading.current_thread() is not threading.main_thread():
            asked["times"] += 1
            if asked["times"] <= 2:
                raise StoreUnavailable("not now")
        return ask(id)

    monkeypatch.setattr(app.store, "job", job)
    flow = chain(app.tasks["first"].call(), app.tasks["double"]).enqueue()
    with Embedded(app):
        assert flow.wait(SOON) == {JobState.SUCCEEDED: 2}
    assert flow.results() == [20, 40]
    assert [job.attempts for job in app.store.jobs(Selection())] == [1, 1]


@pytest.mark.parametrize("by", ["operator", "worker"])
def test_a_coroutine_that_is_stopped_while_it_asks_for_results(
    app: Packhorse, by: str, monkeypatch: pytest.MonkeyPatch
):
    """It has not begun: it is cancelled where somebody asked for that, else it goes back; it does not fail."""
    app.task(name="first")(lambda: 20)

    async def double(number: int) -> int:
        return 2 * number

    app.task(name="double")(double)
    ask, asked, answer = app.store.job, threading.Event(), threading.Event()

    def job(id: bytes) -> StoredJob | None:
        if threading.current_thread() is not threading.main_thread():
            asked.set()
            answer.wait(SOON)
        return ask(id)

    monkeypatch.setattr(app.store, "job", job)
    flow = chain(app.tasks["first"].call(), app.tasks["double"]).enqueue()
    *_, last = flow.jobs()
    try:
        with Embedded(app) as embedded:
            assert asked.wait(SOON)
            if by == "operator":
                app.control.cancel([last.id])
            else:
                embedded._processes[0].stop(within=0)
            wait_until(lambda: last.look().state is not JobState.RUNNING)
    finally:
        answer.set()
    state = JobState.CANCELLED if by == "operator" else JobState.READY
    assert (last.look().state, last.look().attempts) == (state, 0)


# When the lease ends.


def test_tasks_are_stopped_before_the_lease_ends_though_the_store_only_keeps_silent(
    make_app: Callable[..., Packhorse], monkeypatch: pytest.MonkeyPatch
):
    """No call fails, and none returns until the task has ended."""
    app = make_app(lease=3.0)
    silent, talking = threading.Event(), threading.Event()
    stopped: list[BaseException] = []
    in_time: list[bool] = []

    @app.task
    def work() -> None:
        if stopped:
            return
        silent.set()
        try:
            wait_until(lambda: False, "it is told to stop")
        except Interrupted as told:
            stopped.append(told)
            raise

    def muted(call: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*args: Any, **kwargs: Any) -> Any:
            found = call(*args, **kwargs)
            if silent.is_set():
                in_time.append(talking.wait(SOON))
            return found

        return answer

    for name in ("exchange", "beat", "orders", "held"):
        monkeypatch.setattr(app.store, name, muted(getattr(app.store, name)))
    with Embedded(app, concurrency=1):
        job = work.enqueue()
        assert silent.wait(SOON)
        wait_until(lambda: stopped, "the task was told to stop")
        talking.set()
        job.result(SOON)
    assert all(in_time)


def test_what_is_given_by_an_answer_that_comes_after_the_lease_is_not_begun(
    make_app: Callable[..., Packhorse], monkeypatch: pytest.MonkeyPatch
):
    """Another has performed it by then."""
    app = make_app(lease=3.0)
    runs: list[str] = []

    @app.task
    def work(name: str) -> None:
        runs.append(name)

    class Late(Trouble):
        held_back = False

        def before(self, outcomes: Sequence[Outcome]) -> None:
            self.asked_at = time.monotonic()

        def after(self, reply: Exchanged, outcomes: Sequence[Outcome]) -> None:
            if not reply.claims or self.held_back:
                return
            self.held_back = True
            [claim] = reply.claims
            app.store.leave(claim.token.process)
            other = Other(app.store, "other")
            assert other.finish(succeeded(other.claim_one())) == []
            wait_until(lambda: time.monotonic() - self.asked_at > app.settings.lease / 3)

    late = Late(app, monkeypatch)
    with Embedded(app, concurrency=1):
        first = work.enqueue("first")
        first.result(SOON)
        work.enqueue("second").result(SOON)
    assert late.held_back
    assert runs == ["second"]


def test_who_lost_its_lease_claims_nothing_before_what_it_performs_has_ended(
    app: Packhorse, monkeypatch: pytest.MonkeyPatch
):
    """It would be the same job, and run twice at once."""
    story: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def work() -> None:
        story.append("begins")
        if not begun.is_set():
            begun.set()
            with pytest.raises(Interrupted):
                wait_until(lambda: False, "it is told to stop")
            assert go_on.wait(SOON)
        story.append("ends")

    processes: list[bytes] = []

    class Watched(Trouble):
        def __call__(self, process: bytes, *args: Any, **kwargs: Any) -> Exchanged:
            processes.append(process)
            return super().__call__(process, *args, **kwargs)

    Watched(app, monkeypatch)
    with Embedded(app, concurrency=4):
        job = work.enqueue()
        assert begun.wait(SOON)
        [(first, _, _, _)] = {token for id in set(processes) for token in app.store.held(id)}
        app.store.leave(first)
        seen = len(processes)
        wait_until(lambda: sum(id not in processes[:seen] for id in processes[seen:]) > 3, "it goes on under a new id")
        go_on.set()
        job.result(SOON)
    assert story == ["begins", "ends", "begins", "ends"]
