"""Schedules while schedulers die, freeze, are away or contend (mission tests 10 and 11; F79, F80, F82, F83).

F81, every change of clocks in every zone, is in tests/domain/test_clock_changes.py.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from packhorse.clock import SECOND, to_datetime
from packhorse.ids import from_text
from packhorse.moments import every
from packhorse.stores.contract import StoredSchedule
from tests.faults.harness import Place, Workers
from tests.waiting import wait_until

LATE = 15.0  # seconds, the bound of F79
SOON = 1.0  # seconds, of the quickest of each schedule

Moment = tuple[str, int]


class Done(NamedTuple):
    """What the ledger says of one moment that was performed."""

    moment: Moment
    job: bytes
    late: float


def ticks(place: Place) -> dict[Moment, bytes | None]:
    return {(key, moment): job for key, moment, job in place.sql("select schedule, moment, job from tick")}


def moments_of(place: Place, key: str) -> list[int]:
    return [moment for (moment,) in place.sql("select moment from tick where schedule = ? order by moment", key)]


def performed(place: Place, what: str = "finish") -> list[Done]:
    found = []
    for line in place.lines(what=what):
        key, moment, job = line.key.split("@")
        found.append(Done((key, int(moment)), from_text(job), (line.at - int(moment)) / SECOND))
    return found


def schedule(place: Place, *keys: str, task: str = "mark", rule: Any = None, **options: Any) -> dict[str, int]:
    """Every second, made up for whenever it is missed; their first moments."""
    firsts = {}
    for key in keys:
        call = place.app.tasks[task].call(key)
        place.app.schedules.add(call, rule or every(1), key=key, **{"misfire": "all"} | options)
        next_at = stored(place, key).next_at or 0
        firsts[key] = min([next_at, *moments_of(place, key)])  # a scheduler that runs already may have been quick
    return firsts


def stored(place: Place, key: str) -> StoredSchedule:
    row = place.app.store.schedule(key)
    assert row is not None
    return row


def wait_ticked(place: Place, keys: Collection[str], times: int, within: float = 40.0) -> None:
    """Each of them, so often from now on."""
    before = Counter(key for key, _ in ticks(place))

    def all_ticked() -> bool:
        now = Counter(key for key, _ in ticks(place))
        return all(now[key] - before[key] >= times for key in keys)

    wait_until(all_ticked, f"{times} moments of each", within)


def settle(place: Place, *started: Workers) -> None:
    """No more moments; all jobs end, and then the workers."""
    for view in list(place.app.schedules.all()):
        place.app.schedules.pause(view.key)
    place.wait_all_finished()
    for workers in started:
        assert workers.stop() == 0


def check_one_job_for_each_moment(place: Place, firsts: dict[str, int], *, step: int = SECOND) -> int:
    """None missed and none doubled, by the rows of ticks, by the jobs and by what the tasks did; how many there are."""
    known = ticks(place)
    missed = [
        (key, moment)
        for key, first in firsts.items()
        for moment in range(first, max(moments_of(place, key), default=first) + 1, step)
        if (key, moment) not in known
    ]
    assert missed == [], f"missed {len(missed)} of {len(known)}"
    assert not [moment for moment in known if moment[1] < firsts[moment[0]]], "one before the first"
    jobs = Counter(known.values())
    assert None not in jobs
    assert max(jobs.values()) == 1, "one job stands for two moments"
    ran: dict[Moment, set[bytes]] = {}
    for it in performed(place):
        ran.setdefault(it.moment, set()).add(it.job)
    doubled = [moment for moment, its_jobs in ran.items() if len(its_jobs) > 1]
    assert doubled == [], f"doubled {len(doubled)} of {len(known)}"
    assert ran == {moment: {job} for moment, job in known.items()}, "what ran is not what was ticked"
    return len(known)


# Mission tests 10 and 11.


def test_one_malformed_schedule_among_ten_nine_run_on_time_and_one_is_reported(place: Place):
    """Mission test 10. Several kinds of malformed ones, each among nine that are sound."""
    good = [f"good-{n}" for n in range(9)]
    firsts = schedule(place, *good)
    row = replace(stored(place, good[0]), revision=0, next_at=firsts[good[0]])
    bad = {
        "bad-rule": replace(row, rule="cron: 99 * * * *"),
        "bad-zone": replace(row, zone="Europe/Atlantis"),
        "bad-overlap": replace(row, overlap="sometimes"),
        "bad-arguments": replace(row, payload=b"forged"),
        "bad-task": replace(row, task="gone"),
    }
    for key, wrong in bad.items():
        assert place.app.store.put_schedule(replace(wrong, key=key), "eve", "")
    place.constants["packhorse.runtime.scheduler.PATIENCE"] = 2 * SECOND
    workers = place.workers()
    wait_ticked(place, good, 1)
    since = place.app.clock.now()  # moments of the time before it was there are late
    wait_until(lambda: all(sum(it >= since for it in moments_of(place, key)) >= 3 for key in good), "more moments")
    for key in bad:
        workers.wait_log(f"schedule {key} gets no job: ")
    assert all(stored(place, key).error for key in bad)
    settle(place, workers)
    check_one_job_for_each_moment(place, firsts)
    late: dict[str, list[float]] = {key: [] for key in good}
    for it in performed(place, "start"):
        if it.moment[1] >= since:
            late[it.moment[0]].append(it.late)
    assert all(min(its) < SOON for its in late.values()), late
    assert "Traceback" not in workers.log


def test_two_schedulers_and_no_finished_jobs_one_job_for_each_moment(place: Place):
    """Mission test 11. Also where a schedule is set back, of which nothing but the rows of its ticks can tell."""
    keys = [f"s{n}" for n in range(5)]
    firsts = schedule(place, *keys, task="mark_and_go")
    both = [place.workers(), place.workers()]
    for workers in both:
        workers.wait_log("started scheduler")
    wait_ticked(place, keys, 3)
    for _ in range(3):
        for key in keys:
            set_back(place, key, firsts[key])
        wait_ticked(place, keys, 1)
    settle(place, *both)
    assert place.rows() == {}, "finished jobs are not kept"
    check_one_job_for_each_moment(place, firsts)


def set_back(place: Place, key: str, first: int) -> None:
    """As if nobody had handled anything yet."""
    wait_until(
        lambda: place.app.store.put_schedule(
            replace(stored(place, key), handled=first - 1, next_at=first), "ann", "set back"
        ),
        f"{key} is set back",
    )


# F79.


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_scheduler_of_three_is_away(place: Place, how: str):
    """F79. The others go on in time; when it comes back, nothing happens twice."""
    place.constants["packhorse.runtime.supervisor.FROZEN"] = 300.0
    keys = [f"s{n}" for n in range(5)]
    firsts = schedule(place, *keys)
    three = [place.workers() for _ in range(3)]
    pids = [workers.wait_pid("scheduler") for workers in three]
    wait_ticked(place, keys, 2)
    since = place.app.clock.now()
    for workers, pid in list(zip(three, pids, strict=True))[:2]:
        if how == "killed":
            workers.kill_child(pid)
        else:
            workers.freeze_child(pid)
    wait_ticked(place, keys, 4)
    if how == "frozen":
        for workers, pid in list(zip(three, pids, strict=True))[:2]:
            workers.thaw_child(pid)
    wait_ticked(place, keys, 2)
    settle(place, *three)
    check_one_job_for_each_moment(place, firsts)
    assert max(it.late for it in performed(place, "start") if it.moment[1] >= since) < LATE


@pytest.mark.parametrize("point", ["tick.before_write", "tick.after_commit"])
def test_a_scheduler_that_was_frozen_between_its_look_and_its_tick_comes_too_late(place: Place, point: str):
    """F79, F80. What it was about to do others have done; what it did and does not know yet is not done again."""
    place.constants["packhorse.runtime.supervisor.FROZEN"] = 300.0
    keys = [f"s{n}" for n in range(3)]
    firsts = schedule(place, *keys)
    slow = place.workers(failpoints=f"{point}=stop@4", armed="scheduler")
    pid = slow.wait_pid("scheduler")
    wait_until(lambda: slow.is_frozen(pid), "it is frozen")
    quick = place.workers()
    wait_ticked(place, keys, 3)
    slow.thaw_child(pid)
    wait_ticked(place, keys, 3)
    settle(place, slow, quick)
    check_one_job_for_each_moment(place, firsts)


# F80.


@pytest.mark.parametrize(
    "point",
    [
        "tick.after_commit",
        *(pytest.param(f"tick.before_{what}", marks=pytest.mark.thorough) for what in ("write", "commit")),
    ],
)
def test_the_answer_to_a_tick_is_lost(place: Place, point: str):
    """F80. Killed before or behind the commit: the next scheduler goes on where the store stands."""
    keys = [f"s{n}" for n in range(3)]
    firsts = schedule(place, *keys)
    workers = place.workers(failpoints=f"{point}=kill@5", armed="scheduler")
    workers.wait_armed_killed("scheduler")
    wait_ticked(place, keys, 3)
    settle(place, workers)
    check_one_job_for_each_moment(place, firsts)


def test_a_store_that_fails_after_the_commit_has_ticked_all_the_same(place: Place):
    """F80. The scheduler lives, and knows no better than that it failed."""
    keys = [f"s{n}" for n in range(3)]
    firsts = schedule(place, *keys)
    workers = place.workers(failpoints="tick.after_commit=raise@5", armed="scheduler")
    wait_ticked(place, keys, 5)
    settle(place, workers)
    check_one_job_for_each_moment(place, firsts)


# F82.


@pytest.mark.parametrize(
    ("options", "made_up_for"),
    [
        ({"misfire": "skip"}, []),
        ({"misfire": "skip", "grace": timedelta(minutes=5, seconds=60)}, [0]),
        ({"misfire": "once"}, [0]),
        ({"misfire": "once", "grace": timedelta(minutes=4)}, []),
        ({"misfire": "all"}, range(18)),
        ({"misfire": "all", "grace": timedelta(hours=1)}, range(6)),
        ({"misfire": "all", "repeats": 4}, range(14, 18)),
    ],
    ids=lambda it: " ".join(f"{name}={value}" for name, value in it.items()) if isinstance(it, dict) else "",
)
def test_a_scheduler_that_was_down_for_three_hours(place: Place, options: Any, made_up_for: Collection[int]):
    """F82. Every ten minutes, the last time five minutes ago: exactly what its `misfire` and its `grace` say."""
    last = place.app.clock.now() // SECOND * SECOND - 300 * SECOND
    ten = 600 * SECOND
    rule = every(600, to_datetime(last - 100 * ten))
    schedule(place, "s", rule=rule, **options)
    row = stored(place, "s")
    down = replace(row, handled=last - 18 * ten, next_at=last - 17 * ten)
    assert place.app.store.put_schedule(down, "ann", "as it was three hours ago")
    workers = place.workers()
    wait_until(lambda: (stored(place, "s").handled or 0) >= last - ten * min(made_up_for, default=0), "it is up again")
    settle(place, workers)
    assert sorted((last - moment) // ten for moment in moments_of(place, "s")) == sorted(made_up_for)
    assert Counter(it.moment for it in performed(place)) == Counter(ticks(place).keys())


# F83.


def test_schedules_are_edited_paused_and_removed_while_they_fire(place: Place):
    """F83. A moment gets its job once or not at all, whatever operators do meanwhile."""
    keys = [f"s{n}" for n in range(4)]
    schedule(place, *keys)
    both = [place.workers(), place.workers()]
    wait_ticked(place, keys, 1)
    schedules, dice = place.app.schedules, random.Random(7)
    call = place.app.tasks["mark"].call

    def act(key: str) -> None:
        match dice.choice(["rule", "arguments", "pause", "remove", "set back"]):
            case "rule":
                schedules.edit(key, rule=every(dice.choice([1, 2])))
            case "arguments":
                schedules.edit(key, call=call(key))
            case "pause":
                schedules.pause(key)
                schedules.resume(key)
            case "remove":
                schedules.remove(key)
                schedules.add(call(key), every(1), key=key, misfire="all")
            case "set back":
                set_back(place, key, place.app.clock.now() // SECOND * SECOND - 3 * SECOND)

    until = time.monotonic() + 5
    acted = 0
    while acted < 60 or time.monotonic() < until:
        act(dice.choice(keys))
        acted += 1
    wait_ticked(place, keys, 2)
    settle(place, *both)
    known = ticks(place)
    assert len(set(known.values())) == len(known)
    ran = {(it.moment, it.job) for it in performed(place)}
    assert ran == set(known.items())
    assert len(performed(place)) == len(known), "nobody died: each ran once"


# All at once.


@pytest.mark.timeout(600)
def test_no_moment_is_missed_or_doubled_while_schedulers_and_workers_are_killed(place: Place):
    """Two supervisors, a hundred schedules, kills all the while until a thousand moments have passed."""
    place.constants["packhorse.runtime.supervisor.RESTART_CAP"] = 0.05
    both = [place.workers(), place.workers()]
    for workers in both:
        workers.wait_pid("scheduler")
    keys = [f"s{n:02}" for n in range(100)]
    firsts = schedule(place, *keys)
    dice = random.Random(11)
    kills: Counter[str] = Counter()
    until, enough = time.monotonic() + 10, False
    while not enough or time.monotonic() < until:
        workers, role = dice.choice(both), dice.choice(["scheduler", "worker"])
        pid = workers.pids(role)[-1]
        if not workers.child_ended(pid):
            workers.kill_child(pid)
            kills[role] += 1
        enough = min(kills["scheduler"], kills["worker"]) >= 10 and len(ticks(place)) >= 1_000
        time.sleep(dice.uniform(0.1, 0.3))  # the pace of the kills
    end = place.app.clock.now()
    wait_until(lambda: all((row.handled or 0) >= end for row in place.app.store.schedules()), "all caught up", 60)
    for key in keys:
        place.app.schedules.pause(key)
    place.retry_lost()
    settle(place, *both)
    moments = check_one_job_for_each_moment(place, firsts)
    assert moments >= 1_000
    assert place.states() == {"succeeded": moments}
    place.check_whole()
    started = performed(place, "start")
    again, latest = len(started) - moments, max(it.late for it in started)
    print(f"{moments} moments, {dict(kills)} kills, {again} performed again, the latest {latest:.2f} s late")
