"""Power loss and failing syncs, by system calls traced and tampered with (F71, F73).

The images prove that what SQLite wrote and synced under our settings, around our commits, checkpoints and closes, is
enough for every acknowledged job on a disk that keeps its word about fsync. They prove nothing about a disk or file
system that does not, and they hold for one process: two never write at once, because all writes queue for one lock.
"""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from packhorse.ids import from_text
from tests.contract.stores import quick_folder
from tests.faults.crash_images import crashes, read_trace, strace
from tests.faults.harness import Place

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: scripts/install-for-tests"),
]
CHECKPOINT_PAGES = "packhorse.stores.sqlite_connections.CHECKPOINT_PAGES"


def damage(said: list[str], files: dict[str, bytes], folder: Path) -> str:
    """What is wrong with the database of an image; empty where all acknowledged jobs are there."""
    for old in folder.iterdir():
        old.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    acknowledged = [line.split() for line in said if line.split()[0] in ("enqueued", "finished")]
    with closing(sqlite3.connect(folder / "jobs.db")) as connection:
        connection.execute("pragma synchronous = off")
        try:
            if (found := connection.execute("pragma integrity_check").fetchall()) != [("ok",)]:
                return f"integrity: {found}"
            states = dict(connection.execute("select id, state from job")) if acknowledged else {}
        except sqlite3.Error as error:
            return str(error)
    for what, id in acknowledged:
        if from_text(id) not in states:
            return f"{id} was acknowledged and is lost"
        if what == "finished" and states[from_text(id)] != 5:
            return f"{id} was acknowledged as finished and is not"
    return ""


def traced(place: Place, jobs: int) -> Iterator[tuple[list[str], dict[str, bytes]]]:
    place.constants[CHECKPOINT_PAGES] = 25
    trace = place.folder / "trace"
    said = place.client("durable", str(jobs), wrapper=strace(trace)).succeeded()
    assert sum(line.startswith("enqueued") for line in said) == jobs
    steps = read_trace(trace, place.database)
    whats = [step.what for step in steps]
    assert whats.count("said") == len(said)
    assert [step.name for step in steps if step.what == "unlink"] == ["jobs.db-wal"]  # the last one closed
    checkpointed = [step for step in steps if step.what == "sync" and step.name == "jobs.db"]
    assert len(checkpointed) > 5
    return crashes(steps, random.Random(1))


@pytest.fixture
def images() -> Iterator[Path]:
    """Where images of the disk are looked at; nothing of theirs has to reach one."""
    with quick_folder() as folder:
        yield folder


def test_no_acknowledged_job_is_lost_with_the_power(place: Place, images: Path):
    tried = 0
    for said, files in traced(place, 40):
        assert damage(said, files, images) == "", (len(said), sorted(files))
        tried += 1
    assert tried > 1_000


def test_the_images_do_show_a_loss_where_commits_are_not_synced(place: Place, images: Path):
    """The same with synchronous=normal, which promises less: the method must notice."""
    place.options = "?synchronous=normal"
    assert any("lost" in damage(said, files, images) for said, files in traced(place, 20))


@pytest.mark.parametrize("which", ["8..9", "11", "14+"])
def test_a_job_whose_sync_failed_is_not_acknowledged(place: Place, images: Path, which: str):
    place.constants[CHECKPOINT_PAGES] = 25
    trace = place.folder / "trace"
    inject = ["-e", f"inject=fdatasync:error=EIO:when={which}"]
    said = place.client("try_to_enqueue", "30", wrapper=strace(trace, *inject)).succeeded()
    enqueued = {from_text(line.split()[1]) for line in said if line.startswith("enqueued")}
    refused = [line for line in said if line.startswith("refused")]
    assert len(enqueued) + len(refused) == 30
    assert refused
    assert all(line.startswith("refused EnqueueError Nothing was enqueued: SQLite: disk I/O error") for line in refused)
    rows = place.rows()
    assert enqueued <= set(rows)
    if not which.endswith("+"):
        # Where no later commit takes their place in the log, refused jobs may be found there by whoever opens it anew.
        assert enqueued == set(rows)
    assert place.sql("pragma integrity_check") == [("ok",)]

    for known, files in crashes(read_trace(trace, place.database), random.Random(1)):
        assert damage(known, files, images) == ""
