"""What decides when a job may run: limits, rates and unique keys, as tasks declare them and as one job meets them."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from packhorse.clock import SECOND, length
from packhorse.errors import ConfigError, PayloadError, TimedOut
from packhorse.queues import check_name

KEY_CAP = 200
PERMITS_CAP = 100_000
LIMITS_CAP = 8  # of one task
TOKENS_CAP = 1_000_000
PERIOD_CAP = 366 * 24 * 3_600 * SECOND
WEIGHT_CAP = 1_000
MERGES_CAP = 1_000  # into one job
CATCH_UP = SECOND  # tokens that nobody took in time, though somebody waited, are kept so long
TURN = 1_000  # how far a turn of weight 1 sets a share back, in the microseconds of its order key

Key = str | Callable[..., object] | None


class Conflict(StrEnum):
    """What a limit does to a job that finds no permit: it waits, is cancelled, or takes the place of those waiting."""

    BLOCK = "block"
    DISCARD = "discard"
    REPLACE = "replace"


class UniqueConflict(StrEnum):
    """What becomes of a job whose unique key is taken.

    KEEP lets the earlier one stand for both, REPLACE cancels it and takes its place, RESCHEDULE gives it the new run
    time, MERGE gives it the new arguments too. One that runs already is always kept.
    """

    KEEP = "keep"
    REPLACE = "replace"
    RESCHEDULE = "reschedule"
    MERGE = "merge"


class Hold(NamedTuple):
    """A limit as one job meets it: at most `to` jobs have a permit of this key."""

    key: str
    to: int
    conflict: Conflict = Conflict.BLOCK


class Pace(NamedTuple):
    """A rate as one job meets it: so many tokens of this key in a period, and at most `burst` at once."""

    key: str
    tokens: int
    period: int
    burst: int = 1

    @property
    def depth(self) -> int:
        """How many jobs may have their token and not have begun: what comes in a second, or a burst."""
        return max(self.burst, -(-self.tokens * SECOND // self.period))


class Bucket(NamedTuple):
    """How far a rate is used up: all tokens are back at `since` and the time that `taken` more of them need."""

    since: int = 0
    taken: int = 0

    def opens_at(self, pace: Pace) -> int:
        """When the next token is there."""
        return self.since - (pace.burst - 1 - self.taken) * pace.period // pace.tokens

    def less(self, pace: Pace, now: int) -> Bucket:
        """With one token taken."""
        since, taken = (now, 0) if self._full(pace, now) else self
        periods, taken = divmod(taken + 1, pace.tokens)
        return Bucket(since + periods * pace.period, taken)

    def at(self, old: Pace, new: Pace) -> Bucket:
        """Under another rate: what was used up stays so, in time."""
        if (old.tokens, old.period) == (new.tokens, new.period):
            return self
        return Bucket(self.since - (-self.taken * old.period // old.tokens))

    def _full(self, pace: Pace, now: int) -> bool:
        return (self.since - now) * pace.tokens + self.taken * pace.period <= 0


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
    paces: tuple[Pace, ...] = ()

    @property
    def limited(self) -> bool:
        return bool(self.holds or self.paces)


FREE = Terms()


class NotYetKnown(BaseException):
    """A key was to be made of an argument that is still to come.

    No Exception, so that the `except` of a key function does not make a key of it.
    """


class ToCome:
    """Stands, among the arguments that keys are made of, for one that is not known yet: it can be passed on, not used.

    Only whether it *is* something, as in `is None`, cannot be noticed.
    """

    __slots__ = ()

    def _used(self, *args: object) -> Any:
        raise NotYetKnown

    __class__ = property(_used)
    __getattr__ = __getitem__ = __iter__ = __len__ = __contains__ = __call__ = __bool__ = _used
    __str__ = __repr__ = __format__ = __bytes__ = __hash__ = __eq__ = __ne__ = _used
    __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __index__ = __round__ = __fspath__ = _used
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _used
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __and__ = __rand__ = __or__ = __ror__ = _used


TO_COME = ToCome()


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
class Rate:
    """Made by `rate`."""

    tokens: int
    period: int
    key: Key
    burst: int
    group: str | None

    def pace(self, task: str, arguments: Mapping[str, Any]) -> Pace | None:
        key = _key_of(self.key, self.group or task, arguments, "rate")
        return None if key is None else Pace(key, self.tokens, self.period, self.burst)


Merge = Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Unique:
    """Made by `unique`, `debounce` and `throttle`."""

    key: Key
    arguments: tuple[str, ...] | None
    group: str | None
    until_start: bool
    lasting: int | None
    conflict: UniqueConflict
    merge: Merge | None = None

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


_RATE = re.compile(r"(\d{1,9}) ?/ ?(\d{0,9}) ?(s|sec|second|m|min|minute|h|hour|d|day)s?")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_WRITTEN = (("d", 86_400), ("h", 3_600), ("min", 60))


def rate(text: str, key: Key = "", *, burst: int = 1, group: str | None = None) -> Rate:
    """At most so many jobs of one key begin in a time: "100/min", "5/s", "1000/2h".

    They are spread evenly; after a quiet time, `burst` may begin at once. `key` and `group` are those of `limit`.
    """
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ConfigError(f"{text!r} is no rate. Write it as '5/s', '100/min', '1000/2h' or '10/day'.")
    tokens, times, unit = int(found[1]), int(found[2] or 1), _UNITS[found[3][0]]
    period = times * unit * SECOND
    if not 1 <= tokens <= TOKENS_CAP or not 0 < period <= PERIOD_CAP or tokens > period:
        raise ConfigError(
            f"{text!r} is no rate to keep: take 1 to {TOKENS_CAP:,} jobs in at most 366 days, and at most one in a "
            "microsecond."
        )
    _whole("burst", burst, 1, TOKENS_CAP)
    _check_key("rate", key)
    return Rate(tokens, period, key, burst, _group(group))


def written(rate: Rate | Pace) -> str:
    """How often, as `rate` reads it."""
    seconds = rate.period // SECOND
    unit, size = next((it for it in _WRITTEN if seconds % it[1] == 0), ("s", 1))
    times = seconds // size
    return f"{rate.tokens}/{'' if times == 1 else times}{unit}"


def unique(
    key: Key = None,
    *,
    arguments: Sequence[str] | None = None,
    until: Literal["start", "finish"] | timedelta | float | None = None,
    on_conflict: Literal["keep", "replace", "reschedule", "merge"] = "keep",
    merge: Merge | None = None,
    group: str | None = None,
) -> Unique:
    """At most one unfinished job of one key: by default of the same arguments, or of those named.

    The key is held until the job starts, finishes, or for a time from its enqueueing. `on_conflict` says what a second
    one does to the first: keep it, replace its arguments, only reschedule it, or merge the arguments of both, by
    default joining lists, sets and dictionaries. Either way one job comes of both. What is to be merged comes too late
    once the job runs, so a key with "merge" is held until the start, others by default until the end.
    """
    merging = on_conflict == "merge"
    if merging and (until not in (None, "start") or (key is None and arguments is None)):
        raise ConfigError("What merges needs a key or the names of the arguments it goes by, and until='start'.")
    if merging and group is not None:
        raise ConfigError("Only jobs of one task are merged, as their arguments are its own: leave out the group.")
    if merge is not None and (not merging or not callable(merge)):
        raise ConfigError("merge takes a function of the earlier and the later arguments, with on_conflict='merge'.")
    if until is None:
        until = "start" if merging else "finish"
    if key is not None and arguments is not None:
        raise ConfigError("A unique job is known by a key or by arguments, not by both.")
    if isinstance(arguments, str):
        raise ConfigError(f"Give the names of the arguments as a list, even of one: [{arguments!r}].")
    if key is not None:
        _check_key("unique key", key)
    lasting = None if until in ("start", "finish") else _length("until", until)  # type: ignore[arg-type]
    names = None if arguments is None else tuple(arguments)
    conflict = _one_of("on_conflict", on_conflict, UniqueConflict)
    return Unique(key, names, _group(group), until == "start", lasting, conflict, merge)


def debounce(key: Key = None, *, arguments: Sequence[str] | None = None) -> Unique:
    """Enqueued again before it started, a job waits anew: give it `run_after`, and only the last call counts."""
    return unique(key, arguments=arguments, until="start", on_conflict="replace")


def throttle(every: timedelta | float, key: Key = None, *, arguments: Sequence[str] | None = None) -> Unique:
    """The first one counts, and for a time no other, as long as the first is kept."""
    return unique(key, arguments=arguments, until=every, on_conflict="keep")


@dataclass(frozen=True, slots=True)
class Rules:
    """All that a task declares of this."""

    limits: tuple[Limit, ...] = ()
    unique: Unique | None = None
    rates: tuple[Rate, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.limits or self.unique or self.rates)

    @property
    def merges(self) -> bool:
        return self.unique is not None and self.unique.conflict is UniqueConflict.MERGE

    def merged(self, earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
        """The arguments of one job that stands for two."""
        if self.unique is None or self.unique.merge is None:
            return {**earlier, **{name: _joined(earlier.get(name), value) for name, value in later.items()}}
        return dict(self.unique.merge(earlier, later))

    def terms(self, task: str, arguments: Mapping[str, Any], encode: Callable[[Any], bytes]) -> Terms:
        """As one job with these arguments meets them."""
        holds = [hold for limit in self.limits if (hold := limit.hold(task, arguments)) is not None]
        keys = {hold.key: hold for hold in holds}  # one permit of a key is enough
        unique = None if self.unique is None else self.unique.claim(task, arguments, encode)
        paces = [pace for rate in self.rates if (pace := rate.pace(task, arguments)) is not None]
        return Terms(tuple(keys.values()), unique, tuple({pace.key: pace for pace in paces}.values()))


def _joined(earlier: Any, later: Any) -> Any:
    """As one thinks of it: lists one after the other, sets and dictionaries together; else the later one counts."""
    if isinstance(earlier, list | tuple) and isinstance(later, list | tuple):
        return [*earlier, *later]
    if isinstance(earlier, set | frozenset) and isinstance(later, set | frozenset):
        return earlier | later
    if isinstance(earlier, dict) and isinstance(later, dict):
        return {**earlier, **later}
    return later


def make_rules(
    limits: Limit | Sequence[Limit] | None,
    unique: Unique | bool | None,
    names: Collection[str],
    rates: Rate | str | Sequence[Rate | str] | None = None,
) -> Rules:
    given = _several(limits)
    if not all(isinstance(each, Limit) for each in given) or len(given) > LIMITS_CAP:
        raise ConfigError(f"limit takes what packhorse.limit(…) makes: one, or a list of at most {LIMITS_CAP}.")
    if len(given) + len(_several(rates)) > 1 and any(each.conflict is not Conflict.BLOCK for each in given):
        raise ConfigError(
            "A task with several limits or rates waits for all of them: only on_conflict='block' goes with that."
        )
    rule = Unique(None, None, None, False, None, UniqueConflict.KEEP) if unique is True else unique or None
    if rule is not None and not isinstance(rule, Unique):
        raise ConfigError("unique takes True, or what packhorse.unique(…), debounce(…) or throttle(…) makes.")
    if rule is not None and (missing := set(rule.arguments or ()) - set(names)):
        raise ConfigError(f"unique names the argument {sorted(missing)[0]!r}, which the function does not have.")
    paces = tuple(rate(each) if isinstance(each, str) else each for each in _several(rates))
    if not all(isinstance(each, Rate) for each in paces) or len(paces) > LIMITS_CAP:
        raise ConfigError(
            f"rate takes a text like '100/min' or what packhorse.rate(…) makes: one, or a list of at most {LIMITS_CAP}."
        )
    return Rules(given, rule, paces)


def _several(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, list | tuple) else () if given is None else (given,)


def _key_of(key: Key, group: str, arguments: Mapping[str, Any], what: str) -> str | None:
    try:
        value = key.format_map(arguments) if isinstance(key, str) else key(**arguments) if key is not None else ""
    except TimedOut:
        raise
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
