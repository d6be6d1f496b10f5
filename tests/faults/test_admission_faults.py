"""Limits and unique keys while processes die, freeze and race (F84, F85, F87); and two promises of the mission."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from packhorse.clock import SECOND
from packhorse.errors import EnqueueError
from packhorse.failpoints import POINTS
from packhorse.ids import new_id
from packhorse.job import JobState
from packhorse.limits import Hold, Terms
from packhorse.outcome import Outcome, succeed
from packhorse.queues import EVERYTHING
from packhorse.runtime.worker import new_nonce
from packhorse.stores import Store, open_store
from packhorse.stores.contract import ProcessInfo, Selection
from packhorse.testing.contract.helpers import job
from tests.contract.stores import quick_folder
from tests.faults.harness import Place, Workers
from tests.faults.test_crash_matrix import RUNS, Run, die_as_role, enroll, silence
from tests.waiting import wait_until

TO = 1  # visitor to a room, see apps.py; workers have at least two slots
HOLDERS = ("exchange", "worker", "slot", "promote", "adopt", "dispatcher")
# Not inside a transaction, where a process that stands still keeps all others from writing.
OUTSIDE = ("exchange.before_write", "exchange.after_commit", "worker.claimed", "slot.before_perform")
INSIDE = ("exchange.between", "exchange.before_commit")


def visits(place: Place, rooms: int = 1, each: int = 16) -> list[str]:
    """Jobs that want to be in a room, more than may be, a part of them later."""
    calls = [(f"visit:{room}:{n}", str(room), 0.02 * (1 + n % 3)) for n in range(each) for room in range(rooms)]
    later = calls[len(calls) // 2 :]
    ids = place.enqueue_many("visit", *calls[: len(calls) // 2])
    for number in range(3):
        ids += place.enqueue_many("visit", *later[number::3], run_after=0.5 * (number + 1))
    return ids


def most_inside(place: Place, *, died: bool = False) -> dict[str, int]:
    """How many were in each room at once. Who was lost is inside until it has come again and gone: its permit is.

    But where a worker died, only as long as that was heard of: the permit may have been that of a run, whose next may
    come in once all of them have died together.
    """
    inside: dict[str, dict[str, int]] = defaultdict(dict)
    most: dict[str, int] = defaultdict(int)
    lines = place.lines()
    last = {line.pid: number for number, line in enumerate(lines)}
    for number, line in enumerate(lines):
        if line.key.startswith("visit:"):
            room = line.key.split(":")[1]
            inside[room].pop(line.key, None)
            if line.what == "start":
                inside[room][line.key] = line.pid
            most[room] = max(most[room], sum(not died or last[pid] >= number for pid in inside[room].values()))
    return most


def check_rooms(place: Place, *, died: bool = False) -> None:
    most = most_inside(place, died=died)
    assert most, "nobody visited"
    assert max(most.values()) <= TO
    assert place.sql("select key, hex(id) from permit") == []
    assert place.sql("select hex(id) from job where state = 2") == []


def holders_die() -> Iterator[Any]:
    """Early at one point, late at the next, in every run."""
    for number, point in enumerate(point for point in POINTS if point.startswith(HOLDERS)):
        runs = RUNS.get(point) or RUNS.get(point.partition(".")[0]) or []
        for place, run in enumerate(runs):
            marks = [] if place == number % 2 else [pytest.mark.thorough]
            yield pytest.param(point, run, id=f"{point}@{run.hit}", marks=[pytest.mark.slow, *marks])


@pytest.mark.parametrize(("point", "run"), list(holders_die()))
def test_a_limit_holds_though_a_holder_dies_there(place: Place, point: str, run: Run):
    """Never more inside than allowed; in the end no permit is out and every job is done."""
    more = visits(place)
    if run.victim == "dispatcher":
        more += left_inside(place)
    die_as_role(place, point, run, *more)
    check_rooms(place, died=True)


def left_inside(place: Place) -> list[str]:
    """A process that took all permits of a room and has no lease; others wait for them."""
    process = new_id()
    queue = f"left-{process.hex()}"
    ids = place.enqueue_many("visit", *[(f"visit:left:{n}", "left") for n in range(TO)], queue_name=queue)
    enroll(place, process, lease=60)
    store = place.app.store
    claims = store.exchange(process, new_nonce(), [], EVERYTHING, 100, starting=100).claims
    mine = {claim.token for claim in claims if claim.queue == queue}
    others = [Outcome(claim.token, JobState.READY, spent=False) for claim in claims if claim.token not in mine]
    store.exchange(process, new_nonce(), others, EVERYTHING, 0)
    assert len(mine) == TO
    place.app.close()
    silence(place, process)
    return ids + place.enqueue_many("visit", *[(f"visit:left:behind-{n}", "left") for n in range(3)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        *(OUTSIDE[0], INSIDE[-1]),
        *(pytest.param(point, marks=pytest.mark.thorough) for point in (*OUTSIDE[1:], *INSIDE[:-1])),
    ],
)
def test_a_limit_holds_though_a_holder_stands_still_for_a_while(place: Place, point: str):
    """Its supervisor beats for it, so that nobody takes its jobs; it goes on as if nothing had been."""
    place.constants["packhorse.runtime.supervisor.FROZEN"] = 300.0
    place.settings["lease"] = 2.0
    ids = visits(place)
    workers = place.workers("--concurrency", "4", failpoints=f"{point}=stop@3", armed="worker")
    pid = workers.wait_armed_stopped()
    if point in OUTSIDE:
        others = place.workers("--concurrency", "4")
        later = place.enqueue("note", "two-leases-later", run_after=2 * place.settings["lease"])
        place.wait_ran("two-leases-later")
        ids.append(later)
        workers.thaw_child(pid)
        place.wait_all_finished()
        assert others.stop() == 0
    else:
        workers.thaw_child(pid)
        place.wait_all_finished()
    assert workers.stop() == 0
    place.check(ids)
    check_rooms(place)


@pytest.mark.slow
def test_a_limit_holds_though_its_holders_freeze_and_come_back_late(place: Place, monkeypatch: pytest.MonkeyPatch):
    """All of them stand still for longer than a lease: their jobs run elsewhere, and what they say later is refused."""
    held = place.enqueue_many("hold_one", ("held",))
    ids = visits(place, rooms=3, each=12) + held
    frozen = place.workers("--concurrency", "6", "--processes", "2")
    place.wait_started("held")
    wait_until(lambda: most_inside(place), "somebody is inside")
    monkeypatch.setattr("packhorse.stores.sqlite_connections.DEADLINE", 0.3)
    behind = freeze_outside_a_write(place, frozen)
    place.end_leases()
    others = place.workers("--concurrency", "6")
    place.let_go("behind")
    place.wait_started("held", times=2)
    assert place.lines("behind") == [], "the permit is the orphan's, until it has ended"
    frozen.thaw()
    place.let_go("held")
    place.wait_all_finished()
    for workers in (frozen, others):
        assert workers.stop() == 0
    place.check([*ids, behind])
    check_rooms(place)


def freeze_outside_a_write(place: Place, workers: Workers) -> str:
    """Whoever stands still while it writes keeps everybody from writing, so that a job that comes tells."""
    for _ in range(50):
        workers.freeze()
        try:
            return place.enqueue("hold_one", "behind")
        except EnqueueError:
            workers.thaw()
    pytest.fail("somebody is always writing")


# F85.


def insert_visitors(store: Store, name: str, number: int, batch: int, to: int) -> None:
    terms = Terms((Hold("room", to),))
    for begin in range(0, number, batch):
        store.insert([job(f"{name}{n}", terms=terms, payload=b"") for n in range(begin, min(begin + batch, number))])


def let_them_in_and_out(store: Store, process: bytes, limit: int, arrived: threading.Event) -> None:
    """Claim and finish, until all have come and there is nothing left for a while."""
    ended: list[Outcome] = []
    while True:
        nobody_comes = arrived.is_set()
        claims = store.exchange(process, new_nonce(), ended, EVERYTHING, limit).claims
        if nobody_comes and not ended and not claims:
            return
        ended = [succeed(claim.token, 1, None, keep=0) for claim in claims]


def race(store: Store, round: int, number: int, batch: int, to: int) -> None:
    """Two enqueue while two let in and out; when all are still, nobody waits beside a free permit."""
    processes = [new_id(), new_id()]
    for process in processes:
        store.enroll(ProcessInfo(process, "worker", "here", 1), 600 * SECOND)
    arrived = threading.Event()
    callers = [
        threading.Thread(target=insert_visitors, args=(store, f"{round}{side}", number // 2, batch, to))
        for side in ("l", "r")
    ]
    workers = [
        threading.Thread(target=let_them_in_and_out, args=(store, process, to, arrived)) for process in processes
    ]
    for thread in [*callers, *workers]:
        thread.start()
    for thread in callers:
        thread.join()
    arrived.set()
    for thread in workers:
        thread.join()
    left = store.jobs(Selection(), None, 10)
    assert left == [], "somebody waits though every permit is free"
    assert store.limits() == []
    for process in processes:
        store.leave(process)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "number", "batch", "to"),
    [
        pytest.param(3, 9_600, 60, 20, id="in batches"),
        pytest.param(10, 9_600, 60, 20, id="a hundred thousand", marks=pytest.mark.thorough),
        pytest.param(40, 100, 1, 1, id="one by one"),
    ],
)
def test_many_thousand_enqueues_race_with_releases(rounds: int, number: int, batch: int, to: int):
    """Whoever comes while another goes is seen by one of the two; nobody is left behind when all are still."""
    with quick_folder() as folder:
        store = open_store(f"sqlite:///{folder}/jobs.db?synchronous=normal")
        try:
            for round in range(rounds):
                race(store, round, number, batch, to)
        finally:
            store.close()


# F87.


@pytest.mark.parametrize("when", ["seen dying", pytest.param("by its lease", marks=pytest.mark.slow)])
def test_a_unique_job_may_be_enqueued_anew_when_its_owner_is_lost_for_good(place: Place, when: str):
    """Not before: until the verdict the key is the lost one's."""
    first = place.enqueue("hold_alone_strictly", "first")
    workers = place.workers()
    pid = place.wait_started("first").pid
    assert place.enqueue("hold_alone_strictly", "second") == first
    if when == "seen dying":
        workers.kill_child(pid)
    else:
        workers.freeze()
        workers.kill()
        workers.kill_child(pid)
        assert place.enqueue("hold_alone_strictly", "second") == first
        place.end_leases()
        workers = place.workers()
    place.wait_state(first, "failed")
    second = place.enqueue("hold_alone_strictly", "second")
    assert second != first
    place.let_go("second")
    place.wait_state(second, "succeeded")
    assert workers.stop() == 0
    place.check([first, second], others=[first])


