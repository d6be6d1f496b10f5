"""Permits and tokens: what may run now. Functions of an open transaction.

A limited job waits in the line of the one key that held it up, or at the door (no line), where it is judged. Whatever
makes room for a key calls the first of its line to the door, so a job waits in a line only while that key is full. A
rate knows when its next token is there, and calls then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count, takewhile
from typing import NamedTuple

from packhorse.job import NewJob, Token
from packhorse.limits import CATCH_UP, MERGES_CAP, Bucket, Conflict, Hold, Pace, UniqueConflict
from packhorse.queues import Selected
from packhorse.stores import sql_gates
from packhorse.stores.contract import FAIR, GATE, LIMIT, MERGED, LimitView, RateView, limit_line, parked_line, rate_line
from packhorse.stores.sql import Session, Subject
from packhorse.stores.sql_due import DUE, LED, end
from packhorse.stores.sql_turns import Turns, forget_turns

CONFLICTS = list(Conflict)
ARRIVED = """
    select (select waits_on from job indexed by job_waiting where state = 2 order by waits_on limit 1),
           exists (select 1 from rate where wake_at <= ?)
"""
LINE = """
    select rank, order_key, id, n from job indexed by job_waiting
    where state = 2 and waits_on = ? and (rank, order_key, id) > (?, ?, ?) order by rank, order_key, id limit ?
"""
CALL = """
    update job set waits_on = '' where n in (
        select n from job indexed by job_waiting where state = 2 and waits_on = ? order by rank, order_key, id limit ?
    )
"""
NEXT_OF_LINE = """
    select n, id, limited from job indexed by job_waiting where state = 2 and waits_on = ?
    order by rank, order_key, id limit ?
"""
_SIZE = "(select length(body) from payload where payload.id = job.id)"
NEXT_WITH_SIZE = NEXT_OF_LINE.replace("limited", f"limited, queue, {_SIZE}")
HEADS = """
    select job.id, permit.key, permit.n from job indexed by job_held join permit on permit.id = job.id
    where state = 4 and process = ? and nonce = ? and limited = 1
"""
JOIN_RUN = """
    update job set state = 4, waits_on = '', epoch = epoch + 1, process = ?, nonce = ?, claimed_at = ?,
                   started_at = null
    where n in ({rows:bigint})
"""
LIMITED = "select 1 from hold where id in ({rows:bytea})"
FREE = "delete from permit where id in ({rows:bytea}) returning key, n, id, run"
FREE_RUNS = "delete from permit where run = 1 and id in ({rows:bytea}) returning key, n, id, run"
# The rest of a run is what else was claimed by the same exchange for the same key and has no permit of its own.
LAST_OF_RUN = """
    select job.id from job indexed by job_held join hold on hold.id = job.id
    where state = 4 and process = ? and nonce = ? and hold.key = ? and period is null
      and not exists (select 1 from permit where permit.id = job.id and permit.key = hold.key)
    order by rank desc, order_key desc, job.id desc limit 1
"""
WITHOUT_PERMIT = """(
    exists (select 1 from hold where hold.id = job.id and period is null)
    and not exists (select 1 from permit where permit.id = job.id and run = 0)
)"""
ADMIT = "update job set state = 3, waits_on = '' where n in ({rows:bigint})"
INSERT_PERMIT = "insert into permit (key, n, id) {rows:text bigint bytea}"
KEY = """
    select (select count(*) from permit where key = ?), (select permits from limit_set where key = ?),
           coalesce((select permits from limit_cap where key = ?), 0),
           coalesce((select since from limit_cap where key = ?), x'')
"""
STANDS = "select 1 from job indexed by job_waiting where state = 2 and waits_on = ? limit 1"
STANDING = "select count(*) from job indexed by job_waiting where state = 2 and waits_on = ?"
HOLDS = "select id, key, number, conflict, period, burst from hold where id in ({rows:bytea}) order by id, place"
RIVALS = """
    select job.id, job.n from job indexed by job_waiting join payload on payload.id = job.id
    where state = 2 and waits_on = ? and exists (select 1 from hold where hold.id = job.id and conflict = ?)
    order by created_at, job.id
