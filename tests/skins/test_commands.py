"""The `packhorse` command."""

import importlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from packhorse import JobState, Packhorse, __version__
from packhorse.cli import main
from packhorse.failpoints import POINTS
from packhorse.runtime.supervisor import Supervisor
from tests.waiting import wait_until

Run = Callable[..., Result]


def shop_app() -> Packhorse:
    app: Packhorse = importlib.import_module("corner_shop").app
    return app


def every_command(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(every_command()), ids=" ".join)
def test_every_command_explains_itself_with_an_example(packhorse: Run, path: tuple[str, ...]):
    """`-h` does as well as `--help`; the example is one of this very command."""
    result = packhorse(*path, "--help")
    assert result.exit_code == 0
    example = "packhorse worker" if path == ("failpoints",) else " ".join(["packhorse", *path])
    assert example in result.output.split("Example")[1]
    assert packhorse(*path, "-h").output == result.output


@pytest.mark.parametrize("path", list(every_command()), ids=" ".join)
def test_every_command_that_tells_something_does_so_for_scripts_too(packhorse: Run, path: tuple[str, ...]):
    """But for the worker, which logs, and the script for a shell."""
    groups = {"jobs", "dead", "queues", "tasks", "limits", "shares", "schedules", "flows"}
    is_group = not path or path in {(name,) for name in groups}
    assert ("--json" in packhorse(*path, "--help").output) == (not is_group and path[0] not in {"worker", "completion"})


def test_the_version_is_the_packages(packhorse: Run):
    """One place says it."""
    assert packhorse("--version").output == f"packhorse, version {__version__}\n"


def test_status_of_an_empty_store(shop: Path, packhorse: Run):
    """Nothing is said in words, or in empty lists."""
    packhorse("migrate")
    assert "No jobs" in packhorse("status", "corner_shop:app").output
    assert "nobody performs jobs" in packhorse("status").output
    assert json.loads(packhorse("status", "--json").output) == {"queues": [], "processes": []}


def test_status_shows_queues_by_state(shop: Path, packhorse: Run):
    """A paused queue is marked, whether it is named by its application or by its store."""
    app = shop_app()
    app.enqueue_many(app.tasks["corner_shop.double"].call(number) for number in range(3))
    app.tasks["corner_shop.mail"].using(run_after=3600).enqueue("ann")
    app.control.pause("mail", reason="the server moves", actor="ann")
    for which in (["corner_shop"], ["--store", f"sqlite:///{shop}/shop.db"]):
        result = packhorse("status", *which)
        assert result.exit_code == 0
        assert "mail (paused)" in result.output
        assert "scheduled" in result.output
        queues = json.loads(packhorse("status", *which, "--json").output)["queues"]
        default, mail = sorted(queues, key=lambda queue: str(queue["queue"]))
        assert default == {"queue": "default", "paused": None} | dict.fromkeys(JobState, 0) | {"ready": 3}
        assert mail["scheduled"] == 1
        assert mail["paused"] == {"until": None, "reason": "the server moves", "actor": "ann"}
    app.close()


def test_migrate_tells_what_it_did(shop: Path, packhorse: Run):
    """And does nothing the second time."""
    first = json.loads(packhorse("migrate", "--json").output)
    assert first["applied"][0] == "0001_jobs"
    assert first["version"] == len(first["applied"])
    assert json.loads(packhorse("migrate", "--json").output) == {"applied": [], "version": first["version"]}
    assert packhorse("migrate", "corner_shop:app").output.startswith("Nothing to do: the schema is at version")
    assert "Applied 0001_jobs" in packhorse("migrate", "--store", f"sqlite:///{shop}/other.db").output


