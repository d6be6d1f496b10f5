"""Exceptions at chosen places: wherever CPython looks for one from outside while some work is done.

It looks at the entry of every function of Python's, and behind every call of one of C's. A profile function is called
there, and may raise.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

OURS = ("packhorse", "psycopg", "contextlib")


class Struck(BaseException):
    """What nobody handles, as KeyboardInterrupt."""


class Swallowed(Exception):
    """What was raised at a place did not come out."""


def _raise() -> None:
    raise Struck


def struck_at(
    place: int, work: Callable[[], object], raise_it: Callable[[], object] = _raise, within: str = ""
) -> BaseException | None:
    """Do the work, and raise something at the n-th place, from 0, or let another thread; what came out of it then.

    None where it ended before. What came out is not always what was raised: cleaning up after it may have failed too.
    """
    left = place

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        looks = event == "c_return" or (event == "call" and frame.f_lasti <= _entry(frame.f_code))
        module = frame.f_globals.get("__name__", "")
        if looks and (module.startswith(within) if within else module.partition(".")[0] in OURS):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise_it()

    gc.disable()  # what it calls is no part of the work, and nobody hears of what is raised there
    sys.setprofile(look)
    try:
        work()
    except BaseException as raised:
        if left >= 0:
            raise
        return raised
    finally:
        sys.setprofile(None)
        gc.enable()
    if left < 0:
        raise Swallowed(place)
    return None


@cache
def _entry(code: CodeType) -> int:
    """Where a function begins. A generator that goes on, or is closed, is called as well, and not looked at there."""
    return next((found.offset for found in dis.get_instructions(code) if found.opname == "RESUME"), 0)
