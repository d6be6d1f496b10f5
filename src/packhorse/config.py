"""The settings of an application: one checked dataclass.

A setting is taken from the first place that gives it: a keyword, the variable PACKHORSE_<NAME>, the application's table
in a TOML file, the top of that file, the default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar

from packhorse.clock import LONGEST, SECOND, length
from packhorse.errors import ConfigError
from packhorse.masking import masked_url
from packhorse.stores.contract import EXCHANGE_JOBS, Retention

T = TypeVar("T")

DAY = 86_400.0
LARGEST_CAP = 4 * 1024 * 1024
LARGEST_MEMORY = 1 << 60
PREFIX = "PACKHORSE_"
KEYWORD, DEFAULT = "keyword", "default"  # as sources; the others are names of variables and paths of files


# What a setting may hold.


@dataclass(frozen=True, slots=True)
class Kind:
    words: str
    accepts: Callable[[Any], bool]
    parse: Callable[[str], Any] = str
    """From the environment. Text that does not fit stays text: `check` refuses it, as it does everywhere else."""
    keep: Callable[[Any], Any] = lambda value: value
    optional: bool = False
    secret: bool = False
    """Not shown where it is refused."""

    def check(self, name: str, value: Any) -> Any:
        if value is None and self.optional:
            return None
        if not self.accepts(value):
            seen = "" if self.secret else f", not {_shortened(repr(_masked(value)))}"
            raise _Refused(f"{name} must be {self.words}{seen}.", name)
        return self.keep(value)

    def from_text(self, text: str) -> Any:
        return None if self._means_none(text) else self.parse(text)

    def from_toml(self, value: Any) -> Any:
        """TOML has no word for None, so it is a text there."""
        return None if isinstance(value, str) and self._means_none(value) else value

    def _means_none(self, text: str) -> bool:
        return self.optional and text.lower() == "none"


def seconds(*, more_than_0: bool = False, none: str | None = None) -> Kind:
    def accepts(value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and 0 <= value <= LONGEST // SECOND and (value > 0 or not more_than_0)

    least = "above 0" if more_than_0 else "from 0 on"
    words = f"a number of seconds {least}, at most a hundred years{_or_none(none)}"
    return Kind(words, accepts, _number(float), float, optional=none is not None)


def whole(least: int, most: int, *, none: str | None = None) -> Kind:
    def accepts(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    words = f"a whole number from {least} to {most}{_or_none(none)}"
    return Kind(words, accepts, _number(int), int, optional=none is not None)


def choice(*values: str) -> Kind:
    return Kind(" or ".join(map(repr, values)), lambda value: isinstance(value, str) and value in values)


def one_text(words: str) -> Kind:
    """Secret, as a URL may hold a password, and somebody may take keys_file for the place of a key."""
    return Kind(f"{words}, or None", _is_text, optional=True, secret=True)


def many_texts(*, secret: bool = False) -> Kind:
    def accepts(value: Any) -> bool:
        return isinstance(value, list | tuple) and all(map(_is_text, value))

    def parse(text: str) -> tuple[str, ...]:
        return () if text.lower() == "none" else tuple(part.strip() for part in text.split(","))

    return Kind("a list of texts, none of them empty", accepts, parse, tuple, secret=secret)


def _or_none(meaning: str | None) -> str:
    return f", or None {meaning}" if meaning else ""


def _number(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return convert(text)
        except ValueError:
            return text

    return parse


def _is_zone(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    if value == "UTC":
        return True
    from packhorse.zones import zone_named

    try:
        return bool(zone_named(value))
    except ConfigError:
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


SWITCHES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
SWITCH = Kind("True or False", lambda value: isinstance(value, bool), lambda text: SWITCHES.get(text.lower(), text))
SECONDS, PAUSE, KEPT = seconds(), seconds(more_than_0=True), seconds(none="for good")


def setting(default: T, kind: Kind) -> T:
    return field(default=default, metadata={"kind": kind})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """Lengths are seconds, sizes are bytes."""

    heartbeat: float = setting(5.0, PAUSE)
    lease: float = setting(30.0, SECONDS)
    shutdown_timeout: float = setting(30.0, SECONDS)
    timeout: float | None = setting(None, seconds(more_than_0=True, none="for no limit"))
    """How long a job may take where its task says nothing."""
    ending_timeout: float = setting(5.0, SECONDS)
    """How long a task that was asked to end may take for it before it is ended by force."""
    boot_timeout: float = setting(60.0, PAUSE)
    """How long a process may take to be ready before it is ended and replaced."""
    max_restarts: int | None = setting(10, whole(1, 1_000_000, none="for never"))
    """How often in a row a process may die before it was ready until the supervisor gives up."""
    isolated_max_jobs: int | None = setting(None, whole(1, 1_000_000_000, none="for no limit"))
    isolated_max_memory: int | None = setting(None, whole(1 << 20, LARGEST_MEMORY, none="for no limit"))
    """Bytes that an isolated process may hold after a job, or it is replaced."""
    isolated_memory_limit: int | None = setting(None, whole(1 << 20, LARGEST_MEMORY, none="for no limit"))
    """Bytes of address space that an isolated process may ask for at all."""
    polling_interval: float = setting(1.0, PAUSE)
    lookahead: int = setting(EXCHANGE_JOBS, whole(0, EXCHANGE_JOBS))
    batch_size: int = setting(EXCHANGE_JOBS, whole(1, EXCHANGE_JOBS))
    keep_succeeded: float | None = setting(7 * DAY, KEPT)
    keep_failed: float | None = setting(30 * DAY, KEPT)
    keep_cancelled: float | None = setting(7 * DAY, KEPT)
    result_ttl: float | None = setting(None, seconds(none="to keep it with its job"))
    on_worker_lost: Literal["retry", "fail"] = setting("retry", choice("retry", "fail"))
    unknown_task_timeout: float = setting(3600.0, SECONDS)
    """How long a job of an unknown task is put back before it fails; 0 fails it at once."""
    priority_order: Literal["higher_first", "lower_first"] = setting(
        "higher_first", choice("higher_first", "lower_first")
    )
    ageing: float | None = setting(None, seconds(more_than_0=True, none="for never"))
    """How long a job waits to make up for one point of priority."""
    time_zone: str = setting("UTC", Kind("the name of a time zone, as Europe/Berlin", _is_zone, str))
    """Of schedules that name none."""
    store: str | None = setting(None, one_text("a store URL"))
    signing: bool = setting(True, SWITCH)
    encryption: bool = setting(False, SWITCH)
    keys: tuple[str, ...] = setting((), many_texts(secret=True))
    """The first signs, all verify."""
    keys_file: str | None = setting(None, one_text("the path of a file, as text"))
    """One key per line; lines that begin with # are comments."""
    debug: bool = setting(False, SWITCH)
    compress_above: int | None = setting(4096, whole(0, LARGEST_CAP, none="for never"))
    payload_cap: int = setting(262_144, whole(1024, LARGEST_CAP))
    result_cap: int = setting(262_144, whole(1024, LARGEST_CAP))
    depth_cap: int = setting(64, whole(1, 200))
    items_cap: int = setting(10_000, whole(1, 1_000_000))
    drop_undecodable: bool = setting(False, SWITCH)
    error_reporters: tuple[str, ...] = setting((), many_texts())
    sensitive_names: tuple[str, ...] = setting((), many_texts())
    """Added to the built-in ones."""
    _sources: dict[str, str] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def of(cls, **given: Any) -> Self:
        """From keywords alone."""
        return cls._made(_from_keywords(given))

    @classmethod
    def load(
        cls,
        given: Mapping[str, Any],
        *,
        app_name: str,
        config: str | Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """From keywords, the environment and the TOML file that `config` or $PACKHORSE_CONFIG names."""
        found = _from_file(app_name, config, environ) | _from_environment(environ) | _from_keywords(given)
        return cls._made(found)

    @classmethod
    def _made(cls, found: dict[str, Found]) -> Self:
        sources = {name: source for name, (_, source) in found.items()}
        try:
            settings = cls(**{name: value for name, (value, _) in found.items()})
        except _Refused as refused:
            raise refused.told(sources) from None
        settings._sources.update(sources)
        return settings

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            object.__setattr__(self, name, kind.check(name, getattr(self, name)))
        if self.lease < 4 * self.heartbeat:
            raise _Refused(
                f"lease={self.lease:g} is too short for heartbeat={self.heartbeat:g}: a lease must outlast four beats. "
                f"Use lease={4 * self.heartbeat:g} or more, or a shorter heartbeat.",
                "lease",
                "heartbeat",
            )
        if self.keys and self.keys_file:
            raise _Refused("keys and keys_file are both given: keep one of the two.", "keys", "keys_file")
        if flaw := _flaw(self.keys, self.debug):
            raise _Refused(f"keys cannot be used, as {flaw}", "keys")
        if self.encryption and not self.signing:
            raise _Refused("encryption needs signing: switch signing on, or encryption off.", "encryption", "signing")
        if self.encryption and not (self.keys or self.keys_file):
            raise _Refused("encryption needs keys: give keys or keys_file, or switch encryption off.", "encryption")

    @property
    def retention(self) -> Retention:
        kept = (self.keep_succeeded, self.keep_failed, self.keep_cancelled)
        return Retention(*(None if seconds is None else length(seconds) for seconds in kept))

    @property
    def has_keys(self) -> bool:
        return bool(self.keys) or self.keys_file is not None

    def key_ring(self) -> tuple[bytes, ...]:
        """The keys, as `keys` or the file holds them now; none where neither is given."""
        if self.keys_file is None:
            return tuple(key.encode() for key in self.keys)
        label = _label("keys_file", self._sources.get("keys_file", KEYWORD))
        keys = _keys_in(self.keys_file, label)
        if flaw := _flaw(keys, self.debug):
            raise ConfigError(f"{label}: the file cannot be used, as {flaw}")
        return tuple(key.encode() for key in keys)

    def describe(self) -> list[tuple[str, str, str]]:
        """Each setting with its value, written as the environment would have it, and where it came from."""
        return [(name, _described(name, value), self._source(name)) for name, value in self._values()]

    def _source(self, name: str) -> str:
        return self._sources.get(name, DEFAULT if getattr(self, name) == DEFAULTS[name] else KEYWORD)

    def _values(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in KINDS)

    def __repr__(self) -> str:
        changed = [(name, value) for name, value in self._values() if value != DEFAULTS[name] and name != "keys"]
        return f"Settings({', '.join(f'{name}={_masked(value)!r}' for name, value in changed)})"


KINDS: dict[str, Kind] = {field.name: field.metadata["kind"] for field in fields(Settings) if field.init}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Settings) if field.init}


