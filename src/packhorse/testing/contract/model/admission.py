"""Who may run: permits, tokens and fair turns."""

import math
from collections.abc import Collection, Iterable
from fractions import Fraction

from packhorse.clock import SECOND, Clock
from packhorse.limits import CATCH_UP, TURN, Conflict, Pace
from packhorse.stores.contract import Audit, LimitView, RateView
from packhorse.testing.contract.model.gates import Gates
from packhorse.testing.contract.model.places import Facts, Line


class Admission(Gates):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.numbers: dict[str, tuple[bytes, int]] = {}  # of the newest job
        self.set_numbers: dict[str, int] = {}
        self.turns: dict[tuple[str, int], dict[str, int]] = {}
        self.set_weights: dict[str, int] = {}

    def number(self, key: str) -> int:
        """How many may have a permit."""
        return self.set_numbers.get(key, self.numbers.get(key, (b"", 0))[1])

    def holders(self, key: str) -> int:
        return len(self.permits.get(key, ()))

    def _admit(self, now: int, limit: int) -> int:
        """All who wait are judged in their order; how many went on."""
        turns = self._give_turns(now)
        judged = sorted((id for id, line in self.waiting.items() if line[0] not in ("task", "gate")), key=self._order)
        waited_for = set(self.waiting.values())
        for id in sorted(judged, reverse=True):
            self._hear_numbers(id)
        admitted = 0
        for id in judged:
            if id in self.waiting and admitted < limit:
                admitted += self._judge(id, waited_for, now)
        return max(turns, admitted)

    def _judge(self, id: bytes, waited_for: Collection[Line], now: int) -> bool:
        terms = self.facts[id]["new"].terms
        full = [hold for hold in terms.holds if self.holders(hold.key) >= self.number(hold.key)]
        shut = [pace for pace in terms.paces if not self._is_open(pace.key, now)]
        if full:
            self.waiting[id] = ("limit", full[0].key)
            if full[0].conflict is Conflict.DISCARD:
                self._cancel([id], f"discarded: {full[0].key} was taken", now)
            elif full[0].conflict is Conflict.REPLACE:
                self._keep_the_newest(full[0].key, now)
        elif shut:
            self.waiting[id] = ("rate", shut[0].key)
        else:
            for hold in terms.holds:
                self.permits.setdefault(hold.key, set()).add(id)
            for pace in terms.paces:
                self._take(pace.key, now - CATCH_UP if ("rate", pace.key) in waited_for else now)
                self.buckets[pace.key]["tickets"].add(id)
            self._take_away(id)
            self.ready.add(id)
        return not full and not shut

    def _keep_the_newest(self, key: str, now: int) -> None:
        """Of those in the line of the key that replace each other."""
        line = [id for id, its in self.waiting.items() if its == ("limit", key)]
        rivals = [
            (self.facts[id]["created_at"], id)
            for id in line
            if any(hold.conflict is Conflict.REPLACE for hold in self.facts[id]["new"].terms.holds)
        ]
        self._cancel([id for _, id in sorted(rivals)[:-1]], "replaced", now)

    def _hear_numbers(self, id: bytes) -> None:
        """The newest job's count; called for the newest first."""
        terms = self.facts[id]["new"].terms
        for hold in terms.holds:
            if hold.key not in self.numbers or id > self.numbers[hold.key][0]:
                self.numbers[hold.key] = (id, hold.to)
        for pace in terms.paces:
            if id > self._bucket(pace)["brought_by"]:
                self._change_pace(pace, id)

    # Rates: how many tokens were taken since all were there.

    def _bucket(self, pace: Pace) -> Facts:
        unused = {"pace": pace, "brought_by": b"", "since": 0, "taken": 0, "tickets": set()}
        return self.buckets.setdefault(pace.key, unused)

    def _full_at(self, bucket: Facts) -> Fraction:
        """When all tokens are back, to the fraction of a microsecond."""
        taken: int = bucket["taken"]
        return Fraction(bucket["since"]) + taken * Fraction(bucket["pace"].period, bucket["pace"].tokens)

    def _change_pace(self, pace: Pace, id: bytes) -> None:
        bucket = self._bucket(pace)
        if (pace.tokens, pace.period) != (bucket["pace"].tokens, bucket["pace"].period):
            bucket.update(since=math.ceil(self._full_at(bucket)), taken=0)
        bucket.update(pace=pace, brought_by=id)

    def _opens_at(self, key: str) -> int:
        bucket = self.buckets[key]
        pace: Pace = bucket["pace"]
        return math.ceil(self._full_at(bucket) - (pace.burst - 1) * Fraction(pace.period, pace.tokens))

    def _is_open(self, key: str, now: int) -> bool:
        bucket = self.buckets[key]
        return self._opens_at(key) <= now and len(bucket["tickets"]) < self._most_tickets(bucket["pace"])

    def _most_tickets(self, pace: Pace) -> int:
        return max(pace.burst, math.ceil(Fraction(pace.tokens * SECOND, pace.period)))

    def _take(self, key: str, now: int) -> None:
        bucket = self.buckets[key]
        if self._full_at(bucket) <= now:
            bucket.update(since=now, taken=0)
        bucket["taken"] += 1

    def take_token(self, pace: Pace, patience: int) -> int | None:
        now = self.clock.now()
        self._change_pace(pace, self._bucket(pace)["brought_by"])
        wait = max(0, self._opens_at(pace.key) - now)
        if wait > patience:
            return None
        self._take(pace.key, now)
        return wait

    # Turns.

    def _give_turns(self, now: int) -> int:
        came = sorted((id for id, line in self.waiting.items() if line[0] == "turn"), key=self._order)
        scopes = {(self.facts[id]["queue"], self._rank(id)) for id in came}
        begins = {scope: self._beginning(*scope, now) for scope in scopes}
        for id in came:
            scope, share = (self.facts[id]["queue"], self._rank(id)), self.waiting[id][1]
            place, lasts = begins[scope], self.turns.setdefault(scope, {})
            if share in lasts:
                place = max(place, lasts[share] + TURN // self.set_weights.get(share, 1))
            self.facts[id]["order_key"] = lasts[share] = place
            self._take_away(id)
            self.ready.add(id)
        return len(came)

    def _beginning(self, queue: str, rank: int, now: int) -> int:
        """Where the first stands; where nobody does, all begin anew."""
        ready = [id for id in self.ready if (self.facts[id]["queue"], self._rank(id)) == (queue, rank)]
        if ready:
            return min(self._order(id)[1] for id in ready)
        return max([now, *self.turns.pop((queue, rank), {}).values()])

    def set_limit(self, key: str, to: int | None, actor: str, reason: str) -> None:
        self.set_numbers.pop(key, None)
        if to is not None:
            self.set_numbers[key] = to
        self.acts.append(Audit(self.clock.now(), actor, "set_limit", reason, 0))

    def set_weight(self, share: str, weight: int | None, actor: str, reason: str) -> None:
        self.set_weights.pop(share, None)
        if weight is not None:
            self.set_weights[share] = weight
        self.acts.append(Audit(self.clock.now(), actor, "set_weight", reason, 0))

    def _forget_unused(self, now: int) -> None:
        """Numbers of keys that nobody has or wants."""
        terms = [self.facts[id]["new"].terms for id in self.waiting]
        wanted = {hold.key for its in terms for hold in its.holds}
        self.numbers = {key: its for key, its in self.numbers.items() if self.holders(key) or key in wanted}
        rated = {pace.key for its in terms for pace in its.paces}
        for key, bucket in list(self.buckets.items()):
            pace = bucket["pace"]
            whole_periods = bucket["taken"] // pace.tokens + 1
            if not bucket["tickets"] and key not in rated and bucket["since"] + whole_periods * pace.period <= now:
                del self.buckets[key]

    # Looking.

    def limits(self) -> list[LimitView]:
        lines = [key for what, key in self.waiting.values() if what == "limit"]
        keys = {*lines, *self.set_numbers, *(key for key, taken in self.permits.items() if taken)}
        return [LimitView(key, self.set_numbers.get(key), self.holders(key), lines.count(key)) for key in sorted(keys)]

    def rates(self) -> list[RateView]:
        now = self.clock.now()
        lines = list(self.waiting.values())
        return [
            RateView(key, bucket["pace"], max(0, self._opens_at(key) - now), lines.count(("rate", key)))
            for key, bucket in sorted(self.buckets.items())
        ]

    def weights(self) -> dict[str, int]:
        return dict(sorted(self.set_weights.items()))

    def stuck(self) -> Iterable[bytes]:
        """Who waits though all it needs is there."""
        now = self.clock.now()
        for id, (what, _) in self.waiting.items():
            terms = self.facts[id]["new"].terms
            room = all(self.holders(hold.key) < self.number(hold.key) for hold in terms.holds)
            if what not in ("task", "gate") and room and all(self._is_open(pace.key, now) for pace in terms.paces):
                yield id
