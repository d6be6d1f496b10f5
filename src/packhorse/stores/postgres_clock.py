"""The server's time, which all hosts share: leases of one are judged by the others."""

from __future__ import annotations

import time
from collections.abc import Callable

from packhorse.clock import SystemClock

ASK = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"
LASTS = 60_000_000  # microseconds after which the server is asked again, as clocks drift and are set
ALIKE = 20_000  # by so little both clocks need not agree: answers take time, and nobody's time should go back for it


def _local() -> int:
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


class ServerClock:
    """A clock of ours that never jumps, and how far the server's is from it; to ask the server each time would cost."""

    def __init__(self, ask: Callable[[], None], local: Callable[[], int] = _local) -> None:
        """`ask` sees to it that `learn` is called."""
        self._ask = ask
        self.local = local
        self._apart: int | None = None
        self._learned_at = 0

    def learn(self, before: int, theirs: int, after: int) -> None:
        """The server said `theirs` between two moments of `local`."""
        apart = theirs - (before + after) // 2
        if self._apart is None or abs(apart - self._apart) > max(ALIKE, after - before):
            self._apart = apart
        self._learned_at = after

    @property
    def is_known(self) -> bool:
        return self._apart is not None

    @property
    def is_old(self) -> bool:
        return self._apart is None or self.local() - self._learned_at > LASTS

    def now(self) -> int:
        if self._apart is None:
            self._ask()
        assert self._apart is not None
        return self.local() + self._apart

    def ticks(self) -> int:
        return self.now()

    def boot(self) -> str:
        return "server"


class SiteClock:
    """Where others lend their connections: the server is not asked only to tell the time, and leases are its own."""

    def __init__(self, server: ServerClock) -> None:
        self._server = server
        self._here = SystemClock()

    def now(self) -> int:
        return (self._server if self._server.is_known else self._here).now()

    def ticks(self) -> int:
        return self._server.ticks()

    def boot(self) -> str:
        return self._server.boot()
