"""Steady Queue: a supervisor that forks its workers."""

from __future__ import annotations

from bench.peers.site import SitePeer


class SteadyQueuePeer(SitePeer):
    backend = "steady_queue"
    command = ("steady_queue",)


PEER = SteadyQueuePeer
