"""Pickle, for tasks whose arguments nothing else can carry. The only module that imports it; import it yourself.

Whoever can sign a job of such a task can run any code in a worker: a pickle is a program. So it needs signing, is read
only where the signature is right, is chosen task by task, and every worker that performs such a task says so at start.
"""

from __future__ import annotations

import pickle
from typing import Any

from packhorse.errors import ConfigError, PayloadError, TimedOut


class PickleCodec:
    """`@app.task(codec=PickleCodec())`: arguments and results as pickles.

    Classes and functions travel by their import path, so both sides must have them at the same place.
    """

    runs_code = True

    def __init__(self, protocol: int = 5) -> None:
        if protocol not in range(pickle.HIGHEST_PROTOCOL + 1):
            raise ConfigError(f"protocol must be a whole number from 0 to {pickle.HIGHEST_PROTOCOL}, not {protocol!r}.")
        self._protocol = protocol

    def encode(self, value: Any) -> bytes:
        try:
            return pickle.dumps(value, self._protocol)
        except TimedOut:
            raise
        except Exception as error:  # a value's own methods may raise anything; its text may quote what is secret
            raise PayloadError(f"It cannot be pickled ({type(error).__name__}).") from None

    def decode(self, data: bytes) -> Any:
        """Given what was verified, and nothing else."""
        try:
            return pickle.loads(data)
        except TimedOut:
            raise
        except Exception as error:
            raise PayloadError(f"It cannot be unpickled ({type(error).__name__}).") from None
