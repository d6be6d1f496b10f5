"""The stores under test, and a look behind their counters that the contract does not offer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from packhorse.clock import Clock
from packhorse.stores import Store, open_store
from packhorse.stores.memory import MemoryStore
from packhorse.stores.sqlite import SQLiteStore

KINDS = ("memory", "sqlite")
SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder of our own (mode 0700), in memory where the system has such a place: nothing here tests the disk."""
    with TemporaryDirectory(prefix="packhorse-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as folder:
        yield Path(folder)


def opened(kind: str, folder: Path, clock: Clock, options: str = "") -> Store:
    """A new, empty store of a kind; its files, if any, go into the folder."""
    url = "memory://" if kind == "memory" else f"{kind}:///{folder}/jobs.db{options}"
    return open_store(url, clock)


def epochs(store: Store) -> dict[bytes, int]:
    """The epoch of every job."""
    match store:
        case MemoryStore():
            return {id: job.epoch for id, job in store._jobs.items()}
        case SQLiteStore():
            return dict(_rows(store, "select id, epoch from job"))
    raise NotImplementedError(f"say here how to read the epochs of {type(store).__name__}")


def leftovers(store: Store) -> list[str]:
    """Rows that belong to no job, or to one that cannot have them; always empty in a sound store."""
    if not isinstance(store, SQLiteStore):
        return []
    found = []
    for table in ("payload", "ending", "attempt", "tag", "entry"):
        stray = f"select count(*) from {table} where id not in (select id from job)"
        found += [f"{number} rows of {table} without a job" for (number,) in _rows(store, stray) if number]
    for what, query in {
        "jobs without a payload": "select count(*) from job where id not in (select id from payload)",
        "endings of unfinished jobs": "select count(*) from ending join job using (id) where state <= 4",
        "orders to jobs that do not run": "select count(*) from job where asked is not null and state <> 4",
        "running jobs without an owner": "select count(*) from job where state = 4 and process is null",
    }.items():
        found += [f"{number} {what}" for (number,) in _rows(store, query) if number]
    return found


def _rows(store: SQLiteStore, query: str) -> list[tuple]:
    with store._connections.cursor() as c:
        return c.execute(query).fetchall()
