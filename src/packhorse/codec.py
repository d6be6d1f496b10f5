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
    for place, value in enumerate(args):
        check.value(value, f"argument {names[place]!r}" if place < len(names) else f"argument number {place + 1}")
    for name, value in kwargs.items():
        check.text(name, f"argument {name!r}")
        check.value(value, f"argument {name!r}")
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
    _Checker().value(value, "the result")
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


class _Checker:
    """Walks a value once; one budget of items for the whole payload."""

    def __init__(self) -> None:
        self._left = ITEMS_CAP

    def value(self, value: Any, path: str, depth: int = 0) -> None:
        kind = type(value)
        if kind is str:
            self.text(value, path)
        elif kind is float:
            if not math.isfinite(value):
                raise PayloadError(f"Cannot store {path}: {value} is not a finite number. Pass None or a text instead.")
        elif kind is int:
            if value.bit_length() > INTEGER_BITS_CAP:
                raise PayloadError(f"Cannot store {path}: the integer has more than {INTEGER_BITS_CAP} bits.")
        elif kind is list or kind is dict:
            self._container(value, path, depth)
        elif value is not None and kind is not bool:
            raise PayloadError(f"Cannot store {path}: {_describe(kind)}")

    def _container(self, value: list[Any] | dict[Any, Any], path: str, depth: int) -> None:
        self._left -= len(value)
        if depth >= DEPTH_CAP:
            raise PayloadError(f"Cannot store {path.split('[')[0]}: it is nested deeper than {DEPTH_CAP} levels.")
        if self._left < 0:
            raise PayloadError(f"Cannot store {path.split('[')[0]}: it has more than {ITEMS_CAP:,} items in all.")
        if isinstance(value, list):
            for place, item in enumerate(value):
                self.value(item, f"{path}[{place}]", depth + 1)
            return
        for key, item in value.items():
            if type(key) is not str:
                raise PayloadError(f"Cannot store {path}: the key {key!r} is not a text. Use text keys only.")
            self.text(key, path)
            self.value(item, f"{path}[{key!r}]", depth + 1)

    def text(self, text: str, path: str) -> None:
        if "\0" in text:
            raise PayloadError(f"Cannot store {path}: the text contains a NUL character. Remove it.")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise PayloadError(f"Cannot store {path}: the text contains a lone surrogate.") from None


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
