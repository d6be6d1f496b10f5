"""Schedules: rows with a moment, and one job for each moment, whoever ticks and however often."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import JobState, NewJob
from packhorse.limits import Claimed, Hold, Terms
from packhorse.stores import Store
from packhorse.stores.contract import TICKS_KEPT, Act, Retention, StoredSchedule, Tick
from packhorse.testing.contract.helpers import (
    Worker,
    everything,
    failed,
    id_of,
    insert,
    job,
    look,
    move,
    names,
    retried,
    state,
    states,
    succeeded,
)

FULL = StoredSchedule(
    key="full",
    task="birds.count",
    rule="a rule that no store reads",
    payload=b"\x00\xff arguments",
    zone="Europe/Berlin",
    start=-5,
    end=1 << 60,
    repeats=3,
    jitter=7,
    misfire="all",
    grace=11,
    overlap="queue",
    queue="slow",
    priority=-7,
    paused=True,
    handled=42,
    next_at=43,
    last_job=id_of("before"),
    error="no such bird: \u2603",
    fingerprint="f",
)


def schedule(key: str, **fields: Any) -> StoredSchedule:
    return StoredSchedule(**{"key": key, "task": "birds.count", "rule": "often", "payload": b"p"} | fields)


def put(store: Store, key: str = "s", **fields: Any) -> StoredSchedule:
    """A schedule that was made at run time, as the store has it then."""
    assert store.put_schedule(schedule(key, **fields), "ann", "because")
    return found(store, key)


def found(store: Store, key: str = "s") -> StoredSchedule:
    row = store.schedule(key)
    assert row is not None, f"there is no schedule {key}"
    return row


def tick(store: Store, row: StoredSchedule, *jobs: tuple[int, NewJob], **after: Any) -> list[Tick] | None:
    """By default the moment after the last is the next, and a repeat is used up for each."""
    handled = max([moment for moment, _ in jobs], default=row.handled)
    next_at = None if handled is None else handled + SECOND
    return store.tick(row, jobs, **{"handled": handled, "next_at": next_at, "repeats": row.repeats} | after)


def keys(rows: list[StoredSchedule]) -> list[str]:
    return [row.key for row in rows]


def acts(store: Store) -> list[tuple[str, str, str, int]]:
    return [audit[1:] for audit in store.audit()]


# What code declares.


def test_declared_schedules_come_with_their_source(store: Store):
    """Every field is kept; source and revision are the store's business."""
    assert store.save_schedules("shop", [FULL, schedule("other")]) == []
    assert store.schedule("full") == replace(FULL, source="shop", revision=1)
    assert found(store, "other") == schedule("other", source="shop", revision=1)
    assert store.audit() == [], "code is no operator"


def test_saving_the_same_again_changes_nothing(store: Store):
    """Whatever happened to one since, however the new row looks beside its fingerprint."""
    store.save_schedules("shop", [schedule("s", fingerprint="f", next_at=5)])
    tick(store, found(store), (5, job("a")))
    before = found(store)
    assert store.save_schedules("shop", [schedule("s", fingerprint="f", next_at=99, rule="seldom")]) == []
    assert found(store) == before


def test_a_changed_one_begins_anew(store: Store):
    """It is not as far as the old one was; but it stays paused, and the job of its last tick may run still."""
    store.save_schedules("shop", [schedule("s", fingerprint="f", next_at=5, repeats=3)])
    tick(store, found(store), (5, job("a")), repeats=2, error="strange")
    assert store.put_schedule(replace(found(store), paused=True), "ann", "")
    before = found(store)
    store.save_schedules("shop", [schedule("s", fingerprint="g", rule="seldom", next_at=7, repeats=3)])
    changed = schedule("s", fingerprint="g", rule="seldom", next_at=7, repeats=3, source="shop", paused=True)
    assert found(store) == replace(changed, last_job=id_of("a"), revision=before.revision + 1)


