"""One worker process of a peer: `python -m bench.peers.worker NAME URL SIZE`, from a line on its input to TERM."""

from __future__ import annotations

import asyncio
import sys

from bench.peers.base import Peer, find, run


async def main(peer: Peer) -> None:
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await peer.work()


if __name__ == "__main__":
    me = find(sys.argv[1])(sys.argv[2], int(sys.argv[3]))
    run(me, main(me))