"""
RATE = "select tokens, period, burst, brought_by, since, taken, wake_at from rate where key = ?"
SAVE_RATE = """
    insert into rate (key, tokens, period, burst, brought_by, since, taken, wake_at) values (?, ?, ?, ?, ?, ?, ?, ?)
    on conflict (key) do update set
        tokens = excluded.tokens, period = excluded.period, burst = excluded.burst, brought_by = excluded.brought_by,
        since = excluded.since, taken = excluded.taken, wake_at = excluded.wake_at
"""
BRING = """
    insert into limit_cap (key, permits, since) values (?, ?, ?)
    on conflict (key) do update set permits = excluded.permits, since = excluded.since
"""
KEYS = f"""
    select key from permit where key > ?
    union select key from limit_set where key > ?
    union select substr(waits_on, {len(LIMIT) + 1}) from job indexed by job_waiting
          where state = 2 and waits_on > '{LIMIT}' || ? and waits_on < '{LIMIT[:-1]};'
    order by 1 limit ?
"""
ASKED_FOR = "select key from job indexed by job_waiting join hold on hold.id = job.id where state = 2 and hold.period"
UNUSED_CAPS = f"delete from limit_cap where key not in (select key from permit) and key not in ({ASKED_FOR} is null)"
UNUSED_RATES = f"""
    delete from rate
    where since + period <= ? and key not in (select key from ticket) and key not in ({ASKED_FOR} is not null)
"""
INSERT_HOLD = """
    insert into hold (id, place, key, number, conflict, period, burst)
    {rows:bytea bigint text bigint bigint bigint bigint}
"""
SET_LIMIT = """
    insert into limit_set (key, permits) values (?, ?) on conflict (key) do update set permits = excluded.permits
