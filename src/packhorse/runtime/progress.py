"""Progress of running jobs: the newest of each is written a few times a second, however often it changes."""

from __future__ import annotations

import logging
import threading

from packhorse.app import Packhorse
from packhorse.context import Progress
from packhorse.errors import StoreError
from packhorse.inspection import PROGRESS, encode_progress
from packhorse.interrupting import uninterrupted
from packhorse.job import MESSAGE_CAP, Claim, Token, storable
from packhorse.stores.contract import Entry

log = logging.getLogger("packhorse.jobs")

EVERY = 0.25


class Recorder:
    def __init__(self, app: Packhorse) -> None:
        self._app = app
        self._newest: dict[Token, Progress] = {}
        self._under_way: Token | None = None
        self._writing = threading.Lock()
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    @uninterrupted
    def note(self, claim: Claim, progress: Progress) -> None:
        self._newest[claim.token] = progress
        if not self._changed.is_set():
            self._changed.set()
            self._ensure_thread()

    def has(self, token: Token) -> bool:
        """Something of this job is not written yet."""
        return token in self._newest or token == self._under_way

    def settle(self, token: Token) -> None:
        """Write what is left of a job. When this returns all of it is written, so that the job may end."""
        with self._writing:  # one after the other: an older one must not come after a newer one
            self._under_way = token  # set first, as `has` is asked meanwhile
            if (progress := self._newest.pop(token, None)) is not None:
                self._write(token, progress)
            self._under_way = None

    def close(self) -> None:
        self._closing.set()
        self._changed.set()

    def _ensure_thread(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="packhorse-progress", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._changed.wait()
            self._changed.clear()
            for token in list(self._newest):
                self.settle(token)
            self._closing.wait(EVERY)

    def _write(self, token: Token, progress: Progress) -> None:
        app = self._app
        noted = Progress(progress.done, progress.total, storable(progress.note, MESSAGE_CAP))
        try:
            data = app.seals.entry(token.id, *PROGRESS, encode_progress(noted, app.clock.now()))
            app.store.record(token, [Entry(*PROGRESS, data)])
        except Exception as error:  # whatever it is, the job and the progress of others go on
            why = error if isinstance(error, StoreError) else type(error).__name__
            log.warning("a job's progress could not be written: %s", why)
