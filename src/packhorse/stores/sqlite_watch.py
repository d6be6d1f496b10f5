"""Seeing other connections' commits: SQLite counts them, the kernel says when to look."""

from __future__ import annotations

import os
import select
import time

from packhorse.stores.contract import Watch
from packhorse.stores.inotify import FileEvents
from packhorse.stores.sqlite_connections import Connections, raise_translated

FIRST_LOOK, LAST_LOOK = 0.000_2, 0.01  # pauses after a write until its commit is visible
LOOK_ANYWAY = 0.25
LOOK_WITHOUT_EVENTS = 0.01


class SQLiteWatch(Watch):
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._connection = connections.take()
        self._seen = self._version()
        self._connection.unclaim()
        self._written = False
        self._bell_out, self._bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._bell_out, select.POLLIN)
        self._events: FileEvents | None = None
        self._look_every = LOOK_WITHOUT_EVENTS
        try:
            self._events = FileEvents(connections.path.with_name(connections.path.name + "-wal"))
        except OSError:
            return  # no inotify here, or too many watches already: look often instead
        self._poll.register(self._events.fd, select.POLLIN)
        self._look_every = LOOK_ANYWAY

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            # A write is noticed before its commit is visible, and this commit may hide another one behind it.
            self._written = (self._events is not None and self._events.drain()) or self._written
            if self._changed():
                return True
            if self._written and self._look_closely():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            ready = self._poll.poll(min(left, self._look_every) * 1000)
            if any(fd == self._bell_out for fd, _ in ready):
                os.read(self._bell_out, 4096)
                return False

    def _look_closely(self) -> bool:
        self._written = False
        pause = FIRST_LOOK
        while pause < LAST_LOOK:
            time.sleep(pause)
            if self._changed():
                return True
            pause *= 1.5
        return False

    def _changed(self) -> bool:
        if not self._connection.claim():  # closed for a fork
            self._connection = self._connections.take()
            self._seen = -1  # each connection counts for itself
        self._connection.check_log()
        try:
            version = self._version()
        finally:
            self._connection.unclaim()
        changed = version != self._seen
        self._seen = version
        return changed

    def _version(self) -> int:
        try:
            return int(self._connection.sqlite.execute("pragma data_version").fetchone()[0])
        except Exception as error:
            raise_translated(error)
            raise

    def wake(self) -> None:
        try:
            os.write(self._bell, b"!")
        except BlockingIOError:
            pass  # the pipe is full of calls already

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        os.close(self._bell_out)
        os.close(self._bell)
        if self._connection.claim():
            self._connections.give_back(self._connection)
