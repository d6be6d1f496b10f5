"""A SQLite store all of whose strokes go through one connection that another program has lent, in its transaction.

For tests whose transaction is never committed: nobody else sees what is in it, and nobody else can write meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from packhorse.clock import Clock
from packhorse.stores import sqlite_lent
from packhorse.stores.contract import ProcessInfo, Retention
from packhorse.stores.sql_store import SQLStore
from packhorse.stores.sqlite import SQLiteStore
from packhorse.stores.waiting_room import LonelyRoom, WaitingRoom

T = TypeVar("T")


class SQLiteGuest(SQLiteStore):
    shared = False

    def __init__(self, url: str, clock: Clock, connection: object) -> None:
        super().__init__(url, clock)
        self.hosted = True
        self._lent_by = connection
        self._one_at_a_time = RLock()

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with self._one_at_a_time, sqlite_lent.session(self._lent_by, self.prefix) as c:
            yield c

    def _write(self, work: Callable[[Any], T], *, patient: bool = False) -> T:
        with self._one_at_a_time:
            return sqlite_lent.stroke(self._lent_by, None, self.prefix, work)

    # What a store does besides, on connections and files of its own.

    def enroll(self, process: ProcessInfo, lease: int) -> None:
        SQLStore.enroll(self, process, lease)

    def prune(self, retention: Retention, limit: int) -> int:
        return SQLStore.prune(self, retention, limit)

    def backup(self, target: Path, *, replace: bool, progress: Callable[[int, int], None]) -> list[Path]:
        return SQLStore.backup(self, target, replace=replace, progress=progress)

    def _new_room(self) -> WaitingRoom:
        """The connection is its thread's alone."""
        return LonelyRoom(self)
