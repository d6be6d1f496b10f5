"""A PostgreSQL store all of whose strokes go through one connection that another program has lent, in its transaction.

For tests whose transaction is never committed: nobody else sees what is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar, cast

from packhorse.clock import Clock
from packhorse.job import NewJob
from packhorse.stores.contract import Exchanged, ProcessInfo, Retention
from packhorse.stores.postgres import PostgresStore
from packhorse.stores.postgres_direct import Direct
from packhorse.stores.postgres_session import Session
from packhorse.stores.postgres_strokes import How, Rolled
from packhorse.stores.sql_store import Bell, SQLStore
from packhorse.stores.waiting_room import LonelyRoom, WaitingRoom

if TYPE_CHECKING:
    from typing import Unpack

T = TypeVar("T")


class PostgresGuest(PostgresStore):
    shared = False

    def __init__(self, url: str, clock: Clock, connection: object) -> None:
        super().__init__(url, clock)
        self.hosted = True
        self._lent_by = connection

    def _cursor(self) -> AbstractContextManager[Session]:
        return self._borrower.session(self._lent_by)

    def _stroke(self, point: str, work: Callable[[Session], T], bell: Bell = Bell.NOBODY, **how: Unpack[How]) -> T:
        try:
            return self._lent_stroke(self._lent_by, None, work, bell)
        except Rolled as rolled:
            return cast(T, rolled.answer)

    def insert(self, jobs: Sequence[NewJob]) -> list[bytes]:
        return self._stroke("insert", lambda c: self._insert(c, jobs, self.clock.now()), Bell.READY)

    def _exchange_directly(self, it: Direct) -> Exchanged | None:
        """A refusal would cost more here than all the steps."""
        return None

    # What a store does besides, on connections of its own.

    def enroll(self, process: ProcessInfo, lease: int) -> None:
        SQLStore.enroll(self, process, lease)

    def prune(self, retention: Retention, limit: int) -> int:
        return SQLStore.prune(self, retention, limit)

    def _new_room(self) -> WaitingRoom:
        """The connection is its thread's alone."""
        return LonelyRoom(self)
