"""Worker, dispatcher and scheduler as threads of the program that enqueues: for small programs, notebooks and tests."""

from __future__ import annotations

import math
import threading
from types import TracebackType
from typing import Self

from packhorse.app import Packhorse
from packhorse.queues import parse_queues
from packhorse.runtime.dispatcher import Dispatcher
from packhorse.runtime.process import Process
from packhorse.runtime.scheduler import Scheduler
from packhorse.runtime.worker import Worker


class Embedded:
    """`with Embedded(app): ...` performs jobs meanwhile; on leaving, running jobs may finish.

    One that outlasts `shutdown_timeout` goes on in its thread, and ends as usual if the program lives that long.
    """

    def __init__(self, app: Packhorse, queues: str = "*", concurrency: int = 8) -> None:
        self._app = app
        selected = parse_queues(queues)
        roles = (Worker(app, selected, concurrency), Dispatcher(app), Scheduler(app))
        self._processes = [Process(app, role) for role in roles]
        self._threads = [
            threading.Thread(target=process.run, name=f"packhorse-{process.role.name}", daemon=True)
            for process in self._processes
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        grace = self._app.settings.shutdown_timeout
        for process, thread in zip(self._processes, self._threads, strict=True):
            process.stop(within=math.inf)  # a job that takes longer keeps its lease as long as this program lives
            thread.join(grace)
