"""What one job has otherwise than its task: how that is set, how it travels with the job, how a worker finds it again.

It travels as plain values in the signed payload, which an envelope's flag tells of, and only where it differs from what
the task declares.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from packhorse.clock import SECOND, length
from packhorse.errors import ConfigError, PayloadError
from packhorse.job import Claim, JobState
from packhorse.limits import make_rules
from packhorse.outcome import FOREVER
from packhorse.retry import Exponential, Fixed, make_policy
from packhorse.seals import is_varied

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.task import BaseTask

T = TypeVar("T", bound="BaseTask[..., Any]")

USING = "packhorse.using"  # where metadata tell it
RULES = ("limit", "rate", "unique")
KEEPS = {f"keep_{state}": state for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)}
TRAVELLING = ("retries", "backoff", "isolate", "on_worker_lost", "results", "result_ttl", *KEEPS)
NOT_TRAVELLING = {
    "retry_for": "classes cannot travel with a job",
    "give_up_on": "classes cannot travel with a job",
    "upgrade": "functions cannot travel with a job",
    "codec": "functions cannot travel with a job",
}


def check_names(changes: Mapping[str, Any], known: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    for name in changes:
        if name in known:
            continue
        if name in declared:
            why = NOT_TRAVELLING.get(name, "it is the same for all jobs of a task")
            raise ConfigError(f"using() has no option {name!r}: {why}. Give it to the task's decorator.")
        raise ConfigError(f"using() has no option {name!r}. It takes {', '.join(known)}.")


def varied(task: T, changes: Mapping[str, Any]) -> T:
    """A copy whose jobs have these options, of TRAVELLING and RULES, and `timeout`."""
    copy: T = object.__new__(type(task))
    copy.__dict__.update(task.__dict__)
    policy, performed, stored = task.policy, task.performed, task.stored
    if "retries" in changes or "backoff" in changes:
        retries, backoff = changes.get("retries", policy.retries), changes.get("backoff", policy.backoff)
        copy.policy = make_policy(retries, backoff, policy.retry_for, policy.give_up_on)
    if "timeout" in changes:
        performed = replace(performed, timeout=check_timeout(changes["timeout"]))
    if "isolate" in changes:
        performed = replace(performed, isolate=check_flag("isolate", changes["isolate"]))
    if "on_worker_lost" in changes:
        performed = replace(performed, on_worker_lost=check_lost(changes["on_worker_lost"]))
    copy.performed = performed
    if "results" in changes:
        stored = replace(stored, results=check_flag("results", changes["results"]))
    if "result_ttl" in changes:
        stored = replace(stored, result_ttl=check_kept("result_ttl", changes["result_ttl"]))
    for name in KEEPS:
        if name in changes:
            stored = replace(stored, keep={**stored.keep, KEEPS[name]: kept_for(name, changes[name])})
    copy.stored = stored
    if any(name in changes for name in RULES):
        _set_rules(copy, changes)
    return copy


def _set_rules(task: BaseTask[..., Any], changes: Mapping[str, Any]) -> None:
    rules = task.rules
    limits, rates = changes.get("limit", rules.limits), changes.get("rate", rules.rates)
    task.rules = make_rules(limits, changes.get("unique", rules.unique), task.names, rates)
    if task.rules.merges and task.rules.unique != task.declared.rules.unique:
        raise ConfigError(
            "A worker merges arguments by the rule that the task declares: give unique with on_conflict='merge' to the "
            "task's decorator."
        )


# How it travels.


def told(task: BaseTask[..., Any]) -> dict[str, Any]:
    """In what a copy differs from the task as it was declared, in values that JSON knows."""
    first = task.declared
    values: dict[str, tuple[Any, Any]] = {
        "retries": (task.policy.retries, first.policy.retries),
        "backoff": (task.policy.backoff, first.policy.backoff),
        "isolate": (task.performed.isolate, first.performed.isolate),
        "on_worker_lost": (task.performed.on_worker_lost, first.performed.on_worker_lost),
        "results": (task.stored.results, first.stored.results),
        "result_ttl": (task.stored.result_ttl, first.stored.result_ttl),
        **{name: (task.stored.keep.get(state), first.stored.keep.get(state)) for name, state in KEEPS.items()},
    }
    return {name: _plain(name, its) for name, (its, declared) in values.items() if its != declared}


def _plain(name: str, value: Any) -> Any:
    match value:
        case Fixed():
            return value.seconds
        case Exponential(draw=random.random):
            return [value.base, value.factor, value.cap, value.jitter]
        case _ if name == "backoff":
            raise ConfigError(
                "A backoff of one's own is a function, which cannot travel with a job: use seconds, a timedelta or "
                "Exponential(…) here, or give it to the task's decorator."
            )
        case int() if name == "result_ttl" or name in KEEPS:
            return None if value == FOREVER else value / SECOND
    return value


def as_told(task: T, said: Any) -> T:
    """The task as a job has it; PayloadError where that was told in a way which we do not write."""
    try:
        changes = dict(said)
        if unknown := set(changes) - {*TRAVELLING, "timeout"}:
            raise PayloadError(
                f"It has an option {sorted(unknown)[0]!r}, which this version of Packhorse does not know."
            )
        if isinstance(backoff := changes.get("backoff"), list):
            base, factor, cap, jitter = map(float, backoff)
            changes["backoff"] = Exponential(base, factor, cap, jitter)
        return varied(task, changes)
    except (ConfigError, TypeError, ValueError) as error:
        raise PayloadError(f"It has options that Packhorse does not write so: {error}") from None


def task_of(app: Packhorse, claim: Claim) -> BaseTask[..., Any] | None:
    """The task of a claimed job, with the options that this job has. One that cannot be read has none of its own."""
    task = app.known_tasks.get(claim.task)
    if task is None or not is_varied(claim.payload):
        return task
    try:
        opened = app.seals.open_job(claim.token.id, claim.task, claim.payload)
        metadata = task.metadata_of(opened)
        return as_told(task, metadata[USING]) if USING in metadata else task
    except PayloadError:
        return task


# What the options take, in a decorator and in `using`.


def check_timeout(value: timedelta | float | None) -> float | None:
    """In seconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ConfigError(f"timeout must be a timedelta or a number of seconds above 0, or None, not {value!r}.")
    return float(seconds)


def check_flag(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value!r}.")
    return value


def check_lost(value: Literal["retry", "fail"]) -> Literal["retry", "fail"]:
    if value not in ("retry", "fail"):
        raise ConfigError(f"on_worker_lost must be 'retry' or 'fail', not {value!r}.")
    return value


def check_kept(name: str, value: timedelta | float | None) -> int | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ConfigError(f"{name} must be a timedelta, a number of seconds from 0 on, or None for good.")
    return length(seconds)


def kept_for(name: str, value: timedelta | float | None) -> int:
    kept = check_kept(name, value)
    return FOREVER if kept is None else kept
