"""Permits and unique keys on SQLite: what may run now. Functions of an open transaction.

A limited job waits in the line of the one key that held it up, or at the door (no key), where it is judged. Whatever
makes room for a key calls the first of its line to the door, so a job waits in a line only while that key is full.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from packhorse.job import NewJob
from packhorse.limits import Claimed, Conflict, Hold, UniqueConflict
from packhorse.stores.contract import LimitView

CONFLICTS = list(Conflict)
AT_THE_DOOR = """
    select rank, order_key, id, n from job indexed by job_waiting
    where state = 2 and waits_on = '' order by rank, order_key, id limit ?
"""
LINE = """
    select rank, order_key, id, n from job indexed by job_waiting
    where state = 2 and waits_on = ? order by rank, order_key, id limit ?
"""
CALL = f"update job set waits_on = '' where n in (select n from ({LINE}))"
HOLDS = "select key, permits, conflict from hold where id = ? order by place"
RIVALS = """
    select job.id, job.n from job indexed by job_waiting join payload on payload.id = job.id
    where state = 2 and waits_on = ? and exists (select 1 from hold where hold.id = job.id and conflict = ?)
    order by created_at, job.id
"""
CANCEL_ONE = """
    update job set state = 7, waits_on = '', finished_at = ?, process = null, epoch = epoch + 1 where n = ?
"""
KEYS = """
    select key from permit where key > ?
    union select key from limit_set where key > ?
    union select waits_on from job indexed by job_waiting where state = 2 and waits_on > ? and instr(waits_on, '/')
    order by 1 limit ?
"""
LOOK_AT_ONCE = 1_000

Standing = tuple[int, int, bytes, int]  # rank, order key, id, n


# Limits.


def write_holds(c: sqlite3.Connection, jobs: Iterable[NewJob]) -> None:
    rows = [
        (job.id, place, hold.key, hold.to, CONFLICTS.index(hold.conflict))
        for job in jobs
        for place, hold in enumerate(job.terms.holds)
    ]
    if rows:
        insert = "insert into hold (id, place, key, permits, conflict) values (?, ?, ?, ?, ?)"
        c.executemany(insert, rows)


def arrived(c: sqlite3.Connection) -> bool:
    """Somebody is at the door."""
    return c.execute(AT_THE_DOOR, (1,)).fetchone() is not None


def admit(c: sqlite3.Connection, now: int, limit: int) -> int:
    """Judge who is at the door, by priority and age, until `limit` are ready; how many became so."""
    return _Door(c, now, limit).open()


class _Door:
    """One round of judging. Rooms are counted once for each key."""

    def __init__(self, c: sqlite3.Connection, now: int, limit: int) -> None:
        self._c = c
        self._now = now
        self._limit = limit
        self._taken: dict[str, set[int]] = {}
        self._set: dict[str, int | None] = {}
        self._caps: dict[str, tuple[int, bytes]] = {}  # for each key the number that counts, and the job it came with
        self._heap: list[Standing] = []
        self._sent_away: set[int] = set()

    def open(self) -> int:
        admitted = 0
        while admitted < self._limit:
            came = self._c.execute(AT_THE_DOOR, (LOOK_AT_ONCE,)).fetchall()
            if not came:
                break
            self._heap = list(came)
            for *_, id, _ in came:
                self._note_caps(id)
            while self._heap and self._heap[0] <= came[-1] and admitted < self._limit:
                admitted += self._judge(heappop(self._heap))
        return admitted

    def _holds(self, id: bytes) -> list[Hold]:
        rows = self._c.execute(HOLDS, (id,)).fetchall()
        return [Hold(key, permits, CONFLICTS[conflict]) for key, permits, conflict in rows]

    def _note_caps(self, id: bytes) -> None:
        """The newest job's number counts for all; where that makes room, somebody may come."""
        for hold in self._holds(id):
            cap, since = self._cap(hold.key)
            if id > since:
                write = "insert or replace into limit_cap (key, permits, since) values (?, ?, ?)"
                self._c.execute(write, (hold.key, hold.to, id))
                self._caps[hold.key] = (hold.to, id)
                for _ in range(cap, hold.to):
                    self._call_next(hold.key)

    def _judge(self, one: Standing) -> bool:
        *_, id, n = one
        holds = self._holds(id)
        full = next((hold for hold in holds if not self._has_room(hold.key)), None)
        if full is None:
            self._admit(id, n, holds)
            return True
        if full.conflict is Conflict.DISCARD:
            cancel(self._c, [(id, n)], f"discarded: {full.key} was taken", self._now)
            return False
        self._c.execute("update job set waits_on = ? where n = ?", (full.key, n))
        self._sent_away.add(n)
        if full.conflict is Conflict.REPLACE:
            *older, _ = self._c.execute(RIVALS, (full.key, CONFLICTS.index(Conflict.REPLACE))).fetchall()
            cancel(self._c, older, "replaced", self._now)
        for hold in holds:
            if hold.key != full.key and self._has_room(hold.key):  # it took up the room of another, who may pass
                self._call_next(hold.key)
        return False

    def _admit(self, id: bytes, n: int, holds: list[Hold]) -> None:
        for hold in holds:
            taken = self._taken[hold.key]
            number = next(number for number in range(1, len(taken) + 2) if number not in taken)
            taken.add(number)
            self._c.execute("insert into permit (key, n, id) values (?, ?, ?)", (hold.key, number, id))
        self._c.execute("update job set state = 3, waits_on = '' where n = ?", (n,))

    def _has_room(self, key: str) -> bool:
        if key not in self._taken:
            self._taken[key] = {n for (n,) in self._c.execute("select n from permit where key = ?", (key,))}
            row = self._c.execute("select permits from limit_set where key = ?", (key,)).fetchone()
            self._set[key] = None if row is None else row[0]
        allowed = self._set[key]
        return len(self._taken[key]) < (self._cap(key)[0] if allowed is None else allowed)

    def _cap(self, key: str) -> tuple[int, bytes]:
        if key not in self._caps:
            row = self._c.execute("select permits, since from limit_cap where key = ?", (key,)).fetchone()
            self._caps[key] = row or (0, b"")
        return self._caps[key]

    def _call_next(self, key: str) -> None:
        """Room only shrinks during a round, so whoever was sent away in it need not be asked again."""
        line = self._c.execute(LINE, (key, len(self._sent_away) + 1))
        one = next((one for one in line if one[3] not in self._sent_away), None)
        if one is not None:
            self._c.execute("update job set waits_on = '' where n = ?", (one[3],))
            heappush(self._heap, one)


