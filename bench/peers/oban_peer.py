"""Oban for Python, embedded: an instance and a pool in each process."""

from __future__ import annotations

from typing import Any

from oban import Oban, worker
from oban.schema import install

from bench import bodies
from bench.peers.base import Peer, parts, terminated


class Noop:
    async def process(self, job: Any) -> None:
        bodies.noop(job.args["number"], job.args["text"], three=job.args["three"])


NOOP = worker(queue="default")(Noop)


def _job(number: int) -> Any:
    return NOOP.new({"number": number, "text": "two", "three": 3})


class ObanPeer(Peer):
    uvloop = True

    async def install(self) -> None:
        pool = await Oban.create_pool(dsn=self.url)
        await install(pool)
        await pool.close()

    async def open(self) -> None:
        self.pool = await Oban.create_pool(dsn=self.url)
        self.oban = Oban(pool=self.pool)

    async def close(self) -> None:
        await self.pool.close()

    async def enqueue(self, number: int) -> None:
        await self.oban.enqueue(_job(number))

    async def fill(self, first: int, last: int) -> None:
        for part in parts(first, last):
            await self.oban.enqueue_many(_job(number) for number in part)

    async def work(self) -> None:
        stop = terminated()
        pool = await Oban.create_pool(dsn=self.url)
        async with Oban(pool=pool, queues={"default": self.size}):
            await stop.wait()
        await pool.close()


PEER = ObanPeer
