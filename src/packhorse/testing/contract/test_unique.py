"""Unique keys: of all jobs with one key, one stands for the others."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import Claim, JobState
from packhorse.limits import MERGES_CAP, Conflict, Hold, Pace, UniqueConflict
from packhorse.outcome import Outcome, expire
from packhorse.stores import Store
from packhorse.stores.contract import MERGED, Act, Entry, Paused, Retention, Selection
from packhorse.testing.contract.helpers import (
    Worker,
    cancelled,
    everything,
    failed,
    holders,
    id_of,
    insert,
    limited,
    look,
    lost,
    move,
    name_of,
    names,
    new_nonce,
    now,
    released,
    retried,
    rounds,
    snoozed,
    sole,
    state,
    states,
    succeeded,
)

KEEP, REPLACE, RESCHEDULE, MERGE = UniqueConflict
DISCARD, IN_LINE = Conflict.DISCARD, Conflict.REPLACE
SLOW = Pace("rate", 1, 60 * SECOND)
UNFINISHED = [state for state in JobState if not state.finished]
HOUR = 3_600 * SECOND
# How long a key is held.
UNTIL: dict[str, dict[str, Any]] = {"finish": {}, "start": {"until_start": True}, "a time": {"lasting": HOUR}}

every_conflict = pytest.mark.parametrize("conflict", UniqueConflict)
every_until = pytest.mark.parametrize("until", UNTIL.values(), ids=UNTIL.keys())


# Where the earlier job stands when the later one comes.


def scheduled(store: Store, worker: Worker, **fields: Any) -> None:
    insert(store, sole("a", delay=60 * SECOND, **fields))
    assert state(store, "a") is JobState.SCHEDULED


def waiting(store: Store, worker: Worker, **fields: Any) -> None:
    insert(store, limited("first", "room"))
    worker.claim()
    insert(store, sole("a", holds=[Hold("room", 1)], **fields))
    store.promote(10)
    assert state(store, "a") is JobState.WAITING


def held_back(store: Store, worker: Worker, **fields: Any) -> None:
    store.pause("birds.feed", None, "ann", "", kind=Paused.TASK)
    insert(store, sole("a", task="birds.feed", **fields))
    worker.claim()
    assert state(store, "a") is JobState.WAITING


def ready(store: Store, worker: Worker, **fields: Any) -> None:
    insert(store, sole("a", **fields))
    assert state(store, "a") is JobState.READY


def to_be_tried_again(store: Store, worker: Worker, **fields: Any) -> None:
    insert(store, sole("a", **fields))
    worker.finish(retried(worker.claim_one(), 60 * SECOND))
    assert state(store, "a") is JobState.SCHEDULED


BEFORE = [scheduled, waiting, held_back, ready]
before = pytest.mark.parametrize("stands", BEFORE)


def later(conflict: UniqueConflict = KEEP, **fields: Any) -> Any:
    return sole("b", conflict=conflict, **fields)


def stands_for(store: Store, new: Any) -> str:
    """Insert it; the name of the job that stands for it."""
    [id] = store.insert([new])
    return name_of(id)


# Conflicts, before the earlier one runs.


@before
@every_until
def test_the_earlier_job_is_kept(store: Store, worker: Worker, stands: Callable, until: dict[str, Any]):
    """The later one is never there, and the earlier one does not notice."""
    stands(store, worker, **until)
    seen = everything(store)
    assert stands_for(store, later(KEEP, **until, delay=5 * SECOND)) == "a"
    assert everything(store) == seen
    assert store.job(id_of("b")) is None


@before
@every_until
def test_the_earlier_job_is_replaced(store: Store, worker: Worker, stands: Callable, until: dict[str, Any]):
    """It ends cancelled, and the later one has the key."""
    stands(store, worker, **until)
    assert stands_for(store, later(REPLACE, **until)) == "b"
    assert (state(store, "a"), look(store, "a").reason) == (JobState.CANCELLED, "replaced")
    assert stands_for(store, sole("c", conflict=KEEP, **until)) == "b"
    assert "b" in names(worker.claim())


@before
@every_until
def test_the_earlier_job_is_rescheduled(
    store: Store, worker: Worker, clock: ManualClock, stands: Callable, until: dict[str, Any]
):
    """It gets the later one's run time and keeps all else."""
    stands(store, worker, **until)
    payload = look(store, "a").payload
    clock.advance(1)
    assert stands_for(store, later(RESCHEDULE, **until, delay=5 * SECOND)) == "a"
    assert (state(store, "a"), look(store, "a").run_at) == (JobState.SCHEDULED, now(clock, 5))
    assert look(store, "a").payload == payload
    clock.advance(4.999_999)
    store.promote(10)
    assert state(store, "a") is JobState.SCHEDULED
    clock.advance(0.000_001)
    store.promote(10)
    assert state(store, "a") in (JobState.READY, JobState.WAITING)


