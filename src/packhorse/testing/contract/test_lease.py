"""A lease is "its process beats", judged by ticks that no clock step touches."""

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.testing.contract.helpers import Worker, id_of, insert, look, names, new_nonce, released, state, succeeded


def test_a_lease_lasts_as_long_as_enrolled(store: Store, clock: ManualClock):
    """Each process has a lease of its own length."""
    short, long = Worker(store, "short", 10 * SECOND), Worker(store, "long", 20 * SECOND)
    assert (short.lease_left, long.lease_left) == (10, 20)
    clock.advance(10)
    assert store.beat([short.id, long.id]) == [short.id]


def test_a_lease_ends_on_its_last_tick(store: Store, worker: Worker, clock: ManualClock):
    """One microsecond before its end a lease can be renewed, at its end it cannot."""
    clock.advance(29.999_999)
    assert worker.alive
    clock.advance(30)
    assert not worker.alive


def test_beats_keep_a_lease_alive(store: Store, worker: Worker, clock: ManualClock):
    """A process that beats lives on for as long as it beats."""
    for _ in range(10):
        clock.advance(29)
        assert worker.beat() == []
        assert worker.lease_left == 30


def test_a_dead_process_stays_dead(store: Store, worker: Worker, clock: ManualClock):
    """A lease that has run out is not renewed by beating late."""
    clock.advance(31)
    assert worker.beat() == [worker.id]
    assert worker.beat() == [worker.id]
    worker.enroll()
    assert worker.alive


def test_one_beat_serves_many(store: Store, worker: Worker, other: Worker, clock: ManualClock):
    """A supervisor beats for its children in one stroke, and hears who had no lease."""
    clock.advance(20)
    stranger = id_of("stranger")
    assert store.beat([worker.id, stranger, other.id]) == [stranger]
    assert (worker.lease_left, other.lease_left) == (30, 30)


def test_a_beat_for_nobody(store: Store):
    """Beating for no one is allowed and does nothing."""
    assert store.beat([]) == []


def test_an_exchange_that_claims_renews(store: Store, worker: Worker, clock: ManualClock):
    """Whoever takes something lives."""
    insert(store, "a")
    clock.advance(20)
    worker.claim_one()
    assert worker.lease_left == 30


def test_an_exchange_that_writes_renews(store: Store, worker: Worker, clock: ManualClock):
    """Whoever writes something lives."""
    insert(store, "a")
    claim = worker.claim_one()
    clock.advance(20)
    worker.finish(succeeded(claim))
    assert worker.lease_left == 30


def test_an_exchange_with_nothing_to_do_renews_nothing(store: Store, worker: Worker, clock: ManualClock):
    """Looking for work is no sign of life, so that an idle worker costs no write."""
    insert(store, "a")
    store.pause("default", None, "ann", "")
    clock.advance(20)
    assert worker.exchange(limit=5).alive
    assert worker.exchange(limit=0).alive
    assert worker.lease_left == 10


@pytest.mark.parametrize("jobs", [[], ["a"]], ids=["nothing ready", "something ready"])
@pytest.mark.parametrize("limit", [0, 5])
def test_an_expired_lease_claims_nothing(store: Store, worker: Worker, clock: ManualClock, jobs: list[str], limit: int):
    """A process without a lease is told so, and gets no job."""
    insert(store, *jobs)
    clock.advance(30)
    reply = worker.exchange(limit=limit)
    assert (reply.alive, reply.claims) == (False, [])
    assert [state(store, name) for name in jobs] == [JobState.READY for _ in jobs]
    assert not worker.alive


def test_a_process_that_never_enrolled_claims_nothing(store: Store, worker: Worker):
    """The store gives jobs to members only."""
    insert(store, "a")
    store.leave(worker.id)
    reply = worker.exchange(limit=5)
    assert (reply.alive, reply.claims) == (False, [])


def test_a_late_outcome_is_still_accepted(store: Store, worker: Worker, clock: ManualClock):
    """As long as nobody took the job over, what a late worker made of it counts, and nothing new is given to it."""
    insert(store, "a", "b")
    claim = worker.claim_one()
    clock.advance(100)
    reply = worker.exchange(succeeded(claim, b"42"), limit=5)
    assert (reply.alive, reply.refused, reply.claims) == (False, [], [])
    assert look(store, "a").result == b"42"
    assert state(store, "b") is JobState.READY


def test_a_running_job_waits_for_its_worker(store: Store, worker: Worker, other: Worker, clock: ManualClock):
    """However long a job takes, nobody else gets it while its process beats."""
    insert(store, "a")
    claim = worker.claim_one()
    for _ in range(50):
        clock.advance(29)
        store.beat([worker.id, other.id])
        assert store.adopt(other.id, new_nonce(), 10) == []
        assert other.claim() == []
    assert worker.finish(released(claim)) == []


@pytest.mark.parametrize("seconds", [3_600, -3_600, 86_400 * 365])
def test_setting_the_wall_clock_ends_no_lease(
    store: Store, worker: Worker, other: Worker, clock: ManualClock, seconds: int
):
    """A step of the wall clock, in either direction, changes no lease."""
    insert(store, "a", "b")
    worker.claim_one()
    clock.advance(5)
    clock.step(seconds)
    assert (worker.lease_left, other.lease_left) == (25, 30 - 5)
    assert store.adopt(other.id, new_nonce(), 10) == []
    assert worker.alive
    assert names(worker.claim()) == ["b"]


def test_setting_the_wall_clock_prolongs_no_lease(store: Store, worker: Worker, clock: ManualClock):
    """Turning the clock back gives a dead process nothing."""
    clock.advance(31)
    clock.step(-3_600)
    assert not worker.alive


def test_a_reboot_ends_all_leases(store: Store, worker: Worker, clock: ManualClock):
    """After a restart of the machine its processes are gone, whatever their leases said."""
    insert(store, "a")
    claim = worker.claim_one()
    clock.reboot()
    assert not worker.alive
    assert worker.lease_left == 0
    assert worker.exchange(limit=5).alive is False
    heir = Worker(store, "heir")
    [orphan] = store.adopt(heir.id, new_nonce(), 10)
    assert names([orphan.claim]) == ["a"]
    assert worker.finish(succeeded(claim)) == [claim.token]


def test_leases_of_the_new_boot_count_anew(store: Store, worker: Worker, clock: ManualClock):
    """Ticks of two boots are never compared: a process enrolled after a reboot has its whole lease."""
    clock.advance(1_000)
    worker.enroll()
    clock.reboot()
    heir = Worker(store, "heir")
    clock.advance(29)
    assert heir.alive
    assert not worker.alive
    clock.advance(31)
    assert not heir.alive
