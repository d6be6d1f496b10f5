"""No space left, on a small file system of our own (F72)."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import EnqueueError
from packhorse.ids import from_text
from tests.faults.harness import Place
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small tmpfs"),
]


@pytest.fixture(params=["3m"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param},mode=0700", "tmpfs", str(folder)]
    if (done := subprocess.run(mount, capture_output=True, text=True)).returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    ballast = folder / "others-data"
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError:
        return ballast
    finally:
        os.close(fd)


def enqueue_until_full(place: Place) -> tuple[list[str], str]:
    """The log is used again from its beginning, so a full disk takes a few jobs more."""
    ids: list[str] = []
    for n in range(2_000):
        try:
            ids.append(place.app.tasks["note"].enqueue(f"more-{n}", "x" * 2_000).id)
        except EnqueueError as error:
            return ids, str(error)
    raise AssertionError("the disk was never full")


def test_outcomes_wait_until_there_is_space_again(small_disk: Path, tmp_path: Path):
    place = Place(tmp_path, store_folder=small_disk)
    place.settings["lease"] = 300.0  # the store is away for less than a lease
    try:
        held = place.enqueue("hold", "held")
        busy = place.enqueue("hold", "busy")
        workers = place.workers("--concurrency", "2")
        place.wait_started("held")
        place.wait_started("busy")
        ballast = fill(small_disk)
        ids, error = enqueue_until_full(place)
        assert error == "Nothing was enqueued: The disk is full: nothing was written. Free some space."
        place.let_go("held")
        place.wait_ran("held")
        workers.wait_log("The disk is full")
        assert place.rows()[from_text(held)].state == "running"  # it ended, and nobody could be told
        ballast.unlink()
        place.wait_state(held, "succeeded")
        place.let_go("busy")
        ids.append(place.enqueue("note", "afterwards"))
        place.wait_all_finished()
        assert len(workers.pids("worker")) == len(workers.pids("dispatcher")) == 1  # nobody died of it
        assert workers.stop() == 0
        assert "Traceback" not in workers.log
        place.check([held, busy, *ids])
        assert all(len(place.lines(key, "start")) == 1 for key in ("held", "busy"))
        assert {row.losses for row in place.rows().values()} == {0}
    finally:
        place.end()


def test_a_full_disk_for_longer_than_a_lease_loses_nothing(small_disk: Path, tmp_path: Path):
    place = Place(tmp_path, store_folder=small_disk)
    place.settings["lease"] = 2.0
    try:
        held = place.enqueue("hold", "held")
        workers = place.workers("--concurrency", "2")
        place.wait_started("held")
        ballast = fill(small_disk)
        ids, _ = enqueue_until_full(place)
        place.app.close()
        [until] = place.sql("select max(lease_until) from process")[0]
        wait_until(lambda: place.app.clock.ticks() > until + 500_000, "the leases are over")
        workers.wait_log("its jobs are stopped")
        place.let_go("held")
        ballast.unlink()
        place.wait_all_finished()
        assert workers.stop() == 0
        assert "Traceback" not in workers.log
        place.check([held, *ids])
    finally:
        place.end()


def test_a_disk_that_is_full_from_the_start_is_named(small_disk: Path, tmp_path: Path):
    ballast = fill(small_disk)
    place = Place(tmp_path, store_folder=small_disk)
    try:
        for _ in range(2):
            [refusal, _] = place.client("try_to_enqueue", "1").succeeded()
            assert refusal.startswith("refused EnqueueError Nothing was enqueued: ")
            assert "disk" in refusal
        ballast.unlink()
        [line, _] = place.client("try_to_enqueue", "1").succeeded()
        assert line.startswith("enqueued ")
    finally:
        place.end()


@pytest.mark.parametrize("small_disk", ["16m"], indirect=True)
def test_what_was_done_is_written_down_on_a_full_disk(small_disk: Path, tmp_path: Path):
    """The dispatcher keeps some ballast beside the database, and it is let go for outcomes alone."""
    place = Place(tmp_path, store_folder=small_disk)
    place.settings["lease"] = 300.0
    ballast = Path(f"{place.database}-ballast")
    try:
        held, busy = place.enqueue("hold", "held"), place.enqueue("hold", "busy")
        workers = place.workers("--concurrency", "2")
        place.wait_started("held")
        place.wait_started("busy")  # nothing else can end
        wait_until(lambda: ballast.exists() and ballast.stat().st_size > 0, "there is ballast, and not just its name")
        full = fill(small_disk)
        ids, _ = enqueue_until_full(place)
        assert ballast.exists()
        place.let_go("held")
        place.wait_state(held, "succeeded")
        assert not ballast.exists()
        full.unlink()
        place.let_go("busy")
        place.wait_all_finished()
        assert workers.stop() == 0
        place.check([held, busy, *ids])
    finally:
        place.end()
