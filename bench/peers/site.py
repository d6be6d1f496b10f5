"""What the backends for Django's tasks have in common: the site of `bench.site`, and the command that performs jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any, ClassVar

import django
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connections, transaction

from bench import site
from bench.peers.base import Peer, parts


class SitePeer(Peer):
    """`size` is how many threads each process has, where it has any."""

    backend: ClassVar[str]
    command: ClassVar[tuple[str, ...]]  # of manage.py

    def __init__(self, url: str, size: int) -> None:
        super().__init__(url, size)
        os.environ |= site.environment(self.backend, url, size)
        django.setup()
        self.noop: Any = import_module("bench.site.tasks").noop

    async def install(self) -> None:
        await sync_to_async(call_command)("migrate", verbosity=0)
        await self.close()

    async def open(self) -> None:
        """Django connects when it has to."""

    async def close(self) -> None:
        await sync_to_async(connections.close_all)()

    async def enqueue(self, number: int) -> None:
        await sync_to_async(self.noop.enqueue)(number, "two", three=3)

    async def fill(self, first: int, last: int) -> None:
        for part in parts(first, last):
            await sync_to_async(self.fill_with)(part)

    def fill_with(self, numbers: Iterable[int]) -> None:
        """One by one in a transaction, for those that have nothing better."""
        with transaction.atomic():
            for number in numbers:
                self.noop.enqueue(number, "two", three=3)

    async def work(self) -> None:
        """The real command takes the place of this program."""
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        os.execv(sys.executable, [sys.executable, "-m", "django", *self.command])
