"""SAQ with its PostgreSQL queue."""

from __future__ import annotations

import asyncio
from typing import Any

from saq import Worker
from saq.queue.postgres import PostgresQueue

from bench import bodies
from bench.peers.base import Peer, parts

AT_ONCE = 100  # it has no call for many


async def noop(context: Any, *, number: int, text: str, three: int) -> None:
    bodies.noop(number, text, three=three)


class SaqPeer(Peer):
    async def install(self) -> None:
        await self.open()
        await self.close()

    async def open(self) -> None:
        self.queue = PostgresQueue.from_url(self.url)
        await self.queue.connect()

    async def close(self) -> None:
        await self.queue.disconnect()

    async def enqueue(self, number: int) -> None:
        await self.queue.enqueue("noop", number=number, text="two", three=3)

    async def fill(self, first: int, last: int) -> None:
        for part in parts(first, last, AT_ONCE):
            await asyncio.gather(*(self.enqueue(number) for number in part))

    async def work(self) -> None:
        await self.open()
        await Worker(self.queue, [noop], concurrency=self.size).start()
        await self.close()


PEER = SaqPeer
