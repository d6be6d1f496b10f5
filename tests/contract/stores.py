"""The stores under test, and a look behind their counters that the contract does not offer."""

import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from packhorse.clock import Clock
from packhorse.job import JobState
from packhorse.stores import Store, open_store, postgres_history
from packhorse.stores.memory import MemoryStore
from packhorse.stores.postgres import PostgresStore
from packhorse.stores.postgres_connections import Connections
from packhorse.stores.postgres_strokes import Strokes
from packhorse.stores.sql_store import SQLStore
from packhorse.testing.contract.behind import epochs, leftovers
from tests.servers.postgres import Server

KINDS = ("memory", "sqlite", "postgres")
SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder of our own (mode 0700), in memory where the system has such a place: nothing here tests the disk."""
    with TemporaryDirectory(prefix="packhorse-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as folder:
        yield Path(folder)


def emptied(folder: Path) -> Path:
    """Made, or made anew."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    return folder


def opened(kind: str, folder: Path, clock: Clock) -> Store:
    """A new, empty store of a kind; its files, if any, go into the folder."""
    url = "memory://" if kind == "memory" else f"{kind}:///{folder}/jobs.db"
    return open_store(url, clock)


FRESH = ("test_anything_may_come_first", "test_migrating_twice_does_nothing_more")  # what the first use does
SHARED_SCHEMA = "store_0"
EMPTY = """
do $$
declare one text;
begin
    for one in select tablename from pg_tables where schemaname = '{schema}' and tablename !~ '(_schema|ledger)$' loop
        execute format('delete from {schema}.%I', one);
        if one ~ 'signal$' then
            perform setval(pg_get_serial_sequence('{schema}.' || one, 'n'), 1, false);
        end if;
    end loop;
end
$$
"""
_numbers = count(1)


@contextmanager
def schemas(server: Server, *, fresh: bool = True) -> Iterator[Iterator[str]]:
    """URLs of empty stores, of which the last is gone when the next is asked for.

    A schema of its own for each takes 25 ms with its end, as a database from a template does; to empty the tables of
    one takes 5. So most tests share one, and some are the first to use theirs.
    """

    def urls() -> Generator[str, None, None]:
        while True:
            name = f"store_{next(_numbers)}" if fresh else SHARED_SCHEMA
            try:
                yield server.url("postgres", schema=name)
            finally:
                server.run(f"drop schema if exists {name} cascade" if fresh else EMPTY.format(schema=name))

    found = urls()
    try:
        yield found
    finally:
        found.close()


class KeptLines(Connections):
    """They outlive the stores that use them, with all that was prepared on them."""

    def close(self) -> None:
        pass


_kept: dict[tuple[Server, str], KeptLines] = {}


def on_kept_lines(server: Server, url: str, clock: Clock) -> Store:
    """A store of a shared schema. To connect anew for each test, and plan anew, would take most of its time."""
    store = PostgresStore(url, clock)
    key = server, store.schema
    if key not in _kept:
        store.migrate()
        _kept[key] = KeptLines(store._connections._conninfo, store.schema)
    store.close()
    store._connections, store._strokes = _kept[key], Strokes(_kept[key])
    store._migrated = True
    return store


@epochs.register
def _(store: MemoryStore) -> dict[bytes, int]:
    return {id: job.epoch for id, job in store._jobs.items()}


@epochs.register(SQLStore)
def _(store: SQLStore) -> dict[bytes, int]:
    return dict(_rows(store, "select id, epoch from job"))


