"""Options that select jobs, the same wherever jobs are looked at or acted upon."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar

import click

from packhorse.app import Packhorse
from packhorse.cli.common import duration
from packhorse.cli.completing import known_tasks, stored_queues
from packhorse.clock import length
from packhorse.job import FINISHED, JobState
from packhorse.stores.contract import Selection

F = TypeVar("F", bound=Callable[..., Any])

PAGE_CAP = 10_000
EVERY_STATE = frozenset(JobState)

_state = click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in JobState]),
    help="Only in this state; may be given several times, like the next three.",
)
_others = (
    click.option("--queue", "queues", multiple=True, metavar="NAME", shell_complete=stored_queues),
    click.option("--task", "tasks", multiple=True, metavar="NAME", shell_complete=known_tasks),
    click.option("--tag", "tags", multiple=True, metavar="NAME"),
    click.option(
        "--older-than",
        type=duration,
        metavar="30d",
        help="Finished longer ago than this; created, where jobs that have not finished are meant too.",
    ),
    click.option("--newer-than", type=duration, metavar="2h", help="The same, but within this time."),
)
NAMES = ("queues", "tasks", "tags", "older_than", "newer_than")


@dataclass(frozen=True, slots=True)
class Filters:
    """As given on the command line."""

    states: frozenset[JobState]
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    tags: tuple[str, ...]
    older_than: timedelta | None
    newer_than: timedelta | None

    def __bool__(self) -> bool:
        return self != Filters(frozenset(), (), (), (), None, None)

    def selection(self, app: Packhorse, *, states: Collection[JobState] = EVERY_STATE) -> Selection:
        """`states` are those that can be meant at all."""
        now = app.clock.now()
        before = None if self.older_than is None else now - length(self.older_than)
        since = None if self.newer_than is None else now - length(self.newer_than)
        wanted = self.states or frozenset(states)
        selection = Selection(
            states=wanted if wanted != EVERY_STATE else None,
            queues=self.queues or None,
            tasks=self.tasks or None,
            tags=self.tags or None,
        )
        if wanted <= FINISHED:
            return replace(selection, finished_from=since, finished_before=before)
        return replace(selection, created_from=since, created_before=before)


def filter_options(*, states: bool = True) -> Callable[[F], F]:
    """Gives a command its `filters`; without `states` where it is about one state alone."""

    def decorate(command: F) -> F:
        @wraps(command)
        def with_filters(**given: Any) -> Any:
            named = map(JobState, given.pop("states", ()))
            filters = Filters(frozenset(named), *(given.pop(name) for name in NAMES))
            return command(filters=filters, **given)

        decorated: Any = with_filters
        for option in reversed((_state, *_others) if states else _others):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


limit_option = click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, PAGE_CAP), metavar="N", help="At most so many."
)
after_option = click.option("--after", metavar="ID", help="Begin behind this job.")
