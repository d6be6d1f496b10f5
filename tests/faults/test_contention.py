"""Many writers, outsiders that lock or read for long, and many commits and checkpoints (F67, F68, F69, F75)."""

import os
import sqlite3
import statistics
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from packhorse.ids import from_text
from tests.faults.harness import Client, Place
from tests.waiting import wait_until

DEADLINE = "packhorse.stores.sqlite_connections.DEADLINE"


@pytest.mark.slow
def test_eight_writers_at_once_never_meet_a_lock(place: Place):
    place.enqueue("note", "first")
    writers = [place.client("write_one_by_one", f"single-{n}", "150") for n in range(4)]
    writers += [place.client("write_in_bulk", f"bulk-{n}", "15") for n in range(2)]
    writers += [place.client("write_exchanges", f"exchange-{n}", "150") for n in range(2)]
    said = [line.split() for writer in writers for line in writer.succeeded()]
    enqueued = {from_text(words[1]) for words in said if words[0] == "enqueued"}
    finished = {from_text(words[1]) for words in said if words[0] == "finished"}
    rows = place.rows()
    assert len(enqueued) == 4 * 150 + 2 * 15 * 100 + 2 * 150
    assert enqueued <= set(rows)
    assert len(rows) == len(enqueued) + 1
    assert {row.id for row in rows.values() if row.state == "succeeded"} == finished
    assert len(finished) == 2 * 150
    assert not any("locked" in writer.errors for writer in writers)
    waits = [float(words[2]) for words in said if len(words) > 2]
    assert statistics.quantiles(waits, n=100)[-1] < 1.0, "somebody is always passed over"
    assert place.sql("pragma integrity_check") == [("ok",)]


@pytest.mark.slow
def test_an_outsider_that_locks_for_longer_than_a_lease_stops_nobody(place: Place):
    place.constants[DEADLINE] = 0.3
    place.settings["lease"] = 2.0
    held = place.enqueue("hold", "held")
    workers = place.workers("--concurrency", "4")
    place.wait_started("held")
    quick = place.enqueue_many("note", *[(f"before-{n}",) for n in range(200)])
    with closing(sqlite3.connect(place.database, isolation_level=None, timeout=20)) as outsider:
        outsider.execute("begin exclusive")
        # Its lease would be over once this much time has passed by the store's own clock; nobody can renew it.
        worker = outsider.execute("select id from process where role = 'worker'").fetchone()[0]
        until = outsider.execute("select lease_until from process where id = ?", (worker,)).fetchone()[0]
        wait_until(lambda: place.app.clock.ticks() > until + 1_000_000, "the leases are over")
        workers.wait_log("holds the write lock of")
        place.let_go("held")
        client = place.client("try_to_enqueue", "1")
        [refusal, _] = client.succeeded()
        assert refusal.startswith("refused EnqueueError Nothing was enqueued: ")
        assert f"(pid {os.getpid()}) has kept the database locked" in refusal
        outsider.execute("commit")
    place.wait_all_finished()
    assert "are stopped" not in workers.log
    assert {row.losses for row in place.rows().values()} == {0}

    # Whoever dies now is noticed as before.
    assert len(workers.pids("worker")) == len(workers.pids("dispatcher")) == 1
    wait_until(
        lambda: live_roles(place) == {"supervisor", "worker", "dispatcher", "scheduler"}, "all have a lease again"
    )
    second = place.enqueue("hold", "second")
    workers.kill_child(place.wait_started("second").pid)
    place.wait_started("second", times=2)
    place.let_go("second")
    due = place.enqueue("note", "due", run_after=0.1)
    place.wait_all_finished()
    assert workers.stop() == 0
    place.check([held, *quick, second, due])


