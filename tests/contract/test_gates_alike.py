"""What comes after what, side by side: the plain dictionaries of memory.py say how SQLite's edges must behave."""

import pytest

from packhorse.clock import SECOND
from packhorse.ids import from_text
from packhorse.job import Claim, JobState, Need, NewJob, Parent
from packhorse.limits import Claimed, Hold, Terms, UniqueConflict
from packhorse.outcome import Outcome, succeed
from packhorse.queues import EVERYTHING
from packhorse.stores.contract import GATE, Act, Retention, Selection
from tests.contract.alike import PARTS, Pair, live_alike

FLOWS = [bytes([n]) * 16 for n in range(3)]


class Gates(Pair):
    modes = ("plain", "limits", "shares", "unique")
    places = 0

    def step(self) -> None:
        luck = self.luck
        match luck.randrange(14):
            case 0 | 1:
                self.insert(self.graph())
            case 2:
                self.insert([self.latecomer()])
            case 3 | 4 | 5 | 6 | 7:
                self.exchange(luck.choice(self.processes), 5)
            case 8 | 9:
                act = luck.choice([Act.CANCEL, Act.RETRY, Act.RETRY, Act.RUN_NOW, Act.DISCARD])
                ids = self.some_ids(luck.choice([1, 3, 8]))
                flow = luck.choice([None, luck.choice(FLOWS)])
                selection = Selection(flow=flow) if flow and act is not Act.DISCARD else Selection(ids=ids)
                self.move(selection, act, limit=luck.choice([2, 1_000]))
            case 10:
                self.clock.advance(luck.choice([1, 3]))
                self.both("promote", 1_000)
            case 11:
                self.both("prune", luck.choice([Retention(0, None, None), Retention(None, 0, 0)]), luck.choice([1, 3]))
            case 12:
                self.adopt()
            case 13:  # the answer to an earlier insert was lost
                known = [job for job in self.jobs if self.stores[0].job(job.id) is not None]
                self.insert(luck.sample(known, min(3, len(known))))

    # Jobs.

    def graph(self) -> list[NewJob]:
        """Any shape, in any order; some of it after jobs of others."""
        luck = self.luck
        made: list[NewJob] = []
        flow = luck.choice(FLOWS)
        for _ in range(luck.randint(1, 7)):
            known = [job.id for job in made] + self.some_ids(2)
            parents = luck.sample(known, min(len(known), luck.choice([0, 1, 1, 2, 3])))
            # A job that waits for a failure waits for nothing else: see `Need`.
            needs = [Need.FAILURE] if luck.random() < 0.2 else [Need.SUCCESS, Need.SUCCESS, Need.END]
            self.places += 1
            place = -self.places if luck.random() < 0.1 else self.places
            made.append(
                NewJob(
                    luck.randbytes(16),
                    "task",
                    b"",
                    priority=luck.randint(-1, 1),
                    delay=luck.choice([None, None, None, 2 * SECOND]),
                    share=luck.choice([None, "ann", "bob"]) if self.mode == "shares" else None,
                    terms=self.terms(),
                    ageing=luck.choice([0, 0, SECOND]),
                    after=tuple(Parent(id, luck.choice(needs)) for id in parents),
                    member=(flow, place) if luck.random() < 0.8 else None,
                )
            )
        luck.shuffle(made)
        return made

    def terms(self) -> Terms:
        luck = self.luck
        if self.mode == "limits" and luck.random() < 0.5:
            return Terms((Hold(luck.choice(["k/1", "k/2"]), luck.randint(1, 2)),))
        if self.mode == "unique" and luck.random() < 0.4:
            lasting = luck.choice([None, None, 5 * SECOND])
            conflict = luck.choice(list(UniqueConflict))
            return Terms((), Claimed(f"u/{luck.randint(1, 3)}", luck.random() < 0.4, lasting, conflict))
        return Terms()

    def latecomer(self) -> NewJob:
        """One that comes before others, which may not wait any more."""
        children = self.some_ids(self.luck.choice([1, 1, 2]))
        if self.luck.random() < 0.8:
            waiting = self.stores[0].jobs(Selection(states=[JobState.WAITING]), limit=1_000)
            children = [from_text(job.id) for job in waiting][:2]
        need = self.luck.choice([Need.SUCCESS, Need.END])
        alarms = {job.id for job in self.jobs if any(parent.need is Need.FAILURE for parent in job.after)}
        before = tuple(Parent(id, Need.FAILURE if id in alarms else need) for id in children)
        return NewJob(self.luck.randbytes(16), "task", b"", before=before)

    # Ends.

    def ends(self, claim: Claim) -> list[Outcome]:
        """Some wait for others first, some are told twice."""
        ways = super().ends(claim)
        if self.luck.random() < 0.15:
            others = tuple({*self.some_ids(2), self.luck.randbytes(16)} - {claim.token.id})
            ways = [Outcome(claim.token, JobState.SCHEDULED, False, after=others)]
        return ways * self.luck.choice([1, 1, 1, 2])

    def adopt(self) -> None:
        self.nonce += 1
        adopter, dead = self.luck.sample(self.processes, 2)
        adopted = [orphan.claim for orphan in self.both("adopt", adopter, self.nonce, 3, dead=[dead])]
        gone = {claim.token.id for claim in adopted}
        late = [succeed(claim.token, 1, None) for claim in self.held if claim.token.id in gone]
        self.held = [claim for claim in self.held if claim.token.id not in gone]
        verdicts = [
            Outcome(claim.token, self.luck.choice([JobState.READY, JobState.FAILED]), False, lost=True, failure=b"l")
            for claim in adopted
        ]
        self.nonce += 1
        self.both("exchange", adopter, self.nonce, [*late, *verdicts], EVERYTHING, 0)

    # Judging.

    def check(self) -> None:
        jobs = self.both("jobs", Selection(), None, 10_000)
        for flow in FLOWS:
            self.both("members", flow, -10_000, 1_000)
            self.both("flow_counts", flow)
            self.both("jobs", Selection(flow=flow), None, 1_000)
        self.check_nobody_forgotten({from_text(job.id): job.state for job in jobs})

    def check_nobody_forgotten(self, states: dict[bytes, JobState]) -> None:
        """In memory, and so in both: who waits at a gate waits for one that has not ended."""
        memory = self.stores[0]
        for id, job in memory._jobs.items():  # type: ignore[attr-defined]
            if job.waits_on == GATE:
                pending = [parent for parent, (_, well) in job.parents.items() if well is None]
                assert pending, "a gate that nothing holds shut"
                open_ends = [parent for parent in pending if not states.get(parent, JobState.SUCCEEDED).finished]
                assert open_ends, f"{id.hex()} waits for jobs that have ended"


@pytest.mark.parametrize("part", PARTS)
def test_both_open_the_same_gates(part: int):
    live_alike(Gates, part, 20)