@before
@every_until
def test_the_earlier_job_is_merged_into(store: Store, worker: Worker, stands: Callable, until: dict[str, Any]):
    """It keeps its payload, its time and its place, and has the later one's payload as an entry."""
    stands(store, worker, **until)
    seen = look(store, "a")
    assert stands_for(store, later(MERGE, **until, payload=b"\0more", delay=5 * SECOND)) == "a"
    assert look(store, "a") == seen
    assert store.entries(id_of("a")) == [Entry(MERGED, id_of("b").hex(), b"\0more")]
    assert store.job(id_of("b")) is None


def test_a_time_that_has_come_makes_it_ready(store: Store, worker: Worker, clock: ManualClock):
    """Rescheduled to now, a scheduled job is due, and its order is that of its new moment."""
    insert(store, sole("a", delay=60 * SECOND))
    clock.advance(1)
    insert(store, "early")
    clock.advance(1)
    assert stands_for(store, later(RESCHEDULE)) == "a"
    assert (state(store, "a"), look(store, "a").run_at) == (JobState.READY, None)
    clock.advance(1)
    insert(store, "late")
    assert names(worker.claim()) == ["early", "a", "late"]


@every_conflict
def test_the_laters_wish_counts(store: Store, worker: Worker, conflict: UniqueConflict):
    """Whatever the earlier one said."""
    insert(store, sole("a", conflict=conflict))
    assert stands_for(store, later(KEEP)) == "a"
    assert state(store, "a") is JobState.READY
    assert stands_for(store, sole("c", conflict=REPLACE)) == "c"
    assert state(store, "a") is JobState.CANCELLED


def test_keys_are_apart(store: Store):
    """Another key, another job."""
    assert names(insert(store, sole("a", "x/1"), sole("b", "x/2"), sole("c", "y/1"))) == ["a", "b", "c"]


def test_jobs_without_a_key_are_left_alone(store: Store):
    """Whatever keys others have."""
    insert(store, "a")
    assert stands_for(store, later(REPLACE)) == "b"
    assert state(store, "a") is JobState.READY


# While it runs, and between attempts.


@every_conflict
@pytest.mark.parametrize("until", [UNTIL["finish"], UNTIL["a time"]], ids=["finish", "a time"])
def test_a_running_job_is_always_kept(store: Store, worker: Worker, conflict: UniqueConflict, until: dict[str, Any]):
    """Nothing takes its place, moves it or is merged into it: it has begun with what it has."""
    insert(store, sole("a", **until))
    claim = worker.claim_one()
    seen = everything(store)
    assert stands_for(store, later(conflict, **until, delay=SECOND)) == "a"
    assert everything(store) == seen
    assert worker.finish(succeeded(claim)) == []


@every_conflict
def test_a_key_held_until_the_start_is_free_at_the_claim(store: Store, worker: Worker, conflict: UniqueConflict):
    """The next one is a job of its own, and holds the key itself."""
    insert(store, sole("a", until_start=True))
    claim = worker.claim_one()
    assert stands_for(store, later(conflict, until_start=True)) == "b"
    assert state(store, "a") is JobState.RUNNING
    assert stands_for(store, sole("c", conflict=KEEP, until_start=True)) == "b"
    worker.finish(succeeded(claim))
    assert stands_for(store, sole("d", conflict=KEEP, until_start=True)) == "b"


