"""The place where measuring happens: private folders, progress, and a list of what went wrong."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.sizes import Sizes

if TYPE_CHECKING:
    from bench.stores import MeasuredStore

SHARED_MEMORY = Path("/dev/shm")


class Lab:
    """Files live in two folders of mode 0700 that are gone afterwards: databases on disk, tapes in memory."""

    store: MeasuredStore

    def __init__(
        self, sizes: Sizes, make_store: Callable[[Lab], MeasuredStore], scenarios: int, *, quiet: bool = False
    ) -> None:
        self.sizes = sizes
        self._make_store = make_store
        self.troubles: list[str] = []
        self.notes: list[str] = []
        self._scenario_began = time.monotonic()
        self._numbers = itertools.count(1)
        self._stack = ExitStack()
        self._console = Console(stderr=True, quiet=quiet)
        # Drawn between the steps only: a thread that redraws would take time from what is measured.
        self._progress = Progress(
            TextColumn("{task.description:46}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=self._console,
            auto_refresh=False,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=scenarios)

    def __enter__(self) -> Self:
        self._stack.callback(os.umask, os.umask(0o077))
        self.folder = self._private_folder(None)
        memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        self._tapes = self._private_folder(memory)
        self._stack.enter_context(self._progress)
        try:
            self.store = self._make_store(self)
            self._stack.callback(self.store.close)
            self.store.open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _private_folder(self, where: Path | None) -> Path:
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="packhorse-bench-", dir=where)))

    def new_folder(self, name: str) -> Path:
        folder = self.folder / f"{next(self._numbers):03}-{name}"
        folder.mkdir(mode=0o700)
        return folder

    def new_tapes(self) -> Path:
        folder = self._tapes / f"{next(self._numbers):03}"
        folder.mkdir(mode=0o700)
        return folder

    def repetitions(self, scenario: str, planned: int | None = None) -> Iterator[int]:
        """Numbers from 1; at least one, but fewer than planned where the machine is too busy to do them in time."""
        planned = planned or self.sizes.repetitions
        for number in range(1, planned + 1):
            spent = time.monotonic() - self._scenario_began
            if number > 1 and spent > self.sizes.scenario_seconds * self.store.patience:
                done = f"{number - 1} of {planned}"
                self.note(f"{scenario}: {done} repetitions only, after {spent:.0f} s")
                return
            yield number

    def step(self, text: str) -> None:
        """What is being measured from now on."""
        self._progress.update(self._bar, description=text, refresh=True)
        if not self._console.is_terminal:
            self._console.print(text, highlight=False)

    def scenario_done(self) -> None:
        self.store.clear()
        self._scenario_began = time.monotonic()
        for folder in (*self.folder.iterdir(), *self._tapes.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)
        self._progress.advance(self._bar)
        self._progress.refresh()

    def trouble(self, text: str) -> None:
        """Something that must not happen: lost, doubled or stuck jobs, processes that do not stop."""
        self.troubles.append(text)
        self._console.print(f"[bold red]trouble:[/] {text}", highlight=False)

    def note(self, text: str) -> None:
        """Something a reader of the figures should know."""
        self.notes.append(text)
