"""Die at every failpoint, go on with fresh processes, lose nothing (F10, F70)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from packhorse.clock import SECOND
from packhorse.failpoints import POINTS
from packhorse.ids import from_text, new_id
from packhorse.job import NewJob
from packhorse.moments import once
from packhorse.queues import parse_queues
from packhorse.runtime.worker import new_nonce
from packhorse.stores.contract import ProcessInfo
from tests.faults.harness import Place, Workers
from tests.waiting import wait_until

Words = dict[str, list[list[str]]]


@dataclass(frozen=True)
class Run:
    """Which process dies, and at which time it comes to the place."""

    victim: str  # worker, dispatcher, supervisor, or a script of client.py
    hit: int
    stopping: bool = False  # the place is reached on the way out


# By the first word of the point, or by its whole name: once at the first hit, once later.
RUNS: dict[str, list[Run]] = {
    "insert": [Run("insert", 1), Run("insert", 5)],
    "move": [Run("move", 1), Run("move", 3)],
    "pause": [Run("pause", 1), Run("pause", 4)],
    "record": [Run("record", 1), Run("record", 3)],
    "prune": [Run("prune", 1), Run("prune", 2)],
    "signal": [Run("signal", 1), Run("signal", 3)],
    "exchange": [Run("worker", 1), Run("worker", 4)],
    "worker": [Run("worker", 1), Run("worker", 4)],
    "slot": [Run("worker", 1), Run("worker", 7)],
    "beat": [Run("supervisor", 1), Run("supervisor", 3)],
    "promote": [Run("dispatcher", 1), Run("dispatcher", 3)],
    "tick": [Run("scheduler", 1), Run("scheduler", 3)],
    "schedule": [Run("schedule", 1), Run("schedule", 3)],
    "adopt": [Run("dispatcher", 1), Run("dispatcher", 2)],
    "dispatcher": [Run("dispatcher", 1), Run("dispatcher", 2)],
    "enroll": [Run("worker", 1), Run("enroll", 2)],
    "leave": [Run("worker", 1, stopping=True), Run("leave", 2)],
    "supervisor": [Run("supervisor", 1), Run("supervisor", 2)],
    "supervisor.before_stop": [Run("supervisor", 1, stopping=True)],  # there is no second time
}
ROLES = {"worker", "dispatcher", "scheduler", "supervisor"}
MOMENTS = 8
QUICK = {("exchange.before_commit", 1), ("insert.after_commit", 5)}


def cases() -> Iterator[Any]:
    """`make test` tries every other point at its first hit, and the others at a later one."""
    for number, point in enumerate(POINTS):
        runs: Sequence[Run | None] = RUNS.get(point) or RUNS.get(point.partition(".")[0]) or [None]
        for place, run in enumerate(runs):
            hit = run.hit if run else 0
            marks = [] if (point, hit) in QUICK else [pytest.mark.slow]
            if len(runs) > 1 and place != number % 2 and marks:
                marks.append(pytest.mark.thorough)
            yield pytest.param(point, run, id=f"{point}@{hit}", marks=marks)


@pytest.mark.parametrize(("point", "run"), list(cases()))
def test_dying_there_loses_nothing(place: Place, point: str, run: Run | None):
    if run is None:
        pytest.fail(f"No scenario reaches the failpoint {point!r}: add one to RUNS.")
    if run.victim in ROLES:
        die_as_role(place, point, run)
    else:
        die_as_client(place, point, run)


def die_as_role(place: Place, point: str, run: Run, *more: str) -> None:
    """`more` are jobs to do besides."""
    acknowledged = [*more, *workload(place)]
    if run.victim == "dispatcher":
        acknowledged += [place.enqueue("note", f"due-{n}", run_after=0.3 * n) for n in range(1, 9)]
        first, later = new_id(), new_id()
        acknowledged += claim_for(place, first) + claim_for(place, later)
        silence(place, first)
        if run.hit == 1:
            silence(place, later)
    if run.victim == "scheduler":
        work_for_the_scheduler(place)
    doomed = place.workers("--concurrency", "2", failpoints=f"{point}=kill@{run.hit}", armed=run.victim)
    if run.victim == "dispatcher" and run.hit > 1:
        if not point.startswith("promote."):
            doomed.wait_log("lost its worker")  # else one verdict would do for both
        silence(place, later)
    if run.stopping:
        place.wait_all_finished()
        doomed.process.send_signal(signal.SIGTERM)
    if point.startswith("promote."):
        acknowledged += promote_until_dead(place, doomed, run.hit)
    try:
        doomed.wait_armed_killed(run.victim)
    except AssertionError as error:
        pytest.fail(f"The {run.victim} did not die at hit {run.hit} of {point!r}: {error}\n{doomed.log}")
    if run.hit > 1:
        doomed.kill()  # the first hit is mended by the living supervisor, later ones by the next start
        place.end_leases(doomed.process.pid if run.victim == "supervisor" else doomed.armed_pid())
    if run.stopping:
        acknowledged += place.enqueue_many("note", *[(f"afterwards-{n}",) for n in range(3)])
    last = doomed
    if doomed.process.poll() is not None or run.stopping:
        last = place.workers("--concurrency", "2")
    if run.victim == "scheduler":
        wait_until(lambda: place.sql("select count(*) from tick") == [(MOMENTS,)], "every moment was dealt with")
    place.wait_all_finished()
    if last is not doomed:
        doomed.wait_children_gone()
    assert last.stop() == 0
    assert "Traceback" not in doomed.log + last.log
    place.check(acknowledged)
    if run.victim == "scheduler":
        ticked = place.sql("select count(*), count(distinct job), count(distinct schedule) from tick")
        assert ticked == [(MOMENTS, MOMENTS, MOMENTS)]
        assert len(place.rows()) == len(acknowledged) + MOMENTS
    losses = [row.losses for row in place.rows().values()]
    assert max(losses) <= 1, "one death, so at most one loss"


def promote_until_dead(place: Place, doomed: Workers, hits: int) -> list[str]:
    """Jobs that become due one after the other, however late the dispatcher comes to the first."""
    ids = []
    for number in range(hits):
        ids.append(place.enqueue("note", f"fed-{number}", run_after=0.05))
        wait_until(
            lambda: "was killed by SIGKILL" in doomed.log or place.rows()[from_text(ids[-1])].state != "scheduled",
            "it is promoted, or nobody is left to do so",
        )
    return ids


def workload(place: Place) -> list[str]:
    """Quick jobs in threads and on the loop, and slow ones that make look-ahead claims wait behind them."""
    ids = [place.enqueue("note", f"single-{n}") for n in range(3)]
    ids += place.enqueue_many("note", *[(f"quick-{n}",) for n in range(40)])
    ids += place.enqueue_many("anote", *[(f"coroutine-{n}",) for n in range(10)])
    for part in range(3):
        ids += place.enqueue_many("nap", *[(f"slow-{part}-{n}", 0.25) for n in range(2)])
        ids += place.enqueue_many("note", *[(f"behind-{part}-{n}",) for n in range(10)])
    return ids


def work_for_the_scheduler(place: Place) -> None:
    """Moments that come one after the other, one of each schedule."""
    note, now = place.app.tasks["note"], datetime.now(UTC)
    for n in range(MOMENTS):
        place.app.schedules.add(note.call(f"moment-{n}"), once(now + timedelta(seconds=0.4 * n)), key=f"once-{n}")
    place.app.close()


def claim_for(place: Place, process: bytes) -> list[str]:
    """Jobs of a process that never beats."""
    queue = f"left-{process.hex()}"
    ids = place.enqueue_many("note", *[(f"{queue}-{n}",) for n in range(3)], queue_name=queue)
    enroll(place, process, lease=60)
    answer = place.app.store.exchange(process, new_nonce(), [], parse_queues(queue), 3, starting=3)
    assert len(answer.claims) == 3
    place.app.close()
    return ids


def silence(place: Place, process: bytes) -> None:
    """Its lease ends now."""
    enroll(place, process, lease=0)


def enroll(place: Place, process: bytes, lease: int) -> None:
    place.app.store.enroll(ProcessInfo(process, "worker", "elsewhere", 1), lease * SECOND)
    place.app.close()


def die_as_client(place: Place, point: str, run: Run) -> None:
    client = place.client(run.victim, failpoints=f"{point}=kill@{run.hit}")
    said = words(client.output())
    if client.process.returncode != -signal.SIGKILL:
        pytest.fail(f"The script {run.victim!r} did not die at hit {run.hit} of {point!r}: {client.errors or said}")
    place.check_sound()
    excused = AFTER[run.victim](place, said)
    place.end_leases()
    workers = place.workers("--concurrency", "2")
    place.wait_all_finished()
    assert workers.stop() == 0
    assert "Traceback" not in workers.log
    place.check([id for [id] in said.get("enqueued", [])], others=excused)


def words(lines: list[str]) -> Words:
    said: Words = {}
    for line in lines:
        first, *rest = line.split()
        said.setdefault(first, []).append(rest)
    return said


# What must hold before fresh processes come; each gives the acknowledged jobs that need not succeed.


def after_insert(place: Place, said: Words) -> list[str]:
    """Batches are all or none; and who never heard the answer may ask again."""
    jobs = [NewJob(from_text(id), "note", bytes.fromhex(payload)) for id, payload in said["intends"]]
    place.app.store.schema_version()  # it may have died before there was a table
    before = set(place.rows())
    told = {from_text(id) for [id] in said.get("enqueued", [])}
    unsure = {job.id for job in jobs} - told
    assert told <= before
    assert unsure
    assert unsure <= before or not unsure & before, "half a batch"
    place.app.store.insert(jobs)
    place.app.close()
    assert set(place.rows()) == {job.id for job in jobs}
    said["enqueued"] = [[id] for id, _ in said["intends"]]
    return []


def after_move(place: Place, said: Words) -> list[str]:
    """Cancelled and audited, or neither."""
    cancelled = {row.id for row in place.rows().values() if row.state == "cancelled"}
    told = {from_text(id) for pair in said.get("cancelled", []) for id in pair}
    assert told <= cancelled
    audited = place.sql("select jobs from audit where act = 'cancel'")
    assert len(cancelled) == sum(jobs for (jobs,) in audited) == 2 * len(audited)
    return [id for [id] in said["enqueued"] if from_text(id) in cancelled]


def after_pause(place: Place, said: Words) -> list[str]:
    acts = [act for (act,) in place.sql("select act from audit order by n")]
    told = len(said.get("paused", [])) + len(said.get("resumed", []))
    assert told <= len(acts) <= told + 1
    paused = bool(place.sql("select name from pause"))
    assert paused == (acts[-1:] == ["pause"])
    place.app.control.resume("default")
    place.app.close()
    return []


def after_record(place: Place, said: Words) -> list[str]:
    """Both entries of a record, or none; those told of for certain."""
    entries = place.sql("select hex(id), count(*) from entry group by id")
    assert all(count == 2 for _, count in entries)
    assert {from_text(id).hex().upper() for id, _ in said.get("recorded", [])} <= {id for id, _ in entries}
    return []


def after_signal(place: Place, said: Words) -> list[str]:
    """Kept, and both who waited for it have it and are due; or neither. What was not acknowledged is sent again."""
    signals = {name for (name,) in place.sql("select name from signal")}
    told = {name for [name] in said.get("signalled", [])}
    assert told <= signals
    assert len(signals - told) <= 1
    heard = place.sql("select substr(name, 1, 4), count(*) from entry where kind = 'signal' group by 1")
    assert dict(heard) == dict.fromkeys(signals, 2)
    awaited = place.sql("select awaits, count(*) from job where awaits is not null group by 1")
    unheard = {f"go-{n}" for n in range(4)} - signals
    assert dict(awaited) == dict.fromkeys(unheard, 2)
    assert place.states()["ready"] == 2 * len(signals)
    for name in unheard:
        assert place.app.signal(name) == 2
    place.app.close()
    return []


def after_prune(place: Place, said: Words) -> list[str]:
    """Old jobs go by twos and whole; the others stay."""
    rows = place.rows()
    old = [id for [id] in said["enqueued"] if from_text(id) not in rows or rows[from_text(id)].key.startswith("old-")]
    left = [id for id in old if from_text(id) in rows]
    pruned = 2 * len(said.get("pruned", []))
    assert len(old) == 6
    assert len(left) in (6 - pruned, 4 - pruned)
    place.check_whole()
    said["enqueued"] = [[id] for [id] in said["enqueued"] if from_text(id) in rows]
    return left  # they were finished without having been performed


def after_membership(place: Place, said: Words) -> list[str]:
    """Whoever is known and gone is found by its lease; jobs of one that left are ready again, all of them."""
    known = {id for (id,) in place.sql("select lower(hex(id)) from process")}
    assert {id for [id] in said.get("joined", [])} <= known
    assert not {id for [id] in said.get("left", [])} & known
    held = {id for (id,) in place.sql("select lower(hex(process)) from job where state = 4")}
    assert held <= known
    return []


def after_schedule(place: Place, said: Words) -> list[str]:
    """Written and audited, or neither; those told of for certain."""
    keys = {key for (key,) in place.sql("select key from schedule")}
    assert {key for [key] in said.get("scheduled", [])} <= keys
    assert len(keys) == place.sql("select count(*) from audit where act = 'schedule'")[0][0]
    return []


AFTER: dict[str, Callable[[Place, Words], list[str]]] = {
    "insert": after_insert,
    "move": after_move,
    "pause": after_pause,
    "record": after_record,
    "schedule": after_schedule,
    "prune": after_prune,
    "signal": after_signal,
    "enroll": after_membership,
    "leave": after_membership,
}