@pytest.mark.parametrize("ending", [released, retried, lost, lambda claim: snoozed(claim, SECOND)])
def test_a_job_that_comes_back_has_no_key_that_was_held_until_its_start(
    store: Store, worker: Worker, ending: Callable[[Claim], Outcome]
):
    """It stands beside the next one."""
    insert(store, sole("a", until_start=True))
    worker.finish(ending(worker.claim_one()))
    assert stands_for(store, later(REPLACE, until_start=True)) == "b"
    assert not state(store, "a").finished


@every_conflict
def test_between_attempts_a_key_is_held(store: Store, worker: Worker, conflict: UniqueConflict):
    """A retry is the same unfinished job, and does not run now."""
    to_be_tried_again(store, worker)
    expected = "b" if conflict is REPLACE else "a"
    assert stands_for(store, later(conflict)) == expected
    assert (
        state(store, "a")
        is {
            KEEP: JobState.SCHEDULED,
            REPLACE: JobState.CANCELLED,
            RESCHEDULE: JobState.READY,
            MERGE: JobState.SCHEDULED,
        }[conflict]
    )


def test_what_is_put_back_holds_its_key(store: Store, worker: Worker):
    """As if it had never been claimed."""
    insert(store, sole("a"))
    worker.finish(released(worker.claim_one()))
    assert stands_for(store, later(KEEP)) == "a"
    store.leave(worker.id)
    assert stands_for(store, later(KEEP)) == "a"


# When it has finished.

ENDINGS: dict[str, Callable[[Claim], Outcome]] = {
    "succeeded": succeeded,
    "failed": failed,
    "cancelled": cancelled,
    "expired": lambda claim: expire(claim.token),
    "lost for good": lambda claim: lost(claim, JobState.FAILED),
    "succeeded and not kept": lambda claim: succeeded(claim)._replace(keep=0),
}
every_end = pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())


@every_end
@every_conflict
@pytest.mark.parametrize("until", [UNTIL["finish"], UNTIL["start"]], ids=["finish", "start"])
def test_a_key_is_free_when_its_job_has_finished(
    store: Store, worker: Worker, ending: Callable, conflict: UniqueConflict, until: dict[str, Any]
):
    """However it ended; and what has ended is not touched by the next."""
    insert(store, sole("a", **until))
    worker.finish(ending(worker.claim_one()))
    seen = store.job(id_of("a"))
    assert stands_for(store, later(conflict, **until)) == "b"
    assert store.job(id_of("a")) == seen
    assert state(store, "b") is JobState.READY


@every_end
@every_conflict
def test_a_key_held_for_a_time_is_held_so_long(
    store: Store, worker: Worker, clock: ManualClock, ending: Callable, conflict: UniqueConflict
):
    """However its job ends, as long as that is kept; counted from its enqueueing."""
    insert(store, sole("a", lasting=10 * SECOND))
    clock.advance(4)
    worker.finish(ending(worker.claim_one())._replace(keep=None))
    store.prune(Retention(None, None, None), 10)
    clock.advance(5.999_999)
    assert stands_for(store, later(conflict, lasting=10 * SECOND)) == "a"
    assert store.job(id_of("b")) is None
    clock.advance(0.000_001)
    assert stands_for(store, later(conflict, lasting=10 * SECOND)) == "b"
    assert stands_for(store, sole("c", lasting=10 * SECOND)) == "b"


@every_conflict
def test_a_key_held_for_a_time_lapses_though_its_job_has_not_finished(
    store: Store, worker: Worker, clock: ManualClock, conflict: UniqueConflict
):
    """Then there are two, and the end of the earlier takes nothing from the later."""
    insert(store, sole("a", lasting=SECOND))
    clock.advance(1)
    assert stands_for(store, later(conflict)) == "b"
    assert states(store) == {"a": JobState.READY, "b": JobState.READY}
    worker.finish(succeeded(worker.claim_one()))
    assert stands_for(store, sole("c")) == "b"


@pytest.mark.parametrize("act", [Act.CANCEL, Act.DISCARD])
@before
def test_an_operator_frees_the_key(store: Store, worker: Worker, act: Act, stands: Callable):
    """By ending the job, wherever it stands."""
    stands(store, worker)
    assert move(store, act, "a").jobs == 1
    assert stands_for(store, later(KEEP)) == "b"


