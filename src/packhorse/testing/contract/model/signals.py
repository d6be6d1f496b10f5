"""Signals, and who awaits them."""

from packhorse.clock import Clock
from packhorse.outcome import Awaits
from packhorse.stores.contract import SIGNAL, Signal, Waiter, signal_entry
from packhorse.testing.contract.model.gates import Gates
from packhorse.testing.contract.model.places import Facts


class Signals(Gates):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.kept: list[Facts] = []  # signal, until

    def signal(self, name: str, data: bytes, keep: int, n: int) -> int:
        """`n` is the number that the store gave it."""
        now = self.clock.now()
        signal = Signal(n, name, data)
        assert all(signal.n > it["signal"].n for it in self.kept), "a number came twice, or out of order"
        self.kept.append({"signal": signal, "until": now + keep})
        woken = [waiter.id for waiter in self.waiters() if waiter.signal == name]
        for id in woken:
            self._deliver(signal, id, now)
        return len(woken)

    def _await(self, id: bytes, awaits: Awaits, now: int) -> None:
        """The job is scheduled for the time at which it gives up."""
        self.facts[id]["awaits"] = awaits.signal
        for signal in self.signals(*awaits)[:1]:
            self._deliver(signal, id, now)

    def _deliver(self, signal: Signal, id: bytes, now: int) -> None:
        self.facts[id]["entries"][SIGNAL, signal_entry(signal.name, signal.n)] = signal.data
        self._become_due(id, now)

    def signals(self, name: str, after: int = 0) -> list[Signal]:
        now = self.clock.now()
        there = [it["signal"] for it in self.kept if now < it["until"]]
        return [signal for signal in there if signal.name == name and signal.n > after]

    def waiters(self) -> list[Waiter]:
        return sorted(Waiter(facts["awaits"], id) for id, facts in self.facts.items() if facts["awaits"] is not None)

    def _prune_signals(self, now: int, limit: int) -> int:
        old = sorted((it["until"], it["signal"].n) for it in self.kept if it["until"] <= now)[:limit]
        self.kept = [it for it in self.kept if (it["until"], it["signal"].n) not in old]
        return len(old)