@pytest.mark.parametrize(("threads", "count"), [(50, 4), pytest.param(50, 20, marks=pytest.mark.thorough)])
def test_no_writer_of_a_crowd_is_refused(place: Place, threads: int, count: int):
    """Each waits for as long as its process gets its turn: behind many others, that is longer than the deadline."""
    place.constants[DEADLINE] = 2.0
    place.enqueue("note", "first")
    crowds = [place.client("write_in_threads", f"crowd-{n}", str(threads), str(count)) for n in range(4)]
    said = [line.split()[0] for crowd in crowds for line in crowd.succeeded()]
    assert Counter(said) == {"enqueued": 4 * threads * count, "survived": 4}
    assert len(place.rows()) == 4 * threads * count + 1


def live_roles(place: Place) -> set[str]:
    return {role for (role,) in place.sql("select role from process where lease_until > ?", place.app.clock.ticks())}


@pytest.mark.slow
def test_a_writer_that_stands_still_in_its_transaction_is_waited_for_and_named(place: Place):
    """One of ours, stopped by SIGSTOP while it holds the writers' lock."""
    place.constants[DEADLINE] = 0.3
    id = place.enqueue("note", "first")
    stopped = place.client("write_one_by_one", "stopped", "1", failpoints="insert.before_commit=stop@1")
    wait_until(lambda: is_stopped(stopped), "the writer stands still")
    [refusal, _] = place.client("try_to_enqueue", "1").succeeded()
    assert f"(pid {stopped.process.pid}) has kept the database locked" in refusal
    stopped.process.kill()  # and the kernel lets go of its lock
    said = place.client("try_to_enqueue", "1").succeeded()
    assert said[0].startswith("enqueued ")
    rows = place.rows()
    assert len(rows) == 2
    assert from_text(id) in rows


def is_stopped(client: Client) -> bool:
    with open(f"/proc/{client.process.pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"


@pytest.mark.slow
def test_a_long_reader_lets_the_wal_grow_but_not_for_good(place: Place):
    place.constants["packhorse.runtime.dispatcher.PRUNE_EVERY"] = 0.2
    place.constants["packhorse.stores.sqlite.WAL_WARNING"] = 70 << 20
    place.constants["packhorse.stores.sqlite.WAL_WARNING_EVERY"] = 600.0
    ids = [place.enqueue("note", "first")]
    workers = place.workers("--concurrency", "4")
    place.wait_all_finished()
    assert "write-ahead log" not in workers.log
    with closing(sqlite3.connect(place.database, isolation_level=None, timeout=20)) as reader:
        reader.execute("begin")
        assert reader.execute("select count(*) from job").fetchone() == (1,)
        ids += place.enqueue_many("note", *[(f"small-{n}",) for n in range(3000)])
        padding = "x" * 200_000
        for batch in range(9):
            ids += place.enqueue_many("note", *[(f"large-{batch}-{n}", padding) for n in range(50)])
        place.wait_all_finished()
        assert place.wal.stat().st_size > 70 << 20
        workers.wait_log("write-ahead log")
        assert reader.execute("select count(*) from job").fetchone() == (1,)
    # The reader is gone: the log is copied, begun anew and cut back while work goes on.
    ids += place.enqueue_many("note", *[(f"after-{n}", padding) for n in range(150)])
    ids += [place.enqueue("note", f"last-{n}") for n in range(5)]
    place.wait_all_finished()
    assert place.wal.stat().st_size <= 64 << 20
    assert workers.log.count("write-ahead log") == 1  # said now and then, not once a turn
    assert workers.stop() == 0
    place.check(ids)


@pytest.mark.slow
def test_commits_and_checkpoints_of_many_processes_damage_nothing(place: Place):
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        place.store_folder = Path(folder)  # in memory there is time for many more of them; no power is lost here
        place.enqueue("note", "first")
        clients = [place.client("stress", f"stress-{n}", "1000") for n in range(5)]
        said = [client.succeeded() for client in clients]
        enqueued = {from_text(line.split()[1]) for lines in said for line in lines if line.startswith("enqueued")}
        assert len(enqueued) == 5_000
        assert enqueued < set(place.rows())
        assert place.sql("pragma integrity_check") == [("ok",)]
        place.app.close()
