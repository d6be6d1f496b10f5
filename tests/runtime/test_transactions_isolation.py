"""Lent connections whose transactions are isolated otherwise than ours: by level on PostgreSQL, by mode on SQLite."""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from packhorse import EnqueueError, JobState, chain, unique
from packhorse.clock import SECOND
from packhorse.errors import StoreUnavailable
from packhorse.job import Parent
from packhorse.outcome import succeed
from packhorse.queues import EVERYTHING
from packhorse.stores.contract import Act, Change, ProcessInfo, Selection
from tests.runtime.test_transactions import Place, doubled, file, server

__all__ = ["file", "server"]

STRICT = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
WORKER = b"w" * 16


@pytest.fixture(params=STRICT, ids=lambda level: level.name)
def strict(request: pytest.FixtureRequest, server: Place) -> Iterator[psycopg.Connection]:
    with closing(server.connect()) as connection:
        connection.isolation_level = request.param
        yield connection


def begin(connection: psycopg.Connection) -> None:
    """From now on it sees what is there now."""
    connection.execute("select * from paid")


def is_serialization_failure(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, psycopg.errors.SerializationFailure):
            return True
        seen = seen.__cause__
    return False


# PostgreSQL.


def test_jobs_join_a_strict_transaction(server: Place, strict: psycopg.Connection):
    double = doubled(server.app)
    for end in (strict.rollback, strict.commit):
        begin(strict)
        double.enqueue(0)  # by somebody else, meanwhile
        with server.app.on(strict):
            double.enqueue(1)
            double.map(range(3)).enqueue()
            chain(double.call(4), double.call(5)).enqueue()
        strict.execute("insert into paid values ('a')")
        end()
    assert (server.jobs, server.paid) == (8, ["a"])


def test_a_key_that_another_took_since_is_a_serialization_failure(server: Place, strict: psycopg.Connection):
    """Nothing is enqueued twice for it. Whoever does the transaction again gets the job that holds the key."""

    @server.app.task(unique=unique())
    def once(number: int) -> None: ...

    begin(strict)
    first = once.enqueue(1)
    with server.app.on(strict), pytest.raises(EnqueueError, match="do the whole transaction again") as raised:
        once.enqueue(1)
    assert is_serialization_failure(raised.value)
    strict.rollback()
    begin(strict)
    with server.app.on(strict):
        assert once.enqueue(1).id == first.id
    strict.commit()
    assert server.jobs == 1


def test_a_parent_that_has_ended_since_is_a_serialization_failure(server: Place, strict: psycopg.Connection):
    """The child does not wait for ever for an end that its transaction cannot see."""
    double = doubled(server.app)
    store = server.app.store
    store.enroll(ProcessInfo(WORKER, "worker", "here", 1), 600 * SECOND)
    parent = double.enqueue(1)
    begin(strict)
    [claim] = store.exchange(WORKER, 1, [], EVERYTHING, 1).claims
    store.exchange(WORKER, 2, [succeed(claim.token, 1, b"2")], (), 0)
    child = double.call(2).new_job()
    after = child._replace(after=(Parent(claim.token.id),))
    with pytest.raises(StoreUnavailable, match="do the whole transaction again"):
        store.lent(strict).insert([after])
    strict.rollback()
    begin(strict)
    store.lent(strict).insert([after])
    strict.commit()
    assert parent.state is JobState.SUCCEEDED
    found = store.job(child.id)
    assert found is not None
    assert found.state is JobState.READY


def test_completing_a_job_that_was_changed_since(server: Place, strict: psycopg.Connection):
    """An operator asked for its end after the task's transaction began: its rows go, and the job is still held."""
    double = doubled(server.app)
    store = server.app.store
    store.enroll(ProcessInfo(WORKER, "worker", "here", 1), 600 * SECOND)
    double.enqueue(1)
    [claim] = store.exchange(WORKER, 1, [], EVERYTHING, 1).claims
    begin(strict)
    store.move(Selection(ids=[claim.token.id]), Change(Act.CANCEL, seal=b"seal"), "ann", "enough")
    strict.execute("insert into paid values ('a')")
    with pytest.raises(StoreUnavailable, match="do the whole transaction again"):
        store.lent(strict).complete(succeed(claim.token, 1, b"2"))
    strict.rollback()
    assert store.held(WORKER) == [claim.token]
    strict.execute("insert into paid values ('b')")
    assert store.lent(strict).complete(succeed(claim.token, 1, b"2"))
    strict.commit()
    assert (server.paid, server.states()) == (["b"], [JobState.SUCCEEDED])


def test_completing_a_job_that_another_came_to_wait_for_since(server: Place, strict: psycopg.Connection):
    """The transaction cannot see who waits, and whoever is not seen would wait for ever."""
    double = doubled(server.app)
    store = server.app.store
    store.enroll(ProcessInfo(WORKER, "worker", "here", 1), 600 * SECOND)
    double.enqueue(1)
    [claim] = store.exchange(WORKER, 1, [], EVERYTHING, 1).claims
    begin(strict)
    child = double.call(2).new_job()._replace(after=(Parent(claim.token.id),))
    store.insert([child])
    with pytest.raises(StoreUnavailable, match="do the whole transaction again"):
        store.lent(strict).complete(succeed(claim.token, 1, b"2"))
    strict.rollback()
    begin(strict)
    assert store.lent(strict).complete(succeed(claim.token, 1, b"2"))
    strict.commit()
    assert server.states() == [JobState.SUCCEEDED, JobState.READY]


