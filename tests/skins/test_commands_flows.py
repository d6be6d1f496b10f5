"""`packhorse flows`: looking at a flow, cancelling and resuming all of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import Batch, Embedded, FlowHandle, JobState, Packhorse, chain
from packhorse.ids import new_id, to_text
from packhorse.job import NewJob
from tests.skins.shops import FORBIDDEN, HOSTILE, Run, busy_shop, told


@pytest.fixture
def app(shop: Path) -> Iterator[Packhorse]:
    app = busy_shop(shop)
    app.control.migrate()
    yield app
    app.close()


@pytest.fixture
def flow(app: Packhorse) -> FlowHandle:
    """The second of its three jobs fails."""
    tasks: Any = {name.rpartition(".")[2]: task for name, task in app.tasks.items()}
    return chain(tasks["double"].call(1), tasks["pay"].call(5), tasks["double"].call(2)).enqueue()


def test_a_flow_is_shown(app: Packhorse, flow: FlowHandle, packhorse: Run):
    """In the order of its jobs, below how many are in which state."""
    output = packhorse("flows", "show", flow.id, "--app", "busy_shop").output
    first, *lines = output.splitlines()
    assert first == "2 waiting, 1 ready"
    rows = [line.split() for line in lines[-3:]]
    assert [(row[0], row[2], row[4]) for row in rows] == [
        ("0", "ready", "busy_shop.double"),
        ("1", "waiting", "busy_shop.pay"),
        ("2", "waiting", "busy_shop.double"),
    ]
    assert [row[1] for row in rows] == [job.id for job in flow.jobs()]


def test_scripts_get_counts_and_jobs(app: Packhorse, flow: FlowHandle, packhorse: Run):
    """A page at a time."""
    shown = told(packhorse("flows", "show", flow.id, "--json", "--limit", "2"))
    assert (shown["id"], shown["counts"], shown["after"]) == (flow.id, {"waiting": 2, "ready": 1}, 1)
    assert [(job["place"], job["callback"], job["state"]) for job in shown["jobs"]] == [
        (0, None, "ready"),
        (1, None, "waiting"),
    ]
    rest = told(packhorse("flows", "show", flow.id, "--json", "--after", "1"))
    assert ([job["place"] for job in rest["jobs"]], rest["after"]) == ([2], None)
    more = packhorse("flows", "show", flow.id, "--limit", "1")
    assert "There are more: --after 0" in more.output


def test_callbacks_are_shown_by_their_names(app: Packhorse, packhorse: Run):
    """And not counted."""
    double: Any = app.tasks["busy_shop.double"]
    batch = Batch([double.call(1)], on_success=double.call(2), on_finish=double.call(3)).enqueue()
    shown = told(packhorse("flows", "show", batch.id, "--json"))
    assert shown["counts"] == {"ready": 1}
    assert {job["callback"] for job in shown["jobs"]} == {None, "on_success", "on_finish"}
    output = packhorse("flows", "show", batch.id).output
    assert "on_success" in output
    assert "on_finish" in output


def test_callbacks_of_a_job_are_found_by_its_id(app: Packhorse, packhorse: Run):
    """And called off, which leaves the job alone."""
    double: Any = app.tasks["busy_shop.double"]
    job = double.using(on_success=double.call(2), on_finish=double.call(3)).enqueue(1)
    shown = told(packhorse("flows", "show", job.id, "--json"))
    assert shown["counts"] == {}
    assert [(it["callback"], it["state"]) for it in shown["jobs"]] == [
        ("on_finish", "waiting"),
        ("on_success", "waiting"),
    ]
    cancelled = packhorse("flows", "cancel", job.id, "--app", "busy_shop", "--reason", "not today")
    assert cancelled.output == "Cancelled 2 jobs.\n"
    assert job.state is JobState.READY


def test_a_flow_is_cancelled_and_resumed(app: Packhorse, flow: FlowHandle, packhorse: Run):
    """Both are kept in the audit."""
    on = ("--app", "busy_shop", "--actor", "eve")
    assert packhorse("flows", "cancel", flow.id, *on, "--reason", "not today").output == "Cancelled 3 jobs.\n"
    assert flow.counts() == {JobState.CANCELLED: 3}
    assert {job.look().reason for job in flow.jobs()} == {"not today"}
    assert packhorse("flows", "retry", flow.id, *on, "--reason", "after all").output == "Retried 3 jobs.\n"
    assert flow.counts() == {JobState.READY: 1, JobState.WAITING: 2}
    with Embedded(app):
        assert flow.wait(20) == {JobState.SUCCEEDED: 1, JobState.FAILED: 1, JobState.CANCELLED: 1}
    assert told(packhorse("flows", "retry", flow.id, *on, "--json")) == {"act": "retry", "jobs": 2, "asked": 0}
    assert told(packhorse("flows", "cancel", flow.id, *on, "--json")) == {"act": "cancel", "jobs": 2, "asked": 0}
    done = [(audit.actor, audit.act, audit.reason, audit.jobs) for audit in app.inspection.audit()]
    assert done[::-1] == [
        ("eve", "cancel", "not today", 3),
        ("eve", "retry", "after all", 3),
        ("eve", "retry", "", 2),
        ("eve", "cancel", "", 2),
    ]


def test_running_jobs_are_asked_only_by_their_own_application(app: Packhorse, flow: FlowHandle, packhorse: Run):
    """Whose name must be given."""
    from packhorse.queues import EVERYTHING
    from packhorse.stores.contract import ProcessInfo

    app.store.enroll(ProcessInfo(b"p" * 16, "worker", "here", 1), 60_000_000)
    app.store.exchange(b"p" * 16, 1, [], EVERYTHING, 1)
    refused = packhorse("flows", "cancel", flow.id)
    assert refused.exit_code == 1
    assert "name it with --app" in refused.output
    assert flow.counts()[JobState.WAITING] == 2
    asked = packhorse("flows", "cancel", flow.id, "--app", "busy_shop")
    assert asked.output.startswith("Cancelled 2 jobs. 1 running job was asked to end")


@pytest.mark.parametrize("command", ["show", "cancel", "retry"])
def test_what_is_no_flow_is_explained(app: Packhorse, packhorse: Run, command: str):
    """And nothing is done."""
    double: Any = app.tasks["busy_shop.double"]
    for id, message in (
        ("nonsense", "is no id of a flow"),
        (HOSTILE, "is no id of a flow"),
        (to_text(new_id()), "There is no flow"),
        (double.enqueue(1).id, "There is no flow"),
    ):
        result = packhorse("flows", command, id)
        assert (result.exit_code, message in result.output) == (1, True), result.output
        assert not set(result.output) & set(FORBIDDEN)
    assert app.store.audit() == []


def test_hostile_texts_of_a_flow_are_shown_harmlessly(app: Packhorse, packhorse: Run):
    """Whoever wrote them."""
    flow = new_id()
    app.store.insert([NewJob(new_id(), HOSTILE, b"forged", HOSTILE, member=(flow, 0))])
    for options in ((), ("--json",)):
        result = packhorse("flows", "show", to_text(flow), *options)
        assert result.exit_code == 0, result.output
        assert not set(result.output) & set(FORBIDDEN)