def test_what_is_declared_no_longer_is_removed(store: Store):
    """Of that source only."""
    store.save_schedules("shop", [schedule("a"), schedule("b")])
    store.save_schedules("blog", [schedule("c")])
    put(store, "d")
    store.save_schedules("shop", [schedule("b")])
    assert keys(store.schedules()) == ["b", "c", "d"]
    store.save_schedules("shop", [])
    assert keys(store.schedules()) == ["c", "d"]


def test_keys_of_others_are_left_alone(store: Store):
    """Of another application, or made at run time; whoever saves is told, each time."""
    store.save_schedules("blog", [schedule("a", rule="theirs")])
    put(store, "b", rule="by hand")
    before = store.schedules()
    for _ in range(2):
        assert store.save_schedules("shop", [schedule("b"), schedule("c"), schedule("a")]) == ["b", "a"]
        assert [row for row in store.schedules() if row.key != "c"] == before
    assert found(store, "c").source == "shop"


def test_ticks_outlive_their_schedule(store: Store):
    """Declared again, a moment that had its job gets no other."""
    store.save_schedules("shop", [schedule("s", next_at=5)])
    tick(store, found(store), (5, job("a")))
    store.save_schedules("shop", [])
    store.save_schedules("shop", [schedule("s", next_at=5)])
    assert tick(store, found(store), (5, job("b"))) == []
    assert list(states(store)) == ["a"]


# By hand.


def test_one_is_put_and_found_as_it_is(store: Store):
    """But for its revision."""
    assert store.put_schedule(FULL, "ann", "a trial") is True
    assert store.schedule("full") == replace(FULL, revision=1)
    assert store.schedules() == [replace(FULL, revision=1)]
    assert acts(store) == [("ann", "schedule", "a trial", 0)]


def test_a_new_one_takes_no_key_that_is_taken(store: Store):
    """Revision 0 says that there is none yet."""
    before = put(store)
    assert store.put_schedule(schedule("s", rule="other"), "bob", "") is False
    assert found(store) == before
    assert len(acts(store)) == 1


@pytest.mark.parametrize("revision", [1, 3, 99])
def test_only_the_newest_revision_can_be_written_over(store: Store, revision: int):
    """Else it was changed since it was looked at; nothing is written, and nothing audited."""
    first = put(store)
    assert store.put_schedule(replace(first, rule="second"), "ann", "")
    before = found(store)
    assert before.revision == 2
    assert store.put_schedule(replace(before, rule="third", revision=revision), "bob", "") is False
    assert store.put_schedule(schedule("unknown", revision=revision), "bob", "") is False
    assert found(store) == before
    assert store.schedule("unknown") is None
    assert len(acts(store)) == 2


def test_a_tick_is_a_change_too(store: Store):
    """Whoever looked before it would take back how far it has come."""
    before = put(store, next_at=5, repeats=1)
    tick(store, before, (5, job("a")), repeats=0)
    assert store.put_schedule(replace(before, paused=True), "ann", "") is False
    after = found(store)
    assert (after.revision, after.repeats, after.paused) == (before.revision + 1, 0, False)
    assert store.put_schedule(replace(after, paused=True), "ann", "") is True


def test_one_is_removed(store: Store):
    """Once; the audit says who and why."""
    put(store)
    assert store.remove_schedule("s", "bob", "enough") is True
    assert store.schedule("s") is None
    assert store.remove_schedule("s", "bob", "enough") is False
    assert acts(store) == [("bob", "remove_schedule", "enough", 0), ("ann", "schedule", "because", 0)]


def test_a_job_besides_the_moments_is_audited(store: Store):
    """In the stroke that inserts it; a unique key that is taken stands for it as ever."""
    before = put(store)
    unique = Terms(unique=Claimed("birds"))
    assert store.run_schedule(job("a", terms=unique), "bob", "at once") == id_of("a")
    assert store.run_schedule(job("b", terms=unique), "bob", "once more") == id_of("a")
    assert states(store) == {"a": JobState.READY}
    assert acts(store)[:2] == [("bob", "run_schedule", "once more", 0), ("bob", "run_schedule", "at once", 1)]
    assert (found(store), store.ticks("s")) == (before, [])


