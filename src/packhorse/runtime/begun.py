"""Which claims of a worker have begun: a page of memory that it shares with its supervisor, and that outlives it.

Slots write a mark before each job, so that the verdict on what a dead worker held knows which of its jobs had begun,
whatever the store had been told. Marks stand in a ring, which is large enough for all that has begun and is not
written to the store yet, unless it has run for long: so what runs is kept apart from time to time.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Collection
from itertools import cycle
from struct import Struct

from packhorse.job import Token
from packhorse.runtime.put_off import MOST as MOST_PUT_OFF
from packhorse.stores.contract import EXCHANGE_JOBS

MARK = Struct("<q16s")  # the nonce of the claim and the id of the job; the nonce inverted where it runs alone
SIZE = MARK.size
NO_ID = bytes(16)

Mark = tuple[int, bytes]


class Begun:
    """The page of one worker. It has the ring, and two areas for what runs, which are written in turn.

    A mark in the ring is overwritten after `ring` others. Whoever `keep`s what runs, and what had to be put off, for
    each quarter of them loses none: a job that ended and is not written yet was in the last two areas, or began after
    them; more than a quarter of the ring cannot have begun since, since the worker does not hold as many.
    """

    def __init__(self, fd: int, slots: int) -> None:
        self._room = room_beside(slots)
        ring = ring_size(slots)
        self.quarter = ring // 4
        self._page = page = mmap.mmap(fd, os.fstat(fd).st_size)
        self._places = cycle(range(0, ring * SIZE, SIZE))
        self._areas = cycle((ring * SIZE, (ring + self._room) * SIZE))

        pack_into, places = MARK.pack_into, self._places

        def begin(token: Token) -> None:
            """Called by the slots for each job, hence a closure, which is quicker than a method."""
            pack_into(page, next(places), token[1], token[2])

        self.begin = begin

    def begin_alone(self, token: Token) -> None:
        """Mark a job that begins in a process of its own."""
        MARK.pack_into(self._page, next(self._places), ~token.nonce, token.id)

    def keep(self, running: Collection[Token], alone: Collection[Token] = ()) -> None:
        """Called by the worker's own thread alone."""
        area = next(self._areas)
        places = range(area, area + self._room * SIZE, SIZE)
        marks = [(it.nonce, it.id) for it in running] + [(~it.nonce, it.id) for it in alone]
        for place, mark in zip(places, marks, strict=False):
            MARK.pack_into(self._page, place, *mark)

    def read(self) -> frozenset[Mark]:
        """All marks. Those of claims that ended long ago do no harm: a nonce is never used again."""
        return frozenset(mark for mark in MARK.iter_unpack(self._page[:]) if mark[1] != NO_ID)

    def close(self) -> None:
        self._page.close()


def mark_of(nonce: int, id: bytes, *, alone: bool = False) -> Mark:
    return ~nonce if alone else nonce, id[:16].ljust(16, b"\0")


def ring_size(slots: int) -> int:
    """Four times what a worker may hold: a claim for each slot, and a full exchange ahead."""
    return 4 * (EXCHANGE_JOBS + 4 * slots)


def room_beside(slots: int) -> int:
    """In each area: for what runs and for what is put off."""
    return slots + MOST_PUT_OFF


def make_page(slots: int) -> int:
    """A descriptor of new memory; whoever maps it may close the descriptor."""
    fd = os.memfd_create("packhorse-begun") if hasattr(os, "memfd_create") else _unnamed_file()
    os.ftruncate(fd, (ring_size(slots) + 2 * room_beside(slots)) * SIZE)  # takes memory as it is used
    return fd


def _unnamed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