"""
EVERYBODY = 1 << 60
FEW = 10_000  # waiting jobs to look through
LOOK_AT_ONCE = 1_000
JUDGE_AT_ONCE = 4_000  # lines behind two limits may have to move from one to the other
FIRST = (-1_000, 0, b"")  # before every job of a line
NOBODY_KNOWS = 1 << 62  # when a rate calls next whose tickets are all out

Standing = tuple[int, int, bytes, int]  # rank, order key, id, n
Runs = dict[bytes, tuple[int, str]]  # for each job of a run its place and the run's name
Freed = dict[str, list[int]]  # the numbers of permits that were given back, by their line


class Needs(NamedTuple):
    holds: list[Hold]
    paces: list[Pace]

    @property
    def lines(self) -> list[str]:
        return [limit_line(hold.key) for hold in self.holds] + [rate_line(pace.key) for pace in self.paces]


def write_holds(c: Session, jobs: Iterable[NewJob]) -> None:
    rows: list[tuple[object, ...]] = []
    for job in jobs:
        if (terms := job.terms).limited:
            rows += [
                (job.id, place, hold.key, hold.to, CONFLICTS.index(hold.conflict), None, None)
                for place, hold in enumerate(terms.holds)
            ]
            rows += [
                (job.id, place, pace.key, pace.tokens, 0, pace.period, pace.burst)
                for place, pace in enumerate(terms.paces, len(terms.holds))
            ]
    if rows:
        c.batched(INSERT_HOLD, rows)


def needs_of(c: Session, ids: Sequence[bytes]) -> dict[bytes, Needs]:
    found: dict[bytes, Needs] = {id: Needs([], []) for id in ids}
    for id, key, number, conflict, period, burst in c.read(HOLDS, ids):
        if period is None:
            found[id].holds.append(Hold(key, number, CONFLICTS[conflict]))
        else:
            found[id].paces.append(Pace(key, number, period, burst))
    return found


# Coming in.


class Admission:
    """What a store remembers between rounds: which share was looked at last."""

    def __init__(self) -> None:
        self._line = ""
        self.gave_tickets = False

    def arrived(self, c: Session, now: int) -> bool:
        """Somebody is at the door, wants a turn, or waits for a token that is there."""
        return self.has_arrived(c.execute(ARRIVED, (now,)).fetchone())

    def has_arrived(self, found: tuple[object, object]) -> bool:
        first, due = found
        return bool(due) or (isinstance(first, str) and (first == "" or first.startswith(FAIR)))

    def admit(self, c: Session, now: int, limit: int, freed: Freed | None = None) -> int:
        """Judge who is at the door, by priority and age, until `limit` are ready; how many moved on.

        `freed` are the permits that were given back just now.
        """
        arrived = self.arrived(c, now)
        if not arrived and not freed:
            return 0
        c.hold(Subject.ADMISSION)
        if not arrived and freed is not None and (passed := _pass_on(c, freed)) is not None:
            return passed
        turns, self._line = Turns(c, now).take(self._line, LOOK_AT_ONCE)
        door = _Door(c, now, limit)
        admitted = door.open(freed or {})
        self.gave_tickets = door.gave_tickets
        return max(turns, admitted)


def _pass_on(c: Session, freed: Freed) -> int | None:
    """Where nobody else has come, permits go to the next of their lines, if none of those needs anything else.

    How many did; None where it takes more to find out.
    """
    permits: list[tuple[str, int, bytes]] = []
    admitted: list[tuple[int]] = []
    for line, numbers in freed.items():
        key = _Key(c, line.removeprefix(LIMIT), numbered=False)
        room = min(len(numbers), key.room)
        rows = c.execute(NEXT_OF_LINE, (line, room)).fetchall() if room > 0 else []
        if any(needs != 1 for _, _, needs in rows):
            return None
        permits += [(key.key, n, id) for n, (_, id, _) in zip(sorted(numbers), rows, strict=False)]
        admitted += [(n,) for n, _, _ in rows]
    c.batched(INSERT_PERMIT, permits)
    c.batched(ADMIT, admitted)
    return len(admitted)


class _Key:
    """A limit during one round. Room only shrinks: whoever ends meanwhile does so in another transaction."""

    def __init__(self, c: Session, key: str, *, numbered: bool = True) -> None:
        self.key = key
        self.held: int
        self.set_to: int | None
        self.cap: int
        self.since: bytes
        self.held, self.set_to, self.cap, self.since = c.execute(KEY, (key, key, key, key)).fetchone()
        if numbered:
            taken = {n for (n,) in c.execute("select n from permit where key = ?", (key,))}
            self.numbers = (n for n in count(1) if n not in taken)

    @property
    def room(self) -> int:
        return (self.cap if self.set_to is None else self.set_to) - self.held

    @property
    def has_room(self) -> bool:
        return self.room > 0


class _Rate:
    """A rate during one round."""

    def __init__(self, c: Session, pace: Pace) -> None:
        self._row = c.execute(RATE, (pace.key,)).fetchone()
        row = self._row or (*pace[1:], b"", 0, 0, None)
        self.pace = Pace(pace.key, *row[:3])
        self.brought_by: bytes = row[3]
        self.bucket = Bucket(row[4], row[5])
        (self.tickets,) = c.execute("select count(*) from ticket where key = ?", (pace.key,)).fetchone()
        self.late = CATCH_UP if c.execute(STANDS, (rate_line(pace.key),)).fetchone() else 0

    def is_open(self, now: int) -> bool:
        return self.bucket.opens_at(self.pace) <= now and self.tickets < self.pace.depth

    def bring(self, pace: Pace, id: bytes) -> None:
        self.bucket = self.bucket.at(self.pace, pace)
        self.pace, self.brought_by = pace, id

    def save(self, c: Session) -> None:
        wake_at = None
        if c.execute(STANDS, (rate_line(self.pace.key),)).fetchone():
            wake_at = self.bucket.opens_at(self.pace) if self.tickets < self.pace.depth else NOBODY_KNOWS
        row = (*self.pace[1:], self.brought_by, *self.bucket, wake_at)
        if row != self._row:
            c.execute(SAVE_RATE, (self.pace.key, *row))


class _Door:
    """One round of judging. What it decides is written together, in few statements."""

    def __init__(self, c: Session, now: int, limit: int) -> None:
        self._c = c
        self._now = now
        self._limit = limit
        self.gave_tickets = False
        self._admitted = self._judged = 0
        self._keys: dict[str, _Key] = {}
        self._rates: dict[str, _Rate] = {}
        self._needs: dict[bytes, Needs] = {}
        self._heap: list[Standing] = []
        self._seen: set[int] = set()
        self._called: set[int] = set()  # out of the line of a limit, and not judged yet
        self._gone: set[int] = set()  # replaced after they were called
        self._turned_away: dict[str, set[int]] = {}
        self._lines: dict[str, Iterator[Standing]] = {}
        self._permits: list[tuple[str, int, bytes]] = []
        self._tickets: list[tuple[str, bytes]] = []
        self._ready: list[tuple[int]] = []
        self._sent: dict[str, list[tuple[int]]] = {}
        self._brought: dict[str, tuple[str, int, bytes]] = {}  # keys with a newer number

    def open(self, freed: Freed) -> int:
        for line, numbers in freed.items():
            self._call(line, len(numbers))
        for (key,) in self._c.execute("select key from rate where wake_at <= ?", (self._now,)).fetchall():
            self._call(rate_line(key))
        while self._wants_more:
            came = self._c.execute(LINE, ("", *FIRST, LOOK_AT_ONCE)).fetchall()
            self._come([one for one in came if one[3] not in self._seen])
            if not self._heap:
                break
            last = came[-1] if len(came) == LOOK_AT_ONCE else None
            while self._heap and self._wants_more and (last is None or self._heap[0] <= last):
                self._judge(heappop(self._heap))
            self._write()
        left = [(one[3],) for one in self._heap if one[3] in self._called]
        self._c.batched("update job set waits_on = '' where n in ({rows:bigint})", left)
        for rate in self._rates.values():
            rate.save(self._c)
        return self._admitted

    @property
    def _wants_more(self) -> bool:
        return self._admitted < self._limit and self._judged < JUDGE_AT_ONCE

    def _come(self, standing: Sequence[Standing]) -> None:
        self._needs |= needs_of(self._c, [id for _, _, id, _ in standing])
        self._seen.update(n for *_, n in standing)
        for id in sorted((id for _, _, id, _ in standing), reverse=True):
            self._note_numbers(id)
        for one in standing:
            heappush(self._heap, one)

    def _note_numbers(self, id: bytes) -> None:
        """The newest job's number counts for all; where that makes room, somebody may come."""
        holds, paces = self._needs[id]
        for hold in holds:
            key = self._key(hold.key)
            if id > key.since:
                room = hold.to - key.cap
                key.cap, key.since = hold.to, id
                self._brought[hold.key] = (hold.key, hold.to, id)
                if room > 0:
                    self._begin_line_anew(limit_line(hold.key))
                    self._call(limit_line(hold.key), room)
        for pace in paces:
            rate = self._rate(pace)
            if id > rate.brought_by:
                rate.bring(pace, id)
                self._call(rate_line(pace.key))

    def _begin_line_anew(self, line: str) -> None:
        """Who was turned away in this round may be called again."""
        self._seen -= self._turned_away.pop(line, set())
        self._lines.pop(line, None)

    def _judge(self, one: Standing) -> None:
        *_, id, n = one
        self._judged += 1
        needs = self._needs.pop(id)
        self._called.discard(n)
        if n in self._gone:
            return
        full = next((hold for hold in needs.holds if not self._key(hold.key).has_room), None)
        shut = next((pace for pace in needs.paces if not self._rate(pace).is_open(self._now)), None)
        if full is None and shut is None:
            self._admit(id, n, needs)
            return
        line = limit_line(full.key) if full is not None else rate_line(shut.key) if shut is not None else ""
        if full is not None and full.conflict is Conflict.DISCARD:
            self._end([(id, n)], f"discarded: {full.key} was taken")
        else:
            self._sent.setdefault(line, []).append((n,))
            self._turned_away.setdefault(line, set()).add(n)
        if full is not None and full.conflict is Conflict.REPLACE:
            self._write()
            *older, _ = self._c.execute(RIVALS, (line, CONFLICTS.index(Conflict.REPLACE))).fetchall()
            self._end(older, "replaced")
            self._gone.update(its_n for _, its_n in older)
        for other in needs.lines:  # it took up the room of another, who may pass
            if other != line:
                self._call(other)

    def _end(self, jobs: Sequence[tuple[bytes, int]], reason: str) -> None:
        end(self._c, jobs, reason, self._now)
        self._seen |= sql_gates.settle(self._c, (), [id for id, _ in jobs], self._now)  # they come in the next round

    def _admit(self, id: bytes, n: int, needs: Needs) -> None:
        for hold in needs.holds:
            key = self._key(hold.key)
            key.held += 1
            self._permits.append((hold.key, next(key.numbers), id))
        for pace in needs.paces:
            rate = self._rate(pace)
            rate.bucket = rate.bucket.less(rate.pace, self._now - rate.late)
            rate.tickets += 1
            self._tickets.append((pace.key, id))
            self._call(rate_line(pace.key))
        self._ready.append((n,))
        self._admitted += 1

    def _call(self, line: str, number: int = 1) -> None:
        """The first of a line come to the door, where it has room for them."""
        if line not in self._lines:
            self._lines[line] = self._line(line)
        if not self._has_room(line):
            return
        called = []
        for one in self._lines[line]:
            if one[3] not in self._seen:
                called.append(one)
                if len(called) == number:
                    break
        if line.startswith(LIMIT):  # a rate calls again by itself
            self._called.update(one[3] for one in called)
        self._come(called)

    def _line(self, line: str) -> Iterator[Standing]:
        after, size = FIRST, 4
        while rows := self._c.execute(LINE, (line, *after, size)).fetchall():
            yield from rows
            if len(rows) < size:
                return
            after, size = rows[-1][:3], min(4 * size, 256)

    def _has_room(self, line: str) -> bool:
        if line.startswith(LIMIT):
            return self._key(line.removeprefix(LIMIT)).has_room
        key = line.removeprefix(rate_line(""))
        return self._rate(Pace(key, 1, 1)).is_open(self._now)

    def _key(self, key: str) -> _Key:
        if key not in self._keys:
            self._keys[key] = _Key(self._c, key)
        return self._keys[key]

    def _rate(self, pace: Pace) -> _Rate:
        if pace.key not in self._rates:
            self._rates[pace.key] = _Rate(self._c, pace)
        return self._rates[pace.key]

    def _write(self) -> None:
        c = self._c
        if self._brought:
            c.executemany(BRING, self._brought.values())
        c.batched(INSERT_PERMIT, self._permits)
        c.batched("insert into ticket (key, id) {rows:text bytea}", self._tickets)
        self.gave_tickets = self.gave_tickets or bool(self._tickets)
        c.batched(ADMIT, self._ready)
        for line, rows in self._sent.items():
            c.batched("update job set waits_on = ? where n in ({rows:bigint})", rows, line)
        self._brought, self._permits, self._tickets, self._ready, self._sent = {}, [], [], [], {}


