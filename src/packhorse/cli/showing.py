"""How commands show things: tables for people, JSON for scripts. What comes from a store is taken for hostile."""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from enum import Enum
from typing import Any, Protocol

import click
from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from packhorse.job import Failure
from packhorse.masking import printable

CELL_CAP = 200
ENDLESS = 2_000  # columns where nobody's screen is the limit: text that is piped on must not be folded


class Out(Console):
    """For standard output, or standard error. Takes no markup from anybody."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        width = None if stream.isatty() or "COLUMNS" in os.environ else ENDLESS
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


def show(*things: RenderableType) -> None:
    out = Out()
    for thing in things:
        out.print(thing, soft_wrap=isinstance(thing, Text))


def note(text: str) -> None:
    """Beside the output proper, hence on standard error."""
    click.echo(printable(text), err=True)


def cell(text: object, style: str = "", cap: int = CELL_CAP) -> Text:
    return Text(printable(str(text), cap), style)


def table(title: str, *columns: str, right: Iterable[str] = (), whole: Iterable[str] = ()) -> Table:
    """`whole` columns are never folded."""
    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column in right or column in whole,
            overflow="fold",
        )
    return made


def grid(rows: Iterable[tuple[str, object]]) -> Table:
    """Names and what belongs to them, without those that have nothing."""
    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        if value is not None and value != "":
            made.add_row(Text(name, "bold"), value if isinstance(value, Text) else cell(value, cap=4_000))
    return made


def below(failure: Failure) -> list[Text]:
    """The lines of a traceback."""
    return [Text(f"    {printable(line)}", "dim") for line in failure.traceback.rstrip().split("\n") if line]


def moment(at: datetime | None, now: datetime | None = None) -> str:
    if at is None:
        return ""
    try:
        local = at.astimezone()
    except OverflowError:  # the last hours of year 9999
        local = at
    return f"{local:%Y-%m-%d %H:%M:%S %Z} ({ago(at, now)})"


def ago(at: datetime, now: datetime | None = None) -> str:
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def count(number: int, what: str = "job") -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# For scripts.


def print_json(value: Any) -> None:
    """One line in ASCII, so that no terminal takes orders from it."""
    click.echo(json_text(value))


def json_text(value: Any) -> str:
    return json.dumps(plain(value), allow_nan=False).replace("\x7f", "\\u007f")


def readable(value: Any) -> str:
    """The same for people."""
    return json.dumps(plain(value), ensure_ascii=False)


def plain(value: Any) -> Any:
    """As JSON can say it."""
    match value:
        case Enum():
            return plain(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case Mapping():
            return {key if isinstance(key, str) else str(plain(key)): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case _:
            return str(value)


# While something takes long.


class Advance(Protocol):
    def __call__(self, steps: int, /) -> None: ...


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Advance]:
    """A bar for somebody who watches; nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Out(stderr=True), transient=True) as bar:
        id = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(id, steps)
