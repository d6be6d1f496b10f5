"""The exchange that travels in one go: how often it waits, when it must not be made, and what if its answer is lost."""

import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from psycopg.pq import Trace

from packhorse.clock import SECOND, SystemClock
from packhorse.job import Claim, JobState, NewJob, Parent
from packhorse.outcome import Outcome
from packhorse.stores import postgres, postgres_direct, postgres_strokes
from packhorse.stores.contract import Exchanged, Paused
from packhorse.stores.postgres import PostgresStore
from packhorse.stores.postgres_session import Session
from packhorse.stores.postgres_strokes import Lost, Strokes
from packhorse.stores.postgres_watch import PostgresWatch
from packhorse.stores.sql_store import Bell
from packhorse.testing.contract.behind import leftovers
from packhorse.testing.contract.helpers import (
    Worker,
    id_of,
    insert,
    job,
    limited,
    look,
    names,
    sole,
    state,
    states,
    succeeded,
)
from tests.contract.stores import schemas
from tests.servers.postgres import Server


@pytest.fixture
def store(postgres: Server) -> Iterator[PostgresStore]:
    with schemas(postgres, fresh=False) as urls:
        store = PostgresStore(next(urls), SystemClock())
        yield store
        store.close()


@pytest.fixture
def worker(store: PostgresStore) -> Worker:
    """One that has exchanged something already, so that it knows where jobs are."""
    worker = Worker(store, "worker")
    insert(store, "first")
    assert worker.finish(succeeded(worker.claim_one())) == []
    return worker


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each exchange that tried to travel in one go, whether it did."""
    tries: list[bool] = []
    original = PostgresStore._exchange_directly

    def exchange(self: PostgresStore, it: postgres_direct.Direct) -> Exchanged | None:
        answer = original(self, it)
        tries.append(answer is not None)
        return answer

    monkeypatch.setattr(PostgresStore, "_exchange_directly", exchange)
    return tries


def turns(store: PostgresStore, act: Callable[[], object]) -> int:
    """How often the client waits for the server while something is done on the one connection that is idle."""
    connection = store._connections.take()
    with tempfile.TemporaryFile("w+") as told:
        connection.pgconn.trace(told.fileno())
        connection.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        store._connections.give_back(connection)
        act()
        connection.pgconn.untrace()
        told.seek(0)
        sides = [line[0] for line in told if line[0] in "FB"]
    assert "F" in sides, "it was not this connection"
    return sum(before == "F" and after == "B" for before, after in pairwise(sides))


@pytest.mark.parametrize("queues", ["*", "default", "mail,default", "mail,letters,default,*"])
@pytest.mark.parametrize("results", [False, True])
def test_an_exchange_is_one_round_trip(store: PostgresStore, worker: Worker, queues: str, results: bool):
    """Outcomes, claims and the commit."""
    insert(store, *(f"{number:03}" for number in range(40)))
    claims = worker.claim(5, queues=queues)
    for _ in range(6):  # until the driver has prepared what it says
        answer: list[Exchanged] = []
        outcomes = [succeeded(claim, b"1" if results else None) for claim in claims]

        def exchange(outcomes: list[Outcome] = outcomes, answer: list[Exchanged] = answer) -> None:
            answer.append(worker.exchange(*outcomes, limit=5, queues=queues))

        assert turns(store, exchange) == 1
        assert answer[0].refused == []
        assert answer[0].alive
        claims = answer[0].claims
        assert len(claims) == 5
    done = [name for name, it in states(store).items() if it is JobState.SUCCEEDED]
    assert len(done) == 1 + 30
    assert {look(store, name).result for name in done if name != "first"} == {b"1" if results else None}
    assert leftovers(store) == []


def test_queues_are_served_in_their_order(store: PostgresStore, worker: Worker, direct: list[bool]):
    insert(
        store, *(job(f"{queue}{n}", queue=queue, priority=n) for queue in ("mail", "default", "low") for n in (1, 2))
    )
    claims = worker.claim(5, queues="mail,default,low")
    assert names(claims) == ["mail2", "mail1", "default2", "default1", "low2"]
    assert names(worker.exchange(*map(succeeded, claims), limit=5, queues="mail,default,low").claims) == ["low1"]
    assert direct == [True, True]


def test_who_has_no_lease_gets_nothing_and_may_still_write(
    store: PostgresStore, worker: Worker, direct: list[bool], monkeypatch: pytest.MonkeyPatch
):
    insert(store, "a", "b")
    claim = worker.claim_one()
    later = SystemClock().ticks() + 3_600 * SECOND
    monkeypatch.setattr(store.clock, "ticks", lambda: later)
    answer = worker.exchange(succeeded(claim), limit=1)
    assert (answer.claims, answer.refused, answer.alive) == ([], [], False)
    assert states(store) == {"first": JobState.SUCCEEDED, "a": JobState.SUCCEEDED, "b": JobState.READY}
    assert direct == [True, True]


def test_only_what_is_accepted_leaves_a_result(store: PostgresStore, worker: Worker, direct: list[bool]):
    """Of three the one in the middle has moved on."""
    insert(store, "a", "b", "c")
    claims = worker.claim(3)
    stale = claims[1].token._replace(epoch=claims[1].token.epoch - 1)
    outcomes = [succeeded(claims[0], b"0"), succeeded(stale, b"1"), succeeded(claims[2], b"2")]
    assert worker.finish(*outcomes) == [stale]
    assert state(store, "b") is JobState.RUNNING
    assert [look(store, name).result for name in "abc"] == [b"0", None, b"2"]
    assert direct == [True, False]


# What makes it take more.


def after(store: PostgresStore, worker: Worker, claim: Claim) -> None:
    insert(store, job("follower", after=(Parent(claim.token.id),)))
    assert worker.finish(succeeded(claim)) == []
    assert state(store, "follower") is JobState.READY


def unique(store: PostgresStore, worker: Worker, claim: Claim) -> None:
    assert worker.finish(succeeded(claim)) == []
    assert insert(store, sole("next", "k")) == [id_of("next")], "the key is free again"


def permit(store: PostgresStore, worker: Worker, claim: Claim) -> None:
    insert(store, limited("next", "k", to=1))
    assert state(store, "next") is JobState.WAITING
    assert names(worker.exchange(succeeded(claim), limit=1).claims) == ["next"]


def paused_queue(store: PostgresStore, worker: Worker, claim: Claim) -> None:
    insert(store, "next")
    store.pause("default", None, "ann", "", kind=Paused.QUEUE)
    assert worker.exchange(succeeded(claim), limit=1).claims == []


def paused_task(store: PostgresStore, worker: Worker, claim: Claim) -> None:
    insert(store, job("next", task="slow"))
    store.pause("slow", None, "ann", "", kind=Paused.TASK)
    assert worker.exchange(succeeded(claim), limit=1).claims == []
    assert state(store, "next") is JobState.WAITING


def door(store: PostgresStore, worker: Worker, claim: Claim) -> None:
    insert(store, limited("next", "other", to=1))
    assert names(worker.exchange(succeeded(claim), limit=1).claims) == ["next"]


def turn(store: PostgresStore, worker: Worker, claim: Claim) -> None:
    insert(store, job("next", share="ann"))
    assert names(worker.exchange(succeeded(claim), limit=1).claims) == ["next"]


def another_queue(store: PostgresStore, worker: Worker, claim: Claim) -> None:
    insert(store, "later", job("next", queue="zoo", priority=5))
    assert names(worker.exchange(succeeded(claim), limit=1).claims) == ["next"]


CONCERNS: dict[Callable[[PostgresStore, Worker, Claim], None], NewJob] = {
    after: job("it"),
    unique: sole("it", "k"),
    permit: limited("it", "k", to=1),
    paused_queue: job("it"),
    paused_task: job("it"),
    door: job("it"),
    turn: job("it"),
    another_queue: job("it"),
}


@pytest.mark.parametrize("concern", CONCERNS, ids=lambda concern: concern.__name__)
def test_what_else_must_be_seen_to_is_seen_to(
    store: PostgresStore, worker: Worker, direct: list[bool], concern: Callable[[PostgresStore, Worker, Claim], None]
):
    insert(store, CONCERNS[concern])
    [claim] = worker.claim()
    store._detours, direct[:] = 0, []
    concern(store, worker, claim)
    assert direct == [False]
    assert state(store, "it") is JobState.SUCCEEDED
    assert leftovers(store) == []


def test_a_key_held_until_the_start_is_free_when_it_is_claimed(
    store: PostgresStore, worker: Worker, direct: list[bool]
):
    insert(store, sole("it", "k", until_start=True))
    assert names(worker.claim()) == ["it"]
    assert direct == [False]
    assert insert(store, sole("next", "k", until_start=True)) == [id_of("next")]


def test_what_concerns_others_is_in_nobodys_way(store: PostgresStore, worker: Worker, direct: list[bool]):
    """Flows and unique keys of jobs that neither end nor are claimed."""
    insert(store, sole("held", "k", delay=SECOND * 60))
    insert(store, job("parent", delay=SECOND * 60), job("child", after=(Parent(id_of("parent")),)))
    insert(store, "a", "b")
    claim = worker.claim_one()
    assert names(worker.exchange(succeeded(claim), limit=1).claims) == ["b"]
    assert direct == [True, True]


def test_after_a_refusal_it_is_not_tried_for_a_while(store: PostgresStore, worker: Worker, direct: list[bool]):
    store.pause("elsewhere", None, "ann", "", kind=Paused.QUEUE)
    for number in range(30):
        insert(store, f"{number:02}")
        worker.finish(succeeded(worker.claim_one()))
    assert direct == [False] * 4  # 4, 8 and 16 exchanges step by step lie between
    assert len(states(store)) == 31


# When the answer is lost.


def test_an_answer_that_was_lost_is_told_again(store: PostgresStore, worker: Worker, monkeypatch: pytest.MonkeyPatch):
    """Committed, and the line broke: what was written and taken is what the first answer said."""
    insert(store, "a", "b", "c", "d", "e")
    claims = worker.claim(3)
    answers: list[Any] = []
    original: Any = Strokes._try

    def lose(self: Strokes, *args: Any, **how: Any) -> None:
        answers.append(original(self, *args, **how))
        raise Lost(psycopg.OperationalError("the line broke"))

    monkeypatch.setattr(Strokes, "_try", lose)
    answer = worker.exchange(*map(succeeded, claims[1:]), limit=2)
    assert names(answer.claims) == ["d", "e"]
    assert answer.refused == []
    assert answer.alive
    assert len(answers) == 1, "the second time the store refuses, so there is no answer to lose"
    monkeypatch.undo()
    assert worker.holds == ["a", "d", "e"]
    assert [name for name, it in states(store).items() if it is JobState.SUCCEEDED] == ["b", "c", "first"]


def test_an_answer_that_is_told_again_says_whether_the_lease_still_lasts(
    store: PostgresStore, worker: Worker, monkeypatch: pytest.MonkeyPatch
):
    """Until the line was there again, it may have run out, and others may have what was claimed."""
    insert(store, "a", "b")
    claim = worker.claim_one()
    original: Any = Strokes._try
    later = SystemClock().ticks() + 3_600 * SECOND

    def lose(self: Strokes, *args: Any, **how: Any) -> None:
        original(self, *args, **how)
        monkeypatch.setattr(store.clock, "ticks", lambda: later)
        raise Lost(psycopg.OperationalError("the line broke"))

    monkeypatch.setattr(Strokes, "_try", lose)
    answer = worker.exchange(succeeded(claim), limit=1)
    assert (names(answer.claims), answer.refused, answer.alive) == (["b"], [], False)


def test_who_waits_for_the_end_of_a_job_is_called(store: PostgresStore, worker: Worker, direct: list[bool]):
    """By the last statement, also where nothing is claimed; a claim alone concerns nobody who waits for an end."""
    insert(store, "a", "b")
    watch = PostgresWatch(store._connections, Bell.ENDED)
    claim = worker.claim_one()
    assert not watch.wait(0)
    worker.finish(succeeded(claim))
    assert watch.wait(30)
    watch.close()
    assert direct == [True, True]


@pytest.mark.parametrize("moment", ["exchange.between", "exchange.before_commit"])
def test_an_error_on_our_side_leaves_nothing_written(
    store: PostgresStore, worker: Worker, moment: str, monkeypatch: pytest.MonkeyPatch
):
    """Whatever the server has been told by then; the end of a pipeline would commit it."""
    insert(store, "a", "b")
    claim = worker.claim_one()

    def fail(point: str) -> None:
        if point == moment:
            raise ZeroDivisionError

    monkeypatch.setattr(postgres, "failpoint", fail)
    monkeypatch.setattr(postgres_strokes, "failpoint", fail)
    with pytest.raises(ZeroDivisionError):
        worker.exchange(succeeded(claim), limit=1)
    monkeypatch.undo()
    assert (state(store, "a"), state(store, "b")) == (JobState.RUNNING, JobState.READY)
    assert names(worker.exchange(succeeded(claim), limit=1).claims) == ["b"]
    assert state(store, "a") is JobState.SUCCEEDED


def test_a_line_that_broke_before_the_commit_is_made_again(
    store: PostgresStore, worker: Worker, monkeypatch: pytest.MonkeyPatch
):
    """Nothing was written, so the same exchange is made once more."""
    insert(store, "a", "b")
    claim = worker.claim_one()
    broken, original = [False], postgres_direct.send

    def send(c: Session, *args: object) -> object:
        if not broken[0]:
            broken[0] = True
            c._connection.close()
        return original(c, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(postgres_direct, "send", send)
    answer = worker.exchange(succeeded(claim), limit=1)
    assert names(answer.claims) == ["b"]
    assert (answer.refused, broken) == ([], [True])
    assert state(store, "a") is JobState.SUCCEEDED


def test_many_entries_and_wildcards_amid_others_take_more(store: PostgresStore, worker: Worker, direct: list[bool]):
    insert(store, job("a", queue="mail"), job("b", queue="reports"))
    assert names(worker.claim(2, queues="rep*,mail")) == ["b", "a"]
    insert(store, job("c", queue="mail"))
    assert names(worker.claim(2, queues=",".join([*"abcdefgh", "mail"]))) == ["c"]
    assert direct == []
