"""`packhorse enqueue`: one job, by hand."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from packhorse import Embedded, JobState, Packhorse
from tests.skins.shops import Run, busy_shop, told


@pytest.fixture
def app(shop: Path):
    app = busy_shop(shop)

    @app.task(name="any")
    def anything(*args: Any, **kwargs: Any) -> None: ...

    yield app
    app.close()


def arguments(app: Packhorse, id: str) -> Any:
    return app.inspection.arguments(app.inspection.stored(id.strip()))[:2]


@pytest.mark.parametrize(
    ("given", "args", "kwargs"),
    [
        (["1", "2.5", "true", "null"], [1, 2.5, True, None], {}),
        (["ann", "ann@example.com", "", "two words"], ["ann", "ann@example.com", "", "two words"], {}),
        (['"42"', '"a=b"', "[1, 2]", '{"a": 1}'], ["42", "a=b", [1, 2], {"a": 1}], {}),
        (["to=ann", "n=3", 'tags=["a"]', "text=a=b"], [], {"to": "ann", "n": 3, "tags": ["a"], "text": "a=b"}),
        (
            ["1", "n=2", "--kwargs", '{"to": "ann", "deep": {"a": null}}'],
            [1],
            {"n": 2, "to": "ann", "deep": {"a": None}},
        ),
        (["NaN", "Infinity", "{broken", "1_000"], ["NaN", "Infinity", "{broken", "1_000"], {}),
        (["9=8", "not-a-name=1"], ["9=8", "not-a-name=1"], {}),
        (["--", "-5", "--not-an-option"], [-5, "--not-an-option"], {}),
        (["größe=ü"], [], {"größe": "ü"}),
    ],
)
def test_arguments_are_json_or_else_text(app: Packhorse, packhorse: Run, given: list[str], args: Any, kwargs: Any):
    """With a name before them or without; quotes make text of what looks like something else."""
    result = packhorse("enqueue", "busy_shop", "any", *given)
    assert result.exit_code == 0, result.output
    assert arguments(app, result.stdout) == (args, kwargs)


def test_the_id_is_printed(app: Packhorse, packhorse: Run):
    """Alone, or as JSON."""
    id = packhorse("enqueue", "busy_shop:app", "busy_shop.double", "21").stdout.strip()
    assert app.job(id).state is JobState.READY
    assert app.job(told(packhorse("enqueue", "busy_shop:app", "busy_shop.double", "21", "--json"))["id"])


def test_options_differ_from_the_tasks_own(app: Packhorse, packhorse: Run):
    """Queue, priority and time."""
    enqueue = ("enqueue", "busy_shop", "busy_shop.double", "1")
    job = app.job(packhorse(*enqueue, "--queue", "slow", "--priority", "-7", "--in", "5m").stdout.strip()).look()
    assert (job.queue, job.priority, job.state) == ("slow", -7, JobState.SCHEDULED)
    assert job.run_at is not None
    assert 290 < (job.run_at - job.created_at).total_seconds() <= 301
    later = app.job(packhorse(*enqueue, "--at", "2199-12-24T18:00").stdout.strip()).look()
    assert later.run_at == datetime(2199, 12, 24, 18).astimezone()


def test_a_function_gets_what_its_annotations_say(app: Packhorse, packhorse: Run):
    """JSON has no dataclasses and no enums."""
    with Embedded(app):
        result = packhorse("enqueue", "busy_shop", "busy_shop.mix", '{"colour": "red", "litres": 2.5}', "--wait", "20")
    assert result.stdout == '"2.5 l of RED"\n'


def test_the_result_is_waited_for(app: Packhorse, packhorse: Run):
    """What is secret in it stays so."""
    with Embedded(app):
        assert packhorse("enqueue", "busy_shop", "busy_shop.double", "21", "--wait").stdout == "42\n"
        args = ("enqueue", "busy_shop", "busy_shop.mail", "ann", "password=hunter22", "--wait", "20s", "--json")
        assert told(packhorse(*args))["result"] == {"to": "ann", "password": "•••"}


def test_a_failure_while_waiting_is_the_commands_own(app: Packhorse, packhorse: Run):
    """With the id, to look further."""
    with Embedded(app):
        result = packhorse("enqueue", "busy_shop", "busy_shop.pay", "5", "--wait", "20")
    assert result.exit_code == 1
    assert "ValueError: the till has no EUR 5" in result.output
    [job] = app.inspection.jobs()
    assert job.id in result.stderr.splitlines()
    late = packhorse("enqueue", "busy_shop", "busy_shop.double", "5", "--wait", "0.05")
    assert late.exit_code == 1
    assert "has not finished after 0.05 s" in late.output


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["busy_shop", "double", "1"], 1, "has no task 'double'. Did you mean busy_shop.double?"),
        (["busy_shop", "busy_shop.duoble", "1"], 1, "Did you mean busy_shop.double"),
        (["busy_shop", "zzz"], 1, "It has: any, busy_shop.double"),
        (["no_such_shop", "x"], 1, "There is no module 'no_such_shop'"),
        (["busy_shop", "busy_shop.double"], 2, "missing a required argument: 'number'"),
        (["busy_shop", "busy_shop.double", "1", "colour=red"], 2, "unexpected keyword argument 'colour'"),
        (["busy_shop", "busy_shop.mix", '{"colour": "blue", "litres": 1}'], 1, "'paint'"),
        (["busy_shop", "any", "n=1", "n=2"], 2, "'n' is given twice"),
        (["busy_shop", "any", "n=1", "--kwargs", '{"n": 2}'], 2, "'n' is given twice"),
        (["busy_shop", "any", "--kwargs", "{broken"], 2, "--kwargs is not JSON"),
        (["busy_shop", "any", "--kwargs", "[1]"], 2, "must be a JSON object"),
        (["busy_shop", "any", "[" * 100_000], 2, "nested too deep"),
        (["busy_shop", "any", "--in", "5m", "--at", "2199-01-01T00:00"], 2, "not both"),
        (["busy_shop", "any", "--in", "soon"], 2, "'soon' is no duration"),
        (["busy_shop", "any", "--wait", "soon"], 2, "--wait takes seconds"),
        (["busy_shop", "any", "--priority", "101"], 2, "101 is not in the range"),
        (["busy_shop", "any", "--queue", "no spaces"], 1, "cannot be a queue name"),
        (["busy_shop"], 2, "Missing argument 'TASK'"),
    ],
)
def test_a_wrong_word_is_explained(app: Packhorse, packhorse: Run, args: list[str], status: int, message: str):
    """And nothing is enqueued."""
    result = packhorse("enqueue", *args)
    assert result.exit_code == status, result.output
    assert message in result.output
    assert list(app.inspection.jobs()) == []
