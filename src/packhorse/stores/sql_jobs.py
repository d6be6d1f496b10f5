"""Operating and looking: what operators do to jobs, and rows as the values of the contract."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from packhorse.clock import to_datetime, to_microseconds
from packhorse.errors import StoreError
from packhorse.ids import to_text
from packhorse.job import JobState, StoredAttempt, StoredJob
from packhorse.stores import sql_admission as admission
from packhorse.stores import sql_gates, sql_unique
from packhorse.stores.contract import FAIR, HURT, ORDERS, RELOAD, RESULT_PRUNED, Act, Change, Selection, kept_reason
from packhorse.stores.sql import Session
from packhorse.stores.sql_due import BY_ID, DUE, LED
from packhorse.stores.sql_exchange import (
    CANCELLED,
    CODE,
    FAILED,
    FORGET_RELOAD,
    READY,
    RUNNING,
    SCHEDULED,
    STATES,
    SUCCEEDED,
    WAITING,
    delete,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MOMENT = to_microseconds(datetime(9999, 12, 31, tzinfo=UTC))
COLUMNS = """
    job.id, task, state, queue, coalesce(-priority, rank), attempts, losses, created_at, run_at, expires_at,
    claimed_at, started_at, finished_at, process, share, tags, reason, failure, result_error, awaits, result_until
"""
VIEW = """
    from payload join job on job.n = payload.n and job.id = payload.id left join ending on ending.id = payload.id
"""
# Who looks at one job finds it as long as it is kept, and not until it is pruned.
STILL_KEPT = "(prune_at is null or prune_at > ?)"
WIDE = f"select {COLUMNS}, body, result {VIEW} where payload.id = ? and {STILL_KEPT}"
MEMBERS = f"""
    select place, {COLUMNS}, body, result
    from member join payload on payload.id = member.id join job on job.n = payload.n
    left join ending on ending.id = payload.id
    where flow = ? and place > ? and {STILL_KEPT} order by place limit ?
"""
MEMBER_SIZES = f"""
    select length(body) + coalesce(length(result), 0)
    from member join payload on payload.id = member.id join job on job.n = payload.n
    left join ending on ending.id = payload.id
    where flow = ? and place > ? and {STILL_KEPT} order by place limit ?
"""
ENTRIES = f"""
    select kind, name, data from entry where id = ?
    and exists (select 1 from job where {BY_ID} and {STILL_KEPT}) order by kind, name
"""
RESEAL = "update payload set body = ? where id = ? and n in (select n from job where state in (6, 7) and n = payload.n)"
CHANGE = f"""
    update job set
        queue     = coalesce(?, cast(queue as text)),
        rank      = case when ageing = 0 then coalesce(?, cast(rank as bigint)) else 0 end,
        priority  = case when ageing = 0 then null else coalesce(?, priority) end,
        order_key = order_key + case when state = 1 then 0 else coalesce(priority - ?, 0) * ageing end,
        epoch     = epoch + 1
    where {BY_ID}
"""
CHANGE_LINE = f"""
    update job set waits_on = '{FAIR}' || queue || '/' || share
    where {BY_ID} and substr(waits_on, 1, {len(FAIR)}) = '{FAIR}'
"""
STOPPED = f"""
    select child from edge
    join member on member.id = child and member.flow = parent
    join ending on ending.id = child
    where parent in ({{rows:bytea}}) and reason = '{HURT}'
