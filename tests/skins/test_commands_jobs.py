"""`packhorse jobs`: looking at jobs, and acting on them."""

import importlib
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packhorse import Embedded, JobState, Packhorse
from packhorse.ids import new_id, to_text
from packhorse.queues import EVERYTHING
from packhorse.stores.contract import OrderKind, ProcessInfo
from tests.skins.shops import Run, at_a_terminal, busy_shop, performed, told


@pytest.fixture
def app(shop: Path):
    app = busy_shop(shop)
    yield app
    app.close()


def states(app: Packhorse) -> list[str]:
    return [job.state.value for job in app.inspection.jobs()]


def listed(packhorse: Run, *args: str) -> list[str]:
    return [job["id"] for job in told(packhorse("jobs", "list", "busy_shop", "--json", *args))["jobs"]]


# Looking.


def test_an_empty_store_has_no_jobs(app: Packhorse, packhorse: Run):
    """In words, and as an empty list."""
    packhorse("migrate")
    assert "No job matches" in packhorse("jobs", "list", "busy_shop").output
    assert told(packhorse("jobs", "list", "--json")) == {"jobs": [], "after": None}


def test_jobs_are_listed_oldest_first_with_what_matters(app: Packhorse, packhorse: Run):
    """State, queue, task, attempts and a time that fits the state."""
    [paid] = performed(app, "pay", (5,))
    ready = app.tasks["busy_shop.mail"].enqueue("ann").id
    later = app.tasks["busy_shop.double"].using(run_after=7_300, tags=("big",)).enqueue(1).id
    lines = packhorse("jobs", "list", "busy_shop").output.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [paid, ready, later]
    assert "failed" in lines[2]
    assert "busy_shop.pay" in lines[2]
    assert "ended" in lines[2]
    assert "ready" in lines[3]
    assert "made" in lines[3]
    assert "due in 2h" in lines[4]


def test_every_filter_narrows(app: Packhorse, packhorse: Run):
    """Several values of one option widen it again."""
    paid, greeted = performed(app, "pay", (5,)) + performed(app, "greet", ("bob",))
    mailed = app.tasks["busy_shop.mail"].using(tags=("vip",)).enqueue("ann").id
    assert listed(packhorse) == [paid, greeted, mailed]
    assert listed(packhorse, "--state", "failed") == [paid, greeted]
    assert listed(packhorse, "--state", "ready", "--state", "failed") == [paid, greeted, mailed]
    assert listed(packhorse, "--queue", "mail") == [mailed]
    assert listed(packhorse, "--task", "busy_shop.pay") == [paid]
    assert listed(packhorse, "--task", "busy_shop.pay", "--task", "busy_shop.mail") == [paid, mailed]
    assert listed(packhorse, "--tag", "vip") == [mailed]
    assert listed(packhorse, "--queue", "till", "--state", "ready") == []


def test_age_counts_from_the_end_of_finished_jobs_and_from_the_making_of_others(app: Packhorse, packhorse: Run):
    """Seen with durations on both sides of now."""
    [paid] = performed(app, "pay", (5,))
    ready = app.tasks["busy_shop.mail"].enqueue("ann").id
    assert listed(packhorse, "--newer-than", "1h") == [paid, ready]
    assert listed(packhorse, "--older-than", "1h") == []
    assert listed(packhorse, "--older-than", "0s") == [paid, ready]
    assert listed(packhorse, "--state", "failed", "--older-than", "0s") == [paid]
    older = "update payload set created_at = created_at - 7200000000"  # two hours
    app.store._write(lambda c: c.execute(older))  # type: ignore[attr-defined]
    assert listed(packhorse, "--state", "failed", "--newer-than", "1h") == [paid]
    assert listed(packhorse, "--state", "ready", "--newer-than", "1h") == []
    assert listed(packhorse, "--state", "ready", "--newer-than", "1h30m") == []
    assert listed(packhorse, "--state", "ready", "--newer-than", "2h1m") == [ready]