# Going out.


def free(c: Session, ids: Sequence[bytes]) -> Freed:
    """Take back the permits of these jobs."""
    freed: Freed = {}
    for key, n in c.read("delete from permit where id in ({rows:bytea}) returning key, n", ids):
        freed.setdefault(limit_line(key), []).append(n)
    return freed


def free_claimed(c: Session, ended: Sequence[Token], put_back: Sequence[Token]) -> Freed:
    """Of those that were running. Who is put back keeps its permit, unless it is that of a run."""
    ids = [token.id for token in (*ended, *put_back)]
    if c.CONCURRENT and not any(c.read(LIMITED, ids)):
        return {}
    c.hold(Subject.ADMISSION)
    freed: Freed = {}
    of_a_run: list[tuple[str, int, bytes]] = []
    for text, tokens in ((FREE, ended), (FREE_RUNS, put_back)):
        for key, n, id, run in c.read(text, [token.id for token in tokens]):
            if run:
                of_a_run.append((key, n, id))
            else:
                freed.setdefault(limit_line(key), []).append(n)
    if of_a_run:
        tokens_by_id = {token.id: token for token in (*ended, *put_back)}
        for key, n, id in of_a_run:
            token = tokens_by_id[id]
            left = c.execute(LAST_OF_RUN, (token.process, token.nonce, key)).fetchone()
            if left is None:
                freed.setdefault(limit_line(key), []).append(n)
            else:
                c.execute("insert into permit (key, n, id, run) values (?, ?, ?, 1)", (key, n, left[0]))
    return freed


