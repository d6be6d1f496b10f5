"""Rules of histories in which jobs come after others."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from packhorse.clock import SECOND
from packhorse.job import JobState, Need, NewJob, Parent, Token
from packhorse.outcome import Outcome
from packhorse.queues import parse_queues
from packhorse.stores.contract import Act, Change, Selection
from packhorse.testing.contract.helpers import failed, id_of, succeeded
from packhorse.testing.contract.history import REFUSED, History, processes, whole_jobs
from packhorse.testing.contract.model.places import GATE

FLOWS = [id_of("flow a"), id_of("flow b")]
NOBODY = id_of("nobody")

# A job that waits for a failure waits for nothing else: see `Need`.
kinds_of_need = st.sampled_from(
    [[Need.SUCCESS] * 3, [Need.SUCCESS] * 3, [Need.END] * 3, [Need.END, Need.SUCCESS, Need.END], [Need.FAILURE] * 3]
)
# A new job, after some before it in the list, or some that are known.
followers = st.fixed_dictionaries(
    {
        "fields": whole_jobs,
        "near": st.sampled_from([[], [0], [1], [5], [0, 1], [2, 4]]),
        "far": st.sampled_from([[], [], [0], [3], [7], [0, 5]]),
        "needs": kinds_of_need,
        "flow": st.sampled_from([None, *FLOWS]),
        "callback": st.sampled_from([False, False, False, True]),
    }
)


class Flows(History):
    @precondition(lambda self: "flows" in self.subjects)
    @rule(
        wanted=st.lists(followers, min_size=2, max_size=6),
        turned=st.booleans(),
        astray=st.sampled_from([False] * 7 + [True]),
    )
    def insert_flow(self, wanted: list[dict[str, Any]], turned: bool, astray: bool) -> None:
        """Jobs of any shape, in any order; or none, where one of them is to come after nobody."""
        made: list[NewJob] = []
        for one in wanted:
            made.append(self.follower(made, **one))
        if astray:
            made[-1] = made[-1]._replace(after=(*made[-1].after, Parent(NOBODY)))
        batch = made[::-1] if turned else made
        if self.both("insert", batch) != REFUSED:
            self.both("insert", batch)  # as if the answer had been lost
        else:
            assert astray or self.kind != "plain"

    def follower(
        self,
        made: Sequence[NewJob],
        fields: dict[str, Any],
        near: list[int],
        far: list[int],
        needs: list[Need],
        flow: bytes | None,
        callback: bool,
    ) -> NewJob:
        parents = {made[number % len(made)].id for number in near if made}
        parents |= {self.known(number) for number in far if self.model.facts}
        edges = zip(sorted(parents), [*needs, needs[0]], strict=False)
        new = self.new_job(**fields | {"id": self.new_id()})
        place = -self.made if callback else self.made
        return new._replace(
            after=tuple(Parent(id, need) for id, need in edges), member=None if flow is None else (flow, place)
        )

    @precondition(lambda self: "flows" in self.subjects)
    @rule(
        process=processes,
        ends=st.lists(st.sampled_from(["well", "well", "badly", "waits", "runs"]), min_size=2, max_size=6),
        numbers=st.lists(st.integers(0, 40), max_size=3),
        act=st.sampled_from([Act.RETRY, Act.RETRY, Act.DISCARD, Act.CANCEL]),
    )
    def go_on(self, process: bytes, ends: list[str], numbers: list[int], act: Act) -> None:
        """All that is ready is taken and comes to its end, one way or the other; then an operator acts on some."""
        self.promote_both(1_000)
        outcomes = []
        for nth, token in enumerate(self.claim_some(process, "*", 50)):
            match ends[nth % len(ends)]:
                case "well":
                    outcomes.append(succeeded(token))
                case "badly":
                    outcomes.append(failed(token))
                case "waits":
                    outcomes.append(self.waiting(token, [3 * nth, nth + 7]))
        self.both("exchange", process, self.new_nonce(), outcomes, parse_queues("*"), 0)
        parents = {parent for facts in self.model.facts.values() for parent in facts["parents"]}
        involved = sorted(id for id, facts in self.model.facts.items() if facts["parents"] or id in parents)
        if involved and numbers:
            chosen = Selection(ids=[involved[number % len(involved)] for number in numbers])
            self.both("move", chosen, Change(act), "ann", "because")

    @precondition(lambda self: "flows" in self.subjects and self.model.facts)
    @rule(fields=whole_jobs, numbers=st.lists(st.integers(0, 40), min_size=1, max_size=2), need=st.sampled_from(Need))
    def insert_before(self, fields: dict[str, Any], numbers: list[int], need: Need) -> None:
        """One that comes before others, which are at their gate, or are not."""
        gated = sorted(id for id, line in self.model.waiting.items() if line == GATE)
        children = {gated[number % len(gated)] if gated else self.known(number) for number in numbers}
        new = self.new_job(**fields | {"id": self.new_id()})
        before = tuple(Parent(id, self._fitting(id, need)) for id in sorted(children))
        answer = self.both("insert", [new._replace(before=before)])
        assert (answer == REFUSED) <= (not gated or self.kind != "plain")

    def _fitting(self, child: bytes, need: Need) -> Need:
        others = {its for its, _ in self.model.facts[child]["parents"].values()}
        if Need.FAILURE in others:
            return Need.FAILURE
        return Need.SUCCESS if need is Need.FAILURE and others else need

    @precondition(lambda self: "flows" in self.subjects and self.model.running)
    @rule(
        number=st.integers(0, 40),
        others=st.lists(st.lists(st.integers(-1, 40), min_size=1, max_size=3), min_size=1, max_size=3),
        ended=st.integers(0, 2),
        limit=st.sampled_from([0, 0, 3]),
    )
    def wait_for_children(self, number: int, others: list[list[int]], ended: int, limit: int) -> None:
        """Some held jobs go to stand behind others, which run, wait, have ended, end just now or are gone."""
        held = self.held_now()
        turned = held[number % len(held) :] + held[: number % len(held)]
        outcomes = []
        for token, numbers in zip(turned, others, strict=False):
            outcomes.append(self.waiting(token, numbers))
        outcomes += [succeeded(token) for token in turned[len(outcomes) :][:ended]]
        self.exchange_both(turned[0].process, outcomes, "*", limit)

    def waiting(self, token: Token, numbers: list[int]) -> Outcome:
        """It goes to stand behind others."""
        ids = {NOBODY if number < 0 else self.known(number) for number in numbers} - {token.id}
        return Outcome(token, JobState.SCHEDULED, False, duration=SECOND, after=tuple(sorted(ids)))

    @precondition(lambda self: "flows" in self.subjects)
    @invariant()
    def flows_look_the_same(self) -> None:
        for flow in FLOWS:
            self.both("members", flow, -10_000, 1_000)
            self.both("flow_counts", flow)
            self.both("jobs", Selection(flow=flow), None, 10_000)

    @precondition(lambda self: "flows" in self.subjects)
    @invariant()
    def nobody_waits_for_what_is_over(self) -> None:
        assert self.model.forgotten() == []
