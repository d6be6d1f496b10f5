"""Procrastinate with its psycopg connector."""

from __future__ import annotations

from procrastinate import App, PsycopgConnector

from bench import bodies
from bench.peers.base import Peer, parts


async def noop(number: int, text: str, three: int) -> None:
    bodies.noop(number, text, three=three)


class ProcrastinatePeer(Peer):
    def __init__(self, url: str, size: int) -> None:
        super().__init__(url, size)
        self.app = App(connector=PsycopgConnector(conninfo=url))
        self.noop = self.app.task(name="noop")(noop)

    async def install(self) -> None:
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await self.app.open_async()

    async def close(self) -> None:
        await self.app.close_async()

    async def enqueue(self, number: int) -> None:
        await self.noop.defer_async(number=number, text="two", three=3)

    async def fill(self, first: int, last: int) -> None:
        for part in parts(first, last):
            await self.noop.batch_defer_async(*({"number": number, "text": "two", "three": 3} for number in part))

    async def work(self) -> None:
        async with self.app.open_async():
            await self.app.run_worker_async(concurrency=self.size)


PEER = ProcrastinatePeer
