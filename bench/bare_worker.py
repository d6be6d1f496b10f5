"""One process of the bare loop: `python -m bench.bare_worker DATABASE BATCH`, the least code that does the same work.

No attempts, no fencing, no slots, no heartbeat: finish the last batch and claim the next in one transaction, decode
each payload, call the body. This is the limit that SQLite and Python set, not a product.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time

from bench import bodies

TABLE = """
    create table job (
        seq integer primary key, id blob not null unique, state integer not null default 0, queue text not null,
        priority integer not null, task text not null, body blob not null, created_at integer not null,
        owner integer, claimed_at integer, finished_at integer
    );
    create index job_ready on job (queue, priority, seq) where state = 0;
"""
INSERT = "insert into job (id, queue, priority, task, body, created_at) values (?, 'default', 0, 'noop', ?, ?)"
CLAIM = """
    update job set state = 1, owner = ?, claimed_at = ? where seq in
        (select seq from job where queue = 'default' and state = 0 order by priority, seq limit ?)
    returning seq, task, body
"""
FINISH = "update job set state = 2, finished_at = ? where owner = ? and state = 1 and seq in ({places})"
TASKS = {"noop": bodies.noop}


def connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("pragma cache_size = -16384")
    return connection


def new_row(number: int) -> tuple[bytes, bytes, int]:
    """As much data as a job of Packhorse carries."""
    payload = json.dumps({"v": 1, "a": [number, "two"], "k": {"three": 3}}, separators=(",", ":")).encode()
    return os.urandom(16), payload, time.time_ns() // 1000


def begin(connection: sqlite3.Connection) -> None:
    """Queue for the write lock in short naps; SQLite's own busy handler sleeps up to 100 ms and would be no limit."""
    while True:
        try:
            connection.execute("begin immediate")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
        time.sleep(0.000_2)


def main() -> None:
    connection = connect(sys.argv[1])
    connection.execute("pragma busy_timeout = 0")
    me, batch = os.getpid(), int(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    done: list[int] = []
    while True:
        begin(connection)
        now = time.time_ns() // 1000
        if done:
            connection.execute(FINISH.format(places=", ".join("?" * len(done))), (now, me, *done))
        claims = connection.execute(CLAIM, (me, now, batch)).fetchall()
        connection.execute("commit")
        if not claims:
            break
        for _, task, body in claims:
            call = json.loads(body)
            TASKS[task](*call["a"], **call["k"])
        done = [seq for seq, _, _ in claims]
    sys.stdin.readline()  # until we are stopped, so that the CPU time can still be read


if __name__ == "__main__":
    main()
