"""`packhorse signal`, and what `packhorse jobs show` tells of steps."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import Embedded, JobHandle, Packhorse
from packhorse.stores.contract import Entry
from tests.skins.shops import FORBIDDEN, HOSTILE, Run, told
from tests.waiting import wait_until

SOURCE = """
from packhorse import Context, Packhorse

app = Packhorse("patient", heartbeat=0.2, lease=10)


@app.task(takes_context=True)
def publish(context: Context, page: int) -> list:
    context.step("print it", str, page)
    return context.wait_for(f"approved:{page}")
"""


@pytest.fixture
def app(shop: Path) -> Iterator[Packhorse]:
    (shop / "patient_shop.py").write_text(SOURCE, encoding="utf-8")
    sys.modules.pop("patient_shop", None)
    app: Packhorse = importlib.import_module("patient_shop").app
    yield app
    app.close()


def waiting(app: Packhorse, page: int) -> JobHandle[Any]:
    job = app.tasks["patient_shop.publish"].enqueue(page)
    wait_until(lambda: job.look().awaits, "the job awaits its signal")
    return job


def test_a_signal_lets_jobs_go_on(app: Packhorse, packhorse: Run):
    """With data as JSON, or none, and says how many waited."""
    with Embedded(app):
        one, other = waiting(app, 1), waiting(app, 2)
        ran = packhorse("signal", "approved:1", "--app", "patient_shop", "--data", '{"by": ["ann"]}')
        assert ran.output == "1 job waited for approved:1; it is kept for those that come.\n"
        assert one.result(20) == {"by": ["ann"]}
        assert told(packhorse("signal", "approved:2", "--app", "patient_shop", "--keep", "1h", "--json")) == {"jobs": 1}
        assert other.result(20) is None


def test_what_a_job_awaits_and_has_done_is_shown(app: Packhorse, packhorse: Run):
    with Embedded(app):
        job = waiting(app, 3)
        output = packhorse("jobs", "show", job.id, "--app", "patient_shop").output
        assert "awaits    approved:3" in output
        assert "steps     step print it (0s ago)" in output
        shown = told(packhorse("jobs", "show", job.id, "--app", "patient_shop", "--json"))
        assert (shown["awaits"], [step["name"] for step in shown["steps"]]) == ("approved:3", ["print it"])
        app.signal("approved:3")
        job.result(20)
    output = packhorse("jobs", "show", job.id, "--app", "patient_shop").output
    assert "step print it (0s ago), signal approved:3 (0s ago)" in output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("a b", "--app", "patient_shop"), "cannot be a signal name"),
        (("go", "--app", "patient_shop", "--data", "{"), "--data is not JSON"),
        (("go",), "A signal is signed for one application"),
        (("go", "--app", "patient_shop", "--keep", "long"), "is no duration"),
    ],
)
def test_mistakes_are_told(app: Packhorse, packhorse: Run, arguments: tuple[str, ...], why: str):
    assert "There is no store at" in packhorse("signal", "go", "--app", "patient_shop").output
    app.tasks["patient_shop.publish"].enqueue(1)
    ran = packhorse("signal", *arguments)
    assert ran.exit_code != 0
    assert why in ran.output


def test_hostile_entries_are_not_believed(app: Packhorse, packhorse: Run):
    """They are told of, and give the terminal no orders."""
    with Embedded(app):
        job = waiting(app, 4)
        app.signal("approved:4")
        job.result(20)
    hostile = (Entry("step", HOSTILE, b"x"), ("signal", 7, 7), ("step", b"\xff", b""))
    rows = [(job._raw_id, kind, name, data) for kind, name, data in hostile]
    write = "insert into entry (id, kind, name, data) values (?, ?, ?, ?)"
    app.store._connections.write(lambda c: c.executemany(write, rows))  # type: ignore[attr-defined]
    ran = packhorse("jobs", "show", job.id, "--app", "patient_shop")
    assert ran.exit_code == 0, ran.output
    assert "steps     cannot be shown: " in ran.output
    assert not set(FORBIDDEN) & set(ran.output)
    assert told(packhorse("jobs", "show", job.id, "--app", "patient_shop", "--json"))["steps"] is None
