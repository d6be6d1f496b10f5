"""Sleeping until something changes: the server calls, but only who sleeps, and a counter tells what was missed.

Who writes takes a place among the writers, calls if anybody listens, counts, and commits. Who is about to sleep begins
to listen and then looks at the counter, and whether anybody is among the writers: they may have looked for listeners
before it was one, and not committed yet. So it looks again until they are gone.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg
from psycopg import sql

from packhorse.errors import StoreError
from packhorse.stores.contract import Watch
from packhorse.stores.postgres_connections import Connection, Connections, quoted, raise_translated
from packhorse.stores.postgres_session import Schema, lock_key
from packhorse.stores.sql_store import Bell

COUNTERS = {Bell.READY: "change_ready", Bell.ENDED: "change_ended"}
RING = "select ring($1, $2::regclass, $3, $4)"
LOOK_ANYWAY = 30.0  # for a server that calls no more, or a line that is cut without a word; roles look more often
LOOK_POOLED = 1.0  # where nobody calls
FIRST_LOOK, LAST_LOOK = 0.001, 0.05
CALL_WITHIN = 2.0  # seconds for a call to oneself to arrive

log = logging.getLogger("packhorse.store")


def channel(schema: Schema, bell: Bell) -> str:
    return f"packhorse_{lock_key(schema, 'channel') & 0xFFFFFFFF:08x}_{bell.value}"


def ring_arguments(schema: Schema, bell: Bell) -> tuple[Any, ...]:
    return _ring_arguments(str(schema), schema.prefix, bell)


@cache
def _ring_arguments(name: str, prefix: str, bell: Bell) -> tuple[Any, ...]:
    schema = Schema(name, prefix)
    keys = [lock_key(schema, what, bell.value) for what in ("writing", "listening")]
    return channel(schema, bell), f"{prefix}{COUNTERS[bell]}", *keys


class PostgresWatch(Watch):
    misses_nothing = False  # a server may call no more, and a line be cut without a word

    def __init__(self, connections: Connections, bell: Bell, on_call: Callable[[], None] = lambda: None) -> None:
        self._connections = connections
        self._on_call = on_call
        self._bell = bell
        name, counter, self._writing, self._listening = ring_arguments(connections.schema, bell)
        self._counter = f"{quoted(connections.schema)}.{counter}"
        self._listen = sql.SQL("listen {}").format(sql.Identifier(name))
        self._call_out, self._call = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._listens = False
        self._deaf = False  # calls do not get through, whatever stands between
        self._connection: Connection | None = None
        try:
            self._seen, quiet = self._look()
            self._owed = not quiet
        except BaseException as error:
            self.close()
            raise_translated(error)
            raise

    def wait(self, timeout: float) -> bool:
        with self._translating():
            return self._wait(time.monotonic() + timeout)

    def settle(self) -> None:
        """Listen no more. What came since the call is told by the next look: who was called may have missed it."""
        with self._translating():
            if self._listens:
                self._stop_listening()
                self._heard()

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, OSError, StoreError) as error:
            self._drop()
            raise_translated(error)
            raise

    def _wait(self, deadline: float) -> bool:
        pause = FIRST_LOOK
        while True:
            count, quiet = self._look(listen=True)
            if count != self._seen:
                # Who has counted and not committed is part of the count: that is told again.
                self._seen, self._owed = count, not quiet
                return True
            if self._owed and quiet:
                self._owed = False
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            pause = self._patience if quiet else min(2 * pause, LAST_LOOK)
            called = self._sleep(min(left, pause))
            if called:  # by somebody who has committed
                self._on_call()
                return True
            if called is None:
                return False

    @property
    def _patience(self) -> float:
        return LOOK_POOLED if self._connected().pooled or self._deaf else LOOK_ANYWAY

    def _sleep(self, seconds: float) -> bool | None:
        """Whether the server called; None where somebody else did."""
        if self._heard():  # a call may have come together with the answer to a look
            return True
        server = self._connected().fileno()
        ready, _, _ = select.select([server, self._call_out], [], [], seconds)
        if self._call_out in ready:
            os.read(self._call_out, 4096)
            return None
        return server in ready and self._heard()

    def _heard(self) -> bool:
        return bool(list(self._connected().notifies(timeout=0)))

    def _look(self, *, listen: bool = False) -> tuple[int, bool]:
        """The counter, and whether nobody is about to commit."""
        connection = self._connected()
        with connection.pipeline():
            if listen and not self._listens and not connection.pooled and not self._deaf:
                connection.execute("select pg_advisory_lock_shared(%s)", [self._listening])
                self._listens = True
            found = connection.execute(f"select last_value, is_called from {self._counter}".encode())
            free = "select pg_try_advisory_lock(%s) and pg_advisory_unlock(%s)"
            quiet = connection.execute(free, [self._writing, self._writing])
            value, called = found.fetchone() or (0, False)
            return value if called else 0, bool((quiet.fetchone() or (False,))[0])

    def _stop_listening(self) -> None:
        if self._connection is not None and not self._connection.closed and self._listens:
            self._connection.execute("select pg_advisory_unlock_shared(%s)", [self._listening])
            self._listens = False

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            connection = self._connections.connect()
            try:
                if not connection.pooled:  # a pooler that hands out transactions lets nobody listen: then it is looked
                    self._test(connection)
                    connection.execute(self._listen)
            except BaseException:
                connection.close()
                raise
            self._connection, self._listens = connection, False
        return self._connection

    def _test(self, connection: Connection) -> None:
        """Call ourselves, as others will: on another line, by a name that nobody else knows."""
        name = f"packhorse_{secrets.token_hex(8)}"
        connection.execute(sql.SQL("listen {}").format(sql.Identifier(name)))
        with self._connections.on_own_lane():
            caller = self._connections.take()
        try:
            caller.execute("select pg_notify(%s, '')", [name])
        finally:
            self._connections.give_back(caller)
        deaf = not list(connection.notifies(timeout=CALL_WITHIN, stop_after=1))
        connection.execute(sql.SQL("unlisten {}").format(sql.Identifier(name)))
        if deaf and not self._deaf:
            log.warning("calls of the server do not arrive (NOTIFY): jobs are looked for each %g s", LOOK_POOLED)
        self._deaf = deaf

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def wake(self) -> None:
        try:
            os.write(self._call, b"!")
        except BlockingIOError:
            pass  # the pipe is full of calls already

    def close(self) -> None:
        self._drop()
        os.close(self._call_out)
        os.close(self._call)
