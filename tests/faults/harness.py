"""Real processes for the fault tests: a place to work in, workers to start and kill, and one check of what is left."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from chaos.places import lock_holders
from packhorse import Packhorse
from packhorse.clock import SECOND
from packhorse.ids import from_text
from packhorse.job import Job, JobState
from packhorse.stores.contract import Selection
from tests.faults.apps import Ledger, make_app, whole_lines
from tests.servers.postgres import Server
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
BODY_AT = 40  # behind the head of an envelope
STATES = list(JobState)  # stored by number, from 1
# A lease that lasts through every pause of a busy machine; `Place.end_leases` does not wait for its end.
SHORT = {"heartbeat": 0.25, "lease": 10.0, "polling_interval": 0.2, "shutdown_timeout": 10.0}
QUICK = {"packhorse.runtime.dispatcher.ADOPT_EVERY": 0.2}


class Line(NamedTuple):
    """One line of the ledger."""

    key: str
    pid: int
    what: str
    at: int


class Row(NamedTuple):
    """What the file says of a job, read without Packhorse."""

    id: bytes
    key: str
    state: str
    attempts: int
    losses: int
    finished_at: int | None


@dataclass
class Place:
    """A folder of our own with a database and a ledger, and all processes started in it."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=lambda: dict(SHORT))
    constants: dict[str, Any] = field(default_factory=lambda: dict(QUICK))
    store_folder: Path | None = None
    options: str = ""
    boot: str = ""
    local: str = ""
    apart: int = 0  # microseconds that the store's clock and this machine's may differ
    isolated: bool = False  # jobs of their own processes are there: workers keep some of those warm

    def __post_init__(self) -> None:
        self.folder.chmod(0o700)
        self.started: list[Workers | Client] = []

    @property
    def database(self) -> Path:
        return (self.store_folder or self.folder) / "jobs.db"

    @property
    def wal(self) -> Path:
        return self.database.with_name("jobs.db-wal")

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}{self.options}"

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "ledger")

    @cached_property
    def app(self) -> Packhorse:
        return make_app(self.url, self.ledger.path, **self.settings)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "FAULTS_"))}
        ours = {
            "PACKHORSE_STORE": self.url,
            "LEDGER": str(self.ledger.path),
            "FAULTS_SETTINGS": json.dumps(self.settings),
            "FAULTS_CONSTANTS": json.dumps(self.constants),
            "FAULTS_BOOT": self.boot,
            "FAULTS_LOCAL": self.local,
            "FAULTS_ISOLATED": "yes" if self.isolated else "",
            "PYTHONUNBUFFERED": "1",
        }
        return kept | ours | more

    # Doing.

    def enqueue(self, task: str, *args: Any, **using: Any) -> str:
        """One job; the connection is closed again, so that this process is no witness that keeps the file alive."""
        self.isolated |= self.app.tasks[task].performed.isolate
        handle = self.app.enqueue(self.app.tasks[task].using(**using).call(*args))
        self.app.close()
        return handle.id

    def enqueue_many(self, task: str, *calls: tuple[Any, ...], **using: Any) -> list[str]:
        self.isolated |= self.app.tasks[task].performed.isolate
        prepared = self.app.tasks[task].using(**using)
        handles = self.app.enqueue_many([prepared.call(*args) for args in calls])
        self.app.close()
        return [handle.id for handle in handles]

    def end_leases(self, pid: int | None = None) -> None:
        """Of those who stand still or are dead: as if they had been silent for long; or of one of them."""
        if pid is None:
            self.sql("update process set lease_until = 0")
        else:
            self.sql("update process set lease_until = 0 where pid = ?", pid)

    def let_go(self, key: str) -> None:
        """End a `hold`."""
        (self.folder / f"go-{key}").touch()

    def workers(
        self,
        *options: str,
        failpoints: str = "",
        armed: str = "",
        log_level: str = "INFO",
        processes: int = 1,
        wrapper: Iterable[str] = (),
    ) -> Workers:
        if processes and "--processes" not in options:
            options = ("--processes", str(processes), *options)
        workers = Workers(self, options, failpoints, armed, log_level, wrapper)
        self.started.append(workers)
        return workers

    def client(self, *arguments: str, failpoints: str = "", wrapper: Collection[str] = ()) -> Client:
        client = Client(self, arguments, failpoints, wrapper)
        self.started.append(client)
        return client

    # Looking.

    def lines(self, key: str | None = None, what: str | None = None) -> list[Line]:
        if not self.ledger.path.exists():
            return []
        split = (text.split() for text in whole_lines(self.ledger.path))
        lines = [Line(its_key, int(pid), its_what, int(at)) for its_key, pid, its_what, at in split]
        return [line for line in lines if key in (None, line.key) and what in (None, line.what)]

    def wait_started(self, key: str, times: int = 1, within: float = 60.0) -> Line:
        """The line of its n-th start."""
        found = wait_until(lambda: self.lines(key, "start")[times - 1 :], f"{key} started {times} times", within)
        return found[0]

    def wait_ran(self, key: str, times: int = 1) -> None:
        wait_until(lambda: len(self.lines(key, "finish")) >= times, f"{key} finished {times} times")

    def sql(self, statement: str, *parameters: Any) -> list[Any]:
        with closing(sqlite3.connect(self.database, timeout=20, isolation_level=None)) as connection:
            return connection.execute(statement, parameters).fetchall()

    @contextmanager
    def cut_off(self) -> Iterator[float]:
        """None of ours gets to write meanwhile, though nobody writes; since when, as `time.time` has it."""
        with open(f"{self.database}-lock", "rb") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            yield time.time()

    @contextmanager
    def locked(self) -> Iterator[float]:
        """Nobody else can write meanwhile; since when, as `time.time` has it."""
        with closing(sqlite3.connect(self.database, timeout=20, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            yield time.time()
            connection.execute("rollback")

    def rows(self) -> dict[bytes, Row]:
        columns = "job.id, body, state, attempts, losses, finished_at"
        found = self.sql(f"select {columns} from job left join payload on payload.id = job.id")
        return {row[0]: Row(row[0], _key(row[1]), STATES[row[2] - 1], *row[3:]) for row in found}

    def states(self) -> Counter[str]:
        return Counter({str(STATES[code - 1]): n for code, n in self.sql("select state, count(*) from job group by 1")})

    def job(self, id: str) -> Job:
        job = self.app.job(id).look()
        self.app.close()
        return job

    def wait_state(self, id: str, state: str, within: float = 60.0) -> Job:
        wait_until(lambda: self.rows()[from_text(id)].state == state, f"{id} is {state}", within)
        return self.job(id)

    def retry_lost(self) -> None:
        """Where workers are killed at random, some may have been lost three times; all must succeed in the end."""
        self.wait_all_finished()
        while lost := [job.id for job in self.app.inspection.jobs(Selection(states=[JobState.FAILED]))]:
            self.app.control.retry(lost)
            self.app.close()
            self.wait_all_finished()

    def wait_all_finished(self, within: float = 60.0) -> None:
        def unfinished() -> int:
            return int(self.sql("select count(*) from job where state <= 4")[0][0])

        wait_until(lambda: unfinished() == 0, "every job has finished", within)

    # Judging.

    def check(self, acknowledged: Iterable[str], *, others: Collection[str] = ()) -> None:
        """Nothing lost, nothing run after its end, one place per job, a sound file.

        Every acknowledged job has succeeded, apart from `others`, which the test judges itself. To be called when all
        processes are gone.
        """
        rows = self.rows()
        lost = [id for id in acknowledged if from_text(id) not in rows]
        assert not lost, f"acknowledged and lost: {lost}"
        excused = {from_text(id) for id in others}
        unsuccessful = [row for row in rows.values() if row.state != "succeeded" and row.id not in excused]
        assert not unsuccessful
        assert self.sql("select hex(id) from job where state = 4") == [], "somebody still holds a job"
        for table in ("permit", "ticket"):
            assert self.sql(f"select key, hex(id) from {table}") == [], f"a {table} is out though all is done"
        self.check_whole()
        self._check_ledger(row for row in rows.values() if row.id not in excused)
        self.check_sound()

    def check_sound(self) -> None:
        assert self.sql("pragma integrity_check") == [("ok",)]
        busy, _, _ = self.sql("pragma wal_checkpoint(truncate)")[0]
        assert busy == 0

    def check_whole(self) -> None:
        """No job is there by halves."""
        assert self.sql("select hex(id) from job where id not in (select id from payload)") == []
        for table in ("payload", "ending", "attempt", "tag", "entry", "hold", "permit", "ticket"):
            stray = self.sql(f"select hex(id) from {table} where id not in (select id from job)")
            assert stray == [], f"{table} has rows of jobs that are not there"
        unfinished = "select hex(id) from ending where id in (select id from job where state <= 4)"
        assert self.sql(unfinished) == [], "an unfinished job has an ending"

    def _check_ledger(self, rows: Iterable[Row]) -> None:
        lines = self.lines()
        finished = {line.key for line in lines if line.what == "finish"}
        last_start = {line.key: line.at for line in lines if line.what == "start"}
        for row in rows:
            assert row.key in finished, f"{row} succeeded without having run"
            assert row.finished_at is not None
            assert last_start[row.key] <= row.finished_at + self.apart, f"{row} ran again after its end was recorded"

    def end(self) -> None:
        for process in self.started:
            process.end()
        if "app" in self.__dict__:
            self.app.close()


KEY = secrets.token_urlsafe(32)
HEX = """
    create or replace function public.hex(value bytea) returns text language sql as
    $$ select upper(encode(value, 'hex')) $$
"""


class PostgresPlace(Place):
    """A schema of our own on a server, instead of a file."""

    def __init__(self, folder: Path, server: Server) -> None:
        # Its time is asked for, and the answer takes time.
        super().__init__(folder, settings=SHORT | {"keys": [KEY]}, apart=SECOND // 4)
        self.server = server
        self.schema = f"place_{secrets.token_hex(4)}"
        self.reached: tuple[str, int] | None = None  # where something stands in front of it
        server.run(HEX)

    @property
    def url(self) -> str:
        if self.reached is not None:
            return self.server.through(self.reached, "postgres", schema=self.schema)
        return self.server.url("postgres", schema=self.schema)

    def sql(self, statement: str, *parameters: Any) -> list[Any]:
        numbers = iter(range(1, statement.count("?") + 1))
        text = re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
        with psycopg.connect(self.server.conninfo("postgres"), autocommit=True) as connection:
            connection.execute(f"set search_path = {self.schema}, public".encode())
            cursor = psycopg.RawCursor(connection).execute(text.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def check_sound(self) -> None:
        self.sql("create extension if not exists amcheck schema public")
        own = f"""
            select bt_index_check(indexrelid, true) from pg_index join pg_class on pg_class.oid = indrelid
            where relnamespace = to_regnamespace('{self.schema}')
        """
        self.sql(own)

    def end(self) -> None:
        super().end()
        self.server.run(f"drop schema if exists {self.schema} cascade")


def _key(body: bytes | None) -> str:
    if body is None:
        return "?"
    arguments = json.loads(body[BODY_AT:])
    return str(arguments["a"][0] if arguments["a"] else arguments["k"].get("key", "?"))


def stands_still(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def _has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _command(pid: int, handle: int) -> bytes:
    """How it was started. For a moment after that, a process has no words, as it has none when it has ended."""

    def words() -> bytes:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return b""

    return wait_until(lambda: words() or (b"gone" if _has_ended(handle) else b""), f"{pid} has a command line")


class Client:
    """A script of client.py in a process of its own. What it printed is what it had been told."""

    def __init__(self, place: Place, arguments: Iterable[str], failpoints: str, wrapper: Collection[str]) -> None:
        command = [*wrapper, sys.executable, "-m", "tests.faults.client", *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=place.environment(PACKHORSE_FAILPOINTS=failpoints),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def output(self, within: float = 60.0) -> list[str]:
        """All it says until its end."""
        out, self.errors = self.process.communicate(timeout=within)
        return out.splitlines()

    def succeeded(self, within: float = 60.0) -> list[str]:
        lines = self.output(within)
        assert self.process.returncode == 0, self.errors
        return lines

    def line(self) -> str:
        """The next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def tell(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None and not stream.closed:
                stream.close()


class Workers:
    """`packhorse worker` with its children, known by handles that outlive them."""

    def __init__(
        self,
        place: Place,
        options: Iterable[str],
        failpoints: str,
        armed: str,
        log_level: str,
        wrapper: Iterable[str],
    ) -> None:
        number = len(place.started)
        self._log = place.folder / f"log-{number}"
        self._marker = place.folder / f"armed-{number}"
        self._lock = place.database.with_name("jobs.db-lock")
        more = {"PACKHORSE_FAILPOINTS": failpoints}
        if armed:
            more["FAULTS_ARMED"] = f"{armed} {self._marker}"
        command = [sys.executable, "-m", "packhorse", "worker", "tests.faults.apps:app", "--log-level", log_level]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*wrapper, *command, *options],
                cwd=ROOT,
                env=place.environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._handles: dict[int, int] = {}

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_log(self, text: str, within: float = 60.0) -> None:
        wait_until(lambda: text in self.log, f"the log says {text!r}", within)

    # Children.

    def pids(self, role: str) -> list[int]:
        """The children of that role, in the order they were started."""
        lines = [line for line in whole_lines(self._log) if f"started {role} with pid " in line]
        found = [int(line.rpartition(" ")[2]) for line in lines]
        for pid in found:
            self._hold(pid)
        return found

    def wait_pid(self, role: str, number: int = 1) -> int:
        """The pid of the n-th child of that role."""
        return wait_until(lambda: self.pids(role)[number - 1 :], f"a {role}")[0]

    def _hold(self, pid: int) -> None:
        if pid in self._handles:
            return
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        if b"packhorse.runtime.child" in _command(pid, handle):
            self._handles[pid] = handle
        else:
            os.close(handle)

    def kill_child(self, pid: int) -> None:
        self._hold(pid)
        with suppress(ProcessLookupError):  # it was quicker
            signal.pidfd_send_signal(self._handles[pid], signal.SIGKILL)

    def stop_child(self, pid: int) -> None:
        self._hold(pid)
        signal.pidfd_send_signal(self._handles[pid], signal.SIGTERM)

    def freeze_child(self, pid: int) -> None:
        """Not while it keeps others from writing."""
        self._hold(pid)
        while True:
            signal.pidfd_send_signal(self._handles[pid], signal.SIGSTOP)
            wait_until(lambda: stands_still(pid) or self.child_ended(pid), f"{pid} stands still")
            if pid not in lock_holders(self._lock):
                return
            self.thaw_child(pid)

    def thaw_child(self, pid: int) -> None:
        signal.pidfd_send_signal(self._handles[pid], signal.SIGCONT)

    def is_frozen(self, pid: int) -> bool:
        self._hold(pid)
        return stands_still(pid)

    def child_ended(self, pid: int) -> bool:
        handle = self._handles.get(pid)
        return handle is None or _has_ended(handle)

    def wait_children_gone(self, within: float = 60.0) -> None:
        pids = [pid for role in ("worker", "dispatcher", "scheduler") for pid in self.pids(role)]
        wait_until(lambda: all(map(self.child_ended, pids)), "the children are gone", within)

    def wait_armed_killed(self, armed: str, within: float = 60.0) -> None:
        """The process that was armed died of SIGKILL, and by nobody else's hand."""
        if armed == "supervisor":
            wait_until(lambda: self.process.poll() is not None, "the armed supervisor died", within)
            assert self.process.returncode == -signal.SIGKILL, self.log
            return
        self.wait_log(f"{armed} with pid {self.armed_pid(within)} was killed by SIGKILL", within)

    def armed_pid(self, within: float = 60.0) -> int:
        """Of the child that was armed."""
        return int(wait_until(lambda: self._marker.exists() and self._marker.read_text(), "one is armed", within))

    def wait_armed_stopped(self, within: float = 60.0) -> int:
        """The process that was armed stands still; its pid."""
        pid = self.armed_pid(within)
        self._hold(pid)
        wait_until(lambda: stands_still(pid), f"{pid} stands still", within)
        return pid

    def freeze(self) -> None:
        """The supervisor and its children, who are in its group; not while one of them keeps others from writing."""
        while True:
            os.killpg(self.process.pid, signal.SIGSTOP)
            pids = [pid for role in ("worker", "dispatcher", "scheduler") for pid in self.pids(role)]
            for pid in [self.process.pid, *pids]:
                wait_until(lambda pid=pid: stands_still(pid) or self.child_ended(pid), f"{pid} stands still")  # type: ignore[misc]
            if not lock_holders(self._lock) & {self.process.pid, *pids}:
                return
            self.thaw()

    def thaw(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    # Signals.

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM, within: float = 60.0) -> int:
        """Send the signal, wait for the end; the exit status."""
        self.wait_minds_signals()
        self.process.send_signal(number)
        return self.wait(within)

    def wait_minds_signals(self) -> None:
        """A process that is still importing dies of TERM, as any Python does."""
        status = Path(f"/proc/{self.process.pid}/status")

        def minds() -> bool:
            caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
            return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

        wait_until(lambda: self.process.poll() is not None or minds(), "the supervisor minds signals")

    def wait(self, within: float = 60.0) -> int:
        return self.process.wait(within)

    def end(self) -> None:
        for role in ("worker", "dispatcher", "scheduler"):
            self.pids(role)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with whatever its children have started
        self.process.wait()
        for pid, handle in self._handles.items():
            if not self.child_ended(pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        self._handles.clear()