@leftovers.register
def _(store: MemoryStore) -> list[str]:
    found = []
    for job in store._jobs.values():
        ended = (job.outcome, job.finished_at, job.prune_at, job.result_until)
        found += [f"an ending of {job.new.id!r}"] * (not job.state.finished and any(one is not None for one in ended))
        held = (job.token, job.claimed_at, job.order)
        running = job.state is JobState.RUNNING
        found += [f"a claim on {job.new.id!r}"] * (not running and any(one is not None for one in held))
        found += [f"a line of {job.new.id!r}"] * (job.state is not JobState.WAITING and job.waits_on != "")
        scheduled = job.state is JobState.SCHEDULED
        found += [f"{job.new.id!r} among those who await a signal"] * (not scheduled and job.awaits is not None)
    able = {id: job.state for id, job in store._jobs.items()}
    for key, taken in store._permits.items():
        strangers = [id for id in taken.values() if able.get(id) not in (JobState.READY, JobState.RUNNING)]
        found += [f"permits of {key} without a job that may run"] * bool(strangers)
        found += [f"two permits of {key} for one job"] * (len(set(taken.values())) < len(taken))
    for key, rate in store._rates.items():
        waiting = [id for id in rate.tickets if able.get(id) is not JobState.READY]
        found += [f"tickets of {key} without a job that is ready"] * bool(waiting)
    for key, (id, lapses_at) in store._unique.items():
        over = lapses_at is None and (id not in able or able[id].finished)
        found += [f"the key {key} of a job that has finished"] * over
    return found


@leftovers.register(SQLStore)
def _(store: SQLStore) -> list[str]:
    found = []
    tables = ["payload", "ending", "attempt", "tag", "entry", "hold", "permit", "ticket", "member"]
    if isinstance(store, PostgresStore):
        with store._cursor() as c:
            if postgres_history.is_divided(c):  # then the rows of those that were pruned wait for their partition's end
                tables[:3] = [f"{table}_rest" for table in tables[:3]]
    for table in tables:
        stray = f"select count(*) from {table} where id not in (select id from job)"
        found += [f"{number} rows of {table} without a job" for (number,) in _rows(store, stray) if number]
    for what, query in {
        "edges to jobs that are gone": "select count(*) from edge where child not in (select id from job)",
        "jobs at a gate that watch nobody who could open it": "select count(*) from job where waits_on = 'gate:' "
        "and not exists (select 1 from edge join job as other on other.id = parent "
        "where child = job.id and parent = job.watched and ended = 0 and other.state < 5)",
        "jobs at a gate that watch another than the first": "select count(*) from job where waits_on = 'gate:' "
        "and exists (select 1 from edge join job as other on other.id = parent "
        "where child = job.id and parent < job.watched and ended = 0 and other.state < 5)",
        "jobs without a payload": "select count(*) from job where id not in (select id from payload)",
        "endings of unfinished jobs": "select count(*) from ending join job using (id) where state <= 4",
        "orders to jobs that do not run": "select count(*) from job where asked is not null and state <> 4",
        "seals without an order": "select count(*) from job where asked_seal is not null and asked is null",
        "jobs that await a signal without being scheduled": (
            "select count(*) from job where awaits is not null and state <> 1"
        ),
        "running jobs without an owner": "select count(*) from job where state = 4 and process is null",
        "unfinished jobs to prune": "select count(*) from job where prune_at is not null and state <= 4",
        "permits of jobs that may not run": "select count(*) from permit join job using (id) where state not in (3, 4)",
        "permits too many for one job": "select count(*) from permit as one join permit as two "
        "on one.key = two.key and one.id = two.id and one.n < two.n",
        "tickets of jobs that are not ready": "select count(*) from ticket join job using (id) where state <> 3",
        "lines of jobs that do not wait": "select count(*) from job where waits_on <> '' and state <> 2",
        "unique keys of jobs that have finished": "select count(*) from unique_key where lapses_at is null "
        "and id not in (select id from job where state <= 4)",
        "moments to forget no result": "select count(*) from ending where result_until is not null and result is null",
    }.items():
        found += [f"{number} {what}" for (number,) in _rows(store, query) if number]
    return found


def _rows(store: SQLStore, query: str) -> list[tuple]:
    with store._cursor() as c:
        rows: list[tuple] = c.execute(query).fetchall()
        return rows
