"""Supervisors with their children, and producers: real processes that are started, hurt and started again."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from chaos.processes import descendants

ROOT = Path(__file__).parents[1]
CHILD, ISOLATED = b"packhorse.runtime.child", b"packhorse.runtime.isolated_child"
T = TypeVar("T")


class TookTooLong(RuntimeError):
    """Something that must happen soon did not."""


def wait_for(condition: Callable[[], T], what: str, within: float) -> T:
    deadline = time.monotonic() + within
    while not (seen := condition()):
        if time.monotonic() > deadline:
            raise TookTooLong(f"{what}: not within {within:g} s")
        time.sleep(0.01)
    return seen


def role_of(pid: int) -> str | None:
    """What a child of a supervisor is, by its command line; None where it is none, or gone.

    A child that a task has forked has the command line of its worker.
    """
    try:
        words = _command(pid)
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        if words == _command(int(parent)):
            return None
    except OSError:
        return None
    if ISOLATED in words:
        return "isolated"
    if CHILD not in words:
        return None
    return str(json.loads(words[words.index(CHILD) + 1])["role"])


def _command(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def stands_still(pid: int) -> bool:
    """Stopped or dead; whoever has died stays there as long as its parent is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t", "Z", "X")
    except OSError:
        return True


class Member:
    """A process known by a handle, so that no other one with its number is ever hit."""

    def __init__(self, pid: int, role: str) -> None:
        self.pid = pid
        self.role = role
        self._handle = os.pidfd_open(pid)

    @property
    def ended(self) -> bool:
        return bool(select.select([self._handle], [], [], 0)[0])

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def close(self) -> None:
        os.close(self._handle)


class Crew:
    """`packhorse worker` with all that it starts."""

    def __init__(
        self, name: str, folder: Path, env: dict[str, str], app: str, processes: int, concurrency: int
    ) -> None:
        self.name = name
        self._folder = folder
        self._env = env
        sizes = ["--processes", str(processes), "--concurrency", str(concurrency)]
        self._command = [sys.executable, "-m", "packhorse", "worker", app, "--log-level", "INFO", *sizes]
        self._roles = sorted(["worker"] * processes + ["dispatcher", "scheduler"])
        self._starts = 0
        self._known: dict[int, Member] = {}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def logs(self) -> list[Path]:
        return sorted(self._folder.glob(f"log-{self.name}-*"))

    def start(self) -> None:
        self._starts += 1
        with (self._folder / f"log-{self.name}-{self._starts:03}").open("wb") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def supervisor(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    def look(self) -> list[Member]:
        """Everybody of the crew who lives, apart from the supervisor; those of one that was killed, too."""
        if self.running:
            for pid in descendants(self.supervisor.pid):
                if pid not in self._known and (role := role_of(pid)):
                    with suppress(ProcessLookupError):
                        self._known[pid] = Member(pid, role)
        for pid in [pid for pid, member in self._known.items() if member.ended]:
            self._known.pop(pid).close()
        return list(self._known.values())

    def of_role(self, *roles: str) -> list[Member]:
        return [member for member in self.look() if member.role in roles]

    @property
    def complete(self) -> bool:
        return sorted(member.role for member in self.look() if member.role != "isolated") == self._roles

    def pids(self) -> frozenset[int]:
        """Of all of them, the supervisor's and those of what tasks started too."""
        return frozenset([self.supervisor.pid, *descendants(self.supervisor.pid), *(it.pid for it in self.look())])

    def signal_all(self, number: signal.Signals) -> None:
        """At one stroke those in the supervisor's group, then whoever has left it."""
        with suppress(ProcessLookupError):
            os.killpg(self.supervisor.pid, number)
        for member in self.look():
            member.send(number)

    def wait_children_gone(self, within: float) -> None:
        wait_for(lambda: not self.look(), f"the children of {self.name} are gone", within)

    def stop(self, number: signal.Signals, within: float) -> int:
        self.look()
        self.supervisor.send_signal(number)
        try:
            return self.supervisor.wait(within)
        except subprocess.TimeoutExpired:
            raise TookTooLong(f"{self.name} did not stop within {within:g} s of {number.name}") from None

    def end(self) -> None:
        """For good, whatever state it is in."""
        if self.process is None:
            return
        self.look()
        for number in (signal.SIGKILL, signal.SIGCONT):
            self.signal_all(number)
        self.process.wait()
        for member in self._known.values():
            member.close()
        self._known.clear()


class Producers:
    """They may be killed at any time; another one takes the place."""

    def __init__(self, folder: Path, env: dict[str, str], count: int, per_second: float, seed: int) -> None:
        self._folder = folder
        self._env = env
        self._per_second = per_second / count
        self._seed = seed
        self._starts = 0
        self.processes: list[subprocess.Popen[bytes]] = []
        for _ in range(count):
            self.start()

    def start(self) -> None:
        self._starts += 1
        words = [f"p{self._starts}", str(self._seed * 1_000 + self._starts), str(self._per_second)]
        with (self._folder / f"log-producer-{self._starts:03}").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "chaos.producer", *words],
                    cwd=ROOT,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def kill(self, place: int) -> None:
        process = self.processes.pop(place)
        process.kill()
        process.wait()
        self.start()

    def stop(self, within: float = 30.0) -> list[int]:
        """Their exit statuses."""
        for process in self.processes:
            process.terminate()
        statuses = []
        for process in self.processes:
            try:
                statuses.append(process.wait(within))
            except subprocess.TimeoutExpired:
                raise TookTooLong("a producer did not stop") from None
        return statuses

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


class Crowd:
    """The program in which many wait for results. Nobody hurts it."""

    def __init__(self, folder: Path, env: dict[str, str], per_second: float, seed: int) -> None:
        with (folder / "log-crowd").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "chaos.crowd", str(seed), str(per_second)],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop_enqueuing(self) -> None:
        self._process.terminate()

    def wait(self, within: float) -> int:
        """The exit status, once everybody was told."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise TookTooLong("some who wait for results were never told") from None

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def environment(url: str, folder: Path, settings: dict[str, object], **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "CHAOS_"))}
    ours = {"PACKHORSE_STORE": url, "CHAOS_FOLDER": str(folder), "CHAOS_SETTINGS": json.dumps(settings)}
    return kept | ours | {"PYTHONUNBUFFERED": "1"} | more


def end_all(things: Iterable[Crew | Producers]) -> None:
    for thing in things:
        thing.end()
