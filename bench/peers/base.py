"""What every peer can do inside its own environment."""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from importlib import import_module

CHUNK = 1_000


class Peer(ABC):
    """`size` is how much one of its processes takes at a time: a batch, or jobs at once."""

    uvloop = False

    def __init__(self, url: str, size: int) -> None:
        self.url = url
        self.size = size

    @abstractmethod
    async def install(self) -> None:
        """Its tables, in an empty database."""

    @abstractmethod
    async def open(self) -> None:
        """Ready to enqueue."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def enqueue(self, number: int) -> None: ...

    @abstractmethod
    async def fill(self, first: int, last: int) -> None:
        """Many, in the quickest way it has."""

    @abstractmethod
    async def work(self) -> None:
        """Until TERM."""


def find(name: str) -> type[Peer]:
    found: type[Peer] = import_module(f"bench.peers.{name}_peer").PEER
    return found


def run(main: Peer, coroutine: object) -> None:
    factory = import_module("uvloop").new_event_loop if main.uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(coroutine)  # type: ignore[arg-type]


def terminated() -> asyncio.Event:
    """Set by TERM."""
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, event.set)
    return event


def parts(first: int, last: int, size: int = CHUNK) -> list[range]:
    return [range(start, min(start + size, last + 1)) for start in range(first, last + 1, size)]