def test_schedules_are_found_page_by_page(store: Store):
    """In the order of their keys, behind one that need not exist."""
    for key in ("b", "a", "c", "a.b", "\u00e4", "Z"):
        put(store, key)
    assert keys(store.schedules()) == ["Z", "a", "a.b", "b", "c", "\u00e4"]
    assert keys(store.schedules("a", 2)) == ["a.b", "b"]
    assert keys(store.schedules("bb")) == ["c", "\u00e4"]
    assert store.schedules("\u00e4") == []


# Which are due.


def test_the_most_overdue_come_first(store: Store, clock: ManualClock):
    """Then by key; those of the future do not come, nor those without a moment."""
    now = clock.now()
    for key, moment in {"a": now, "b": now - 2, "c": now - 2, "d": now + 9, "e": now + 5, "f": None}.items():
        put(store, key, next_at=moment)
    due = store.due_schedules(10)
    assert (keys(due.schedules), due.next_due, due.now) == (["b", "c", "a"], 5, now)
    assert due.schedules[0] == found(store, "b")


def test_where_there_may_be_more_the_next_are_due_at_once(store: Store, clock: ManualClock):
    """A full page says nothing of what comes behind it."""
    for key in "abc":
        put(store, key, next_at=clock.now())
    assert (keys(store.due_schedules(2).schedules), store.due_schedules(2).next_due) == (["a", "b"], 0)
    assert (keys(store.due_schedules(4).schedules), store.due_schedules(4).next_due) == (["a", "b", "c"], None)


def test_paused_ones_are_not_due(store: Store, clock: ManualClock):
    """Neither now nor next."""
    row = put(store, next_at=clock.now(), paused=True)
    put(store, "later", next_at=clock.now() + 5, paused=True)
    assert store.due_schedules(10) == ([], None, clock.now())
    store.put_schedule(replace(row, paused=False), "ann", "")
    assert keys(store.due_schedules(10).schedules) == ["s"]


def test_a_moment_comes_with_the_clock(store: Store, clock: ManualClock):
    """To the microsecond."""
    put(store, next_at=clock.now() + SECOND)
    clock.advance(0.999_999)
    assert (store.due_schedules(10).schedules, store.due_schedules(10).next_due) == ([], 1)
    clock.advance(0.000_001)
    assert keys(store.due_schedules(10).schedules) == ["s"]


# Ticks.


def test_a_tick_inserts_the_jobs_and_moves_the_schedule_on(store: Store, worker: Worker, clock: ManualClock):
    """In one stroke: what is handled, the next moment, the repeats left and the last job."""
    before = put(store, next_at=5, repeats=3, error="strange")
    one, two = job("a", queue="slow", priority=3, tags=("x",)), job("b", run_at=clock.now() + SECOND)
    ticked = store.tick(before, [(5, one), (6, two)], handled=6, next_at=7, repeats=1)
    assert ticked == [Tick(5, id_of("a")), Tick(6, id_of("b"))]
    moved_on = {"handled": 6, "next_at": 7, "repeats": 1, "last_job": id_of("b"), "error": ""}
    assert found(store) == replace(before, revision=before.revision + 1, **moved_on)  # type: ignore[arg-type]
    assert states(store) == {"a": JobState.READY, "b": JobState.SCHEDULED}
    assert (look(store, "a").queue, look(store, "a").priority, look(store, "a").tags) == ("slow", 3, ("x",))
    assert names(worker.claim()) == ["a"]
    assert acts(store)[1:] == [], "nobody did it"


def test_a_tick_without_jobs_moves_on_too(store: Store):
    """Where all were missed, or it went wrong; the last job stays known."""
    tick(store, put(store, next_at=5), (5, job("a")))
    assert store.tick(found(store), [], handled=9, next_at=None, repeats=0, error="no such task") == []
    after = found(store)
    assert (after.handled, after.next_at, after.repeats, after.error) == (9, None, 0, "no such task")
    assert after.last_job == id_of("a")


