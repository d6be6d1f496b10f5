"""Claims that begin only once the store was told of it, because another beginning could be one too many."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress

from packhorse.app import Packhorse
from packhorse.job import Claim, Token
from packhorse.varying import task_of

Held = tuple[float, Claim]


class Cautious:
    """Of the claims made ahead: strict jobs, those that have lost a worker, and suspects (docs/decisions/0032).

    They wait here for a free slot, and begin after the exchange that announced them.
    """

    def __init__(self, app: Packhorse) -> None:
        self._app = app
        rules = {name: task.performed.on_worker_lost for name, task in app.known_tasks.items()}
        self.strict = frozenset(name for name, rule in rules.items() if rule == "fail")
        self._waiting: deque[Held] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def hold_back(self, claims: Sequence[Claim], perhaps: Collection[Claim]) -> tuple[list[Claim], list[Claim]]:
        """Keep those that must be announced. Returns what may begin at once, and what goes back: the rest of their
        runs, whose permit would have to be announced job by job.
        """
        now, tokens = time.monotonic(), {claim.token for claim in perhaps if self._must_be_announced(claim)}
        at_once: list[Claim] = []
        going_back: list[Claim] = []
        begun: set[str | None] = set()
        cut: set[str | None] = set()
        for claim in claims:
            is_held = claim.token in tokens
            if claim.run is not None and (claim.run in cut or (is_held and claim.run in begun)):
                cut.add(claim.run)
                going_back.append(claim)
            elif is_held:
                cut.add(claim.run)
                self._waiting.append((now, claim))
            else:
                begun.add(claim.run)
                at_once.append(claim)
        return at_once, going_back

    def _must_be_announced(self, claim: Claim) -> bool:
        if claim.losses or claim.suspect or claim.task in self.strict:
            return True
        task = task_of(self._app, claim)
        return task is not None and task.performed.on_worker_lost == "fail"

    def next(self, idle: int) -> list[Held]:
        """Take as many as there are idle slots, to be announced."""
        taken: list[Held] = []
        with suppress(IndexError):  # the watch over the lease may take them at the same time
            while len(taken) < idle:
                taken.append(self._waiting.popleft())
        return taken

    def put_back(self, untold: Sequence[Held]) -> None:
        """The store was not told of these."""
        self._waiting.extendleft(reversed(untold))

    def waited(self, seconds: float) -> list[Claim]:
        """Take those that have waited so long."""
        taken, limit = [], time.monotonic() - seconds
        with suppress(IndexError):
            while self._waiting[0][0] <= limit:
                taken.append(self._waiting.popleft()[1])
        return taken


def tokens_of(held: Sequence[Held]) -> list[Token]:
    return [claim.token for _, claim in held]
