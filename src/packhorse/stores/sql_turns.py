"""Fair turns: where jobs of a share come to stand among those of others. Functions of an open transaction.

A job of a share arrives in a line of its share. From there it gets an order key one turn behind the last of its share,
and no earlier than the first job that stands already: so whoever comes new stands with the first, whatever others
brought.
"""

from __future__ import annotations

from collections.abc import Iterator

from packhorse.limits import TURN
from packhorse.stores.contract import FAIR, fair_scope, limit_line, rate_line
from packhorse.stores.sql import Session

AT_A_TIME = 64  # jobs of one share, before the next share has its turn to be looked at
BEHIND_ALL = FAIR[:-1] + ";"
NEXT_LINE = """
    select waits_on from job indexed by job_waiting
    where state = 2 and waits_on > ? and waits_on < ? order by waits_on limit 1
"""
FIRST_OF_LINE = """
    select n, id, queue, rank, coalesce(share, ''), limited from job indexed by job_waiting
    where state = 2 and waits_on = ? order by rank, order_key, id limit ?
"""
FIRST_READY = """
    select order_key from job indexed by job_to_claim where state = 3 and queue = ? and rank = ?
    order by order_key limit 1
"""
FIRST_WAITING = """
    select order_key from job indexed by job_waiting where state = 2 and waits_on = ? and rank = ?
    order by order_key limit 1
"""
PLACE = "update job set state = ?, waits_on = '', order_key = ? where n = ?"
REMEMBER = """
    insert into turn (scope, rank, share, last) values (?, ?, ?, ?)
    on conflict (scope, rank, share) do update set last = excluded.last
"""
REMEMBERED_FOR = 7 * 24 * 3_600 * 1_000_000


class Turns:
    """One round of placing."""

    def __init__(self, c: Session, now: int) -> None:
        self._c = c
        self._now = now
        self._weights = dict(c.execute("select share, weight from share_weight").fetchall())
        self._bases: dict[tuple[str, int], int] = {}

    def take(self, begin: str, limit: int) -> tuple[int, str]:
        """Place up to `limit`, beginning behind the line `begin`; how many, and where the next round begins."""
        placed, line = 0, begin
        for line in self._lines(begin):
            placed += self._place(line, min(AT_A_TIME, limit - placed))
            if placed >= limit:
                break
        return placed, line

    def _lines(self, begin: str) -> Iterator[str]:
        """Round and round, until there are none."""
        line = max(begin, FAIR)
        while True:
            row = self._c.execute(NEXT_LINE, (line, BEHIND_ALL)).fetchone()
            if row is None:
                row = self._c.execute(NEXT_LINE, (FAIR, BEHIND_ALL)).fetchone()
            if row is None:
                return
            (line,) = row
            yield line

    def _place(self, line: str, limit: int) -> int:
        rows = self._c.execute(FIRST_OF_LINE, (line, limit)).fetchall()
        places: list[tuple[int, int, int]] = []
        lasts: dict[tuple[str, int], int] = {}
        for n, id, queue, rank, share, limited in rows:
            lines = self._lines_of(id) if limited else []
            scope = (fair_scope(queue, lines), rank)
            base = self._base(scope, queue, lines)
            last = lasts[scope] if scope in lasts else self._last(scope, share)
            order_key = base if last is None else max(base, last + TURN // self._weights.get(share, 1))
            lasts[scope] = order_key
            places.append((2 if limited else 3, order_key, n))
        self._c.executemany(PLACE, places)
        self._c.executemany(REMEMBER, [(*scope, share, last) for scope, last in lasts.items()])
        return len(rows)

    def _lines_of(self, id: bytes) -> list[str]:
        holds = self._c.execute("select key, period from hold where id = ? order by place", (id,)).fetchall()
        return [limit_line(key) if period is None else rate_line(key) for key, period in holds]

    def _base(self, scope: tuple[str, int], queue: str, lines: list[str]) -> int:
        """Where the first of those stands who take turns; where nobody stands, everybody begins anew."""
        if scope not in self._bases:
            rank = scope[1]
            found = self._c.execute(FIRST_READY, (queue, rank)).fetchall()
            for line in ("", *lines):
                found += self._c.execute(FIRST_WAITING, (line, rank)).fetchall()
            standing = [order_key for (order_key,) in found if type(order_key) is int]
            if standing:
                self._bases[scope] = min(standing)
            else:
                row = self._c.execute("select max(last) from turn where scope = ? and rank = ?", scope).fetchone()
                self._c.execute("delete from turn where scope = ? and rank = ?", scope)
                self._bases[scope] = max(self._now, row[0] or 0)
        return self._bases[scope]

    def _last(self, scope: tuple[str, int], share: str) -> int | None:
        read = "select last from turn where scope = ? and rank = ? and share = ?"
        row = self._c.execute(read, (*scope, share)).fetchone()
        return None if row is None else row[0]


def forget_turns(c: Session, now: int) -> None:
    """Of what nobody has asked for in a week: keys come and go, and their lines would be kept for good."""
    c.execute("delete from turn where last < ?", (now - REMEMBERED_FOR,))
