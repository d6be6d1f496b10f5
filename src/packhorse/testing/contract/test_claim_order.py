"""What an exchange takes, in which order: entry of the queue list, priority, order key, id."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import Claim, JobState, Token
from packhorse.stores import Store
from packhorse.stores.contract import Act
from packhorse.testing.contract.helpers import (
    Worker,
    id_of,
    insert,
    job,
    look,
    move,
    name_of,
    names,
    now,
    released,
    retried,
    snoozed,
    state,
)


def test_a_claim_carries_what_a_worker_needs(store: Store, worker: Worker, clock: ManualClock):
    """A claim names its token, and brings the task, the payload and the counters along."""
    insert(store, job("a", queue="mail", priority=3, expires_at=77))
    created = clock.now()
    clock.advance(1)
    reply = worker.exchange(limit=5, nonce=1234)
    assert reply.claims == [
        Claim(
            Token(worker.id, 1234, id_of("a"), 1),
            task="birds.count",
            payload=b"payload of a",
            queue="mail",
            priority=3,
            attempts=0,
            losses=0,
            created_at=created,
            expires_at=77,
        )
    ]
    assert (reply.refused, reply.alive, reply.now) == ([], True, clock.now())


def test_a_claimed_job_runs_for_its_process(store: Store, worker: Worker, clock: ManualClock):
    """A claimed job is running and shows by whom and since when; it has not started yet."""
    insert(store, "a")
    clock.advance(1)
    worker.claim()
    found = look(store, "a")
    assert found.state is JobState.RUNNING
    assert name_of(found.process or "") == "worker"
    assert (found.claimed_at, found.started_at) == (now(clock), None)


def test_older_first(store: Store, worker: Worker, clock: ManualClock):
    """Among equals the job that became due first is claimed first, whatever its id."""
    for name in "cab":
        insert(store, name)
        clock.advance(0.001)
    assert names(worker.claim()) == ["c", "a", "b"]


def test_the_id_decides_last(store: Store, worker: Worker):
    """Jobs of the same moment come in the order of their ids."""
    insert(store, "b", "d", "c", "a")
    assert names(worker.claim()) == ["a", "b", "c", "d"]


def test_larger_priority_first(store: Store, worker: Worker, clock: ManualClock):
    """A larger priority goes before an older job, over the whole range from -100 to 100."""
    for name, priority in {"a": -100, "b": 0, "c": 100, "d": -1, "e": 1}.items():
        insert(store, job(name, priority=priority))
        clock.advance(1)
    assert names(worker.claim()) == ["c", "e", "b", "d", "a"]


def test_the_queue_list_decides_first(store: Store, worker: Worker):
    """All of the first queue goes before any of the second, whatever the priority."""
    insert(store, job("a", queue="mail", priority=-100), job("b", queue="report", priority=100), job("c", queue="mail"))
    assert names(worker.claim(queues="mail,report")) == ["c", "a", "b"]


def test_the_limit_runs_through_the_list(store: Store, worker: Worker):
    """What the first entry cannot fill the next one does, and nothing is claimed beyond the limit."""
    insert(store, *(job(name, queue="mail") for name in "ab"), *(job(name, queue="report") for name in "cde"))
    assert names(worker.claim(3, queues="mail,report")) == ["a", "b", "c"]
    assert state(store, "d") is JobState.READY
    assert names(worker.claim(1, queues="mail,report")) == ["d"]


def test_a_limit_of_nothing(store: Store, worker: Worker):
    """An exchange that asks for nothing gets nothing."""
    insert(store, "a")
    assert worker.claim(0) == []
    assert state(store, "a") is JobState.READY


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
def test_a_wildcard_merges_its_queues(store: Store, worker: Worker, clock: ManualClock, limit: int):
    """A star is one entry: the best of all its queues, whatever they are called."""
    for name, queue, priority in (
        ("a", "z", 0),
        ("b", "y", 0),
        ("c", "x", 1),
        ("d", "z", 1),
        ("e", "x", 0),
        ("f", "y", 2),
    ):
        insert(store, job(name, queue=queue, priority=priority))
        clock.advance(1)
    assert names(worker.claim(limit)) == ["f", "c", "d", "a", "b", "e"][:limit]


def test_a_prefix_serves_all_that_begin_with_it(store: Store, worker: Worker):
    """`mail*` is mail itself and all that goes on from there, and nothing else."""
    queues = {"a": "mail", "b": "mail.bulk", "c": "mai", "d": "mailbox", "e": "nail", "f": "mail:x", "g": "zmail"}
    insert(store, *(job(name, queue=queue) for name, queue in queues.items()))
    assert names(worker.claim(queues="mail*")) == ["a", "b", "d", "f"]


def test_a_name_is_exact(store: Store, worker: Worker):
    """A queue by its name is that queue alone."""
    insert(store, job("a", queue="mail.bulk"), job("b", queue="mail"), job("c", queue="Mail"), job("d", queue="mai"))
    assert names(worker.claim(queues="mail")) == ["b"]


@pytest.mark.parametrize(
    ("queues", "order"),
    [
        ("b,*", ["b1", "b2", "a1", "c1"]),
        ("*,b", ["b2", "a1", "b1", "c1"]),
        ("c*,b,*", ["c1", "b1", "b2", "a1"]),
        ("b*,b,a", ["b1", "b2", "a1"]),
        ("c,nobody,a", ["c1", "a1"]),
    ],
)
def test_a_queue_is_served_by_its_first_entry(store: Store, worker: Worker, queues: str, order: list[str]):
    """A queue that an earlier entry serves is not served again by a later one."""
    insert(store, job("a1", queue="a"), job("b1", queue="b"), job("c1", queue="c"))
    insert(store, job("b2", queue="b", priority=1 if queues == "*,b" else 0))
    assert names(worker.claim(queues=queues)) == order


def test_many_queues(store: Store, worker: Worker):
    """Hundreds of queues are merged as a few are."""
    wanted = [f"{number:04}" for number in range(1_200)]
    insert(store, *(job(name, queue=f"tenant-{name[::-1]}") for name in wanted))
    assert names(worker.claim(700, starting=650)) == wanted[:700]
    assert look(store, "0649").started_at is not None
    assert look(store, "0650").started_at is None
    assert names(worker.claim(1_000, queues="tenant-9*,tenant-*")) == [
        *(name for name in wanted[700:] if name.endswith("9")),
        *(name for name in wanted[700:] if not name.endswith("9")),
    ]


def test_many_queues_with_priorities(store: Store, worker: Worker):
    """The best of a thousand queues may stand in any of them."""
    insert(store, *(job(f"{number:04}", queue=f"q{number}", priority=number % 101) for number in range(1_010)))
    assert names(worker.claim(12)) == [f"{number:04}" for number in (*range(100, 1_010, 101), 99, 200)]


@pytest.mark.parametrize("limit", [1, 7, 100, 1_000])
def test_large_batches_keep_the_order(store: Store, worker: Worker, limit: int):
    """Claim after claim, whatever its size, goes on where the last one stopped."""
    wanted = [f"{number:04}" for number in range(1_000)]
    insert(store, *reversed(wanted))
    rounds = min(20, 1_000 // limit)
    claimed = [name for _ in range(rounds) for name in names(worker.claim(limit))]
    assert claimed == wanted[: rounds * limit]


def test_paused_queues_are_passed_over(store: Store, worker: Worker):
    """A paused queue serves nobody, neither by its name nor through a star."""
    insert(store, job("a", queue="mail"), job("b", queue="mail.bulk"), job("c", queue="report"))
    store.pause("mail", None, "ann", "broken")
    assert worker.claim(queues="mail") == []
    assert names(worker.claim(queues="mail,mail*")) == ["b"]
    assert names(worker.claim(queues="*")) == ["c"]
    store.resume("mail", "ann", "mended")
    assert names(worker.claim(queues="*")) == ["a"]


def test_a_released_job_keeps_its_place(store: Store, worker: Worker, clock: ManualClock):
    """A job put back stands where it stood, ahead of those that came after it."""
    insert(store, "b")
    clock.advance(1)
    insert(store, "a")
    [b] = worker.claim(1)
    clock.advance(1)
    insert(store, "0")
    assert worker.finish(released(b)) == []
    assert names(worker.claim()) == ["b", "a", "0"]


def test_a_retried_job_stands_at_its_due_moment(store: Store, worker: Worker, clock: ManualClock):
    """A job that failed and comes back at once goes behind those that were waiting."""
    insert(store, "a")
    clock.advance(1)
    insert(store, "b")
    [a] = worker.claim(1)
    clock.advance(1)
    worker.finish(retried(a))
    clock.advance(1)
    insert(store, "0")
    assert names(worker.claim()) == ["b", "a", "0"]


def test_a_snoozed_job_stands_at_its_due_moment(store: Store, worker: Worker, clock: ManualClock):
    """A job that came back later stands where its moment puts it, not where it was promoted."""
    insert(store, "a")
    worker.finish(snoozed(worker.claim_one(), 5 * SECOND))
    clock.advance(4)
    insert(store, "x")
    clock.advance(4)
    insert(store, "b")
    store.promote(10)
    assert names(worker.claim()) == ["x", "a", "b"]


def test_a_changed_priority_counts(store: Store, worker: Worker):
    """An operator's change of priority or queue changes the place."""
    insert(store, "a", "b", "c")
    move(store, Act.CHANGE, "c", priority=5)
    move(store, Act.CHANGE, "a", queue="later")
    assert names(worker.claim(queues="default,later")) == ["c", "b", "a"]


def test_what_ends_is_written_before_the_next_is_taken(store: Store, worker: Worker):
    """A job put back in an exchange may be claimed again by the same exchange, under a new token."""
    insert(store, "a")
    first = worker.claim_one()
    reply = worker.exchange(released(first), limit=1)
    assert names(reply.claims) == ["a"]
    assert reply.claims[0].token.epoch > first.token.epoch


def test_no_job_is_given_to_two(store: Store):
    """Processes that claim at the same time share the jobs among them."""
    wanted = [f"{number:03}" for number in range(150)]
    insert(store, *wanted)
    workers = [Worker(store, f"worker {number}") for number in range(4)]

    def claim_all(worker: Worker) -> list[str]:
        claimed: list[str] = []
        while len(claimed) <= len(wanted) and (batch := worker.claim(4)):
            claimed += names(batch)
        return claimed

    with ThreadPoolExecutor(len(workers)) as threads:
        claimed = list(threads.map(claim_all, workers))
    assert sorted(name for each in claimed for name in each) == wanted
    assert [worker.holds for worker in workers] == [sorted(each) for each in claimed]
