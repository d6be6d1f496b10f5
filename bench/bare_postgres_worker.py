"""One process of the bare loop: `python -m bench.bare_postgres_worker URL BATCH`, the least code that does it.

No attempts, no slots, no heartbeat: finish the last batch and claim the next in one round trip and one commit, verify
and decode each payload, call the body. Where nothing is left, wait to be notified. Finished jobs stay. This is the
limit that PostgreSQL, psycopg and Python set, not a product.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
import time
import uuid
from typing import Any

import psycopg

from bench import bodies

CHANNEL = "bench_bare"
KEY = b"the bare loop signs with this key"
TABLE = """
    create table job (
        id uuid primary key, state smallint not null default 0, queue text not null, priority smallint not null,
        task text not null, body bytea not null, signature bytea not null, created_at bigint not null,
        owner integer, claimed_at bigint, finished_at bigint, result bytea
    ) with (fillfactor = 70);
    create index job_ready on job (queue, priority, id) where state = 0;
"""
COLUMNS = "id, queue, priority, task, body, signature, created_at"
TYPES = ("uuid", "text", "int2", "text", "bytea", "bytea", "int8")
INSERT = f"insert into job ({COLUMNS}) values (%s, %s, %s, %s, %s, %s, %s)"
COPY = f"copy job ({COLUMNS}) from stdin (format binary)"
CLAIM = """
    update job set state = 1, owner = %s, claimed_at = %s where id = any(array(
        select id from job where queue = 'default' and state = 0 order by priority, id limit %s for update skip locked
    ))
    returning id, task, body, signature
"""
FINISH = "update job set state = 2, finished_at = %s, result = 'null' where id = any(%s) and owner = %s and state = 1"
# Only index look-ups, whatever the statistics say.
PLANS = """
    set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off; set enable_mergejoin = off;
    set plan_cache_mode = force_generic_plan
"""
TASKS = {"noop": bodies.noop}


def connect(url: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(url, autocommit=True)
    connection.execute(PLANS)
    return connection


def sign(job: uuid.UUID, body: bytes) -> bytes:
    return hmac.digest(KEY, job.bytes + body, hashlib.sha256)


def new_row(number: int) -> tuple[uuid.UUID, str, int, str, bytes, bytes, int]:
    """As much data as a job of Packhorse carries; ids grow with time, as ours do."""
    body = json.dumps({"v": 1, "a": [number, "two"], "k": {"three": 3}}, separators=(",", ":")).encode()
    job = uuid.UUID(bytes=time.time_ns().to_bytes(8) + os.urandom(8))
    return job, "default", 0, "noop", body, sign(job, body), time.time_ns() // 1000


def exchange(
    connection: psycopg.Connection[Any], me: int, done: list[uuid.UUID], batch: int
) -> list[tuple[uuid.UUID, str, bytes, bytes]]:
    now = time.time_ns() // 1000
    with connection.pipeline(), connection.transaction():
        if done:
            connection.execute(FINISH, (now, done, me), prepare=True)
        claims = connection.execute(CLAIM, (me, now, batch), prepare=True, binary=True)
    return claims.fetchall()


def main() -> None:
    connection, batch, me = connect(sys.argv[1]), int(sys.argv[2]), os.getpid()
    connection.execute(f"listen {CHANNEL}".encode())
    print("ready", flush=True)
    sys.stdin.readline()
    done: list[uuid.UUID] = []
    while True:
        claims = exchange(connection, me, done, batch)
        for job, task, body, signature in claims:
            if not hmac.compare_digest(sign(job, body), signature):
                raise ValueError(f"job {job} was not signed by us")
            call = json.loads(body)
            TASKS[task](*call["a"], **call["k"])
        done = [job for job, *_ in claims]
        if not claims:
            for _ in connection.notifies(stop_after=1):
                pass


if __name__ == "__main__":
    main()
