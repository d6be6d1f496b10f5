"""What `TASKS[alias]["OPTIONS"]` says, checked."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from django.conf import settings as site
from django.core import mail

from packhorse.config import KINDS, Settings
from packhorse.errors import ConfigError
from packhorse.queues import parse_queues

T = TypeVar("T")

DEFAULT_DATABASE = "default"
# What Robust Queue called some settings of ours.
FORMER_NAMES = {
    "process_heartbeat_interval": "heartbeat",
    "process_alive_threshold": "lease",
    "clear_finished_jobs_after": "keep_succeeded",
}
NOT_HERE = ("store", "debug")  # settings of ours that come from elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Some equal worker processes."""

    queues: tuple[str, ...] = ("*",)
    threads: int = 3
    processes: int = 1
    polling_interval: float = 0.1

    def __post_init__(self) -> None:
        queues = (self.queues,) if isinstance(self.queues, str) else tuple(self.queues)
        object.__setattr__(self, "queues", queues)
        parse_queues(self.line)
        _whole("threads", self.threads)
        _whole("processes", self.processes)
        _seconds("polling_interval", self.polling_interval)

    @property
    def line(self) -> str:
        """As commands write it."""
        return ",".join(self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherOptions:
    polling_interval: float = 1.0
    batch_size: int = 500
    concurrency_maintenance: bool = True
    concurrency_maintenance_interval: float = 600.0

    def __post_init__(self) -> None:
        _seconds("polling_interval", self.polling_interval)
        _whole("batch_size", self.batch_size)
        _seconds("concurrency_maintenance_interval", self.concurrency_maintenance_interval)
        if not isinstance(self.concurrency_maintenance, bool):
            raise ConfigError(f"concurrency_maintenance must be True or False, not {self.concurrency_maintenance!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    database: str | None = DEFAULT_DATABASE
    """The alias whose database holds the jobs; None where a store of its own does."""
    store: str | None = None
    commit_database: str = DEFAULT_DATABASE
    """Whose commit is waited for where the jobs are elsewhere."""
    enqueue_on_commit: bool | None = None
    workers: tuple[WorkerOptions, ...] = ()
    dispatchers: tuple[DispatcherOptions, ...] = ()
    supervisor_pidfile: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


OWN = [it.name for it in fields(BackendOptions) if it.name != "settings"] + ["preserve_finished_jobs"]


def read(given: Mapping[str, Any]) -> BackendOptions:
    """ConfigError where something is wrong; asks nothing of any database."""
    known = [*OWN, *FORMER_NAMES, *(name for name in KINDS if name not in NOT_HERE)]
    _check_names("OPTIONS", given, known)
    store = given.get("store") or os.environ.get("PACKHORSE_STORE", "").strip() or None
    if store is not None and given.get("database") is not None:
        raise ConfigError("database and store both say where the jobs are: keep one of the two.")
    database = None if store is not None else given.get("database") or DEFAULT_DATABASE
    commit_database = given.get("commit_database", DEFAULT_DATABASE)
    for alias in (database, commit_database):
        if alias is not None and alias not in site.DATABASES:
            raise ConfigError(f"There is no database {alias!r} in DATABASES.{_nearest(alias, site.DATABASES)}")
    on_commit = given.get("enqueue_on_commit")
    if on_commit not in (None, True, False):
        raise ConfigError(f"enqueue_on_commit must be True, False or None, not {on_commit!r}.")
    workers = _several("workers", given, WorkerOptions)
    dispatchers = _several("dispatchers", given, DispatcherOptions)
    return BackendOptions(
        database=database,
        store=store,
        commit_database=commit_database,
        enqueue_on_commit=on_commit,
        workers=workers,
        dispatchers=dispatchers,
        supervisor_pidfile=given.get("supervisor_pidfile"),
        settings=_settings(given, workers, dispatchers),
    )


def _settings(
    given: Mapping[str, Any], workers: Iterable[WorkerOptions], dispatchers: Iterable[DispatcherOptions]
) -> dict[str, Any]:
    """For the application."""
    found = {FORMER_NAMES.get(name, name): value for name, value in given.items() if name not in OWN}
    if given.get("preserve_finished_jobs", True) is False:
        found["keep_succeeded"] = 0
    if workers:
        found.setdefault("polling_interval", min(worker.polling_interval for worker in workers))
    if dispatchers:
        found.setdefault("batch_size", max(dispatcher.batch_size for dispatcher in dispatchers))
    found.setdefault("time_zone", site.TIME_ZONE or "UTC")
    found["debug"] = debugging()
    signing = found.get("signing", True)
    if signing and not any(
        name in found or os.environ.get(f"PACKHORSE_{name.upper()}") for name in ("keys", "keys_file")
    ):
        found["keys"] = tuple(dict.fromkeys((site.SECRET_KEY, *site.SECRET_KEY_FALLBACKS)))
    Settings.of(**found)
    return found


def debugging() -> bool:
    """Whether a key made for development may sign."""
    return bool(site.DEBUG) or testing()


def testing() -> bool:
    """Django's test runner switches DEBUG off and moves databases into memory; an outbox is what it leaves for us."""
    return hasattr(mail, "outbox")


def _several(name: str, given: Mapping[str, Any], kind: type[T]) -> tuple[T, ...]:
    """A missing section gets its default; one that is there and empty means none."""
    section = given.get(name)
    if section is None:
        return (kind(),)
    if not isinstance(section, list | tuple):
        raise ConfigError(f"{name} must be a list of dictionaries, not {section!r}.")
    known = [it.name for it in fields(kind)]  # type: ignore[arg-type]
    for one in section:
        if not isinstance(one, Mapping):
            raise ConfigError(f"{name} must be a list of dictionaries, and {one!r} is none.")
        _check_names(name, one, known)
    return tuple(kind(**one) for one in section)


def _check_names(where: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    known = list(known)
    for name in given:
        if name not in known:
            raise ConfigError(f"There is no setting {name!r} in {where}.{_nearest(name, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), list(known), 1)
    return f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(known)}."


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a whole number from 1 on, not {value!r}.")


def _seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"{name} must be a number of seconds above 0, not {value!r}.")