def free(c: sqlite3.Connection, ids: Sequence[bytes]) -> None:
    """Take back the permits of these jobs and call those that wait for them."""
    if c.execute("select 1 from permit limit 1").fetchone() is None:
        return
    freed: Counter[str] = Counter()
    for start in range(0, len(ids), 256):
        part = ids[start : start + 256]
        taken_back = f"delete from permit where id in ({', '.join('?' * len(part))}) returning key"
        freed.update(key for (key,) in c.execute(taken_back, part))
    for key, number in freed.items():
        c.execute(CALL, (key, number))


def leave_lines(c: sqlite3.Connection, ids: Sequence[bytes]) -> None:
    """Jobs go that may have been called to the door already: let others come in their stead."""
    for id in ids:
        for key, *_ in c.execute(HOLDS, (id,)).fetchall():
            c.execute(CALL, (key, 1))


def set_limit(c: sqlite3.Connection, key: str, to: int | None) -> None:
    if to is None:
        c.execute("delete from limit_set where key = ?", (key,))
    else:
        c.execute("insert or replace into limit_set (key, permits) values (?, ?)", (key, to))
    c.execute(CALL, (key, -1))


def limits(c: sqlite3.Connection, after: str, limit: int) -> list[LimitView]:
    views = []
    for (key,) in c.execute(KEYS, (after, after, after, limit)).fetchall():
        row = c.execute("select permits from limit_set where key = ?", (key,)).fetchone()
        (holders,) = c.execute("select count(*) from permit where key = ?", (key,)).fetchone()
        (waiting,) = c.execute(f"select count(*) from ({LINE})", (key, -1)).fetchone()
        views.append(LimitView(key, row[0] if row else None, holders, waiting))
    return views


