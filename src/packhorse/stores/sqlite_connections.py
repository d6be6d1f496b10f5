"""How the SQLite store reaches its file: pooled connections, one lock in which writers queue, errors translated."""

from __future__ import annotations

import fcntl
import os
import resource
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

from packhorse.errors import SchemaError, StoreDataError, StoreError, StoreFull, StoreUnavailable, StoreUnsafe
from packhorse.stores.sqlite_batches import PrefixedSession, Session
from packhorse.stores.sqlite_place import prepare_place

T = TypeVar("T")

DEADLINE = 5.0
CHECKPOINT_PAGES = 1_000
SPARE = 30.0  # seconds after which a connection that nobody wanted is closed
FOR_OTHERS = 16  # a process may have so many descriptors for each connection it makes ahead, of which that takes three

_open: WeakSet[Connection] = WeakSet()
# What a fork brought along stays referenced for good: SQLite forbids touching it in the child, also closing it.
_inherited: list[object] = []
_forker = 0
# Held while the file or its schema is made. Closing a handle on a new file would drop the locks another thread has just
# got on it.
first_use = threading.RLock()
_gate = threading.RLock()  # shut while a fork is prepared: nobody opens or takes a connection


def _before_fork() -> None:
    # SQLite counts its locks in the memory of the process, and its mutexes are there too. A child that inherits an open
    # connection takes the parent's locks for its own: one that was writing blocks the child for good, and when the
    # parent goes, others may clear away the log that the child still writes to. So wait for all and close them.
    global _forker
    first_use.acquire()
    _gate.acquire()
    if not _inherited:
        _forker = os.getpid()
    deadline = time.monotonic() + DEADLINE
    for connection in list(_open):
        if connection.claim(max(deadline - time.monotonic(), 0)):
            connection.close()


def _after_fork() -> None:
    _gate.release()
    first_use.release()


def _after_fork_in_child() -> None:
    # The lock belongs to the open file that parent and child now share; only its last closing lets go of it.
    for connection in list(_open):
        if not connection.closed:
            _inherited.append(connection)
            connection._close_lock()
    for sqlite, lock in _dropped:
        _inherited.append(sqlite)
        os.close(lock)
    _dropped.clear()
    _open.clear()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


# Whoever can write to the file can write anything. In C, because every text of every row passes through it.
as_text = methodcaller("decode", "utf-8", "backslashreplace")


def check_same(path: Path, inode: int) -> None:
    try:
        same = os.stat(path).st_ino == inode
    except FileNotFoundError:
        same = False
    if not same:
        raise StoreUnsafe(
            f"The database {path} was moved, deleted or replaced while in use. Nothing was written. "
            "Put the file back, or restart every process that uses it."
        )


