"""A forked child of a task is a copy of its worker: it performs nothing, answers nothing, and ends with the task."""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.forking import EVERYWHERE
from tests.faults.harness import Place, Workers
from tests.faults.processes import of_session
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

QUICK_ONES = 300
ROLES = ("supervisor", "worker", "dispatcher", "scheduler")
ENDS = {"exit": "ended-5", "exec": "ended-1", "raise": "ended-1", "return": "ended-0"}


def all_gone(workers: Workers) -> None:
    wait_until(lambda: not of_session(workers.process.pid), "no process is left behind")


def check_each_once(place: Place, forking: dict[str, str], quick: dict[str, str]) -> None:
    """`forking` and `quick` map ids to keys: each job was performed once, and its outcome is its own."""
    for id, key in (forking | quick).items():
        assert place.app.job(id).result(0) == key
    started = Counter(line.key for line in place.lines(what="start"))
    assert started == Counter(dict.fromkeys([*forking.values(), *quick.values()], 1))
    place.app.close()


@pytest.mark.parametrize("prefix", ["", "isolated_"])
def test_a_copy_that_comes_back_performs_nothing(place: Place, prefix: str):
    """Out of a thread, a coroutine, and a thread beside the loop, in every way there is; quick jobs wait behind."""
    calls = [
        *((task, how) for task in ("split", "asplit", "split_aside") for how in ENDS),
        ("asplit", "await"),
    ]
    forking: dict[str, str] = {}
    quick: dict[str, str] = {}
    for task, how in calls:
        key = f"{task}-{how}"
        forking[place.enqueue(prefix + task, key, how)] = key
    keys = [f"quick-{n}" for n in range(QUICK_ONES if not prefix else 20)]
    for task in ("echo", "aecho") if not prefix else ("isolated_echo",):
        named = [f"{task}-{key}" for key in keys]
        quick |= dict(zip(place.enqueue_many(task, *((key,) for key in named)), named, strict=True))
    workers = place.workers("--concurrency", "2")
    place.wait_all_finished()
    assert workers.stop() == 0
    all_gone(workers)
    check_each_once(place, forking, quick)
    ended = {line.key: line.what for line in place.lines() if line.what.startswith("ended")}
    assert ended == {f"{task}-{how}": ENDS.get(how, "ended-1") for task, how in calls}
    assert "lost its process" not in workers.log
    assert workers.log.count("ValueError: in the forked child") == 3
    place.check([*forking, *quick])


@pytest.mark.parametrize("prefix", ["", "isolated_"])
def test_term_ends_a_forked_child_that_sleeps(place: Place, prefix: str):
    """The worker's own handler would only set a flag in it. And it holds nothing of its worker's open."""
    id = place.enqueue(f"{prefix}leave_asleep", "asleep")
    workers = place.workers("--concurrency", "2")
    place.wait_state(id, "succeeded")
    child = place.app.job(id).result(0)
    place.app.close()
    handle = os.pidfd_open(child)
    try:
        assert lines_of(child, "pipe") & lines_of(workers.process.pid, "pipe") == set()
        assert lines_of(child, "socket") == set()
        assert workers.stop() == 0
        workers.wait_children_gone()
        assert of_session(workers.process.pid) == [child]
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        all_gone(workers)
    finally:
        os.close(handle)


def lines_of(pid: int, kind: str) -> set[str]:
    """Pipes or sockets that it has open, besides standard output."""
    links = {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    return {link for fd, link in links.items() if fd > 2 and link.startswith(kind)}


@pytest.mark.parametrize("prefix", ["", "isolated_"])
def test_children_that_behave_work_as_ever(place: Place, prefix: str):
    ids = [place.enqueue(f"{prefix}pool", f"pool-{n}") for n in range(2)]
    workers = place.workers("--concurrency", "2")
    place.wait_all_finished()
    assert [place.app.job(id).result(0) for id in ids] == [[0, 0, 1, 4, 9]] * 2
    place.app.close()
    assert workers.stop() == 0
    all_gone(workers)
    place.check(ids)
    assert len(place.lines(what="finish")) == 4


def test_whatever_forks_its_copies_end(tmp_path: Path):
    """Hooks in every process, subscribers, error reporters, middleware, codecs, backoff: all called by our own code."""
    tmp_path.chmod(0o700)
    (tmp_path / "everywhere.py").write_text(EVERYWHERE)
    ledger = tmp_path / "ledger"
    store = f"sqlite:///{tmp_path}/jobs.db"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}
    environment |= {"STORE": store, "LEDGER": str(ledger)}
    enqueue = "from everywhere import *; [it.enqueue() for it in (plain, along, failing)]"
    command = [sys.executable, "-c", enqueue]
    subprocess.run(command, cwd=tmp_path, env=environment | {"ENQUEUING": "yes"}, check=True, timeout=60)
    expected = Counter(f"{when}-{role} 5" for when in ("start", "stop", "exit") for role in ROLES)
    for task in ("plain", "along"):
        expected.update([f"before-{task} 5", f"after-{task} 5", f"subscriber-{task} 5", "decode 5", "encode 5", "done"])
    expected.update({"before-failing 5": 2, "reporter-failing 5": 2, "done": 2, "backoff 5": 1})

    def seen() -> Counter[str]:
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        return Counter(lines)

    workers = subprocess.Popen(
        [sys.executable, "-m", "packhorse", "worker", "everywhere:app", "--processes", "1"],
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
    )
    try:
        begun = {it for it in expected if not it.startswith(("stop", "exit"))} | {"enqueue-due 5", "subscriber-due 5"}
        wait_until(lambda: begun <= set(seen()), "everything has forked")
        wait_until(lambda: seen()["reporter-failing 5"] == 2, "the last attempt has ended")
        workers.send_signal(signal.SIGTERM)
        assert workers.wait(60) == 0
        wait_until(lambda: not of_session(workers.pid), "no process is left behind")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(workers.pid, signal.SIGKILL)
        workers.wait()
    found = seen()
    due = found["before-due 5"]
    assert due >= 1
    assert found.pop("enqueue-due 5") >= due
    assert [found.pop(f"{it}-due 5") for it in ("before", "after", "subscriber")] == [due] * 3
    found["done"] -= due
    assert found == expected


HOST = """
import os, sys
from packhorse import Embedded, Packhorse

app = Packhorse("host", sys.argv[1])

@app.task(name="echo")
def echo(text: str) -> str:
    return text

with Embedded(app):
    assert echo.enqueue("before").result(60) == "before"
    child = os.fork()
    if child == 0:
        echo.enqueue("of the child")
if child == 0:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with Embedded(app):
    print(echo.enqueue("after").result(60))
"""


def test_a_program_may_fork_while_it_performs_jobs(tmp_path: Path):
    """Its child is the program's own: it goes on, out of the block and to its own end, and performs nothing."""
    tmp_path.chmod(0o700)
    command = [sys.executable, "-c", HOST, f"sqlite:///{tmp_path}/jobs.db"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ["7", "after"]
