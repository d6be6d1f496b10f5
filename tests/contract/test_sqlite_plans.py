"""Whatever is asked often is answered by the index made for it, also before there are any statistics."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from packhorse.clock import SECOND
from packhorse.ids import new_id
from packhorse.job import Claim, JobState, NewJob
from packhorse.outcome import Outcome
from packhorse.stores import sql_exchange, sql_gates, sql_jobs, sql_signals, sql_store, sqlite_exchange
from packhorse.stores.contract import LARGE, Retention, Selection
from packhorse.stores.sqlite import SQLiteStore
from packhorse.stores.sqlite_batches import prepared
from packhorse.testing.contract.helpers import Worker, failed, insert, succeeded


@pytest.fixture(params=["never analyzed", "analyzed", "full and analyzed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    store.migrate()
    if request.param == "full and analyzed":
        fill(store)
    if request.param != "never analyzed":
        store._connections.write(lambda c: c.execute("analyze"))
    yield store
    store.close()


def fill(store: SQLiteStore) -> None:
    """Many jobs that succeeded, some of them kept for their own time, and a few in other states."""
    worker = Worker(store, "worker")
    insert(store, *(f"{number:04}" for number in range(2_000)))
    for start in range(0, 1_900, 100):
        claims = enumerate(worker.claim(100), start)
        worker.finish(*(succeeded(claim, b"42") if number % 7 else own_time(claim) for number, claim in claims))
    worker.finish(*map(failed, worker.claim(40)))
    worker.claim(20)


def own_time(claim: Claim) -> Outcome:
    return succeeded(claim, b"42")._replace(keep=60 * SECOND, result_ttl=SECOND)


def plan(store: SQLiteStore, statement: str, parameters: int | Sequence[object]) -> str:
    values = [None] * parameters if isinstance(parameters, int) else parameters
    with store._connections.cursor() as c:
        return "; ".join(row[3] for row in c.execute(f"explain query plan {statement}", values))


def batch(statement: str, width: int) -> str:
    return prepared(statement, 16, width)


def test_finishing_and_fencing_look_up_what_is_held(store: SQLiteStore):
    """By process, nonce and id, in the small index of running jobs."""
    for statement, width, first in (
        (sqlite_exchange.SUCCEED, 5, 2),
        (sqlite_exchange.FINISH, 14, 2),
        (sqlite_exchange.STILL_OURS, 4, 0),
    ):
        seen = plan(store, batch(statement, width), 16 * width + first)
        assert "SEARCH job USING INDEX job_held (process=? AND nonce=? AND id=?)" in seen


def test_1B_20_claiming_reads_a_range_of_its_index(store: SQLiteStore):
    """One queue or several merged: nothing is sorted."""
    several = " union all ".join([sqlite_exchange.READY_OF_QUEUE] * 3) + " order by 1, 2, 3 limit 1 offset ?"
    assert "job_to_claim (queue=? AND (rank,order_key,id)<(?,?,?))" in plan(store, sqlite_exchange.CLAIM, 11)
    seen = plan(store, several, ["a", "b", "c", 1])
    assert seen.count("INDEX job_to_claim (queue=?)") == 3
    assert "TEMP B-TREE" not in seen
    assert "job_held (process=? AND nonce=?)" in plan(store, sqlite_exchange.CLAIMED, 2)


def test_1B_21_claiming_takes_no_more_steps_behind_a_large_backlog(tmp_path: Path):
    """Counted in instructions of SQLite, which no other program on the machine disturbs."""
    store = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
    store.migrate()
    worker = Worker(store, "worker")
    steps: list[int] = []
    for backlog in (1_000, 100_000):
        waiting = sum(queue.of(JobState.READY) for queue in store.queues())
        store.insert([NewJob(new_id(), "task", b"", f"q{n % 5}") for n in range(backlog - waiting)])
        for queues in ("*", "q1,q*", "q3"):
            assert len(claimed_counting(store, worker, queues, steps)) == 100
    few, many = steps[:3], steps[3:]
    assert all(more <= 1.5 * less for less, more in zip(few, many, strict=True)), steps
    store.close()


def claimed_counting(store: SQLiteStore, worker: Worker, queues: str, steps: list[int]) -> list[Claim]:
    steps.append(0)

    def count() -> None:
        steps[-1] += 1

    with store._connections.cursor() as c:
        c.set_progress_handler(count, 10)
    claims = worker.claim(100, queues=queues)
    with store._connections.cursor() as c:
        c.set_progress_handler(None, 0)
    assert steps[-1] > 0, "this is not the connection that claims"
    return claims


def test_pruning_reads_its_index(store: SQLiteStore):
    """A range for the jobs with their own time, one for those of the rule, for each state; nothing is sorted."""
    seen: list[str] = []
    with store._connections.cursor() as c:
        c.set_trace_callback(seen.append)
        store._prunable(c, Retention(0, 0, 0), 10, "")
        c.set_trace_callback(None)
    apart, by_rule = seen[::2], seen[1::2]
    assert (len(apart), len(by_rule)) == (3, 3)
    for statements, terms in ((apart, "prune_at<?"), (by_rule, "prune_at=? AND finished_at<?")):
        for statement in statements:
            assert plan(store, statement, 0) == f"SEARCH job USING COVERING INDEX job_to_prune (state=? AND {terms})"


@pytest.mark.parametrize(
    ("statement", "parameters", "terms"),
    [
        (sql_store.KEPT_APART, [5, 1, 10], "state=? AND prune_at<?"),
        (sql_store.KEPT_BY_RULE, [1, 5, 1, 10], "state=? AND prune_at=? AND finished_at<?"),
    ],
    ids=["KEPT_APART", "KEPT_BY_RULE"],
)
def test_pruning_reads_its_index_with_any_parameters(
    store: SQLiteStore, statement: str, parameters: list[object], terms: str
):
    """As prepared, where SQLite knows no value, and with values in their place."""
    for values in (parameters, [None] * len(parameters)):
        assert plan(store, statement, values) == f"SEARCH job USING COVERING INDEX job_to_prune ({terms})"


def test_old_results_are_found_by_their_moment(store: SQLiteStore):
    """In the small index of results that have one, and forgotten by id."""
    look = "SEARCH ending USING COVERING INDEX ending_result_until (result_until<?)"
    assert plan(store, sql_store.OLD_RESULTS, [1, 10]) == look
    seen = plan(store, sql_store.FORGET_RESULTS, ["why", 1, 10])
    assert look in seen
    assert "SEARCH ending USING INDEX sqlite_autoindex_ending_1 (id=?)" in seen
    assert "SCAN" not in seen
    assert "TEMP B-TREE" not in seen


def test_a_job_that_is_not_kept_is_deleted_by_look_ups(store: SQLiteStore):
    """In every table; only the ids that were given are gone through."""
    seen: list[str] = []
    with store._connections.cursor() as c:
        c.set_trace_callback(seen.append)
        sql_exchange.delete(c, [b"nobody"])
        c.set_trace_callback(None)
    assert len(seen) == 2 + len(sql_exchange.WIDE_TABLES)  # of edges too
    for statement in seen:
        tables = plan(store, statement, 0).replace("SCAN CONSTANT ROW", "").replace("SCAN 1 CONSTANT ROW", "")
        assert "SCAN" not in tables


def test_sealing_anew_is_a_look_up(store: SQLiteStore):
    """By the id, then by its number."""
    assert "SCAN" not in plan(store, sql_jobs.RESEAL, 2)


def test_orders_are_found_by_their_process(store: SQLiteStore):
    """At every beat, so it must cost nothing where there are none."""
    assert plan(store, sql_exchange.ASKED, 1) == "SEARCH job USING INDEX job_held (process=?)"


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
    """A million succeeded jobs must not slow down a page of failed ones, from either end."""
    for newest_first in (False, True):
        page = sql_jobs.select("payload.id", Selection(states=[state]), None, 10, newest_first=newest_first)
        seen = plan(store, *page)
        assert f"job USING INDEX {index}" in seen or f"job USING COVERING INDEX {index}" in seen
        assert "state>?" not in seen
        assert "SCAN payload" not in seen


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_page_of_all_jobs_sorts_none(store: SQLiteStore, newest_first: bool):
    """From either end: along the ids."""
    assert "TEMP B-TREE" not in plan(
        store, *sql_jobs.select("payload.id", Selection(), None, 10, newest_first=newest_first)
    )


@pytest.mark.parametrize("bound", ["created_from", "created_before", "finished_from", "finished_before"])
def test_selecting_by_state_and_time_does_not_scan_the_payloads(store: SQLiteStore, bound: str):
    """The failures of last night are looked for among the failures."""
    within: dict[str, Any] = {bound: 1}
    selection = Selection(states=[JobState.FAILED], **within)
    seen = plan(store, *sql_jobs.select("payload.id", selection, None, 10))
    assert "INDEX job_to_prune (state=?" in seen
    assert "SCAN" not in seen


def test_one_job_is_found_by_its_id(store: SQLiteStore):
    """With look-ups alone."""
    seen = plan(store, sql_jobs.WIDE, 2)
    assert "SCAN" not in seen


def test_large_payloads_are_known_by_their_index(store: SQLiteStore):
    """Whether there is any takes one look, and the schema means the same size as the code."""
    assert plan(store, sqlite_exchange.ANY_LARGE, 0) == "SCAN payload USING INDEX payload_large"
    with store._cursor() as c:
        [(text,)] = c.execute("select sql from sqlite_schema where name = 'payload_large'")
    assert text.endswith(f"where length(body) > {LARGE}")


def test_signals_are_looked_up(store: SQLiteStore):
    """By their name, and those who await one in the small index of those who await any."""
    awaiting = "SEARCH job USING INDEX job_awaiting (awaits=?)"
    assert plan(store, sql_signals.OF_NAME, 4) == "SEARCH signal USING INDEX signal_of_name (name=? AND n>?)"
    assert plan(store, sql_signals.WAKE.format(which="awaits = ?"), 2) == awaiting.replace("INDEX", "COVERING INDEX")
    for statement, parameters in ((sql_signals.WAITERS, 3), (sql_signals.OLD, 2)):
        seen = plan(store, statement, parameters)
        assert seen.startswith("SEARCH")
        assert "TEMP B-TREE" not in seen


def test_gates_are_looked_up_by_the_parents_that_ended(store: SQLiteStore):
    """And never along all who wait: neither the edges of a child nor the jobs at their gates."""
    seen = plan(store, batch(sql_gates.WATCHERS, 1), 16)
    assert "SEARCH edge USING COVERING INDEX edge_of_parent (parent=?)" in seen
    assert "SEARCH edge USING PRIMARY KEY (child=? AND parent>?)" in seen
    for statement, first in ((sql_gates.OPEN, 1), (sql_gates.OPEN_LATER, 0), (sql_gates.STANDING, 0)):
        assert "SEARCH job USING INTEGER PRIMARY KEY (rowid=?)" in plan(store, batch(statement, 1), 16 + first)
    assert "SEARCH edge USING INDEX edge_of_parent (parent=?)" in plan(store, batch(sql_gates.MARK, 1), 16)
