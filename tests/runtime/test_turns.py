"""Rates, fair shares, ageing and merged jobs, as a program uses them."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from packhorse import Context, Embedded, JobState, Packhorse, gather, limit, rate, unique
from packhorse.clock import SECOND, ManualClock
from packhorse.errors import ConfigError, PayloadError
from packhorse.job import Claim
from packhorse.limits import CATCH_UP, Bucket, Pace
from packhorse.outcome import succeed
from packhorse.queues import EVERYTHING
from packhorse.stores.contract import ProcessInfo
from tests.waiting import wait_until

SOON = 60.0
MakeApp = Callable[..., Packhorse]


class Hands:
    """A worker in slow motion: claims when told to, and its jobs end at once."""

    def __init__(self, app: Packhorse) -> None:
        self._store = app.store
        self._app = app
        self._nonce = 0
        self.id = b"w" * 16
        self._store.enroll(ProcessInfo(self.id, "worker", "here", 1), 1_000_000 * SECOND)

    def claim(self, number: int) -> list[Claim]:
        self._nonce += 1
        return self._store.exchange(self.id, self._nonce, [], EVERYTHING, number).claims

    def work(self, number: int) -> list[Any]:
        """The first argument of each job it did."""
        claims = self.claim(number)
        self._store.exchange(self.id, self._nonce, [succeed(it.token, 1, None) for it in claims], EVERYTHING, 0)
        decoded = [self._app.seals.open_job(it.token.id, it.task, it.payload) for it in claims]
        return [self._app.codec.decode_arguments(it.body, typed=it.typed).args[0] for it in decoded]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(make_app: MakeApp, clock: ManualClock) -> Packhorse:
    return make_app(clock=clock)


# Rates.


def test_a_rate_spreads_the_beginnings_evenly(app: Packhorse, clock: ManualClock):
    @app.task(rate="4/s")
    def ping(number: int) -> None: ...

    app.enqueue_many(ping.call(number) for number in range(6))
    hands = Hands(app)
    done = [hands.work(10)]
    for _ in range(7):
        clock.advance(1 / 8)
        done.append(hands.work(10))
    assert done == [[0], [], [1], [], [2], [], [3], []]


def test_a_burst_begins_at_once_after_a_quiet_time(app: Packhorse, clock: ManualClock):
    @app.task(rate=rate("1/s", burst=3))
    def ping(number: int) -> None: ...

    app.enqueue_many(ping.call(number) for number in range(5))
    hands = Hands(app)
    assert hands.work(10) == [0, 1, 2]
    assert hands.work(10) == []
    clock.advance(1)
    assert hands.work(10) == [3]


def test_each_key_has_its_own_rate_and_a_group_shares_one(app: Packhorse):
    @app.task(rate=[rate("1/min", "{user}"), rate("3/min", group="api", burst=3)])
    def call(number: int, user: str) -> None: ...

    @app.task(rate=rate("3/min", group="api", burst=3))
    def other(number: int) -> None: ...

    for number, user in enumerate(["ann", "ann", "bob", "eve"]):
        call.enqueue(number, user)
    other.enqueue(9)
    assert sorted(Hands(app).work(10)) == [0, 2, 3]
    waiting = {view.key: view.waiting for view in app.inspection.rates()}
    assert waiting["api/"] == 1
    assert waiting[f"{call.name}/ann"] == 1


def test_tokens_do_not_pile_up_while_nobody_works(app: Packhorse, clock: ManualClock):
    @app.task(rate="2/s")
    def ping(number: int) -> None: ...

    app.enqueue_many(ping.call(number) for number in range(100))
    hands = Hands(app)
    assert hands.work(100) == [0]
    for _ in range(600):  # a dispatcher goes on for ten minutes, and no worker is there
        clock.advance(1)
        app.store.promote(1_000)
    assert len(hands.work(100)) == 2, "what the rate gives in a second, and no more"
    assert len(hands.work(100)) <= 2


def test_a_rate_is_exact_over_time_though_it_is_looked_at_late(app: Packhorse, clock: ManualClock):
    @app.task(rate="7/s")
    def ping(number: int) -> None: ...

    app.enqueue_many(ping.call(number) for number in range(300))
    hands = Hands(app)
    done = len(hands.work(1_000))
    for step in range(1, 301):
        clock.advance(0.1 + step % 7 * 1e-6)
        done += len(hands.work(1_000))
    assert done == 7 * 30 + 1


def test_the_dispatcher_is_told_when_the_next_token_comes(app: Packhorse, clock: ManualClock):
    @app.task(rate="1/min")
    def ping(number: int) -> None: ...

    app.enqueue_many(ping.call(number) for number in range(2))
    Hands(app).work(10)
    assert app.store.promote(10).next_due == 60 * SECOND
    clock.advance(59)
    assert app.store.promote(10) == (0, SECOND)
    clock.advance(1)
    assert app.store.promote(10).jobs == 1


@pytest.mark.parametrize("pace", [Pace("k", 7, SECOND), Pace("k", 1, 3 * SECOND, 5), Pace("k", 999_983, 60 * SECOND)])
def test_a_bucket_never_gives_more_than_its_rate(pace: Pace):
    bucket, now, taken = Bucket(), 10**15, 0
    begin = now
    for step in range(5_000):
        now += (step * step) % 997
        while bucket.opens_at(pace) <= now:
            bucket = bucket.less(pace, now)
            taken += 1
        assert (taken - pace.burst) * pace.period <= (now - begin) * pace.tokens
    assert 0 <= bucket.taken < pace.tokens


def test_who_waited_gets_the_tokens_of_the_last_second(app: Packhorse):
    pace = Pace("k", 10, SECOND)
    bucket = Bucket().less(pace, 10**15)
    late = 10**15 + 60 * SECOND
    taken = 0
    while bucket.opens_at(pace) <= late:
        bucket = bucket.less(pace, late - CATCH_UP)
        taken += 1
    assert taken == 11


def test_a_task_takes_tokens_inside(make_app: MakeApp):
    app = make_app()
    taken = []

    @app.task(takes_context=True)
    def crawl(context: Context, number: int) -> int:
        for _ in range(number):
            assert context.take(rate("200/s", group="site"))
            taken.append(app.clock.now())
        return number

    @app.task(takes_context=True)
    async def acrawl(context: Context, number: int) -> int:
        for _ in range(number):
            assert await context.atake(rate("200/s", group="site"))
            taken.append(app.clock.now())
        return number

    @app.task(takes_context=True)
    def impatient(context: Context) -> bool:
        context.take("1/h")
        return context.take("1/h", timeout=timedelta(seconds=1))

    begin = app.clock.now()
    with Embedded(app, concurrency=4):
        assert gather(crawl.enqueue(20), acrawl.enqueue(20), impatient.enqueue(), timeout=SOON) == [20, 20, False]
    assert max(taken) - begin >= 39 * 5_000, "forty tokens of 5 ms each"


def test_a_task_called_in_place_need_not_wait(app: Packhorse):
    @app.task(takes_context=True)
    def crawl(context: Context) -> bool:
        return context.take("1/h") and context.take("1/h")

    assert crawl()


# Fair shares.


def test_shares_take_turns(app: Packhorse):
    @app.task
    def work(name: str) -> None: ...

    app.enqueue_many(work.using(share="ann").call(f"a{number}") for number in range(6))
    hands = Hands(app)
    assert hands.work(2) == ["a0", "a1"]
    app.enqueue_many(work.using(share="bob").call(f"b{number}") for number in range(3))
    assert sorted(hands.work(2)) == ["a2", "b0"]
    assert sorted(hands.work(2)) == ["a3", "b1"]
    assert sorted(hands.work(2)) == ["a4", "b2"]
    assert hands.work(2) == ["a5"]


def test_a_newcomer_is_next_behind_a_crowd(app: Packhorse):
    @app.task
    def work(name: int) -> None: ...

    app.enqueue_many(work.using(share="big").call(number) for number in range(5_000))
    hands = Hands(app)
    assert hands.work(10) == list(range(10))
    work.using(share="small").enqueue(-1)
    assert -1 in hands.work(2)


def test_weights_give_more_turns(app: Packhorse):
    @app.task
    def work(name: str) -> None: ...

    app.control.set_weight("ann", 3, reason="pays more")
    assert app.inspection.weights() == {"ann": 3}
    for share in ("ann", "bob"):
        app.enqueue_many(work.using(share=share).call(share) for _ in range(40))
    hands = Hands(app)
    done = Counter(hands.work(40))
    assert done["ann"] == pytest.approx(30, abs=1)
    app.control.set_weight("ann", None)
    assert app.inspection.weights() == {}
    for bad in (0, 1.5, True, 10**9):
        with pytest.raises(ConfigError, match="weight must be"):
            app.control.set_weight("ann", bad)  # type: ignore[arg-type]


def test_who_was_alone_is_not_punished_later(app: Packhorse, clock: ManualClock):
    @app.task
    def work(name: str) -> None: ...

    hands = Hands(app)
    app.enqueue_many(work.using(share="ann").call("a") for _ in range(500))
    assert len(hands.work(500)) == 500
    clock.advance(1)
    for share in ("bob", "ann"):
        app.enqueue_many(work.using(share=share).call(share) for _ in range(100))
    assert Counter(hands.work(100)) == {"ann": 50, "bob": 50}


def test_turns_are_taken_within_a_priority(app: Packhorse):
    @app.task
    def work(name: str) -> None: ...

    work.using(share="ann").enqueue("later")
    work.using(share="bob", priority=5).enqueue("first")
    assert Hands(app).work(2) == ["first", "later"]


def test_shares_take_turns_behind_a_limit_too(app: Packhorse):
    @app.task(limit=limit(to=1))
    def work(name: str) -> None: ...

    app.enqueue_many(work.using(share="ann").call("a") for _ in range(10))
    hands = Hands(app)
    assert hands.work(5) == ["a"]
    app.enqueue_many(work.using(share="bob").call("b") for _ in range(3))
    done = "".join(name for _ in range(12) for name in hands.work(5))
    assert sorted(done) == list("aaaaaaaaabbb")
    assert done.index("b") <= 1
    assert done.rindex("b") <= 6


def test_jobs_of_a_share_keep_their_order_and_come_back_after_a_failure(make_app: MakeApp):
    app = make_app()
    runs: Counter[int] = Counter()

    @app.task(retries=1, backoff=0)
    def work(number: int) -> int:
        runs[number] += 1
        if runs[number] == 1 and number % 3 == 0:
            raise ValueError
        return number

    jobs = app.enqueue_many(work.using(share=f"s{number % 4}").call(number) for number in range(40))
    with Embedded(app, concurrency=3):
        assert gather(*jobs, timeout=SOON) == list(range(40))


@pytest.mark.parametrize("share", ["", "no good", 5, "x" * 200])
def test_a_share_that_is_no_name_is_refused(app: Packhorse, share: Any):
    @app.task
    def work() -> None: ...

    with pytest.raises(ConfigError, match="cannot be a share"):
        work.using(share=share)


# Ageing.


def test_a_job_of_low_priority_overtakes_in_time(make_app: MakeApp, clock: ManualClock):
    app = make_app(clock=clock, ageing=10)

    @app.task
    def work(name: str) -> None: ...

    low = work.using(priority=-5).enqueue("low")
    assert low.look().priority == -5
    clock.advance(49)
    work.enqueue("before")
    clock.advance(2)
    work.enqueue("after")
    work.using(run_after=timedelta(0), priority=1).enqueue("first")
    assert Hands(app).work(4) == ["first", "before", "low", "after"]


def test_without_ageing_priority_is_strict(app: Packhorse, clock: ManualClock):
    @app.task
    def work(name: str) -> None: ...

    work.using(priority=-1).enqueue("low")
    clock.advance(3_600)
    work.enqueue("high")
    assert Hands(app).work(2) == ["high", "low"]


def test_the_priority_of_an_ageing_job_is_changed(make_app: MakeApp, clock: ManualClock):
    app = make_app(clock=clock, ageing=10)

    @app.task
    def work(name: str) -> None: ...

    jobs = [work.enqueue("a"), work.using(priority=1).enqueue("b")]
    app.control.change([jobs[0].id], priority=3)
    assert [job.look().priority for job in jobs] == [3, 1]
    assert Hands(app).work(2) == ["a", "b"]


# Merged jobs.


def test_merged_jobs_run_once_with_all_arguments(make_app: MakeApp):
    app = make_app()
    seen = []

    @app.task(unique=unique("{user}", on_conflict="merge"))
    def notify(user: int, lines: list[str], *, flags: set[str] = frozenset(), colour: str = "red") -> int:  # type: ignore[assignment]
        seen.append((user, lines, sorted(flags), colour))
        return len(lines)

    first = notify.enqueue(1, ["a"])
    assert notify.enqueue(1, ["b", "c"], flags={"x"}, colour="blue") == first
    assert app.enqueue_many([notify.call(1, ["d"], flags={"y"}), notify.call(2, ["z"])])[0] == first
    with Embedded(app):
        assert first.result(SOON) == 4
        wait_until(lambda: len(seen) == 2)
    assert (1, ["a", "b", "c", "d"], ["x", "y"], "blue") in seen
    assert notify.enqueue(1, ["e"]) != first


def test_a_function_may_merge_and_coroutines_too(make_app: MakeApp):
    app = make_app()

    def most(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
        return {**earlier, "number": max(earlier["number"], later["number"])}

    @app.task(unique=unique(arguments=["user"], on_conflict="merge", merge=most))
    async def count(user: int, number: int) -> int:
        await asyncio.sleep(0)
        return number

    jobs = [count.enqueue(1, number) for number in (3, 9, 4)]
    assert len(set(jobs)) == 1
    with Embedded(app):
        assert jobs[0].result(SOON) == 9


def test_a_merge_that_raises_fails_the_job_and_tells_no_values(make_app: MakeApp):
    app = make_app()

    def broken(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("canary")

    @app.task(unique=unique("k", on_conflict="merge", merge=broken))
    def work(number: int) -> None: ...

    job = work.enqueue(1)
    work.enqueue(2)
    with Embedded(app):
        wait_until(lambda: job.state is JobState.FAILED)
    assert "ValueError" in str(job.look().failure)
    assert "canary" not in str(job.look().failure)


# Bad input.


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: rate("fast"), "is no rate"),
        (lambda: rate("0/s"), "no rate to keep"),
        (lambda: rate("1/0s"), "no rate to keep"),
        (lambda: rate("1000001/s"), "no rate to keep"),
        (lambda: rate("1/9999999d"), "no rate to keep"),
        (lambda: rate(100), "is no rate"),  # type: ignore[arg-type]
        (lambda: rate("-1/s"), "is no rate"),
        (lambda: rate("1/s", burst=0), "burst must be"),
        (lambda: rate("1/s", 5), "a text or a function"),  # type: ignore[arg-type]
        (lambda: unique(on_conflict="merge"), "needs a key"),
        (lambda: unique("k", on_conflict="merge", until="finish"), "until='start'"),
        (lambda: unique("k", on_conflict="merge", group="g"), "one task"),
        (lambda: unique("k", merge=lambda a, b: a), "with on_conflict='merge'"),
    ],
)
def test_bad_rules_are_refused_where_they_are_made(make: Callable[[], object], why: str):
    with pytest.raises(ConfigError, match=why):
        make()


def test_rules_that_do_not_go_together_are_refused_at_declaration(app: Packhorse):
    for options, why in (
        ({"rate": 5}, "rate takes a text"),
        ({"rate": "often"}, "is no rate"),
        ({"rate": ["1/s"] * 9}, "at most 8"),
        ({"rate": "1/s", "limit": limit(on_conflict="discard")}, "only on_conflict='block'"),
    ):
        with pytest.raises(ConfigError, match=why):
            app.task(name="work", **options)(lambda number: None)


def test_a_key_that_cannot_be_made_is_refused_at_enqueue(app: Packhorse):
    @app.task(rate=rate("1/s", lambda number: 1 / number))
    def work(number: int) -> None: ...

    with pytest.raises(PayloadError, match="could not be made from the arguments: ZeroDivisionError"):
        work.enqueue(0)
