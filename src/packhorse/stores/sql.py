"""What the SQL stores share: how a statement reaches its database, and who may go on beside whom.

Statements are written once, in the SQL that SQLite and PostgreSQL have in common: `?` stands for a parameter, and
`{rows:bytea bigint}` for a batch of rows of these types, which each sends in its own way. Where only SQLite knows a
word (`indexed by`, `unlikely`, `x''`), the other's session leaves it out or says it differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, ClassVar, Protocol


class Subject(IntEnum):
    """What a stroke may need to itself; taken in this order. On SQLite, each stroke has everything to itself."""

    SCHEDULES = 1
    UNIQUE_KEYS = 2
    GATES = 3
    ADMISSION = 4
    SIGNALS = 5


class Found(Protocol):
    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Session(Protocol):
    """An open connection, most often in a transaction."""

    CONCURRENT: ClassVar[bool]  # others may write at the same time
    FOR_UPDATE: ClassVar[str]  # behind a select: nobody changes these rows of job before the stroke has ended
    FOR_SHARE: ClassVar[str]

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Found: ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object: ...

    def batched(self, statement: str, rows: Sequence[tuple[Any, ...]], *first: Any) -> object:
        """Run a statement over rows in few large steps. `first` are parameters before them."""
        ...

    def read(self, statement: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """What a statement finds for values, in few large steps likewise."""
        ...

    def hold(self, subject: Subject, *names: str) -> None:
        """Have the subject, or these names of it, to oneself until the stroke has ended."""
        ...
