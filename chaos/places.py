"""Where the store of a run lives: how it is reached, what harm only it can come to, and whether it is sound."""

from __future__ import annotations

import random
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from chaos.disk import SmallDisk
from chaos.history import SECOND, Effect, Fault
from chaos.ledger import now
from chaos.proxy import Mode, Proxy
from packhorse.errors import StoreError
from packhorse.ids import new_id
from packhorse.job import JobState, NewJob, Parent, Token
from packhorse.outcome import Outcome
from packhorse.stores.postgres import PostgresStore
from packhorse.stores.sqlite import SQLiteStore
from tests.servers.postgres import Server

Strike = Callable[[str], Fault]
NOTICED = 5.5  # seconds after which nobody trusts a line any more on which nothing comes back
DATABASE = "postgres"


class Place(ABC):
    url: str  # for whoever works
    near_url: str  # for whoever only looks, and is not to be hurt
    notes: list[str]

    @abstractmethod
    def kinds(self, dice: random.Random, lease: float) -> dict[str, tuple[int, Strike]]:
        """What can be done to it, with weights."""

    @abstractmethod
    def mend(self) -> None:
        """No more harm."""

    @abstractmethod
    def damage(self) -> str:
        """What is wrong with it; nothing where it is sound."""

    def holders(self) -> set[int]:
        """The pids of those who keep all others from the store just now."""
        return set()


class SQLitePlace(Place):
    """A file on a small file system."""

    def __init__(self, stack: ExitStack, folder: Path, seconds: float) -> None:
        self._disk = SmallDisk(folder / "disk", 256 + round(seconds * 2 / 3))
        stack.callback(self._disk.end)
        self._database = self._disk.folder / "jobs.db"
        self.url = self.near_url = f"sqlite:///{self._database}"
        mounted = self._disk.mounted
        self.notes = [] if mounted else ["no small file system could be mounted, so the disk was never full"]

    def kinds(self, dice: random.Random, lease: float) -> dict[str, tuple[int, Strike]]:
        def fill(kind: str) -> Fault:
            """Once: what the store has set aside for this may be enough."""
            return self._full(kind, lease * dice.uniform(0.1, 0.4), again_after=lease)

        def fill_for_long(kind: str) -> Fault:
            """And whatever becomes free. Workers must stop by themselves before others may have their jobs."""
            return self._full(kind, lease * dice.uniform(1.2, 1.6), again_after=0.02)

        full = {"disk full": (2, fill), "disk full for long": (2, fill_for_long)} if self._disk.mounted else {}
        return full | {
            "idle borrowed transaction": (4, lambda kind: self._borrow(kind, lease * dice.uniform(1.1, 1.6)))
        }

    def _borrow(self, kind: str, seconds: float) -> Fault:
        """Somebody enqueues in a transaction, and then thinks it over. Nobody else can write meanwhile."""
        store = SQLiteStore(self.url)
        begin = now()
        with closing(sqlite3.connect(self._database, timeout=20)) as theirs:
            store.lent(theirs).insert([NewJob(new_id(), "quick", b"")])
            time.sleep(seconds)
            theirs.rollback()
        store.close()
        return Fault(kind, begin, now(), Effect.HARMLESS)

    def _full(self, kind: str, seconds: float, again_after: float) -> Fault:
        begin = now()
        while (left := seconds - (now() - begin) / SECOND) > 0:
            self._disk.fill()
            time.sleep(min(left, again_after))
        self._disk.free()
        return Fault(kind, begin, now(), Effect.AWAY)

    def mend(self) -> None:
        self._disk.free()

    def damage(self) -> str:
        with closing(sqlite3.connect(self._database)) as connection:
            [(sound,)] = connection.execute("pragma integrity_check").fetchall()
        return "" if sound == "ok" else str(sound)

    def holders(self) -> set[int]:
        return lock_holders(Path(f"{self._database}-lock"))


ANSWERED = b"Z\0\0\0\x05I"  # PostgreSQL ends its answers so, after a commit that was said or not


