"""What is done for a log that was deleted or replaced while this process writes to it."""

from __future__ import annotations

import ctypes
import logging
import os
import sqlite3
import struct
import time
from pathlib import Path

from packhorse.stores.sqlite_file_locks import FileGuard, descriptors_of

# In the index of the log: how many pages the log has, and how many of them are in the database already.
PAGES_AT, WRITTEN_AT = 16, 96
INDEX_HEAD = 136

log = logging.getLogger("packhorse.store")


def give_up_log(guard: FileGuard, sqlite: sqlite3.Connection) -> None:
    """Bring what is in the log into safety and say in `guard.lost` what has happened.

    To be called with the writers' lock. From now on connections are closed without a checkpoint.
    """
    if guard.lost:
        return
    guard.lost = f"The log {guard.path}-wal was deleted or replaced while in use. Nothing was written. Try again."
    # Connections that cannot be closed keep the index of the old log, and new ones of this process would share it.
    guard.beyond_recovery = not (guard.locked or hasattr(sqlite, "setconfig"))
    try:
        guard.lost = _rescued(guard, sqlite) or _set_aside(guard)
    except OSError as error:
        guard.beyond_recovery = True
        guard.lost = (
            f"The log {guard.path}-wal was deleted or replaced while in use, and its jobs could not be saved: {error}. "
            "Nothing was written. Restart every process that uses the database."
        )
    log.error("%s", guard.lost)


def _rescued(guard: FileGuard, sqlite: sqlite3.Connection) -> str | None:
    if not (_nobody_has_written_since(guard) and _written_down(sqlite)) and _pages_missing(guard):
        return None
    remedy = "Restart this process" if guard.beyond_recovery else "Try again"
    return (
        f"The log {guard.path}-wal was deleted or replaced while in use. All that was in it is in the database; what "
        f"was to be written now was not. {remedy}, and leave the files beside a database alone."
    )


def _nobody_has_written_since(guard: FileGuard) -> bool:
    """Else our log is older than the database, and must not be written into it.

    While our locks held, whoever opened the database has left a log behind. Without them it could be away again.
    """
    try:
        if os.stat(f"{guard.path}-wal").st_size:
            return False
    except FileNotFoundError:
        pass
    if guard.locked:
        return True
    deleted_at = max((os.fstat(fd).st_ctime_ns for fd in _log_descriptors(guard)), default=0)
    return os.stat(guard.path).st_mtime_ns <= deleted_at


def _written_down(sqlite: sqlite3.Connection) -> bool:
    """Copy the log into the database, wholly, and empty it: others may still read it together with its index."""
    try:
        if sqlite.in_transaction:
            sqlite.execute("rollback")
        [busy, *_] = sqlite.execute("pragma wal_checkpoint(truncate)").fetchone()
    except sqlite3.Error:
        return False
    return not busy


def _pages_missing(guard: FileGuard) -> bool:
    head = os.pread(guard.index, INDEX_HEAD, 0)
    if len(head) < INDEX_HEAD:
        return True
    [pages], [written] = struct.unpack_from("=I", head, PAGES_AT), struct.unpack_from("=I", head, WRITTEN_AT)
    return bool(pages > written)


def _set_aside(guard: FileGuard) -> str:
    guard.beyond_recovery = True
    aside = Path(f"{guard.path}-wal-lost-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}")
    [source, *_] = [*_log_descriptors(guard), -1]
    copy = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        position = 0
        while part := os.pread(source, 1 << 20, position):
            position += os.write(copy, part)
        os.fsync(copy)
    finally:
        os.close(copy)
    return (
        f"The log {guard.path}-wal was deleted or replaced while in use, and others have written since. Jobs that were "
        f"in it only are in {aside}. Nothing was written now. Restart every process that uses the database; see "
        '"When the log is gone" in the guide\'s page on deploying.'
    )


def _log_descriptors(guard: FileGuard) -> list[int]:
    """SQLite's own ones."""
    return list(descriptors_of((os.stat(guard.path).st_dev, guard.log_inode)))


def close_without_checkpoint(sqlite: sqlite3.Connection, guard: FileGuard) -> None:
    """Close a connection to a log that is not the database's any more."""
    if guard.locked:
        sqlite.close()  # which finds that it is not alone
    elif hasattr(sqlite, "setconfig"):
        sqlite.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)  # type: ignore[attr-defined]
        sqlite.close()
    else:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(sqlite))  # never closed: Python 3.11 cannot do it without
