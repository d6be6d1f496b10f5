"""Whatever stands in a store, commands show it as text: no terminal and no reader of tables takes orders from it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import Packhorse
from packhorse.clock import SECOND
from packhorse.ids import new_id
from packhorse.job import JobState
from packhorse.limits import Pace
from packhorse.outcome import Outcome
from packhorse.queues import EVERYTHING
from packhorse.stores.contract import Paused, ProcessInfo, StoredSchedule
from tests.skins.shops import FORBIDDEN, HOSTILE, Run, at_a_terminal, busy_shop, performed, planted


@pytest.fixture
def app(shop: Path) -> Iterator[Packhorse]:
    """A store full of hostile texts: names, reasons, failures, hosts."""
    app = busy_shop(shop)
    performed(app, "pay", (5, HOSTILE))
    planted(app)
    planted(app, queue="claimed")
    app.store.enroll(ProcessInfo(new_id(), HOSTILE, HOSTILE, 7, HOSTILE), 60 * SECOND)
    me = new_id()
    app.store.enroll(ProcessInfo(me, "worker", HOSTILE, 8, "*"), 60 * SECOND)
    [claim, *_] = app.store.exchange(me, 1, [], EVERYTHING, 1).claims
    app.store.exchange(me, 2, [Outcome(claim.token, JobState.FAILED, failure=HOSTILE.encode())], EVERYTHING, 0)
    app.store.pause(HOSTILE, None, HOSTILE, HOSTILE)
    app.store.pause(HOSTILE, None, HOSTILE, HOSTILE, kind=Paused.TASK)
    app.store.set_limit(HOSTILE, 1, HOSTILE, HOSTILE)
    row = StoredSchedule(key=HOSTILE, task=HOSTILE, rule=HOSTILE, payload=b"", zone=HOSTILE, error=HOSTILE, next_at=5)
    app.store.put_schedule(row, HOSTILE, HOSTILE)
    app.store.take_token(Pace(HOSTILE, 1, SECOND), 0)
    app.store.set_weight(HOSTILE, 2, HOSTILE, HOSTILE)
    app.control.cancel([planted(app)], reason=HOSTILE, actor=HOSTILE)
    yield app
    app.close()


def texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict() | list():
            for part in value.values() if isinstance(value, dict) else value:
                yield from texts(part)


LOOKS = [
    ["status"],
    ["status", "busy_shop"],
    ["queues", "list"],
    ["tasks", "list"],
    ["tasks", "list", "busy_shop"],
    ["limits", "list"],
    ["schedules", "list"],
    ["schedules", "list", "busy_shop"],
    ["limits", "rates"],
    ["shares", "list"],
    ["jobs", "list"],
    ["jobs", "list", "busy_shop"],
    ["dead", "list", "busy_shop"],
    ["dead", "list", "busy_shop", "--error", "evil"],
    ["dead", "list", "--app-name", "other"],
    ["doctor", "busy_shop"],
    ["doctor"],
]


@pytest.mark.parametrize("args", LOOKS, ids=" ".join)
def test_no_look_lets_anything_through(app: Packhorse, packhorse: Run, args: list[str]):
    """Escaped in tables, with rich's own markup as text; escaped in JSON too, where it parses to what was stored."""
    for more in ([], ["--json"]):
        result = packhorse(*args, *more)
        assert result.exit_code in (0, 1), result.output
        assert isinstance(result.exception, SystemExit | None)
        assert not set(result.output) & set(FORBIDDEN)
        assert "evil" in result.output
        if not more:
            assert "[red]" in result.output
        else:
            assert (
                HOSTILE in str(json.loads(result.stdout)).encode().decode("unicode_escape") or "evil" in result.stdout
            )


def test_no_job_lets_anything_through(app: Packhorse, packhorse: Run):
    """Each with all that can be shown of it."""
    for job in app.inspection.jobs():
        for more in ([], ["--json"]):
            result = packhorse("jobs", "show", job.id, "--app", "busy_shop", "--arguments", "--result", *more)
            assert result.exit_code == 0
            assert not set(result.output) & set(FORBIDDEN)
            assert "evil" in result.output


def test_an_error_message_lets_nothing_through(app: Packhorse, packhorse: Run):
    """Where a command ends in an error that quotes a job."""
    result = packhorse("enqueue", "busy_shop", HOSTILE)
    assert result.exit_code == 1
    result = packhorse("jobs", "show", HOSTILE)
    assert result.exit_code == 1
    assert not set(result.output) & set(FORBIDDEN)


@pytest.mark.slow
def test_a_terminal_gets_only_our_own_escapes(shop: Path, app: Packhorse):
    """Colours, and nothing that moves the cursor or names the window."""
    app.close()
    for args in (["status"], ["jobs", "list"], ["dead", "list", "busy_shop"]):
        status, screen = at_a_terminal(shop, *args)
        assert status == 0
        assert "\x1b]" not in screen
        assert "\x9b" not in screen
        assert "\x07" not in screen
        assert "\\x1b[31m[red]evil" in screen