def test_failpoints_are_listed(packhorse: Run):
    """Each with its place."""
    assert json.loads(packhorse("failpoints", "--json").output) == POINTS
    assert len(packhorse("failpoints").output.splitlines()) == len(POINTS)


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["status", "--store", "nonsense"], 1, "Cannot use the store URL 'nonsense': it has no scheme"),
        (["status", "--store", "sqlite:///mispelt.db"], 1, "There is no store at sqlite:///mispelt.db yet"),
        (["migrate", "--store", "sqlite:////no/such/folder/jobs.db"], 1, "does not exist. Create it"),
        (["migrate", "--store", "sqlite:///garbage.db"], 1, "file is not a database"),
        (["status", "no_such_shop:app"], 1, "There is no module 'no_such_shop'"),
        (["status", "corner_shop:nothing"], 1, "corner_shop.nothing is not a Packhorse application"),
        (["status", "json"], 1, "json has 0 Packhorse applications"),
        (["status", ":app"], 1, "names no module"),
        (["worker", "no_such_shop:app"], 1, "There is no module 'no_such_shop'"),
        (["worker", "corner_shop:app", "--queues", "no spaces"], 1, "cannot be a queue name"),
        (["worker", "memory_shop:app"], 1, "lives inside one process"),
        (["worker"], 2, "Missing argument 'APP'"),
        (["worker", "corner_shop:app", "--concurrency", "0"], 2, "0 is not in the range x>=1"),
        (["worker", "corner_shop:app", "--log-level", "LOUD"], 2, "'LOUD' is not one of"),
        (["worker", "corner_shop:app", "--log-format", "xml"], 2, "'xml' is not one of"),
        (["status", "--store", "sqlite://user:pa55word@host/x.db"], 1, "sqlite://user:•••@host/x.db"),
        (["status", "corner_shop:app", "--store", "memory://"], 2, "Name an APP or a --store, not both"),
        (["status", "--jsno"], 2, "No such option"),
        (["stauts"], 2, "No such command 'stauts'"),
    ],
)
def test_a_mistake_is_one_clear_message(shop: Path, packhorse: Run, args: list[str], status: int, message: str):
    """No traceback; exit status 1, or 2 where the command itself was given wrongly."""
    (shop / "memory_shop.py").write_text("from packhorse import Packhorse\napp = Packhorse('shop', 'memory://')\n")
    (shop / "garbage.db").write_bytes(b"This is not a database." * 1000)
    result = packhorse(*args)
    assert result.exit_code == status
    assert message in result.output
    assert "Error: " in result.output
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("wrong", ["mode", "extra"])
def test_unusable_keys_stop_the_worker_before_it_starts_anybody(
    shop: Path, packhorse: Run, monkeypatch: pytest.MonkeyPatch, wrong: str
):
    """One sentence, instead of children that die again and again."""
    monkeypatch.setattr(Supervisor, "run", lambda supervisor: pytest.fail("children were started"))
    keys = shop / "keys"
    keys.write_text("a-key-of-some-length-0f9e8d7c6b5a4938\n")
    keys.chmod(0o644 if wrong == "mode" else 0o600)
    monkeypatch.setenv("PACKHORSE_KEYS_FILE", str(keys))
    if wrong == "extra":
        monkeypatch.setenv("PACKHORSE_ENCRYPTION", "true")
        for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "cryptography", None)
    result = packhorse("worker", "corner_shop:app")
    assert result.exit_code == 1
    assert ("chmod 600" if wrong == "mode" else "packhorse[crypto]") in result.output
    assert result.output.count("Error: ") == 1
    assert isinstance(result.exception, SystemExit)


def test_an_error_inside_the_application_is_shown_as_it_is(shop: Path, packhorse: Run):
    """A module that cannot be imported is the author's to mend, and needs its traceback."""
    (shop / "broken_shop.py").write_text("import no_such_library\n")
    result = packhorse("status", "broken_shop:app")
    assert isinstance(result.exception, ModuleNotFoundError)
    assert result.exception.name == "no_such_library"


def test_a_burst_performs_what_is_ready_and_leaves(shop: Path, command: Callable[..., Any]):
    """The real command, with two worker processes: every job is performed, and nobody stays behind."""
    app = shop_app()
    double, mail = app.tasks["corner_shop.double"], app.tasks["corner_shop.mail"]
    jobs = app.enqueue_many([*(double.call(number) for number in range(50)), mail.call("ann")])
    worker = command("worker", "corner_shop:app", "--burst", "--processes", "2", "--concurrency", "4")
    _, log = worker.communicate(timeout=60)
    assert worker.returncode == 0, log
    assert [job.result(0) for job in jobs] == [*(2 * number for number in range(50)), "hello ann"]
    assert app.inspection.processes() == []
    assert "Traceback" not in log
    app.close()


def test_logs_are_lines_of_json_where_that_is_asked_for(shop: Path, command: Callable[..., Any]):
    """The children's too: each names its process, and tells of a job with its id."""
    (shop / "sad_shop.py").write_text(
        "from packhorse import Packhorse\napp = Packhorse('sad')\n@app.task\ndef cry():\n    raise ValueError('oh')\n"
    )
    app: Packhorse = importlib.import_module("sad_shop").app
    job = app.tasks["sad_shop.cry"].enqueue()
    worker = command("worker", "sad_shop", "--burst", "--processes", "1", "--log-format", "json")
    _, log = worker.communicate(timeout=60)
    lines = list(map(json.loads, log.splitlines()))
    assert len({line["process"] for line in lines}) > 1
    assert [line["task"] for line in lines if line.get("job_id") == job.id] == ["sad_shop.cry"]
    app.close()


def test_a_worker_stops_when_it_is_asked_to(shop: Path, command: Callable[..., Any]):
    """TERM ends it with status 0; meanwhile `status` shows it at work."""
    app = shop_app()
    worker = command("worker", "corner_shop:app", "--processes", "1", "--queues", "mail,*", "--log-level", "WARNING")
    try:
        assert app.tasks["corner_shop.mail"].enqueue("bob").result(timeout=60) == "hello bob"
        wait_until(lambda: len(app.inspection.processes()) == 4, "all four processes to enrol")
        status = command("status", "--json")
        processes = json.loads(status.communicate(timeout=60)[0])["processes"]
        assert sorted(process["role"] for process in processes) == ["dispatcher", "scheduler", "supervisor", "worker"]
        assert [process["queues"] for process in processes if process["role"] == "worker"] == ["mail,*"]
        worker.send_signal(signal.SIGTERM)
        out, log = worker.communicate(timeout=60)
    finally:
        worker.kill()
    assert (worker.returncode, out, log) == (0, "", "")
    wait_until(lambda: app.inspection.processes() == [])
    app.close()
