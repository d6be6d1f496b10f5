"""The test kit: for tests of code that enqueues, and of tasks.

```python
from packhorse.testing import inline, recorded

with recorded(app) as jobs:                     # nothing runs until the test says so, and time stands still
    place_order(42)
    jobs.assert_enqueued(resize, 42, width=100)
    jobs.drain()

with inline(app):                               # whatever is enqueued is performed at once
    assert resize.enqueue(42).result(timeout=0) == "42.png"
```

Both put a store in memory in the place of the application's own, which is not touched. All else is real: arguments are
encoded, signed and decoded, a real worker performs, a real dispatcher decides, and middleware, events and error
reporters are the application's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packhorse.testing.recording import NotPerformed, Recording, TooManyJobs, inline, recorded
    from packhorse.testing.records import Enqueued, RecordedJob

__all__ = ["Enqueued", "NotPerformed", "RecordedJob", "Recording", "TooManyJobs", "inline", "recorded"]


def __getattr__(name: str) -> Any:
    """At the first use: the pytest plugin lies in this package, and is loaded in projects that never need the rest."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from packhorse.testing import recording, records

    return getattr(recording, name, None) or getattr(records, name)
