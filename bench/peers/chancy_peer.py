"""Chancy, with its asyncio executor and eager polling."""

from __future__ import annotations

import logging
from typing import Any

from chancy import Chancy, Queue, Worker, job

from bench import bodies
from bench.peers.base import Peer


async def noop(*, number: int, text: str, three: int) -> None:
    bodies.noop(number, text, three=three)


NOOP = job()(noop)


def _job(number: int) -> Any:
    return NOOP.job.with_kwargs(number=number, text="two", three=3)


def _log() -> logging.Logger:
    log = logging.getLogger("chancy")
    log.setLevel(logging.WARNING)
    return log


class ChancyPeer(Peer):
    async def install(self) -> None:
        async with Chancy(self.url, log=_log()) as chancy:
            await chancy.migrate()
            executor = Chancy.Executor.Async
            queue = Queue("default", concurrency=self.size, executor=executor, eager_polling=True)
            await chancy.declare(queue, upsert=True)

    async def open(self) -> None:
        self.chancy = Chancy(self.url, log=_log())
        await self.chancy.pool.open()

    async def close(self) -> None:
        await self.chancy.pool.close()

    async def enqueue(self, number: int) -> None:
        await self.chancy.push(_job(number))

    async def fill(self, first: int, last: int) -> None:
        async for _ in self.chancy.push_many([_job(number) for number in range(first, last + 1)]):
            pass

    async def work(self) -> None:
        async with Chancy(self.url, log=_log()) as chancy, Worker(chancy) as worker:
            await worker.wait_for_shutdown()


PEER = ChancyPeer
