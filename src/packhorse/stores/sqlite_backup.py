"""A copy of a database, consistent, while others write to it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from packhorse.errors import ConfigError, StoreError
from packhorse.stores.sqlite_connections import Connections, raise_translated
from packhorse.stores.sqlite_health import BESIDE

PAGES_AT_ONCE = 1_000

Progress = Callable[[int, int], None]


def backup(connections: Connections, target: Path, *, replace: bool, progress: Progress) -> list[Path]:
    """Copy the database and its key, wholly or not at all. Returns the files that were made.

    Through SQLite alone: to open the file by other means, and to close it, would drop the locks of this process.
    """
    source = connections.path
    target = target.absolute()
    key, key_target = Path(f"{source}-key"), Path(f"{target}-key")
    has_key = key.exists()
    _check_target(source, target, replace)
    if has_key:
        _check_target(source, key_target, replace)
    try:
        with _draft(target) as draft, _draft(key_target) as key_draft:
            _copy_database(connections, draft, progress)
            made = [target]
            if has_key:  # first, because a database without its key is of no use
                key_draft.write_bytes(key.read_bytes())
                _put_in_place(key_draft, key_target, replace)
                made.append(key_target)
            _put_in_place(draft, target, replace)
            _sync(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise_translated(error)
        raise
    return made


def _check_target(source: Path, target: Path, replace: bool) -> None:
    if not target.parent.is_dir():
        raise ConfigError(f"The folder {target.parent} for the backup does not exist. Create it (mode 0700).")
    if any(_is_same(target, Path(f"{source}{end}")) for end in BESIDE):
        raise ConfigError(f"{target} is a file of the store itself. Name another one for the backup.")
    for end in ("-wal", "-journal"):
        if os.path.exists(f"{target}{end}"):
            raise ConfigError(
                f"There is a {target}{end}, so a program uses that database or has not closed it, and SQLite would mix "
                "the two. Name another file for the backup."
            )
    if target.is_dir():
        raise ConfigError(f"{target} is a folder. Name the file for the backup.")
    if os.path.lexists(target) and not replace:
        raise _exists(target)


def _exists(target: Path) -> ConfigError:
    return ConfigError(f"There already is a file {target}. Name another one, or have it replaced (--force).")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one == other or os.path.samefile(one, other)
    except FileNotFoundError:
        return False


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """An empty file for nobody else's eyes, in the same folder, and gone afterwards."""
    draft = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    try:
        yield draft
    finally:
        for end in ("", "-wal", "-shm", "-journal"):
            with suppress(FileNotFoundError):
                os.unlink(f"{draft}{end}")


def _copy_database(connections: Connections, draft: Path, progress: Progress) -> None:
    def tell(_: int, left: int, total: int) -> None:
        progress(total - left, total)

    with connections.cursor() as c, closing(sqlite3.connect(draft, isolation_level=None)) as copy:
        # One snapshot, else SQLite would begin anew with every commit of somebody else.
        c.execute("begin")
        try:
            c.execute("select count(*) from sqlite_schema").fetchone()
            c.backup(copy, pages=PAGES_AT_ONCE, progress=tell)
        finally:
            c.execute("rollback")
        [found] = copy.execute("pragma integrity_check(1)").fetchone()
        if found != "ok":
            raise StoreError(f"The copy is damaged, and the database perhaps as well: {found}. No backup was made.")


def _put_in_place(draft: Path, target: Path, replace: bool) -> None:
    _sync(draft)
    if replace:
        os.replace(draft, target)
        return
    try:
        os.link(draft, target)
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise _exists(target) from None
        os.rename(draft, target)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
