"""A transaction of somebody else that enqueues or completes, and is left open for longer than a lease."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from packhorse import Batch
from packhorse.clock import SECOND
from packhorse.flow import FlowHandle
from packhorse.ids import from_text
from packhorse.job import JobState
from packhorse.outcome import Outcome
from packhorse.queues import parse_queues
from packhorse.stores.contract import Level
from packhorse.testing.contract.helpers import Worker
from tests.faults.harness import Place, PostgresPlace, Workers
from tests.servers.postgres import Server
from tests.waiting import wait_until

LEASE = 4.0


@pytest.fixture
def place(tmp_path: Path, postgres: Server) -> Iterator[PostgresPlace]:
    place = PostgresPlace(tmp_path, postgres)
    place.settings |= {"lease": LEASE, "heartbeat": 0.5}
    yield place
    place.end()


@pytest.fixture
def borrowed(place: PostgresPlace) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(place.server.conninfo("postgres"), application_name="slow web")) as connection:
        yield connection


def fleet(place: Place, processes: int = 2) -> Workers:
    return place.workers("--queues", "default", "--concurrency", "4", processes=processes)


def add_to_a_batch(place: PostgresPlace, borrowed: psycopg.Connection[Any]) -> tuple[str, Callable[[], None]]:
    """A member that has begun and whose end concerns the batch; how it is let go."""
    app = place.app
    batch = Batch([app.tasks["hold"].call("member")], on_finish=app.tasks["note"].call("done")).enqueue()
    place.isolated = False
    [member, *_] = [job.id for job in batch.jobs()]
    place.wait_started("member")
    with app.on(borrowed):
        FlowHandle(app, batch._raw_id).add([app.tasks["note"].call("added")])
    app.close()
    return member, lambda: place.let_go("member")


def complete_with_a_permit(place: PostgresPlace, borrowed: psycopg.Connection[Any]) -> tuple[str, Callable[[], None]]:
    """Another with the same permit waits; one of another permit runs, and its end concerns the same lock."""
    app = place.app
    doomed = Worker(app.store, "doomed", lease=600 * SECOND)
    frozen = place.enqueue("visit", "frozen", "blue", queue_name="elsewhere")
    wait_until(lambda: (app.store.promote(10), place.rows()[from_text(frozen)].state == "ready")[1], "it is let in")
    [claim] = app.store.exchange(doomed.id, 1, [], parse_queues("elsewhere"), 5, starting=5).claims
    place.enqueue("visit", "behind", "blue")
    other = place.enqueue("hold_one", "other")
    place.wait_started("other")
    with app.on(borrowed):
        assert app.store.lent(borrowed).complete(Outcome(claim.token, JobState.SUCCEEDED))
    app.close()
    return other, lambda: place.let_go("other")


@pytest.mark.servers
@pytest.mark.parametrize(
    ("hold_up", "end"),
    # After a rollback of the third the job would be its worker's again, and that is none.
    [
        (add_to_a_batch, "commit"),
        pytest.param(add_to_a_batch, "rollback", marks=pytest.mark.thorough),
        (complete_with_a_permit, "commit"),
    ],
)
def test_an_open_transaction_of_somebody_else_stops_nobody(
    place: PostgresPlace, borrowed: psycopg.Connection[Any], hold_up: Any, end: str
):
    """Plain jobs go on, none that runs is cut, the log names who it is; what was put off is written afterwards."""
    workers = fleet(place, processes=1)  # the one whose outcome is held up
    place.enqueue("hold", "long")
    place.wait_started("long")
    held_up, let_go = hold_up(place, borrowed)
    let_go()
    [last] = place.enqueue_many("nap", ("last", 2.5 * LEASE))
    plain = place.enqueue_many("note", *[(f"plain-{n}",) for n in range(40)])
    wait_until(lambda: all(place.rows()[from_text(id)].state == "succeeded" for id in plain), "plain jobs go on")
    due = place.enqueue_many("note", ("later",), run_after=0.3)
    wait_until(lambda: place.rows()[from_text(due[0])].state == "succeeded", "what is due goes on")
    wait_until(lambda: place.rows()[from_text(last)].state == "succeeded", "one longer than two leases was not cut")
    assert len(place.lines("last", "start")) == 1
    assert {row.losses for row in place.rows().values()} == {0}
    assert place.rows()[from_text(held_up)].state == "running"
    assert borrowed.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    workers.wait_log("'slow web' (pid ")
    found = {finding.about: finding for finding in place.app.store.examine()}
    assert found["held up"].level is Level.WARNING
    assert str(borrowed.info.backend_pid) in found["held up"].text
    getattr(borrowed, end)()
    place.let_go("long")
    place.wait_all_finished()
    assert {row.losses for row in place.rows().values()} == {0}
    assert {row.state for row in place.rows().values()} == {"succeeded"}
    assert place.sql("select count(*) from permit") == [(0,)]
    assert workers.stop() == 0
    assert len(place.lines("last", "start")) == len(place.lines("long", "start")) == 1


# SQLite has one writer: whoever borrows it has the file.


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    place.settings |= {"lease": LEASE, "heartbeat": 0.5}
    yield place
    place.end()


@pytest.mark.parametrize(("end", "deadline"), [("commit", 0.5), ("rollback", 3 * LEASE)], ids=["commit", "rollback"])
def test_a_borrowed_file_costs_no_running_job_anything(file: Place, end: str, deadline: float):
    """What runs goes on and nothing is lost, though nobody could renew a lease; the log and the doctor name it."""
    place = file
    place.constants["packhorse.stores.sqlite_connections.DEADLINE"] = deadline  # also one that outlasts a lease
    workers = fleet(place)
    running = place.enqueue("nap", "running", 3 * LEASE)
    quick = place.enqueue("hold", "quick")
    place.wait_started("running")
    place.wait_started("quick")
    with closing(sqlite3.connect(place.database, timeout=20)) as borrowed:
        with place.app.on(borrowed):
            added = place.app.tasks["note"].enqueue("added").id
        began = time.monotonic()
        place.let_go("quick")
        if deadline < LEASE:
            workers.wait_log(f"(pid {os.getpid()}) holds the write lock of {place.database}")
        found = {finding.about: finding for finding in place.app.store.examine()}
        assert f"(pid {os.getpid()})" in found["held up"].text
        wait_until(lambda: time.monotonic() - began > 2.5 * LEASE, "all leases are over")
        getattr(borrowed, end)()
    place.app.close()
    place.wait_all_finished()
    ids = [running, quick, added] if end == "commit" else [running, quick]
    assert {(row.state, row.attempts, row.losses) for row in place.rows().values()} == {("succeeded", 1, 0)}
    assert workers.stop() == 0
    place.check(ids)
    assert len(place.lines("running", "start")) == len(place.lines("quick", "start")) == 1
    assert "lost its lease" not in workers.log
