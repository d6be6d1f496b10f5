"""Flows: what waits for what. They are written in one stroke, and each job begins when those before it have ended."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from packhorse.errors import ConfigError, EnqueueError, NotFinished
from packhorse.handle import JobHandle
from packhorse.hops import hopping, in_thread
from packhorse.ids import from_text, new_id, to_text
from packhorse.job import JobState, Need, NewJob, Parent, StoredJob
from packhorse.stores.contract import NOT_NEEDED, Act, Change, Selection
from packhorse.task import (
    CALLBACK_NAMES,
    CALLBACKS,
    FAILURE,
    FINISH,
    SUCCESS,
    BaseTask,
    Call,
    Callback,
    Reference,
    TakesOne,
    TakesOneLater,
    check_callback,
    made_callback,
)
from packhorse.waiting import await_jobs, wait_jobs

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.stores import Store

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

PAGE = 1_000
OnFailure = Literal["stop", "continue"]


@dataclass(frozen=True, slots=True, eq=False)
class Node(Generic[R_co]):
    """A job of a flow that is being made."""

    flow: Flow
    call: Call[R_co]
    parents: tuple[Parent, ...]
    id: bytes = field(default_factory=new_id)

    @property
    def result(self) -> R_co:
        """Stands for its result among the arguments of a later job, which gets it when it begins."""
        _check_kept(self.call.task)
        return Reference(self, None)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, eq=False)
class Group(Generic[R_co]):
    """Jobs side by side. What comes after an empty one comes after those that it would have come after itself."""

    nodes: tuple[Node[R_co], ...]
    after: tuple[Node[Any], ...] = ()

    @property
    def lasts(self) -> tuple[Node[Any], ...]:
        """Those to wait for."""
        return self.nodes or self.after

    @property
    def results(self) -> list[R_co]:
        """Stands for the list of their results, in their order; None is there for one that did not succeed."""
        for node in self.nodes:
            _check_kept(node.call.task)
        return Reference(None, self)  # type: ignore[return-value]


class Flow:
    """Make it with `add` and `group`, then `enqueue` it: all jobs or none are written."""

    def __init__(self) -> None:
        self._raw_id = new_id()
        self.nodes: list[Node[Any]] = []
        self._known: set[bytes] = set()

    @property
    def id(self) -> str:
        """The one its handle will have, so that a job of it can be told."""
        return to_text(self._raw_id)

    def add(
        self,
        call: Call[R],
        *,
        after: Node[Any] | Group[Any] | Sequence[Node[Any] | Group[Any]] = (),
        on_failure: OnFailure = "stop",
    ) -> Node[R]:
        """One job, after those given and those whose results are among its arguments.

        If one of them does not succeed, this one is cancelled, or with `on_failure="continue"` begins all the same.
        """
        if not isinstance(call, Call):
            raise ConfigError(f"A flow is made of calls: task.call(…), not {type(call).__name__}.")
        need = _need(on_failure)
        parents = {node.id: Parent(node.id, need) for node in self._nodes_of(after)}
        for reference in call.references.values():
            for node in (reference.node,) if reference.node is not None else reference.group.lasts:
                self._own(node)
                parents.setdefault(node.id, Parent(node.id, need))
        return self._take(Node(self, call, tuple(parents.values())))

    def _take(self, node: Node[R]) -> Node[R]:
        self.nodes.append(node)
        self._known.add(node.id)
        return node

    def group(
        self,
        calls: Iterable[Call[R]],
        *,
        after: Node[Any] | Group[Any] | Sequence[Node[Any] | Group[Any]] = (),
        on_failure: OnFailure = "stop",
    ) -> Group[R]:
        """Jobs side by side."""
        before = self._nodes_of(after)
        return Group(tuple(self.add(call, after=before, on_failure=on_failure) for call in calls), before)

    def include(
        self, other: Flow, *, after: Node[Any] | Group[Any] | Sequence[Node[Any] | Group[Any]] = ()
    ) -> Group[Any]:
        """All of another flow, its first jobs after those given; gives its last ones, or those given if it has none."""
        comes_after = self._nodes_of(after)
        if not other.nodes:
            return Group(comes_after)
        if any(node.id in self._known for node in other.nodes):
            raise ConfigError("A flow can be included only once, and not in itself.")
        before = tuple(Parent(node.id) for node in comes_after)
        firsts = {node.id for node in other.nodes if not node.parents}
        has_children = {parent.id for node in other.nodes for parent in node.parents}
        for node in other.nodes:
            self._take(Node(self, node.call, before if node.id in firsts else node.parents, node.id))
        return Group(tuple(node for node in self.nodes[-len(other.nodes) :] if node.id not in has_children))

    def _nodes_of(self, after: Any) -> tuple[Node[Any], ...]:
        if isinstance(after, Group):
            nodes = after.lasts
        elif isinstance(after, Node):
            nodes = (after,)
        else:
            nodes = tuple(node for each in after for node in self._nodes_of(each))
        for node in nodes:
            self._own(node)
        return nodes

    def _own(self, node: Node[Any]) -> None:
        if not isinstance(node, Node) or node.id not in self._known:
            raise ConfigError("A job can come only after jobs of its flow. Add that one first, or include its flow.")

    # Enqueueing.

    def enqueue(self) -> FlowHandle:
        """One of no jobs is not written: it has ended, with no results."""
        calls = self._calls()
        apps = {call.task.app for call in calls}
        if len(apps) > 1:
            raise ConfigError("All jobs of a flow belong to one application.")
        for app in apps:
            app.write(calls, self._jobs)
        return FlowHandle(next(iter(apps), None), self._raw_id)

    aenqueue = hopping(enqueue)

    def _calls(self) -> list[Call[Any]]:
        return [node.call for node in self.nodes]

    def _jobs(self) -> list[NewJob]:
        ids = self._dealt()
        places = {node.id: place for place, node in enumerate(self.nodes)}
        jobs = []
        for place, node in enumerate(self.nodes):
            results = {name: self._said(it, places, ids) for name, it in node.call.references.items()}
            after = tuple(Parent(ids[parent.id], parent.need) for parent in node.parents)
            job = node.call.new_job(ids[node.id], results)
            jobs.append(job._replace(after=after, member=(self._raw_id, place)))
        return sorted(jobs, key=lambda job: job.id)

    def _dealt(self) -> dict[bytes, bytes]:
        """The ids again, in the order in which jobs can run: those that run together lie together in the store."""
        depth: dict[bytes, int] = {}
        for node in self.nodes:
            depth[node.id] = 1 + max((depth[parent.id] for parent in node.parents), default=0)
        order = sorted(depth, key=depth.__getitem__)
        return dict(zip(order, sorted(depth), strict=True))

    def _said(self, reference: Reference, places: Mapping[bytes, int], ids: Mapping[bytes, bytes]) -> list[Any]:
        """What it refers to, as metadata say it: a job, or places of the flow, one by one where others are between."""
        if reference.node is not None:
            return [ids[reference.node.id].hex()]
        found = [places[node.id] for node in reference.group.nodes]
        first = found[0] if found else 0
        if found == list(range(first, first + len(found))):
            return [self._raw_id.hex(), first, len(found)]
        return [self._raw_id.hex(), found]


class Batch(Flow):
    """Jobs side by side and what follows from all of them, which may grow while it runs.

    `on_success` begins when all have succeeded, `on_failure` with the first that has not, `on_finish` when all have
    ended; where there are none, the first and the last begin at once. Those that are not needed are cancelled. Each is
    a call, or a task that gets the id of the batch.
    """

    def __init__(
        self,
        calls: Iterable[Call[Any]] = (),
        *,
        on_success: Callback | None = None,
        on_failure: Callback | None = None,
        on_finish: Callback | None = None,
    ) -> None:
        super().__init__()
        self._callbacks: dict[int, Call[Any]] = {}
        for place, callback in {SUCCESS: on_success, FAILURE: on_failure, FINISH: on_finish}.items():
            if callback is not None:
                check_callback(CALLBACK_NAMES[place], callback)
                self._callbacks[place] = made_callback(callback, self._raw_id)
        self.group(calls)

    def _wanted(self) -> dict[int, Call[Any]]:
        """Of no jobs none can fail."""
        return {place: call for place, call in self._callbacks.items() if self.nodes or place != FAILURE}

    def _calls(self) -> list[Call[Any]]:
        return [*super()._calls(), *self._wanted().values()]

    def _jobs(self) -> list[NewJob]:
        members = super()._jobs()
        callbacks = [
            call.new_job()._replace(
                after=tuple(Parent(job.id, CALLBACKS[place]) for job in members), member=(self._raw_id, place)
            )
            for place, call in self._wanted().items()
        ]
        return [*members, *callbacks]


class Mapped(Generic[R_co]):
    """A job of one task for each of many items: what `task.map(...)` makes.

    It stands wherever calls do, or is enqueued by itself. Calls are made as they are needed, so that many take no room.
    """

    def __init__(self, task: BaseTask[..., R_co], items: Iterable[Any], *, spread: bool) -> None:
        iter(items)  # an error here is better than one later
        self._task = task
        self._items = items
        self._spread = spread

    def __iter__(self) -> Iterator[Call[R_co]]:
        call = self._task.call
        return (call(*item) for item in self._items) if self._spread else (call(item) for item in self._items)

    def enqueue(self) -> FlowHandle:
        """One write per `batch_size`; each batch is all or none, and EnqueueError says what was written."""
        flow = new_id()
        self._task.app.write_many(self, flow)
        return FlowHandle(self._task.app, flow)

    aenqueue = hopping(enqueue)

    def __repr__(self) -> str:
        return f"<Mapped {self._task.name}>"


class FlowHandle:
    """A flow that was enqueued, here or elsewhere; without an application it is one of no jobs."""

    def __init__(self, app: Packhorse | None, id: bytes) -> None:
        self._app = app
        self._raw_id = id

    @property
    def id(self) -> str:
        return to_text(self._raw_id)

    def counts(self) -> dict[JobState, int]:
        """How many of its jobs are in which state."""
        counts = {} if self._app is None else self._app.store.flow_counts(self._raw_id)
        return {state: counts[state] for state in JobState if state in counts}

    @property
    def finished(self) -> bool:
        return all(state.finished for state in self.counts())

    def jobs(self) -> Iterator[JobHandle[Any]]:
        """In the order they were added."""
        return (handle for handle, _ in self._stored())

    def _stored(self) -> Iterator[tuple[JobHandle[Any], StoredJob]]:
        if self._app is None:
            return
        members = members_of(self._app.store, self._raw_id)
        yield from ((JobHandle(self._app, from_text(job.id)), job) for _, job in members)

    def add(self, calls: Iterable[Call[Any]]) -> list[JobHandle[Any]]:
        """More jobs for a batch, as long as one of its callbacks waits; those that do wait for them too."""
        calls = list(calls)
        if not calls:
            return []
        self._app = app = self._app or calls[0].task.app
        while True:
            before = self._waiting_callbacks()
            try:
                return self._add(app, calls, before)
            except EnqueueError:
                if self._waiting_callbacks() == before:  # else one of them was settled meanwhile, and others wait on
                    raise

    def _add(self, app: Packhorse, calls: list[Call[Any]], before: tuple[Parent, ...]) -> list[JobHandle[Any]]:
        ids = app.write(calls, lambda: [self._more(call, before) for call in calls])
        return [JobHandle(app, id) for id in ids]

    def _more(self, call: Call[Any], before: tuple[Parent, ...]) -> NewJob:
        job = call.new_job()
        # Places grow with time, whoever adds: the first half of an id is when it was made, and chance.
        return job._replace(before=before, member=(self._raw_id, int.from_bytes(job.id[:8])))

    def _waiting_callbacks(self) -> tuple[Parent, ...]:
        """Those that can still wait for more; all of them where none can, so that the store says why not."""
        callbacks = self._callbacks()
        waiting = {place: job for place, job in callbacks.items() if job.state is JobState.WAITING} or callbacks
        return tuple(Parent(from_text(job.id), CALLBACKS[place]) for place, job in waiting.items())

    def _callbacks(self) -> dict[int, StoredJob]:
        if self._app is None:
            return {}
        found = members_of(self._app.store, self._raw_id, min(CALLBACKS) - 1, len(CALLBACKS))
        return {place: job for place, job in islice(found, len(CALLBACKS)) if place in CALLBACKS}

    def wait(self, timeout: float | None = None) -> dict[JobState, int]:
        """Until all its jobs have finished; NotFinished where that takes longer."""
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while not self.finished:  # it may have grown, or some went round again
            after: int | None = -1
            while after is not None:
                page, after = self._unfinished(after)
                if wait_jobs(page, deadline - time.monotonic())[1]:
                    raise NotFinished(self.id, "unfinished", timeout or 0)
        return self.counts()

    async def awaited(self, timeout: float | None = None) -> dict[JobState, int]:
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while not await in_thread(lambda: self.finished):
            after: int | None = -1
            while after is not None:
                page, after = await in_thread(self._unfinished, after)
                if (await await_jobs(page, deadline - time.monotonic()))[1]:
                    raise NotFinished(self.id, "unfinished", timeout or 0)
        return await in_thread(self.counts)

    def _unfinished(self, after: int) -> tuple[list[JobHandle[Any]], int | None]:
        """Of the next page of its jobs those that have not finished, and where it ends; None behind the last page."""
        if self._app is None:
            return [], None
        page = self._app.store.members(self._raw_id, after, PAGE)
        handles = [JobHandle[Any](self._app, from_text(job.id)) for _, job in page if not job.finished]
        return handles, page[-1][0] if page else None

    def results(self) -> list[Any]:
        """Of all its jobs, in the order they were added; raises what the first that did not succeed would."""
        # Those that did not succeed are looked at once more, with all that is known of them.
        return [
            handle._outcome(job) if job.state is JobState.SUCCEEDED else handle.result(timeout=0)
            for handle, job in self._stored()
        ]

    def cancel(self, *, reason: str = "cancelled", actor: str | None = None) -> int:
        """All that has not finished."""
        return self._act(Act.CANCEL, reason, actor)

    def retry(self, *, reason: str = "", actor: str | None = None) -> int:
        """What failed or was cancelled goes round again, in its order; what succeeded does not."""
        callbacks = self._callbacks().values()
        needed = [from_text(job.id) for job in callbacks if job.reason != NOT_NEEDED]
        # A callback for failures that was not needed is still not: all went well, but for other callbacks perhaps.
        return self._act(Act.RETRY, reason, actor, needed if len(needed) < len(callbacks) else None)

    def _act(self, act: Act, reason: str, actor: str | None, ids: list[bytes] | None = None) -> int:
        if self._app is None:
            return 0
        return self._app.control.act(Selection(ids, flow=self._raw_id), Change(act), reason=reason, actor=actor)

    acounts = hopping(counts)
    aadd = hopping(add)
    aresults = hopping(results)
    acancel = hopping(cancel)
    aretry = hopping(retry)

    def __repr__(self) -> str:
        return f"<FlowHandle {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlowHandle) and other._raw_id == self._raw_id

    def __hash__(self) -> int:
        return hash(self._raw_id)


# Spelled shorter.


def chain(*steps: Call[Any] | Mapped[Any] | BaseTask[..., Any] | TakesOneLater[Any, Any]) -> Flow:
    """One after the other. A task instead of a call gets the result of the step before it, or the list of a map's."""
    flow = Flow()
    last: Node[Any] | Group[Any] | None = None
    for step in steps:
        after = () if last is None else last
        if isinstance(step, Mapped):
            last = flow.group(step, after=after)
            continue
        if not isinstance(step, Call):
            if last is None:
                raise ConfigError("The first step of a chain is a call: task.call(…).")
            step = _called(step, last.results if isinstance(last, Group) else last.result)
        last = flow.add(step, after=after)
    return flow


