"""What the doctor says of a PostgreSQL server."""

from collections.abc import Iterator

import psycopg
import pytest

from packhorse.clock import ManualClock
from packhorse.stores import postgres_health
from packhorse.stores.contract import Finding, Level
from packhorse.stores.postgres import PostgresStore
from packhorse.testing.contract.helpers import insert
from tests.servers.postgres import Server
from tests.waiting import wait_until


@pytest.fixture
def store(postgres: Server) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres.url("postgres", schema="health"))
    insert(store, "a")
    yield store
    store.close()
    postgres.run("drop schema health cascade")


def troubles(store: PostgresStore) -> dict[str, Finding]:
    return {finding.about: finding for finding in store.examine() if finding.level is not Level.OK}


@pytest.fixture
def setting(postgres: Server, store: PostgresStore) -> Iterator[object]:
    """Set something of the server for new sessions, and see it come into force."""
    changed: list[str] = []

    def change(name: str, value: str) -> None:
        changed.append(name)
        postgres.run(f"alter system set {name} = '{value}'")
        postgres.run("select pg_reload_conf()")
        wait_until(lambda: postgres.run(f"show {name}") == [(value,)], f"{name} is {value}")
        store.close()  # a session that is idle reads it with its next command; new ones begin with it

    yield change
    for name in changed:
        postgres.run(f"alter system reset {name}")
    postgres.run("select pg_reload_conf()")


def test_a_healthy_server(store: PostgresStore):
    findings = store.examine()
    assert troubles(store) == {}
    seen = {finding.about for finding in findings}
    assert seen >= {"postgres", "durability", "transactions", "connections", "server clock"}
    assert all(finding.text.endswith(".") for finding in findings)


@pytest.mark.parametrize(
    ("name", "about", "level"),
    [
        ("full_page_writes", "durability", Level.PROBLEM),
        ("synchronous_commit", "durability", Level.WARNING),
        ("autovacuum", "vacuum", Level.PROBLEM),
    ],
)
def test_what_is_switched_off(store: PostgresStore, setting, name: str, about: str, level: Level):
    setting(name, "off")
    assert troubles(store)[about].level is level


def test_a_table_without_autovacuum(postgres: Server, store: PostgresStore):
    postgres.run("alter table health.job set (autovacuum_enabled = false)")
    assert "for job" in troubles(store)["vacuum"].text


def test_a_transaction_that_is_open_for_long(postgres: Server, store: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres_health, "OLD_SNAPSHOT", 0.0)
    with psycopg.connect(postgres.conninfo("postgres"), application_name="report") as outsider:
        outsider.execute("create temporary table mine (n int)")
        finding = troubles(store)["transactions"]
        assert f"pg_terminate_backend({outsider.info.backend_pid})" in finding.remedy
    assert "report" in finding.text


def test_dead_rows_that_pile_up(postgres: Server, store: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres_health, "DEAD_LEAST", 1)
    postgres.run("alter table health.job set (autovacuum_enabled = false)")
    for _ in range(5):
        postgres.run("update health.job set attempts = attempts")
    wait_until(
        lambda: any("dead rows" in it.text and it.level is Level.WARNING for it in store.examine()), "they are counted"
    )


def test_few_connections_are_left(store: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres_health, "CONNECTIONS_SHARE", 0.0)
    assert troubles(store)["connections"].level is Level.WARNING


def test_clocks_that_disagree(postgres: Server, store: PostgresStore):
    ahead = PostgresStore(postgres.url("postgres", schema="health"), ManualClock())
    try:
        assert "this machine's" in troubles(ahead)["server clock"].text
    finally:
        ahead.close()
