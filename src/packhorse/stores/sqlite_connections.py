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
from pathlib import Path
from typing import NoReturn, TypeVar
from weakref import WeakSet

from packhorse.errors import HeldUp, SchemaError, StoreDataError, StoreError, StoreFull, StoreUnavailable, StoreUnsafe
from packhorse.stores import sqlite_file_locks, sqlite_holders
from packhorse.stores.sqlite_batches import Session
from packhorse.stores.sqlite_file_locks import FileGuard
from packhorse.stores.sqlite_lost_log import close_without_checkpoint, give_up_log
from packhorse.stores.sqlite_opening import check_same, configure, connect, is_locked, keep_log
from packhorse.stores.sqlite_place import prepare_place
from packhorse.stores.sqlite_queue import POLL_EVERY, forget_waiters, queue_of

T = TypeVar("T")

DEADLINE = 5.0
CHECKPOINT_PAGES = 1_000
PATIENT_PAUSE = 0.002
WAITED = 0.005  # seconds: in the queue nobody else is, so whoever had the lock was a program outside
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
    sqlite_file_locks.before_fork()


def _after_fork() -> None:
    _gate.release()
    first_use.release()


def _after_fork_in_parent() -> None:
    sqlite_file_locks.after_fork()
    _after_fork()


def _after_fork_in_child() -> None:
    # The lock belongs to the open file that parent and child now share; only its last closing lets go of it.
    for connection in list(_open):
        if not connection.closed:
            _inherited.append(connection)
            connection._close_lock()
    for sqlite, lock, _ in _dropped:
        _inherited.append(sqlite)
        os.close(lock)
    _dropped.clear()
    _open.clear()
    forget_waiters()
    sqlite_file_locks.after_fork_in_child()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


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
        self._waited = False
        self.guard: FileGuard | None = None  # none where the file system allows no log
        self.claim()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with _gate:
            # One call of C: an exception from outside strikes before it or behind it, and loses no descriptor.
            vars(self).update(zip(("lock",), map(os.open, (f"{path}-lock",), (flags,), (0o600,)), strict=True))
            self._queue = queue_of(self.lock)
            _open.add(self)
        # Also one, so that nothing can come between who is about to release and the release.
        self.release: Callable[[], None] = partial(fcntl.flock, self.lock, fcntl.LOCK_UN)
        try:
            _check_log_of_others(path)
            self.acquire()
            self.sqlite = connect(path, prefix, DEADLINE)
            check_same(path, inode)
            if keep_log(self.sqlite, DEADLINE):
                self.guard = sqlite_file_locks.join(path, inode, self)
            configure(self.sqlite, synchronous, CHECKPOINT_PAGES)
            self.release()
        except BaseException:
            try:
                self._close_sqlite()
            finally:
                self.release()
            self.drop()
            raise

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
            self._waited = bool(self._queue.waiting) or not self._try_lock()
            if not self._waited:
                return
            if patient and self._let_others_go_first():
                return
            if self._queue.wait(self._try_lock, DEADLINE):
                return
            raise StoreUnavailable(
                f"Another process has been writing to the database for {DEADLINE:g} s. Try again; if it lasts, "
                "look for a stopped process that holds it."
            )
        except BaseException:
            self.release()  # an exception may be raised into a thread that has got it a moment ago
            raise

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _let_others_go_first(self) -> bool:
        """True when it was free in one of the pauses."""
        pause = PATIENT_PAUSE
        while pause > POLL_EVERY:
            time.sleep(pause)
            pause *= 0.8
            if not self._queue.waiting and self._try_lock():
                return True
        return False

    def check_log_after_waiting(self) -> None:
        """Look again where another may have written since the connection was taken."""
        if self._waited:
            self.check_log()

    def check_log(self) -> None:
        """The log must be the one that this process writes to: in another, nobody would find what is written."""
        guard = self.guard
        if guard is not None and (guard.lost or not guard.keeps_log()):
            self._refuse_log(guard)

    def _refuse_log(self, guard: FileGuard) -> NoReturn:
        """Save what is in it, close all connections to it, and say so."""
        self.close()
        for other in list(_open):
            if other.guard is guard and other.claim():
                other.close()
        raise StoreUnsafe(guard.lost)

    def close(self) -> None:
        if self.closed:
            return
        try:
            # The last connection to close checkpoints, hence the lock. Where it is held already, nobody is waited for.
            alone = self._try_lock()
            if not alone:
                with suppress(StoreUnavailable):
                    self.acquire()
                    alone = True
            self._close_sqlite(alone)
        finally:
            self.release()
        self.drop()

    def close_at_once(self) -> bool:
        """False where that would mean to wait for somebody who writes."""
        try:
            if not self._try_lock():
                return False
            self._close_sqlite()
        finally:
            self.release()
        self.drop()
        return True

    def _close_sqlite(self, alone: bool = True) -> None:
        if not hasattr(self, "sqlite"):
            return
        if (guard := self.guard) is not None:
            if not guard.keeps_log():
                give_up_log(guard, self.sqlite)
            guard.leave(self)
        _close_session(self.sqlite, self.guard, alone)

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
        # At the interpreter's end modules are gone before objects.
        if sys is None or sys.is_finalizing() or vars(self).get("lock", -1) < 0 or self.closed:
            return
        _dropped.append((getattr(self, "sqlite", None), self.lock, self.guard))
        _close_dropped()