def test_a_big_store_is_listed_page_by_page(app: Packhorse, packhorse: Run):
    """Each page says where the next begins; the last one does not."""
    double = app.tasks["busy_shop.double"]
    ids = [job.id for job in app.enqueue_many(double.call(number) for number in range(1_207))]
    seen: list[str] = []
    after: list[str] = []
    while True:
        page = told(packhorse("jobs", "list", "busy_shop", "--json", "--limit", "500", *after))
        seen += [job["id"] for job in page["jobs"]]
        if page["after"] is None:
            break
        after = ["--after", page["after"]]
    assert seen == ids
    assert f"--after {ids[49]}" in packhorse("jobs", "list", "busy_shop").stderr


def test_a_job_is_shown_with_all_its_attempts(app: Packhorse, packhorse: Run):
    """Also with the traceback, and without its arguments."""
    [paid] = performed(app, "pay", (5,))
    app.control.retry([paid])
    performed(app, "double", (1,))
    shown = packhorse("jobs", "show", paid, "--app", "busy_shop").output
    assert "attempt 1" in shown
    assert shown.count("ValueError: the till has no EUR 5") == 4
    assert "busy_shop.py" in shown
    assert "arguments" not in shown
    found = told(packhorse("jobs", "show", paid, "--app", "busy_shop", "--json"))
    assert found["failure"]["type"] == "ValueError"
    assert [attempt["number"] for attempt in found["failures"]] == [1]
    assert "arguments" not in found


def test_arguments_and_results_are_shown_when_asked_for_and_masked(app: Packhorse, packhorse: Run):
    """By the names of the parameters."""
    [mailed] = performed(app, "mail", ("ann", "hunter22"))
    args = ("jobs", "show", mailed, "--app", "busy_shop", "--arguments", "--result")
    result = packhorse(*args)
    assert "ann" in result.output
    assert "hunter22" not in result.output
    found = told(packhorse(*args, "--json"))
    assert found["arguments"] == found["result"] == {"to": "ann", "password": "•••"}


def test_without_the_applications_name_nothing_signed_is_shown(app: Packhorse, packhorse: Run):
    """It says so; with --app-name it can be."""
    [paid] = performed(app, "pay", (5,))
    result = packhorse("jobs", "show", paid, "--arguments")
    assert result.exit_code == 0
    assert "EUR" not in result.output
    assert "cannot be shown" in result.output
    assert "--app-name" in result.stderr
    named = packhorse("jobs", "show", paid, "--app-name", "busy", "--arguments")
    assert "the till has no EUR 5" in named.output
    assert '"0": "•••"' in named.output  # the task is not known here, and so neither is what may be secret
    assert named.stderr == ""


def test_progress_is_shown(app: Packhorse, packhorse: Run):
    """As the job last told it."""
    (Path.cwd() / "slow_shop.py").write_text(
        "from packhorse import Packhorse\napp = Packhorse('slow')\n"
        "@app.task(takes_context=True)\ndef count(context):\n    context.progress(3, 4, 'nearly')\n"
    )
    slow = importlib.import_module("slow_shop").app
    with Embedded(slow):
        job = slow.tasks["slow_shop.count"].enqueue()
        job.result(20)
    slow.close()
    assert "3 of 4 (75 %): nearly" in packhorse("jobs", "show", job.id, "--app", "slow_shop").output
    assert told(packhorse("jobs", "show", job.id, "--app", "slow_shop", "--json"))["progress"]["done"] == 3


# Acting.