"""
DENSE = 5_000
# A partial index serves only a query that repeats its condition to the letter.
INDEXES = (
    ({SUCCEEDED, FAILED, CANCELLED}, "job_to_prune", "state > 4"),
    ({RUNNING}, "job_held", "state = 4"),
    ({READY}, "job_to_claim", "state = 3"),
    ({WAITING}, "job_waiting", "state = 2"),
    ({SCHEDULED}, "job_to_promote", "state = 1"),
)

MOVABLE = {
    Act.CANCEL: {SCHEDULED, WAITING, READY},
    Act.STOP: {SCHEDULED, WAITING, READY},
    Act.RESTART: {FAILED, CANCELLED},
    Act.RELOAD: {SCHEDULED, WAITING, READY, FAILED, CANCELLED},
    Act.RETRY: {FAILED, CANCELLED},
    Act.RUN_NOW: {SCHEDULED},
    Act.DISCARD: {SCHEDULED, WAITING, READY, SUCCEEDED, FAILED, CANCELLED},
    Act.CHANGE: {SCHEDULED, WAITING, READY},
}


def ask(c: Session, running: list[bytes], change: Change, reason: str) -> None:
    """The last order counts, and with it what is to be loaded."""
    text = f"update job set asked = ?, asked_kind = ?, asked_seal = ? where {BY_ID}"
    order = (kept_reason(change.act, reason), ORDERS[change.act], change.seal)
    c.executemany(text, [(*order, id) for id in running])
    c.executemany(FORGET_RELOAD, [(id,) for id in running])
    if change.act is Act.RELOAD:
        keep = "insert into entry (id, kind, name, data) values (?, ?, '', ?)"
        c.executemany(keep, [(id, RELOAD, change.payload) for id in running])


def move(c: Session, ids: list[bytes], change: Change, reason: str, now: int) -> None:
    match change.act:
        case Act.CANCEL | Act.STOP:
            numbers = dict(c.read("select id, n from payload where id in ({rows:bytea})", ids))
            rows = [(id, numbers[id]) for id in ids]
            admission.cancel(c, rows, kept_reason(change.act, reason), now)
        case Act.RETRY | Act.RESTART:
            _retry(c, ids, now)
        case Act.RELOAD:
            c.executemany("update payload set body = ? where id = ?", [(change.payload, id) for id in ids])
            ended = {id for id, state in c.read(sql_gates.KNOWN, ids) if state > SUCCEEDED}
            standing = [(id,) for id in ids if id not in ended]
            c.executemany(f"update job set expires_at = null, epoch = epoch + 1 where {BY_ID}", standing)
            _retry(c, sorted(ended), now)
        case Act.RUN_NOW:
            c.executemany(
                f"update job set {DUE}, order_key = ? - {LED}, epoch = epoch + 1 where {BY_ID}",
                [(now, id) for id in ids],
            )
        case Act.DISCARD:
            unended = [id for id, state in c.read(sql_gates.KNOWN, ids) if state < SUCCEEDED]
            c.executemany(f"update job set state = {CANCELLED} where {BY_ID}", [(id,) for id in ids])
            admission.leave(c, ids)
            sql_unique.free(c, ids)
            sql_gates.settle(c, (), unended, now)
            delete(c, ids)
        case Act.CHANGE:
            rank = None if change.priority is None else -change.priority
            how = (change.queue, rank, change.priority, change.priority)
            c.executemany(CHANGE, [(*how, id) for id in ids])
            if change.queue is not None:
                c.executemany(CHANGE_LINE, [(id,) for id in ids])
            if change.priority is not None:
                admission.stand_anew(c, ids)


def _stopped_callbacks(c: Session, ids: Sequence[bytes]) -> list[bytes]:
    """Of jobs that go round again, those that were cancelled because of how these ended, with theirs."""
    stopped = [id for (id,) in c.read(STOPPED, ids)]
    return [*stopped, *_stopped_callbacks(c, stopped)] if stopped else []


def _retry(c: Session, ids: list[bytes], now: int) -> None:
    ids = [*ids, *_stopped_callbacks(c, ids)]
    one = [(id,) for id in ids]
    c.executemany(
        "insert into attempt (id, epoch, number, process, started_at, ended_at, failure, spent) "
        "select job.id, epoch, attempts + 1 - spent, process, started_at, finished_at, failure, spent "
        f"from job join ending on ending.id = job.id where {BY_ID} and failure is not null",
        one,
    )
    c.executemany("delete from ending where id = ?", one)
    sql_gates.close(c, ids)
    c.executemany(
        f"update job set {DUE}, attempts = 0, losses = 0, strays = 0, suspect = 0, "
        f"order_key = ? - {LED}, epoch = epoch + 1, "
        f"started_at = null, finished_at = null, prune_at = null, expires_at = null where {BY_ID}",
        [(now, id) for id in ids],
    )
    sql_gates.stand_again(c, ids)


def is_dense(c: Session, selection: Selection) -> bool:
    """So many jobs are in these states that walking along the ids beats sorting them anew for every page."""
    if not selection.states or selection.ids is not None:
        return False
    for code in {CODE[state] for state in selection.states}:
        for served, _, condition in INDEXES:
            some = f"select count(*) from (select 1 from job where state = ? and {condition} limit ?) as few"
            if code in served and c.execute(some, (code, DENSE)).fetchone()[0] >= DENSE:
                return True
    return False


def select(
    columns: str,
    selection: Selection,
    after: bytes | None,
    limit: int,
    *,
    dense: bool = False,
    newest_first: bool = False,
    locked: str = "",
) -> tuple[str, list[Any]]:
    """A page of selected jobs in the order of their ids, and its parameters."""
    states = None if selection.states is None else {CODE[state] for state in selection.states}
    view, conditions = VIEW, ["true"]
    parameters: list[Any] = []
    if states and selection.ids is None and not dense:
        for served, index, condition in INDEXES:
            if states <= served:
                view = f"""
                    from job indexed by {index} join payload on payload.id = job.id
                    left join ending on ending.id = job.id
                """
                conditions = [condition]
    for column, allowed in (
        ("payload.id", selection.ids),
        ("state", states),
        ("queue", selection.queues),
        ("task", selection.tasks),
    ):
        if allowed is not None and not allowed:
            conditions.append("false")
        elif allowed is not None:
            within = f"{column} in ({', '.join('?' * len(allowed))})"
            # In an analyzed database SQLite would rather go through all that finished than through those of a state.
            conditions.append(f"unlikely({within})" if column == "state" else within)
            parameters += allowed
    if selection.tags is not None and not selection.tags:
        conditions.append("false")
    elif selection.tags is not None:
        conditions.append(f"payload.id in (select id from tag where name in ({', '.join('?' * len(selection.tags))}))")
        parameters += selection.tags
    for condition, bound in (
        ("created_at >= ?", selection.created_from),
        ("created_at < ?", selection.created_before),
        ("finished_at >= ?", selection.finished_from),
        ("finished_at < ?", selection.finished_before),
    ):
        if bound is not None:
            conditions.append(condition)
            parameters.append(bound)
    if selection.flow is not None:
        conditions.append("payload.id in (select id from member where flow = ?)")
        parameters.append(selection.flow)
    if after is not None:
        conditions.append(f"payload.id {'<' if newest_first else '>'} ?")
        parameters.append(after)
    where, order = " and ".join(conditions), "payload.id desc" if newest_first else "payload.id"
    return f"select {columns} {view} where {where} order by {order} limit ? {locked}", [*parameters, limit]


def narrow(row: Sequence[Any], now: int) -> dict[str, Any]:
    (id, task, state, queue, rank, attempts, losses, created_at, run_at, expires_at, claimed_at, started_at) = row[:12]
    finished_at, process, share, tags, reason, failure, result_error, awaits, result_until = row[12:]
    owned = process is not None and state >= RUNNING
    return {
        "id": to_text(id),
        "task": task,
        "state": state_of(state),
        "queue": queue,
        "priority": -rank if type(rank) is int else 0,
        "attempts": attempts,
        "losses": losses,
        "created_at": moment(created_at) or EPOCH,
        "run_at": moment(run_at),
        "expires_at": moment(expires_at),
        "claimed_at": moment(claimed_at),
        "started_at": moment(started_at),
        "finished_at": moment(finished_at),
        "process": to_text(process) if owned else None,
        "share": share,
        "tags": _tags(tags),
        "reason": reason,
        "failure": envelope(failure),
        "result_error": RESULT_PRUNED if is_over(result_until, now) else result_error,
        "awaits": awaits,
    }


def wide(row: Sequence[Any], now: int, failures: tuple[StoredAttempt, ...] = ()) -> StoredJob:
    result_until, payload, result = row[-3], *map(envelope, row[-2:])
    if is_over(result_until, now):
        result = None
    return StoredJob(**narrow(row[:-2], now), payload=payload or b"", result=result, failures=failures)


def is_over(until: object, now: int) -> bool:
    return isinstance(until, int) and until <= now


def attempt(number: int, process: bytes, began: int | None, ended: int, failure: bytes, spent: int) -> StoredAttempt:
    return StoredAttempt(
        number, to_text(process), moment(began), moment(ended) or EPOCH, envelope(failure) or b"", bool(spent)
    )


def moment(microseconds: int | None) -> datetime | None:
    if type(microseconds) is not int:
        return None
    return to_datetime(min(max(microseconds, 0), LAST_MOMENT))  # whoever can write to the file can write anything


def envelope(value: Any) -> bytes | None:
    """What is no envelope at all is taken for an empty one, which nobody can open."""
    return value if value is None or type(value) is bytes else b""


def state_of(code: int) -> JobState:
    if type(code) is not int or not 1 <= code <= len(STATES):
        shown = code if type(code) is int else type(code).__name__
        raise StoreError(f"A job has the state {shown}, which no Packhorse writes. Somebody else changed the file.")
    return STATES[code - 1]


def _tags(text: str | None) -> tuple[str, ...]:
    try:
        found = json.loads(text) if text else ()
    except (ValueError, TypeError, RecursionError):
        return ()
    return tuple(tag for tag in found if isinstance(tag, str)) if isinstance(found, list) else ()