class Connection:
    """A connection and its own handle on the lock file, so that threads exclude each other as processes do.

    It belongs to the thread that has claimed it, first of all to the one that made it. Anybody may find it closed.
    """

    lock: int
    sqlite: Session

    def __init__(self, path: Path, synchronous: str, inode: int, prefix: str = "") -> None:
        self._claimed = threading.Lock()
        self._user = 0
        self.closed = False
        self.idle_since = 0.0
        self.claim()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with _gate:
            # One call of C: an exception from outside strikes before it or behind it, and loses no descriptor.
            vars(self).update(zip(("lock",), map(os.open, (f"{path}-lock",), (flags,), (0o600,)), strict=True))
            _open.add(self)
        # Also one, so that nothing can come between who is about to release and the release.
        self.release: Callable[[], None] = partial(fcntl.flock, self.lock, fcntl.LOCK_UN)
        try:
            self.acquire()
            # It may have been moved since it was looked at. SQLite would make an empty one in its place, and with the
            # first statement wipe out the log of the other, so it must not make any, and this must be the right one.
            self.sqlite = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=DEADLINE,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=512,
                factory=PrefixedSession if prefix else Session,
            )
            check_same(path, inode)
            if isinstance(self.sqlite, PrefixedSession):
                self.sqlite.prefix = prefix
            self.sqlite.text_factory = as_text
            self._keep_a_log()
            self.sqlite.execute(f"pragma synchronous = {synchronous}")
            self.sqlite.execute("pragma mmap_size = 0")
            self.sqlite.execute("pragma cache_size = -512")
            self.sqlite.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
            self.sqlite.execute("pragma journal_size_limit = 67108864")
            self.release()
        except BaseException:
            try:
                self._close_sqlite()
            finally:
                self.release()
            self.drop()
            raise

    def _keep_a_log(self) -> None:
        """Ask for WAL, as often as needed: in a file without it, SQLite does not wait for whoever writes there."""
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                self.sqlite.execute("pragma journal_mode = wal")
                return
            except sqlite3.OperationalError as error:
                if not is_locked(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)

    def claim(self, timeout: float = 0.0) -> bool:
        """Make it this thread's own; False when it is closed, or another's until the timeout, or this thread's."""
        if self._user == threading.get_ident() or not self._claimed.acquire(timeout=timeout):
            return False
        if self.closed:
            self._claimed.release()
            return False
        self._user = threading.get_ident()
        return True

    def unclaim(self) -> None:
        self._user = 0
        self._claimed.release()

    def acquire(self, patient: bool = False) -> None:
        """Everything that writes or checkpoints happens under this lock, one at a time among all processes.

        The queue is ours because SQLite's own busy handler sleeps up to 100 ms between tries, and because a checkpoint
        beside a commit is what the WAL-reset bug of SQLite before 3.51.3 needs (docs/decisions/0002). The patient let
        others go first for some milliseconds: meanwhile their batch grows.
        """
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._queue_up(patient)

    def _queue_up(self, patient: bool) -> None:
        deadline = time.monotonic() + DEADLINE
        pause = 0.002 if patient else 0.000_1
        while time.monotonic() < deadline:
            time.sleep(pause)
            pause = max(pause * 0.8, 0.000_1)
            try:
                return fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
        raise StoreUnavailable(
            f"Another process has been writing to the database for {DEADLINE:g} s. Try again; if it lasts, "
            "look for a stopped process that holds it."
        )

    def close(self) -> None:
        if self.closed:
            return
        try:
            # The last connection to close checkpoints, hence the lock.
            with suppress(StoreUnavailable):
                self.acquire()
            self._close_sqlite()
        finally:
            self.release()
        self.drop()

    def close_at_once(self) -> bool:
        """False where that would mean to wait for somebody who writes."""
        try:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._close_sqlite()
        finally:
            self.release()
        self.drop()
        return True

    def _close_sqlite(self) -> None:
        if hasattr(self, "sqlite"):
            self.sqlite.close()

    def drop(self) -> None:
        """Nothing is left of it but the handle on the lock file."""
        self._close_lock()
        self.unclaim()

    def _close_lock(self) -> None:
        """Once: the number may be another file's by then."""
        lock, self.lock, self.closed = self.lock, -1, True
        os.close(lock)

    def __del__(self) -> None:
        """Nobody gave it back or closed it: an exception from outside struck whoever had it."""
        if sys.is_finalizing() or vars(self).get("lock", -1) < 0 or self.closed:
            return
        _dropped.append((getattr(self, "sqlite", None), self.lock))
        _close_dropped()


_dropped: list[tuple[sqlite3.Connection | None, int]] = []


def _close_dropped() -> None:
    """As soon as nobody writes: the last connection to close checkpoints."""
    for _ in range(len(_dropped)):
        try:
            sqlite, lock = _dropped.pop()
        except IndexError:
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _dropped.append((sqlite, lock))
            continue
        try:
            if sqlite is not None:
                sqlite.close()
        finally:
            os.close(lock)