def test_acts_on_jobs_by_id(app: Packhorse, packhorse: Run):
    """Without a question, but for the one that destroys."""
    [paid] = performed(app, "pay", (5,))
    later = app.tasks["busy_shop.double"].using(run_after=3600).enqueue(1).id
    on = ("--app", "busy_shop")
    assert packhorse("jobs", "retry", paid, *on).output == "Retried 1 job.\n"
    assert packhorse("jobs", "run-now", later, *on).output == "Made ready 1 job.\n"
    assert states(app) == ["ready", "ready"]
    assert packhorse("jobs", "cancel", paid, later, *on, "--reason", "enough").output == "Cancelled 2 jobs.\n"
    assert [job.reason for job in app.inspection.jobs()] == ["enough", "enough"]
    assert told(packhorse("jobs", "discard", paid, later, *on, "--yes", "--json")) == {
        "act": "discard",
        "jobs": 2,
        "asked": 0,
    }
    assert states(app) == []


def test_actor_and_reason_are_kept(app: Packhorse, packhorse: Run):
    """In the audit."""
    job = app.tasks["busy_shop.double"].enqueue(1).id
    packhorse("jobs", "cancel", job, "--app", "busy_shop", "--actor", "ann", "--reason", "sent by hand")
    [act] = app.store.audit()
    assert (act.actor, act.act, act.reason, act.jobs) == ("ann", "cancel", "sent by hand", 1)


def test_ids_that_cannot_be_meant_are_named_and_the_others_acted_upon(app: Packhorse, packhorse: Run):
    """Status 1, as not all was done."""
    [paid] = performed(app, "pay", (5,))
    ready, unknown = app.tasks["busy_shop.double"].enqueue(1).id, to_text(new_id())
    result = packhorse("jobs", "retry", paid, ready, unknown, "--app", "busy_shop")
    assert result.exit_code == 1
    assert result.stdout == "Retried 1 job.\n"
    assert f"Job {ready} is ready: it would have to be failed or cancelled." in result.stderr
    assert f"There is no job {unknown}" in result.stderr
    assert packhorse("jobs", "show", unknown, "--app", "busy_shop").exit_code == 1
    assert packhorse("jobs", "retry", "nonsense", "--app", "busy_shop").exit_code == 1
    malformed = packhorse("jobs", "cancel", "nonsense", ready, "--app", "busy_shop")
    assert (malformed.exit_code, malformed.stdout) == (1, "Cancelled 1 job.\n")
    assert malformed.stderr == "'nonsense' is no job id.\n"
    assert app.job(ready).state is JobState.CANCELLED


def test_a_selection_needs_a_word_and_a_confirmation(app: Packhorse, packhorse: Run):
    """An empty list of ids must not mean every job; and where nobody can be asked, --yes is asked for."""
    app.enqueue_many(app.tasks["busy_shop.double"].call(number) for number in range(3))
    on = ("--app", "busy_shop")
    assert packhorse("jobs", "discard", *on).exit_code == 2
    assert packhorse("jobs", "discard", "--state", "ready", *on).exit_code == 2
    for act in ("discard", "cancel"):
        refused = packhorse("jobs", act, "--all-matching", *on)
        assert refused.exit_code == 1
        assert f"This would {act} 3 jobs. There is no terminal" in refused.output
    assert states(app) == ["ready"] * 3
    [first, *_] = app.inspection.jobs()
    assert packhorse("jobs", "discard", first.id, *on).exit_code == 1
    assert packhorse("jobs", "discard", "--all-matching", "--yes", *on).output == "Discarded 3 jobs.\n"
    assert states(app) == []
    assert packhorse("jobs", "discard", "--all-matching", *on).output == "Discarded 0 jobs.\n"


@pytest.mark.slow
def test_somebody_at_a_terminal_is_asked(shop: Path, app: Packhorse):
    """No means no, with the number of jobs in the question."""
    app.enqueue_many(app.tasks["busy_shop.double"].call(number) for number in range(3))
    discard = ("jobs", "discard", "--app", "busy_shop", "--all-matching")
    status, screen = at_a_terminal(shop, *discard, answer="n\n")
    assert status == 1
    assert "Discard 3 jobs? [y/N]" in screen
    assert len(states(app)) == 3
    status, screen = at_a_terminal(shop, *discard, answer="y\n")
    assert status == 0
    assert "Discarded 3 jobs." in screen
    assert states(app) == []


