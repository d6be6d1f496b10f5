"""Arguments and results to bytes and back: strict JSON in a versioned envelope.

What is written comes back equal, on every store, or is refused where it is made. So: exact JSON types, text keys,
finite numbers, no NUL and no lone surrogates, bounded size, depth and count.
"""

from __future__ import annotations

import json
import math
from typing import Any

from packhorse.errors import PayloadError

VERSION = 1
SIZE_CAP = 256 * 1024
DEPTH_CAP = 64
ITEMS_CAP = 10_000
INTEGER_BITS_CAP = 4096  # far below the number of digits where Python refuses to convert


def encode_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...] = ()) -> bytes:
    """`names` are the parameter names of the positional arguments, for error messages."""
    check = _Checker()
    place: int | str = 0
    try:
        for place, value in enumerate(args):  # noqa: B007
            check.value(value)
        for place, value in kwargs.items():
            check.text(place)
            check.value(value)
    except _Unstorable as error:
        name = names[place] if isinstance(place, int) and place < len(names) else place
        raise error.within(f"argument {name!r}" if isinstance(name, str) else f"argument number {name + 1}") from None
    return _bounded(_dump({"v": VERSION, "a": args, "k": kwargs}), "The arguments take")


def decode_arguments(payload: bytes) -> tuple[list[Any], dict[str, Any]]:
    envelope = _load(payload, "The payload")
    if type(envelope) is dict:
        version, args, kwargs = envelope.get("v"), envelope.get("a"), envelope.get("k")
        if version == VERSION and type(args) is list and type(kwargs) is dict:
            return args, kwargs
        if type(version) is int and version != VERSION:
            why = f"The payload has version {version}; this Packhorse reads {VERSION}. Upgrade the worker."
            raise PayloadError(why)
    raise PayloadError("The payload is not an envelope that Packhorse wrote.")


def encode_result(value: Any) -> bytes | None:
    """None stands for None, so that most jobs store nothing."""
    if value is None:
        return None
    try:
        _Checker().value(value)
    except _Unstorable as error:
        raise error.within("the result") from None
    return _bounded(_dump(value), "The result takes")


def decode_result(data: bytes | None) -> Any:
    return None if data is None else _load(data, "The result")


_dump_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


_load_text = json.JSONDecoder().decode


def _dump(value: Any) -> bytes:
    return _dump_text(value).encode()


def _bounded(data: bytes, what: str) -> bytes:
    if len(data) > SIZE_CAP:
        raise PayloadError(
            f"{what} {len(data):,} bytes, more than the {SIZE_CAP:,} a job may carry. "
            "Store the data elsewhere and pass a reference to it."
        )
    return data


def _load(data: bytes, what: str) -> Any:
    if len(data) > SIZE_CAP:
        raise PayloadError(f"{what} has {len(data):,} bytes, more than the {SIZE_CAP:,} allowed.")
    try:
        return _load_text(data.decode())
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{what} cannot be decoded: {type(error).__name__}.") from None


class _Unstorable(Exception):
    """Why a value was refused. Its path is collected on the way out, so that good values pay nothing for it."""

    def __init__(self, why: str, *, everywhere: bool = False) -> None:
        self._why = why
        self._everywhere = everywhere
        self._path = ""

    def inside(self, key: int | str) -> _Unstorable:
        if not self._everywhere:
            self._path = f"[{_short(key)}]{self._path}"
        return self

    def within(self, what: str) -> PayloadError:
        return PayloadError(f"Cannot store {what}{self._path}: {self._why}")


class _Checker:
    """Walks a value once; one budget of items for the whole payload."""

    def __init__(self) -> None:
        self._left = ITEMS_CAP

    def value(self, value: Any, depth: int = 0) -> None:
        kind = type(value)
        if kind is str:
            self.text(value)
        elif kind is int:
            if value.bit_length() > INTEGER_BITS_CAP:
                raise _Unstorable(f"the integer has more than {INTEGER_BITS_CAP} bits.")
        elif kind is float:
            if not math.isfinite(value):
                raise _Unstorable(f"{value} is not a finite number. Pass None or a text instead.")
        elif kind is list or kind is dict:
            self._container(value, depth)
        elif value is not None and kind is not bool:
            raise _Unstorable(_describe(kind))

    def _container(self, value: list[Any] | dict[Any, Any], depth: int) -> None:
        self._left -= len(value)
        if depth >= DEPTH_CAP:
            raise _Unstorable(f"it is nested deeper than {DEPTH_CAP} levels.", everywhere=True)
        if self._left < 0:
            raise _Unstorable(f"it has more than {ITEMS_CAP:,} items in all.", everywhere=True)
        if isinstance(value, dict):
            for key in value:
                if type(key) is not str:
                    raise _Unstorable(f"the key {_short(key)} is not a text. Use text keys only.")
                self.text(key)
        place: int | str = 0
        try:
            for place, item in value.items() if isinstance(value, dict) else enumerate(value):  # noqa: B007
                self.value(item, depth + 1)
        except _Unstorable as error:
            raise error.inside(place) from None

    def text(self, text: str) -> None:
        if "\0" in text:
            raise _Unstorable("the text contains a NUL character. Remove it.")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise _Unstorable("the text contains a lone surrogate.") from None


def _short(key: object) -> str:
    text = repr(key)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _describe(kind: type) -> str:
    hints = {
        "tuple": "pass a list",
        "set": "pass a list",
        "frozenset": "pass a list",
        "bytes": "pass text, for example base64",
        "datetime": "pass value.isoformat()",
        "date": "pass value.isoformat()",
        "UUID": "pass str(value)",
        "Decimal": "pass str(value)",
    }
    hint = hints.get(kind.__name__, "pass plain text, numbers, booleans, None, lists or dictionaries")
    return f"a {kind.__name__} is not a JSON value; {hint}."
