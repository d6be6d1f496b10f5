"""Error reporters: told of every attempt that raised, inside the job, while the exception is at hand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from traceback import extract_tb
from typing import Any

from packhorse.context import Context
from packhorse.errors import ConfigError
from packhorse.forks import guarded

log = logging.getLogger("packhorse.jobs")

GROUP = "packhorse.error_reporters"


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """`final` means that no attempt follows. `mask` hides in a text what the job's arguments hold of secrets."""

    error: BaseException
    context: Context
    final: bool
    mask: Callable[[str], str] = str


Reporter = Callable[[ErrorReport], object]


def named_reporters(names: Iterable[str]) -> list[Reporter]:
    """Those that installed packages offer under these names."""
    wanted = tuple(names)
    if not wanted:
        return []  # to look through all that is installed takes a while
    from importlib.metadata import entry_points

    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    reporters: list[Reporter] = []
    for name in wanted:
        if name not in found:
            offered = ", ".join(sorted(found)) or "none"
            raise ConfigError(f"No installed package offers the error reporter {name!r}; there are: {offered}.")
        try:
            reporter = found[name].load()
        except Exception as error:
            why = f"({found[name].value}) cannot be loaded: {error!r}"
            raise ConfigError(f"The error reporter {name!r} {why}.") from error
        if not callable(reporter):
            raise ConfigError(f"The error reporter {name!r} ({found[name].value}) is no function.")
        reporters.append(reporter)
    return reporters


def report(reporters: Iterable[Reporter], told: ErrorReport) -> None:
    for reporter in reporters:
        try:
            guarded(reporter, told)
        except BaseException as error:  # even SystemExit: the job ends as it would have
            # Its own text, and the chain to the task's error, would tell what the mask hides.
            name = getattr(reporter, "__qualname__", type(reporter).__name__)
            why = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}{_place(error)}"
            log.error("the error reporter %s failed itself: %s", name, why)


def _place(error: BaseException) -> str:
    frames = extract_tb(error.__traceback__, limit=-1)
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def sentry(told: ErrorReport) -> None:
    """Sends the exception to Sentry, with the job's ids and without its arguments or other variables."""
    try:
        import sentry_sdk
    except ImportError:
        raise ConfigError("The reporter 'sentry' needs the package sentry-sdk: pip install sentry-sdk.") from None
    context = told.context
    with sentry_sdk.new_scope() as scope:
        tags: dict[str, Any] = {"job_id": context.job_id, "task": context.task, "queue_name": context.queue_name}
        for name, value in tags.items():
            scope.set_tag(f"packhorse.{name}", value)
        scope.set_context("packhorse", {**tags, "attempt": context.attempt, "final": told.final})
        scope.add_event_processor(partial(_without_variables, told.mask))
        scope.capture_exception(told.error)


def _without_variables(mask: Callable[[str], str], event: Any, hint: Any) -> Any:
    for value in event.get("exception", {}).get("values", ()):
        if isinstance(value.get("value"), str):
            value["value"] = mask(value["value"])
        for frame in (value.get("stacktrace") or {}).get("frames", ()):
            frame.pop("vars", None)
    return event
