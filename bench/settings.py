"""What the figures were taken with."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.lab import Lab
from bench.sizes import BARE_BATCH, BARE_LARGE_BATCH, CONCURRENCY, PROCESSES
from bench.systems.base import ROOT


def describe(lab: Lab) -> dict[str, Any]:
    return {
        "store": lab.store.name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        "packhorse": f"{version('packhorse')} ({_commit()})",
        "source": fingerprint(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "file_system": _file_system(lab.folder),
        "fsync_ms": _fsync_ms(lab.folder),
        "processes": PROCESSES,
        "concurrency": CONCURRENCY,
        "bare_batch": BARE_BATCH,
        "bare_large_batch": BARE_LARGE_BATCH,
        **lab.store.describe(),
    }


def fingerprint() -> str:
    """Of Packhorse's own source, to notice when somebody changes it meanwhile."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "packhorse").rglob("*")):
        if path.suffix in (".py", ".sql"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def _commit() -> str:
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        changed = subprocess.run(["git", "status", "--porcelain", "src"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "no git"
    if head.returncode != 0:
        return "no commit"
    return head.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def _file_system(folder: Path) -> str:
    """Where this is tmpfs, a commit costs nothing and the figures mean little."""
    if sys.platform != "linux":
        return sys.platform
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, name, *_ = line.split()
        inside = str(folder) == point or str(folder).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind


def _fsync_ms(folder: Path) -> float:
    path = folder / "fsync"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    taken = []
    for _ in range(50):
        began = time.perf_counter()
        os.pwrite(handle, b"x" * 4096, 0)
        os.fsync(handle)
        taken.append(time.perf_counter() - began)
    os.close(handle)
    path.unlink()
    return sorted(taken)[25] * 1000
