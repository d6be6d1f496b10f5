"""Arguments and results to bytes and back: strict JSON, with tags for the types JSON lacks.

What is written comes back equal, on every store, or is refused where it is made. So: exact types, text keys, finite
numbers, no NUL and no lone surrogates, bounded size, depth and count. A tagged value is `{"!": [tag, data]}`; the tags
are a fixed list and what the application registered, so that nothing stored can choose code to run.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from packhorse.errors import ConfigError, PayloadError, TimedOut
from packhorse.masking import Secret

MARK = "!"
INTEGER_BITS_CAP = 4096  # far below the number of digits where Python refuses to convert
DECIMAL_CAP = 2_000


@dataclass(frozen=True, slots=True)
class Caps:
    """`payload` and `result` are bytes, before compression."""

    payload: int = 256 * 1024
    result: int = 256 * 1024
    depth: int = 64
    items: int = 10_000


class Encoded(NamedTuple):
    body: bytes
    typed: bool


class Arguments(NamedTuple):
    args: list[Any]
    kwargs: dict[str, Any]
    metadata: dict[str, Any]


class Tag(NamedTuple):
    """How values of one type travel: `encode` gives what the codec can carry, `decode` takes it back.

    Without a name, what it gives travels in the value's place, and nothing takes it back.
    """

    name: str
    type: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class Codec:
    def __init__(self, caps: Caps | None = None) -> None:
        self.caps = caps or Caps()
        self._harmless = min(2 * self.caps.depth, self.caps.items)  # bytes that can break neither bound
        self._by_type: dict[type, Tag] = {tag.type: tag for tag in _BUILT_IN}
        self._by_name: dict[str, Tag] = {tag.name: tag for tag in _BUILT_IN}
        self._families: list[Callable[[type], Tag | None]] = []

    @property
    def registered(self) -> tuple[type, ...]:
        """The application's own types."""
        return tuple(tag.type for tag in self._by_type.values() if tag not in _BUILT_IN)

    def register(self, tag: Tag) -> None:
        """An application's own type."""
        if not isinstance(tag.type, type):
            raise ConfigError(f"Register a class, not {tag.type!r}.")
        if tag.type in _PLAIN:
            raise ConfigError(f"{tag.type.__name__} travels as it is and cannot be registered.")
        if tag.name in self._by_name or tag.name == "dict":
            raise ConfigError(f"There already is a type named {tag.name!r}. Choose another name.")
        if tag.type in self._by_type:
            known = self._by_type[tag.type].name
            raise ConfigError(f"{tag.type.__name__} is already registered under the name {known!r}.")
        self._by_name[tag.name] = self._by_type[tag.type] = tag

    def register_family(self, tag_of: Callable[[type], Tag | None]) -> None:
        """Types too many to be named: `tag_of` is asked once for each that is met and not known."""
        self._families.append(tag_of)

    def _found(self, kind: type) -> Tag | None:
        for tag_of in self._families:
            if (tag := tag_of(kind)) is not None:
                self._by_type[kind] = tag
                return tag
        return None

    # Writing.

    def encode_arguments(self, args: Iterable[Any], kwargs: dict[str, Any], names: tuple[str, ...] = ()) -> Encoded:
        """`names` are the parameter names of the positional arguments, for error messages."""
        writer = _Writer(self._by_type, self._found, self.caps)
        place: int | str = 0
        plain_args: list[Any] = []
        plain_kwargs: dict[str, Any] = {}
        try:
            for place, value in enumerate(args):  # noqa: B007
                plain_args.append(writer.value(value, 0))
            for place, value in kwargs.items():
                writer.text(place)
                plain_kwargs[place] = writer.value(value, 0)
        except _Unstorable as error:
            name = names[place] if isinstance(place, int) and place < len(names) else place
            raise error.within(
                f"argument {name!r}" if isinstance(name, str) else f"argument number {name + 1}"
            ) from None
        if MARK in plain_kwargs:  # by way of **kwargs any text may be a name
            writer.typed = True
            plain_kwargs = {MARK: ["dict", [[name, value] for name, value in plain_kwargs.items()]]}
        body = _dump({"a": plain_args, "k": plain_kwargs})
        return Encoded(_bounded(body, self.caps.payload, "The arguments take"), writer.typed)

    def with_metadata(self, encoded: Encoded, metadata: dict[str, Any]) -> Encoded:
        """The same arguments with metadata beside them."""
        if not metadata:
            return encoded
        value = self._encode(metadata, "the metadata")
        body = encoded.body[:-1] + b',"m":' + value.body + b"}"
        return Encoded(_bounded(body, self.caps.payload, "Arguments and metadata take"), encoded.typed or value.typed)

    def encode_result(self, value: Any) -> Encoded:
        return self.encode_value(value, "the result")

    def encode_value(self, value: Any, what: str) -> Encoded:
        """Anything else that is kept, under the same bounds; `what` is for error messages."""
        encoded = self._encode(value, what, keys=False)
        _bounded(encoded.body, self.caps.result, f"{what[0].upper()}{what[1:]} takes")
        return encoded

    def _encode(self, value: Any, what: str, *, keys: bool = True) -> Encoded:
        writer = _Writer(self._by_type, self._found, self.caps)
        try:
            plain = writer.value(value, 0)
        except _Unstorable as error:
            raise error.within(what, keys=keys) from None
        return Encoded(_dump(plain), writer.typed)

    # Reading.

    def decode_arguments(self, body: bytes, *, typed: bool) -> Arguments:
        envelope = self._load(body, typed, self.caps.payload, "The arguments")
        if type(envelope) is dict:
            args, kwargs, metadata = envelope.get("a"), envelope.get("k"), envelope.get("m")
            if type(args) is list and type(kwargs) is dict:
                if metadata is None:
                    return Arguments(args, kwargs, {})
                if type(metadata) is dict:
                    return Arguments(args, kwargs, metadata)
        raise PayloadError("The payload holds no arguments that Packhorse wrote.")

    def decode_result(self, body: bytes, *, typed: bool) -> Any:
        return self._load(body, typed, self.caps.result, "The result")

    def _load(self, body: bytes, typed: bool, cap: int, what: str) -> Any:
        if len(body) > cap:
            raise PayloadError(f"{what} have {len(body):,} bytes, more than the {cap:,} allowed.")
        try:
            text = body.decode()
            value, end = _load_text(text)
            if typed:
                value = self._untag(value)
        except PayloadError:
            raise
        except (ValueError, RecursionError) as error:
            raise PayloadError(f"{what} cannot be decoded: {type(error).__name__}.") from None
        if end != len(text):
            raise PayloadError(f"{what} cannot be decoded: something stands behind them.")
        # Whatever is nested deeply or has many items shows it by its length, its brackets and its commas.
        if len(body) > self._harmless and (
            body.count(b"[") + body.count(b"{") > self.caps.depth or body.count(b",") > self.caps.items
        ):
            # Our own envelope and tags nest and count too, so there is room for twice as much.
            _check_bounds(value, self.caps.depth * 2, self.caps.items * 2, what)
        return value

    def _untag(self, value: Any) -> Any:
        """Tagged values as what they stand for. By hand, since JSON's own hook would be called for every dictionary."""
        if type(value) is list:
            for place, item in enumerate(value):
                if type(item) is dict or type(item) is list:
                    value[place] = self._untag(item)
            return value
        if type(value) is not dict:
            return value
        if MARK not in value:
            for key, item in value.items():
                if type(item) is dict or type(item) is list:
                    value[key] = self._untag(item)
            return value
        tagged = value[MARK]
        if len(value) != 1 or type(tagged) is not list or len(tagged) != 2 or type(tagged[0]) is not str:
            raise PayloadError("A tagged value has the wrong shape.")
        name, data = tagged
        if name == "dict":
            return _to_dict(self._untag(data))
        tag = self._by_name.get(name)
        if tag is None:
            raise PayloadError("A value has a tag that this application does not know. Register its type.")
        if name not in _LEAVES:
            data = self._untag(data)
        try:
            return tag.decode(data)
        except TimedOut:
            raise
        except Exception as error:  # an application's decode may raise anything
            raise PayloadError(f"A {tag.name} cannot be decoded: {type(error).__name__}.") from None


