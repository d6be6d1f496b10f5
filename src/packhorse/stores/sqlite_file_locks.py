"""Locks that keep a database's log alive while this process writes to it, and the watch over that log.

SQLite's own locks are POSIX locks, which the kernel drops as soon as the process closes *any* descriptor of the file:
copying it is enough. The next program that closes its last connection then takes itself for the only one, and deletes
the log that this process still writes to. An open file description lock stays until its own descriptor is closed, and
excludes POSIX locks, also those of the same process (docs/decisions/0027).
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from weakref import WeakSet

from packhorse.errors import StoreUnsafe

# Where SQLite locks: the bytes of the database that each connection holds for reading, and the byte of the index of the
# log that says that somebody uses it.
SHARED_FIRST, SHARED_SIZE = 0x4000_0002, 510
DEAD_MAN_SWITCH = 128
PATIENCE = 5.0  # as long as somebody else closes the file

OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None)

log = logging.getLogger("packhorse.store")

Identity = tuple[int, int]

_guards: dict[Identity, FileGuard] = {}
# An exception may be raised into a thread between any two calls. So a descriptor is always in one of these lists or in
# a guard, and goes from one place to the next by a single call of C.
_kept: dict[Identity, list[int]] = {}  # descriptors whose closing would drop somebody's locks
_loose: list[int] = []  # those that were just opened or let go of
_mutex = threading.RLock()


def _identity(seen: os.stat_result) -> Identity:
    return seen.st_dev, seen.st_ino


class FileGuard:
    """One database file as this process has it open: the locks on it, and the log that its connections write to."""

    _main: int
    index: int
    log_inode: int

    def __init__(self, path: Path, database: Identity) -> None:
        self.path = path
        self.users: WeakSet[object] = WeakSet()
        self.locked = False
        self.lost = ""  # what is wrong with the log; then nobody may write any more, and closing must not checkpoint
        self.beyond_recovery = False
        self._database = database
        self._log_path = f"{path}-wal"
        try:
            self._open("_main", path, database)
            self._open("index", f"{path}-shm", _identity(os.stat(f"{path}-shm")))
            self.locked = self._lock()
            self.log_inode = os.stat(self._log_path).st_ino
        except BaseException:
            self._drop()
            raise

    def _open(self, name: str, path: Path | str, expected: Identity) -> None:
        if not _kept.get(expected):
            _loose.extend(map(os.open, (path,), (os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW,)))
            _sort_out()
        if not _kept.get(expected):
            _close_kept()
            raise StoreUnsafe(f"The database {path} was replaced while it was opened. Try again.")
        vars(self).update(zip((name,), map(_kept[expected].pop, (-1,)), strict=True))

    def _lock(self) -> bool:
        try:
            _set_lock(self._main, fcntl.F_RDLCK, SHARED_FIRST, SHARED_SIZE)
            _set_lock(self.index, fcntl.F_RDLCK, DEAD_MAN_SWITCH, 1)
        except BlockingIOError:
            raise
        except OSError as error:
            log.info("no lock on %s lasts here (%s): a log that is gone can only be noticed", self.path, error)
            return False
        return True

    def unlock(self) -> None:
        self.locked = False
        with suppress(OSError):
            _set_lock(self._main, fcntl.F_UNLCK, SHARED_FIRST, SHARED_SIZE)
            _set_lock(self.index, fcntl.F_UNLCK, DEAD_MAN_SWITCH, 1)

    def keeps_log(self) -> bool:
        """Whether the log of the database still is the one that this process writes to."""
        try:
            return os.stat(self._log_path).st_ino == self.log_inode
        except FileNotFoundError:
            return False

    def leave(self, user: object) -> None:
        """To be called before a connection is closed: the last one of all must be able to checkpoint."""
        with _mutex:
            self.users.discard(user)
            if not self.users and not self.lost:
                self.unlock()

    def settle(self) -> None:
        """To be called after a connection was closed, while nobody opens another one."""
        with _mutex:
            if not self.users and not self.beyond_recovery and _guards.get(self._database) is self:
                del _guards[self._database]
                self._drop()

    def _drop(self) -> None:
        if hasattr(self, "index"):
            self.unlock()
        self._let_go()
        _sort_out()
        _close_kept()

    def _let_go(self) -> None:
        held = map(vars(self).pop, ("index", "_main"), (None, None))
        _loose.extend(filter(None, held))  # a database is never descriptor 0

    def __del__(self) -> None:
        """Struck while it was made. Whoever comes next closes what it held."""
        if _loose is not None:  # at the interpreter's end modules are gone before objects
            self._let_go()


def join(path: Path, inode: int, user: object) -> FileGuard:
    """Count a connection in, whose log is open. The first one of the process locks."""
    with _mutex:
        sweep()
        _sort_out()
        seen = os.stat(path)
        guard = _guards.get(_identity(seen))
        if guard is not None and guard.lost:
            raise StoreUnsafe(guard.lost)
        if guard is not None and not guard.users:
            guard.settle()
            guard = None
        if guard is not None and not guard.keeps_log():
            raise StoreUnsafe(f"The log of {path} was deleted or replaced while it was opened. Nothing was written.")
        if guard is None:
            guard = _guards[_identity(seen)] = FileGuard(path, (seen.st_dev, inode))
        guard.users.add(user)
        return guard


def guard_of(path: Path) -> FileGuard | None:
    """Return what this process knows of a file that it has open already."""
    if not _guards:
        return None
    with suppress(FileNotFoundError):
        return _guards.get(_identity(os.stat(path)))
    return None


def sweep() -> None:
    """Where connections were dropped without being closed, SQLite has closed them."""
    for guard in _guards.values():
        if not guard.users and not guard.lost:
            guard.unlock()


def put_away(fd: int) -> None:
    """Close a descriptor of a database or of a file beside it: now, or when this drops no lock of this process."""
    with _mutex:
        _loose.append(fd)
        _sort_out()
        _close_kept()


def tidy() -> None:
    """To be called after a connection was closed, which may have been in the way of closing ours."""
    if _kept or _loose:
        with _mutex:
            _sort_out()
            _close_kept()


def _sort_out() -> None:
    while _loose:
        _kept.setdefault(_identity(os.fstat(_loose[-1])), []).extend(map(_loose.pop, (-1,)))


def _close_kept() -> None:
    """Those of files that nobody else in this process has open."""
    for identity, ours in list(_kept.items()):
        if not _is_open_elsewhere(identity, ours):
            del _kept[identity]
            deque(map(os.close, map(ours.pop, repeat(-1, len(ours)))), maxlen=0)


def _is_open_elsewhere(identity: Identity, ours: list[int]) -> bool:
    try:
        return any(fd not in ours for fd in descriptors_of(identity))
    except OSError:
        return True  # nobody can say


def descriptors_of(identity: Identity) -> Iterator[int]:
    """Descriptors of this process for a file."""
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        with suppress(OSError):
            if _identity(os.fstat(int(name))) == identity:
                yield int(name)


def _set_lock(fd: int, kind: int, start: int, length: int) -> None:
    """Wait for a moment where it conflicts: somebody who took himself for the last is about to close."""
    if OFD_SETLK is None:
        raise OSError("there are no open file description locks")
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.fcntl(fd, OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))
            return
        except (BlockingIOError, PermissionError):
            if time.monotonic() > deadline:
                raise BlockingIOError("another program has it locked for itself alone") from None
        time.sleep(0.005)


@atexit.register
def _unlock_all() -> None:
    """A program that ends without closing its store leaves a file without a log, too."""
    with _mutex:
        for guard in _guards.values():
            if not guard.lost:
                guard.unlock()


# Around a fork.


def before_fork() -> None:
    _mutex.acquire()


def after_fork() -> None:
    _mutex.release()


def after_fork_in_child() -> None:
    for guard in _guards.values():
        guard._let_go()  # and no more: the locks are the parent's
    for fds in _kept.values():
        for fd in fds:
            os.close(fd)
    for fd in _loose:
        os.close(fd)
    _guards.clear()
    _kept.clear()
    _loose.clear()
    after_fork()
