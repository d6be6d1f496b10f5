"""What an operator does, on every store."""

from __future__ import annotations

import getpass
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packhorse.clock import length, to_microseconds
from packhorse.errors import ConfigError, JobNotFound, PayloadError
from packhorse.hops import hopping, hopping_each
from packhorse.ids import from_text, to_text
from packhorse.job import JobState, Token, storable
from packhorse.limits import KEY_CAP, PERMITS_CAP, WEIGHT_CAP
from packhorse.queues import check_name
from packhorse.stores.contract import ORDERS, Act, Change, Moved, Order, Paused, Selection, kept_reason
from packhorse.task import Options

if TYPE_CHECKING:
    from packhorse.app import Packhorse

log = logging.getLogger("packhorse.control")

IDS_AT_ONCE = 1_000
TEXT_CAP = 1_000  # characters of a reason or an actor, which are sealed and stored
FORGED_CAP = 10_000
ENDED_BADLY = {JobState.FAILED, JobState.CANCELLED}


class Control:
    def __init__(self, app: Packhorse) -> None:
        self._app = app
        self.forged_orders = 0
        self.forged: dict[Token, None] = {}  # said already; in order, so that the oldest can be forgotten

    def cancel(self, ids: Iterable[str], *, reason: str = "cancelled", actor: str | None = None) -> int:
        return self._on(ids, Change(Act.CANCEL), reason, actor)

    def stop(self, ids: Iterable[str], *, reason: str = "", actor: str | None = None) -> int:
        """As `cancel`, on purpose: such a job is shown as stopped, and `restart` lets it go on."""
        return self._on(ids, Change(Act.STOP), reason, actor)

    def restart(self, ids: Iterable[str], *, reason: str = "", actor: str | None = None) -> int:
        """Let failed, cancelled and stopped jobs run again, as `retry` does, and running ones begin anew.

        The worker of a running one is asked to end the attempt, which does not count; any worker may go on with the
        job, from what its steps and checkpoints have kept.
        """
        return self._on(ids, Change(Act.RESTART), reason, actor)

    def reload(
        self,
        id: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        reason: str = "",
        actor: str | None = None,
    ) -> bool:
        """Other arguments for a job that has not succeeded, which then runs as after `restart`; False where it has.

        They are signed anew, without an expiry. One that waits for its time or its turn waits on.
        """
        raw = known_id(id)
        job = self._app.store.job(raw)
        if job is None:
            raise JobNotFound(to_text(raw))
        if (task := self._app.known_tasks.get(job.task)) is None:
            raise ConfigError(f"There is no task {job.task!r} in application {self._app.name!r} to take arguments.")
        opened = self._app.seals.open_job(raw, job.task, job.payload)
        payload = task.reloaded(raw, job.task, opened, args, kwargs or {})
        return self.act(Selection(ids=[raw]), Change(Act.RELOAD, payload=payload), reason=reason, actor=actor) > 0

    def retry(self, ids: Iterable[str], *, reason: str = "", actor: str | None = None) -> int:
        return self._on(ids, Change(Act.RETRY), reason, actor)

    def run_now(self, ids: Iterable[str], *, reason: str = "", actor: str | None = None) -> int:
        return self._on(ids, Change(Act.RUN_NOW), reason, actor)

    def discard(self, ids: Iterable[str], *, reason: str = "", actor: str | None = None) -> int:
        return self._on(ids, Change(Act.DISCARD), reason, actor)

    def _on(self, ids: Iterable[str], change: Change, reason: str, actor: str | None) -> int:
        if isinstance(ids, str):
            raise ConfigError("Give a list of job ids, even of one: [job.id].")
        raw = [known_id(id) for id in ids]
        parts = (Selection(ids=raw[start : start + IDS_AT_ONCE]) for start in range(0, len(raw), IDS_AT_ONCE))
        return sum(self.act(part, change, reason=reason, actor=actor) for part in parts)

    def change(
        self,
        ids: Iterable[str],
        *,
        queue_name: str | None = None,
        priority: int | None = None,
        reason: str = "",
        actor: str | None = None,
    ) -> int:
        """Another queue or priority for jobs that do not run yet."""
        options = Options(queue_name="default" if queue_name is None else queue_name, priority=priority or 0)
        stored = None if priority is None else self._app.stored_priority(options.priority)
        return self._on(ids, Change(Act.CHANGE, queue_name, stored), reason, actor)

    def act(self, selection: Selection, change: Change, *, reason: str = "", actor: str | None = None) -> int:
        """Any act on any selection; how many jobs moved or will."""
        return sum(moved.jobs + moved.asked for moved in self.batches(selection, change, reason=reason, actor=actor))

    def batches(
        self, selection: Selection, change: Change, *, reason: str = "", actor: str | None = None
    ) -> Iterator[Moved]:
        """The same, telling of each batch as soon as it is done."""
        reason, actor = storable(reason, TEXT_CAP), storable(actor or me(), TEXT_CAP)
        if (kind := ORDERS.get(change.act)) is not None:
            change = replace(change, seal=self._app.seals.order(kind, kept_reason(change.act, reason)))
        selections: Iterable[Selection] = [selection]
        if change.act in (Act.RETRY, Act.RESTART) and (left_out := self._lift_expiry(selection, actor, reason)):
            log.error("%d jobs are not retried: their expiry is signed with a key that is not here", len(left_out))
            states = ENDED_BADLY if change.act is Act.RETRY else ENDED_BADLY | {JobState.RUNNING}
            selections = self._without(self._in(selection, states), left_out)
        for part in selections:
            moved = self._app.store.move(part, change, actor, reason)
            yield moved
            while moved.after is not None:
                moved = self._app.store.move(part, change, actor, reason, after=moved.after)
                yield moved

    def _lift_expiry(self, selection: Selection, actor: str, reason: str) -> set[bytes]:
        """A job retried by hand may run although it has expired, and its expiry is signed: so sign it anew.

        Those that could not be are given back. Retried, they would end as expired once more, and as the store forgets
        the expiry of what it retries, nobody would sign them anew another time.
        """
        left_out = set()
        for job in self._app.inspection.stored_jobs(self._in(selection, ENDED_BADLY), page=500):
            if job.expires_at is None:
                continue
            raw = from_text(job.id)
            whole = self._app.store.job(raw)
            try:
                if whole is not None:
                    payload = self._app.seals.without_expiry(raw, job.task, whole.payload)
                    self._app.store.reseal(raw, payload, actor, reason)
            except PayloadError:
                left_out.add(raw)
        return left_out

    def _in(self, selection: Selection, states: set[JobState]) -> Selection:
        return replace(selection, states=states if selection.states is None else states & set(selection.states))

    def _without(self, selection: Selection, left_out: set[bytes]) -> Iterator[Selection]:
        jobs = self._app.inspection.stored_jobs(selection, page=500)
        ids = (raw for job in jobs if (raw := from_text(job.id)) not in left_out)
        while part := list(islice(ids, IDS_AT_ONCE)):
            yield replace(selection, ids=part)

    def trusted(self, orders: Iterable[Order]) -> list[Order]:
        """Those that this application gave; others are ignored, said once and counted."""
        good = []
        for order in orders:
            if self._app.seals.is_order(order.kind, order.reason, order.seal):
                good.append(order)
            elif order.token not in self.forged:
                self.forged[order.token] = None
                self.forged_orders += 1
                id = to_text(order.token.id) if type(order.token.id) is bytes else "without an id"
                log.error("an order to %s job %s was not ours and is ignored", order.kind, id)
        while len(self.forged) > FORGED_CAP:
            del self.forged[next(iter(self.forged))]
        return good

    def pause(
        self,
        queue: str,
        *,
        until: datetime | timedelta | float | None = None,
        reason: str = "",
        actor: str | None = None,
    ) -> None:
        """No job of the queue is claimed until it is resumed, or until that time."""
        self._pause(check_name(queue, "queue name"), until, reason, actor, Paused.QUEUE)

    def _pause(
        self,
        name: str,
        until: datetime | timedelta | float | None,
        reason: str,
        actor: str | None,
        kind: Paused,
    ) -> None:
        reason, actor = storable(reason, TEXT_CAP), storable(actor or me(), TEXT_CAP)
        if isinstance(until, datetime):
            if until.tzinfo is None:
                raise ConfigError(f"until={until} has no time zone. Use an aware datetime, or a timedelta.")
            return self._app.store.pause(name, to_microseconds(until), actor, reason, kind=kind)
        lasting = None if until is None else length(until)
        return self._app.store.pause(name, None, actor, reason, length=lasting, kind=kind)

    def pause_task(
        self,
        task: str,
        *,
        until: datetime | timedelta | float | None = None,
        reason: str = "",
        actor: str | None = None,
    ) -> None:
        """No job of the task begins until it is resumed, or until that time; they wait."""
        self._pause(check_name(task, "task name"), until, reason, actor, Paused.TASK)

    def resume_task(self, task: str, *, reason: str = "", actor: str | None = None) -> bool:
        reason, actor = storable(reason, TEXT_CAP), storable(actor or me(), TEXT_CAP)
        return self._app.store.resume(check_name(task, "task name"), actor, reason, kind=Paused.TASK)

    def set_limit(self, key: str, to: int | None, *, reason: str = "", actor: str | None = None) -> None:
        """From now on admit `to` jobs of a limit key ("group/value"), whatever the task says; None takes that back."""
        if to is not None and (isinstance(to, bool) or not isinstance(to, int) or not 0 <= to <= PERMITS_CAP):
            raise ConfigError(f"to must be a whole number from 0 to {PERMITS_CAP:,}, or None, not {to!r}.")
        check_limit_key(key)
        self._app.store.set_limit(key, to, storable(actor or me(), TEXT_CAP), storable(reason, TEXT_CAP))

    def set_weight(self, share: str, weight: int | None, *, reason: str = "", actor: str | None = None) -> None:
        """From now on the share gets so many turns where others get one; None takes that back."""
        check_name(share, "share")
        if weight is not None and (
            isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= WEIGHT_CAP
        ):
            raise ConfigError(f"weight must be a whole number from 1 to {WEIGHT_CAP:,}, or None, not {weight!r}.")
        self._app.store.set_weight(share, weight, storable(actor or me(), TEXT_CAP), storable(reason, TEXT_CAP))

    def resume(self, queue: str, *, reason: str = "", actor: str | None = None) -> bool:
        reason, actor = storable(reason, TEXT_CAP), storable(actor or me(), TEXT_CAP)
        return self._app.store.resume(check_name(queue, "queue name"), actor, reason)

    def migrate(self) -> list[str]:
        """Bring the store's schema up to date; names of the steps taken."""
        return self._app.store.migrate()

    def backup(
        self,
        target: str | Path,
        *,
        replace: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Path]:
        """Copy a SQLite store to a file while others use it, with its key beside it; the files that were made.

        `progress` is called with the pages that are done and how many there are.
        """
        return self._app.store.backup(Path(target), replace=replace, progress=progress)

    # The same for coroutines.

    acancel = hopping(cancel)
    astop = hopping(stop)
    arestart = hopping(restart)
    areload = hopping(reload)
    aretry = hopping(retry)
    arun_now = hopping(run_now)
    adiscard = hopping(discard)
    achange = hopping(change)
    aact = hopping(act)
    apause = hopping(pause)
    apause_task = hopping(pause_task)
    aresume = hopping(resume)
    aresume_task = hopping(resume_task)
    aset_limit = hopping(set_limit)
    aset_weight = hopping(set_weight)
    amigrate = hopping(migrate)
    abackup = hopping(backup)

    def abatches(
        self, selection: Selection, change: Change, *, reason: str = "", actor: str | None = None
    ) -> AsyncIterator[Moved]:
        return hopping_each([moved] for moved in self.batches(selection, change, reason=reason, actor=actor))


def known_id(id: str | uuid.UUID) -> bytes:
    """The bytes of a job id; JobNotFound where the text cannot be one."""
    try:
        return from_text(id)
    except (ValueError, TypeError, AttributeError):
        raise JobNotFound(str(id)) from None


def check_limit_key(key: str) -> str:
    """As jobs have it: the task or group, a slash, and a value."""
    group, slash, _ = key.partition("/")
    if not slash or len(key) > KEY_CAP or not key.isprintable():
        hint = f"Did you mean {key + '/'!r}? " if not slash and key.isprintable() else ""
        raise ConfigError(
            f"{key!r} cannot be a limit key. {hint}It is the name of a task or group, a slash and a value, at most "
            f"{KEY_CAP} letters; `packhorse limits list` shows those in use."
        )
    check_name(group, "group")
    return key


def me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid need not have a name
        return "unknown"