# Where settings come from.


class Found(NamedTuple):
    value: Any
    source: str


def _from_keywords(given: Mapping[str, Any]) -> dict[str, Found]:
    _check_names(given)
    return {name: Found(value, KEYWORD) for name, value in given.items()}


ONLY_VARIABLES = ("config", "failpoints")  # no settings, but known as PACKHORSE_CONFIG and PACKHORSE_FAILPOINTS

# Kubernetes sets these for a service that happens to be named packhorse.
SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP)(_\w+)?)?$")


def _from_environment(environ: Mapping[str, str]) -> dict[str, Found]:
    variables = {name: PREFIX + name.upper() for name in (*KINDS, *ONLY_VARIABLES)}
    for variable in environ:
        if variable.startswith(PREFIX) and not variable.startswith(f"{PREFIX}TEST_"):
            name = variable.removeprefix(PREFIX).lower()
            if variables.get(name) != variable and not SERVICE_LINK.search(variable):
                raise _unknown(variable, name, variables)
    given = ((name, kind, environ.get(variables[name], "").strip()) for name, kind in KINDS.items())
    return {name: Found(kind.from_text(text), variables[name]) for name, kind, text in given if text}


def _from_file(app_name: str, config: str | Path | None, environ: Mapping[str, str]) -> dict[str, Found]:
    label, path = "config", config
    if not path:
        label, path = f"{PREFIX}CONFIG", environ.get(f"{PREFIX}CONFIG", "").strip()
    if not path:
        return {}
    file = _read(path, f"{label}: {path}")
    document = _toml(file.text, f"{label}: {path}")
    if Path(path).name == "pyproject.toml":
        document = _table(document, ("tool", "packhorse"))
        if document is None:
            raise ConfigError(f"{label}: {path} has no table [tool.packhorse]: add it, or name another file.")
    if file.exposed and _holds_keys(document):
        raise ConfigError(f"keys in {path}: group or others may read or write the file, so run `chmod 600 {path}`.")
    # A dotted name without quotes makes tables within tables.
    own = _table(document, (app_name,)) or _table(document, app_name.split(".")) or {}
    return _from_table(document, str(path)) | _from_table(own, str(path))


