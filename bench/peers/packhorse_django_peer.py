"""Packhorse itself as a backend for Django's tasks."""

from __future__ import annotations

from collections.abc import Iterable

from bench.peers.site import SitePeer
from packhorse.django import enqueue_many


class PackhorseDjangoPeer(SitePeer):
    backend = "packhorse_django"
    command = ("packhorse", "--verbosity", "0")

    def fill_with(self, numbers: Iterable[int]) -> None:
        enqueue_many(self.noop.later(number, "two", three=3) for number in numbers)


PEER = PackhorseDjangoPeer
