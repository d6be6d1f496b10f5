"""Effects exactly once: money moves with the end of its job or not at all, whoever is killed meanwhile."""

import importlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from packhorse import JobState, Packhorse, Selection
from packhorse.errors import StoreUnavailable
from tests.servers.postgres import Server
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


class Bank:
    """The store with its accounts in one database, and `packhorse worker` processes that are started and killed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, server: Server | None) -> None:
        folder.chmod(0o700)
        file = folder / "jobs.db"
        url = f"sqlite:///{file}" if server is None else server.url("postgres", schema="bank")
        monkeypatch.setenv("PACKHORSE_STORE", url)
        monkeypatch.setenv("BANK", str(file) if server is None else server.conninfo("postgres"))
        sys.modules.pop("tests.faults.bank", None)
        self.module = bank = importlib.import_module("tests.faults.bank")  # as it is with this environment
        self.server = server
        self._log = folder / "log"
        self.app: Packhorse = bank.app
        self.app.control.migrate()
        bank.found()
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        command = [sys.executable, "-m", "packhorse", "worker", "tests.faults.bank:app", "--processes", "2"]
        with self._log.open("ab") as log:
            self.started.append(
                subprocess.Popen(
                    command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            )

    def rows(self, query: str) -> list[Any]:
        with closing(self.module.connect()) as connection:
            found: list[Any] = connection.execute(query).fetchall()
            return found

    def has_moved(self, due: int) -> bool:
        with suppress(psycopg.OperationalError):  # the server begins anew
            return bool(self.rows("select count(*) from moved")[0][0] >= due)
        return False

    # Harm.

    def kill_worker(self) -> None:
        """One of the supervisor's children, whatever its role."""
        supervisor = self.started[-1].pid
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        for pid in random.sample(children, min(1, len(children))):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def kill_supervisor(self) -> None:
        self.started[-1].kill()
        self.started[-1].wait(PATIENCE)
        self.start()

    def kill_backend(self) -> None:
        """A back-end that dies takes all others with it: the server starts over."""
        assert self.server is not None
        find = "select pid from pg_stat_activity where application_name = 'packhorse' and pid <> pg_backend_pid()"
        if found := self.server.run(find):
            with suppress(ProcessLookupError):
                os.kill(int(str(found[0][0])), signal.SIGKILL)

    def kill_server(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.start()

    @property
    def harm(self) -> list[Callable[[], None]]:
        harm = [self.kill_worker, self.kill_supervisor, self.kill_worker]
        return harm if self.server is None else [*harm, self.kill_backend, self.kill_server]

    # What must be so.

    def go_on(self) -> bool:
        """Whether all have ended; an operator retries what was lost too often."""
        unfinished = Selection(states={state for state in JobState if not state.finished})
        with suppress(StoreUnavailable):
            for job in self.app.inspection.jobs(Selection(states={JobState.FAILED})):
                assert job.losses, f"{job.failure} in {job}"
                self.app.control.retry([job.id])
            return not self.app.inspection.count(unfinished)
        return False

    def stop(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(PATIENCE)
        self.app.close()


@pytest.fixture(params=["sqlite", "postgres"])
def bank(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    bank = Bank(tmp_path, monkeypatch, request.getfixturevalue("postgres") if request.param == "postgres" else None)
    try:
        yield bank
    finally:
        bank.stop()


@pytest.mark.parametrize(
    ("transfers", "strikes"),
    [(200, 5), pytest.param(10_000, 40, marks=[pytest.mark.thorough, pytest.mark.timeout(1_200)])],
)
def test_each_transfer_is_made_exactly_once(bank: Bank, transfers: int, strikes: int):
    wanted = {}
    for number in range(transfers):
        source, target = random.sample(range(bank.module.ACCOUNTS), 2)
        wanted[number] = (number, source, target, random.randint(1, 50))
    bank.app.enqueue_many([bank.module.move.call(*row) for row in wanted.values()])
    bank.start()
    for strike in range(strikes):
        due = transfers * (strike + 1) // (strikes + 1)
        wait_until(partial(bank.has_moved, due), f"{due} transfers", PATIENCE)
        bank.harm[strike % len(bank.harm)]()
    wait_until(bank.go_on, "all have ended", 2 * PATIENCE)

    moved = bank.rows("select number, source, target, amount from moved")
    assert sorted(map(tuple, moved)) == sorted(wanted.values())
    balances = Counter(dict.fromkeys(range(bank.module.ACCOUNTS), bank.module.BEGINNING))
    for _, source, target, amount in wanted.values():
        balances[source] -= amount
        balances[target] += amount
    assert dict(bank.rows("select id, balance from account")) == dict(balances)
    assert bank.app.inspection.count(Selection(states={JobState.SUCCEEDED})) == transfers


def test_what_was_committed_before_a_kill_is_not_done_again(bank: Bank):
    """Nobody told the worker that the task had ended: the commit did."""
    job = bank.module.move_apart.enqueue(7)
    bank.start()
    assert job.result(timeout=PATIENCE) == 7
    bank.stop()
    assert (job.state, job.look().attempts, job.look().losses) == (JobState.SUCCEEDED, 1, 0)
    assert [tuple(row) for row in bank.rows("select * from moved")] == [(7, 0, 1, 5)]