@pytest.mark.slow
def test_a_unique_job_that_runs_again_keeps_its_key(place: Place):
    """A loss that is made good is no end."""
    first = place.enqueue("hold_alone", "first")
    workers = place.workers()
    workers.kill_child(place.wait_started("first").pid)
    place.wait_started("first", times=2)
    assert place.enqueue("hold_alone", "second") == first
    place.let_go("first")
    place.wait_state(first, "succeeded")
    assert place.enqueue("hold_alone", "second") != first
    place.let_go("second")
    place.wait_all_finished()
    assert workers.stop() == 0


# The mission's tests 7 and 8.


@pytest.mark.parametrize(
    "order", [pytest.param(1, id="upwards"), pytest.param(-1, id="downwards", marks=pytest.mark.slow)]
)
def test_mission_7_priorities_other_than_zero_are_kept_in_both_directions(place: Place, order: int):
    """Larger sooner, above zero and below, whichever was enqueued first."""
    priorities = [-100, -7, 0, 7, 100][::order]
    ids = [place.enqueue("note", f"p{priority}", priority=priority) for priority in priorities]
    ids += [place.enqueue("visit", f"visit:{priority}:l", "room", priority=priority) for priority in priorities]
    workers = place.workers("--concurrency", "1")
    place.wait_all_finished()
    assert workers.stop() == 0
    place.check(ids)
    starts = [line.key for line in place.lines(what="start")]
    for form in ("p{}", "visit:{}:l"):
        wanted = [form.format(priority) for priority in sorted(priorities, reverse=True)]
        assert [key for key in starts if key in wanted] == wanted