def extend_runs(
    c: Session, process: bytes, nonce: int, queues: Selected, run: int, limit: int, room: int, now: int
) -> Runs:
    """Claim more jobs that wait for a permit which was just claimed, for one of each key; who is of which run.

    Their payloads find their place in a `room` of so many bytes.
    """
    c.hold(Subject.ADMISSION)
    heads = {key: (head, n) for head, key, n in c.execute(HEADS, (process, nonce))}
    runs: Runs = {}
    for key, (head, n) in heads.items():
        size = min(run - 1, limit)
        if size <= 0:
            break
        rows = c.execute(NEXT_WITH_SIZE, (limit_line(key), size)).fetchall()
        members = []
        for row in takewhile(lambda row: row[2] == 1 and any(it.matches(row[3]) for it in queues), rows):
            room -= row[4] or 0
            if room < 0:
                break
            members.append(row)
        if not members:
            continue
        limit -= len(members)
        c.batched(JOIN_RUN, [(row[0],) for row in members], process, nonce, now)
        c.execute("update permit set id = ?, run = 1 where key = ? and n = ?", (members[-1][1], key, n))
        runs |= {id: (place, f"{nonce} {key}") for place, id in enumerate([head, *(row[1] for row in members)])}
    return runs


def call(c: Session, freed: Freed) -> None:
    for line, numbers in freed.items():
        c.hold(Subject.ADMISSION)
        c.execute(CALL, (line, len(numbers)))


