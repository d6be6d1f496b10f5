"""Limits, unique jobs and paused tasks, as a program uses them."""

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from packhorse import (
    Embedded,
    JobState,
    Packhorse,
    PayloadError,
    debounce,
    gather,
    limit,
    throttle,
    unique,
)
from packhorse.clock import ManualClock
from packhorse.errors import ConfigError
from tests.waiting import wait_until

SOON = 60.0
MakeApp = Callable[..., Packhorse]


class Crowd:
    """Counts how many are inside at once, for each key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside: Counter[Any] = Counter()
        self.most: Counter[Any] = Counter()

    def visit(self, key: Any, seconds: float = 0.003) -> None:
        with self._lock:
            self.inside[key] += 1
            self.most[key] = max(self.most[key], self.inside[key])
        threading.Event().wait(seconds)
        with self._lock:
            self.inside[key] -= 1


def test_a_limit_holds_for_each_key_and_all_jobs_run(app: Packhorse):
    crowd = Crowd()

    @app.task(limit=limit("{account}", to=2))
    def visit(account: int, number: int = 0) -> int:
        crowd.visit(account)
        return number

    jobs = app.enqueue_many(visit.call(number % 3, number) for number in range(60))
    with Embedded(app, concurrency=8):
        assert gather(*jobs, timeout=SOON) == list(range(60))
    assert max(crowd.most.values()) <= 2
    assert sum(crowd.most.values()) > 3, "nothing ever ran side by side, so nothing was limited"
    assert list(app.inspection.limits()) == []


def test_a_group_shares_its_limit_across_tasks(app: Packhorse):
    crowd = Crowd()

    @app.task(limit=limit(to=1, group="printer"))
    def page(number: int) -> None:
        crowd.visit("printer")

    @app.task(limit=limit(to=1, group="printer"))
    async def poster(number: int) -> None:
        crowd.visit("printer")

    with Embedded(app, concurrency=6):
        gather(*[task.enqueue(n) for n in range(8) for task in (page, poster)], timeout=SOON)
    assert crowd.most["printer"] == 1


def test_failures_and_retries_give_their_permits_back(app: Packhorse):
    runs: Counter[int] = Counter()

    @app.task(limit=limit(to=1), retries=1, backoff=0)
    def stumble(number: int) -> int:
        runs[number] += 1
        if number % 2 or runs[number] == 1:
            raise ValueError
        return number

    jobs = [stumble.enqueue(number) for number in range(6)]
    with Embedded(app, concurrency=4):
        wait_until(lambda: all(job.state.finished for job in jobs))
    assert [job.state is JobState.SUCCEEDED for job in jobs] == [True, False] * 3
    assert list(app.inspection.limits()) == []


def test_a_key_may_be_a_function_and_none_means_unlimited(app: Packhorse):
    @app.task(limit=limit(lambda user, vip=False: None if vip else user, to=1))
    def work(user: str, vip: bool = False) -> None: ...

    assert [hold.key for hold in work.call("ann").terms.holds] == [f"{work.name}/ann"]
    assert work.call("ann", vip=True).terms.holds == ()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: limit(to=0), "to must be a whole number from 1"),
        (lambda: limit(to=True), "to must be a whole number"),
        (lambda: limit(5), "a text or a function"),  # type: ignore[arg-type]
        (lambda: limit(on_conflict="wait"), "one of block, discard, replace"),  # type: ignore[arg-type]
        (lambda: limit(group="no good name"), "group"),
        (lambda: unique(until="never"), "until must be"),  # type: ignore[arg-type]
        (lambda: unique("a", arguments=["b"]), "not by both"),
        (lambda: unique(arguments="user"), "even of one"),
        (lambda: throttle(0), "until must be"),
    ],
)
def test_bad_rules_are_refused_where_they_are_made(make: Callable[[], object], why: str):
    with pytest.raises(ConfigError, match=why):
        make()


def test_a_rule_that_does_not_fit_its_task_is_refused_at_declaration(app: Packhorse):
    for options, why in (
        ({"limit": 5}, "limit takes what"),
        ({"limit": [limit(to=1), limit("x", to=1, on_conflict="discard")]}, "several limits"),
        ({"unique": "yes"}, "unique takes True"),
        ({"unique": unique(arguments=["colour"])}, "'colour', which the function does not have"),
    ):
        with pytest.raises(ConfigError, match=why):
            app.task(name="work", **options)(lambda number: None)


def test_a_key_that_cannot_be_made_is_refused_at_enqueue_without_the_value(app: Packhorse):
    @app.task(limit=limit("{user.name}", to=1))
    def work(user: str) -> None: ...

    @app.task(limit=limit(lambda user: object(), to=1))
    def other(user: str) -> None: ...

    with pytest.raises(PayloadError, match="could not be made from the arguments: AttributeError") as caught:
        work.enqueue("canary")
    assert "canary" not in str(caught.value)
    with pytest.raises(PayloadError, match="must be a text or a whole number, not a object"):
        other.enqueue("canary")


# Unique jobs.


def test_a_second_job_of_the_same_arguments_is_the_first(app: Packhorse):
    @app.task(unique=True)
    def work(number: int, *, colour: str = "red") -> int:
        return number

    first = work.enqueue(1)
    assert work.enqueue(number=1, colour="red") == first
    assert work.enqueue(1, colour="blue") != first
    with Embedded(app):
        assert first.result(SOON) == 1
    assert work.enqueue(1) != first


def test_a_batch_has_each_unique_job_once(app: Packhorse):
    @app.task(unique=unique(arguments=["user"]))
    def work(user: int, number: int) -> None: ...

    handles = app.enqueue_many(work.call(number % 3, number) for number in range(30))
    assert len(handles) == 30
    assert len(set(handles)) == 3
    assert app.inspection.counts()[JobState.READY] == 3


def test_the_last_call_counts_when_debounced(app: Packhorse):
    @app.task(unique=debounce("{user}"))
    def save(user: int, text: str) -> str:
        return text

    drafts = [save.using(run_after=timedelta(hours=1)).enqueue(1, text) for text in ("a", "ab", "abc")]
    assert [job.state for job in drafts] == [JobState.CANCELLED, JobState.CANCELLED, JobState.SCHEDULED]
    assert app.control.run_now([drafts[-1].id]) == 1
    with Embedded(app):
        assert drafts[-1].result(SOON) == "abc"


def test_the_first_call_counts_when_throttled(make_app: MakeApp):
    clock = ManualClock()
    app = make_app(clock=clock)

    @app.task(unique=throttle(60, "{user}"))
    def ping(user: int) -> None: ...

    first = ping.enqueue(1)
    with Embedded(app):
        first.result(SOON)
    assert ping.enqueue(1) == first
    clock.advance(61)
    assert ping.enqueue(1) != first


# Paused tasks and numbers set by hand.


def test_a_paused_task_waits_and_others_run(app: Packhorse):
    @app.task(name="mail")
    def mail() -> None: ...

    @app.task(name="other")
    def other() -> None: ...

    app.control.pause_task("mail", reason="the server moves")
    held, free = mail.enqueue(), other.enqueue()
    with Embedded(app):
        free.result(SOON)
        wait_until(lambda: held.state is JobState.WAITING)
        [pause] = app.inspection.pauses()
        assert (pause.name, pause.reason) == ("mail", "the server moves")
        assert app.control.resume_task("mail")
        held.result(SOON)


def test_a_limit_is_changed_at_run_time(app: Packhorse):
    crowd = Crowd()

    @app.task(limit=limit("printer", to=1, group="all"))
    def work(number: int) -> None:
        crowd.visit("printer", 0.01)

    app.control.set_limit("all/printer", 0, reason="out of paper")
    jobs = [work.enqueue(number) for number in range(12)]
    with Embedded(app, concurrency=6):
        wait_until(lambda: sum(view.waiting for view in app.inspection.limits()) == 12)
        assert crowd.most["printer"] == 0
        app.control.set_limit("all/printer", 3)
        gather(*jobs, timeout=SOON)
    assert 1 < crowd.most["printer"] <= 3
    with pytest.raises(ConfigError, match="whole number from 0"):
        app.control.set_limit("all/printer", -1)
