"""What stands above `@task`: when a task recurs, and how many of its jobs run at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from django.db.models import Model

from packhorse.django import compat, tasks
from packhorse.errors import ConfigError
from packhorse.limits import limit
from packhorse.queues import check_name
from packhorse.schedule import make_schedule

if TYPE_CHECKING:
    from typing import Unpack

    from packhorse.moments import Rule
    from packhorse.scheduling import Bounds

T = TypeVar("T", bound=tasks.Task[..., Any])


@dataclass(frozen=True, slots=True)
class Recurring:
    """A schedule as a decorator declares it; the application of the task's backend takes it over."""

    task: tasks.Task[..., Any]
    rule: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    queue_name: str | None
    priority: int | None
    bounds: Any


recurrent: dict[str, Recurring] = {}
"""By their keys."""


def recurring(
    schedule: Rule | str,
    key: str | None = None,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    queue_name: str | None = None,
    priority: int | None = None,
    **bounds: Unpack[Bounds],
) -> Callable[[T], T]:
    """Enqueue the task at every moment of a rule; goes above `@task`, any number of times with different keys.

    The key is the task's import path unless one is given; queue and priority are the task's own.
    """
    make_schedule(schedule, **bounds)  # a rule that cannot be meant is met here

    def decorate(task: T) -> T:
        _check(task, "@recurring")
        its_key = check_name(task.module_path if key is None else key, "schedule key (set one with key=…)")
        known = recurrent.get(its_key)
        if known is not None and (known.task.func is task.func or known.task.module_path != task.module_path):
            raise ConfigError(f"There is a schedule {its_key!r} already. Give each a key of its own with key=….")
        recurrent[its_key] = Recurring(task, schedule, tuple(args), kwargs or {}, queue_name, priority, bounds)
        return task

    return decorate


def limits_concurrency(
    key: str | Callable[..., Any] = "",
    to: int = 1,
    duration: timedelta | float | None = None,
    group: str | None = None,
    on_conflict: Literal["block", "discard", "replace"] = "block",
) -> Callable[[T], T]:
    """At most `to` jobs of one key at a time; goes above `@task`.

    The key is a text, with arguments in braces, or a function of the arguments, which may give a model. It counts
    within its group, by default the task itself. A permit is its job's until that ends, however long it takes, and
    comes back with the lease of a lost worker: so `duration` changes nothing here.
    """
    if duration is not None and not isinstance(duration, timedelta | int | float):
        raise ConfigError(f"duration must be a timedelta or a number of seconds, not {duration!r}.")
    made = limit(_with_models(key), to=to, group=group, on_conflict=on_conflict)

    def decorate(task: T) -> T:
        _check(task, "@limits_concurrency")
        limited = replace(task, limit=[*_several(task.limit), made])
        tasks.declared[task.module_path] = limited
        return limited

    return decorate


def _check(task: object, name: str) -> None:
    if not isinstance(task, tasks.Task):
        what = "a task of another backend" if isinstance(task, compat.Task) else "something else"
        raise TypeError(f"{name} goes on a task of Packhorse, not on {what}: put it above @task.")


def _several(limits: Any) -> list[Any]:
    if limits is tasks.NOT_GIVEN or limits is None:
        return []
    return list(limits) if isinstance(limits, list | tuple) else [limits]


def _with_models(key: Any) -> Any:
    if isinstance(key, str):
        return lambda **arguments: key.format_map({name: _named(value) for name, value in arguments.items()})
    return (lambda **arguments: _named(key(**arguments))) if callable(key) else key


def _named(value: Any) -> Any:
    return f"{value._meta.label_lower}:{value.pk}" if isinstance(value, Model) else value
