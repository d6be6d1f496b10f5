"""A program in which thousands wait for results, in threads and in coroutines: `python -m chaos.crowd SEED RATE`.

It enqueues jobs for later, and several wait for each. With TERM it enqueues no more, and ends once everybody was told.
What the store says while it is away is borne with; whoever is never told keeps the program from ending.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from chaos import jobs
from chaos.history import Ack
from chaos.ledger import now
from packhorse import EnqueueError, JobCancelled, JobFailed, JobHandle, Packhorse
from packhorse.errors import StoreError

COROUTINES = 8  # that wait for each job
EVERY = 0.5  # seconds between two rounds
SYNC = 3  # jobs of a round for each of which a thread waits
LATER = (0.5, 20.0)  # seconds until a job is due
BACK_OFF = 0.2


class Crowd:
    def __init__(self, app: Packhorse, acks: Path, seed: int, per_second: float) -> None:
        self._app = app
        self._task = app.tasks["plain"]
        self._acks = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._dice = random.Random(seed)
        self._number = max(1, round(per_second * EVERY))
        self._threads: list[threading.Thread] = []
        self._waiting: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        parent = os.getppid()
        while not self._stopping.is_set() and os.getppid() == parent:
            await self._round()
            await asyncio.sleep(EVERY)
        while self._waiting:
            await asyncio.wait(self._waiting)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    async def _round(self) -> None:
        at, calls = now(), []
        for _ in range(self._number):
            calls.append(self._task.using(run_after=self._dice.uniform(*LATER)).call())
        try:
            handles = await self._app.aenqueue_many(calls)
        except (EnqueueError, StoreError):
            return
        acks = (Ack(handle.id, "awaited", at) for handle in handles)
        os.write(self._acks, "".join(json.dumps(ack) + "\n" for ack in acks).encode())
        for handle in handles:
            for _ in range(COROUTINES):
                task = asyncio.create_task(_await(handle))
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for handle in handles[:SYNC]:
            self._threads.append(threading.Thread(target=_wait, args=[handle], daemon=True))
            self._threads[-1].start()


async def _await(handle: JobHandle[object]) -> None:
    while True:
        try:
            await handle.aresult()
        except (JobFailed, JobCancelled):
            return
        except StoreError:
            await asyncio.sleep(BACK_OFF)
        else:
            return


def _wait(handle: JobHandle[object]) -> None:
    while True:
        try:
            handle.result()
        except (JobFailed, JobCancelled):
            return
        except StoreError:
            time.sleep(BACK_OFF)
        else:
            return


def main() -> None:
    seed, per_second = int(sys.argv[1]), float(sys.argv[2])
    crowd = Crowd(jobs.from_environment(), Path(os.environ["CHAOS_FOLDER"]) / "acks-crowd", seed, per_second)
    asyncio.run(crowd.run())


if __name__ == "__main__":
    main()
