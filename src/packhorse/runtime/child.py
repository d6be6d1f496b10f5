"""A process under a supervisor: `python -m packhorse.runtime.child '{...}'`, started by nobody else.

Standard input is the line to the supervisor: nothing comes in on it, but its end means that the supervisor is gone.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from typing import IO, Any, Literal

from packhorse import forks
from packhorse.app import Packhorse
from packhorse.errors import StoreUnavailable
from packhorse.logs import configure
from packhorse.queues import parse_queues
from packhorse.runtime.begun import Begun
from packhorse.runtime.dispatcher import Dispatcher
from packhorse.runtime.exits import RECYCLED, UNDRAINED
from packhorse.runtime.isolated import Pool
from packhorse.runtime.loading import load_app, start_folder
from packhorse.runtime.local import local_tasks
from packhorse.runtime.process import Process, Role, Trouble
from packhorse.runtime.scheduler import Scheduler
from packhorse.runtime.worker import Recycle, Worker

log = logging.getLogger("packhorse.runtime")

M_ARENA_MAX, HEAPS = -8, 2  # the first is glibc's number for what is set

RoleName = Literal["worker", "dispatcher", "scheduler"]


@dataclass(frozen=True)
class Plan:
    """What a child is to be, on its command line."""

    app: str
    role: RoleName
    queues: str = "*"
    concurrency: int = 8
    burst: bool = False
    max_jobs: int | None = None
    recycle_jobs: int | None = None
    recycle_memory: int | None = None
    cpu: int | None = None
    preload: bool = False
    log_level: str = "WARNING"
    log_format: Literal["text", "json"] = "text"
    folder: str = field(default_factory=start_folder)

    def told(self, id: bytes, supervisor: bytes) -> dict[str, Any]:
        """Everything a child must know."""
        return asdict(self) | {"id": id.hex(), "supervisor": supervisor.hex()}

    def make_role(self, app: Packhorse, begun: Begun | None = None) -> Role:
        if self.role == "dispatcher":
            return Dispatcher(app)
        if self.role == "scheduler":
            return Scheduler(app)
        return Worker(
            app,
            parse_queues(self.queues),
            self.concurrency,
            burst=self.burst,
            max_jobs=self.max_jobs,
            recycle=Recycle(self.recycle_jobs, self.recycle_memory),
            pool=Pool(app, self.app, self.folder, self.log_level, self.log_format),
            begun=begun,
        )


def main() -> None:
    given = json.loads(sys.argv[1])
    report, begun = given.pop("report"), given.pop("begun", None)
    run(given, _own_input(), report, begun)


def run(given: dict[str, Any], line: IO[bytes], report_fd: int, begun_fd: int | None = None) -> None:
    id, supervisor = bytes.fromhex(given.pop("id")), bytes.fromhex(given.pop("supervisor"))
    report = forks.keep_private(Report(report_fd))
    forks.keep_private(line)
    plan = Plan(**given)
    configure(plan.log_level, plan.log_format)
    _share_heaps()
    if plan.cpu is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {plan.cpu})
    app = load_app(plan.app, plan.folder)
    begun = None
    if begun_fd is not None:
        begun = Begun(begun_fd, plan.concurrency)
        os.close(begun_fd)
    process = Process(app, _made(plan, app, begun), id=id, supervisor=supervisor, report=report)
    name_process(f"{plan.role} {app.name}")
    # The terminal sends INT to everybody; the supervisor alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forks.handle(signal.SIGTERM, lambda *_: process.stop())
    forks.handle(signal.SIGUSR1, lambda *_: process.quiet())
    threading.Thread(target=_listen, args=(line, process), name="packhorse-line", daemon=True).start()
    report({"ready": True})
    with local_tasks(app, id) if plan.role == "worker" else nullcontext():
        process.run()
    app.close()
    logging.shutdown()
    sys.stdout.flush()
    # A task's stray threads must not keep a stopped process alive.
    os._exit(_status(process))


def _share_heaps() -> None:
    """glibc would give each slot a heap of its own, which never shrinks: a worker would grow for its first hour."""
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS)


def _made(plan: Plan, app: Packhorse, begun: Begun | None) -> Role:
    """Where the store keeps the keys, a role cannot be made while it is away."""
    trouble = Trouble()
    while True:
        try:
            return plan.make_role(app, begun)
        except StoreUnavailable as error:
            delay = trouble.delay()
            log.warning("a %s cannot begin yet: %s; trying again in %.1f s", plan.role, error, delay)
            time.sleep(delay)


def _status(process: Process) -> int:
    if not process.role.drained:
        return UNDRAINED
    return RECYCLED if process.recycled else 0


class Report:
    """The line back to the supervisor; never waits, since what is not heard now is said again."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        os.set_inheritable(fd, False)
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def __call__(self, said: dict[str, Any]) -> None:
        with suppress(OSError):
            os.write(self._fd, json.dumps(said).encode() + b"\n")


def name_process(name: str) -> None:
    """For those who look at a list of processes, where setproctitle is installed."""
    try:
        from setproctitle import setproctitle  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return
    setproctitle(f"packhorse: {name}")


def _own_input() -> IO[bytes]:
    """Keep the line for ourselves; tasks that read standard input find it empty."""
    line = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return line


def _listen(line: IO[bytes], process: Process) -> None:
    line.read()
    with suppress(Exception):  # it may be about to end by itself
        process.beat_alone()  # running jobs may still take a while
        process.stop()


if __name__ == "__main__":
    main()
