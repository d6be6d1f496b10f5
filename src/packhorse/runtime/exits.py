"""How processes end: what their statuses mean, and what is said of them."""

from __future__ import annotations

import signal

from packhorse.clock import to_datetime
from packhorse.errors import ProcessExitError

UNDRAINED = 3  # it had to stop while jobs still ran
RECYCLED = 4  # it left so that a new one takes its place
CUT_OFF = 5  # it could not reach the store while its tasks ran
GAVE_UP = 70  # a supervisor whose children die again and again before they are ready


def how_ended(status: int) -> str:
    """As the end of a sentence about a process, of the status that `wait` gave."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # real-time signals have no names
        return f"was killed by signal {-status}"


def exit_error(role: str, pid: int, host: str, how: str, when: int) -> ProcessExitError:
    at = to_datetime(when).isoformat(timespec="seconds")
    return ProcessExitError(f"The {role} with pid {pid} on {host} {how} while it held the job, at {at}.")
