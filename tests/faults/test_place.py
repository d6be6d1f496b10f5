"""A database file that is moved, replaced, closed to us or in a bad place (F74): clear words, and nothing lost."""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from packhorse import EnqueueError
from packhorse.errors import StoreError, StoreUnsafe
from packhorse.stores.sqlite import SQLiteStore
from packhorse.stores.sqlite_connections import Connection
from packhorse.stores.sqlite_place import NETWORK_FILE_SYSTEMS, mount_type
from tests.faults.harness import Place

NOBODY = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


def refusal(place: Place) -> str:
    with pytest.raises(EnqueueError) as caught:
        place.app.tasks["note"].enqueue("refused")
    assert isinstance(caught.value.__cause__, StoreUnsafe)
    return str(caught.value)


def test_a_moved_file_takes_no_jobs_until_it_is_back(place: Place):
    id = place.app.tasks["note"].enqueue("before").id
    place.database.rename(place.folder / "elsewhere.db")
    message = refusal(place)
    assert "was moved, deleted or replaced" in message
    assert "Put the file back, or restart" in message
    assert not place.database.exists()
    (place.folder / "elsewhere.db").rename(place.database)
    after = place.app.tasks["note"].enqueue("after").id
    assert {row.key for row in place.rows().values()} == {"before", "after"}
    assert place.job(id).state == place.job(after).state == "ready"


def test_a_replaced_file_takes_no_jobs(place: Place):
    id = place.app.tasks["note"].enqueue("before").id
    place.database.rename(place.folder / "old.db")
    # A copy would do, too: what counts is that others still write to the first one.
    place.database.touch(mode=0o600)
    assert "was moved, deleted or replaced" in refusal(place)
    assert place.database.stat().st_size == 0
    (place.folder / "old.db").rename(place.database)
    place.app.close()
    assert place.job(id).state == "ready"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_goes_while_it_is_opened_keeps_its_log(
    place: Place, monkeypatch: pytest.MonkeyPatch, replaced: bool
):
    """After it was looked at and before SQLite has it: the queue of those who write is in between."""
    ids = [place.app.tasks["note"].enqueue(f"before-{n}").id for n in range(3)]
    acquire, away = Connection.acquire, place.folder / "elsewhere.db"

    def late(connection: Connection, patient: bool = False) -> None:
        if not hasattr(connection, "sqlite"):
            place.database.rename(away)
            if replaced:
                place.database.touch(mode=0o600)
        acquire(connection, patient)

    store = place.app.store
    assert isinstance(store, SQLiteStore)
    with monkeypatch.context() as queue, ThreadPoolExecutor(1) as threads:
        first = store._connections.take()  # so that another one has to be opened
        queue.setattr(Connection, "acquire", late)
        with pytest.raises(StoreError):
            threads.submit(store._connections.take).result()
        store._connections.give_back(first)
    assert place.database.exists() == replaced
    away.rename(place.database)
    place.app.close()
    assert {place.job(id).state for id in ids} == {"ready"}


def test_a_process_that_starts_while_the_file_is_away_makes_no_new_one(place: Place):
    """SQLite would wipe out the log of the missing database for the sake of the empty one."""
    ids = [place.app.tasks["note"].enqueue(f"before-{n}").id for n in range(3)]
    place.database.rename(place.folder / "elsewhere.db")
    [line, _] = place.client("try_to_enqueue", "1").succeeded()
    assert line.startswith("refused EnqueueError Nothing was enqueued: The database")
    assert "Put the file back" in line
    assert not place.database.exists()
    (place.folder / "elsewhere.db").rename(place.database)
    place.app.close()
    assert {place.job(id).state for id in ids} == {"ready"}


@pytest.mark.slow
def test_workers_wait_for_a_moved_file(place: Place):
    held = place.enqueue("hold", "held")
    workers = place.workers()
    place.wait_started("held")
    place.database.rename(place.folder / "elsewhere.db")
    place.let_go("held")
    place.wait_ran("held")
    workers.wait_log("was moved, deleted or replaced")
    (place.folder / "elsewhere.db").rename(place.database)
    place.wait_state(held, "succeeded")
    assert workers.stop() == 0
    place.check([held])
    assert len(workers.pids("worker")) == len(workers.pids("dispatcher")) == 1


def test_a_world_writable_folder_is_refused(place: Place):
    place.folder.chmod(0o777)
    message = refusal(place)
    assert f"The folder {place.folder} is writable for everyone" in message
    assert f"chmod o-w {place.folder}" in message
    assert not place.database.exists()
    place.folder.chmod(0o700)
    place.app.tasks["note"].enqueue("accepted")


