"""A task: a function with options."""

from __future__ import annotations

import inspect
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, Self, TypeAlias, TypedDict, TypeVar, cast

from packhorse.clock import length, to_microseconds
from packhorse.codec import Arguments, Codec, Encoded
from packhorse.context import Context, entered, in_place, performing
from packhorse.errors import ConfigError, PayloadError, TimedOut
from packhorse.ids import child_id, new_id, to_text
from packhorse.job import JobState, Need, NewJob, Parent
from packhorse.limits import FREE, TO_COME, Limit, NotYetKnown, Rate, Rules, Terms, Unique, make_rules
from packhorse.queues import check_name
from packhorse.retry import Backoff, Exponential, RetryPolicy, make_policy
from packhorse.seals import OpenedJob
from packhorse.shapes import Shapes, shapes_of
from packhorse.varying import (
    KEEPS,
    RULES,
    TRAVELLING,
    USING,
    as_told,
    check_flag,
    check_kept,
    check_lost,
    check_names,
    check_timeout,
    kept_for,
    told,
    varied,
)

if TYPE_CHECKING:
    from typing import Unpack

    from packhorse.app import Packhorse
    from packhorse.config import Settings
    from packhorse.flow import Mapped
    from packhorse.handle import JobHandle

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

Callback: TypeAlias = "Call[Any] | TakesOne[str, Any]"
Upgrade = Callable[[int, list[Any], dict[str, Any]], tuple[Sequence[Any], Mapping[str, Any]]]
Exceptions = type[BaseException] | tuple[type[BaseException], ...]
TAGS_CAP = 16
SHAPES_CAP = 1_000
LOCAL_BACKOFF = Exponential(base=1.0, cap=60.0)
NOT_LOCAL = {
    "queue_name",
    "priority",
    "expires",
    "share",
    "isolate",
    "on_worker_lost",
    "codec",
    "limit",
    "rate",
    "unique",
}
VERSION_CAP = 65_535
SUCCESS, FAILURE, FINISH = -1, -2, -3  # the places of callbacks
CALLBACKS = {SUCCESS: Need.SUCCESS, FAILURE: Need.FAILURE, FINISH: Need.END}
CALLBACK_NAMES = {SUCCESS: "on_success", FAILURE: "on_failure", FINISH: "on_finish"}
_ARGS, _KWARGS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_UNNAMED = (_ARGS, _KWARGS, inspect.Parameter.POSITIONAL_ONLY)


class ForeignCodec(Protocol):
    """Another way to write a task's arguments and results, chosen with `codec=`; read only where the MAC is right.

    One that has `runs_code = True` is warned of by every worker that performs its tasks.
    """

    def encode(self, value: Any) -> bytes: ...
    def decode(self, data: bytes) -> Any: ...


class Common(TypedDict, total=False):
    """What a decorator and `using` take alike, here and where Django's tasks are ours."""

    share: str | None
    tags: tuple[str, ...]
    metadata: Mapping[str, Any]
    timeout: timedelta | float | None
    retries: int | None
    backoff: Backoff | timedelta | float | None
    isolate: bool
    on_worker_lost: Literal["retry", "fail"]
    results: bool
    result_ttl: timedelta | float | None
    keep_succeeded: timedelta | float | None
    keep_failed: timedelta | float | None
    keep_cancelled: timedelta | float | None
    limit: Limit | Sequence[Limit] | None
    rate: Rate | str | Sequence[Rate | str] | None
    unique: Unique | bool | None


class CommonlyDeclared(Common, total=False):
    """What both decorators take besides."""

    queue_name: str
    priority: int
    expires: timedelta | float | None
    retry_for: Exceptions
    give_up_on: Exceptions
    aliases: tuple[str, ...]
    version: int
    upgrade: Upgrade | None


class Using(Common, total=False):
    """What may differ from one job of a task to the next."""

    queue_name: str
    priority: int
    run_after: datetime | timedelta | float | None
    expires: datetime | timedelta | float | None
    on_success: Callback | None
    on_failure: Callback | None
    on_finish: Callback | None


