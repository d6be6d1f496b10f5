"""What was claimed ahead and had begun: known exactly where a death is seen, and no loss where it is only possible."""

from collections import Counter

import pytest

from tests.faults.harness import Place, Workers
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

LAST = "last"


def starts(place: Place) -> Counter[str]:
    return Counter(line.key for line in place.lines(what="start"))


def states(place: Place) -> dict[str, str]:
    return {row.key: row.state for row in place.rows().values()}


def kill_once_begun(place: Place, workers: Workers, number: int) -> None:
    """Kill the newest worker in the midst of quick jobs."""
    wait_until(lambda: len(place.lines(what="start")) >= number, f"{number} jobs have begun")
    workers.kill_child(workers.pids("worker")[-1])


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--preload",), marks=pytest.mark.thorough)], ids=["started", "forked"]
)
def test_strict_jobs_begin_once_though_their_workers_are_killed(place: Place, options: tuple[str, ...]):
    """By the task or by `using`. What had begun fails, and all that only was claimed ahead goes on."""
    place.enqueue_many("note_strictly", *[(f"task-{n}",) for n in range(300)])
    place.enqueue_many("note", *[(f"plain-{n}",) for n in range(300)])
    place.enqueue_many("note", *[(f"using-{n}",) for n in range(300)], on_worker_lost="fail")
    workers = place.workers(*options)
    for number in (40, 340, 700):
        kill_once_begun(place, workers, number)
    place.wait_all_finished()
    assert workers.stop() == 0
    begun, ended = starts(place), states(place)
    strict = [key for key in ended if not key.startswith("plain")]
    assert max(begun[key] for key in strict) == 1
    assert {ended[key] for key in ended if key.startswith("plain")} == {"succeeded"}
    lost = sum(ended[key] == "failed" for key in strict)
    assert lost <= 3 * 8, "no more than the slots had begun when each was killed"


def test_a_poison_job_behind_quick_ones_fails_after_three_losses(place: Place):
    """Each beginning counts, whatever the store had been told of it. The others are performed."""
    place.enqueue_many("note", *[(f"before-{n}",) for n in range(300)])
    poison = place.enqueue("die", "poison", 99)
    innocent = place.enqueue_many("note", *[(f"behind-{n}",) for n in range(300)])
    workers = place.workers()
    job = place.wait_state(poison, "failed")
    assert (job.attempts, job.losses) == (0, 3)
    place.wait_all_finished()
    assert workers.stop() == 0
    assert starts(place)["poison"] == 3
    place.check(innocent, others=[poison])


def test_where_a_whole_host_dies_a_possible_loss_fails_no_job(place: Place):
    """Nobody saw what had begun: strict jobs never begin untold, and others come back without a loss, but suspect."""
    place.enqueue_many("note_strictly", *[(f"strict-{n}",) for n in range(300)])
    place.enqueue_many("note", *[(f"plain-{n}",) for n in range(600)])
    for number in (30, 450):
        workers = place.workers()
        wait_until(lambda n=number: len(place.lines(what="start")) >= n, "it is busy")  # type: ignore[misc]
        workers.end()
        place.end_leases()
    last = place.workers()
    place.wait_all_finished()
    assert last.stop() == 0
    begun, ended = starts(place), states(place)
    assert max(begun[key] for key in ended if key.startswith("strict")) == 1
    assert {ended[key] for key in ended if key.startswith("plain")} == {"succeeded"}
    assert sum(ended[key] == "failed" for key in ended) <= 2 * 8, "only what was announced for a free slot"
