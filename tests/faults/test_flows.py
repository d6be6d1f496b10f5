"""Flows whose workers die: no follower is dropped, none goes on twice, the order holds."""

import random
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from packhorse import Call, Flow, chain
from packhorse.clock import SECOND, ManualClock
from packhorse.ids import new_id
from packhorse.job import Claim, JobState, NewJob, Parent
from packhorse.outcome import Outcome, succeed
from packhorse.queues import EVERYTHING
from packhorse.stores import Store, open_store
from packhorse.stores.contract import ProcessInfo, Retention
from tests.contract.stores import quick_folder
from tests.faults.harness import Place, Workers
from tests.waiting import wait_until

LEASE = 30 * SECOND
AT_ONCE = 100
EACH = 120  # jobs that are kept, and as many that are not, with three callbacks each
CHAINS, CHORDS = 700, 300  # of a thousand: of 5 jobs, and of 10 and one


def chain_of(size: int) -> list[NewJob]:
    ids, flow = [new_id() for _ in range(size)], new_id()
    after = [(), *((Parent(id),) for id in ids)]
    return [NewJob(id, "task", b"", after=after[n], member=(flow, n)) for n, id in enumerate(ids)]


def chord_of(size: int) -> list[NewJob]:
    flow = new_id()
    sides = [NewJob(new_id(), "task", b"", member=(flow, n)) for n in range(size)]
    return [*sides, NewJob(new_id(), "task", b"", after=tuple(Parent(it.id) for it in sides), member=(flow, size))]


