"""What SQLite keeps beside its contract: the key next to the database, numbered schema steps, its connections."""

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from packhorse.errors import StoreUnavailable, StoreUnsafe
from packhorse.stores import sqlite_connections
from packhorse.stores.sqlite import SQLiteStore
from packhorse.stores.sqlite_connections import Connection


def opened(folder: Path, name: str = "jobs.db") -> SQLiteStore:
    folder.chmod(0o700)
    return SQLiteStore(f"sqlite:///{folder}/{name}")


def test_the_key_outlives_the_program(tmp_path: Path):
    """Whoever opens the same database has the same key; another database has another."""
    first, second, elsewhere = opened(tmp_path), opened(tmp_path), opened(tmp_path, "other.db")
    key = first.own_key()
    assert second.own_key() == key
    assert elsewhere.own_key() != key
    for store in (first, second, elsewhere):
        store.close()


def test_only_its_owner_can_read_the_key(tmp_path: Path):
    """Made for one user's eyes, and nothing else is left of making it."""
    store = opened(tmp_path)
    store.own_key()
    assert stat.S_IMODE((tmp_path / "jobs.db-key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if "key" in path.name] == ["jobs.db-key"]
    store.close()


def test_a_key_that_others_could_read_is_refused(tmp_path: Path):
    """Somebody may have read it, so it proves nothing any more."""
    store = opened(tmp_path)
    store.own_key()
    os.chmod(tmp_path / "jobs.db-key", 0o640)
    with pytest.raises(StoreUnsafe, match="can be read by others"):
        store.own_key()
    store.close()


def test_a_damaged_key_is_refused(tmp_path: Path):
    """A new one would make every old signature worthless without a word."""
    store = opened(tmp_path)
    store.own_key()
    (tmp_path / "jobs.db-key").write_bytes(b"short")
    with pytest.raises(StoreUnsafe, match="damaged"):
        store.own_key()
    store.close()


def test_all_who_ask_first_get_the_same(tmp_path: Path):
    """However many programs begin at once, there is one key."""
    stores = [opened(tmp_path) for _ in range(8)]
    with ThreadPoolExecutor(len(stores)) as threads:
        keys = set(threads.map(SQLiteStore.own_key, stores))
    assert len(keys) == 1
    for store in stores:
        store.close()


def test_the_version_is_the_number_of_the_last_step(tmp_path: Path):
    """Steps are counted from one."""
    store = opened(tmp_path)
    assert len(store.migrate()) == store.schema_version()
    store.close()


def test_connections_that_nobody_wants_any_more_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A crowd leaves no page caches behind, and SQLite has the same handles for the next crowd."""
    store = opened(tmp_path)
    store.migrate()
    pool = store._connections
    pool.make_room(6)
    met = descriptors(tmp_path)
    monkeypatch.setattr(sqlite_connections, "SPARE", 0.0)
    pool.give_back(pool.take())
    assert len(pool._idle) == 1
    assert descriptors(tmp_path) < met
    monkeypatch.undo()
    for _ in range(3):
        pool.make_room(6)
        assert descriptors(tmp_path) == met
    assert store.schema_version() > 0
    store.close()


def test_where_there_is_no_room_for_a_crowd_nothing_is_kept_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Few descriptors: most are left. Or something fails in the midst: what was made until then can be used."""
    store = opened(tmp_path)
    store.migrate()
    pool = store._connections
    with monkeypatch.context() as few:
        few.setattr("packhorse.stores.sqlite_connections.resource.getrlimit", lambda what: (40, 40))
        pool.make_room(12)
    assert len(pool._idle) == 2
    taken = iter([Connection(pool.path, "full", pool._inode) for _ in range(3)])

    def take() -> Connection:
        try:
            return next(taken)
        except StopIteration:
            raise StoreUnavailable("too many open files") from None

    with monkeypatch.context() as failing:
        failing.setattr(pool, "take", take)
        pool.make_room(12)
    assert len(pool._idle) == 5
    store.close()


def descriptors(folder: Path) -> int:
    """Of this process, on what lies in the folder."""
    return sum(os.path.realpath(f"/proc/self/fd/{fd}").startswith(f"{folder}/") for fd in os.listdir("/proc/self/fd"))


def test_a_connection_is_not_closed_while_another_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """That would mean to wait for it, in the middle of something else."""
    monkeypatch.setattr(sqlite_connections, "SPARE", 0.0)
    monkeypatch.setattr(sqlite_connections, "DEADLINE", 0.2)
    store = opened(tmp_path)
    store.migrate()
    pool = store._connections
    writer, reader, spare = pool.take(), pool.take(), pool.take()
    writer.acquire()
    pool.give_back(spare)
    pool.give_back(reader)
    assert not spare.closed
    writer.release()
    pool.give_back(writer)
    assert spare.closed
    store.close()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another program in the middle of a transaction, in a file that was made without a log, as Django makes it."""
    path = tmp_path / "jobs.db"
    path.touch(0o600)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("create table bread (loaves)")
    other.execute("begin immediate")
    other.execute("insert into bread values (1)")
    yield other
    other.close()


def test_a_file_without_a_log_gets_one_when_whoever_writes_is_through(
    tmp_path: Path, writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
):
    """SQLite refuses that at once, however long it may wait."""
    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", lambda _: writer.in_transaction and writer.execute("commit"))
        store = opened(tmp_path)
        store.migrate()
    assert not writer.in_transaction
    assert writer.execute("select loaves from bread").fetchall() == [(1,)]
    assert writer.execute("pragma journal_mode").fetchone() == ("wal",)
    store.close()


def test_who_writes_for_ever_into_a_file_without_a_log_is_not_waited_for(
    tmp_path: Path, writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sqlite_connections, "DEADLINE", 0.05)
    store = opened(tmp_path)
    with pytest.raises(StoreUnavailable, match="outside Packhorse"):
        store.migrate()
    assert writer.in_transaction
    store.close()