def test_a_job_that_was_asked_to_end_frees_its_key_when_it_does(store: Store, worker: Worker):
    """Not when it is asked."""
    insert(store, sole("a"))
    claim = worker.claim_one()
    move(store, Act.CANCEL, "a")
    assert stands_for(store, later(KEEP)) == "a"
    worker.finish(released(claim))
    assert stands_for(store, later(KEEP)) == "b"


def test_an_owner_that_is_lost_holds_its_key_until_the_verdict(store: Store, worker: Worker, clock: ManualClock):
    """Run again, it holds it further; lost for good, the next enqueue is allowed."""
    insert(store, sole("a"))
    worker.claim_one()
    clock.advance(31)
    heir = Worker(store, "heir")
    assert stands_for(store, later(KEEP)) == "a"
    [orphan] = store.adopt(heir.id, new_nonce(), 5)
    assert stands_for(store, later(KEEP)) == "a"
    heir.finish(lost(orphan.claim))
    assert stands_for(store, later(KEEP)) == "a"
    heir.finish(lost(heir.claim_one(), JobState.FAILED))
    assert stands_for(store, later(KEEP)) == "b"


def test_a_key_is_freed_only_by_who_has_it(store: Store, worker: Worker):
    """A job that came back after its key went to another ends without taking it away."""
    insert(store, sole("a"))
    worker.finish(failed(worker.claim_one()))
    assert stands_for(store, later(KEEP)) == "b"
    move(store, Act.RETRY, "a")
    for claim in worker.claim():
        if names([claim]) == ["a"]:
            worker.finish(succeeded(claim))
    assert stands_for(store, sole("c")) == "b"


def test_pruning_frees_no_key_of_another(store: Store, worker: Worker):
    """The finished job has none any more."""
    insert(store, sole("a"))
    worker.finish(succeeded(worker.claim_one()))
    insert(store, later(KEEP))
    assert store.prune(Retention(0, 0, 0), 10) == 1
    assert stands_for(store, sole("c")) == "b"


def test_a_late_outcome_frees_no_key(store: Store, worker: Worker, other: Worker):
    """Refused is refused."""
    insert(store, sole("a"))
    late = worker.claim_one()
    store.adopt(other.id, new_nonce(), 5, dead=[worker.id])
    assert worker.finish(succeeded(late)) == [late.token]
    assert stands_for(store, later(KEEP)) == "a"


# Merging.


def test_merged_payloads_come_in_the_order_of_their_ids(store: Store, worker: Worker):
    """Each once, however often it is inserted; the job runs with all of them."""
    insert(store, sole("a", conflict=MERGE, until_start=True))
    for name in ("d", "b", "c", "d"):
        merged = sole(name, conflict=MERGE, until_start=True, payload=name.encode())
        assert stands_for(store, merged) == "a"
    assert store.entries(id_of("a")) == [Entry(MERGED, id_of(name).hex(), name.encode()) for name in "bcd"]
    claim = worker.claim_one()
    assert [entry.data for entry in store.entries(claim.token.id)] == [b"b", b"c", b"d"]
    assert stands_for(store, sole("e", conflict=MERGE, until_start=True)) == "e"
    assert store.entries(id_of("e")) == []


def test_merged_payloads_stay_through_retries(store: Store, worker: Worker):
    """And what the task records does not get in their way."""
    insert(store, sole("a", conflict=MERGE, until_start=True), sole("b", conflict=MERGE, until_start=True))
    claim = worker.claim_one()
    store.record(claim.token, [Entry("step", id_of("b").hex(), b"1")])
    worker.finish(retried(claim))
    assert [entry.kind for entry in store.entries(id_of("a"))] == [MERGED, "step"]


def test_the_first_payload_of_an_id_is_merged(store: Store):
    """An id stands for one job; what comes again under it changes nothing."""
    insert(store, sole("a", conflict=MERGE), sole("b", conflict=MERGE, payload=b"first"))
    assert stands_for(store, sole("b", conflict=MERGE, payload=b"second")) == "a"
    assert [entry.data for entry in store.entries(id_of("a"))] == [b"first"]