def test_a_symbolic_link_is_refused(place: Place, tmp_path: Path):
    place.database.symlink_to(tmp_path / "target.db")
    message = refusal(place)
    assert "is a symbolic link. Name the file it points to" in message
    assert not (tmp_path / "target.db").exists()


def test_a_missing_folder_is_named(tmp_path: Path):
    place = Place(tmp_path, store_folder=tmp_path / "missing")
    message = refusal(place)
    assert f"The folder {tmp_path / 'missing'} for the database does not exist. Create it" in message


def test_a_file_that_is_no_database_is_left_alone(place: Place):
    place.database.write_bytes(b"Dear diary, today I was nobody's database.\n" * 100)
    with pytest.raises(EnqueueError, match="file is not a database"):
        place.app.tasks["note"].enqueue("refused")
    assert place.database.read_bytes().startswith(b"Dear diary")


def test_new_files_are_closed_to_others(place: Place):
    place.app.tasks["note"].enqueue("job")
    modes = {path.name: path.stat().st_mode & 0o777 for path in place.folder.glob("jobs.db*")}
    assert set(modes) == {"jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-lock", "jobs.db-key"}
    assert set(modes.values()) == {0o600}


@needs_root
@pytest.mark.parametrize(
    ("owner", "mode", "folder_mode", "words"),
    [
        (0, 0o644, 0o755, "cannot be read and written by this user. Check its mode"),
        (NOBODY, 0o400, 0o755, "cannot be read and written by this user. Check its mode"),
        (NOBODY, 0o600, 0o755, "Check its folder"),  # the files beside it cannot be made
        (1, 0o666, 0o755, "belongs to another user (uid 1). Run as that user"),
        (NOBODY, 0o600, 0o700, "Check its folder"),  # it cannot be seen
    ],
)
def test_a_user_without_rights_hears_what_is_wrong(
    open_place: Place, owner: int, mode: int, folder_mode: int, words: str
):
    place = open_place
    id = place.enqueue("note", "before")
    place.database.with_name("jobs.db-lock").unlink()
    os.chown(place.database, owner, owner)
    place.database.chmod(mode)
    place.database.parent.chmod(folder_mode)
    [line, _] = place.client("as_nobody", str(NOBODY)).succeeded()
    assert line.startswith("refused EnqueueError Nothing was enqueued: ")
    assert words in line
    place.database.parent.chmod(0o755)
    assert [row.key for row in place.rows().values()] == ["before"]
    assert place.job(id).state == "ready"


@needs_root
def test_a_folder_without_rights_is_named(open_place: Place):
    [line, _] = open_place.client("as_nobody", str(NOBODY)).succeeded()
    assert line.startswith("refused EnqueueError Nothing was enqueued: ")
    assert "cannot be created: Permission denied. Check the folder's mode" in line


@pytest.fixture
def open_place(place: Place) -> Iterator[Place]:
    """Its database lies where other users may look; pytest's own folders are closed to them."""
    with tempfile.TemporaryDirectory(prefix="packhorse-") as folder:
        place.store_folder = Path(folder)
        place.store_folder.chmod(0o755)
        yield place


MOUNTS = r"""
22 1 8:1 / / rw,relatime - ext4 /dev/root rw
23 22 0:21 / /proc rw,nosuid shared:5 - proc proc rw
40 22 0:40 / /srv rw,relatime shared:7 master:2 - nfs4 server:/srv rw,vers=4.2
41 40 8:2 / /srv/local rw - xfs /dev/sdb1 rw
42 22 0:42 / /mnt/with\040space rw - cifs //server/share rw
43 22 0:43 / /mnt/back\134slash rw - 9p share rw
44 22 0:44 / /home rw - ext4 /dev/sdc1 rw
45 22 0:45 / /home rw - fuse.sshfs me@there: rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib/shop", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/jobs", "nfs4"),
        ("/srvx", "ext4"),
        ("/srv/local/jobs", "xfs"),
        ("/mnt/with space/jobs", "cifs"),
        ("/mnt/back\\slash", "9p"),
        ("/home/me", "fuse.sshfs"),  # the later of two mounts on one place hides the earlier
    ],
)
def test_the_mount_around_a_folder(folder: str, kind: str):
    assert mount_type(folder, MOUNTS.strip()) == kind


def test_a_network_file_system_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.stores.sqlite_place._file_system", lambda folder: "nfs4")
    assert "nfs4" in NETWORK_FILE_SYSTEMS
    message = refusal(place)
    assert "lies on a network file system (nfs4)" in message
    assert "Move it to a local disk, or use a server store" in message
    assert not place.database.exists()
