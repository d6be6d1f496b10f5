"""dj-queue: a supervisor that forks its workers."""

from __future__ import annotations

from collections.abc import Iterable

from bench.peers.site import SitePeer


class DjQueuePeer(SitePeer):
    backend = "dj_queue"
    command = ("dj_queue",)

    def fill_with(self, numbers: Iterable[int]) -> None:
        calls = [(self.noop, [number, "two"], {"three": 3}) for number in numbers]
        self.noop.get_backend().enqueue_all(calls)


PEER = DjQueuePeer
