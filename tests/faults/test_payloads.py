"""What a real worker process takes of memory for the payloads that it claims."""

from pathlib import Path

import pytest

from tests.faults.harness import Place, Workers

QUICK, LARGE = 500, 600
SIZE = 250_000
ROOM = 64 << 20  # far above what may wait and what runs, far below what all of them take


def peak(workers: Workers) -> int:
    """Bytes that the worker process has held at the most."""
    status = Path(f"/proc/{workers.wait_pid('worker')}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_a_worker_behind_quick_jobs_holds_few_large_ones(place: Place):
    """It claims ahead by the pace of the quick ones, and the large ones come a few at a time."""
    acknowledged = place.enqueue_many("note", *((f"first-{number}",) for number in range(QUICK)))
    workers = place.workers("--concurrency", "8")
    place.wait_all_finished()
    before = peak(workers)
    calls = [(f"quick-{number}", "") for number in range(QUICK)]
    calls += [(f"large-{number}", f"{number:06}" * (SIZE // 6)) for number in range(LARGE)]
    place.app.control.pause("default", reason="until all are there")
    acknowledged += place.enqueue_many("note", *calls)
    place.app.control.resume("default", reason="they are")
    place.wait_all_finished(within=180)
    grown = peak(workers) - before
    assert grown < ROOM < LARGE * SIZE / 2, f"{grown / 1e6:.0f} MB"
    place.check(acknowledged)