def cancel(c: sqlite3.Connection, jobs: Sequence[tuple[bytes, int]], reason: str, now: int) -> None:
    """End jobs that do not run: `id` and `n` of each."""
    ids = [id for id, _ in jobs]
    c.executemany(CANCEL_ONE, [(now, n) for _, n in jobs])
    c.executemany("insert into ending (id, reason, spent) values (?, ?, 0)", [(id, reason) for id in ids])
    free(c, ids)
    leave_lines(c, ids)
    free_unique(c, ids)


# Unique keys.


def give_way(c: sqlite3.Connection, unique: Claimed, run_at: int | None, now: int) -> bytes | None:
    """The job that holds the key and stays; None where there is none, or it has given way."""
    row = c.execute("select id, lapses_at from unique_key where key = ?", (unique.key,)).fetchone()
    if row is None or (row[1] is not None and row[1] <= now):
        return None
    id: bytes = row[0]
    found = c.execute("select job.n, state from job join payload on payload.n = job.n where payload.id = ?", (id,))
    n, state = found.fetchone() or (0, 0)
    if not 1 <= state <= 3:
        return id
    if unique.conflict is UniqueConflict.REPLACE:
        cancel(c, [(id, n)], "replaced", now)
        return None
    if unique.conflict is UniqueConflict.RESCHEDULE:
        free(c, [id])
        leave_lines(c, [id])
        due = run_at is None or run_at <= now
        c.execute(
            "update job set state = case when ? then case when limited then 2 else 3 end else 1 end, waits_on = '', "
            "order_key = ?, run_at = ?, epoch = epoch + 1 where n = ?",
            (due, now if run_at is None or due else run_at, run_at, n),
        )
    return id


def take_unique(c: sqlite3.Connection, unique: Claimed, id: bytes, now: int) -> None:
    lapses_at = None if unique.lasting is None else now + unique.lasting
    write = "insert or replace into unique_key (key, id, until_start, lapses_at) values (?, ?, ?, ?)"
    c.execute(write, (unique.key, id, unique.until_start, lapses_at))


def free_unique(c: sqlite3.Connection, ids: Sequence[bytes]) -> None:
    if c.execute("select 1 from unique_key limit 1").fetchone() is not None:
        c.executemany("delete from unique_key where id = ? and lapses_at is null", [(id,) for id in ids])


def free_started(c: sqlite3.Connection, process: bytes, nonce: int) -> None:
    """The keys that were held until the start of what was just claimed."""
    if c.execute("select 1 from unique_key where until_start limit 1").fetchone() is not None:
        c.execute(
            "delete from unique_key where until_start and lapses_at is null and id in "
            "(select id from job indexed by job_held where state = 4 and process = ? and nonce = ?)",
            (process, nonce),
        )


# Paused tasks.


def parked(task: str) -> str:
    """The line of a paused task. No limit key looks like this: they all have a slash."""
    return f"task:{task}"


def park(c: sqlite3.Connection, process: bytes, nonce: int, tasks: Sequence[str]) -> int:
    """Jobs of paused tasks among those just claimed go and wait for its end; how many."""
    marks = ", ".join("?" * len(tasks))
    rows = c.execute(
        "select job.n, job.id, task from job indexed by job_held join payload on payload.id = job.id "
        f"where state = 4 and process = ? and nonce = ? and task in ({marks})",
        (process, nonce, *tasks),
    ).fetchall()
    back = """
        update job set state = 2, waits_on = ?, epoch = epoch - 1, process = null, nonce = null, claimed_at = null,
                       started_at = null
        where n = ?
    """
    c.executemany(back, [(parked(task), n) for n, _, task in rows])
    free(c, [id for _, id, _ in rows])
    return len(rows)


def unpark(c: sqlite3.Connection, task: str) -> int:
    """Those of a task that is paused no more go on, by way of the door where they need permits."""
    go_on = "update job set state = case when limited then 2 else 3 end, waits_on = '' where state = 2 and waits_on = ?"
    return c.execute(go_on, (parked(task),)).rowcount
