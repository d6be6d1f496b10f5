"""Schedules in use: declared in code or made at run time, looked at, edited, and turned into jobs."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from packhorse.clock import to_datetime
from packhorse.context import MOMENT
from packhorse.control import TEXT_CAP, me
from packhorse.errors import ConfigError, PackhorseError, ScheduleNotFound, StoreError, TimedOut
from packhorse.handle import JobHandle
from packhorse.hops import hopping, hopping_each
from packhorse.ids import new_id, to_text
from packhorse.job import NewJob, storable
from packhorse.limits import Hold
from packhorse.moments import Rule, parse_rule
from packhorse.queues import check_name
from packhorse.schedule import Misfire, Overlap, Schedule, make_schedule
from packhorse.stores.contract import StoredSchedule, Tick
from packhorse.task import BaseTask, Call, Options, pack_foreign

if TYPE_CHECKING:
    from typing import Unpack

    from packhorse.app import Packhorse

T = TypeVar("T", bound="BaseTask[..., Any]")

KEY_CAP = 100
TRIES = 20


class Bounds(TypedDict, total=False):
    """What a schedule may say besides its rule."""

    zone: str
    start: datetime | None
    end: datetime | None
    repeats: int | None
    jitter: timedelta | float
    misfire: Literal["skip", "once", "all"]
    grace: timedelta | float | None
    overlap: Literal["allow", "skip", "queue"]


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule as others see it."""

    key: str
    task: str
    rule: str
    words: str
    zone: str
    source: str
    """The application whose code declares it; empty where it was made at run time."""
    paused: bool
    repeats: int | None
    start: datetime | None
    end: datetime | None
    jitter: timedelta
    misfire: str
    grace: timedelta | None
    overlap: str
    next_at: datetime | None
    last_job: str | None
    queue_name: str | None
    priority: int | None
    error: str

    @property
    def declared(self) -> bool:
        """By code, and so not to be edited or removed by hand."""
        return bool(self.source)


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule as code declares it; arguments are encoded when it is saved, as types may be registered later."""

    key: str
    task: BaseTask[..., Any]
    schedule: Schedule
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    queue_name: str | None
    priority: int | None


class Schedules:
    def __init__(self, app: Packhorse) -> None:
        self._app = app
        self._declared: dict[str, Declared] = {}

    # In code.

    def declare(
        self,
        rule: Rule | str,
        key: str | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        queue_name: str | None,
        priority: int | None,
        bounds: Bounds,
    ) -> Callable[[T], T]:
        schedule = self._make(rule, bounds)
        _check_options(queue_name, priority)

        def declared(task: T) -> T:
            if not isinstance(task, BaseTask):
                raise ConfigError("@app.recurring goes on a task: put it above @app.task.")
            its_key = _check_key(task.name if key is None else key)
            if its_key in self._declared:
                raise ConfigError(f"There is a schedule {its_key!r} already. Give each a key of its own with key=….")
            task.check_call(args, kwargs or {})
            self._declared[its_key] = Declared(its_key, task, schedule, args, kwargs or {}, queue_name, priority)
            return task

        return declared

    def save(self) -> list[str]:
        """Let the store have what the code declares, and no more; keys that others have and were left alone.

        One whose arguments cannot be stored gets no moments, and says why.
        """
        if self._declared:
            _ = self._app.seals  # unusable keys are no fault of a schedule
        return self._app.store.save_schedules(self._app.name, list(map(self._declared_row, self._declared.values())))

    @property
    def declared(self) -> list[Declared]:
        return list(self._declared.values())

    def problems(self) -> Iterator[str]:
        """What is wrong with declared schedules, in sentences; asks no store."""
        for it in self._declared.values():
            try:
                self._call(it)
            except Exception as error:
                yield f"Schedule {it.key} of task {it.task.name} cannot be used: {_said(error)}"

    # At run time.

    def add(
        self,
        call: Call[Any],
        rule: Rule | str,
        *,
        key: str | None = None,
        queue_name: str | None = None,
        priority: int | None = None,
        reason: str = "",
        actor: str | None = None,
        **bounds: Unpack[Bounds],
    ) -> ScheduleView:
        """Enqueue `task.call(...)` at every moment of a rule, from now on."""
        _check_options(queue_name, priority)
        its_key = _check_key(call.task.name if key is None else key)
        declared = Declared(its_key, call.task, self._make(rule, bounds), (), {}, queue_name, priority)
        row = self._row(its_key, call, declared)
        if not self._put(row, reason, actor):
            raise ConfigError(f"There is a schedule {its_key!r} already. Edit or remove it, or choose another key.")
        return self.get(its_key)

    def edit(
        self,
        key: str,
        *,
        rule: Rule | str | None = None,
        call: Call[Any] | None = None,
        queue_name: str | None = None,
        priority: int | None = None,
        reason: str = "",
        actor: str | None = None,
        **bounds: Unpack[Bounds],
    ) -> ScheduleView:
        """Change what is given. What was due before is not made up for under the new rule."""
        _check_options(queue_name, priority)
        sealed = None if call is None else (call.task.name, self._sealed(key, call))

        def edited(row: StoredSchedule) -> StoredSchedule:
            _check_own(row)
            schedule = self._make(parse_rule(row.rule) if rule is None else rule, {**_bounds(row), **bounds})
            task, payload = sealed or (row.task, row.payload)
            now = self._app.clock.now()
            return replace(
                _with_schedule(row, schedule),
                task=task,
                payload=payload,
                queue=row.queue if queue_name is None else queue_name,
                priority=row.priority if priority is None else priority,
                handled=now,
                next_at=schedule.next_after(now),
                error="",
            )

        self._change(key, edited, reason, actor)
        return self.get(key)

    def pause(self, key: str, *, reason: str = "", actor: str | None = None) -> None:
        """Its moments pass without a job until it is resumed."""
        self._change(key, lambda row: replace(row, paused=True), reason, actor)

    def resume(self, key: str, *, reason: str = "", actor: str | None = None) -> None:
        """What passed meanwhile is not made up for."""

        def resumed(row: StoredSchedule) -> StoredSchedule:
            now = self._app.clock.now()
            return replace(row, paused=False, handled=now, next_at=schedule_of(row).next_after(now))

        self._change(key, resumed, reason, actor)

    def remove(self, key: str, *, reason: str = "", actor: str | None = None) -> None:
        self.check_own(key)
        self._app.store.remove_schedule(key, _text(actor or me()), _text(reason))

    def check_own(self, key: str) -> None:
        """ConfigError where the code declares it."""
        _check_own(self._row_of(key))

    def run_now(self, key: str, *, reason: str = "", actor: str | None = None) -> JobHandle[Any]:
        """One job of it now, besides its moments."""
        row = self._row_of(key)
        job = self.job_of(row, self._app.clock.now())._replace(run_at=None)
        id = self._app.writing.run_schedule(job, _text(actor or me()), _text(reason))
        self._app.tell_enqueued([job])
        return JobHandle(self._app, id)

    # Looking.

    def all(self, *, after: str = "") -> Iterator[ScheduleView]:
        return chain.from_iterable(self._pages(after))

    def _pages(self, after: str) -> Iterator[list[ScheduleView]]:
        while found := self._app.store.schedules(after):
            yield [self._view(row) for row in found]
            after = found[-1].key

    def get(self, key: str) -> ScheduleView:
        return self._view(self._row_of(key))

    def upcoming(self, key: str, count: int = 5) -> list[datetime]:
        """The next moments, whether it is paused or not."""
        return [to_datetime(moment) for moment in schedule_of(self._row_of(key)).upcoming(self._app.clock.now(), count)]

    def shown_arguments(self, key: str) -> dict[str, Any]:
        """By name, with what is secret masked; PayloadError where they cannot be trusted."""
        row = self._row_of(key)
        return self._app.inspection.shown(row.task, self._app.opening.open_template(key, row.task, row.payload))

    def ticks(self, key: str, limit: int = 100) -> list[Tick]:
        """The newest moments that were dealt with, in microseconds, and their jobs."""
        return self._app.store.ticks(key, limit)

    aadd = hopping(add)
    aedit = hopping(edit)
    apause = hopping(pause)
    aresume = hopping(resume)
    aremove = hopping(remove)
    acheck_own = hopping(check_own)
    arun_now = hopping(run_now)
    aget = hopping(get)
    aupcoming = hopping(upcoming)
    aticks = hopping(ticks)
    ashown_arguments = hopping(shown_arguments)
    asave = hopping(save)

    def aall(self, *, after: str = "") -> AsyncIterator[ScheduleView]:
        return hopping_each(self._pages(after))

    # For the scheduler.

    def job_of(self, row: StoredSchedule, moment: int) -> NewJob:
        """The job that stands for a moment; PayloadError or ConfigError where it cannot be made."""
        task = self._app.known_tasks.get(row.task)
        if task is None:
            raise ConfigError(f"There is no task {row.task!r} in application {self._app.name!r}.")
        args, kwargs, _ = task.read(self._app.opening.open_template(row.key, row.task, row.payload))
        options = task.options
        metadata = {**options.metadata, MOMENT: [row.key, moment]}
        schedule = schedule_of(row)
        job = (
            task.using(
                queue_name=row.queue if row.queue is not None else options.queue_name,
                priority=row.priority if row.priority is not None else options.priority,
                run_after=to_datetime(schedule.run_at(row.key, moment)),
                tags=(*options.tags, f"schedule:{row.key}"),
                metadata=metadata,
            )
            .call(*args, **kwargs)
            .new_job()
        )
        if schedule.overlap is not Overlap.QUEUE:
            return job
        alone = Hold(f"schedule:{row.key}/", 1)
        return job._replace(terms=job.terms._replace(holds=(*job.terms.holds, alone)))

    # Rows.

    def _call(self, it: Declared) -> Call[Any]:
        return it.task.call(*it.args, **it.kwargs)

    def _declared_row(self, it: Declared) -> StoredSchedule:
        try:
            call = self._call(it)
            row = self._row(it.key, call, it)
            return replace(row, fingerprint=f"{_hashed(_when_and_what(row))}.{self._mark(it, call)}")
        except StoreError:
            raise
        except Exception as error:
            text = storable(_said(error), TEXT_CAP)
        bare = StoredSchedule(key=it.key, task=it.task.name, rule="", payload=b"", queue=it.queue_name, error=text)
        row = replace(_with_schedule(bare, it.schedule), priority=it.priority)
        return replace(row, fingerprint=f"{_hashed(_when_and_what(row))}.{_hashed(text.encode())}")

    def _make(self, rule: Rule | str, bounds: Mapping[str, Any]) -> Schedule:
        return make_schedule(rule, **{"zone": self._app.settings.time_zone, **bounds})

    def _row(self, key: str, call: Call[Any], it: Declared) -> StoredSchedule:
        now = self._app.clock.now()
        due = it.schedule.due(None, now)  # a single moment that has passed is owed still
        row = StoredSchedule(
            key=key,
            task=it.task.name,
            rule=str(it.schedule.rule),
            payload=self._sealed(key, call),
            queue=it.queue_name,
            priority=it.priority,
            next_at=due.moments[0] if due.moments else due.next,
        )
        return _with_schedule(row, it.schedule)

    def _mark(self, it: Declared, call: Call[Any]) -> str:
        """The part of a fingerprint that stays the same as long as the arguments do.

        Of encrypted arguments not even a hash gets out, and a codec of one's own may write the same value in two ways.
        So these are held against what the store has, and a mark is kept, or made anew.
        """
        if call.task.stored.codec is None and not self._app.seals.encrypted:
            return _hashed(call.encoded.body)
        old = self._app.store.schedule(it.key)
        if old is not None and old.source == self._app.name and self._says_the_same(old, it, call):
            return old.fingerprint.rpartition(".")[2]
        return new_id().hex()

    def _says_the_same(self, old: StoredSchedule, it: Declared, call: Call[Any]) -> bool:
        try:
            opened = self._app.opening.open_template(it.key, it.task.name, old.payload)
            if not opened.foreign or it.task.stored.codec is None:
                return opened.body == call.encoded.body
            args, kwargs, _ = it.task.as_sent(opened)
            return bool((args, kwargs) == ([*it.args], {**it.kwargs}))
        except TimedOut:
            raise
        except Exception:  # it was sealed otherwise, or its values cannot be compared
            return False

    def _sealed(self, key: str, call: Call[Any]) -> bytes:
        task, encoded = call.task, call.encoded
        foreign = task.stored.codec is not None
        if foreign:
            encoded = pack_foreign(encoded, self._app.codec, {})
        return self._app.seals.template(key, task.name, encoded, version=task.stored.version, foreign=foreign)

    def _row_of(self, key: str) -> StoredSchedule:
        row = self._app.store.schedule(key)
        if row is None:
            raise ScheduleNotFound(key)
        return row

    def _change(
        self, key: str, change: Callable[[StoredSchedule], StoredSchedule], reason: str, actor: str | None
    ) -> None:
        """Once more where somebody ticked or changed it meanwhile: what they did must not be taken back."""
        for _ in range(TRIES):
            if self._put(change(self._row_of(key)), reason, actor):
                return
        raise ConfigError(f"Others change schedule {key!r} all the time. Look at it and try again.")

    def _put(self, row: StoredSchedule, reason: str, actor: str | None) -> bool:
        return self._app.store.put_schedule(row, _text(actor or me()), _text(reason))

    def _view(self, row: StoredSchedule) -> ScheduleView:
        error = row.error
        try:
            words = schedule_of(row).describe()
        except (ConfigError, OverflowError, ValueError) as broken:  # somebody else wrote it
            words, error = row.rule, error or _said(broken)
        return ScheduleView(
            key=row.key,
            task=row.task,
            rule=row.rule,
            words=words,
            zone=row.zone,
            source=row.source,
            paused=row.paused,
            repeats=row.repeats,
            start=_time(row.start),
            end=_time(row.end),
            jitter=_span(row.jitter) or timedelta(),
            misfire=row.misfire,
            grace=_span(row.grace),
            overlap=row.overlap,
            next_at=None if row.paused else _time(row.next_at),
            last_job=None if row.last_job is None else to_text(row.last_job),
            queue_name=row.queue,
            priority=row.priority,
            error=error,
        )


def schedule_of(row: StoredSchedule) -> Schedule:
    """ConfigError where somebody else wrote what is no schedule."""
    try:
        misfire, overlap = Misfire(row.misfire), Overlap(row.overlap)
    except ValueError as error:
        raise ConfigError(f"Schedule {row.key!r} makes no sense: {error}.") from None
    rule = parse_rule(row.rule)
    return Schedule(rule, row.zone, row.start, row.end, row.repeats, row.jitter, misfire, row.grace, overlap)


def _bounds(row: StoredSchedule) -> Bounds:
    """As `make_schedule` takes them."""
    return Bounds(
        zone=row.zone,
        start=None if row.start is None else to_datetime(row.start),
        end=None if row.end is None else to_datetime(row.end),
        repeats=row.repeats,
        jitter=timedelta(microseconds=row.jitter),
        misfire=row.misfire,  # type: ignore[typeddict-item]
        grace=None if row.grace is None else timedelta(microseconds=row.grace),
        overlap=row.overlap,  # type: ignore[typeddict-item]
    )


def _with_schedule(row: StoredSchedule, schedule: Schedule) -> StoredSchedule:
    return replace(
        row,
        rule=str(schedule.rule),
        zone=schedule.zone,
        start=schedule.start,
        end=schedule.end,
        repeats=schedule.repeats,
        jitter=schedule.jitter,
        misfire=schedule.misfire.value,
        grace=schedule.grace,
        overlap=schedule.overlap.value,
    )


def _time(moment: int | None) -> datetime | None:
    """None also where somebody else wrote what lies beyond all calendars."""
    try:
        return None if moment is None else to_datetime(moment)
    except (OverflowError, ValueError, OSError):
        return None


def _span(length: int | None) -> timedelta | None:
    try:
        return None if length is None else timedelta(microseconds=length)
    except OverflowError:
        return None


def _check_own(row: StoredSchedule) -> None:
    if row.source:
        raise ConfigError(
            f"Schedule {row.key!r} is declared in the code of {row.source!r}: change it there, or pause it."
        )


def _when_and_what(row: StoredSchedule) -> bytes:
    when = (row.rule, row.zone, row.start, row.end, row.repeats, row.jitter, row.misfire, row.grace, row.overlap)
    return repr((when, (row.task, row.queue, row.priority))).encode()


def _hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _said(error: Exception) -> str:
    """Of an encoder's own errors no text: it may quote what it was given."""
    return str(error) if isinstance(error, PackhorseError) else type(error).__name__


def _check_key(key: str) -> str:
    check_name(key, "schedule key (set one with key=…)")
    if len(key) > KEY_CAP:
        raise ConfigError(f"A schedule key has at most {KEY_CAP} letters, not {len(key)}.")
    return key


def _check_options(queue_name: str | None, priority: int | None) -> None:
    Options(queue_name="default" if queue_name is None else queue_name, priority=0 if priority is None else priority)


def _text(text: str) -> str:
    return storable(text, TEXT_CAP)
