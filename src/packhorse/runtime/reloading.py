"""For development: the same command again whenever a source file changes. Jobs that run go back unspent."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from packhorse.runtime.wakeup import Wake

log = logging.getLogger("packhorse.supervisor")

EVERY = 0.5
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
VARIABLE = "_PACKHORSE_RELOADER"  # the descriptor on which a command sees that its reloader is gone
LEFT_OUT = {"__pycache__", "node_modules", "site-packages"}


class Reloader:
    """Watches the Python files below a folder. A command that ends by itself is started again at the next change.

    Signals go on to the command as they come: it alone knows what a second one means. It runs in a session of its own,
    so that what a terminal sends to all arrives there once.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = list(command)
        self._folder = folder
        self._wake = Wake()
        self._process: subprocess.Popen[bytes] | None = None
        self._came: deque[int] = deque()  # and have to be passed on
        self._passed_on: set[int] = set()
        self._stopping = False
        self._line, self._alive = os.pipe()  # the second is open in this process alone, as long as it lives

    def run(self) -> int:
        """Until a signal; the exit status of the command."""
        for number in (*ENDING, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: self._wake.set())
        status = 0
        while not self._stopping:
            seen = snapshot(self._folder)
            self._process = self._start()
            status = self._attend(self._process, seen)
        return 0 if -status in self._passed_on else status  # before it could mind any

    def _start(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {VARIABLE: str(self._line)}
        return subprocess.Popen(self._command, start_new_session=True, pass_fds=[self._line], env=environment)

    def _attend(self, process: subprocess.Popen[bytes], seen: dict[str, int]) -> int:
        """Until it has ended, and is to be started anew or not at all; its exit status."""
        changed = False
        while True:
            if (status := process.poll()) is not None and (changed or self._stopping):
                return status
            self._pass_on()
            if not (changed or self._stopping) and snapshot(self._folder) != seen:
                changed = True
                log.info("source files have changed: starting anew")
                process.send_signal(signal.SIGTERM)
            else:
                self._wake.wait(EVERY)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
        self._stopping |= number in ENDING
        self._pass_on()
        self._wake.set()

    def _pass_on(self) -> None:
        """In the signal handler, as two that wait together would arrive as one; later where no command runs yet."""
        process = self._process
        while process is not None and process.returncode is None:
            try:
                number = self._came.popleft()
            except IndexError:
                return
            self._passed_on.add(number)
            process.send_signal(number)


def heed_end(stop: Callable[[], object]) -> None:
    """Where this process was started by a reloader: stop when that is gone, since signals are sent to it."""
    fd = int(os.environ.pop(VARIABLE, -1))
    if fd >= 0 and _is_pipe(fd):
        os.set_inheritable(fd, False)
        threading.Thread(target=_wait_for_end, args=(fd, stop), name="packhorse-reloader", daemon=True).start()


def _wait_for_end(fd: int, stop: Callable[[], object]) -> None:
    os.read(fd, 1)  # nothing is ever written
    log.warning("the reloader is gone")
    stop()


def _is_pipe(fd: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:  # of a process that was started by the one it was meant for
        return False


def snapshot(folder: Path) -> dict[str, int]:
    """When each Python file was last written."""
    return dict(_files(folder))


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith((".", "venv"))]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(place, name)
                try:
                    yield path, os.stat(path).st_mtime_ns
                except OSError:
                    continue