def test_a_selection_acts_on_what_matches_alone(app: Packhorse, packhorse: Run):
    """In as many batches as it takes; --limit takes the oldest."""
    performed(app, "pay", (1,), (2,))
    app.enqueue_many(app.tasks["busy_shop.double"].call(number) for number in range(2_300))
    mailed = app.tasks["busy_shop.mail"].enqueue("ann").id
    on = ("--app", "busy_shop", "--all-matching", "--yes")
    few = packhorse("jobs", "cancel", "--task", "busy_shop.double", "--limit", "10", *on)
    assert few.output == "Cancelled 10 jobs.\n"
    rest = packhorse("jobs", "cancel", "--queue", "default", *on)
    assert rest.output == "Cancelled 2,290 jobs.\n"
    assert app.job(mailed).state is JobState.READY
    assert packhorse("jobs", "retry", "--state", "failed", *on).output == "Retried 2 jobs.\n"
    assert app.inspection.counts()[JobState.CANCELLED] == 2_300


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["jobs", "retry", "--state", "succeeded", "--all-matching"], "Succeeded jobs cannot be meant"),
        (["jobs", "discard", "--state", "running", "--all-matching"], "Running jobs cannot be meant"),
        (["jobs", "cancel", to_text(bytes(16)), "--queue", "mail"], "not both"),
        (["jobs", "cancel", to_text(bytes(16)), "--all-matching"], "not both"),
        (["jobs", "list", "--older-than", "30"], "'30' is no duration"),
        (["jobs", "list", "--older-than", "-5m"], "is no duration"),
        (["jobs", "list", "--older-than", "999999999d"], "is no duration"),
        (["jobs", "list", "--newer-than", "1h 2m"], "is no duration"),
        (["jobs", "list", "--limit", "0"], "0 is not in the range"),
        (["jobs", "list", "--limit", "10001"], "10001 is not in the range"),
        (["jobs", "list", "--state", "dead"], "'dead' is not one of"),
        (["jobs", "list", "busy_shop", "--app", "busy_shop"], "Name the APP once"),
        (["jobs", "list", "busy_shop", "--app-name", "busy"], "leave out --app-name"),
    ],
)
def test_a_wrong_word_is_explained(app: Packhorse, packhorse: Run, args: list[str], message: str):
    """Status 2, and nothing is done."""
    result = packhorse(*args)
    assert result.exit_code == 2
    assert message in result.output


def test_looking_and_acting_make_no_store(app: Packhorse, shop: Path, packhorse: Run):
    """A mistyped URL must not look like an empty store."""
    for args in (["jobs", "list"], ["jobs", "retry", to_text(bytes(16))], ["dead", "list"], ["queues", "list"]):
        result = packhorse(*args, "--store", f"sqlite:///{shop}/mistyped.db")
        assert result.exit_code == 1
        assert "There is no store" in result.output
    assert not (shop / "mistyped.db").exists()


def test_running_jobs_obey_only_their_own_application(app: Packhorse, packhorse: Run):
    """An order that its workers would ignore is not given."""
    job = app.tasks["busy_shop.double"].enqueue(1).id
    me = new_id()
    app.store.enroll(ProcessInfo(me, "worker", "here", 1, "*"), 60_000_000)
    app.store.exchange(me, 1, [], EVERYTHING, 1)
    for which in ([job], ["--all-matching", "--yes"]):
        refused = packhorse("jobs", "cancel", *which)
        assert refused.exit_code == 1
        assert "obey only their own application" in refused.output
    assert app.store.orders([me]) == []
    asked = packhorse("jobs", "cancel", job, "--app", "busy_shop")
    assert asked.output == ("Cancelled 0 jobs. 1 running job was asked to end, and what does not is interrupted.\n")
    assert app.control.trusted(app.store.orders([me]))