def _from_table(table: dict[str, Any], source: str) -> dict[str, Found]:
    """A table in the table belongs to an application, most likely another one."""
    given = {name: value for name, value in table.items() if not isinstance(value, dict)}
    _check_names(given, f" in {source}")
    return {name: Found(KINDS[name].from_toml(value), source) for name, value in given.items()}


def _table(document: Any, path: Iterable[str]) -> Any:
    """The table at that path, None where there is none."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else None


def _holds_keys(table: dict[str, Any]) -> bool:
    """For any application: those who read the file read all of it."""
    return any(
        _holds_keys(value) if isinstance(value, dict) else name == "keys" and bool(value)
        for name, value in table.items()
    )


def _check_names(names: Iterable[str], where: str = "") -> None:
    for name in names:
        if name not in KINDS:
            raise _unknown(f"{name!r}{where}", name, {known: repr(known) for known in KINDS})


class File(NamedTuple):
    text: str
    exposed: bool
    """To group or others, to read or to write."""


# The next two raise outside of `except`: the errors they caught hold what stands in the file.


def _read(path: str | Path, what: str) -> File:
    try:
        with open(path, "rb") as file:
            exposed = os.fstat(file.fileno()).st_mode & 0o066
            return File(file.read().decode("utf-8-sig"), bool(exposed))
    except OSError as error:
        why = error.strerror or type(error).__name__
    except ValueError:
        why = "it is not UTF-8 text"
    raise ConfigError(f"{what} cannot be read ({why}): name a text file that this user may read.")


def _toml(text: str, what: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        why = str(error)
    raise ConfigError(f"{what} is not TOML, correct it: {why}.")


# Errors.


class _Refused(ConfigError):
    """A value, or several together, that cannot be used. The sentence begins with the name of the setting."""

    def __init__(self, sentence: str, *names: str):
        super().__init__(sentence)
        self.names = names

    def told(self, sources: Mapping[str, str]) -> ConfigError:
        """The same, with where the values came from."""
        sentence, given = str(self), [name for name in self.names if name in sources]
        if all(sources[name] == KEYWORD for name in given):
            return ConfigError(sentence)
        labels = " and ".join(_label(name, sources[name]) for name in given)
        return ConfigError(f"{labels}: {sentence.removeprefix(f'{self.names[0]} ') if len(given) == 1 else sentence}")


def _label(name: str, source: str) -> str:
    if source == KEYWORD:
        return name
    return source if source == PREFIX + name.upper() else f"{name} in {source}"


def _unknown(shown: str, name: str, known: Mapping[str, str]) -> ConfigError:
    """`known` has the names as they are written where the unknown one was met."""
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    hint = f"Did you mean {known[near[0]]}?" if near else f"Known settings: {', '.join(known)}."
    return ConfigError(f"There is no setting {shown}. {hint}")


# Keys.


LEAST_KEY = 32  # bytes
LEAST_REST = 16  # characters beside the sample words
MAKE_KEY = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"

# What people put where a key should be. A key may hold such words, but must not consist of them.
_SAMPLES = re.compile(
    r"(?:change[\W_]?(?:me|this|it)|replace[\W_]?(?:me|this)|secret|password|passw0rd|passphrase|insecure|django|example"
    r"|sample|default|dummy|test|please|your|this|that|very|super|long|some|not|use|key|qwerty|letmein|foobar|deadbeef"
    r"|0?123456789(?:0|abcdef)?|12345678|abcdefghijklmnopqrstuvwxyz)[\W_]*",
    re.IGNORECASE,
)


def _flaw(keys: Iterable[str], debug: bool) -> str | None:
    """Why the keys cannot be used and what to do, as the end of a sentence; never shows a key."""
    seen: set[str] = set()
    for number, key in enumerate(keys, 1):
        if key in seen:
            return f"key {number} is there twice: remove it."
        if key != key.strip():  # it would be another key in the environment and in a file, where it is stripped
            return f"key {number} begins or ends with white space: strip it."
        if why := _weakness(key, debug):
            return f"key {number} {why}: make another with `{MAKE_KEY}`."
        seen.add(key)
    return None


def _weakness(key: str, debug: bool) -> str | None:
    if any("\ud800" <= character <= "\udfff" for character in key):
        return "is not UTF-8 text"
    if len(key.encode()) < LEAST_KEY:
        return f"has fewer than {LEAST_KEY} bytes"
    if debug:
        return None
    if key.startswith("django-insecure-"):
        return "was made by Django for development only"
    if len(set(key)) == 1:
        return "is one character repeated"
    if _SAMPLES.search(key) and len(_SAMPLES.sub("", key)) < LEAST_REST:
        return "is a sample that anyone can guess"
    return None


def _keys_in(path: str, label: str) -> tuple[str, ...]:
    # A path that leads nowhere is not shown: it may be a key that was put into the wrong setting.
    file = _read(path, f"{label}: the file")
    if file.exposed:
        raise ConfigError(f"{label}: group or others may read or write the file, so run `chmod 600 {path}`.")
    lines = (line.strip() for line in file.text.split("\n"))
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"{label}: the file holds no key, so add one made with `{MAKE_KEY}`.")
    return keys


# How values are shown.


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return masked_url(value)
    return type(value)(map(_masked, value)) if type(value) in (list, tuple) else value


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


def _described(name: str, value: Any) -> str:
    if value is None or value == ():
        return "none"
    if name == "keys":
        return "1 key" if len(value) == 1 else f"{len(value)} keys"
    match _masked(value):
        case bool(switch):
            return str(switch).lower()
        case float(number):
            return str(number).removesuffix(".0")
        case tuple(parts):
            return ", ".join(parts)
        case other:
            return str(other)
