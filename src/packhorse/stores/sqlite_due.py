"""Jobs that become due or end without having run, on SQLite: what every other module of the store builds on."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from packhorse.stores import sqlite_unique
from packhorse.stores.contract import FAIR, GATE

# A job that has become due: jobs of a share wait for their turn, those with limits at the door.
DUE = f"""
    state = case when limited or share is not null then 2 else 3 end,
    waits_on = case when share is null then '' else '{FAIR}' || queue || '/' || share end,
    awaits = null
"""
# The same, of one that may have to come after others.
DUE_AGAIN = f"""
    state = case when limited or share is not null or {{gated}} then 2 else 3 end,
    waits_on = case when {{gated}} then '{GATE}' when share is null then ''
                    else '{FAIR}' || queue || '/' || share end,
    awaits = null
""".format(
    gated="(exists (select 1 from edge where child = job.id and ended = 0) "
    "and not exists (select 1 from edge where child = job.id and ended = 2 and need = 2))"
)
LED = "coalesce(priority, 0) * ageing"  # how much earlier its priority lets it stand
CANCEL_ONE = """
    update job set state = 7, waits_on = '', awaits = null, finished_at = ?, process = null, epoch = epoch + 1
    where n = ?
"""


def end(c: sqlite3.Connection, jobs: Sequence[tuple[bytes, int]], reason: str, now: int) -> None:
    ids = [id for id, _ in jobs]
    c.executemany(CANCEL_ONE, [(now, n) for _, n in jobs])
    c.executemany("insert into ending (id, reason, spent) values (?, ?, 0)", [(id, reason) for id in ids])
    sqlite_unique.free(c, ids)
