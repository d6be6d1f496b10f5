"""PostgreSQL: a private server on a Unix socket, durable, its memory as it comes; a database for each system."""

from __future__ import annotations

import itertools
import re
import secrets
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg

from bench.stores.base import MeasuredStore
from bench.systems.bare_postgres import (
    Bare300System,
    Bare1000System,
    BareListeningSystem,
    BareOnePostgresSystem,
    BarePostgresSystem,
)
from bench.systems.peers import (
    ChancySystem,
    ObanSystem,
    PeerSystem,
    PgqueuerDefaultSystem,
    PgqueuerSystem,
    ProcrastinateSystem,
    SaqSystem,
    available,
)
from tests.servers.postgres import Server

if TYPE_CHECKING:
    from bench.lab import Lab

# What the tests make smaller, as it comes again; and lines of the log that say whose statement it was.
SETTINGS = {"shared_buffers": "128MB", "max_wal_size": "1GB", "max_connections": "100", "log_line_prefix": "%d|"}
SHOWN = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "max_connections")
STATEMENT = re.compile(r"^(\w+)\|LOG:  (?:statement|execute [^:]*): ", re.MULTILINE)


class MeasuredPostgres(MeasuredStore):
    name = "postgres"
    patience = 2.5
    bares = (BarePostgresSystem, Bare300System, Bare1000System)
    bare_one = BareOnePostgresSystem
    bare_listening = (BareListeningSystem,)
    known_peers: ClassVar[tuple[type[PeerSystem], ...]] = (
        PgqueuerSystem,
        ObanSystem,
        ChancySystem,
        ProcrastinateSystem,
        SaqSystem,
    )
    known_variants: ClassVar[tuple[type[PeerSystem], ...]] = (PgqueuerDefaultSystem,)

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self._numbers = itertools.count(1)
        self._made: list[str] = []
        self._key = secrets.token_urlsafe(32)
        self.server = Server(Path(tempfile.gettempdir()))

    def open(self) -> None:
        self.server.start(**SETTINGS)
        # By ALTER SYSTEM, since what a server was started with could not be changed later.
        self.working(False)
        peers, variants = available(self.lab, self.known_peers), available(self.lab, self.known_variants)
        self.peers, self.variants = peers, variants
        self._words = {peer.name: peer.describe() for peer in (*peers, *variants)}

    def describe(self) -> dict[str, Any]:
        shown = {name: self.server.run(f"show {name}")[0][0] for name in SHOWN}
        return {
            "postgres": self.server.run("show server_version")[0][0],
            "server": shown | {"autovacuum": "on while workers run, off while databases are filled"},
            "connections": "Unix socket",
            "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
            "peers": self._words,
            "results": "kept, finished jobs too, every system at its defaults; the no-op returns None",
            "idle_statements": "counted in the server's log (log_statement = all)",
        }

    def new(self, name: str) -> str:
        return self._create(name, "")

    def copy(self, database: str) -> str:
        # Copied as files the copy starts on a clean disk; written through the log it would be checkpointed meanwhile.
        modern = int(str(self.server.run("show server_version_num")[0][0])) >= 150000
        return self._create("copy", f"template {database}" + (" strategy file_copy" if modern else ""))

    def _create(self, name: str, how: str) -> str:
        database = f"bench_{next(self._numbers):04}_{name}"
        self.server.run(f"create database {database} {how}")
        self._made.append(database)
        return database

    def url(self, database: str) -> str:
        return self.server.url(database)

    def keys(self) -> tuple[str, ...]:
        return (self._key,)

    def settle(self, database: str) -> None:
        with psycopg.connect(self.server.conninfo(database), autocommit=True) as connection:
            connection.execute("vacuum (analyze)")
        self.server.run("checkpoint")

    def working(self, on: bool) -> None:
        """So that a table never analyzed stays so until its workers begin."""
        self.server.run(f"alter system set autovacuum = {'on' if on else 'off'}")
        self.server.run("select pg_reload_conf()")

    def clear(self) -> None:
        while self._made:
            self.server.run(f"drop database if exists {self._made.pop()} with (force)")

    def close(self) -> None:
        self.server.remove()

    def round_trips(self, times: int) -> dict[str, list[float]]:
        """`select 1`, and from sending NOTIFY until another connection of this program has heard it."""
        taken: dict[str, list[float]] = {"select_1": [], "notify": []}
        connect = self.server.conninfo("postgres")
        with (
            psycopg.connect(connect, autocommit=True) as caller,
            psycopg.connect(connect, autocommit=True) as listener,
        ):
            listener.execute("listen bench")
            for _ in range(times):
                began = time.perf_counter()
                caller.execute("select 1", prepare=True).fetchone()
                taken["select_1"].append((time.perf_counter() - began) * 1e3)
                began = time.perf_counter()
                caller.execute("notify bench")
                for _ in listener.notifies(timeout=10, stop_after=1):
                    taken["notify"].append((time.perf_counter() - began) * 1e3)
        return taken

    def count_statements(self, database: str) -> None:
        self.server.run(f"alter database {database} set log_statement = 'all'")

    def statements(self, database: str) -> int | None:
        return sum(1 for found in STATEMENT.finditer(self.server.log) if found[1] == database)
