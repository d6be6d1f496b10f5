"""Whose transaction holds up the strokes of ours: one that is not ours, on a connection that was lent or any other."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

import psycopg

from packhorse.errors import StoreError
from packhorse.stores.postgres_connections import MARKED, Connections
from packhorse.stores.postgres_session import Schema, Session, session_mark, subject_keys

log = logging.getLogger("packhorse.store")

IDLE = 0.2  # seconds without a word in the middle of a transaction: whoever is at work is soon through, mostly
AT_WORK = 2.5  # seconds that a transaction may be at work before it counts as one that holds others up
TELL_EVERY = 60.0  # seconds between words in the log about the same transaction
FORGET = 1_000  # transactions that were told of
TABLES = ("job", "unique_key", "edge", "permit")
# Of other users the server does not say how they are, but who they are. What is held is a subject, for certain in
# somebody's way, or rows of our tables, which may be: who holds subjects is named before the others.
HOLDERS = f"""
    with held as (
        select pid, bool_or(locktype = 'advisory') as subject from pg_locks
        where granted and pid <> pg_backend_pid()
          and database = (select oid from pg_database where datname = current_database())
          and (
            (locktype = 'advisory' and objsubid = 1
             and (classid::bigint << 32 | objid::bigint) = any($2::bigint[]))
            or (locktype = 'relation' and mode <> 'AccessShareLock' and relation = any(array(
                select oid from pg_class where relnamespace = (select oid from pg_namespace where nspname = $3::text)
                                           and relname = any($4::text[])
            )))
          )
        group by pid
    )
    select held.pid::bigint, coalesce(usename::text, '')::text, coalesce(application_name, '')::text,
           coalesce(state, '')::text, coalesce(extract(epoch from clock_timestamp() - xact_start), 0)::float8,
           coalesce(extract(epoch from clock_timestamp() - state_change), 0)::float8, subject
    from held join pg_stat_activity as activity on activity.pid = held.pid
    where held.pid not in ({MARKED}) and (
        state is null
        or (state like 'idle in transaction%' and state_change < clock_timestamp() - make_interval(secs => $5::float8))
        or xact_start < clock_timestamp() - make_interval(secs => $6::float8)
    )
    order by subject desc, xact_start
"""


class Holder(NamedTuple):
    """A back-end with a transaction, and locks of ours in it."""

    pid: int
    user: str
    application: str
    state: str
    open: float  # seconds
    idle: float
    holds_subject: bool

    def __str__(self) -> str:
        name = f" of {self.application!r}" if self.application else ""
        return f"a transaction{name} (pid {self.pid}, user {self.user or 'unknown'}{self._for_how_long})"

    @property
    def _for_how_long(self) -> str:
        if not self.state:
            return ""
        idle = f", idle for {self.idle:.1f} s" if self.state.startswith("idle") else ""
        return f", open for {self.open:.1f} s{idle}"


def find(c: Session, schema: Schema, idle: float = IDLE, at_work: float = AT_WORK) -> list[Holder]:
    """Those who are not of ours, as known by the mark of our sessions."""
    tables = [f"{schema.prefix}{table}" for table in TABLES]
    found = c.plain(HOLDERS, [session_mark(schema), subject_keys(schema), str(schema), tables, idle, at_work])
    return [Holder(*row) for row in found.fetchall()]


class Holders:
    """Looks for them, and says in the log who they are."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._told: dict[int, float] = {}
        self._lock = Lock()

    def look(self) -> Holder | None:
        """Who most likely is in the way; None where nobody is but ourselves."""
        connections = self._connections
        with suppress(psycopg.Error, StoreError):
            with connections.session() as c:
                found = find(c, connections.schema)
            for holder in found:
                if holder.holds_subject or not found[0].holds_subject:
                    self._tell(holder)
            return found[0] if found else None
        return None

    def _tell(self, holder: Holder) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._told.get(holder.pid, -TELL_EVERY) < TELL_EVERY:
                return
            if len(self._told) > FORGET:
                self._told.clear()
            self._told[holder.pid] = now
        log.warning(
            "%s holds what others wait for: plain jobs go on, what waits for it is put off until it has ended", holder
        )
