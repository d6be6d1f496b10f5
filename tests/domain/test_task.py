"""Functions that become tasks."""

import runpy
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from packhorse import ConfigError, DuplicateTask, Exponential, Packhorse, PayloadError, unique
from packhorse.task import CoroutineTask, Task


@pytest.fixture
def app() -> Packhorse:
    return Packhorse("shop", "memory://")


def resize(photo: int, size: int = 100) -> str:
    """Make it small."""
    return f"{photo} at {size}"


async def fetch(url: str) -> str:
    return url


async def test_a_task_is_still_its_function(app: Packhorse):
    """Called directly it runs here and now, and its name and docstring are the function's."""
    small = app.task(resize)
    assert small(1, size=2) == "1 at 2"
    assert (small.__name__, small.__doc__) == ("resize", "Make it small.")
    assert await app.task(fetch)("x") == "x"


def test_plain_functions_and_coroutines_are_told_apart(app: Packhorse):
    """They run in different slots."""
    assert isinstance(app.task(resize), Task)
    assert isinstance(app.task(fetch), CoroutineTask)


def test_a_task_is_known_by_its_import_path(app: Packhorse):
    """Or by the name it is given."""
    assert app.task(resize).name == f"{__name__}.resize"
    assert app.task(name="small")(resize).name == "small"
    assert set(app.tasks) == {f"{__name__}.resize", "small"}


def test_a_script_enqueues_under_the_name_its_worker_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`python photos.py` and `packhorse worker photos:app` must mean the same task."""
    script = tmp_path / "photos.py"
    script.write_text(
        "from packhorse import Packhorse\n"
        "app = Packhorse('shop', 'memory://')\n"
        "@app.task\n"
        "def resize(photo: int) -> None: ...\n"
    )
    monkeypatch.setattr(sys, "argv", [str(script)])
    script_app = runpy.run_path(str(script), run_name="__main__")["app"]
    assert set(script_app.tasks) == {"photos.resize"}


def test_two_tasks_cannot_share_a_name(app: Packhorse):
    """One of them would never run."""
    app.task(resize)
    with pytest.raises(DuplicateTask, match="There already is a task named"):
        app.task(resize)


@pytest.mark.parametrize("thing", [7, Path, "resize"])
def test_only_functions_become_tasks(app: Packhorse, thing: Any):
    """Classes and other things are refused."""
    with pytest.raises(ConfigError, match="goes on a function"):
        app.task(thing)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retires": 3}, "has no option 'retires'. It takes share, tags"),
        ({"queue_name": "a b"}, "cannot be a queue name"),
        ({"priority": 101}, "priority must be a whole number from -100 to 100"),
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"expires": "tomorrow"}, "expires must be a datetime, a timedelta or a number"),
        ({"expires": float("nan")}, "expires must be a finite number"),
        ({"tags": ["a"]}, "tags must be a tuple"),
        ({"tags": ("a",) * 17}, "tags must be a tuple of at most 16"),
        ({"tags": ("no spaces",)}, "cannot be a tag"),
        ({"share": ""}, "cannot be a share"),
        ({"on_worker_lost": "cry"}, "on_worker_lost must be"),
        ({"name": "no spaces"}, "cannot be a task name"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(app: Packhorse, options: dict[str, Any], message: str):
    """At declaration, where the mistake is."""
    with pytest.raises(ConfigError, match=message):
        app.task(**options)(resize)


def test_using_makes_a_copy_and_leaves_the_task_alone(app: Packhorse):
    """The copy has the same name, so the same worker performs its jobs."""
    task = app.task(resize)
    urgent = task.using(queue_name="urgent", priority=50, tags=("vip",))
    assert (urgent.name, urgent.options.queue_name, urgent.options.priority) == (task.name, "urgent", 50)
    assert (task.options.queue_name, task.options.priority) == ("default", 0)
    assert len(app.tasks) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"retrys": 3}, "using.. has no option 'retrys'. It takes share, .* timeout, retries, .* unique, .* on_finish"),
        ({"retry_for": OSError}, "using.. has no option 'retry_for': classes cannot travel with a job. Give it to"),
        ({"version": 2}, "using.. has no option 'version': it is the same for all jobs of a task"),
        ({"retries": -1}, "retries must be a whole number"),
        ({"backoff": lambda attempt, error: 1}, "A backoff of one's own is a function, which cannot travel"),
        ({"backoff": Exponential(draw=lambda: 0.5)}, "A backoff of one's own"),
        ({"isolate": 1}, "isolate must be True or False"),
        ({"on_worker_lost": "weep"}, "on_worker_lost must be 'retry' or 'fail'"),
        ({"keep_failed": -1}, "keep_failed must be a timedelta"),
        ({"limit": 3}, "limit takes what packhorse.limit"),
        ({"unique": unique("{number}", on_conflict="merge")}, "A worker merges arguments by the rule that the task"),
        ({"run_after": datetime(2030, 1, 1)}, "has no time zone"),
        ({"run_after": True}, "run_after must be a datetime"),
        ({"run_after": float("inf")}, "run_after must be a finite number"),
        ({"priority": -101}, "priority must be"),
    ],
)
def test_using_refuses_what_it_does_not_know(app: Packhorse, changes: dict[str, Any], message: str):
    """The message lists what it takes."""
    with pytest.raises(ConfigError, match=message):
        app.task(resize).using(**changes)


@pytest.mark.parametrize("value", [datetime(2030, 1, 1, tzinfo=UTC), timedelta(days=1), 60, 0.5, None])
def test_times_may_be_moments_or_lengths(app: Packhorse, value: Any):
    """As suits the caller."""
    assert app.task(resize).using(run_after=value, expires=value).options.run_after == value


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"colour": "red"})])
def test_arguments_that_do_not_fit_are_refused_by_the_caller(app: Packhorse, args: Any, kwargs: Any):
    """Not by the worker, hours later; and again the second time."""
    task = app.task(resize)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"resize\(\) cannot be called like this"):
            task.enqueue(*args, **kwargs)
    assert sum(app.inspection.counts().values()) == 0


def test_arguments_that_cannot_be_stored_are_refused_by_the_caller(app: Packhorse):
    """The message names the parameter of the function."""
    with pytest.raises(PayloadError, match="argument 'photo'"):
        app.task(resize).enqueue(1j)  # type: ignore[arg-type]


def test_a_generator_is_no_task(app: Packhorse):
    """Calling one runs nothing, so the job would succeed with nothing done."""

    def numbers() -> Any:
        yield 1

    async def letters() -> Any:
        yield "a"

    for function in (numbers, letters):
        with pytest.raises(ConfigError, match="yields, so calling it would run nothing"):
            app.task(function)
