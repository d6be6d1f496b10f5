"""Where a database file may lie, and for whom."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from packhorse.errors import StoreUnsafe
from packhorse.stores.sqlite_file_locks import put_away

NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "lustre", "glusterfs", "9p"}
NETWORK_FILE_SYSTEMS |= {"fuse.glusterfs", "fuse.sshfs", "fuse.s3fs", "fuse.rclone"}


def prepare_place(path: Path) -> None:
    """Refuse a place where others could put their own file; make ours readable to nobody else."""
    folder = path.parent
    if not folder.is_dir():
        raise StoreUnsafe(
            f"The folder {folder} for the database does not exist. Create it (mode 0700), then try again."
        )
    if folder.stat().st_mode & stat.S_IWOTH:
        raise StoreUnsafe(
            f"The folder {folder} is writable for everyone, so anyone could replace the database in it. "
            f"Use another folder, or chmod o-w {folder}."
        )
    if path.is_symlink():
        raise StoreUnsafe(f"The database {path} is a symbolic link. Name the file it points to instead.")
    if (kind := _file_system(folder)) in NETWORK_FILE_SYSTEMS:
        raise StoreUnsafe(
            f"The database {path} lies on a network file system ({kind}), where SQLite's locks cannot be trusted. "
            "Move it to a local disk, or use a server store."
        )
    if _size(f"{path}-wal") and not _size(path):  # looked at in this order: a new database is written before its log
        raise StoreUnsafe(
            f"The database {path} is gone, but jobs of it are still in {path}-wal, which a new one would wipe out. "
            f"Put the file back; if its jobs are not wanted any more, delete {path}-wal and {path}-shm."
        )
    try:
        # Another connection of this process may have found it meanwhile; to close this one would drop its locks.
        put_away(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        owner = path.stat().st_uid
        if owner not in (os.geteuid(), 0) and os.geteuid() != 0:
            raise StoreUnsafe(
                f"The database {path} belongs to another user (uid {owner}). Run as that user, or use your own file."
            ) from None
        if not os.access(path, os.R_OK | os.W_OK):
            raise StoreUnsafe(f"The database {path} cannot be read and written by this user. Check its mode.") from None
    except OSError as error:
        raise StoreUnsafe(
            f"The database {path} cannot be created: {error.strerror}. Check the folder's mode."
        ) from None


def _size(path: str | Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _file_system(folder: Path) -> str:
    """The type of the mount a folder is on; empty where the system does not tell."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""
    return mount_type(str(folder.resolve()), mounts)


def mount_type(place: str, mounts: str) -> str:
    """The type of the innermost mount around a place, by the lines of /proc/self/mountinfo."""
    best, kind = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), left.split()[4])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind
