"""Interrupting a task that runs in a thread: an exception is raised inside it, where it next runs Python code."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from packhorse import forks
from packhorse.errors import Interrupted, TimedOut
from packhorse.job import Token


class Why(StrEnum):
    """Why a task is to end before its time."""

    TIMEOUT = "timeout"
    LEAVING = "leaving"
    ORDERED = "ordered"

    @property
    def error(self) -> type[TimedOut | Interrupted]:
        return TimedOut if self is Why.TIMEOUT else Interrupted


class Seat:
    """Where one thread performs its jobs. Whoever interrupts meets the task or nobody, never the code around it."""

    __slots__ = ("_lock", "_raised", "_thread", "token")

    def __init__(self) -> None:
        self.token: Token | None = None
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._raised = False

    def call(self, token: Token, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.token = token
        before = forks.generation
        try:
            return function(*args, **kwargs)
        finally:
            if forks.generation != before:
                forks.end_copy(sys.exception())
            self.rise()

    def rise(self) -> None:
        """The task is over. An interruption may still strike in here, and must not strike after it."""
        while self.token is not None or self._raised:
            try:
                with self._lock:
                    self.token = None
                    if self._raised:
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)
                        self._raised = False
            except (TimedOut, Interrupted):
                continue

    def interrupt(self, token: Token, error: type[BaseException]) -> bool:
        """False where the thread performs something else by now."""
        with self._lock:
            if self.token != token:
                return False
            self._raised = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(error))
            return True
