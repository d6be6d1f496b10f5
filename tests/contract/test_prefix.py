"""Tables among those of others: every name of ours begins with a prefix, on both SQL stores, and nothing else differs.

All parts of the contract run so, most of them in `make test-all` alone.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from packhorse.clock import Clock
from packhorse.errors import StoreURLError
from packhorse.queues import EVERYTHING
from packhorse.stores import Store, open_store
from packhorse.stores.contract import Retention
from packhorse.stores.migrate import steps
from packhorse.stores.postgres import PostgresStore
from packhorse.stores.postgres_session import said
from packhorse.stores.postgres_url import parse
from packhorse.stores.sql_names import TABLES, prefixed, prefixed_schema
from packhorse.testing.contract import *  # noqa: F403
from packhorse.testing.contract.helpers import Worker, insert, job, names, sole, states, succeeded
from tests.contract.stores import EMPTY, FRESH, emptied, on_kept_lines, quick_folder, schemas
from tests.servers.postgres import Server

PREFIX = "app_"
SCHEMA = "prefixed"
KEEP_NOTHING = Retention(0, 0, 0)


@pytest.fixture(params=["sqlite", "postgres"])
def new_store(request: pytest.FixtureRequest) -> Iterator[Callable[[Clock], Store]]:
    if request.param == "postgres":
        fresh = request.node.name.startswith(FRESH)
        server: Server = request.getfixturevalue("postgres")

        def opened(clock: Clock) -> Store:
            if fresh:
                return open_store(f"{next(urls)}&prefix={PREFIX}", clock)
            server.run(EMPTY.format(schema=SCHEMA))
            return on_kept_lines(server, server.url("postgres", schema=SCHEMA, prefix=PREFIX), clock)

        with schemas(server) as urls:
            yield opened
        return
    with quick_folder() as folder:
        yield lambda clock: open_store(f"sqlite:///{emptied(folder / 'store')}/jobs.db?prefix={PREFIX}", clock)


# A database of others.


class Shared:
    """With tables that have the names we would use, and two stores beside them."""

    def __init__(self, kind: str, folder: Path, server: Server | None) -> None:
        self.server = server
        self.path = folder / "app.db"
        self.kind = kind
        self.run("create table job (n integer)")
        self.run("create table process (n integer)")
        self.run("create table packhorse_schema (number integer)")
        self.before = self.relations()

    def url(self, prefix: str) -> str:
        if self.server is None:
            return f"sqlite:///{self.path}?prefix={prefix}"
        return self.server.url("postgres", schema="shared", prefix=prefix)

    def connect(self) -> sqlite3.Connection | psycopg.Connection:
        if self.server is None:
            return sqlite3.connect(self.path, timeout=20)
        return psycopg.connect(self.server.conninfo("postgres"), options="-c search_path=shared")

    def run(self, text: str) -> list[tuple]:
        with closing(self.connect()) as connection:
            cursor = connection.execute(text)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
            return rows

    def relations(self) -> set[str]:
        if self.server is None:
            return {name for (name,) in self.run("select name from sqlite_schema where name not like 'sqlite_%'")}
        relations = "select relname::text from pg_class where relnamespace = 'shared'::regnamespace"
        functions = "select proname::text from pg_proc where pronamespace = 'shared'::regnamespace"
        return {name for (name,) in self.run(f"{relations} union all {functions}")}


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest) -> Iterator[Shared]:
    if request.param == "postgres":
        server: Server = request.getfixturevalue("postgres")
        server.run("create schema shared")
        try:
            yield Shared("postgres", Path(), server)
        finally:
            server.run("drop schema shared cascade")
        return
    with quick_folder() as folder:
        yield Shared("sqlite", folder, None)


def test_a_prefix_begins_every_name_that_is_made(shared: Shared):
    store = open_store(shared.url(PREFIX))
    assert store.migrate() != []
    assert store.migrate() == []
    made = shared.relations() - shared.before
    assert {f"{PREFIX}{table}" for table in TABLES[:-1] if table != "bell"} < made
    assert f"{PREFIX}ledger" in made
    assert {name for name in made if not name.startswith(PREFIX)} == set()
    assert store.schema_version() == steps(shared.kind)[-1].number
    store.close()


def test_a_prefix_keeps_stores_apart_and_leaves_others_alone(shared: Shared):
    stores = [open_store(shared.url(prefix)) for prefix in ("one_", "two_")]
    for name, store in zip("ab", stores, strict=True):
        worker = Worker(store, "worker")
        insert(store, name, sole(f"{name} sole"), job(f"{name} tagged", tags=("x",)))
        watch = store.watch(EVERYTHING)
        claims = worker.claim()
        assert names(claims) == [name, f"{name} sole", f"{name} tagged"]
        worker.finish(*[succeeded(claim, b"42") for claim in claims])
        watch.close()
    assert [sorted(states(store)) for store in stores] == [[n, f"{n} sole", f"{n} tagged"] for n in "ab"]
    assert stores[0].prune(KEEP_NOTHING, 100) == 3
    assert len(states(stores[1])) == 3
    assert [shared.run(f"select count(*) from {table}") for table in ("job", "process")] == [[(0,)], [(0,)]]
    for store in stores:
        store.close()


def test_a_prefix_on_a_lent_connection(shared: Shared):
    """With the caller's own table of the same name in the same transaction."""
    store = open_store(shared.url(PREFIX))
    store.migrate()
    with closing(shared.connect()) as connection:
        connection.execute("insert into job (n) values (1)")
        store.lent(connection).insert([job("a"), sole("b"), job("c", tags=("x",))])
        connection.rollback()
        assert states(store) == {}
        connection.execute("insert into job (n) values (2)")
        store.lent(connection).insert([job("a"), sole("b"), job("c", tags=("x",))])
        connection.commit()
    assert sorted(states(store)) == ["a", "b", "c"]
    assert shared.run("select n from job") == [(2,)]
    store.close()