def leave(c: Session, ids: Sequence[bytes]) -> None:
    """Jobs go that may have been called to the door already, or be ready: let others come in their stead."""
    limited = {id: needs for id, needs in needs_of(c, ids).items() if needs.holds or needs.paces}
    if not limited:
        return
    c.hold(Subject.ADMISSION)
    call(c, free(c, list(limited)))
    free_tickets(c, list(limited))
    for needs in limited.values():
        for hold in needs.holds:
            c.execute(CALL, (limit_line(hold.key), 1))


def stand_anew(c: Session, ids: Sequence[bytes]) -> None:
    """Their priority is another one: whoever is first now of those who wait is to be judged."""
    for id, needs in needs_of(c, ids).items():
        to_the_door = "update job set waits_on = '' where n = (select n from payload where id = ?) and waits_on = ?"
        for hold in needs.holds:
            c.hold(Subject.ADMISSION)
            c.execute(to_the_door, (id, limit_line(hold.key)))
            c.execute(CALL, (limit_line(hold.key), 1))


def free_tickets(c: Session, ids: Sequence[bytes]) -> None:
    """They have begun, or never will: another may have its token."""
    if c.CONCURRENT and not any(c.read("select 1 from ticket where id in ({rows:bytea})", ids)):
        return
    c.hold(Subject.ADMISSION)
    keys = {key for (key,) in c.read("delete from ticket where id in ({rows:bytea}) returning key", ids)}
    for key in sorted(keys):
        _Rate(c, Pace(key, 1, 1)).save(c)


def free_started(c: Session, process: bytes, nonce: int) -> None:
    """The tickets of what was just claimed."""
    started = "select id from job indexed by job_held where state = 4 and process = ? and nonce = ?"
    free_tickets(c, [id for (id,) in c.execute(started, (process, nonce)).fetchall()])


def cancel(c: Session, jobs: Sequence[tuple[bytes, int]], reason: str, now: int) -> None:
    """End jobs that do not run: `id` and `n` of each."""
    ids = [id for id, _ in jobs]
    end(c, jobs, reason, now)
    leave(c, ids)
    sql_gates.settle(c, (), ids, now)


def give_way(c: Session, id: bytes, new: NewJob, run_at: int | None, now: int) -> bool:
    """Whether the job that has the new one's unique key makes room for it, or stands for both."""
    assert new.terms.unique is not None
    find = (
        "select job.n, state from job join payload on payload.n = job.n "
        f"where payload.id = ? and (prune_at is null or prune_at > ?) {c.FOR_UPDATE}"
    )
    if (row := c.execute(find, (id, now)).fetchone()) is None:
        return True  # it is gone, or kept no longer, and would be a handle of nothing
    n, state = row
    if not 1 <= state <= 3:
        return False
    match new.terms.unique.conflict:
        case UniqueConflict.REPLACE:
            cancel(c, [(id, n)], "replaced", now)
            return True
        case UniqueConflict.RESCHEDULE:
            _reschedule(c, id, n, run_at, now)
        case UniqueConflict.MERGE:
            again = "coalesce(sum(case when name = ? then 1 else 0 end), 0)"
            merged = f"select count(*), {again} from entry where id = ? and kind = ?"
            number, again = c.execute(merged, (new.id.hex(), id, MERGED)).fetchone()
            if number >= MERGES_CAP and not again:
                return True
            write = "insert into entry (id, kind, name, data) values (?, ?, ?, ?) on conflict do nothing"
            c.execute(write, (id, MERGED, new.id.hex(), new.payload))
    return False


