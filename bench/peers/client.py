"""A program that enqueues with a peer: `python -m bench.peers.client NAME URL SIZE`, a call in JSON on each line."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.peers.base import Peer, find, run
from bench.producer import at_full_speed, one_by_one


async def serve(peer: Peer) -> None:
    async def enqueue(number: int) -> int:
        await peer.enqueue(number)
        return time.monotonic_ns()

    calls: dict[str, Callable[..., Awaitable[Any]]] = {
        "install": peer.install,
        "open": peer.open,
        "close": peer.close,
        "enqueue": enqueue,
        "fill": peer.fill,
        "one_by_one": lambda *numbers: one_by_one(peer.enqueue, *numbers),
        "at_full_speed": lambda *given: at_full_speed(peer.enqueue, *given),
    }
    read = asyncio.get_running_loop().run_in_executor
    while line := await read(None, sys.stdin.readline):
        name, *arguments = json.loads(line)
        answer = await calls[name](*arguments)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    me = find(sys.argv[1])(sys.argv[2], int(sys.argv[3]))
    run(me, serve(me))
