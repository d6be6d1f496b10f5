"""Many plain jobs at once, by COPY: the quickest way into PostgreSQL, and one that knows no `on conflict`.

So it is a first try, for ids that are new in all likelihood. Whoever finds that it failed, or does not know, says the
statement, which leaves alone what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from struct import error, pack

import psycopg

from packhorse.job import NewJob
from packhorse.stores.postgres_session import Row, Session
from packhorse.stores.sql_exchange import narrow_row

LEAST = 500  # jobs: it takes five round trips more, which cost more than it saves where there are fewer
CHUNK = 250  # rows that are sent together: the server reads some while others are made
NUMBERS = "select string_agg(int8send(nextval('job_n')), '') from generate_series(1, $1)"
PAYLOADS = "copy {prefix}payload (n, id, task, body, created_at, tags) from stdin (format binary)"
JOBS = """
    copy {prefix}job (n, id, state, queue, rank, order_key, run_at, expires_at, share, limited, waits_on)
    from stdin (format binary)
"""
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
NULL = b"\xff\xff\xff\xff"
NUMBER = 8  # bytes
_N, _ID = pack(">i", NUMBER), pack(">i", 16)


def numbers(c: Session, jobs: int) -> bytes:
    """So many that nobody else has, as they stand in a row."""
    [(found,)] = c.plain(NUMBERS, [jobs]).fetchall()
    return bytes(found)


def write(connection: psycopg.Connection[Row], prefix: str, jobs: Sequence[NewJob], numbers: bytes, now: int) -> None:
    """Jobs of which is_plain is true, in the transaction that is open; no pipeline may be."""
    for text, row in ((PAYLOADS, _wide), (JOBS, _narrow)):
        with connection.cursor().copy(text.format(prefix=prefix).encode()) as copy:
            copy.write(HEADER)
            for chunk in _chunks(row, jobs, numbers, now):
                copy.write(chunk)
            copy.write(TRAILER)


def _chunks(
    row: Callable[[bytes, NewJob, int], bytes], jobs: Sequence[NewJob], numbers: bytes, now: int
) -> Iterator[bytes]:
    for start in range(0, len(jobs), CHUNK):
        places = range(start, min(start + CHUNK, len(jobs)))
        try:
            yield b"".join([row(numbers[place * NUMBER : (place + 1) * NUMBER], jobs[place], now) for place in places])
        except (error, TypeError, AttributeError, UnicodeEncodeError) as wrong:
            raise psycopg.DataError(f"a value is not of its column's type ({wrong})") from wrong


def _wide(n: bytes, job: NewJob, now: int) -> bytes:
    return b"".join((b"\0\x06", _N, n, _ID, job.id, _text(job.task), _bytes(job.payload), _bigint(now), NULL))


def _narrow(n: bytes, job: NewJob, now: int) -> bytes:
    _, id, *rest = narrow_row(0, job, now)
    return b"".join((b"\0\x0b", _N, n, _ID, id, _rest(*rest)))


# Jobs that come together are mostly alike.
@lru_cache(maxsize=1_000, typed=True)
def _rest(
    state: int,
    queue: str,
    rank: int,
    order_key: int,
    run_at: int | None,
    expires_at: int | None,
    share: str | None,
    limited: int,
    waits_on: str,
) -> bytes:
    return b"".join(
        (
            pack(">ih", 2, state),
            _text(queue),
            pack(">ihiq", 2, rank, 8, order_key),
            _bigint(run_at),
            _bigint(expires_at),
            NULL if share is None else _text(share),
            pack(">ii", 4, limited),
            _text(waits_on),
        )
    )


def _bytes(value: bytes) -> bytes:
    return pack(">i", len(value)) + value


@lru_cache(maxsize=1_000, typed=True)
def _text(value: str) -> bytes:
    return _bytes(value.encode())


@lru_cache(maxsize=1_000, typed=True)
def _bigint(value: int | None) -> bytes:
    return NULL if value is None else pack(">iq", 8, value)