def _check_bounds(value: Any, depth: int, items: int, what: str) -> None:
    level = [value]
    for _ in range(depth + 1):
        level = [part for whole in level for part in _parts(whole)]
        items -= len(level)
        if not level:
            return
        if items < 0:
            raise PayloadError(f"{what} have more items in all than allowed.")
    raise PayloadError(f"{what} are nested deeper than allowed.")


def _parts(value: Any) -> Iterable[Any]:
    kind = type(value)
    if kind is dict:
        return value.values()  # type: ignore[no-any-return]
    if kind in (list, tuple, set, frozenset):
        return value  # type: ignore[no-any-return]
    return (value.reveal(),) if kind is Secret else ()


_load_text = json.JSONDecoder().raw_decode
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


def _dumper() -> Callable[[Any], str]:
    """`encode` makes an encoder in C for every value, which takes longer than most values do; here is one for all."""
    if (make := getattr(json.encoder, "c_make_encoder", None)) is None:
        return _encoder.encode
    parts = make(None, _encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)
    return lambda value: "".join(parts(value, 0))


_dump_text = _dumper()


def _dump(value: Any) -> bytes:
    return _dump_text(value).encode()


def _bounded(data: bytes, cap: int, what: str) -> bytes:
    if len(data) > cap:
        raise PayloadError(
            f"{what} {len(data):,} bytes, more than the {cap:,} allowed. "
            "Store the data elsewhere and pass a reference to it."
        )
    return data