def test_jobs_are_stopped_and_restarted(app: Packhorse, packhorse: Run):
    """Those that run are asked to; what was stopped is shown so."""
    on = ("--app", "busy_shop")
    runs, waits = (app.tasks["busy_shop.double"].enqueue(number).id for number in (1, 2))
    me = new_id()
    app.store.enroll(ProcessInfo(me, "worker", "here", 1, "*"), 60_000_000)
    [claim] = app.store.exchange(me, 1, [], EVERYTHING, 1).claims
    stopped = packhorse("jobs", "stop", runs, waits, *on, "--reason", "for the night")
    assert stopped.output == "Stopped 1 job. 1 running job was asked to end, and what does not is interrupted.\n"
    assert [order.reason for order in app.control.trusted(app.store.orders([me]))] == ["stopped: for the night"]
    assert "stopped" in packhorse("jobs", "list", "busy_shop").output
    assert "cancelled (stopped)" in packhorse("jobs", "show", waits, *on).output
    assert told(packhorse("jobs", "restart", runs, waits, *on, "--json")) == {"act": "restart", "jobs": 1, "asked": 1}
    [order] = app.control.trusted(app.store.orders([me]))
    assert (order.kind, order.token) == (OrderKind.RESTART, claim.token)
    assert app.job(waits).state is JobState.READY
    refused = packhorse("jobs", "restart", waits, *on)
    assert refused.exit_code == 1
    assert f"Job {waits} is ready: it would have to be running, failed or cancelled." in refused.output
    assert "obey only their own application" in packhorse("jobs", "restart", runs).output


def test_a_job_is_reloaded(app: Packhorse, packhorse: Run):
    """Arguments are given as to `enqueue`, and fit the task."""
    on = ("--app", "busy_shop")
    id = app.tasks["busy_shop.double"].enqueue(1).id
    done = packhorse("jobs", "reload", id, "number=21", *on, "--reason", "typo", "--actor", "ann")
    assert (done.exit_code, done.output[:11]) == (0, "The job run")
    assert app.inspection.audit(1)[0][1:] == ("ann", "reload", "typo", 1)
    with Embedded(app):
        assert app.job(id).result(10) == 42
    late = packhorse("jobs", "reload", id, "5", *on)
    assert late.exit_code == 1
    assert "has succeeded" in late.output
    wrong = packhorse("jobs", "reload", id, "5", "6", *on)
    assert wrong.exit_code == 2
    assert "cannot be called like this" in wrong.output
    unknown = packhorse("jobs", "reload", id, "5", "--app-name", "busy")
    assert unknown.exit_code == 1
    assert "name its application with --app" in unknown.output


@pytest.mark.slow
def test_what_a_module_prints_does_not_get_into_the_output(shop: Path, command: Callable[..., Any]):
    """It goes where messages go."""
    (shop / "noisy_shop.py").write_text(
        "from packhorse import Packhorse\nprint('hello')\napp = Packhorse('noisy')\napp.store.migrate()\n"
    )
    out, log = command("jobs", "list", "noisy_shop", "--json").communicate(timeout=60)
    assert json.loads(out) == {"jobs": [], "after": None}
    assert log == "hello\n"


@pytest.mark.slow
def test_status_is_watched_until_somebody_ends_it(shop: Path, app: Packhorse, command: Callable[..., Any]):
    """One line after the other for scripts; the interrupt is no error."""
    app.store.migrate()
    watching = command("status", "busy_shop", "--json", "--watch", "0.1")
    lines = [json.loads(watching.stdout.readline()) for _ in range(3)]
    watching.send_signal(signal.SIGINT)
    _, log = watching.communicate(timeout=60)
    assert (watching.returncode, log) == (0, "")
    assert lines == [{"queues": [], "processes": []}] * 3