class PostgresPlace(Place):
    """A private server, durable, which the workers reach through a proxy."""

    def __init__(self, stack: ExitStack) -> None:
        self._server = Server()
        stack.callback(self._server.remove)
        self._server.start(max_connections="200")
        self._proxy = stack.enter_context(Proxy(self._server.socket))
        self.url = self._server.through(self._proxy.address, DATABASE)
        self.near_url = self._server.url(DATABASE)
        self.notes = ["the disk was never full: it is the server's, and nothing of it is ours to fill"]

    def kinds(self, dice: random.Random, lease: float) -> dict[str, tuple[int, Strike]]:
        def away(harm: Callable[[], None]) -> Strike:
            def strike(kind: str) -> Fault:
                begin = now()
                harm()
                return Fault(kind, begin, now(), Effect.AWAY)

            return strike

        def harmless(harm: Callable[[], object]) -> Strike:
            def strike(kind: str) -> Fault:
                begin = now()
                harm()
                return Fault(kind, begin, now(), Effect.HARMLESS)

            return strike

        def swallow() -> None:
            self._proxy.set(dice.choice([Mode.SWALLOW_REQUESTS, Mode.SWALLOW_REPLIES]))
            time.sleep(lease * dice.uniform(0.2, 1.5))
            self._proxy.set(Mode.PASS)
            self._proxy.cut()

        def deafen() -> None:
            self._proxy.deafen()
            time.sleep(NOTICED)

        def delay() -> None:
            self._proxy.set(Mode.DELAY, seconds=dice.uniform(0.01, 0.1))
            time.sleep(dice.uniform(1, 4))
            self._proxy.set(Mode.PASS)

        def flap() -> None:
            for _ in range(5):
                self._proxy.cut()
                time.sleep(dice.uniform(0.1, 0.5))

        def refuse() -> None:
            self._proxy.set(Mode.REFUSE)
            self._proxy.cut()
            time.sleep(lease * dice.uniform(0.2, 1.5))
            self._proxy.set(Mode.PASS)

        def freeze() -> None:
            self._server.freeze()
            time.sleep(lease * dice.uniform(0.2, 2.0))
            self._server.thaw()

        def lose_commits() -> None:
            self._proxy.set(Mode.LOSE_REPLY, times=5, holding=ANSWERED)
            time.sleep(1)
            self._proxy.set(Mode.PASS)

        return {
            "kill server": (6, away(lambda: self._again(self._server.kill))),
            "crash server": (4, away(lambda: self._again(self._server.crash))),
            "restart server": (6, away(lambda: self._again(self._server.stop))),
            "freeze server": (6, away(freeze)),
            "server out of reach": (4, away(refuse)),
            "half-open lines": (6, away(swallow)),
            "lines go deaf": (3, away(deafen)),
            "slow lines": (4, harmless(delay)),
            "cut lines": (10, harmless(self._proxy.cut)),
            "flapping lines": (4, harmless(flap)),
            "lost commit replies": (10, harmless(lose_commits)),
            "terminate back-ends": (10, harmless(self._terminate)),
            "idle borrowed transaction": (8, harmless(lambda: self._borrow(dice, lease * dice.uniform(1.1, 2.0)))),
        }

    def _borrow(self, dice: random.Random, seconds: float) -> None:
        """Somebody completes a job or adds to a flow, thinks it over, and rolls back or is gone.

        The job is a limited one, if one runs: it goes on, and its worker writes what it made of it afterwards.
        """
        store = PostgresStore(self.near_url)
        with suppress(psycopg.Error, StoreError), closing(self._connect()) as theirs:
            limited, running = self._running(theirs, "limited > 0"), self._running(theirs, "true")
            if limited is not None and dice.random() < 0.5:
                store.lent(theirs).complete(Outcome(limited, JobState.SUCCEEDED, duration=0))
            elif running is not None:
                store.lent(theirs).insert([NewJob(new_id(), "quick", b"", after=(Parent(running.id),))])
            time.sleep(seconds)
            if dice.random() < 0.5:
                self._server.run(f"select pg_terminate_backend({theirs.info.backend_pid})")
            else:
                theirs.rollback()
        store.close()

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            self._server.conninfo(DATABASE), application_name="somebody", options="-clock_timeout=2s"
        )

    def _running(self, connection: psycopg.Connection[tuple[Any, ...]], which: LiteralString) -> Token | None:
        found = connection.execute(
            f"select process, nonce, id, epoch from packhorse.job where state = 4 and {which} order by id desc limit 1"
        ).fetchone()
        return None if found is None else Token(*found)

    def _again(self, end: Callable[[], None]) -> None:
        end()
        self._server.start(max_connections="200")

    def _terminate(self) -> None:
        self._server.run("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'packhorse'")

    def mend(self) -> None:
        self._proxy.set(Mode.PASS)

    def damage(self) -> str:
        """Every row of every table is read, by its indexes and without."""
        tables = self._server.run("select tablename::text from pg_tables where schemaname = 'packhorse'", DATABASE)
        self._server.run("create extension if not exists amcheck", DATABASE)
        for (table,) in tables:
            self._server.run(
                f"select bt_index_check(indexrelid, true) from pg_index where indrelid = 'packhorse.{table}'::regclass",
                DATABASE,
            )
        return ""


def open_place(kind: str, stack: ExitStack, folder: Path, seconds: float) -> Place:
    return SQLitePlace(stack, folder, seconds) if kind == "sqlite" else PostgresPlace(stack)


def lock_holders(path: Path) -> set[int]:
    """The pids of those who hold a lock on the file, as the kernel knows them."""
    try:
        inode = str(path.stat().st_ino)
        found = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return set()
    return {int(words[4]) for words in found if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode}
