"""Rules of histories in which jobs await signals."""

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from packhorse.clock import SECOND
from packhorse.job import JobState
from packhorse.outcome import Awaits, Outcome
from packhorse.testing.contract.helpers import succeeded
from packhorse.testing.contract.history import History

NAMES = ["go", "stop"]
names = st.sampled_from(NAMES)


class Signals(History):
    @precondition(lambda self: "signals" in self.subjects)
    @rule(name=names, data=st.binary(max_size=2), keep=st.sampled_from([0, 3, 100]))
    def signal(self, name: str, data: bytes, keep: int) -> None:
        """Which number it has is the store's business; the model sees to it that they only rise."""
        woken = self.store.signal(name, data, keep * SECOND)
        self.clock.step(-0.000_001)  # one that is not kept is over already
        n = self.store.signals(name, limit=10_000)[-1].n
        self.clock.step(0.000_001)
        assert woken == self.model.signal(name, data, keep * SECOND, n)

    @precondition(lambda self: "signals" in self.subjects and self.model.running)
    @rule(
        number=st.integers(0, 40),
        waits=st.lists(
            st.tuples(names, st.sampled_from([0, 2, 5, 100]), st.sampled_from(["all", "new", "one"])),
            min_size=1,
            max_size=4,
        ),
        ended=st.integers(0, 2),
        limit=st.sampled_from([0, 0, 3]),
    )
    def await_signals(self, number: int, waits: list[tuple[str, int, str]], ended: int, limit: int) -> None:
        """Some held jobs give up their slots, behind all signals of the name, the last of them, or the first."""
        held = self.held_now()
        turned = held[number % len(held) :] + held[: number % len(held)]
        outcomes = []
        for token, (name, delay, behind) in zip(turned, waits, strict=False):
            numbers = [0, *(signal.n for signal in self.model.signals(name))]
            after = {"all": 0, "new": numbers[-1], "one": numbers[:2][-1]}[behind]
            awaits = Awaits(name, after)
            outcomes.append(
                Outcome(token, JobState.SCHEDULED, False, delay=delay * SECOND, duration=SECOND, awaits=awaits)
            )
        outcomes += [succeeded(token) for token in turned[len(outcomes) :][:ended]]
        self.exchange_both(turned[0].process, outcomes, "*", limit)

    @precondition(lambda self: "signals" in self.subjects)
    @invariant()
    def signals_look_the_same(self) -> None:
        self.both("waiters")
        for name in NAMES:
            self.both("signals", name)
            self.both("signals", name, 2)
