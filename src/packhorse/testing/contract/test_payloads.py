"""The payloads of one exchange, or of one adoption, take a bounded number of bytes."""

from collections.abc import Sequence

import pytest

from packhorse.clock import ManualClock
from packhorse.ids import new_id
from packhorse.job import Claim, JobState, NewJob
from packhorse.queues import local_queue
from packhorse.stores import Store
from packhorse.stores.contract import CLAIM_BYTES, EXCHANGE_JOBS, LARGE, Act, Change, Paused, Selection
from packhorse.testing.contract.behind import epochs
from packhorse.testing.contract.helpers import (
    Worker,
    holders,
    id_of,
    insert,
    job,
    limited,
    look,
    names,
    released,
    sole,
    state,
    states,
    succeeded,
)

MIB = 1 << 20
FLOW = id_of("flow")
MOST = CLAIM_BYTES // MIB


def sized(name: str, size: int = MIB, **fields: object) -> NewJob:
    return job(name, payload=name.encode()[:1] * size, **fields)


def size_of(claims: Sequence[Claim]) -> int:
    return sum(len(claim.payload) for claim in claims)


def test_an_exchange_carries_so_many_bytes(store: Store, worker: Worker):
    """The first in the order of the contract, up to the byte; the others stay ready, and the reply says so."""
    insert(store, *(sized(name) for name in "abcdefghi"))
    reply = worker.exchange(limit=9, starting=9)
    assert (names(reply.claims), size_of(reply.claims), reply.cut) == (list("abcdefghi"[:MOST]), CLAIM_BYTES, True)
    assert [claim.payload[:1] for claim in reply.claims] == [name.encode() for name in "abcdefghi"[:MOST]]
    assert list(states(store).values()).count(JobState.READY) == 9 - MOST
    assert worker.holds == names(reply.claims)
    again = worker.exchange(*map(succeeded, reply.claims), limit=9)
    assert (names(again.claims), again.refused, again.cut) == (list("abcdefghi"[MOST : 2 * MOST]), [], True)
    last = worker.exchange(*map(succeeded, again.claims), limit=9)
    assert (names(last.claims), last.cut) == (["i"], False)


def test_what_fits_is_not_cut(store: Store, worker: Worker):
    """What is carried and what is asked for are two bounds."""
    insert(store, *(sized(name) for name in "abcdef"[: MOST + 1]))
    assert worker.exchange(limit=MOST).cut is False
    assert worker.exchange(limit=1).cut is False
    assert worker.exchange(limit=5).cut is False


def test_what_stays_is_as_it_was(store: Store, worker: Worker, clock: ManualClock):
    """In its place, unspent, with the same epoch, and nothing tells that it was looked at."""
    insert(store, *(sized(name, MOST * MIB) for name in "abc"))
    clock.advance(1)
    jobs, before = [look(store, name) for name in "bc"], dict(epochs(store) or {})
    [claim] = worker.claim(starting=3)
    after = dict(epochs(store) or {})
    assert [look(store, name) for name in "bc"] == jobs
    assert [after.get(id_of(name)) for name in "bc"] == [before.get(id_of(name)) for name in "bc"]
    worker.finish(released(claim))
    assert names(worker.claim()) == ["a"]


def test_one_job_is_carried_however_large(store: Store, worker: Worker):
    """And alone, wherever it stands: what is behind it does not overtake it."""
    insert(store, sized("a", CLAIM_BYTES + 1), sized("b", 10), sized("c", 2 * CLAIM_BYTES), sized("d", 10))
    assert names(worker.claim()) == ["a"]
    assert names(worker.claim()) == ["b"]
    assert names(worker.claim()) == ["c"]
    assert names(worker.claim()) == ["d"]


