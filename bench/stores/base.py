"""What a scenario must know of the store it measures on: how databases come and go, and who is compared there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.lab import Lab
    from bench.systems.base import System


class MeasuredStore(ABC):
    name: str
    bares: tuple[type[System], ...]  # the loop of the driver alone; the first is what Packhorse is held against
    bare_one: type[System]  # the same, one job and one commit at a time
    bare_listening: tuple[type[System], ...] = ()  # the same, woken by the store, where it can do that
    peers: tuple[type[System], ...]
    variants: tuple[type[System], ...] = ()  # peers again, configured otherwise; they only drain

    patience = 1.0  # how much longer a scenario may take here, as there are more to compare

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def open(self) -> None:
        """Ready to be measured on; `close` comes after it, also where it failed."""
        return

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Versions and settings."""

    @abstractmethod
    def new(self, name: str) -> str:
        """An empty database."""

    @abstractmethod
    def copy(self, database: str) -> str:
        """The same rows in a new one; nobody may be connected."""

    @abstractmethod
    def url(self, database: str) -> str:
        """As Packhorse wants it."""

    def keys(self) -> tuple[str, ...]:
        """For signing; none where Packhorse makes its own."""
        return ()

    def settle(self, database: str) -> None:
        """After a large fill, what the store's own housekeeping would do in the next minute."""
        return

    def working(self, on: bool) -> None:
        """Workers begin, or have ended."""
        return

    def clear(self) -> None:
        """Nothing made so far is needed any more."""
        return

    def close(self) -> None:
        return

    def round_trips(self, times: int) -> dict[str, list[float]]:
        """Milliseconds of the shortest exchanges with a server."""
        return {}

    def count_statements(self, database: str) -> None:
        """From now on, for whoever connects."""
        return

    def statements(self, database: str) -> int | None:
        """How many were counted so far."""
        return None
