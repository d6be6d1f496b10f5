"""How a connection to a SQLite file is opened and set up."""

from __future__ import annotations

import os
import sqlite3
import time
from operator import methodcaller
from pathlib import Path

from packhorse.errors import StoreUnsafe
from packhorse.stores.sqlite_batches import PrefixedSession, Session

# Whoever can write to the file can write anything. In C, because every text of every row passes through it.
as_text = methodcaller("decode", "utf-8", "backslashreplace")


def check_same(path: Path | str, inode: int) -> None:
    try:
        same = os.stat(path).st_ino == inode
    except FileNotFoundError:
        same = False
    if not same:
        raise StoreUnsafe(
            f"The database {path} was moved, deleted or replaced while in use. Nothing was written. "
            "Put the file back, or restart every process that uses it."
        )


def connect(path: Path, prefix: str, patience: float) -> Session:
    """Open the file. Another one may have been put in its place: `check_same` is to be called next."""
    # It may have been moved since it was looked at. SQLite would make an empty one in its place, and with the first
    # statement wipe out the log of the other, so it must not make any, and this must be the right one.
    session = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=patience,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
        factory=PrefixedSession if prefix else Session,
    )
    if isinstance(session, PrefixedSession):
        session.prefix = prefix
    session.text_factory = as_text
    return session


def keep_log(session: Session, patience: float) -> bool:
    """Ask for WAL, as often as needed: in a file without it, SQLite does not wait for whoever writes there.

    False where the file system does not allow it.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            [mode] = session.execute("pragma journal_mode = wal").fetchone()
            session.execute("pragma schema_version").fetchone()  # which opens the log, or makes it
            return bool(mode == "wal")
        except sqlite3.OperationalError as error:
            if not is_locked(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.005)


def configure(session: Session, synchronous: str, checkpoint_pages: int) -> None:
    session.execute(f"pragma synchronous = {synchronous}")
    session.execute("pragma mmap_size = 0")
    session.execute("pragma cache_size = -512")
    session.execute(f"pragma wal_autocheckpoint = {checkpoint_pages}")
    session.execute("pragma journal_size_limit = 67108864")


def is_locked(error: sqlite3.OperationalError) -> bool:
    return "locked" in str(error) or "busy" in str(error)
