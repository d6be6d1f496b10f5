"""Whatever is asked often is answered by the index made for it, also before there are any statistics."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.job import JobState
from packhorse.stores import sqlite_exchange, sqlite_jobs
from packhorse.stores.contract import Retention, Selection
from packhorse.stores.sqlite import SQLiteStore


@pytest.fixture(params=["never analyzed", "analyzed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    store.migrate()
    if request.param == "analyzed":
        with store._connections.transaction() as c:
            c.execute("analyze")
    yield store
    store.close()


def plan(store: SQLiteStore, statement: str, parameters: int | list[object]) -> str:
    values = [None] * parameters if isinstance(parameters, int) else parameters
    with store._connections.cursor() as c:
        return "; ".join(row[3] for row in c.execute(f"explain query plan {statement}", values))


def batch(statement: str, width: int) -> str:
    return sqlite_exchange._prepared(statement, 16, width)


def test_finishing_and_fencing_look_up_what_is_held(store: SQLiteStore):
    """By process, nonce and id, in the small index of running jobs."""
    for statement, width, first in (
        (sqlite_exchange.SUCCEED, 5, 2),
        (sqlite_exchange.FINISH, 11, 2),
        (sqlite_exchange.STILL_OURS, 4, 0),
    ):
        seen = plan(store, batch(statement, width), 16 * width + first)
        assert "SEARCH job USING INDEX job_held (process=? AND nonce=? AND id=?)" in seen


def test_claiming_reads_a_range_of_its_index(store: SQLiteStore):
    """One queue or several merged: nothing is sorted."""
    several = " union all ".join([sqlite_exchange.READY_OF_QUEUE] * 3) + " order by 1, 2, 3 limit 1 offset ?"
    assert "job_to_claim (queue=? AND (rank,order_key,id)<(?,?,?))" in plan(store, sqlite_exchange.CLAIM, 11)
    seen = plan(store, several, ["a", "b", "c", 1])
    assert seen.count("INDEX job_to_claim (queue=?)") == 3
    assert "TEMP B-TREE" not in seen
    assert "job_held (process=? AND nonce=?)" in plan(store, sqlite_exchange.CLAIMED, 2)


def test_pruning_reads_its_index(store: SQLiteStore):
    """The partial index serves only a query that repeats its condition."""
    seen: list[str] = []
    with store._connections.cursor() as c:
        c.set_trace_callback(seen.append)
        store._prunable(c, Retention(0, 0, 0), 10)
        c.set_trace_callback(None)
    assert len(seen) == 3
    for statement in seen:
        assert "job_to_prune (state=? AND finished_at<?)" in plan(store, statement, 0)


@pytest.mark.parametrize(
    ("state", "index"),
    [
        (JobState.FAILED, "job_to_prune"),
        (JobState.RUNNING, "job_held"),
        (JobState.READY, "job_to_claim"),
        (JobState.SCHEDULED, "job_to_promote"),
    ],
)
def test_selecting_by_state_does_not_scan_the_payloads(store: SQLiteStore, state: JobState, index: str):
    """A million succeeded jobs must not slow down a page of failed ones."""
    seen = plan(store, *sqlite_jobs.select("payload.id", Selection(states=[state]), None, 10))
    assert f"job USING INDEX {index}" in seen or f"job USING COVERING INDEX {index}" in seen
    assert "SCAN payload" not in seen


def test_one_job_is_found_by_its_id(store: SQLiteStore):
    """With look-ups alone."""
    seen = plan(store, f"{sqlite_jobs.WIDE} where payload.id = ?", 1)
    assert "SCAN" not in seen