def test_completing_the_last_of_two_parents_whose_other_has_ended_since(server: Place, strict: psycopg.Connection):
    """As the transaction sees it, the other one still has to end: its child would be left to watch that for ever."""
    double = doubled(server.app)
    store = server.app.store
    store.enroll(ProcessInfo(WORKER, "worker", "here", 1), 600 * SECOND)
    for number in (1, 2):
        double.enqueue(number)
    claims = store.exchange(WORKER, 1, [], EVERYTHING, 2).claims
    child = double.call(2).new_job()._replace(after=tuple(Parent(claim.token.id) for claim in claims))
    store.insert([child])
    begin(strict)
    store.exchange(WORKER, 2, [succeed(claims[1].token, 1, b"2")], (), 0)
    with pytest.raises(StoreUnavailable, match="do the whole transaction again"):
        store.lent(strict).complete(succeed(claims[0].token, 1, b"2"))
    strict.rollback()
    assert store.lent(strict).complete(succeed(claims[0].token, 1, b"2"))
    strict.commit()
    assert server.states() == [JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.READY]


def test_completing_with_followers_of_its_own_transaction(server: Place, strict: psycopg.Connection):
    """Those that the transaction itself has made are no surprise."""
    double = doubled(server.app)
    store = server.app.store
    store.enroll(ProcessInfo(WORKER, "worker", "here", 1), 600 * SECOND)
    double.enqueue(1)
    [claim] = store.exchange(WORKER, 1, [], EVERYTHING, 1).claims
    begin(strict)
    store.lent(strict).insert([double.call(2).new_job()._replace(after=(Parent(claim.token.id),))])
    assert store.lent(strict).complete(succeed(claim.token, 1, b"2"))
    strict.commit()
    assert server.states() == [JobState.SUCCEEDED, JobState.READY]


def test_a_commit_that_fails_leaves_no_job(server: Place):
    """Two that each read what the other writes: one of them fails at its end, and its job is not there."""
    double = doubled(server.app)
    with closing(server.connect()) as one, closing(server.connect()) as two:
        for connection in (one, two):
            connection.isolation_level = IsolationLevel.SERIALIZABLE
            connection.execute("select count(*) from paid")
        for name, connection in (("one", one), ("two", two)):
            connection.execute("insert into paid values (%s)", [name])
            with server.app.on(connection):
                double.enqueue(1)
        one.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            two.commit()
    assert (server.jobs, server.paid) == (1, ["one"])


def test_without_a_transaction_the_level_does_not_matter(server: Place):
    double = doubled(server.app)
    with closing(server.connect_autocommit()) as connection:
        connection.execute("set default_transaction_isolation = 'serializable'")
        with server.app.on(connection):
            for number in range(3):
                double.enqueue(number)
                double.enqueue(number)
        assert connection.execute("show default_transaction_isolation").fetchone() == ("serializable",)
    assert server.jobs == 6


# SQLite: `autocommit` came with Python 3.12.

MODES: dict[str, dict[str, Any]] = {"isolation level": {}}
if sys.version_info >= (3, 12):
    MODES["legacy"] = {"autocommit": sqlite3.LEGACY_TRANSACTION_CONTROL}
    MODES["no autocommit"] = {"autocommit": False}


@pytest.mark.parametrize("mode", MODES)
def test_jobs_join_the_transaction_of_each_mode(file: Place, mode: str):
    double = doubled(file.app)
    with closing(sqlite3.connect(file._file, timeout=20, **MODES[mode])) as connection:
        before = getattr(connection, "autocommit", None)
        for end in (connection.rollback, connection.commit):
            with file.app.on(connection):
                double.enqueue(1)  # ours is the first statement
            connection.execute("insert into paid values ('a')")
            with file.app.on(connection):
                double.map(range(2)).enqueue()
            assert connection.in_transaction
            assert file.jobs == 0
            end()
        assert getattr(connection, "autocommit", None) == before
    assert (file.jobs, file.paid) == (3, ["a"])


OFF: dict[str, dict[str, Any]] = {"no isolation level": {"isolation_level": None}}
if sys.version_info >= (3, 12):
    OFF["autocommit"] = {"autocommit": True}


@pytest.mark.parametrize("mode", OFF)
def test_each_stroke_is_a_transaction_where_python_begins_none(file: Place, mode: str):
    double = doubled(file.app)
    with closing(sqlite3.connect(file._file, timeout=20, **OFF[mode])) as connection:
        with file.app.on(connection):
            double.enqueue(1)
        assert not connection.in_transaction
        assert file.jobs == 1
        for end in ("rollback", "commit"):
            connection.execute("begin")  # the caller's own, which only the caller ends
            with file.app.on(connection):
                double.enqueue(2)
            assert connection.in_transaction
            connection.execute("insert into paid values ('a')")
            connection.execute(end)
    assert (file.jobs, file.paid) == (2, ["a"])


@pytest.mark.parametrize("mode", MODES)
def test_a_transaction_that_read_before_another_wrote_says_so(file: Place, mode: str):
    """It cannot write any more: it is told, and can be done again."""
    double = doubled(file.app)
    with closing(sqlite3.connect(file._file, timeout=0.1, **MODES[mode])) as connection:
        if mode != "no autocommit":
            connection.execute("begin")
        connection.execute("select * from paid").fetchall()
        double.enqueue(1)
        with file.app.on(connection), pytest.raises(EnqueueError, match="Roll back and try again"):
            double.enqueue(2)
        connection.rollback()
        with file.app.on(connection):
            double.enqueue(2)
        connection.commit()
    assert file.jobs == 2
