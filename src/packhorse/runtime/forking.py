"""Children forked from a server that has imported the application once, so that they share its memory.

The server is Python's own (`multiprocessing`): a clean process without threads that does nothing but fork. The
application must not open files or connections, or start threads, while it is imported.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, chdir, suppress
from multiprocessing.connection import Connection
from typing import Any

from packhorse import forks
from packhorse.runtime.loading import existing, here_first

CONTEXT = multiprocessing.get_context("forkserver")


class Forked:
    """As much of subprocess.Popen as the supervisor needs."""

    def __init__(self, main: Callable[..., None], module: str, plan: dict[str, Any], begun: int | None = None) -> None:
        """`begun` is a descriptor that the child gets too; it may be closed afterwards."""
        here_first(plan["folder"])
        CONTEXT.set_forkserver_preload([main.__module__, module])
        theirs, self._line = CONTEXT.Pipe(duplex=False)
        self._report, report = CONTEXT.Pipe(duplex=False)
        forks.keep_private(self._line)
        with theirs, report, ExitStack() as stack:
            # A connection is the kind of descriptor that `multiprocessing` hands over.
            page = None if begun is None else stack.enter_context(Connection(os.dup(begun), writable=False))
            self._process = CONTEXT.Process(target=_begin, args=(main, json.dumps(plan), theirs, report, page))
            if (folder := existing(plan["folder"])) is not None:
                stack.enter_context(chdir(folder))
            self._process.start()

    def report(self) -> int:
        """A descriptor to hear it on."""
        with self._report:
            return os.dup(self._report.fileno())

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int:
        assert self._process.exitcode is not None
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        return self.returncode

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _begin(main: Callable[..., None], plan: str, line: Connection, report: Connection, page: Connection | None) -> None:
    signal.set_wakeup_fd(-1)
    with line, report:
        ours, reporting = os.fdopen(os.dup(line.fileno()), "rb"), os.dup(report.fileno())
    begun = None
    if page is not None:
        with page:
            begun = os.dup(page.fileno())
    main(json.loads(plan), ours, reporting, begun)