def test_so_many_are_merged_and_no_more(store: Store):
    """Then the next one is a job of its own, with the key."""
    merged = [sole(f"m{number:04}", conflict=MERGE, payload=b"") for number in range(MERGES_CAP)]
    assert set(names(insert(store, sole("a", conflict=MERGE), *merged))) == {"a"}
    assert len(store.entries(id_of("a"))) == MERGES_CAP
    assert stands_for(store, merged[-1]) == "a", "an insert that is repeated makes no second job of it"
    assert stands_for(store, sole("n", conflict=MERGE)) == "n"
    assert stands_for(store, sole("o", conflict=MERGE)) == "n"
    assert len(store.entries(id_of("a"))) == MERGES_CAP
    assert len(store.entries(id_of("n"))) == 1


def test_merged_payloads_go_with_their_job(store: Store, worker: Worker):
    """Discarded or pruned."""
    insert(store, sole("a", conflict=MERGE), sole("b", conflict=MERGE))
    move(store, Act.DISCARD, "a")
    assert store.entries(id_of("a")) == []


# In bulk.


@every_until
def test_a_batch_has_each_key_once(store: Store, until: dict[str, Any]):
    """The first of a key stands for the others of the batch, whatever lies between."""
    batch = [sole(f"{number:02}", f"k{number % 3}", **until) for number in range(9)]
    answers = insert(store, *batch[:5], "free", *batch[5:])
    assert names(answers) == ["00", "01", "02", "00", "01", "free", "02", "00", "01", "02"]
    assert list(states(store)) == ["00", "01", "02", "free"]


def test_the_last_of_a_batch_replaces_the_others(store: Store):
    """One after the other, as if each had come by itself."""
    assert names(insert(store, *(sole(name, conflict=REPLACE) for name in "abc"))) == ["a", "b", "c"]
    assert list(states(store).values()) == [JobState.CANCELLED, JobState.CANCELLED, JobState.READY]


def test_a_batch_is_merged_into_its_first(store: Store):
    """Also where the first came with the same batch."""
    answers = insert(store, "x", *(sole(name, conflict=MERGE, payload=name.encode()) for name in "abc"), "y")
    assert names(answers) == ["x", "a", "a", "a", "y"]
    assert [entry.data for entry in store.entries(id_of("a"))] == [b"b", b"c"]


def test_a_batch_reschedules_its_first(store: Store, clock: ManualClock):
    """To the last one's time."""
    batch = [sole(name, conflict=RESCHEDULE, delay=delay * SECOND) for name, delay in (("a", 1), ("b", 9), ("c", 5))]
    assert names(insert(store, *batch)) == ["a", "a", "a"]
    assert look(store, "a").run_at == now(clock, 5)


@every_conflict
def test_inserting_again_what_is_there(store: Store, conflict: UniqueConflict):
    """A known id is left as it is, also where it had to give way or has given way."""
    insert(store, sole("a", conflict=conflict))
    seen = everything(store)
    assert names(insert(store, sole("a", conflict=conflict), sole("a", conflict=conflict))) == ["a", "a"]
    assert everything(store) == seen


def test_inserting_again_what_was_replaced(store: Store):
    """A reply that was lost and an insert that is repeated do not turn things round."""
    insert(store, sole("a", conflict=REPLACE), sole("b", conflict=REPLACE))
    seen = everything(store)
    assert names(insert(store, sole("a", conflict=REPLACE), sole("b", conflict=REPLACE))) == ["a", "b"]
    assert everything(store) == seen


# Many at once.


def test_of_many_inserts_at_once_exactly_one_stands(store: Store):
    """Threads that insert the same key: all are told of one job, and there is no other."""
    with ThreadPoolExecutor(8) as threads:
        for round in range(10):
            batch = [[sole(f"{round}-{number}", f"k{round}")] for number in range(8)]
            answers = set(map(bytes.hex, (id for [id] in threads.map(store.insert, batch))))
            assert len(answers) == 1
    assert len(states(store)) == 10