class Declared(CommonlyDeclared, total=False):
    """What `@app.task(...)` takes."""

    name: str
    local: bool
    codec: ForeignCodec | None
    on_success: Callback | None
    on_failure: Callback | None
    on_finish: Callback | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    queue_name: str = "default"
    priority: int = 0
    run_after: datetime | timedelta | float | None = None
    expires: datetime | timedelta | float | None = None
    share: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    timeout: timedelta | float | None = None
    on_success: Callback | None = None
    on_failure: Callback | None = None
    on_finish: Callback | None = None

    def __post_init__(self) -> None:
        check_name(self.queue_name, "queue name")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int) or not -100 <= self.priority <= 100:
            raise ConfigError(f"priority must be a whole number from -100 to 100, not {self.priority!r}.")
        for name in ("run_after", "expires"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, datetime | timedelta | int | float | None):
                raise ConfigError(f"{name} must be a datetime, a timedelta or a number of seconds, not {value!r}.")
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{name} must be a finite number of seconds, not {value!r}.")
            if isinstance(value, datetime) and value.tzinfo is None:
                raise ConfigError(f"{name}={value} has no time zone. Use an aware datetime, or a timedelta.")
        if self.share is not None:
            check_name(self.share, "share")
        if not isinstance(self.tags, tuple) or len(self.tags) > TAGS_CAP:
            raise ConfigError(f"tags must be a tuple of at most {TAGS_CAP} texts, not {self.tags!r}.")
        for tag in self.tags:
            check_name(tag, "tag")
        if not isinstance(self.metadata, Mapping):
            raise ConfigError(f"metadata must be a dictionary, not a {type(self.metadata).__name__}.")
        check_timeout(self.timeout)
        for place, callback in self.callbacks.items():
            check_callback(CALLBACK_NAMES[place], callback)

    @property
    def callbacks(self) -> dict[int, Callback]:
        """By their places."""
        given = {SUCCESS: self.on_success, FAILURE: self.on_failure, FINISH: self.on_finish}
        return {place: callback for place, callback in given.items() if callback is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What becomes of a task's jobs in the store."""

    version: int = 1
    upgrade: Upgrade | None = None
    results: bool = True
    result_ttl: int | None = None
    keep: Mapping[JobState, int | None] = field(default_factory=dict)
    codec: ForeignCodec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """How a task's jobs are performed."""

    timeout: float | None = None
    isolate: bool = False
    local: bool = False
    on_worker_lost: Literal["retry", "fail"] = "retry"


@dataclass(frozen=True, slots=True)
class Reference:
    """Stands for the result of an earlier job of a flow, or for those of a group."""

    node: Any
    group: Any


RESULTS = "packhorse.results"  # where metadata tell which results are to be among the arguments


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A task with arguments, ready to be enqueued: what `task.call(...)` makes and `enqueue_many` takes."""

    task: BaseTask[..., R_co]
    encoded: Encoded = field(repr=False)  # secrets too, as they travel
    terms: Terms = field(default=FREE, repr=False)
    references: Mapping[str, Reference] = field(default_factory=dict, repr=False)

    def new_job(self, id: bytes | None = None, results: Mapping[str, list[Any]] | None = None) -> NewJob:
        task = self.task
        app = task.app
        options = app.drafted(task)
        metadata = options.metadata
        if self.references:
            if results is None:
                raise ConfigError("Results of other jobs are known only within a flow: add this call to it.")
            metadata = {**metadata, RESULTS: results}
        if options.timeout is not None or task.variation:
            lasting = {} if options.timeout is None else {"timeout": check_timeout(options.timeout)}
            metadata = {**metadata, USING: {**task.variation, **lasting}}
        id, created = new_id() if id is None else id, app.clock.now()
        run_at = delay = expires_at = lifetime = expires = None
        if options.run_after is not None:
            run_at, delay = _moment_or_length(options.run_after)
        if options.expires is not None:
            expires_at, lifetime = _moment_or_length(options.expires)
            expires = expires_at if lifetime is None else created + lifetime
        payload = self.payload(id, task.name, metadata, created, expires)
        priority = app.stored_priority(options.priority)
        queue, share, tags = options.queue_name, options.share, options.tags
        moments = (run_at, delay, expires_at, lifetime)
        job = NewJob(id, task.name, payload, queue, priority, *moments, share, tags, self.terms, app.ageing)
        if options.on_success or options.on_failure or options.on_finish:
            return job._replace(callbacks=tuple(_callback_jobs(id, options.callbacks)))
        return job

    def payload(self, id: bytes, name: str, metadata: Mapping[str, Any], created: int, expires: int | None) -> bytes:
        """Signed, for the job of that id and its task by that name."""
        app, stored, encoded = self.task.app, self.task.stored, self.encoded
        if stored.codec is not None:
            encoded = pack_foreign(encoded, app.codec, metadata)
        elif metadata:
            encoded = app.codec.with_metadata(encoded, dict(metadata))
        return app.seals.job(
            id,
            name,
            encoded,
            created=created,
            expires=expires,
            version=stored.version,
            foreign=stored.codec is not None,
            no_result=not stored.results,
            varied=USING in metadata,
        )


def check_callback(name: str, callback: object) -> None:
    if not isinstance(callback, Call | BaseTask):
        raise ConfigError(f"{name} takes a task or a call, task.call(…), not {callback!r}.")
    task = callback.task if isinstance(callback, Call) else callback
    if task.rules.unique is not None:
        raise ConfigError(
            f"{task.name} cannot be {name}: it has a unique key, so that one job of it would stand for several. Let it "
            "enqueue the unique job itself."
        )
    if isinstance(callback, BaseTask):
        try:
            callback.check_call(("id",), {})
        except TypeError:
            raise ConfigError(
                f"{task.name} cannot be {name}: it is called with one argument, the id of what has ended. Where it "
                "needs others, give a call instead: task.call(…)."
            ) from None
    elif callback.references:
        raise ConfigError(f"{name} cannot take results. It may look for them, or be added to the flow.")


def made_callback(callback: Callback, id: bytes) -> Call[Any]:
    """A task gets the id of what has ended."""
    return callback if isinstance(callback, Call) else callback.call(to_text(id))


def _callback_jobs(id: bytes, callbacks: Mapping[int, Callback]) -> Iterator[NewJob]:
    """As if the job were the only one of a batch. Their ids are the same each time, should it be inserted again."""
    for place, callback in callbacks.items():
        job = made_callback(callback, id).new_job(child_id(id, CALLBACK_NAMES[place], 0))
        yield job._replace(after=(Parent(id, CALLBACKS[place]),), member=(id, place))


def pack_foreign(encoded: Encoded, codec: Codec, metadata: Mapping[str, Any]) -> Encoded:
    """What the task's own codec wrote, its length before it and the metadata, as JSON, behind it."""
    beside = codec.encode_arguments((), dict(metadata))
    body = len(encoded.body).to_bytes(4) + encoded.body + beside.body
    if len(body) > codec.caps.payload:
        raise PayloadError(f"The arguments take {len(body):,} bytes, more than the {codec.caps.payload:,} allowed.")
    return Encoded(body, beside.typed)


def unpack_foreign(task: BaseTask[..., Any], body: bytes, codec: Codec, typed: bool) -> Arguments:
    if task.stored.codec is None:
        raise PayloadError("It was written by a codec that the task does not have (any more).")
    size = int.from_bytes(body[:4])
    metadata = codec.decode_arguments(body[4 + size :], typed=typed).kwargs
    try:
        args, kwargs = task.stored.codec.decode(body[4 : 4 + size])
        return Arguments(list(args), dict(kwargs), metadata)
    except (PayloadError, TimedOut):
        raise
    except Exception as error:
        raise PayloadError(f"The task's own codec raised {type(error).__name__}.") from None


def _moment_or_length(value: datetime | timedelta | float) -> tuple[int | None, int | None]:
    return (to_microseconds(value), None) if isinstance(value, datetime) else (None, length(value))


class TakesOne(Protocol[T_contra, R_co]):
    """A task that can be called with one argument, as type checkers see it."""

    def call(self, item: T_contra, /) -> Call[R_co]: ...


class TakesOneLater(Protocol[T_contra, R_co]):
    """The same of a Django task, whose own `call` performs it at once."""

    def later(self, item: T_contra, /) -> Call[R_co]: ...


class BaseTask(Generic[P, R_co]):
    """What tasks of plain and of coroutine functions share; get one from `@app.task`."""

    def __init__(
        self,
        app: Packhorse,
        function: Callable[..., Any],
        name: str,
        options: Options,
        policy: RetryPolicy,
        performed: Performed,
        stored: Stored,
        takes_context: bool,
        aliases: tuple[str, ...],
        rules: Rules,
    ) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.options = options
        self.policy = policy
        self.performed = performed
        self.stored = stored
        self.takes_context = takes_context
        self.aliases = aliases
        self.rules = rules
        self.declared: BaseTask[..., Any] = self  # of which those of `using` are copies
        self.variation: Mapping[str, Any] = {}  # what they tell their jobs' workers
        self.frames_around = 0  # of the function, that nobody wants to see in a traceback
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self._signature = _signature(function, takes_context)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        kinds = {name: it.kind for name, it in self._signature.parameters.items()}
        self.names = tuple(kinds)
        self.parameter_names = tuple(name for name, kind in kinds.items() if kind in positional)
        self._names_of_rest = {kind: name for name, kind in kinds.items() if kind in (_ARGS, _KWARGS)}
        self._call_shapes: set[tuple[object, ...]] = set()
        self._shapes: list[Shapes | None] = []  # one, once they were looked for; shared by the copies of `using`
        self.__name__ = getattr(function, "__name__", name)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    @property
    def shapes(self) -> Shapes | None:
        """Found at the first use, when every name in the annotations is known; None where nothing needs one."""
        if not self._shapes:
            carried = self.app.codec.registered
            self._shapes.append(shapes_of(self.function, skip_first=self.takes_context, carried=carried) or None)
        return self._shapes[0]

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """The task with arguments, to be enqueued later or with others."""
        if self.performed.local:
            raise ConfigError(f"{self.name} is local: each worker performs it by itself, and nobody enqueues it.")
        self.check_call(args, kwargs)
        if Reference in map(type, args) or Reference in map(type, kwargs.values()):
            return self._referring(args, kwargs)
        terms = self._terms(args, kwargs) if self.rules else FREE
        if self.stored.codec is not None:
            return Call(self, Encoded(self.stored.codec.encode((args, kwargs)), typed=False), terms)
        if self.shapes is not None:
            dumped_args, dumped_kwargs = self.shapes.dump_arguments(args, kwargs)
            return Call(self, self.app.codec.encode_arguments(dumped_args, dumped_kwargs, self.parameter_names), terms)
        return Call(self, self.app.codec.encode_arguments(args, kwargs, self.parameter_names), terms)

    def own_call(self) -> Call[R_co]:
        """For the job of a local task."""
        return Call(self, self.app.codec.encode_arguments((), {}))

    def _referring(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R_co]:
        """What is to come is left out, and known by its name."""
        given = self._signature.bind(*args, **kwargs).arguments
        named = {name: value for name, value in given.items() if self._signature.parameters[name].kind not in _UNNAMED}
        found = {name: value for name, value in named.items() if type(value) is Reference}
        if len(named) < len(given) or len(found) < sum(type(it) is Reference for it in given.values()):
            raise ConfigError(
                f"{self.name} cannot take the result of another job here: only arguments that have a name can. Enqueue "
                "a job for that from within a task."
            )
        plain = {name: value for name, value in named.items() if name not in found}
        terms = self._terms_without(plain, found) if self.rules else FREE
        if self.stored.codec is not None:
            return Call(self, Encoded(self.stored.codec.encode(((), plain)), typed=False), terms, found)
        if self.shapes is not None:
            _, plain = self.shapes.dump_arguments((), plain)
        return Call(self, self.app.codec.encode_arguments((), plain, self.parameter_names), terms, found)

    def _terms_without(self, known: Mapping[str, Any], to_come: Iterable[str]) -> Terms:
        """The keys of a job some of whose arguments are results to come."""
        names = ", ".join(map(repr, to_come))
        if self.rules.merges:
            raise ConfigError(
                f"{self.name} cannot take the result of another job as {names}: it merges arguments, and this one is "
                "not known when that happens. Enqueue it from within a task."
            )
        try:
            return self._terms((), {**known, **dict.fromkeys(to_come, TO_COME)})
        except NotYetKnown:
            raise ConfigError(
                f"{self.name} cannot take the result of another job as {names}: a key of its limits, rates or unique "
                "jobs is made of that argument, and keys are made when a job is enqueued. Give it a key of other "
                "arguments, or enqueue it from within a task."
            ) from None

    def _terms(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Terms:
        """The keys of one job. Defaults count like what is passed, by place or by name."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        return self.rules.terms(self.name, arguments, lambda chosen: self._encoded_key(bound, chosen))

    def _encoded_key(self, bound: inspect.BoundArguments, chosen: Mapping[str, Any]) -> bytes:
        if any(value is TO_COME for value in chosen.values()):
            raise NotYetKnown
        if any(value is TO_COME for value in bound.arguments.values()):
            named = [name for name in chosen if self._signature.parameters[name].kind not in _UNNAMED]
            args, kwargs = (), {name: bound.arguments[name] for name in named}
        else:
            args, kwargs = bound.args, bound.kwargs
        if self.shapes is not None:
            args, kwargs = self.shapes.dump_arguments(args, kwargs)
        plain = self._signature.bind_partial(*args, **kwargs).arguments
        try:
            return self.app.codec.encode_result({name: plain.get(name) for name in chosen}).body
        except PayloadError as error:
            raise PayloadError(f"These arguments cannot be compared, so give unique a key. {error}") from None

    def check_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        # Whether arguments fit depends on their number and names alone, so each combination is tried once.
        shape = (len(args), *kwargs)
        if shape in self._call_shapes:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() cannot be called like this: {error}") from None
        if len(self._call_shapes) < SHAPES_CAP:
            self._call_shapes.add(shape)

    def merged(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], later: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of one job that stands for several."""
        arguments = self._signature.bind(*args, **kwargs).arguments
        try:
            for its_args, its_kwargs in later:
                arguments = self.rules.merged(arguments, self._signature.bind(*its_args, **its_kwargs).arguments)
            ordered = {name: arguments[name] for name in self._signature.parameters if name in arguments}
            bound = inspect.BoundArguments(self._signature, OrderedDict(ordered))
            return list(bound.args), bound.kwargs
        except TimedOut:
            raise
        except Exception as error:
            raise PayloadError(f"Merging the arguments raised {type(error).__name__}.") from None

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name; those of *args and **kwargs below theirs, so that a telling name is not lost."""
        names = self.parameter_names
        found: dict[str, Any] = dict(zip(names, args, strict=False))
        if len(args) > len(names):
            found[self._names_of_rest.get(_ARGS, "others")] = list(args[len(names) :])
        if (rest := self._names_of_rest.get(_KWARGS)) is None:
            return {**found, **kwargs}
        declared = {name: value for name, value in kwargs.items() if name in self._signature.parameters}
        others = {name: value for name, value in kwargs.items() if name not in declared}
        return {**found, **declared, rest: others} if others else {**found, **declared}

    def upgraded(self, version: int, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of an older payload version as the function takes them now."""
        if version == self.stored.version:
            return args, kwargs
        if self.stored.upgrade is None:
            raise PayloadError(
                f"The job has payload version {version}, and task {self.name!r} has no upgrade function to make it "
                f"{self.stored.version}. Declare one with upgrade=…."
            )
        try:
            new_args, new_kwargs = self.stored.upgrade(version, args, kwargs)
            return list(new_args), dict(new_kwargs)
        except TimedOut:
            raise
        except Exception as error:
            raise PayloadError(f"Upgrading from payload version {version} raised {type(error).__name__}.") from None

    def read(self, opened: OpenedJob, results: Callable[[Any], Mapping[str, Any]] = lambda said: {}) -> Arguments:
        """Arguments as the function takes them now, from what was once enqueued; `results` fetches those of others."""
        args, kwargs, metadata = self.as_sent(opened)
        fetched = results(metadata[RESULTS]) if RESULTS in metadata else {}
        if opened.version != self.stored.version:
            args, kwargs = self.upgraded(opened.version, args, kwargs)
        try:
            self.check_call(args, {**kwargs, **fetched})
        except TypeError as error:
            raise PayloadError(f"{error}. The task has changed since; declare an upgrade, or enqueue anew.") from None
        if self.shapes is not None and not opened.foreign:
            args, kwargs = self.shapes.load_arguments(args, kwargs)
        return Arguments(args, {**kwargs, **fetched} if fetched else kwargs, metadata)

    def reloaded(
        self, id: bytes, name: str, opened: OpenedJob, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> bytes:
        """The payload of a job with other arguments; what was enqueued beside the first ones is kept."""
        metadata = {key: value for key, value in self.as_sent(opened).metadata.items() if key != RESULTS}
        its = as_told(self, metadata[USING]) if USING in metadata else self
        call = BaseTask[..., Any].call(its, *args, **kwargs)
        if self.rules:
            before = self.read(opened)
            if self._terms(tuple(before.args), before.kwargs) != call.terms:
                raise ConfigError(
                    f"These arguments give the job of {self.name} other keys of limits, rates or unique jobs, and it "
                    "has those of the first ones. Cancel it, and enqueue another."
                )
        return call.payload(id, name, metadata, opened.created, None)

    def as_sent(self, opened: OpenedJob) -> Arguments:
        if opened.foreign:
            return unpack_foreign(self, opened.body, self.app.codec, opened.typed)
        return self.app.codec.decode_arguments(opened.body, typed=opened.typed)

    def metadata_of(self, opened: OpenedJob) -> dict[str, Any]:
        """Without its arguments: nothing of the program's own is called for them."""
        body = opened.body[4 + int.from_bytes(opened.body[:4]) :] if opened.foreign else opened.body
        beside = self.app.codec.decode_arguments(body, typed=False)
        return beside.kwargs if opened.foreign else beside.metadata

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]:
        return self.app.enqueue(self.call(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]:
        return await self.app.aenqueue(self.call(*args, **kwargs))

    delay = enqueue
    adelay = aenqueue

    def map(self: TakesOne[T, R], items: Iterable[T]) -> Mapped[R]:
        """A job for each item, which is its only argument; to be enqueued, or to stand where calls stand."""
        from packhorse.flow import Mapped

        return Mapped(cast("BaseTask[[T], R]", self), items, spread=False)

    def starmap(self, items: Iterable[Sequence[Any]]) -> Mapped[R_co]:
        """A job for each item, which is all its arguments in their order."""
        from packhorse.flow import Mapped

        return Mapped(self, items, spread=True)

    def using(self, **changes: Unpack[Using]) -> Self:
        """A copy whose jobs differ. What workers have to know of that travels with each of them."""
        check_names(changes, Using.__annotations__, Declared.__annotations__)
        given: dict[str, Any] = dict(changes)
        of_the_worker = {name: given.pop(name) for name in (*TRAVELLING, *RULES) if name in given}
        options = replace(self.options, **given)
        _check_own(self.app, options)
        copy = varied(self, of_the_worker)
        copy.options = options
        if of_the_worker:
            copy.variation = told(copy)
        return copy

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _context(self) -> Context:
        """For a call in place: that of the job it happens in, else one that nobody watches."""
        around = performing.get()
        if around is not None:
            return around
        options = self.options
        now = self.app.clock.now()
        return in_place(self.name, options.queue_name, options.priority, options.metadata, now)


class Task(BaseTask[P, R_co]):
    """A plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Perform it here and now."""
        if not self.takes_context:
            result: R_co = self.function(*args, **kwargs)
            return result
        with entered(self._context()) as context:
            return self.function(context, *args, **kwargs)  # type: ignore[no-any-return]


class CoroutineTask(BaseTask[P, R_co]):
    """A coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Perform it here and now."""
        if self.takes_context:
            return self._with_context(args, kwargs)
        coroutine: Coroutine[Any, Any, R_co] = self.function(*args, **kwargs)
        return coroutine

    async def _with_context(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R_co:
        with entered(self._context()) as context:
            result: R_co = await self.function(context, *args, **kwargs)
            return result


def make_task(
    app: Packhorse, function: Callable[..., Any], given: Declared, takes_context: bool = False
) -> BaseTask[..., Any]:
    if not callable(function) or isinstance(function, type | BaseTask):
        raise ConfigError(f"@app.task goes on a function, not on {function!r}.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"{function.__qualname__} yields, so calling it would run nothing. Return its values instead."
        )
    declared: dict[str, Any] = dict(given)
    if unknown := set(declared) - set(Declared.__annotations__):
        known = ", ".join(Declared.__annotations__)
        raise ConfigError(f"@app.task has no option {sorted(unknown)[0]!r}. It takes {known}.")
    name = check_name(declared.pop("name", None) or import_path(function), "task name (set one with name=…)")
    local = declared.get("local", False)
    if local:
        _check_local(function, takes_context, declared)
    policy = make_policy(
        declared.pop("retries", None if local else 0),
        declared.pop("backoff", LOCAL_BACKOFF if local else None),
        declared.pop("retry_for", Exception),
        declared.pop("give_up_on", ()),
    )
    performed = _make_performed(app, declared)
    aliases = declared.pop("aliases", ())
    if not isinstance(aliases, tuple):
        raise ConfigError(f"aliases must be a tuple of texts, not {aliases!r}.")
    for alias in aliases:
        check_name(alias, "alias")
    stored = _make_stored(app, declared)
    names = _signature(function, takes_context).parameters
    limits, rates = declared.pop("limit", None), declared.pop("rate", None)
    rules = make_rules(limits, declared.pop("unique", None), names, rates)
    kind = CoroutineTask if inspect.iscoroutinefunction(function) else Task
    options = Options(**declared)
    _check_own(app, options)
    return kind(app, function, name, options, policy, performed, stored, takes_context, aliases, rules)


def _make_performed(app: Packhorse, declared: dict[str, Any]) -> Performed:
    lost = check_lost(declared.pop("on_worker_lost", app.settings.on_worker_lost))
    isolate = check_flag("isolate", declared.pop("isolate", False))
    local = check_flag("local", declared.pop("local", False))
    timeout = check_timeout(declared.pop("timeout", None if local else app.settings.timeout))
    return Performed(timeout=timeout, isolate=isolate, local=local, on_worker_lost=lost)


def _check_local(function: Callable[..., Any], takes_context: bool, declared: Mapping[str, Any]) -> None:
    """Its one job is the worker's own: nobody gives it arguments, or says when and where it runs."""
    if wrong := sorted(set(declared) & NOT_LOCAL):
        raise ConfigError(f"A local task cannot have {wrong[0]!r}: each worker performs it, from its start to its end.")
    try:
        _signature(function, takes_context).bind()
    except TypeError as error:
        raise ConfigError(f"{function.__qualname__} is local, so nobody gives it arguments: {error}.") from None


def _check_own(app: Packhorse, options: Options) -> None:
    for place, callback in options.callbacks.items():
        task = callback.task if isinstance(callback, Call) else cast("BaseTask[..., Any]", callback)
        if task.app is not app:
            raise ConfigError(f"{CALLBACK_NAMES[place]} is a task of another application.")


def _make_stored(app: Packhorse, declared: dict[str, Any]) -> Stored:
    version, upgrade = declared.pop("version", 1), declared.pop("upgrade", None)
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= VERSION_CAP:
        raise ConfigError(f"version must be a whole number from 0 to {VERSION_CAP:,}, not {version!r}.")
    codec = declared.pop("codec", None)
    if isinstance(codec, type):
        raise ConfigError(f"codec takes an instance: codec={codec.__name__}().")
    if codec is not None and not app.settings.signing:
        raise ConfigError("A codec of one's own decodes only signed payloads. Leave signing on.")
    results = check_flag("results", declared.pop("results", True))
    ttl = check_kept("result_ttl", declared.pop("result_ttl", app.settings.result_ttl))
    keep: dict[JobState, int | None] = {}
    for name, state in KEEPS.items():
        given = name in declared
        keep[state] = kept_for(name, declared.pop(name)) if given else default_keep(app.settings, state)
    return Stored(version=version, upgrade=upgrade, results=results, result_ttl=ttl, keep=keep, codec=codec)


def default_keep(settings: Settings, state: JobState) -> int | None:
    """Where a task says nothing: nothing is kept, or the store prunes by the settings."""
    return 0 if getattr(settings, f"keep_{state}") == 0 else None


def _signature(function: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    signature = inspect.signature(function)
    if not takes_context:
        return signature
    first, *others = signature.parameters.values() or [None]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if first is None or first.kind not in positional:
        raise ConfigError(f"{function.__qualname__} takes no first argument for the context.")
    return signature.replace(parameters=[other for other in others if other is not None])


def import_path(function: Callable[..., Any]) -> str:
    """The name under which a worker will know the function, also when its module now runs as a script."""
    module = function.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec is not None else Path(getattr(main, "__file__", "") or "main").stem
    return f"{module}.{function.__qualname__}".replace("<locals>.", "")
