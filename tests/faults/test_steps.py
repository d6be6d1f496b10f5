"""Steps, sleeps and signals, while processes are killed: what was kept is not done again, and nothing is missed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.harness import Line, Place, Workers
from tests.waiting import wait_until

STEPS = 20


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Place]:
    """Without fsync: a killed process takes no page of the kernel along."""
    place = Place(tmp_path, options="?synchronous=normal")
    place.constants["packhorse.runtime.supervisor.RESTART_CAP"] = 0.0  # a child that dies often is started all the same
    place.ledger.path.touch()
    yield place
    place.end()


@pytest.mark.parametrize(("point", "effects"), [("record.before_commit", 2), ("record.after_commit", 1)])
def test_the_window_is_as_small_as_it_says(place: Place, point: str, effects: int):
    """Killed just before the commit, the step is done twice; just behind it, once. All others are done once."""
    id = place.enqueue("stepwise", "job", 5)
    doomed = place.workers("--concurrency", "1", failpoints=f"{point}=kill@3", armed="worker")
    doomed.wait_armed_killed("worker")
    place.wait_all_finished()
    assert doomed.stop() == 0
    place.check([id])
    counted = Counter(line.key for line in place.lines(what="effect"))
    assert counted == {f"job/{n}": effects if n == 2 else 1 for n in range(5)}
    assert place.job(id).losses == 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("jobs", "least"), [(100, 3), pytest.param(500, 10, marks=pytest.mark.thorough)])
def test_random_kills_repeat_no_step_that_was_kept(quick: Place, jobs: int, least: int):
    """2,000 or 10,000 steps, with worker processes killed all the while."""
    place = quick
    ids = place.enqueue_many("stepwise", *[(f"job-{n:03}", STEPS) for n in range(jobs)])
    workers = place.workers("--concurrency", "4", "--processes", "2")
    kills = kill_until(place, workers, lambda: finished(place) == jobs, every=0.2)
    place.retry_lost()  # which keeps what was done
    assert workers.stop() == 0
    place.check(ids)
    effects, repeated = judged(place)
    assert len(effects) == jobs * STEPS
    assert kills >= least
    print(f"{sum(effects.values()):,} effects of {len(effects):,} steps, {repeated} in the window, {kills} kills")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("sagas", [60, pytest.param(150, marks=pytest.mark.thorough)])
def test_random_kills_miss_no_signal(quick: Place, sagas: int):
    """Jobs that sleep and wait, signals sent before and after, and workers, dispatchers and senders killed."""
    place, chance = quick, random.Random(7)
    keys = [f"saga-{n:03}" for n in range(sagas)]
    names = [f"go:{key}" for key in keys]
    chance.shuffle(names)
    send(place, names[: sagas // 3], chance)  # before anybody waits
    ids = place.enqueue_many("saga", *[(key,) for key in keys])
    workers = place.workers("--concurrency", "4", "--processes", "2")
    kills = send(place, names[sagas // 3 :], chance, workers)
    kills += kill_until(place, workers, lambda: finished(place) == sagas, every=0.3)
    place.retry_lost()
    assert workers.stop() == 0
    place.check(ids)
    judged(place)
    results = [place.app.job(id).result(0) for id in ids]
    assert results == [f"{key} go:{key}" for key in keys]
    assert place.sql("select count(*) from job where awaits is not null") == [(0,)]
    assert kills >= 3


def send(place: Place, names: list[str], chance: random.Random, workers: Workers | None = None) -> int:
    """Each until it is acknowledged, by senders that die at a place of chance, as workers do; how many workers did."""
    left, kills = list(names), 0
    while left:
        point = chance.choice(["signal.before_commit", "signal.after_commit"])
        client = place.client("send", *left, failpoints=f"{point}=kill@{chance.randint(5, 20)}")
        said = [line.split() for line in client.output()]
        acknowledged = {word[1] for word in said if word[0] == "signalled"}
        assert acknowledged
        left = [name for name in left if name not in acknowledged]
        kills += 0 if workers is None else kill_one(workers, chance)
    return kills


def finished(place: Place) -> int:
    return int(place.sql("select count(*) from job where state > 4")[0][0])


def kill_until(place: Place, workers: Workers, done: Callable[[], bool], every: float) -> int:
    """Kill a child now and then, in the midst of its work; how many."""
    chance, kills = random.Random(42), 0
    deadline = time.monotonic() + 300
    while not done():
        assert time.monotonic() < deadline, place.states()
        wait_for_work(place, done, every * chance.uniform(0.5, 1.5))
        if not done():
            kills += kill_one(workers, chance)
    return kills


def wait_for_work(place: Place, done: Callable[[], bool], seconds: float) -> None:
    """At least so long, and until something was done since, or nothing is left to do."""
    until, size = time.monotonic() + seconds, place.ledger.path.stat().st_size
    wait_until(lambda: time.monotonic() > until, "time passes", 60)
    wait_until(lambda: place.ledger.path.stat().st_size > size or done(), "somebody works", 60)


def kill_one(workers: Workers, chance: random.Random) -> int:
    children = [pid for role in ("worker", "dispatcher") for pid in workers.pids(role)]
    alive = [pid for pid in children if not workers.child_ended(pid)]
    if not alive:
        return 0
    workers.kill_child(chance.choice(alive))
    return 1


def judged(place: Place) -> tuple[Counter[str], int]:
    """How often each step was done, and how many times more than once; none after it was known to be kept."""
    done: dict[str, list[Line]] = {}
    for line in place.lines():
        if line.what in ("effect", "kept"):
            done.setdefault(line.key, []).append(line)
    for key, lines in done.items():
        first_kept = next((n for n, line in enumerate(lines) if line.what == "kept"), None)
        assert first_kept is not None, f"{key} was never kept"
        again = [line for line in lines[first_kept:] if line.what == "effect"]
        assert not again, f"{key} was done again after it was kept: {lines}"
        pids = [line.pid for line in lines if line.what == "effect"]
        assert len(set(pids)) == len(pids), f"{key} was done twice by one process: {lines}"
    effects = Counter(key for key, lines in done.items() for line in lines if line.what == "effect")
    return effects, sum(effects.values()) - len(effects)
