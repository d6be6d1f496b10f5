"""Jobs that become due or end without having run: what every other module of the SQL stores builds on."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.stores import sql_unique
from packhorse.stores.contract import FAIR
from packhorse.stores.sql import Session

BY_ID = "n = (select n from payload where payload.id = ?)"
# A job that has become due: jobs of a share wait for their turn, those with limits at the door.
DUE = f"""
    state = case when limited > 0 or share is not null then 2 else 3 end,
    waits_on = case when share is null then '' else '{FAIR}' || queue || '/' || share end,
    awaits = null
"""
LED = "coalesce(priority, 0) * ageing"  # how much earlier its priority lets it stand
CANCEL_ONE = """
    update job set state = 7, waits_on = '', awaits = null, finished_at = ?, process = null, epoch = epoch + 1
    where n = ?
"""


def end(c: Session, jobs: Sequence[tuple[bytes, int]], reason: str, now: int) -> None:
    ids = [id for id, _ in jobs]
    c.executemany(CANCEL_ONE, [(now, n) for _, n in jobs])
    c.executemany("insert into ending (id, reason, spent) values (?, ?, 0)", [(id, reason) for id in ids])
    sql_unique.free(c, ids)