_dropped: list[tuple[Session | None, int, FileGuard | None]] = []


def _close_dropped() -> None:
    """As soon as nobody writes: the last connection to close checkpoints."""
    for _ in range(len(_dropped)):
        try:
            sqlite, lock, guard = _dropped.pop()
        except IndexError:
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _dropped.append((sqlite, lock, guard))
            continue
        try:
            if sqlite is not None:
                sqlite_file_locks.sweep()
                _close_session(sqlite, guard, alone=True)
        finally:
            os.close(lock)


def _close_session(sqlite: Session, guard: FileGuard | None, alone: bool) -> None:
    if guard is not None and guard.lost:
        close_without_checkpoint(sqlite, guard)
    else:
        sqlite.close()
    if guard is not None and alone:
        guard.settle()
    sqlite_file_locks.tidy()


def _check_log_of_others(path: Path) -> None:
    """Connections of one process must not use two logs: SQLite shares the index of the log among them."""
    guard = sqlite_file_locks.guard_of(path)
    if guard is None or not (guard.lost or (guard.users and not guard.keeps_log())):
        return
    for other in [each for each in list(_open) if each.guard is guard and each.claim()]:
        try:
            other.check_log()
        finally:
            if not other.closed:
                other.unclaim()
    raise StoreUnsafe(guard.lost or f"The log {path}-wal was deleted or replaced while in use. Nothing was written.")


class Connections:
    """A pool that grows with the threads that use it at once, and shrinks when they have become fewer."""

    def __init__(self, path: Path, synchronous: str = "full", prefix: str = "") -> None:
        self.path = path
        self._name = str(path)  # quicker to look up
        self.prefix = prefix
        self._synchronous = synchronous
        self._idle: list[Connection] = []  # who came back last is taken first, so the first was idle the longest
        self._tidied_at = 0.0
        self._inode = 0
        self._was_held_up = False
        self.after_waiting: Callable[[Session], None] = lambda c: None  # the first in a transaction that had to wait

    def raise_held_up(self, error: StoreUnavailable) -> None:
        """For one who waited in the queue, if whoever is first in it is held up by a program outside."""
        if not isinstance(error, HeldUp) and sqlite_holders.holders(self.path):
            who = sqlite_holders.tell(self.path)
            raise HeldUp(f"{who} has kept the database locked for {DEADLINE:g} s. Find and end it.") from error

    def begin(self, connection: Connection) -> None:
        """Begin a transaction that writes, under the writers' lock.

        Wait for programs outside, whose transactions may last. Ours are waited for in the queue.
        """
        connection.check_log_after_waiting()
        began = time.monotonic()
        try:
            connection.sqlite.execute("begin immediate")
        except sqlite3.OperationalError as error:
            if not is_locked(error):
                raise
            self._was_held_up = True
            who = sqlite_holders.tell(self.path)
            raise HeldUp(f"{who} has kept the database locked for {DEADLINE:g} s. Find and end it.") from error
        if self._was_held_up or time.monotonic() - began > WAITED:
            self.after_waiting(connection.sqlite)
            self._was_held_up = False

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
                self.begin(connection)
                answer = work(connection.sqlite)
                committing = True
                if connection.sqlite.in_transaction:
                    connection.sqlite.execute("commit")
                whole = True
            except BaseException as error:
                if connection.closed:  # together with the log that it wrote to
                    raise
                # A half-read cursor would keep a closed connection, and with it the write lock, alive.
                try:
                    connection.sqlite.rollback()
                except sqlite3.Error:
                    pass
                # Where the commit failed, stay connected, so that the next one writes over what it left in the log.
                # Whoever opened the file anew would read it as a commit, and later ones would build on it, while the
                # disk may never get it: Linux forgets what it could not sync.
                whole = not connection.sqlite.in_transaction and (
                    not acquired or isinstance(error, HeldUp) or (committing and isinstance(error, sqlite3.Error))
                )
                if not whole:
                    connection._close_sqlite()  # under the lock: it may checkpoint
                raise
        except BaseException as error:
            if not connection.closed:
                connection.release()
                if whole:
                    self.give_back(connection)
                else:
                    connection.drop()
            if not acquired and isinstance(error, StoreUnavailable):
                self.raise_held_up(error)
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

    def stay(self) -> None:
        """Have a connection of our own open: the locks that come with it protect borrowed ones, too."""
        guard = sqlite_file_locks.guard_of(self.path)
        if guard is None or not guard.users:
            self.give_back(self.take())

    def close(self) -> None:
        while (connection := self._take_idle()) is not None:
            connection.close()
        sqlite_file_locks.tidy()

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
            if connection is None:
                return Connection(self.path, self._synchronous, self._inode, self.prefix)
            connection.check_log()
            return connection
        except StoreUnavailable as error:
            self.raise_held_up(error)
            raise
        except (sqlite3.Error, OSError) as error:
            raise_translated(error)
            raise

    def _check_place(self) -> None:
        """The file of this path must still be the one we opened: a replaced file would swallow jobs silently."""
        if self._inode:
            check_same(self._name, self._inode)
            return
        with first_use:
            prepare_place(self.path)
            self._inode = os.stat(self.path).st_ino


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
