"""What decides when a job may run: limits and unique keys, as tasks declare them and as one job meets them."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from packhorse.clock import length
from packhorse.errors import ConfigError, PayloadError
from packhorse.queues import check_name

KEY_CAP = 200
PERMITS_CAP = 100_000
LIMITS_CAP = 8  # of one task

Key = str | Callable[..., object] | None


class Conflict(StrEnum):
    """What a limit does to a job that finds no permit: it waits, is cancelled, or takes the place of those waiting."""

    BLOCK = "block"
    DISCARD = "discard"
    REPLACE = "replace"


class UniqueConflict(StrEnum):
    """What becomes of a job whose unique key is taken.

    KEEP lets the earlier one stand for both, REPLACE cancels it and takes its place, RESCHEDULE gives it the new run
    time. One that runs already is always kept.
    """

    KEEP = "keep"
    REPLACE = "replace"
    RESCHEDULE = "reschedule"


class Hold(NamedTuple):
    """A limit as one job meets it: at most `to` jobs have a permit of this key."""

    key: str
    to: int
    conflict: Conflict = Conflict.BLOCK


class Claimed(NamedTuple):
    """A unique key as one job meets it. It is free again when the job starts, when it finishes, or after `lasting`."""

    key: str
    until_start: bool = False
    lasting: int | None = None
    conflict: UniqueConflict = UniqueConflict.KEEP


class Terms(NamedTuple):
    """All that must be met before one job may run."""

    holds: tuple[Hold, ...] = ()
    unique: Claimed | None = None


FREE = Terms()


# As declared.


@dataclass(frozen=True, slots=True)
class Limit:
    """Made by `limit`."""

    key: Key
    to: int
    group: str | None
    conflict: Conflict

    def hold(self, task: str, arguments: Mapping[str, Any]) -> Hold | None:
        key = _key_of(self.key, self.group or task, arguments, "limit")
        return None if key is None else Hold(key, self.to, self.conflict)


@dataclass(frozen=True, slots=True)
class Unique:
    """Made by `unique`, `debounce` and `throttle`."""

    key: Key
    arguments: tuple[str, ...] | None
    group: str | None
    until_start: bool
    lasting: int | None
    conflict: UniqueConflict

    def claim(self, task: str, arguments: Mapping[str, Any], encode: Callable[[Any], bytes]) -> Claimed | None:
        if self.key is None:
            chosen = arguments if self.arguments is None else {name: arguments[name] for name in self.arguments}
            key: str | None = f"{self.group or task}/{hashlib.sha256(encode(dict(sorted(chosen.items())))).hexdigest()}"
        else:
            key = _key_of(self.key, self.group or task, arguments, "unique key")
        return None if key is None else Claimed(key, self.until_start, self.lasting, self.conflict)


def limit(
    key: Key = "",
    *,
    to: int = 1,
    group: str | None = None,
    on_conflict: Literal["block", "discard", "replace"] = "block",
) -> Limit:
    """At most `to` jobs of one key at a time.

    `key` is a text, with arguments in braces ("{account}"), or a function of the arguments; one that gives None leaves
    the job unlimited. Tasks of one `group` share their keys; by default each task has its own. A permit stays with its
    job until that ends or comes back later, whatever becomes of its worker.
    """
    _whole("to", to, 1, PERMITS_CAP)
    _check_key("limit", key)
    return Limit(key, to, _group(group), _one_of("on_conflict", on_conflict, Conflict))


def unique(
    key: Key = None,
    *,
    arguments: Sequence[str] | None = None,
    until: Literal["start", "finish"] | timedelta | float = "finish",
    on_conflict: Literal["keep", "replace", "reschedule"] = "keep",
    group: str | None = None,
) -> Unique:
    """At most one unfinished job of one key: by default of the same arguments, or of those named.

    The key is held until the job starts, finishes, or for a time from its enqueueing. `on_conflict` says what a second
    one does to the first: keep it, replace its arguments, or only reschedule it. Either way one job comes of both.
    """
    if key is not None and arguments is not None:
        raise ConfigError("A unique job is known by a key or by arguments, not by both.")
    if isinstance(arguments, str):
        raise ConfigError(f"Give the names of the arguments as a list, even of one: [{arguments!r}].")
    if key is not None:
        _check_key("unique key", key)
    lasting = None if until in ("start", "finish") else _length("until", until)  # type: ignore[arg-type]
    names = None if arguments is None else tuple(arguments)
    conflict = _one_of("on_conflict", on_conflict, UniqueConflict)
    return Unique(key, names, _group(group), until == "start", lasting, conflict)


def debounce(key: Key = None, *, arguments: Sequence[str] | None = None) -> Unique:
    """Enqueued again before it started, a job waits anew: give it `run_after`, and only the last call counts."""
    return unique(key, arguments=arguments, until="start", on_conflict="replace")


def throttle(every: timedelta | float, key: Key = None, *, arguments: Sequence[str] | None = None) -> Unique:
    """The first one counts, and for a time no other."""
    return unique(key, arguments=arguments, until=every, on_conflict="keep")


@dataclass(frozen=True, slots=True)
class Rules:
    """All that a task declares of this."""

    limits: tuple[Limit, ...] = ()
    unique: Unique | None = None

    def __bool__(self) -> bool:
        return bool(self.limits or self.unique)

    def terms(self, task: str, arguments: Mapping[str, Any], encode: Callable[[Any], bytes]) -> Terms:
        """As one job with these arguments meets them."""
        holds = [hold for limit in self.limits if (hold := limit.hold(task, arguments)) is not None]
        keys = {hold.key: hold for hold in holds}  # one permit of a key is enough
        unique = None if self.unique is None else self.unique.claim(task, arguments, encode)
        return Terms(tuple(keys.values()), unique)


def make_rules(limits: Limit | Sequence[Limit] | None, unique: Unique | bool | None, names: Collection[str]) -> Rules:
    given = tuple(limits) if isinstance(limits, list | tuple) else () if limits is None else (limits,)
    if not all(isinstance(each, Limit) for each in given) or len(given) > LIMITS_CAP:
        raise ConfigError(f"limit takes what packhorse.limit(…) makes: one, or a list of at most {LIMITS_CAP}.")
    if len(given) > 1 and any(each.conflict is not Conflict.BLOCK for each in given):
        raise ConfigError("A task with several limits waits for all of them: only on_conflict='block' goes with that.")
    rule = Unique(None, None, None, False, None, UniqueConflict.KEEP) if unique is True else unique or None
    if rule is not None and not isinstance(rule, Unique):
        raise ConfigError("unique takes True, or what packhorse.unique(…), debounce(…) or throttle(…) makes.")
    if rule is not None and (missing := set(rule.arguments or ()) - set(names)):
        raise ConfigError(f"unique names the argument {sorted(missing)[0]!r}, which the function does not have.")
    return Rules(given, rule)


def _key_of(key: Key, group: str, arguments: Mapping[str, Any], what: str) -> str | None:
    try:
        value = key.format_map(arguments) if isinstance(key, str) else key(**arguments) if key is not None else ""
    except Exception as error:
        raise PayloadError(
            f"The key of a {what} could not be made from the arguments: {type(error).__name__}."
        ) from None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise PayloadError(f"The key of a {what} must be a text or a whole number, not a {type(value).__name__}.")
    text = f"{group}/{value}"
    if len(text) > KEY_CAP or "\0" in text or not text.isprintable():
        text = f"{group}/{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return text


def _check_key(what: str, key: Key) -> None:
    if not isinstance(key, str) and not callable(key):
        raise ConfigError(f"The key of a {what} is a text or a function of the arguments, not {key!r}.")
    if inspect.iscoroutinefunction(key):
        raise ConfigError(f"The key of a {what} is made by a plain function.")


def _group(group: str | None) -> str | None:
    return None if group is None else check_name(group, "group")


def _whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most:,}, not {value!r}.")


def _length(name: str, value: timedelta | float) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ConfigError(f"{name} must be a timedelta or a number of seconds, more than 0, not {value!r}.")
    return length(seconds)


def _one_of(name: str, value: object, kind: type[Conflict] | type[UniqueConflict]) -> Any:
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        raise ConfigError(f"{name} must be one of {', '.join(kind)}, not {value!r}.") from None
