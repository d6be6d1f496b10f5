"""Worker, dispatcher and scheduler as threads of one process: of a program that enqueues, or `packhorse worker`."""

from __future__ import annotations

import math
import signal
import threading
from types import FrameType, TracebackType
from typing import Self

from packhorse import forks
from packhorse.app import Packhorse
from packhorse.errors import ConfigError
from packhorse.queues import parse_queues
from packhorse.runtime.dispatcher import Dispatcher
from packhorse.runtime.exits import UNDRAINED
from packhorse.runtime.isolated import Pool
from packhorse.runtime.loading import path_of, start_folder
from packhorse.runtime.local import local_tasks
from packhorse.runtime.process import Process
from packhorse.runtime.reloading import heed_end
from packhorse.runtime.scheduler import Scheduler
from packhorse.runtime.worker import Worker

SIGNALS_EVERY = 0.2  # seconds after which a signal is seen at the latest


class Embedded:
    """`with Embedded(app): ...` performs jobs meanwhile; on leaving, running jobs may finish.

    One that outlasts `shutdown_timeout` goes on in its thread, and ends as usual if the program lives that long.
    """

    def __init__(self, app: Packhorse, queues: str = "*", concurrency: int = 8) -> None:
        self._app = app
        self._processes = _processes(app, queues, concurrency)
        self._local = local_tasks(app, self._processes[0].id)
        self._threads = [
            threading.Thread(target=process.run, name=f"packhorse-{process.role.name}", daemon=True)
            for process in self._processes
        ]

    def __enter__(self) -> Self:
        self._entered_in = forks.generation
        for thread in self._threads:
            thread.start()
        self._local.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if forks.generation != self._entered_in:
            return  # of a child that the program has forked: the threads are its parent's
        grace = self._app.settings.shutdown_timeout
        for process, thread in zip(self._processes, self._threads, strict=True):
            process.stop(within=math.inf)  # a job that takes longer keeps its lease as long as this program lives
            thread.join(grace)
        self._local.__exit__(None, None, None)


def _processes(
    app: Packhorse, queues: str, concurrency: int, *, burst: bool = False, max_jobs: int | None = None
) -> list[Process]:
    path = path_of(app)
    if path is None and (names := [task.name for task in app.tasks.values() if task.performed.isolate]):
        raise ConfigError(
            f"Task {names[0]!r} wants a process of its own, which has to import this application: keep it in a "
            "variable of a module, or leave isolate out."
        )
    pool = None if path is None else Pool(app, path, start_folder())
    worker = Worker(app, parse_queues(queues), concurrency, burst=burst, max_jobs=max_jobs, pool=pool)
    return [Process(app, role) for role in (worker, Dispatcher(app), Scheduler(app))]


def run_here(app: Packhorse, queues: str, concurrency: int, *, burst: bool = False, max_jobs: int | None = None) -> int:
    """All roles as threads, until a signal or until the worker has done its part; the exit status."""
    worker, *others = processes = _processes(app, queues, concurrency, burst=burst, max_jobs=max_jobs)

    def stop_all() -> None:
        for process in processes:
            process.stop()

    def stop(number: int, frame: FrameType | None) -> None:
        at_once = number == signal.SIGQUIT or (number == signal.SIGINT and worker.stop_by is not None)
        for process in processes:
            process.stop(within=0 if at_once else None)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        forks.handle(number, stop)
    forks.handle(signal.SIGUSR1, lambda *_: worker.quiet())
    heed_end(stop_all)
    threads = [threading.Thread(target=process.run, daemon=True) for process in processes]
    for thread in threads:
        thread.start()
    with local_tasks(app, worker.id):
        _outlive(threads[0])
    for process in others:
        process.stop()
    for thread in threads:
        _outlive(thread)
    return 0 if worker.role.drained else UNDRAINED


def _outlive(thread: threading.Thread) -> None:
    """Not in one long wait: a signal that the kernel gave to another thread is acted on when this one next runs."""
    while thread.is_alive():
        thread.join(SIGNALS_EVERY)
