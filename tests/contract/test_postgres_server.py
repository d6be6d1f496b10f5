"""The PostgreSQL store and its server: where it is found, how it goes away and comes back, and what it must be."""

import logging
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from packhorse.errors import SchemaError, StoreDataError, StoreUnavailable, StoreUnsafe, StoreURLError
from packhorse.job import JobState
from packhorse.queues import EVERYTHING
from packhorse.stores import open_store
from packhorse.stores.postgres import PostgresStore
from packhorse.stores.postgres_url import parse
from packhorse.testing.contract.helpers import Worker, insert, job, names, states, succeeded
from tests.servers.postgres import Missing, Server


@pytest.fixture
def server() -> Iterator[Server]:
    """One that may be killed."""
    try:
        server = Server()
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def store(server: Server) -> Iterator[PostgresStore]:
    store = PostgresStore(server.url("postgres", schema="jobs"))
    yield store
    store.close()


def test_a_killed_server_that_comes_back(server: Server, store: PostgresStore):
    """Nothing that was acknowledged is lost, and the same store goes on where it was."""
    worker = Worker(store, "worker")
    watch = store.watch(EVERYTHING)
    insert(store, "a", "b")
    [claim] = worker.claim(1)
    server.kill()
    with pytest.raises(StoreUnavailable):
        insert(store, "lost")
    with pytest.raises(StoreUnavailable):
        store.queues()
    with pytest.raises(StoreUnavailable):
        watch.wait(0)
    server.start()
    insert(store, "c")
    assert watch.wait(0) is True
    assert worker.finish(succeeded(claim)) == []
    assert names(worker.claim()) == ["b", "c"]
    assert states(store)["a"] is JobState.SUCCEEDED
    watch.close()


def test_sessions_that_were_ended_are_replaced(server: Server, store: PostgresStore):
    """Idle connections may die at any time; neither a write nor a look fails for that."""
    worker = Worker(store, "worker")
    end_all = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'packhorse'"
    insert(store, "a")
    server.run(end_all)
    insert(store, "b")
    server.run(end_all)
    assert names(worker.claim()) == ["a", "b"]
    server.run(end_all)
    assert len(states(store)) == 2


def test_a_standby_is_refused(server: Server, store: PostgresStore):
    """Nothing can be written there, and what can be read is old."""
    insert(store, "a")
    store.close()
    server.stop()
    Path(f"{server.folder}/data/standby.signal").touch()
    server.start()
    with pytest.raises(StoreUnsafe, match="standby"):
        insert(store, "b")


@pytest.mark.parametrize("setting", ["fsync", "synchronous_commit"])
def test_a_server_that_may_forget_is_warned_of(server: Server, setting: str, caplog: pytest.LogCaptureFixture):
    """Once, and by the name of the setting."""
    server.stop()
    server.start(**{setting: "off"})
    store = PostgresStore(server.url("postgres"))
    with caplog.at_level(logging.WARNING, "packhorse.store"):
        insert(store, "a")
        store.close()
        insert(store, "b")
    store.close()
    assert [record.getMessage() for record in caplog.records if f"{setting} = off" in record.getMessage()] != []
    assert len(caplog.records) == 1


def test_schemas_are_apart(server: Server, store: PostgresStore):
    """Two stores in one database know nothing of each other."""
    other = PostgresStore(server.url("postgres", schema='the "other"'.replace(" ", "%20").replace('"', "%22")))
    insert(store, "a")
    assert states(other) == {}
    insert(other, "b")
    assert (list(states(store)), list(states(other))) == (["a"], ["b"])
    other.close()


def test_a_schema_of_the_future_is_left_alone(server: Server, store: PostgresStore):
    """One step ahead is a deploy under way; more is another Packhorse's."""
    store.migrate()
    newest = store.schema_version()
    server.run(f"insert into jobs.packhorse_schema values ({newest + 1}, 'next')")
    assert store.migrate() == []
    server.run(f"insert into jobs.packhorse_schema values ({newest + 2}, 'later')")
    with pytest.raises(SchemaError, match="Upgrade"):
        store.migrate()


def test_a_value_it_cannot_store(store: PostgresStore):
    """PostgreSQL has no text with a NUL."""
    with pytest.raises(StoreDataError):
        insert(store, job("a", task="a\0b"))
    insert(store, "b")
    assert list(states(store)) == ["b"]


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        ("postgresql://ann:secret@db.example/shop", "require"),
        ("postgres://db.example:5433/shop?schema=jobs", "require"),
        ("postgresql:///shop?host=db.example", "require"),
        ("postgresql://db.example/shop?sslmode=verify-full", "verify-full"),
        ("postgresql://db.example/shop?sslmode=disable", "disable"),
        ("postgresql://localhost/shop", None),
        ("postgresql://[::1]/shop", None),
        ("postgresql:///shop", None),
        ("postgresql:///shop?host=/run/postgresql", None),
        ("postgresql://localhost,db.example/shop", "require"),
    ],
)
def test_other_hosts_are_reached_by_tls(url: str, mode: str | None):
    """Unless the URL says otherwise."""
    assert psycopg.conninfo.conninfo_to_dict(parse(url)[0]).get("sslmode") == mode


def test_the_schema_is_named_in_the_url():
    assert parse("postgresql:///shop")[1] == "packhorse"
    assert parse("postgresql:///shop?schema=jobs")[1] == "jobs"


@pytest.mark.parametrize("url", ["postgresql:///shop?nonsense=1", f"postgresql:///shop?schema={'x' * 64}"])
def test_a_url_that_cannot_be_used(url: str):
    with pytest.raises(StoreURLError):
        open_store(url)
