"""PgQueuer, called from code over one asyncpg connection for each process."""

from __future__ import annotations

import json

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench import bodies
from bench.peers.base import Peer, parts, terminated


def _payload(number: int) -> bytes:
    return json.dumps({"a": [number, "two"], "k": {"three": 3}}).encode()


async def noop(job: Job) -> None:
    call = json.loads(job.payload or b"")
    bodies.noop(*call["a"], **call["k"])


class PgqueuerPeer(Peer):
    uvloop = True

    async def install(self) -> None:
        await self.open()
        await self.queries.install()
        await self.close()

    async def open(self) -> None:
        self.connection = await asyncpg.connect(self.url)
        self.queries = Queries.from_asyncpg_connection(self.connection)

    async def close(self) -> None:
        await self.connection.close()

    async def enqueue(self, number: int) -> None:
        await self.queries.enqueue("noop", _payload(number))

    async def fill(self, first: int, last: int) -> None:
        for part in parts(first, last):
            await self.queries.enqueue(["noop"] * len(part), [_payload(number) for number in part], [0] * len(part))

    async def work(self) -> None:
        queuer = PgQueuer.from_asyncpg_connection(await asyncpg.connect(self.url))
        queuer.shutdown = queuer.qm.shutdown = queuer.sm.shutdown = terminated()
        queuer.entrypoint("noop")(noop)
        await queuer.run(batch_size=self.size)


PEER = PgqueuerPeer
