"""SQLite: a database is a file."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.stores.base import MeasuredStore
from bench.systems.bare import BareLargeSystem, BareOneSystem, BareSystem
from bench.systems.huey_peer import HueySystem


class MeasuredSQLite(MeasuredStore):
    name = "sqlite"
    bares = (BareSystem, BareLargeSystem)
    bare_one = BareOneSystem
    peers = (HueySystem,)

    def describe(self) -> dict[str, Any]:
        huey = HueySystem(self.lab)
        synchronous = {0: "off", 1: "normal", 2: "full", 3: "extra"}[huey.synchronous()]
        huey.close()
        return {
            "sqlite": sqlite3.sqlite_version,
            "huey": version("huey"),
            "journal_mode": "wal",
            "synchronous": {"packhorse": "full (its default)", "huey": f"{synchronous} (its default)", "bare": "full"},
            "results": "kept, every system at its defaults; the no-op returns None",
        }

    def new(self, name: str) -> str:
        return str(self.lab.new_folder(name) / "jobs.sqlite3")

    def copy(self, database: str) -> str:
        """With the key beside the file, or no job of Packhorse could be read."""
        copy = self.new("copy")
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        if (key := Path(f"{database}-key")).exists():
            shutil.copy(key, f"{copy}-key")
        return copy

    def url(self, database: str) -> str:
        return f"sqlite:///{database}"

    def settle(self, database: str) -> None:
        os.sync()  # half a gigabyte on its way to the disk would slow down whoever is measured first
