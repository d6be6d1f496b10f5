"""The development reloader: signals go through it as they come, and nothing outlives it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from packhorse import JobHandle, Packhorse
from packhorse.runtime.reloading import snapshot
from tests.faults.processes import children_of, of_session
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

SHOP = """
import os, time
from packhorse import Packhorse

app = Packhorse("shop", os.environ["STORE"], polling_interval=0.2, shutdown_timeout=600)

@app.task(name="hold")
def hold(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)
"""


class Reloaded:
    """`packhorse worker --reload` in a folder of its own, with a job that runs until it is let go."""

    def __init__(self, folder: Path, *options: str) -> None:
        folder.chmod(0o700)
        self.folder, self.path = folder, folder / "go"
        (folder / "shop.py").write_text(SHOP)
        url = f"sqlite:///{folder}/jobs.db"
        self.app = Packhorse("shop", url)
        self.app.task(name="hold")(lambda path: None)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}
        command = [sys.executable, "-m", "packhorse", "worker", "shop:app", "--reload", *options]
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=kept | {"STORE": url}, stdout=log, stderr=log)
        self.leader = 0

    def hold(self) -> JobHandle[None]:
        job = self.app.tasks["hold"].enqueue(str(self.path))
        wait_until(lambda: job.state == "running", "the job runs")
        [self.leader] = children_of(self.process.pid)
        return job

    def change(self) -> None:
        before = snapshot(self.folder)
        (self.folder / "shop.py").write_text(SHOP + "\n")
        wait_until(lambda: snapshot(self.folder) != before)

    def wait_log(self, text: str) -> None:
        wait_until(lambda: text in self._log.read_text(), f"the log says {text!r}")

    def wait_stopping(self) -> None:
        self.wait_log("stopping; running jobs have 600 s to finish")

    def check_gone(self) -> None:
        wait_until(lambda: not of_session(self.leader), "no process is left")
        wait_until(lambda: list(self.app.inspection.processes()) == [], "none is enrolled")

    def end(self) -> None:
        self.path.touch()
        self.process.kill()
        self.process.wait()
        if self.leader:
            with suppress(ProcessLookupError):
                os.killpg(self.leader, signal.SIGKILL)
        self.app.close()


@pytest.fixture
def reloaded(tmp_path: Path) -> Iterator[Reloaded]:
    made = Reloaded(tmp_path, "--processes", "1")
    yield made
    made.end()


def test_a_second_int_ends_at_once(reloaded: Reloaded):
    job = reloaded.hold()
    reloaded.process.send_signal(signal.SIGINT)
    reloaded.wait_stopping()
    assert reloaded.process.poll() is None
    reloaded.process.send_signal(signal.SIGINT)
    assert reloaded.process.wait(60) == 0
    reloaded.check_gone()
    assert (job.state, job.look().attempts) == ("ready", 0)


def test_quit_ends_at_once_also_while_it_waits_for_the_end(reloaded: Reloaded):
    job = reloaded.hold()
    reloaded.process.send_signal(signal.SIGTERM)
    reloaded.wait_stopping()
    reloaded.process.send_signal(signal.SIGQUIT)
    assert reloaded.process.wait(60) == 0
    reloaded.check_gone()
    assert (job.state, job.look().attempts) == ("ready", 0)


def test_an_int_while_it_starts_anew_ends_it(reloaded: Reloaded):
    reloaded.hold()
    reloaded.change()
    reloaded.wait_stopping()
    reloaded.process.send_signal(signal.SIGINT)
    assert reloaded.process.wait(60) == 0
    reloaded.check_gone()


@pytest.mark.parametrize("options", [("--processes", "1"), ("--in-process",)], ids=["processes", "in-process"])
def test_nothing_outlives_a_killed_reloader(tmp_path: Path, options: tuple[str, ...]):
    """What it started stops in order: a running job may finish."""
    reloaded = Reloaded(tmp_path, *options)
    try:
        job = reloaded.hold()
        reloaded.process.kill()
        reloaded.wait_log("the reloader is gone")
        reloaded.path.touch()
        reloaded.check_gone()
        assert job.state == "succeeded"
    finally:
        reloaded.end()
