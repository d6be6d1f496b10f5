"""Flows: what waits for what. They are written in one stroke, and each job begins when those before it have ended."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from packhorse.errors import ConfigError, EnqueueError, NotFinished
from packhorse.handle import WAIT_SLICE, JobHandle
from packhorse.hops import hopping
from packhorse.ids import from_text, new_id, to_text
from packhorse.job import JobState, Need, NewJob, Parent, StoredJob
from packhorse.stores.contract import NOT_NEEDED, Act, Change, Selection
from packhorse.task import BaseTask, Call, Reference

if TYPE_CHECKING:
    from packhorse.app import Packhorse

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

PAGE = 1_000
SUCCESS, FAILURE, FINISH = -1, -2, -3  # the places of a batch's callbacks
CALLBACKS = {SUCCESS: Need.SUCCESS, FAILURE: Need.FAILURE, FINISH: Need.END}
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
    """Jobs side by side."""

    nodes: tuple[Node[R_co], ...]

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
            for node in (reference.node,) if reference.node is not None else reference.group.nodes:
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
        return Group(tuple(self.add(call, after=before, on_failure=on_failure) for call in calls))

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
            nodes = after.nodes
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
        app = self._app()
        app.write([node.call for node in self.nodes], self._jobs)
        return FlowHandle(app, self._raw_id)

    aenqueue = hopping(enqueue)

    def _jobs(self) -> list[NewJob]:
        places = {node.id: place for place, node in enumerate(self.nodes)}
        return [
            node.call.new_job(node.id, {name: self._said(it, places) for name, it in node.call.references.items()})
            ._replace(after=node.parents, member=(self._raw_id, place))
            for place, node in enumerate(self.nodes)
        ]  # fmt: skip

    def _said(self, reference: Reference, places: Mapping[bytes, int]) -> list[Any]:
        """What it refers to, as metadata say it: a job, or places of the flow, one by one where others are between."""
        if reference.node is not None:
            return [reference.node.id.hex()]
        found = [places[node.id] for node in reference.group.nodes]
        first = found[0] if found else 0
        if found == list(range(first, first + len(found))):
            return [self._raw_id.hex(), first, len(found)]
        return [self._raw_id.hex(), found]

    def _app(self) -> Packhorse:
        if not self.nodes:
            raise ConfigError("This flow has no jobs.")
        app = self.nodes[0].call.task.app
        if any(node.call.task.app is not app for node in self.nodes):
            raise ConfigError("All jobs of a flow belong to one application.")
        return app


class Batch(Flow):
    """Jobs side by side and what follows from all of them, which may grow while it runs.

    `on_success` begins when all have succeeded, `on_failure` with the first that has not, `on_finish` when all have
    ended. Those that are not needed are cancelled.
    """

    def __init__(
        self,
        calls: Iterable[Call[Any]] = (),
        *,
        on_success: Call[Any] | None = None,
        on_failure: Call[Any] | None = None,
        on_finish: Call[Any] | None = None,
    ) -> None:
        super().__init__()
        given = {SUCCESS: on_success, FAILURE: on_failure, FINISH: on_finish}
        self._callbacks = {place: call for place, call in given.items() if call is not None}
        self.group(calls)

    def _jobs(self) -> list[NewJob]:
        members = super()._jobs()
        callbacks = [
            call.new_job()._replace(
                after=tuple(Parent(job.id, CALLBACKS[place]) for job in members), member=(self._raw_id, place)
            )
            for place, call in self._callbacks.items()
        ]
        return [*members, *callbacks]


class FlowHandle:
    """A flow that was enqueued, here or elsewhere."""

    def __init__(self, app: Packhorse, id: bytes) -> None:
        self._app = app
        self._raw_id = id

    @property
    def id(self) -> str:
        return to_text(self._raw_id)

    def counts(self) -> dict[JobState, int]:
        """How many of its jobs are in which state."""
        counts = self._app.store.flow_counts(self._raw_id)
        return {state: counts[state] for state in JobState if state in counts}

    @property
    def finished(self) -> bool:
        return all(state.finished for state in self.counts())

    def jobs(self) -> Iterator[JobHandle[Any]]:
        """In the order they were added."""
        return (JobHandle(self._app, from_text(job.id)) for job in self._stored())

    def _stored(self) -> Iterator[StoredJob]:
        after = -1
        while page := self._app.store.members(self._raw_id, after, PAGE):
            yield from (job for _, job in page)
            after = page[-1][0]

    def add(self, calls: Iterable[Call[Any]]) -> list[JobHandle[Any]]:
        """More jobs for a batch, as long as one of its callbacks waits; those that do wait for them too."""
        calls = list(calls)
        while True:
            before = self._waiting_callbacks()
            try:
                return self._add(calls, before)
            except EnqueueError:
                if self._waiting_callbacks() == before:  # else one of them was settled meanwhile, and others wait on
                    raise

    def _add(self, calls: list[Call[Any]], before: tuple[Parent, ...]) -> list[JobHandle[Any]]:
        ids = self._app.write(calls, lambda: [self._more(call, before) for call in calls])
        return [JobHandle(self._app, id) for id in ids]

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
        found = self._app.store.members(self._raw_id, min(CALLBACKS) - 1, len(CALLBACKS))
        return {place: job for place, job in found if place in CALLBACKS}

    def wait(self, timeout: float | None = None) -> dict[JobState, int]:
        """Until all its jobs have finished; NotFinished where that takes longer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            counts = self.counts()
            if all(state.finished for state in counts):
                return counts
            left = WAIT_SLICE if deadline is None else min(WAIT_SLICE, deadline - time.monotonic())
            if left <= 0:
                raise NotFinished(self.id, "unfinished", timeout or 0)
            unfinished = [from_text(job.id) for job in self._stored() if not job.finished][-1:]
            self._app.store.wait_jobs(unfinished, left)

    def results(self) -> list[Any]:
        """Of all its jobs, in the order they were added; raises what the first that did not succeed would."""
        return [handle.result(timeout=0) for handle in self.jobs()]

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
        return self._app.control.act(Selection(ids, flow=self._raw_id), Change(act), reason=reason, actor=actor)

    acounts = hopping(counts)
    aadd = hopping(add)
    awaited = hopping(wait)
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


def chain(*steps: Call[Any] | BaseTask[..., Any]) -> Flow:
    """One after the other. A task instead of a call gets the result of the step before it."""
    flow = Flow()
    last: Node[Any] | None = None
    for step in steps:
        if isinstance(step, BaseTask):
            if last is None:
                raise ConfigError("The first step of a chain is a call: task.call(…).")
            step = step.call(last.result)
        last = flow.add(step, after=() if last is None else last)
    return flow


def group(calls: Iterable[Call[Any]]) -> Flow:
    """Side by side."""
    flow = Flow()
    flow.group(calls)
    return flow


def chord(calls: Iterable[Call[R]], then: BaseTask[[list[R]], Any], *, on_failure: OnFailure = "stop") -> Flow:
    """Side by side, and then a task that gets the list of their results."""
    flow = Flow()
    members = flow.group(calls)
    flow.add(then.call(members.results), on_failure=on_failure)
    return flow


def _check_kept(task: BaseTask[..., Any]) -> None:
    if not task.stored.results or task.stored.keep[JobState.SUCCEEDED] == 0:
        raise ConfigError(f"Task {task.name!r} keeps no results, so nothing can come of this one.")


def _need(on_failure: str) -> Need:
    try:
        return {"stop": Need.SUCCESS, "continue": Need.END}[on_failure]
    except KeyError:
        raise ConfigError(f"on_failure must be 'stop' or 'continue', not {on_failure!r}.") from None
