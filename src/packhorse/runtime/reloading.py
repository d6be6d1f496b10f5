"""For development: the same command again whenever a source file changes. Jobs that run go back unspent."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from packhorse.runtime.wakeup import Wake

log = logging.getLogger("packhorse.supervisor")

EVERY = 0.5
LEFT_OUT = {"__pycache__", "node_modules", "site-packages"}


class Reloader:
    """Watches the Python files below a folder. A command that ends by itself is started again at the next change."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = list(command)
        self._folder = folder
        self._wake = Wake()
        self._signal: int | None = None

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._on_signal)
        while True:
            seen = snapshot(self._folder)
            process = subprocess.Popen(self._command, start_new_session=True)
            while self._signal is None and snapshot(self._folder) == seen:
                self._wake.wait(EVERY)
            if self._signal is None:
                log.info("source files have changed: starting anew")
            process.send_signal(self._signal or signal.SIGTERM)
            status = process.wait()
            if self._signal is not None:
                return status

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        self._wake.set()


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