class Connections:
    """A pool that grows with the threads that use it at once, and shrinks when they have become fewer."""

    def __init__(self, path: Path, synchronous: str = "full", prefix: str = "") -> None:
        self.path = path
        self.prefix = prefix
        self._synchronous = synchronous
        self._idle: list[Connection] = []  # who came back last is taken first, so the first was idle the longest
        self._tidied_at = 0.0
        self._inode = 0

    @contextmanager
    def cursor(self) -> Iterator[Session]:
        """For reading, each statement by itself."""
        connection = self.take()
        try:
            yield connection.sqlite
        except BaseException as error:
            connection.close()
            raise_translated(error)
            raise
        self.give_back(connection)

    def write(self, work: Callable[[Session], T], *, patient: bool = False) -> T:
        """Do the work in a transaction: all or nothing, and nobody else writes meanwhile.

        In one frame, and what others need is given up by single calls of C at the beginning of a clause, which nothing
        keeps from being made. A context manager would not do: an exception from outside can strike at the entry of its
        `__exit__`, or behind its `__enter__`.
        """
        connection = self.take()
        acquired = committing = False
        whole = False  # it holds nothing, and others may use it
        try:
            try:
                connection.acquire(patient)
                acquired = True
                connection.sqlite.execute("begin immediate")
                answer = work(connection.sqlite)
                committing = True
                if connection.sqlite.in_transaction:
                    connection.sqlite.execute("commit")
                whole = True
            except BaseException as error:
                # A half-read cursor would keep a closed connection, and with it the write lock, alive.
                try:
                    connection.sqlite.rollback()
                except sqlite3.Error:
                    pass
                # Where the commit failed, stay connected, so that the next one writes over what it left in the log.
                # Whoever opened the file anew would read it as a commit, and later ones would build on it, while the
                # disk may never get it: Linux forgets what it could not sync.
                whole = not connection.sqlite.in_transaction and (
                    not acquired or (committing and isinstance(error, sqlite3.Error))
                )
                if not whole:
                    connection.sqlite.close()  # under the lock: it may checkpoint
                raise
        except BaseException as error:
            connection.release()
            if whole:
                self.give_back(connection)
            else:
                connection.drop()
            raise_translated(error)
            raise
        connection.release()
        self.give_back(connection)
        return answer

    def give_back(self, connection: Connection) -> None:
        connection.idle_since = now = time.monotonic()
        connection.unclaim()
        self._idle.append(connection)
        if now - self._tidied_at > SPARE:
            self._tidied_at = now
            self._close_spare(now - SPARE)

    def _close_spare(self, before: float) -> None:
        with suppress(IndexError, ValueError):  # others take and give back meanwhile
            while (spare := self._idle[0]).idle_since < before and spare.claim():
                if not spare.close_at_once():
                    spare.unclaim()
                    return
                self._idle.remove(spare)

    def make_room(self, crowd: int) -> None:
        """For so many threads at once, or as many as there is room for.

        SQLite keeps the file's handles of closed connections for later ones, so a process that has met its crowd once
        has no more descriptors an hour later.
        """
        made: list[Connection] = []
        with suppress(StoreError):  # who needs one later is told what is wrong
            for _ in range(min(crowd, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // FOR_OTHERS)):
                made.append(self.take())
        for connection in made:
            self.give_back(connection)

    def close(self) -> None:
        while (connection := self._take_idle()) is not None:
            connection.close()

    def _take_idle(self) -> Connection | None:
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.claim():
                    return connection
        return None

    def take(self) -> Connection:
        """A connection of one's own, until it is given back."""
        if _inherited and os.getppid() != _forker:
            raise StoreUnsafe(
                "This process was forked while another thread used the database, and its parent has gone with the "
                "locks that kept both safe. Start it as a program of its own, or fork before the store is first used."
            )
        try:
            self._check_place()
            with _gate:
                connection = self._take_idle()
            return connection or Connection(self.path, self._synchronous, self._inode, self.prefix)
        except (sqlite3.Error, OSError) as error:
            raise_translated(error)
            raise

    def _check_place(self) -> None:
        """The file of this path must still be the one we opened: a replaced file would swallow jobs silently."""
        if self._inode:
            check_same(self.path, self._inode)
            return
        with first_use:
            prepare_place(self.path)
            self._inode = os.stat(self.path).st_ino


def is_locked(error: sqlite3.OperationalError) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def raise_translated(error: BaseException) -> None:
    """Say SQLite's errors in the words of the contract; others are left to the caller."""
    text = str(error)
    match error:
        case sqlite3.OperationalError() if "decode" in text:  # and SQLite quotes it
            raise StoreError("SQLite: the database holds a text that is not UTF-8.") from None
        case sqlite3.IntegrityError() if "CHECK" in text:
            raise StoreDataError(f"SQLite cannot store a value of this type: {text}") from error
        case sqlite3.OperationalError() if "no such table" in text or "no such column" in text:
            why = f"{text}: the database has no schema, or an older one. Run `packhorse migrate`."
            raise SchemaError(why) from error
        case sqlite3.OperationalError() if "full" in text:
            raise StoreFull("The disk is full: nothing was written. Free some space.") from error
        case sqlite3.OperationalError() if is_locked(error):
            why = f"A program outside Packhorse has kept the database locked for {DEADLINE:g} s. Find and end it."
            raise StoreUnavailable(why) from error
        case sqlite3.OperationalError():
            raise StoreUnavailable(f"SQLite: {text}. Check the disk and the file's mode.") from error
        case sqlite3.ProgrammingError() if "bind" not in text:
            return
        case (
            sqlite3.DataError()
            | sqlite3.InterfaceError()
            | sqlite3.ProgrammingError()
            | OverflowError()
            | UnicodeEncodeError()
        ):
            raise StoreDataError(f"SQLite cannot store this value: {text}") from error
        case OSError():
            raise StoreUnavailable(f"The database cannot be reached: {text}. Check its folder.") from error
        case sqlite3.DatabaseError():
            raise StoreError(f"SQLite: {text}. If the file is damaged, restore it from a backup.") from error