class _Unstorable(Exception):
    """Why a value was refused. Its path is collected on the way out, so that good values pay nothing for it."""

    def __init__(self, why: str, *, everywhere: bool = False) -> None:
        self._why = why
        self._everywhere = everywhere
        self._path = self._numbers = ""

    def inside(self, key: int | str, number: int) -> _Unstorable:
        if not self._everywhere:
            self._path = f"[{_short(key)}]{self._path}"
            self._numbers = f"[{number}]{self._numbers}" if key == number else f"[key {number}]{self._numbers}"
        return self

    def within(self, what: str, *, keys: bool = True) -> PayloadError:
        """Without keys where it may be logged: a key is a value too."""
        return PayloadError(f"Cannot store {what}{self._path if keys else self._numbers}: {self._why}")


_PLAIN = (str, int, float, bool, type(None), list, dict)


class _Writer:
    """Walks a value once and gives what JSON can take; one budget of items for the whole payload."""

    __slots__ = ("_depth", "_find", "_left", "_tags", "typed")

    def __init__(self, tags: dict[type, Tag], find: Callable[[type], Tag | None], caps: Caps) -> None:
        self._tags = tags
        self._find = find
        self._left = caps.items
        self._depth = caps.depth
        self.typed = False

    def value(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            self.text(value)
        elif kind is int:
            if value.bit_length() > INTEGER_BITS_CAP:
                raise _Unstorable(f"the integer has more than {INTEGER_BITS_CAP} bits.")
        elif kind is float:
            if not math.isfinite(value):
                raise _Unstorable(f"{value} is not a finite number. Pass None or a text instead.")
        elif kind is dict:
            return self._dict(value, depth)
        elif kind is list:
            return self._list(value, depth)
        elif value is not None and kind is not bool:
            return self._tagged(value, depth)
        return value

    def _tagged(self, value: Any, depth: int) -> Any:
        tag = self._tags.get(type(value)) or self._find(type(value))
        if tag is None:
            raise _Unstorable(_describe(type(value)))
        try:
            data = tag.encode(value)
        except _Unstorable:
            raise
        except PayloadError as error:
            raise _Unstorable(str(error)) from None
        except TimedOut:
            raise
        except Exception as error:  # an application's encode may raise anything
            raise _Unstorable(f"a {tag.name} cannot be encoded: {type(error).__name__}.") from None
        if not tag.name:
            return self.value(data, depth + 1)
        self.typed = True
        if tag.name in _SETS:
            plain = sorted(self._list(data, depth), key=_dump)  # the same set is the same text
        else:
            plain = self.value(data, depth + 1)
        return {MARK: [tag.name, plain]}

    def _list(self, value: list[Any], depth: int) -> list[Any]:
        self._count(len(value), depth)
        place = 0
        plain = []
        try:
            for item in value:
                plain.append(self.value(item, depth + 1))
                place += 1
        except _Unstorable as error:
            raise error.inside(place, place) from None
        return plain

    def _dict(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        self._count(len(value), depth)
        for key in value:
            if type(key) is not str:
                raise _Unstorable(f"a key is a {type(key).__name__}, not a text. Use text keys only.")
            self.text(key)
        place = ""
        plain: dict[str, Any] = {}
        try:
            for place, item in value.items():
                plain[place] = self.value(item, depth + 1)
        except _Unstorable as error:
            raise error.inside(place, len(plain) + 1) from None
        if MARK not in plain:
            return plain
        self.typed = True
        return {MARK: ["dict", [[key, item] for key, item in plain.items()]]}

    def _count(self, items: int, depth: int) -> None:
        self._left -= items
        if depth >= self._depth:
            raise _Unstorable(f"it is nested deeper than {self._depth} levels.", everywhere=True)
        if self._left < 0:
            raise _Unstorable("it has more items in all than allowed.", everywhere=True)

    def text(self, text: str) -> None:
        if "\0" in text:
            raise _Unstorable("the text contains a NUL character. Remove it.")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise _Unstorable("the text contains a lone surrogate.") from None


# The types that have tags of our own. Encoding gives plain values; decoding checks what it gets.


def _zoned(value: datetime | time) -> str | list[Any]:
    """As ISO 8601 where that says all, else the time on the clock, its side of a repeated hour, and its zone.

    The zone is a name, or the offset in microseconds: Python does not read every odd offset back that it writes.
    """
    if not value.fold and not isinstance(value.tzinfo, ZoneInfo):
        offset = value.utcoffset()
        if offset is None or not offset % timedelta(minutes=1):
            return value.isoformat()
    on_the_clock = [value.replace(tzinfo=None).isoformat(), value.fold]
    if isinstance(value.tzinfo, ZoneInfo):
        if value.tzinfo.key is None:
            raise _Unstorable("its time zone was read from a file and has no name.")
        return [*on_the_clock, value.tzinfo.key]
    offset = value.utcoffset()
    return on_the_clock if offset is None else [*on_the_clock, offset // timedelta(microseconds=1)]


def _from_zoned(kind: type[datetime] | type[time]) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        if type(data) is str:
            return kind.fromisoformat(data)
        text, fold, *zone = data
        moment = kind.fromisoformat(text)
        if moment.tzinfo is not None:
            raise ValueError
        if not zone:
            return moment.replace(fold=fold) if fold else moment
        (name,) = zone
        return moment.replace(tzinfo=_fixed(name) if type(name) is int else ZoneInfo(name), fold=fold)

    return decode


@lru_cache(maxsize=256)
def _fixed(offset: int) -> timezone:
    return timezone(timedelta(microseconds=offset))


def _decimal(value: Decimal) -> str:
    text = str(value)
    if not value.is_finite():
        raise _Unstorable(f"{value} is not a finite number. Pass None or a text instead.")
    if len(text) > DECIMAL_CAP:
        raise _Unstorable(f"the decimal has more than {DECIMAL_CAP:,} digits.")
    return text


def _from_decimal(data: Any) -> Decimal:
    if type(data) is not str or len(data) > DECIMAL_CAP:
        raise ValueError
    value = Decimal(data)
    if not value.is_finite():
        raise InvalidOperation
    return value


def _from_bytes(data: Any) -> bytes:
    if type(data) is not str:
        raise binascii.Error
    return base64.b64decode(data, validate=True)


def _from_list(kind: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        if type(data) is not list:
            raise TypeError
        return kind(data)

    return decode


def _from_timedelta(data: Any) -> timedelta:
    days, seconds, microseconds = data
    return timedelta(days, seconds, microseconds)


def _to_dict(data: Any) -> dict[str, Any]:
    try:
        value = dict(data)
    except (TypeError, ValueError):
        raise PayloadError("A dictionary has the wrong shape.") from None
    if not all(type(key) is str for key in value):
        raise PayloadError("A dictionary has the wrong shape.")
    return value


_SETS = ("set", "frozenset")
_LEAVES = frozenset({"datetime", "date", "time", "timedelta", "decimal", "uuid", "bytes"})  # hold no tags themselves
_BUILT_IN = (
    Tag("datetime", datetime, _zoned, _from_zoned(datetime)),
    Tag("date", date, date.isoformat, date.fromisoformat),
    Tag("time", time, _zoned, _from_zoned(time)),
    Tag("timedelta", timedelta, lambda value: [value.days, value.seconds, value.microseconds], _from_timedelta),
    Tag("decimal", Decimal, _decimal, _from_decimal),
    Tag("uuid", UUID, lambda value: value.hex, lambda data: UUID(hex=data)),
    Tag("bytes", bytes, lambda value: base64.b64encode(value).decode(), _from_bytes),
    Tag("tuple", tuple, list, _from_list(tuple)),
    Tag("set", set, list, _from_list(set)),
    Tag("frozenset", frozenset, list, _from_list(frozenset)),
    Tag("secret", Secret, Secret.reveal, Secret),
)


def _short(key: object) -> str:
    text = repr(key)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _describe(kind: type) -> str:
    return (
        f"a {kind.__name__} cannot travel by itself. Annotate the parameter with its class if that is an enum or a "
        "dataclass, register the type with app.register_type, or pass plain values."
    )