def test_many_small_ones_beside_a_large_one(store: Store, worker: Worker):
    """Each counts by its size, also an empty one."""
    small = [sized(f"a{number:03}", LARGE) for number in range(EXCHANGE_JOBS // 2)]
    insert(store, *small, sized("b", CLAIM_BYTES - 2 * MIB), sized("c", 0), sized("d", 2 * MIB))
    reply = worker.exchange(limit=EXCHANGE_JOBS)
    assert names(reply.claims) == [*(f"a{number:03}" for number in range(EXCHANGE_JOBS // 2)), "b", "c"]
    assert names(worker.claim()) == ["d"]


def test_the_order_of_queues_counts(store: Store, worker: Worker):
    """What is cut is what comes last by the order of the entries, not by age or priority."""
    insert(store, *(sized(name, 2 * MIB, queue="last", priority=9) for name in "ab"))
    insert(store, *(sized(name, 2 * MIB, queue=queue) for name, queue in (("c", "first"), ("d", "mail.a"))))
    insert(store, sized("e", 2 * MIB, queue="mail.b", priority=1))
    claimed = [names(worker.claim(queues="first,mail*,last")) for _ in range(3)]
    assert claimed == [["c", "e"], ["d", "a"], ["b"]]


def test_jobs_with_terms_stay_as_they_were(store: Store, worker: Worker):
    """With their permits, and with the keys that they hold until they start."""
    insert(store, *(limited(name, f"k{name}", payload=b"x" * 3 * MIB) for name in "ab"))
    insert(store, sole("c", until_start=True, payload=b"x" * 3 * MIB))
    insert(store, sole("d", "other", until_start=True, payload=b"x" * 3 * MIB))
    assert names(worker.claim(starting=1)) == ["a"]
    assert [holders(store, f"k{name}") for name in "ab"] == [1, 1]
    assert store.insert([sole("e", until_start=True), sole("f", "other", until_start=True)]) == [id_of("c"), id_of("d")]
    assert [names(worker.claim()) for _ in range(3)] == [["b"], ["c"], ["d"]]


def test_beside_paused_tasks(store: Store, worker: Worker):
    """Those of a paused task go to wait, and what is cut is what comes behind."""
    store.pause("birds.feed", None, "ann", "", kind=Paused.TASK)
    insert(store, sized("a", 3 * MIB), sized("b", 3 * MIB, task="birds.feed"), sized("c", MIB), sized("d", MIB))
    reply = worker.exchange(limit=3, starting=3)
    assert (names(reply.claims), reply.cut) == (["a", "c"], True)
    assert [state(store, name) for name in "bd"] == [JobState.WAITING, JobState.READY]
    assert names(worker.claim()) == ["d"]


def test_a_payload_that_was_changed(store: Store, worker: Worker):
    """Its size now counts."""
    insert(store, *(sized(name, 10) for name in "abc"))
    for name in "ab":
        change = Change(Act.RELOAD, payload=b"x" * 3 * MIB)
        store.move(Selection(ids=[id_of(name)]), change, "ann", "because")
    assert names(worker.claim()) == ["a"]
    assert names(worker.claim()) == ["b", "c"]


def test_an_adoption_carries_so_many_bytes(store: Store, worker: Worker, other: Worker):
    """The first by id of all that were left; the others are still there for the next."""
    insert(store, *(sized(name) for name in "abcdefghij"))
    while worker.claim(3):
        pass
    found = []
    while orphans := store.adopt(other.id, 7, 100, dead=[worker.id]):
        assert size_of([orphan.claim for orphan in orphans]) <= CLAIM_BYTES
        found.append(names([orphan.claim for orphan in orphans]))
        other.finish(*(released(orphan.claim) for orphan in orphans))
        if len(found) > 9:
            break
    assert [name for page in found for name in page] == list("abcdefghij")
    assert len(found) == -(-10 // MOST)


def test_an_adoption_carries_one_job_however_large(store: Store, worker: Worker, other: Worker):
    insert(store, sized("a", CLAIM_BYTES + 1), sized("b"))
    worker.claim(1)
    worker.claim(1)
    for name in "ab":
        [orphan] = store.adopt(other.id, 7, 100, dead=[worker.id])
        assert names([orphan.claim]) == [name]
        assert size_of([orphan.claim]) == len(look(store, name).payload)


def test_an_adoption_of_several_processes(store: Store, worker: Worker, other: Worker):
    """And of a local queue: all of them by id, as far as they fit."""
    third, gone = Worker(store, "third"), new_id()
    insert(store, *(sized(name, 3 * MIB) for name in "abcd"), sized("e", queue=local_queue(gone)))
    workers = [worker, third, worker, third]
    assert [names(one.claim(1, queues="default")) for one in workers] == [["a"], ["b"], ["c"], ["d"]]
    adopted = []
    while orphans := store.adopt(other.id, 7, 100, dead=[worker.id, third.id]):
        adopted.append([(names([it.claim])[0], it.owner.id) for it in orphans])
    assert adopted == [[("a", worker.id)], [("b", third.id)], [("c", worker.id)], [("d", third.id), ("e", gone)]]


@pytest.mark.parametrize("limit", [1, 3])
def test_the_limit_of_an_adoption_counts_too(store: Store, worker: Worker, other: Worker, limit: int):
    insert(store, *(sized(name, 10) for name in "abcde"))
    worker.claim()
    orphans = store.adopt(other.id, 7, limit, dead=[worker.id])
    assert names([orphan.claim for orphan in orphans]) == list("abcde"[:limit])


def test_a_page_of_a_flow_carries_so_many_bytes(store: Store, worker: Worker):
    """Of payloads and results, and one job however large; the rest comes with the next pages."""
    sizes = [MIB, MIB, 2 * CLAIM_BYTES, 10, 10]
    insert(
        store,
        *(sized(name, size, member=(FLOW, at)) for at, (name, size) in enumerate(zip("abcde", sizes, strict=True))),
    )
    while claims := worker.claim():
        worker.finish(*(succeeded(claim, b"r" * 2 * MIB) for claim in claims))
    pages, after = [], -1
    while page := store.members(FLOW, after):
        pages.append([place for place, _ in page])
        assert all(len(one.result or b"") == 2 * MIB and len(one.payload) == sizes[place] for place, one in page)
        after = page[-1][0]
    assert pages == [[0], [1], [2], [3], [4]]
    insert(store, *(sized(f"f{number}", MIB, member=(id_of("other"), number)) for number in range(6)))
    assert [place for place, _ in store.members(id_of("other"))] == list(range(MOST))
    assert [place for place, _ in store.members(id_of("other"), MOST - 1)] == list(range(MOST, 6))
    assert [place for place, _ in store.members(id_of("other"), -1, 2)] == [0, 1]
