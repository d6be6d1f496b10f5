"""Middleware changes: what is enqueued, and what a task runs in. Events only watch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from packhorse.context import Context
from packhorse.task import Options


@dataclass(frozen=True, slots=True)
class Draft:
    """A job about to be enqueued. Change it with `dataclasses.replace`; raise to refuse it."""

    task: str
    options: Options
    metadata: dict[str, Any]


class Middleware:
    """Override one or both and give an instance to `app.use`. What is not overridden costs nothing.

    The first one used is the outermost.
    """

    def enqueue(self, draft: Draft) -> Draft:
        """Called in the enqueuing program, once for each job."""
        return draft

    def perform(self, context: Context) -> AbstractContextManager[Any]:
        """A context manager around the task, for plain and coroutine functions alike: both run inside it.

        An error it raises on the way in, or lets out, is the attempt's; one it swallows makes the result None.
        """
        return nullcontext()