@pytest.mark.parametrize("what", ["ticked", "put off", "changed", "declared anew", "removed", "never there"])
def test_one_that_is_no_more_as_given_is_not_ticked(store: Store, what: str):
    """No job, no tick, and the schedule is as it was."""
    store.save_schedules("shop", [schedule("s", next_at=5)])
    before = found(store)
    match what:
        case "ticked":
            tick(store, before, (5, job("a")))
        case "put off":
            store.tick(before, [], handled=4, next_at=99, repeats=None, error="strange")
        case "changed":
            store.put_schedule(replace(before, rule="seldom"), "ann", "")
        case "declared anew":
            store.save_schedules("shop", [schedule("s", fingerprint="g", next_at=5)])
        case "removed":
            store.remove_schedule("s", "ann", "")
        case "never there":
            before = schedule("unknown", revision=1)
    seen = everything(store), store.schedules(), store.ticks("s")
    assert tick(store, before, (6, job("b"))) is None
    assert (everything(store), store.schedules(), store.ticks("s")) == seen
    assert store.ticks("unknown") == []


def test_of_many_who_tick_at_once_one_wins(store: Store):
    """However many schedulers see the same moment."""
    for number in range(20):
        put(store, f"s{number}", next_at=5)
    wins: list[tuple[str, int]] = []
    barrier = threading.Barrier(8)

    def tick_all(me: int) -> None:
        rows = store.schedules()
        barrier.wait()
        for row in rows[me:] + rows[:me]:
            if tick(store, row, (5, job(f"{row.key} {me}"))) is not None:
                wins.append((row.key, me))

    threads = [threading.Thread(target=tick_all, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key for key, _ in wins) == sorted(f"s{number}" for number in range(20))
    assert sorted(states(store)) == sorted(f"{key} {me}" for key, me in wins)
    assert {key: store.ticks(key) for key, _ in wins} == {key: [Tick(5, id_of(f"{key} {me}"))] for key, me in wins}


def test_a_moment_has_one_job_though_the_schedule_was_set_back(store: Store, worker: Worker, clock: ManualClock):
    """Also where the first is finished, pruned or gone: ticks have rows of their own."""
    now = clock.now()
    tick(store, put(store, next_at=now), (now, job("a")), (now + 1, job("b")))
    worker.finish(*map(succeeded, worker.claim()))
    assert store.prune(Retention(0, 0, 0), 10) == 2
    store.put_schedule(replace(found(store), handled=now - 1, next_at=now), "ann", "set back")
    ticked = tick(store, found(store), (now, job("c")), (now + 1, job("d")), (now + 2, job("e")))
    assert ticked == [Tick(now + 2, id_of("e"))]
    assert list(states(store)) == ["e"]
    assert (found(store).handled, found(store).last_job) == (now + 2, id_of("e"))


def test_moments_of_different_schedules_are_different(store: Store):
    """Also where one key begins with the other."""
    for number, key in enumerate(("s", "s1", "S")):
        assert tick(store, put(store, key, next_at=5), (5, job(f"job {number}"))) == [Tick(5, id_of(f"job {number}"))]
    assert len(states(store)) == 3


def test_the_newest_ticks_are_shown(store: Store):
    """Of that schedule, as many as wanted."""
    tick(store, put(store, next_at=1), *((moment, job(f"job {moment}")) for moment in range(1, 6)))
    tick(store, put(store, "other", next_at=9), (9, job("other")))
    assert store.ticks("s", 2) == [Tick(5, id_of("job 5")), Tick(4, id_of("job 4"))]
    assert [it.moment for it in store.ticks("s")] == [5, 4, 3, 2, 1]
    assert store.ticks("unknown") == []


# Overlap.


def test_under_skip_there_is_no_job_while_the_last_is_unfinished(store: Store, worker: Worker, clock: ManualClock):
    """Whether it is ready, running or to be retried; the moment is dealt with all the same."""
    row = put(store, overlap="skip")
    assert tick(store, row, (1, job("a")), (2, job("b"))) == [Tick(1, id_of("a")), Tick(2, None)]
    claim = worker.claim_one()
    assert tick(store, found(store), (3, job("c"))) == [Tick(3, None)]
    worker.finish(retried(claim, 5 * SECOND))
    assert tick(store, found(store), (4, job("d"))) == [Tick(4, None)]
    assert (found(store).last_job, found(store).handled, list(states(store))) == (id_of("a"), 4, ["a"])
    assert [it.job for it in store.ticks("s")] == [None, None, None, id_of("a")]


@pytest.mark.parametrize("ending", [succeeded, failed, "cancelled", "discarded", "pruned"])
def test_under_skip_a_job_that_ended_holds_up_nobody(store: Store, worker: Worker, ending: Any):
    """However it ended, and also where it is no longer there."""
    tick(store, put(store, overlap="skip"), (1, job("a")))
    match ending:
        case "cancelled":
            move(store, Act.CANCEL, "a")
        case "discarded":
            move(store, Act.DISCARD, "a")
        case "pruned":
            worker.finish(succeeded(worker.claim_one()))
            store.prune(Retention(0, 0, 0), 10)
        case _:
            worker.finish(ending(worker.claim_one()))
    assert tick(store, found(store), (2, job("b"))) == [Tick(2, id_of("b"))]
    assert state(store, "b") is JobState.READY


@pytest.mark.parametrize("overlap", ["allow", "queue"])
def test_otherwise_each_moment_has_its_job(store: Store, overlap: str):
    """Whoever is to wait for the one before has terms that say so."""
    ticked = tick(store, put(store, overlap=overlap), *((moment, job(f"job {moment}")) for moment in range(3)))
    assert ticked == [Tick(moment, id_of(f"job {moment}")) for moment in range(3)]
    assert len(states(store)) == 3


# Jobs of ticks are jobs like others.


def test_a_unique_key_that_is_taken_stands_for_the_job(store: Store):
    """The tick names the job that stands for the moment, and so does the schedule."""
    unique = Terms(unique=Claimed("birds"))
    insert(store, job("holder", terms=unique))
    assert tick(store, put(store), (1, job("a", terms=unique))) == [Tick(1, id_of("holder"))]
    assert (found(store).last_job, list(states(store))) == (id_of("holder"), ["holder"])


def test_a_limited_job_waits_to_be_admitted(store: Store):
    """As if it had been enqueued: one permit, one ready."""
    limited = Terms((Hold("s/", 1),))
    tick(store, put(store), (1, job("a", terms=limited)), (2, job("b", terms=limited)))
    assert set(states(store).values()) == {JobState.WAITING}
    store.promote(10)
    assert states(store) == {"a": JobState.READY, "b": JobState.WAITING}


def test_an_id_that_is_known_is_left_as_it_is(store: Store):
    """As with any insert."""
    insert(store, job("a", queue="mine"))
    assert tick(store, put(store), (1, job("a", queue="other"))) == [Tick(1, id_of("a"))]
    assert look(store, "a").queue == "mine"


# Pruning.


def test_ticks_are_kept_for_their_own_time(store: Store, clock: ManualClock):
    """Whatever becomes of the jobs: none is pruned here, and the old ticks go all the same."""
    now = clock.now()
    moments = (now, now + 10 * SECOND)
    tick(store, put(store), *((moment, job(f"job {number}")) for number, moment in enumerate(moments)))
    clock.advance(TICKS_KEPT / SECOND)
    store.prune(Retention(None, None, None), 10)
    assert [it.moment for it in store.ticks("s")] == [moments[1], moments[0]]
    clock.advance(1)
    store.prune(Retention(None, None, None), 10)
    assert [it.moment for it in store.ticks("s")] == [moments[1]]
    assert len(states(store)) == 2
    assert keys(store.schedules()) == ["s"]


def test_jobs_that_are_pruned_leave_their_ticks(store: Store, worker: Worker):
    """Else a schedule that is set back would run them again."""
    tick(store, put(store, next_at=1), (1, job("a")))
    worker.finish(succeeded(worker.claim_one())._replace(keep=0))
    assert store.job(id_of("a")) is None
    assert store.ticks("s") == [Tick(1, id_of("a"))]