def test_mission_8_groups_are_independent(place: Place):
    """The same key under two groups: both run side by side, and a second of one group waits for the first."""
    ids = [place.enqueue("hold_one", "one"), place.enqueue("hold_two", "two"), place.enqueue("hold_one", "second")]
    workers = place.workers("--concurrency", "4")
    place.wait_started("one")
    place.wait_started("two")
    place.wait_state(ids[2], "waiting")
    assert place.lines("second") == []
    place.let_go("one")
    place.wait_started("second")
    assert place.lines("two", "finish") == []
    for key in ("two", "second"):
        place.let_go(key)
    place.wait_all_finished()
    assert workers.stop() == 0
    place.check(ids)


def test_mission_8_a_double_finish_never_lifts_the_limit(place: Place):
    """However often an end is told, it makes room once."""
    place.enqueue_many("visit", *[(f"visit:r:{n}", "r") for n in range(9)])
    store, process = place.app.store, new_id()
    store.enroll(ProcessInfo(process, "worker", "here", 1), 600 * SECOND)
    [first] = store.exchange(process, new_nonce(), [], EVERYTHING, 50).claims
    end = succeed(first.token, 1, None)
    [second] = store.exchange(process, new_nonce(), [end, end], EVERYTHING, 50).claims
    for _ in range(5):
        reply = store.exchange(process, new_nonce(), [end, end], EVERYTHING, 50)
        assert (reply.claims, reply.refused) == ([], [first.token, first.token])
    assert store.held(process) == [second.token]
    assert [(view.holders, view.waiting) for view in store.limits()] == [(TO, 7)]