def group(calls: Iterable[Call[Any]]) -> Flow:
    """Side by side."""
    flow = Flow()
    flow.group(calls)
    return flow


def chord(
    calls: Iterable[Call[R]],
    then: TakesOne[list[R], Any] | TakesOneLater[list[R], Any],
    *,
    on_failure: OnFailure = "stop",
) -> Flow:
    """Side by side, and then a task that gets the list of their results."""
    flow = Flow()
    members = flow.group(calls)
    flow.add(_called(then, members.results), on_failure=on_failure)
    return flow


def members_of(store: Store, flow: bytes, after: int = -1, page: int = PAGE) -> Iterator[tuple[int, StoredJob]]:
    """All of a flow behind a place, page by page: what is large comes in smaller ones."""
    while found := store.members(flow, after, page):
        yield from found
        after = found[-1][0]


def _called(task: Any, argument: Any) -> Call[Any]:
    make = task.call if isinstance(task, BaseTask) else getattr(task, "later", None)
    if make is None:
        raise ConfigError(f"A flow is made of calls and tasks, not of {type(task).__name__}.")
    call: Call[Any] = make(argument)
    return call


def _check_kept(task: BaseTask[..., Any]) -> None:
    if not task.stored.results or task.stored.keep[JobState.SUCCEEDED] == 0:
        raise ConfigError(f"Task {task.name!r} keeps no results, so nothing can come of this one.")


def _need(on_failure: str) -> Need:
    try:
        return {"stop": Need.SUCCESS, "continue": Need.END}[on_failure]
    except KeyError:
        raise ConfigError(f"on_failure must be 'stop' or 'continue', not {on_failure!r}.") from None
