"""A short run of the chaos harness, with real workers, kills and freezes; and its smaller parts."""

from dataclasses import replace
from pathlib import Path

import pytest

from chaos import jobs
from chaos.checker import Broken, check
from chaos.clock import SteppedClock
from chaos.disk import SmallDisk
from chaos.history import SECOND, SELF, History
from chaos.keeping import keep, kept
from chaos.ledger import Ledger
from chaos.nemesis import Times
from chaos.run import Arena, Plan
from chaos.soak import HOUR, Sample, figures, slope
from packhorse import EnqueueError

SHORT = Plan(
    seconds=10.0,
    at_least=6,
    lease=5.0,
    seed=5,
    per_second=120.0,
    settle=90.0,
    longest=1.5,
    long_share=8.0,
    hasty=1.0,
    only=("kill worker", "kill supervisor", "kill tree", "freeze worker", "quit and start", "stop and start"),
    spare_lock=True,  # who stands still with it keeps all others from the store, and so from their leases
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_while_workers_are_killed_frozen_and_restarted(tmp_path: Path):
    """Whether all came back in time is for long runs on a quiet machine to say."""
    with Arena(SHORT, folder=tmp_path) as arena:
        done = arena.run()
    verdict = check(done.history)
    assert [it for it in verdict.violations if it.broken is not Broken.LATE] == []
    assert verdict.counts["acknowledged"] >= 500
    assert verdict.counts["repeated because of a fault"] > 0
    assert verdict.counts["lost"] == verdict.counts["unfinished"] == 0
    assert min(verdict.counts[it] for it in ("moments", "followers", "steps kept", "succeeded")) > 0
    assert {fault.kind for fault in done.history.faults} == {*SHORT.only, SELF}
    assert {line.kind for line in done.history.lines} == set(arena.app.tasks)
    again = check(kept(tmp_path))
    assert (again.counts, again.violations) == (verdict.counts, verdict.violations)


SERVER = replace(
    SHORT,
    store="postgres",
    per_second=40.0,
    at_least=8,
    only=("kill worker", "kill server", "freeze server", "cut lines", "lost commit replies", "terminate back-ends"),
)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_nothing_is_lost_while_a_server_is_killed_and_lines_are_cut(tmp_path: Path):
    """What ran again, and how soon, is for long runs on a quiet machine to say."""
    with Arena(SERVER, folder=tmp_path) as arena:
        done = arena.run()
    verdict = check(done.history)
    of_the_machine = (Broken.LATE, Broken.REPEATED)
    assert [it for it in verdict.violations if it.broken not in of_the_machine] == []
    assert verdict.counts["lost"] == verdict.counts["unfinished"] == 0
    assert {fault.kind for fault in done.history.faults} == {*SERVER.only, SELF}


def test_an_empty_history_is_kept(tmp_path: Path):
    keep(History(), tmp_path)
    assert kept(tmp_path) == History(acks=[], lines=[], faults=[], leftovers=[])


def test_a_torn_line_of_the_ledger_is_left_out(tmp_path: Path):
    (tmp_path / "ledger").write_text("5 start j r 1 9 quick -\n6 finish j r 1 9 qui")
    [line] = Ledger(tmp_path / "ledger").read()
    assert (line.at, line.job, line.about) == (5, "j", {})


def test_a_clock_is_set_for_all_who_read_the_same_file(tmp_path: Path):
    one, two = SteppedClock(tmp_path / "clock"), SteppedClock(tmp_path / "clock")
    one.set_ahead(3_600 * SECOND)
    ahead = two.now() - SteppedClock(tmp_path / "other").now()
    assert abs(ahead - 3_600 * SECOND) < 60 * SECOND
    assert abs(one.ticks() - two.ticks()) < 60 * SECOND  # no time has passed
    one.set_ahead(0)
    assert abs(two.now() - SteppedClock(tmp_path / "other").now()) < 60 * SECOND


def test_a_small_disk_is_full_and_has_room_again(tmp_path: Path):
    disk = SmallDisk(tmp_path / "disk", 8)
    if not disk.mounted:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        app = jobs.make_app(f"sqlite:///{disk.folder}/jobs.db", tmp_path)
        app.tasks["quick"].enqueue()
        disk.fill()
        with pytest.raises(EnqueueError, match="full"):
            app.enqueue_many(app.tasks["quick"].call() for _ in range(5_000))
        disk.free()
        app.tasks["quick"].enqueue()
        app.close()
    finally:
        disk.end()


def test_what_is_promised_follows_from_the_settings():
    assert Times(lease=30.0, heartbeat=5.0, shutdown_timeout=30.0).tree_bound == 36.0


def test_growth_is_a_slope_per_hour():
    assert slope([(0, 1), (10, 2), (20, 3)]) == pytest.approx(0.1)
    steady = [Sample(float(at), 50 + at / 100, 12, 9) for at in range(0, 200, 2)]
    [row] = figures({(1, "worker"): steady, (2, "killed"): steady[:5]})
    assert row["role"] == "worker"
    assert row["rss"]["per hour"] == pytest.approx(HOUR / 100)
    assert row["descriptors"] == {"first": 12.0, "last": 12.0, "per hour": pytest.approx(0)}
