"""Flows: what waits for what. They are written in one stroke, and each job begins when those before it have ended."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from packhorse.errors import ConfigError, EnqueueError, NotFinished, StoreError
from packhorse.handle import WAIT_SLICE, JobHandle
from packhorse.hops import hopping
from packhorse.ids import from_text, new_id, to_text
from packhorse.job import JobState, Need, NewJob, Parent, StoredJob
from packhorse.stores.contract import Act, Change, Selection
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
        stored = self.call.task.stored
        if not stored.results or stored.keep[JobState.SUCCEEDED] == 0:
            raise ConfigError(f"Task {self.call.task.name!r} keeps no results, so nothing can come of this one.")
        return Reference(self, None)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, eq=False)
class Group(Generic[R_co]):
    """Jobs side by side."""

    nodes: tuple[Node[R_co], ...]

    @property
    def results(self) -> list[R_co]:
        """Stands for the list of their results, in their order; None is there for one that did not succeed."""
        return Reference(None, self)  # type: ignore[return-value]


class Flow:
    """Make it with `add` and `group`, then `enqueue` it: all jobs or none are written."""

    def __init__(self) -> None:
        self.id = new_id()
        self.nodes: list[Node[Any]] = []
        self._known: set[bytes] = set()

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
        """All of another flow, its first jobs after those given; gives its last ones."""
        before = tuple(Parent(node.id) for node in self._nodes_of(after))
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
        try:
            app.store.insert(self._jobs())
        except StoreError as error:
            raise EnqueueError(f"Nothing was enqueued: {error}", left_out=[node.call for node in self.nodes]) from error
        return FlowHandle(app, self.id)

    aenqueue = hopping(enqueue)

    def _jobs(self) -> list[NewJob]:
        places = {node.id: place for place, node in enumerate(self.nodes)}
        return [
            node.call.new_job(node.id, {name: self._said(it, places) for name, it in node.call.references.items()})
            ._replace(after=node.parents, member=(self.id, place))
            for place, node in enumerate(self.nodes)
        ]  # fmt: skip

    def _said(self, reference: Reference, places: Mapping[bytes, int]) -> list[Any]:
        """What it refers to, as metadata say it: a job, or as many places of the flow as a group has."""
        if reference.node is not None:
            return [reference.node.id.hex()]
        nodes = reference.group.nodes
        return [self.id.hex(), places[nodes[0].id] if nodes else 0, len(nodes)]

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
                after=tuple(Parent(job.id, CALLBACKS[place]) for job in members), member=(self.id, place)
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
        """More jobs for a batch that is not finished; its callbacks wait for them too."""
        callbacks = self._app.store.members(self._raw_id, min(CALLBACKS) - 1, len(CALLBACKS))
        before = tuple(Parent(from_text(job.id), CALLBACKS[place]) for place, job in callbacks if place < 0)
        calls = list(calls)
        jobs = [call.new_job() for call in calls]
        # Places grow with time, whoever adds: the first half of an id is when it was made, and chance.
        jobs = [job._replace(before=before, member=(self._raw_id, int.from_bytes(job.id[:8]))) for job in jobs]
        try:
            return [JobHandle(self._app, id) for id in self._app.store.insert(jobs)]
        except StoreError as error:
            raise EnqueueError(f"Nothing was enqueued: {error}", left_out=calls) from error

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
        return self._act(Act.RETRY, reason, actor)

    def _act(self, act: Act, reason: str, actor: str | None) -> int:
        return self._app.control.act(Selection(flow=self._raw_id), Change(act), reason=reason, actor=actor)

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


def _need(on_failure: str) -> Need:
    try:
        return {"stop": Need.SUCCESS, "continue": Need.END}[on_failure]
    except KeyError:
        raise ConfigError(f"on_failure must be 'stop' or 'continue', not {on_failure!r}.") from None