class Mortals:
    """Processes that claim, perform and die, in whatever moment; what they did, in order."""

    def __init__(self, store: Store, luck: random.Random) -> None:
        self.store, self.luck = store, luck
        self.now = self.nonce = self.deaths = 0
        self.begun: dict[bytes, int] = {}  # when it was last taken
        self.ended: dict[bytes, int] = {}
        self.successes: Counter[bytes] = Counter()
        self.process = self.born()

    def born(self) -> bytes:
        id = new_id()
        self.store.enroll(ProcessInfo(id, "worker", "here", 1), LEASE)
        return id

    def exchange(self, process: bytes, outcomes: list[Outcome], limit: int) -> list[Claim]:
        self.nonce += 1
        self.now += 1
        done = self.store.exchange(process, self.nonce, outcomes, EVERYTHING, limit)
        for id in {outcome.token.id for outcome in outcomes if outcome.state is JobState.SUCCEEDED}:
            if id not in {token.id for token in done.refused}:
                self.successes[id] += 1
                self.ended[id] = self.now
        self.begun |= {claim.token.id: self.now for claim in done.claims}
        return done.claims

    def work(self) -> None:
        """Until nothing is left to do."""
        claims = self.exchange(self.process, [], AT_ONCE)
        while claims:
            outcomes = [succeed(claim.token, 1, b"done") for claim in claims]
            fate = self.luck.random()
            if fate < 0.08:
                claims = self.die(claims, outcomes)
            elif fate < 0.16:
                claims = self.die_late(outcomes)
            else:
                claims = self.exchange(self.process, outcomes, AT_ONCE)

    def die(self, claims: list[Claim], outcomes: list[Outcome]) -> list[Claim]:
        """Some outcomes were written, and the rest is adopted. Then its ghost writes all of them."""
        self.deaths += 1
        written = self.luck.randrange(len(outcomes) + 1)
        if written:
            self.exchange(self.process, outcomes[:written], 0)
        ghost, self.process = self.process, self.born()
        self.nonce += 1
        orphans = self.store.adopt(self.process, self.nonce, AT_ONCE, dead=[ghost])
        assert len(orphans) == len(claims) - written
        verdicts = [
            Outcome(it.claim.token, JobState.READY, spent=False, lost=True, failure=b"lost", owner=ghost)
            for it in orphans
        ]
        before = self.successes.total()
        if self.luck.random() < 0.5:
            self.store.exchange(ghost, 1, outcomes, EVERYTHING, 0)
        claims = self.exchange(self.process, verdicts, AT_ONCE)
        refused = self.store.exchange(ghost, 1, outcomes, EVERYTHING, 0).refused
        assert len(refused) == len(outcomes)
        assert self.successes.total() == before
        return claims

    def die_late(self, outcomes: list[Outcome]) -> list[Claim]:
        """All outcomes were written and new jobs taken, but the reply never came: the next one adopts those."""
        self.deaths += 1
        unheard = self.exchange(self.process, outcomes, AT_ONCE)
        for claim in unheard:
            del self.begun[claim.token.id]
        ghost, self.process = self.process, self.born()
        self.nonce += 1
        orphans = self.store.adopt(self.process, self.nonce, AT_ONCE, dead=[ghost])
        assert len(orphans) == len(unheard)
        assert len(self.store.exchange(ghost, 1, outcomes, EVERYTHING, 0).refused) == len(outcomes)
        back = [Outcome(it.claim.token, JobState.READY, spent=False) for it in orphans]
        return self.exchange(self.process, back, AT_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("thousands", [2, pytest.param(10, marks=pytest.mark.thorough)])
def test_thousands_of_flows_outlive_their_processes(thousands: int):
    """Through the store alone, with deaths before, within and after the writing of outcomes."""
    luck = random.Random(7)
    flows = [chain_of(5) for _ in range(thousands * CHAINS)] + [chord_of(10) for _ in range(thousands * CHORDS)]
    luck.shuffle(flows)
    with quick_folder() as folder:
        store = open_store(f"sqlite:///{folder}/jobs.db", ManualClock())
        mortals = Mortals(store, luck)
        for first in range(0, len(flows), 1_000):
            for flow in flows[first : first + 1_000]:
                store.insert(flow)
            mortals.work()
        for flow in luck.sample(flows, len(flows) // 20):
            counts = store.flow_counts(flow[0].member[0])  # type: ignore[index]
            assert counts == {JobState.SUCCEEDED: len(flow)}
        assert store.prune(Retention(0, 0, 0), 1_000_000) == sum(map(len, flows)), "somebody was left waiting"
        store.close()
    assert mortals.deaths > 10
    assert set(mortals.successes.values()) == {1}, "a job succeeded twice"
    assert len(mortals.successes) == sum(map(len, flows)), "a follower was dropped"
    for flow in flows:
        for job in flow:
            for parent in job.after:
                assert mortals.ended[parent.id] <= mortals.begun[job.id], "a follower began before its time"


@pytest.mark.slow
def test_flows_outlive_killed_workers(place: Place):
    """Real processes, killed at random."""
    luck = random.Random()
    nap = place.app.tasks["nap"]

    def call(key: str) -> Call[Any]:
        return nap.call(key, luck.uniform(0, 0.04))

    handles, chains, chords = [], [], []
    for n in range(100):
        chains.append([f"chain-{n}-{step}" for step in range(5)])
        handles.append(chain(*map(call, chains[-1])).enqueue())
    for n in range(60):
        chords.append(([f"side-{n}-{side}" for side in range(10)], f"end-{n}"))
        flow = Flow()
        flow.add(call(chords[-1][1]), after=flow.group(map(call, chords[-1][0])))
        handles.append(flow.enqueue())
    ids = [job.id for handle in handles for job in handle.jobs()]
    place.app.close()
    place.constants["packhorse.runtime.supervisor.RESTART_CAP"] = 0.0  # a child that dies often is started all the same
    workers = place.workers("--concurrency", "8", "--processes", "2")
    killed: set[int] = set()
    rest = len(ids)

    def unfinished() -> int:
        return int(place.sql("select count(*) from job where state <= 4")[0][0])

    def progressed(to: int) -> bool:
        """And what the last one killed had in hand is done, so that no job is lost too often."""
        lost = "select count(*) from job where state <= 4 and (losses > 0 or epoch > 1)"
        return unfinished() <= to and place.sql(lost) == [(0,)]

    while rest:
        wait_until(partial(progressed, max(0, rest - luck.randint(20, 100))), "some more have finished", 60)
        if (rest := unfinished()) and len(killed) < 8:
            alive = [pid for pid in workers.pids("worker") if not workers.child_ended(pid)]
            for pid in luck.sample(alive, min(1, len(alive))):
                workers.kill_child(pid)
                killed.add(pid)
    assert workers.stop() == 0
    place.check(ids)
    assert len(killed) >= 3
    for row in place.rows().values():
        assert row.attempts == 1, f"{row} succeeded more than once"
    check_begun_again(place, workers, killed, 1)
    began = {line.key: line.at for line in reversed(place.lines(what="start"))}
    ended = {line.key: line.at for line in place.lines(what="finish")}
    for steps in chains:
        assert all(ended[step] <= began[follower] for step, follower in pairwise(steps)), steps
    for sides, end in chords:
        assert max(ended[side] for side in sides) <= began[end], end


@pytest.mark.slow
def test_callbacks_outlive_killed_workers(place: Place):
    """Each job has both of its callbacks, once, whether anything is left of it or not."""
    luck = random.Random()
    tasks = place.app.tasks
    callbacks: Any = {"on_finish": tasks["note"], "on_success": tasks["anote"], "on_failure": tasks["note"]}
    calls = [
        tasks[name].using(**callbacks).call(f"{name}-{n}", luck.uniform(0, 0.04))
        for name in ("nap", "nap_and_go")
        for n in range(EACH)
    ]
    told = {handle.id for handle in place.app.enqueue_many(calls)}
    place.app.close()
    place.constants["packhorse.runtime.supervisor.RESTART_CAP"] = 0.0  # a child that dies often is started all the same
    workers = place.workers("--concurrency", "8", "--processes", "2")
    killed: set[int] = set()
    unfinished = "select count(*) from job where state <= 4"

    def progressed(to: int) -> bool:
        """And what the last one killed had in hand is done, so that no job is lost too often."""
        lost = "select count(*) from job where state <= 4 and (losses > 0 or epoch > 1)"
        return int(place.sql(unfinished)[0][0]) <= to and place.sql(lost) == [(0,)]

    rest = 4 * len(calls)
    while rest:
        wait_until(partial(progressed, max(0, rest - luck.randint(20, 150))), "some more have finished", 60)
        if (rest := int(place.sql(unfinished)[0][0])) and len(killed) < 8:
            alive = [pid for pid in workers.pids("worker") if not workers.child_ended(pid)]
            for pid in luck.sample(alive, min(1, len(alive))):
                workers.kill_child(pid)
                killed.add(pid)
    assert workers.stop() == 0
    assert len(killed) >= 3
    states = dict(place.sql("select state, count(*) from job group by state"))
    assert states == {5: EACH + 2 * len(calls), 7: len(calls)}, "kept jobs and callbacks; those for failures"
    rows = [row for row in place.rows().values() if row.key in told]
    assert Counter(row.key for row in rows if row.state == "succeeded") == dict.fromkeys(told, 2)
    assert {line.key for line in place.lines(what="start")} >= told
    check_begun_again(place, workers, killed, 2)


def check_begun_again(place: Place, workers: Workers, killed: set[int], jobs: int) -> None:
    """Only what a killed worker had in hand; there are so many jobs of each key."""
    starts = place.lines(what="start")
    assert max(Counter((line.key, line.pid) for line in starts).values()) <= jobs, "begun again by the same worker"
    lived = set(workers.pids("worker")) - killed
    assert max(Counter(line.key for line in starts if line.pid in lived).values()) <= jobs, "its worker lived"
