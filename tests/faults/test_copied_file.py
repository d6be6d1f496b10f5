"""A database that is copied, or whose log is deleted, while it is in use: no acknowledged job is lost.

Closing any descriptor of a file drops the POSIX locks of the process on it, SQLite's among them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from packhorse import Embedded, EnqueueError
from packhorse.errors import StoreUnsafe
from packhorse.ids import from_text
from packhorse.stores import sqlite_backup, sqlite_file_locks
from packhorse.stores.sqlite import SQLiteStore
from tests.faults.apps import drop_isolated, make_app
from tests.faults.harness import Place
from tests.waiting import wait_until

needs_lasting_locks = pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="needs locks that last")


def copy(place: Place) -> None:
    shutil.copy(place.database, place.folder / "copy.db")


def look(place: Place) -> None:
    place.database.open("rb").close()


def copy_all(place: Place) -> None:
    """The index of the log, too."""
    shutil.copytree(place.store_folder or place.folder, place.folder / "copy", dirs_exist_ok=True)


HARMS = [copy, look, copy_all]
OUTSIDER = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(c.execute(sys.argv[2]).fetchall()); c.close()"


def outsider(place: Place, statement: str = "select count(*) from job") -> str:
    """Another program opens the file and closes it again; what it saw."""
    command = [sys.executable, "-c", OUTSIDER, str(place.database), statement]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture
def place(place: Place) -> Iterator[Place]:
    """Its database has a folder of its own."""
    place.store_folder = place.folder / "store"
    place.store_folder.mkdir(mode=0o700)
    yield place
    place.app.close()


def enqueue(place: Place, key: str) -> str:
    """Without closing the store, as Place.enqueue does."""
    return place.app.tasks["note"].enqueue(key).id


def left(place: Place) -> set[str]:
    """The jobs in the file once this process has closed it."""
    place.app.close()
    return {row.key for row in place.rows().values()}


@needs_lasting_locks
@pytest.mark.parametrize("harm", HARMS)
def test_a_copy_taken_by_a_program_that_enqueues_costs_no_job(place: Place, harm: Callable[[Place], object]):
    keys = [f"before-{n}" for n in range(3)]
    for key in keys:
        enqueue(place, key)
    for n in range(3):
        harm(place)
        assert outsider(place) == f"[({len(keys)},)]"
        enqueue(place, f"after-{n}")
        keys.append(f"after-{n}")
    assert left(place) == set(keys)
    assert place.sql("pragma integrity_check") == [("ok",)]


@needs_lasting_locks
def test_a_copy_taken_by_a_task_costs_no_job(place: Place):
    """The worker is in the same process, and everybody else comes and goes."""
    app = place.app
    drop_isolated(app)

    @app.task(name="copy")
    def copy_in_task(key: str) -> None:
        copy_all(place)
        outsider(place)

    with Embedded(app, concurrency=2):
        handles = [app.tasks["copy"].enqueue(f"copy-{n}") for n in range(3)]
        for n in range(10):
            handles.append(app.tasks["note"].enqueue(f"note-{n}"))
        for handle in handles:
            handle.result(60)
        outsider(place)
        handles.append(app.tasks["note"].enqueue("last"))
        handles[-1].result(60)
    place.app.close()
    rows = place.rows()
    assert set(rows) == {from_text(handle.id) for handle in handles}
    assert {row.state for row in rows.values()} == {"succeeded"}


@needs_lasting_locks
def test_another_connection_of_the_program_keeps_its_locks_when_ours_is_closed(place: Place):
    """As Django has one to the same file: our descriptors stay open as long as it does."""
    enqueue(place, "before")
    with closing(sqlite3.connect(place.database, isolation_level=None)) as own:
        own.execute("create table own (n)")
        place.app.close()
        assert outsider(place) == "[(1,)]"
        own.execute("insert into own values (1)")
        assert outsider(place, "select count(*) from own") == "[(1,)]"
        assert place.wal.exists()
    assert not place.wal.exists()
    enqueue(place, "after")
    assert left(place) == {"before", "after"}


@needs_lasting_locks
def test_a_copy_costs_no_job_that_a_borrowed_connection_has_written(place: Place):
    """Also where the store itself had none open."""
    enqueue(place, "before")
    place.app.close()
    with closing(sqlite3.connect(place.database)) as own:
        for number, key in enumerate(("first", "second"), 2):
            with own, place.app.on(own):
                enqueue(place, key)
            look(place)
            assert outsider(place) == f"[({number},)]"
    assert left(place) == {"before", "first", "second"}


# The right way to copy it.


@pytest.mark.slow
def test_a_backup_beside_workers_and_writers_holds_all_that_was_acknowledged_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    """While jobs come and are performed in other processes, and the copy is made in small steps."""
    monkeypatch.setattr(sqlite_backup, "PAGES_AT_ONCE", 10)
    workers = place.workers("--concurrency", "2")
    place.enqueue_many("note", *((f"first-{n}", "x" * 2_000) for n in range(300)))
    writers = [place.client("write_one_by_one", f"writer-{n}", "30") for n in range(2)]
    copies = []
    for number in range(2):
        acknowledged = place.enqueue("note", f"known-{number}")
        before = set(place.rows()) | {from_text(acknowledged)}
        copies.append((place.folder / f"copy-{number}.db", before))
        place.app.control.backup(copies[-1][0])
    enqueued = [line.split()[1] for writer in writers for line in writer.succeeded() if line.startswith("enqueued")]
    place.wait_all_finished()
    assert workers.stop() == 0
    place.app.close()
    assert {from_text(id) for id in enqueued} < set(place.rows())
    for copy, before in copies:
        with closing(sqlite3.connect(copy)) as connection:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
            assert before <= {id for (id,) in connection.execute("select id from job")}
        restored = make_app(f"sqlite:///{copy}", place.ledger.path)
        assert restored.tasks["note"].enqueue("new").look().state == "ready"
        restored.close()


# A clean end.


def test_a_closed_store_leaves_no_log_and_no_descriptor(place: Place):
    another = SQLiteStore(place.url)
    enqueue(place, "job")
    assert another.schema_version() > 0
    place.app.close()
    assert place.wal.exists()
    another.close()
    assert not place.wal.exists()
    assert open_files(place) == []


def open_files(place: Place) -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [name for name in found if name.startswith(str(place.database))]


def test_a_program_that_ends_without_closing_leaves_no_log(place: Place):
    said = place.client("try_to_enqueue", "2").succeeded()
    assert [line.split()[0] for line in said] == ["enqueued", "enqueued", "survived"]
    assert place.database.exists()
    assert not place.wal.exists()


def test_threads_that_open_and_close_at_once_keep_one_count(place: Place):
    """However they meet, the file is guarded as long as one is open, and is not afterwards."""
    enqueue(place, "first")
    stores = [SQLiteStore(place.url) for _ in range(4)]
    failed: list[BaseException] = []

    def open_and_close(store: SQLiteStore) -> None:
        try:
            for _ in range(15):
                store.schema_version()
                store.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=open_and_close, args=[store]) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    look(place)
    outsider(place)
    enqueue(place, "second")
    assert left(place) == {"first", "second"}
    assert open_files(place) == []


# Where such locks cannot be had, and where somebody deletes the log: it is noticed.


@pytest.fixture
def without_lasting_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file_locks, "OFD_SETLK", None)


def refusal(place: Place, key: str = "refused") -> str:
    with pytest.raises(EnqueueError) as caught:
        enqueue(place, key)
    assert isinstance(caught.value.__cause__, StoreUnsafe)
    return str(caught.value)


@pytest.mark.usefixtures("without_lasting_locks")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_log_deleted_by_another_program_is_noticed_before_anything_is_acknowledged(place: Place, replaced: bool):
    """What it held was in the database before it was deleted, and is not written there a second time."""
    count = 1
    enqueue(place, "before")
    look(place)
    assert outsider(place) == "[(1,)]"
    assert not place.wal.exists()  # the harm is done
    with ExitStack() as stack:
        if replaced:
            another = place.client("steps")
            another.tell("enqueue another")
            assert another.line().startswith("enqueued")
            stack.callback(another.process.wait, 60)
            stack.callback(another.tell, "leave")
            count += 1
        assert "was deleted or replaced while in use. All that was in it is in the database" in refusal(place)
        if sys.version_info < (3, 12):  # its connections cannot be closed
            assert "Restart this process" in refusal(place)
        else:
            enqueue(place, "after")
            count += 1
        place.app.close()
        assert outsider(place) == f"[({count},)]"
    assert outsider(place) == f"[({count},)]"
    assert outsider(place, "pragma integrity_check") == "[('ok',)]"


@needs_lasting_locks
def test_a_log_deleted_by_hand_is_written_down_by_whoever_has_it_open(place: Place):
    keys = {f"before-{n}" for n in range(5)}
    for key in sorted(keys):
        enqueue(place, key)
    place.wal.unlink()
    assert "All that was in it is in the database" in refusal(place)
    assert not list(place.database.parent.glob("*-lost-*"))
    enqueue(place, "after")
    assert left(place) == keys | {"after"}
    assert place.sql("pragma integrity_check") == [("ok",)]


@needs_lasting_locks
def test_a_log_deleted_by_hand_is_written_down_by_a_store_that_closes(place: Place):
    enqueue(place, "before")
    place.wal.unlink()
    assert left(place) == {"before"}


@needs_lasting_locks
def test_a_log_that_cannot_be_written_down_is_set_aside(place: Place):
    """Somebody has begun another one meanwhile: what is in ours only is kept beside the database."""
    enqueue(place, "before")
    log = place.wal.read_bytes()
    place.wal.unlink()
    place.wal.write_bytes(b"something else")
    message = refusal(place)
    assert "Restart every process that uses the database" in message
    [aside] = place.database.parent.glob("jobs.db-wal-lost-*")
    assert str(aside) in message
    assert aside.read_bytes() == log
    assert aside.stat().st_mode & 0o777 == 0o600
    assert refusal(place, "refused again") == message
    assert "lost-log" in {finding.about for finding in place.app.store.examine()}
    # As the guide says.
    place.app.close()
    place.wal.unlink()
    place.database.with_name("jobs.db-shm").unlink()
    aside.rename(place.wal)
    assert {row.key for row in place.rows().values()} == {"before"}


@needs_lasting_locks
@pytest.mark.slow
def test_workers_go_on_after_their_log_was_deleted(place: Place):
    """Each process writes down what is there to be written, once; then all of them use the new log."""
    held = place.enqueue("hold", "held")
    workers = place.workers("--concurrency", "2")
    place.wait_started("held")
    place.wal.unlink()
    workers.wait_log("All that was in it is in the database")
    place.let_go("held")
    wait_until(place.wal.exists, "there is a log again")
    place.wait_state(held, "succeeded")
    after = place.enqueue("note", "after")
    place.wait_state(after, "succeeded")
    assert workers.stop() == 0
    place.check([held, after])
    assert place.sql("pragma integrity_check") == [("ok",)]
