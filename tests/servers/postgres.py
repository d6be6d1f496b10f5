"""A private PostgreSQL server, thrown away with the test run: on a Unix socket only, durable, and easy to kill."""

from __future__ import annotations

import os
import pwd
import select
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

import psycopg

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "packhorse-pg-"
USER = "postgres"  # the server refuses to run as root
PORT = "5432"
PATIENCE = 30.0
SETTINGS = {
    "listen_addresses": "",
    "fsync": "on",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "log_min_messages": "log",
    "max_connections": "60",
}


class Missing(RuntimeError):
    """The programs are not installed."""


def programs() -> Path:
    """The folder of initdb and postgres, the newest there is."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    found.sort(key=lambda folder: float(folder.parent.name))
    if (on_path := shutil.which("initdb")) is not None:
        found.append(Path(on_path).resolve().parent)
    if not found:
        raise Missing("there is no PostgreSQL server here; scripts/install-for-tests installs one")
    return found[-1]


class Server:
    """Made with its data, started and ended as often as you like."""

    def __init__(self, base: Path | None = None, *, standby_of: Server | None = None) -> None:
        """Its folder is made in `base`, or where nothing reaches a disk if there is such a place."""
        self._programs = programs()
        self.port = PORT
        self._user = USER if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        base = base or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(gettempdir()))
        _sweep(base)
        # Short, as the path of a socket has room for 107 bytes.
        self.folder = Path(mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))
        self._process: subprocess.Popen[bytes] | None = None
        self._own: psycopg.Connection[tuple[object, ...]] | None = None
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER, USER)
        if standby_of is not None:
            copy = [str(self._programs / "pg_basebackup"), "--no-sync", "--checkpoint=fast", "--write-recovery-conf"]
            return self._run([*copy, f"--dbname={standby_of.conninfo('postgres')}", f"--pgdata={self.folder}/data"])
        initdb = [str(self._programs / "initdb"), "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        return self._run([*initdb, f"--username={USER}", f"--pgdata={self.folder}/data"])

    def as_user(self, command: list[str], *options: str) -> list[str]:
        if os.geteuid() != 0:
            return ["setpriv", *options, *command] if options else command
        found = pwd.getpwnam(USER)
        return ["setpriv", f"--reuid={found.pw_uid}", f"--regid={found.pw_gid}", "--clear-groups", *options, *command]

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(self.as_user(command), cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")

    def start(self, **other: str) -> None:
        """From the main thread: the server ends with the thread that started it, however that ends."""
        self.port = other.get("port", PORT)
        settings = [part for name, value in (SETTINGS | other).items() for part in ("-c", f"{name}={value}")]
        place = ["-D", f"{self.folder}/data", "-k", str(self.folder)]
        command = self.as_user([str(self._programs / "postgres"), *place, *settings], "--pdeathsig", "INT")
        with open(f"{self.folder}/log", "ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.conninfo("postgres")).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL does not start: {error}\n{self.log}") from error
                time.sleep(0.01)

    @property
    def log(self) -> str:
        return Path(f"{self.folder}/log").read_text(errors="replace")

    def conninfo(self, database: str) -> str:
        return f"host={self.folder} port={self.port} dbname={database} user={USER}"

    def url(self, database: str, **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://{USER}@/{database}?host={self.folder}{more}"

    @property
    def socket(self) -> str:
        return f"{self.folder}/.s.PGSQL.{self.port}"

    def through(self, address: tuple[str, int], database: str, **options: str) -> str:
        """The URL by which it is reached through something that listens there."""
        more = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://{USER}@{address[0]}:{address[1]}/{database}?{more}"

    def run(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        if self._own is None or self._own.closed or self._own.info.dbname != database:
            self._let_go()
            self._own = psycopg.connect(self.conninfo(database), autocommit=True)
        cursor = self._own.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def _let_go(self) -> None:
        if self._own is not None:
            self._own.close()
        self._own = None

    def promote(self) -> None:
        """A standby becomes the primary."""
        assert self.run("select pg_promote(true)") == [(True,)]

    def kill(self) -> None:
        """As the kernel does it when memory runs out; the children too, which would hold up the next start."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """At once: who is connected is sent away."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """In a hurry: nothing is written down, and the next start has to recover."""
        self._end(signal.SIGQUIT)

    def freeze(self) -> None:
        """It keeps silent, with all its children; its socket still takes what is sent."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)  # first, so that no child is born meanwhile
        for child in self._children(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(child, number)

    def _children(self, pid: int) -> list[int]:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def _end(self, number: signal.Signals) -> None:
        self._let_go()
        process, self._process = self._process, None
        if process is None:
            return
        children = self._children(process.pid)
        process.send_signal(number)
        process.wait(PATIENCE)
        for child in children:
            with suppress(ProcessLookupError):
                waiter = os.pidfd_open(child)
                if number is signal.SIGKILL:
                    os.kill(child, signal.SIGKILL)
                _ended(waiter)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _ended(waiter: int) -> None:
    try:
        select.select([waiter], [], [], PATIENCE)
    finally:
        os.close(waiter)


def _sweep(base: Path) -> None:
    """Folders of runs that were killed."""
    for folder in base.glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