def test_of_many_that_replace_at_once_exactly_one_is_left(store: Store):
    """The others are cancelled, each once."""
    with ThreadPoolExecutor(8) as threads:
        batch = [[sole(f"{number:02}", conflict=REPLACE)] for number in range(32)]
        list(threads.map(store.insert, batch))
    found = list(states(store).values())
    assert (found.count(JobState.READY), found.count(JobState.CANCELLED)) == (1, 31)


def test_a_key_is_never_held_by_two_while_many_work_at_once(store: Store):
    """Threads that insert, claim and finish: of one key, two never run at the same time."""
    workers = [Worker(store, f"worker {number}") for number in range(3)]
    performed: list[str] = []
    clashes: list[list[str]] = []

    def insert_some(seed: int) -> None:
        for number in range(60):
            insert(store, sole(f"{seed}-{number}", f"k{number % 3}"))

    def work(worker: Worker) -> None:
        for number in rounds(60, inserting):
            claims = worker.claim(4)
            unfinished = store.jobs(Selection(states=UNFINISHED))
            performed.extend(names(claims))
            found = [f"k{int(name.partition('-')[2]) % 3}" for name in names(unfinished)]
            clashes.extend([found] * (len(set(found)) < len(found)))
            worker.finish(*(failed(claim) if number % 2 else succeeded(claim) for claim in claims))

    with ThreadPoolExecutor(5) as threads:
        inserting = [threads.submit(insert_some, seed) for seed in (0, 1)]
        running = [threads.submit(work, worker) for worker in workers]
        for future in inserting + running:
            future.result()
    assert clashes == []
    assert performed


# With limits and rates.


def test_a_job_that_gives_way_gives_its_permit_on(store: Store, worker: Worker):
    """Replaced while it was ready, it makes room for the next of its limit."""
    insert(store, sole("a", holds=[Hold("room", 1)]), limited("next", "room"))
    store.promote(10)
    assert (state(store, "a"), holders(store, "room")) == (JobState.READY, 1)
    insert(store, sole("b", conflict=REPLACE, holds=[Hold("room", 1)], priority=-1))
    assert names(worker.claim()) == ["next"]


def test_a_job_that_is_rescheduled_gives_its_permit_on(store: Store, worker: Worker, clock: ManualClock):
    """And needs one again when it is due."""
    insert(store, sole("a", holds=[Hold("room", 1)]), limited("next", "room"))
    store.promote(10)
    insert(store, sole("b", conflict=RESCHEDULE, delay=SECOND))
    [claim] = worker.claim()
    assert names([claim]) == ["next"]
    clock.advance(1)
    store.promote(10)
    assert state(store, "a") is JobState.WAITING
    assert names(worker.exchange(succeeded(claim), limit=5).claims) == ["a"]


def test_a_unique_job_that_is_discarded_by_its_limit_frees_its_key(store: Store, worker: Worker):
    """It has ended."""
    insert(store, limited("first", "room"))
    worker.claim()
    insert(store, sole("a", holds=[Hold("room", 1, DISCARD)]))
    store.promote(10)
    assert state(store, "a") is JobState.CANCELLED
    assert stands_for(store, later(KEEP)) == "b"


def test_a_unique_job_that_is_replaced_in_its_line_frees_its_key(store: Store, worker: Worker, clock: ManualClock):
    """So that a limit's conflict and a key's do not hold each other up."""
    insert(store, limited("first", "room"))
    worker.claim()
    insert(store, sole("a", holds=[Hold("room", 1, IN_LINE)]))
    store.promote(10)
    clock.advance(1)
    insert(store, limited("new", "room", conflict=IN_LINE))
    store.promote(10)
    assert state(store, "a") is JobState.CANCELLED
    assert stands_for(store, later(KEEP)) == "b"


def test_a_job_of_a_share_or_a_rate_holds_its_key_while_it_waits(store: Store):
    """Whatever it waits for."""
    slow = sole("x", "rated")
    insert(store, slow._replace(terms=slow.terms._replace(paces=(SLOW,))), sole("y", "shared", share="ann"))
    assert stands_for(store, sole("b", "rated")) == "x"
    assert stands_for(store, sole("c", "shared")) == "y"