def _reschedule(c: Session, id: bytes, n: int, run_at: int | None, now: int) -> None:
    moved = "update job set run_at = ?, epoch = epoch + 1 where n = ? returning waits_on"
    if c.execute(moved, (run_at, n)).fetchall() == [(GATE,)]:
        return
    if run_at is None or run_at <= now:
        c.execute(f"update job set {DUE}, order_key = ? - {LED} where n = ?", (now, n))
    else:
        c.execute("update job set state = 1, waits_on = '', order_key = ? where n = ?", (run_at, n))
    leave(c, [id])


# Numbers.


def set_limit(c: Session, key: str, to: int | None) -> None:
    c.hold(Subject.ADMISSION)
    if to is None:
        c.execute("delete from limit_set where key = ?", (key,))
    else:
        c.execute(SET_LIMIT, (key, to))
    c.execute(CALL, (limit_line(key), EVERYBODY))


def take_token(c: Session, pace: Pace, patience: int, now: int) -> int | None:
    c.hold(Subject.ADMISSION)
    rate = _Rate(c, pace)
    rate.bring(pace, rate.brought_by)
    wait = max(0, rate.bucket.opens_at(pace) - now)
    if wait <= patience:
        rate.bucket = rate.bucket.less(pace, now)
    rate.save(c)
    return wait if wait <= patience else None


def remembers(c: Session) -> bool:
    """Anything that `forget_unused` may forget."""
    tables = ("limit_cap", "rate", "turn", "tick")
    remembered = " or ".join(f"exists (select 1 from {table})" for table in tables)
    return bool(c.execute(f"select {remembered}").fetchone()[0])


def forget_unused(c: Session, now: int) -> None:
    """Numbers of keys that nobody uses; while many jobs wait, this waits too."""
    c.hold(Subject.ADMISSION)
    waiting = "select count(*) from (select 1 from job indexed by job_waiting where state = 2 limit ?) as few"
    if c.execute(waiting, (FEW,)).fetchone()[0] < FEW:
        c.execute(UNUSED_CAPS)
        c.execute(UNUSED_RATES, (now,))
    forget_turns(c, now)


def limits(c: Session, after: str, limit: int) -> list[LimitView]:
    views = []
    for (key,) in c.execute(KEYS, (after, after, after, limit)).fetchall():
        row = c.execute("select permits from limit_set where key = ?", (key,)).fetchone()
        (holders,) = c.execute("select count(*) from permit where key = ?", (key,)).fetchone()
        (waiting,) = c.execute(STANDING, (limit_line(key),)).fetchone()
        views.append(LimitView(key, row[0] if row else None, holders, waiting))
    return views


def rates(c: Session, after: str, limit: int, now: int) -> list[RateView]:
    views = []
    for (key,) in c.execute("select key from rate where key > ? order by key limit ?", (after, limit)).fetchall():
        rate = _Rate(c, Pace(key, 1, 1))
        (waiting,) = c.execute(STANDING, (rate_line(key),)).fetchone()
        views.append(RateView(key, rate.pace, max(0, rate.bucket.opens_at(rate.pace) - now), waiting))
    return views


# Paused tasks.


def park(c: Session, process: bytes, nonce: int, tasks: Sequence[str], *, plain: bool = False) -> int:
    """Jobs of paused tasks among those just claimed go and wait for its end; how many.

    Where all of them are `plain`, and the pauses locked, nothing else is needed.
    """
    if not plain:
        c.hold(Subject.ADMISSION)
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
    c.executemany(back, [(parked_line(task), n) for n, _, task in rows])
    if not plain:
        ids = [id for _, id, _ in rows]
        call(c, free(c, ids))
        free_tickets(c, ids)
    return len(rows)


def unpark(c: Session, task: str) -> int:
    """Those of a task that is paused no more go on, by way of the door where they need permits."""
    c.hold(Subject.ADMISSION)
    on = "state = case when limited > 0 then 2 else 3 end, waits_on = ''"
    go_on = f"update job set {on} where state = 2 and waits_on = ?"
    return c.execute(go_on, (parked_line(task),)).rowcount
