"""An unfinished job stands in exactly one place, a finished one is one of three, and every view agrees."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from packhorse.clock import SECOND, ManualClock
from packhorse.job import Claim, JobState
from packhorse.outcome import Outcome
from packhorse.stores import Store
from packhorse.stores.contract import Act, Retention, Selection
from packhorse.testing.contract.behind import leftovers
from packhorse.testing.contract.helpers import (
    Worker,
    cancelled,
    failed,
    insert,
    job,
    lost,
    move,
    names,
    new_nonce,
    released,
    retried,
    rounds,
    snoozed,
    succeeded,
)


def standing(store: Store, *processes: Worker) -> dict[str, JobState]:
    """Where each job stands, after checking that all views say the same."""
    places = {state: names(store.jobs(Selection(states=[state]), limit=10_000)) for state in JobState}
    everyone = names(store.jobs(Selection(), limit=10_000))
    assert sorted(name for found in places.values() for name in found) == everyone
    assert len(set(everyone)) == len(everyone)
    held = [name for process in processes for name in process.holds]
    assert sorted(held) == places[JobState.RUNNING]
    counts: Counter[JobState] = Counter()
    for queue in store.queues():
        counts.update(queue.counts)
    assert counts == Counter({state: len(found) for state, found in places.items() if found})
    assert sum(view.running for view in store.processes()) == len(held)
    assert leftovers(store) == []
    return {name: state for state, found in places.items() for name in found}


def test_one_place_through_a_whole_life(store: Store, worker: Worker, other: Worker, clock: ManualClock):
    """From insert to prune, every step takes a job from one place to one other."""

    def check() -> dict[str, JobState]:
        return standing(store, worker, other)

    insert(store, *"abcdefg", job("z", delay=60 * SECOND))
    assert Counter(check().values()) == {JobState.READY: 7, JobState.SCHEDULED: 1}
    a, b, c, d, e, f = worker.claim(6)
    assert Counter(check().values())[JobState.RUNNING] == 6
    worker.finish(succeeded(a), failed(b), cancelled(c), retried(d, SECOND), snoozed(e, 2 * SECOND), released(f))
    assert "".join(check().values()).count("running") == 0
    clock.advance(1)
    store.promote(10)
    assert check()["d"] is JobState.READY
    other.claim(2)
    check()
    [orphan, *_] = store.adopt(worker.id, new_nonce(), 1, dead=[other.id])
    check()
    worker.finish(lost(orphan.claim))
    check()
    store.leave(other.id)
    check()
    for act in (Act.RUN_NOW, Act.CHANGE, Act.CANCEL, Act.RETRY):
        move(store, act, *"abcdefgz", priority=1)
        check()
    worker.claim(3)
    check()
    store.prune(Retention(0, 0, 0), 2)
    check()
    move(store, Act.DISCARD, *"abcdefgz")
    assert set(check().values()) == {JobState.RUNNING}


def test_one_place_while_many_work_at_once(store: Store):
    """Threads that insert, claim, finish, promote and move at the same time never put a job in two places."""
    workers = [Worker(store, f"worker {number}") for number in range(3)]
    endings: list[Callable[[Claim], Outcome]] = [succeeded, retried, released, lambda claim: snoozed(claim, 0), failed]

    def insert_some(seed: int) -> None:
        for number in range(20):
            insert(store, *(f"{seed}-{number}-{n}" for n in range(3)))

    def work(worker: Worker) -> None:
        outcomes: list[Outcome] = []
        for number in rounds(25, inserting):
            reply = worker.exchange(*outcomes, limit=5)
            assert reply.refused == []
            outcomes = [endings[(number + n) % 5](claim) for n, claim in enumerate(reply.claims)]
        worker.finish(*outcomes)

    def operate(_: Worker) -> None:
        for number in range(15):
            move(
                store, Act.RETRY if number % 2 else Act.CHANGE, *(f"0-{number}-{n}" for n in range(3)), priority=number
            )
            store.promote(10)

    with ThreadPoolExecutor(6) as threads:
        inserting = [threads.submit(insert_some, seed) for seed in (0, 1)]
        running = [threads.submit(work, worker) for worker in workers]
        running += [threads.submit(operate, workers[0])]
        for future in inserting + running:
            future.result()
    assert len(standing(store, *workers)) == 120