@pytest.mark.parametrize("shared", ["postgres"], indirect=True)
def test_a_prefix_with_history_in_partitions(shared: Shared):
    store = open_store(f"{shared.url(PREFIX)}&history=weekly")
    assert isinstance(store, PostgresStore)
    insert(store, *(f"{n:04}" for n in range(1_000)))
    worker = Worker(store, "worker")
    worker.finish(*map(succeeded, worker.claim(1_000)))
    assert store.prune(KEEP_NOTHING, 2_000) == 1_000
    store.tend_history(KEEP_NOTHING)
    assert {name for name in shared.relations() - shared.before if not name.startswith(PREFIX)} == set()
    assert f"{PREFIX}payload_rest" in shared.relations()
    assert [finding.level for finding in store.examine() if finding.about == "vacuum"] != []
    store.close()


# Texts.


def test_a_prefix_stands_before_tables_and_nothing_else():
    assert prefixed("select job.n from job where process = ?", "x_") == (
        "select job.n from x_job as job where process = ?"
    )
    assert prefixed("update job indexed by job_held set job = 1", "x_") == (
        "update x_job as job indexed by x_job_held set job = 1"
    )
    assert prefixed("from permit as one join permit as two", "x_") == "from x_permit as one join x_permit as two"
    assert prefixed("select jobs from unnest(?) as job", "x_") == "select jobs from unnest(?) as job"
    assert prefixed("insert into packhorse_schema values (?)", "x_") == (
        "insert into x_ledger as packhorse_schema values (?)"
    )
    assert said("select ring(?, ?)", "x_") == "select x_ring($1, $2)"
    statement = "delete from job"
    assert prefixed(statement, "") is statement


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_a_prefix_knows_all_tables_of_the_schema(dialect: str):
    """Whoever adds a table adds it to the list, too."""
    made = {name for step in steps(dialect) for name in re.findall(r"create (?:unlogged )?table (\w+)", step.sql)}
    assert made <= set(TABLES)
    text = "".join(prefixed_schema(step.sql, dialect, "x_") for step in steps(dialect))
    assert set(re.findall(r"create (?:unlogged )?table (\w+)", text)) == {f"x_{name}" for name in made}


@pytest.mark.parametrize("prefix", ["1_", "a-b", "a b", 'a"', "A_", "x" * 25, "sqlite_", "pg_", "ä_", "a;b"])
@pytest.mark.parametrize("url", ["sqlite:///{folder}/jobs.db?prefix=", "postgresql:///x?prefix="])
def test_a_prefix_that_cannot_be_a_name(prefix: str, url: str, tmp_path: Path):
    with pytest.raises(StoreURLError, match="prefix"):
        open_store(url.format(folder=tmp_path) + prefix.replace(" ", "%20").replace(";", "%3B"))


def test_a_prefix_is_the_default_in_the_schema_of_everybody():
    assert parse("postgresql:///x?schema=public").schema.prefix == "packhorse_"
    assert parse("postgresql:///x?schema=public&prefix=jobs_").schema.prefix == "jobs_"
    assert parse("postgresql:///x").schema.prefix == ""
