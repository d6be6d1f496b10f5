"""What a supervisor shows and takes from outside: its probe, its lock file, roles apart, and starting anew."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from packhorse.runtime.reloading import snapshot
from tests.faults.harness import ROOT, Place, Workers
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def ask(port: int, within: float = 10.0) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health?within={within}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def port_of(workers: Workers) -> int:
    workers.wait_log("the probe answers on")
    found = re.search(r"answers on 127\.0\.0\.1:(\d+)", workers.log)
    assert found is not None
    return int(found[1])


def health(port: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "packhorse", "health", "--probe", str(port), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_the_probe_says_whether_jobs_could_be_claimed(place: Place):
    """Workers that live and are beaten for, but cannot reach the store, are not healthy."""
    place.constants |= {"packhorse.stores.sqlite_connections.DEADLINE": 0.3}
    place.settings |= {"lease": 60.0}
    workers = place.workers("--probe", "0")
    port = port_of(workers)
    wait_until(lambda: ask(port)[0] == 200, "it is healthy", 60)
    assert health(port).returncode == 0
    held = place.enqueue("hold", "held")
    place.wait_started("held")
    assert ask(port, within=20)[0] == 200
    with place.locked():
        place.let_go("held")  # its outcome cannot be written
        wait_until(lambda: ask(port, within=5)[0] == 503, "it is not healthy", 60)
        assert "has not reached the store" in ask(port, within=5)[1]
    place.wait_state(held, "succeeded")
    wait_until(lambda: ask(port)[0] == 200, "it is healthy again", 60)
    workers.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: ask(port)[0] == 503, "it claims no more", 60)
    told = health(port)
    assert told.returncode == 1
    assert json.loads(health(port, "--json").stdout)["healthy"] is False
    assert "no more jobs are claimed" in told.stderr
    assert workers.stop() == 0
    assert "Nobody answers" in health(port).stderr


def test_a_lock_file_lets_one_in_and_is_never_stale(place: Place, tmp_path: Path):
    lock = tmp_path / "lock"
    first = place.workers("--lock-file", str(lock))
    wait_until(lambda: lock.exists() and lock.read_text().strip() == str(first.process.pid), "it holds the file", 60)
    second = place.workers("--lock-file", str(lock))
    assert second.wait() == 1
    assert f"with pid {first.process.pid}, holds" in second.log
    first.kill()
    first.wait_children_gone()
    third = place.workers("--lock-file", str(lock))
    id = place.enqueue("note", "after")
    place.wait_state(id, "succeeded")
    assert third.stop() == 0


def test_roles_may_run_apart(place: Place):
    id = place.enqueue("note", "due", run_after=0.2)
    only_worker = place.workers("--only", "worker")
    only_worker.wait_pid("worker")
    only_dispatcher = place.workers("--only", "dispatcher")
    place.wait_state(id, "succeeded")
    assert (only_worker.pids("dispatcher"), only_worker.pids("scheduler")) == ([], [])
    assert only_dispatcher.pids("worker") == []
    assert only_dispatcher.stop() == 0
    assert only_worker.stop() == 0
    place.check([id])


def test_all_roles_in_one_process(place: Place):
    ids = [
        place.enqueue("note", "now"),
        place.enqueue("note", "due", run_after=0.2),
        place.enqueue("isolated_note", "i"),
    ]
    workers = place.workers("--in-process", processes=0)
    for id in ids:
        place.wait_state(id, "succeeded")
    held = place.enqueue("hold", "held")
    assert place.wait_started("held").pid == workers.process.pid
    place.settings["shutdown_timeout"] = 0.2
    workers.process.send_signal(signal.SIGTERM)
    place.let_go("held")
    assert workers.wait() == 0
    place.check([*ids, held])


def test_changed_sources_start_it_anew(place: Place, tmp_path: Path):
    """Running jobs go back unspent; what cannot be imported is tried again when it has changed."""
    folder = tmp_path / "shop"
    folder.mkdir(mode=0o700)
    module = folder / "shop.py"
    text = (
        "from packhorse import Packhorse\n"
        f"app = Packhorse('shop', 'sqlite:///{folder}/jobs.db', shutdown_timeout=0.1, ending_timeout=0.1)\n"
        "@app.task(name='say')\ndef say() -> str:\n    return {word!r}\n"
    )

    def write(content: str) -> None:
        before = snapshot(folder)
        module.write_text(content)
        wait_until(lambda: snapshot(folder) != before)

    module.write_text(text.replace("{word!r}", "'one'"))
    command = [sys.executable, "-m", "packhorse", "worker", "shop:app", "--reload", "--processes", "1"]
    process = subprocess.Popen(command, cwd=folder, env=place.environment() | {"PACKHORSE_STORE": ""})
    try:
        from packhorse import Packhorse

        def said() -> str:
            app = Packhorse("shop", f"sqlite:///{folder}/jobs.db")

            @app.task(name="say")
            def say() -> str:
                return ""

            return say.enqueue().result(60)

        assert said() == "one"
        write("this is no Python")
        write(text.replace("{word!r}", "'three'"))
        wait_until(lambda: said() == "three", "the new code runs", 60)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_children_forked_from_a_server_that_has_imported_the_application(place: Place):
    """They work, die, are replaced and stop like others."""
    place.isolated = True
    first = place.enqueue("hold", "held")
    workers = place.workers("--preload")
    pid = place.wait_started("held").pid
    assert b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    os.kill(pid, signal.SIGKILL)
    again = place.wait_started("held", 2)
    assert again.pid != pid
    place.let_go("held")
    job = place.wait_state(first, "succeeded")
    assert job.losses == 1
    assert "was killed by SIGKILL" in job.failures[0].failure.message
    ids = [place.enqueue("note", "due", run_after=0.1), place.enqueue("isolated_note", "apart")]
    for id in ids:
        place.wait_state(id, "succeeded")
    assert workers.stop() == 0
    place.check([first, *ids])
