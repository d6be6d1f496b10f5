"""What waits for what: each job knows whom it comes after, and how each of them has ended."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from packhorse.job import JobState, Need, NewJob
from packhorse.stores.contract import NOT_NEEDED
from packhorse.testing.contract.model.places import DOOR, GATE, Places

NOT_YET, WELL, BADLY = "not yet", "well", "badly"
HURT = "a job before it did not succeed"


class Gates(Places):
    def _put(self, id: bytes, run_at: int | None, now: int) -> None:
        """Where a job goes that is to run at a moment, or at once."""
        self._take_away(id)
        if run_at is not None and run_at > now:
            self.facts[id]["order_key"] = run_at
            self.scheduled.add(id)
        else:
            self._become_due(id, now)

    def _become_due(self, id: bytes, moment: int) -> None:
        facts = self.facts[id]
        new = facts["new"]
        self._take_away(id)
        facts["order_key"] = moment - facts["priority"] * self._ageing(id)
        facts["awaits"] = None
        if self._is_shut(id):
            self.waiting[id] = GATE
        elif new.share is not None:
            self.waiting[id] = ("turn", new.share)
        elif new.terms.holds or new.terms.paces:
            self.waiting[id] = DOOR
        else:
            self.ready.add(id)

    def _edges(self, id: bytes) -> dict[bytes, tuple[Need, str]]:
        edges: dict[bytes, tuple[Need, str]] = self.facts[id]["parents"]
        return edges

    def _is_shut(self, id: bytes) -> bool:
        """One it comes after is still to end; but of failures the first is enough."""
        edges = self._edges(id).values()
        return (Need.FAILURE, BADLY) not in edges and any(end == NOT_YET for _, end in edges)

    def _how(self, id: bytes) -> str:
        """One that is gone has ended well: nobody knows better."""
        if id in self.finished:
            return WELL if self.finished[id]["state"] is JobState.SUCCEEDED else BADLY
        return NOT_YET if id in self.facts else WELL

    def _is_sound(self, jobs: Iterable[NewJob]) -> bool:
        """Whoever they come after is known, and whoever they come before still waits."""
        return all(
            all(parent.id in self.facts for parent in new.after)
            and all(self.waiting.get(child.id) == GATE for child in new.before)
            for new in jobs
        )

    def _join(self, jobs: Collection[NewJob], now: int) -> None:
        """They were inserted, and each has its place among the others."""
        for new in jobs:
            for child in new.before:
                self._edges(child.id)[new.id] = (child.need, NOT_YET)
        parents = {parent.id for new in jobs for parent in new.after}
        self._settle({id: self._how(id) for id in parents if id in self.finished}, now)

    def _stand_behind(self, id: bytes, others: Sequence[bytes], now: int) -> None:
        """One that has begun waits for others, however they end; what it came after before is over."""
        self.facts[id]["parents"] = dict.fromkeys(others, (Need.END, NOT_YET))
        self._become_due(id, now)
        self._settle({other: self._how(other) for other in others if self.has_ended(other)}, now)

    def _cancel(self, ids: Collection[bytes], reason: str, now: int) -> None:
        """All of them, and then those who needed one of them."""
        for id in ids:
            self._end_unrun(id, reason, now)
        self._settle(dict.fromkeys(ids, BADLY), now)

    def _settle(self, ends: Mapping[bytes, str], now: int) -> None:
        """Jobs have ended: whoever waited for them is told, and goes on or is cancelled."""
        told = []
        for child in self.facts:
            edges = self._edges(child)
            fresh = {id for id in edges.keys() & ends.keys() if edges[id][1] == NOT_YET}
            for id in fresh:
                edges[id] = (edges[id][0], ends[id])
            if fresh and self.waiting.get(child) == GATE:
                told.append(child)
        hurt = [child for child in told if (Need.SUCCESS, BADLY) in self._edges(child).values()]
        through = [child for child in told if child not in hurt and not self._is_shut(child)]
        spared = [child for child in through if self._waited_in_vain(child)]
        for child in through:
            if child not in spared:
                self._put(child, self.facts[child]["run_at"], now)
        if hurt:
            self._cancel(hurt, HURT, now)
        if spared:
            self._cancel(spared, NOT_NEEDED, now)

    def _waited_in_vain(self, id: bytes) -> bool:
        """For failures, of which there were none."""
        edges = self._edges(id).values()
        return (Need.FAILURE, BADLY) not in edges and any(need is Need.FAILURE for need, _ in edges)

    def _go_round(self, again: Collection[bytes]) -> None:
        """Failed and cancelled jobs are retried: who waits, or may be retried too, waits for their new ends.

        What is retried itself bears with the others that did not succeed.
        """
        for id in self.facts:
            edges = self._edges(id)
            if self.waiting.get(id) == GATE or self.place(id) in (JobState.FAILED, JobState.CANCELLED):
                for parent in edges.keys() & set(again):
                    edges[parent] = (edges[parent][0], NOT_YET)
            if id in again:
                for parent, (need, end) in edges.items():
                    if (need, end) == (Need.SUCCESS, BADLY):
                        edges[parent] = (need, WELL)

    def forgotten(self) -> list[bytes]:
        """Who waits at its gate though all it comes after have ended."""
        gated = [id for id, line in self.waiting.items() if line == GATE]
        return [id for id in gated if all(self.has_ended(parent) for parent in self._edges(id))]
