"""Strokes on PostgreSQL beside a transaction of somebody else that is left open: none waits for it."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from packhorse.clock import SECOND, SystemClock
from packhorse.errors import HeldUp
from packhorse.job import JobState, Parent
from packhorse.limits import Pace, UniqueConflict
from packhorse.outcome import Awaits
from packhorse.stores.contract import Entry, Paused, Retention
from packhorse.stores.postgres import PostgresStore
from packhorse.stores.postgres_holders import find
from packhorse.testing.contract.helpers import (
    Worker,
    failed,
    holders,
    id_of,
    insert,
    job,
    limited,
    names,
    rated,
    sole,
    state,
    states,
    succeeded,
)
from tests.contract.stores import schemas
from tests.servers.postgres import Server
from tests.waiting import wait_until

Line = psycopg.Connection[Any]


@pytest.fixture
def store(postgres: Server) -> Iterator[PostgresStore]:
    with schemas(postgres, fresh=False) as urls:
        store = PostgresStore(next(urls), SystemClock())
        store.queues()
        yield store
        store.close()


@pytest.fixture
def line(postgres: Server) -> Iterator[Line]:
    """The connection of somebody else."""
    with closing(psycopg.connect(postgres.conninfo("postgres"), application_name="web")) as line:
        yield line


def complete(store: PostgresStore, line: Line, claim: Any) -> None:
    assert store.lent(line).complete(succeeded(claim))


def begin_limited(store: PostgresStore, worker: Worker, *names: str) -> list[Any]:
    insert(store, *(limited(name, name, to=1) for name in names))
    claims = worker.claim()
    return claims or worker.claim()


def test_a_limited_job_is_put_off_and_plain_ones_are_not(store: PostgresStore, line: Line):
    worker, theirs = Worker(store, "worker"), Worker(store, "theirs")
    [a, b] = begin_limited(store, worker, "a", "b")
    insert(store, "plain", "sequel")
    [plain] = worker.claim(1)
    complete(store, line, a)
    reply = worker.exchange(succeeded(plain), succeeded(b), limit=5)
    assert (names(reply.put_off), names(reply.claims), reply.refused, reply.alive) == (["b"], ["sequel"], [], True)
    assert state(store, "plain") is JobState.SUCCEEDED
    assert state(store, "b") is JobState.RUNNING
    assert theirs.alive
    line.commit()
    assert worker.finish(succeeded(b)) == []
    assert holders(store, "a") == holders(store, "b") == 0
    assert states(store) == dict.fromkeys(["a", "b", "plain"], JobState.SUCCEEDED) | {"sequel": JobState.RUNNING}


def test_a_permit_is_freed_once(store: PostgresStore, line: Line):
    """By whoever offers the outcome again, for the next in line."""
    worker = Worker(store, "worker")
    insert(store, *(limited(name, "k") for name in "abc"), limited("other", "else"))
    first = {claim.token.id: claim for claim in worker.claim()}
    complete(store, line, first[id_of("other")])
    for _ in range(3):
        assert names(worker.exchange(succeeded(first[id_of("a")])).put_off) == ["a"]
    line.rollback()
    assert worker.finish(succeeded(first[id_of("a")])) == []
    wait_until(lambda: names(worker.claim()) == ["b"], "the next of its line is let in, alone")
    assert holders(store) == 1


def test_a_parent_is_put_off_until_who_comes_after_it_is_known(store: PostgresStore, line: Line):
    worker = Worker(store, "worker")
    insert(store, "parent", "plain")
    parent, plain = worker.claim()
    store.lent(line).insert([job("child", after=(Parent(id_of("parent")),))])
    reply = worker.exchange(succeeded(parent), succeeded(plain), limit=5)
    assert (names(reply.put_off), reply.refused) == (["parent"], [])
    line.commit()
    assert worker.finish(succeeded(parent)) == []
    wait_until(lambda: names(worker.claim()) == ["child"], "the child comes next")


def test_flows_wait_and_plain_failures_do_not(store: PostgresStore, line: Line):
    """What goes round again needs nothing of anybody."""
    worker = Worker(store, "worker")
    insert(store, "p", "q", "plain", job("last", after=(Parent(id_of("p")),)))
    insert(store, job("mine", after=(Parent(id_of("q")),)))
    claims = {claim.token.id: claim for claim in worker.claim()}
    store.lent(line).insert([job("more", before=(Parent(id_of("last")),))])
    reply = worker.exchange(*(failed(claims[id_of(name)]) for name in ("q", "plain")))
    assert names(reply.put_off) == ["q"]
    assert state(store, "plain") is JobState.FAILED
    line.commit()
    assert worker.finish(failed(claims[id_of("q")]), succeeded(claims[id_of("p")])) == []
    assert state(store, "mine") is JobState.CANCELLED
    assert state(store, "last") is JobState.WAITING


def test_that_a_job_began_is_told_later(store: PostgresStore, line: Line):
    worker = Worker(store, "worker")
    insert(store, "a", "b")
    a, b = worker.claim()
    complete(store, line, a)
    reply = worker.exchange(succeeded(b), started=[a.token])
    assert (names(reply.put_off), state(store, "b")) == (["a"], JobState.SUCCEEDED)
    line.rollback()
    assert worker.exchange(started=[a.token]).put_off == []


def test_jobs_of_paused_tasks_are_sent_away_without_it(store: PostgresStore, line: Line):
    worker = Worker(store, "worker")
    [a] = begin_limited(store, worker, "a")
    complete(store, line, a)
    store.pause("sleepy", None, "ann", "because", kind=Paused.TASK)
    insert(store, job("paused", task="sleepy"), "plain")
    assert names(worker.exchange(limit=5).claims) == ["plain"]
    assert state(store, "paused") is JobState.WAITING
    line.commit()
    assert store.resume("sleepy", "ann", "because", kind=Paused.TASK)
    assert names(worker.claim()) == ["paused"]


def test_jobs_with_a_token_are_left_and_plain_ones_taken(store: PostgresStore, line: Line):
    worker = Worker(store, "worker")
    [a] = begin_limited(store, worker, "a")
    insert(store, rated("rated", Pace("r", 10, SECOND)))
    store.promote(10)
    assert state(store, "rated") is JobState.READY
    complete(store, line, a)
    insert(store, "plain")
    insert(store, limited("another"))  # for whom the exchange would have to judge
    assert names(worker.exchange(limit=5).claims) == ["plain"]
    line.commit()
    wait_until(lambda: "rated" in names(worker.claim()), "it is taken when it can be")


def test_what_is_due_goes_on(store: PostgresStore, line: Line):
    worker = Worker(store, "worker")
    [a] = begin_limited(store, worker, "a")
    complete(store, line, a)
    insert(store, job("due", delay=1), limited("waits"))
    wait_until(lambda: store.promote(10).jobs and state(store, "due") is JobState.READY, "it is ready")
    assert state(store, "waits") is JobState.WAITING
    line.commit()
    wait_until(lambda: (store.promote(10), state(store, "waits") is JobState.READY)[1], "it is let in")


def test_orphans_are_adopted_without_the_one_that_is_held(store: PostgresStore, line: Line):
    worker, heir = Worker(store, "worker"), Worker(store, "heir")
    insert(store, "a", "b")
    a, _ = worker.claim()
    complete(store, line, a)
    assert names(orphan.claim for orphan in store.adopt(heir.id, 1, 10, dead=[worker.id])) == ["b"]
    assert store.adopt(heir.id, 2, 10, dead=[worker.id]) == []
    line.rollback()
    assert names(orphan.claim for orphan in store.adopt(heir.id, 3, 10, dead=[worker.id])) == ["a"]


def test_what_is_over_is_pruned_another_time(store: PostgresStore, line: Line):
    worker = Worker(store, "worker")
    insert(store, "old")
    [old] = worker.claim()
    worker.finish(succeeded(old)._replace(keep=1))
    [a] = begin_limited(store, worker, "a")
    complete(store, line, a)
    assert store.prune(Retention(None, None, None), 10) == 0
    line.rollback()
    wait_until(lambda: store.prune(Retention(None, None, None), 10) == 1, "it is pruned")


def test_a_tick_whose_key_is_taken_gives_way(store: PostgresStore, line: Line):
    store.lent(line).insert([sole("theirs", "key")])
    with pytest.raises(HeldUp, match="'web' \\(pid"):
        store._stroke("tick", lambda c: store._insert(c, [sole("ours", "key", UniqueConflict.KEEP)], store.now()))


def test_who_cannot_give_way_is_told_who_it_is(store: PostgresStore, line: Line, monkeypatch: pytest.MonkeyPatch):
    worker = Worker(store, "worker")
    [a] = begin_limited(store, worker, "a")
    complete(store, line, a)
    store._connections._patience = 0.3
    store._connections.drop_idle()
    monkeypatch.setattr("packhorse.stores.postgres_strokes.PATIENCE", 0.3)
    with pytest.raises(HeldUp, match=f"'web' .pid {line.info.backend_pid}, user postgres, open for"):
        store.set_limit("a", 5, "ann", "because")


def test_the_log_names_each_holder_once(store: PostgresStore, line: Line, caplog: pytest.LogCaptureFixture):
    worker = Worker(store, "worker")
    [a, b] = begin_limited(store, worker, "a", "b")
    complete(store, line, a)
    with caplog.at_level(logging.WARNING, "packhorse.store"):
        for _ in range(3):
            assert worker.exchange(succeeded(b)).put_off
    told = [text for text in caplog.messages if "holds what others wait for" in text]
    assert len(told) == 1
    assert f"'web' (pid {line.info.backend_pid}, user postgres, open for" in told[0]


def test_signals_are_awaited_beside_it(store: PostgresStore, line: Line):
    worker = Worker(store, "worker")
    [a] = begin_limited(store, worker, "a")
    insert(store, "waits", "plain")
    waits, _ = worker.claim()
    complete(store, line, a)
    insert(store, limited("another"))
    awaiting = failed(waits)._replace(state=JobState.SCHEDULED, failure=None, delay=60 * SECOND, awaits=Awaits("go", 0))
    assert worker.exchange(awaiting).put_off == []
    assert store.signal("go", b"data", SECOND) == 1


def test_what_a_job_records_is_kept_beside_it(store: PostgresStore, line: Line):
    worker = Worker(store, "worker")
    insert(store, "parent")
    [parent] = worker.claim()
    store.lent(line).insert([job("child", after=(Parent(id_of("parent")),))])
    assert store.record(parent.token, [Entry("step", "first", b"done")])
    assert [entry.name for entry in store.entries(id_of("parent"))] == ["first"]


def test_a_beat_does_not_wait_for_it(store: PostgresStore, line: Line, monkeypatch: pytest.MonkeyPatch):
    """Not even while an exchange of the same process does."""
    monkeypatch.setattr("packhorse.stores.postgres_holders.Holders.look", lambda self: None)  # it waits as ever
    worker = Worker(store, "worker")
    insert(store, "parent", "plain")
    parent, plain = worker.claim()
    store.lent(line).insert([job("child", after=(Parent(id_of("parent")),))])
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(worker.exchange, succeeded(parent), succeeded(plain))
        wait_until(lambda: waiting.done() or worker.alive, "it is alive")
        assert not waiting.done()
        line.commit()
        assert waiting.result(60).refused == []


def test_who_holds_is_found_where_tables_have_a_prefix(postgres: Server, line: Line):
    """And what is beside them is nobody's business."""
    with schemas(postgres, fresh=False) as urls:
        store = PostgresStore(f"{next(urls)}&prefix=shop_", SystemClock())
        insert(store, "a")
        [claim] = Worker(store, "worker").claim()
        with store._connections.session() as c:
            assert find(c, store.schema, idle=0) == []
            complete(store, line, claim)
            [holder] = wait_until(lambda: find(c, store.schema, idle=0), "it is found")
        assert (holder.pid, holder.application, holder.state) == (
            line.info.backend_pid,
            "web",
            "idle in transaction",
        )
        line.rollback()
        store.close()
