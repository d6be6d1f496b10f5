"""Shapes: how enums, dataclasses and the like travel, as a task's annotations say.

A shape turns a typed value into plain data that the codec can carry, and back. It is strict, like the codec: the value
is exactly what the annotation says, or it is refused where it is made. What needs no shape has none and costs nothing.
Messages speak of types, fields and places, never of values or keys, which may be secret.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from abc import ABC, abstractmethod
from collections import abc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import repeat
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NewType, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints
from uuid import UUID

from packhorse.errors import ConfigError, PayloadError, TimedOut

PATH_CAP = 200
NAME_CAP = 80

_Turn = Callable[[Any], Any]


class Shape(ABC):
    """How the values of one annotation are stored. `name` is the annotation as messages and unions write it."""

    __slots__ = ("name",)

    stores_none = False
    """Whether None may stand for one of its values, so that it cannot stand for None as well."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def fits(self, value: Any) -> bool:
        """Whether a union should pick this member for the value: exact types, seen through containers."""

    @abstractmethod
    def dump(self, value: Any) -> Any:
        """Plain data for the codec, or a PayloadError."""

    @abstractmethod
    def load(self, data: Any) -> Any:
        """What `dump` was given. Any other data is a PayloadError, and never another error."""

    def _not(self, value: object) -> _Misfit:
        return _Misfit(f"the function says {self.name}, but this is {_described(value, self.name)}.")

    def _not_from(self, data: object) -> _Misfit:
        return _Misfit(f"the function says {self.name}, but the stored data is {_described(data, self.name)}.")


@dataclass(frozen=True, slots=True)
class Shapes:
    """What the annotations of one function say. False if they say nothing that matters here."""

    places: tuple[tuple[str, Shape | None], ...] = ()
    """The parameters that can be passed by place, in order."""
    keywords: Mapping[str, Shape | None] = field(default_factory=dict)
    """The parameters that can be passed by name."""
    var_positional: Shape | None = None
    var_keyword: Shape | None = None
    result: Shape | None = None

    @property
    def parameters(self) -> Mapping[str, Shape]:
        """The named parameters that have a shape."""
        return {name: shape for name, shape in (*self.places, *self.keywords.items()) if shape is not None}

    def __bool__(self) -> bool:
        return bool(self.parameters or self.var_positional or self.var_keyword or self.result)

    def dump_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        by_place, by_name = self._arguments(args, kwargs, _dump, "Cannot store")
        return tuple(by_place), by_name

    def load_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        return self._arguments(args, kwargs, _load, "Cannot load")

    def dump_result(self, value: Any) -> Any:
        try:
            return value if self.result is None else self.result.dump(value)
        except _Misfit as error:
            raise error.within("Cannot store the result") from None

    def load_result(self, data: Any) -> Any:
        try:
            return data if self.result is None else self.result.load(data)
        except _Misfit as error:
            raise error.within("Cannot load the result") from None

    def _arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], turn: Callable[[Shape, Any], Any], cannot: str
    ) -> tuple[list[Any], dict[str, Any]]:
        by_place, by_name = list(args), dict(kwargs)
        name: int | str = 0
        try:
            for place, value in enumerate(args):
                name, shape = self.places[place] if place < len(self.places) else (place, self.var_positional)
                if shape is not None:
                    by_place[place] = turn(shape, value)
            for name, value in kwargs.items():
                shape = self.keywords.get(name, self.var_keyword)
                if shape is not None:
                    by_name[name] = turn(shape, value)
        except _Misfit as error:
            which = repr(name[:NAME_CAP]) if isinstance(name, str) else f"number {name + 1}"
            raise error.within(f"{cannot} argument {which}") from None
        return by_place, by_name


def shape_of(annotation: Any, *, carried: Collection[type] = ()) -> Shape | None:
    """None: leave the value alone. `carried` are types that the codec takes as they are, whatever they look like."""
    try:
        return _compiled(_Compiler(carried), annotation)
    except _Unresolved:
        return None


def shapes_of(function: Callable[..., Any], skip_first: bool = False, *, carried: Collection[type] = ()) -> Shapes:
    """A function whose annotations cannot be resolved has no shapes; asked later, they may well be resolved."""
    compiler = _Compiler(carried)
    places: list[tuple[str, Shape | None]] = []
    keywords: dict[str, Shape | None] = {}
    rest: dict[str, Shape | None] = {}
    try:
        hints = _hints(function)
        parameters = _parameters(function)
        for parameter in parameters[1:] if skip_first else parameters:
            shape = _compiled(compiler, hints.get(parameter.name))
            if parameter.kind is parameter.VAR_POSITIONAL:
                rest["var_positional"] = shape
            if parameter.kind is parameter.VAR_KEYWORD:
                rest["var_keyword"] = shape
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                places.append((parameter.name, shape))
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                keywords[parameter.name] = shape
        result = _compiled(compiler, hints.get("return"))
    except _Unresolved:
        return Shapes()
    return Shapes(tuple(places), keywords, result=result, **rest)


# What goes wrong, told without values.


class _Misfit(PayloadError):
    """Why a value was refused. Its path is collected on the way out, so that good values pay nothing for it."""

    def __init__(self, why: str, *, everywhere: bool = False) -> None:
        super().__init__(why)
        self._why = why
        self._everywhere = everywhere
        self._path = ""

    def inside(self, step: str) -> None:
        if self._everywhere or self._path.startswith("…"):
            return
        self._path = f"{step}{self._path}" if len(self._path) < PATH_CAP else f"…{self._path}"

    def within(self, what: str) -> PayloadError:
        return PayloadError(f"{what}{self._path}: {self._why}")

    def __str__(self) -> str:
        return f"{self._path}: {self._why}" if self._path else self._why


class _Unresolved(Exception):
    """An annotation names what does not exist (yet)."""


def _too_deep() -> _Misfit:
    return _Misfit("it is nested too deep.", everywhere=True)


def _because(why: str, error: Exception) -> _Misfit:
    """The message of an error may contain values, but its type does not."""
    return _too_deep() if isinstance(error, RecursionError) else _Misfit(f"{why}: {type(error).__name__}.")


def _described(value: object, expected: str) -> str:
    if value is None:
        return "None"
    kind = type(value)
    name = kind.__name__ if kind.__name__ != expected else f"{kind.__name__} of another kind ({_full_name(kind)})"
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"


def _named(key: object) -> str:
    """A name in stored data, if it can be the name of a field; else it is a value that got there by mistake."""
    possible = isinstance(key, str) and key.isidentifier() and len(key) <= NAME_CAP
    return repr(key) if possible else "with an impossible name"


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _name(annotation: Any, of_class: Callable[[type], str] = lambda kind: kind.__name__) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is NoneType:
        return "None"
    if annotation is ...:
        return "..."
    if origin is Annotated:
        return _name(arguments[0], of_class)
    inner = [_name(argument, of_class) for argument in arguments] if origin is not Literal else []
    if origin in (Union, UnionType):
        return " | ".join(inner)
    if inner and isinstance(origin, type):
        return f"{_name(origin, of_class)}[{', '.join(inner)}]"
    return of_class(annotation) if isinstance(annotation, type) else str(getattr(annotation, "__name__", annotation))


def _dump(shape: Shape, value: Any) -> Any:
    return shape.dump(value)


def _load(shape: Shape, data: Any) -> Any:
    return shape.load(data)


# The shapes. Errors are raised after the `except` that saw them: as its context, they would keep the value in reach.


class _Exact(Shape):
    """A class of one's own, whose subclasses would come back as something else."""

    __slots__ = ("_kind",)

    def __init__(self, name: str, kind: type) -> None:
        super().__init__(name)
        self._kind: Any = kind

    def fits(self, value: Any) -> bool:
        return type(value) is self._kind


class _Member(_Exact):
    """An enum, stored as its value."""

    __slots__ = ("stores_none",)

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__(kind.__name__, kind)
        self.stores_none = any(member._value_ is None for member in kind)

    def dump(self, value: Any) -> Any:
        if type(value) is not self._kind:
            raise self._not(value)
        return value._value_

    def load(self, data: Any) -> Any:
        misfit = None
        try:
            member = self._kind(data)
            # Python takes True and 1.0 for 1. Data that differs otherwise was translated by the enum's own _missing_.
            if type(member._value_) is type(data) or member._value_ != data:
                return member
        except RecursionError:
            misfit = _too_deep()
        except TimedOut:
            raise
        except Exception:
            pass
        raise misfit or _Misfit(f"the stored data is no value of {self.name}.")


class _Record(_Exact):
    """A dataclass or a named tuple, stored as a dictionary by field name."""

    __slots__ = ("_fields", "_names", "_required", "_shaped")

    def __init__(self, name: str, kind: type, fields: Mapping[str, Shape | None], required: Iterable[str]) -> None:
        super().__init__(name, kind)
        self._fields = tuple(fields.items())
        self._shaped = tuple((name, shape) for name, shape in fields.items() if shape is not None)
        self._names = frozenset(fields)
        self._required = tuple(required)

    def dump(self, value: Any) -> Any:
        if type(value) is not self._kind:
            raise self._not(value)
        data = {}
        name = ""
        try:
            for name, shape in self._fields:
                item = getattr(value, name)
                data[name] = item if shape is None else shape.dump(item)
        except AttributeError:
            pass
        except _Misfit as error:
            error.inside(f".{name}")
            raise
        else:
            return data
        raise _Misfit(f"this {self.name} has no value for its field {name!r}.")

    def load(self, data: Any) -> Any:
        if type(data) is not dict:
            raise self._not_from(data)
        if data.keys() != self._names:
            self._check_names(data)
        values = dict(data)
        name = ""
        try:
            for name, shape in self._shaped:
                if name in values:
                    values[name] = shape.load(values[name])
        except _Misfit as error:
            error.inside(f".{name}")
            raise
        try:
            return self._kind(**values)
        except TimedOut:
            raise
        except Exception as error:
            misfit = _because(f"the stored data makes no {self.name}", error)
        raise misfit

    def _check_names(self, data: dict[Any, Any]) -> None:
        for name in data:
            if name not in self._names:
                raise _Misfit(f"{self.name} has no field {_named(name)}, but the stored data has.")
        for name in self._required:
            if name not in data:
                raise _Misfit(f"the stored data has no field {name!r}, and {self.name} has no default for it.")


# The types that msgspec leaves to the codec.
_CARRIED = (bytes, datetime, date, time, timedelta, UUID, Decimal)
_PLACE = re.compile(r" - at `\$([\w.\[\]]+)`\Z")


class _Struct(_Exact):
    """A msgspec.Struct, stored as msgspec does."""

    __slots__ = ("_annotation", "_msgspec")

    def __init__(self, annotation: Any, kind: type, msgspec: Any) -> None:
        super().__init__(_name(annotation), kind)
        self._annotation = annotation
        self._msgspec = msgspec

    def dump(self, value: Any) -> Any:
        if type(value) is not self._kind:
            raise self._not(value)
        try:
            data = self._msgspec.to_builtins(value, builtin_types=_CARRIED)
            # A Struct takes any values for its fields; only reading them back shows that they fit.
            self._convert(data)
        except TimedOut:
            raise
        except Exception as error:
            misfit = self._misfit(f"msgspec could not read this {self.name} back", error)
        else:
            return data
        raise misfit

    def load(self, data: Any) -> Any:
        try:
            return self._convert(data)
        except TimedOut:
            raise
        except Exception as error:
            misfit = self._misfit(f"the stored data makes no {self.name}", error)
        raise misfit

    def _convert(self, data: Any) -> Any:
        return self._msgspec.convert(data, self._annotation, builtin_types=_CARRIED)

    def _misfit(self, why: str, error: Exception) -> _Misfit:
        misfit = _because(why, error)
        # The place at the end of a message is made of field names and numbers.
        if isinstance(error, self._msgspec.ValidationError) and (place := _PLACE.search(str(error))):
            misfit.inside(place[1])
        return misfit


class _Items(Shape):
    """A list, set, frozenset, or tuple of any length, stored as a list."""

    __slots__ = ("_item", "_kinds", "_make")

    def __init__(self, name: str, kinds: Collection[type], make: Callable[[list[Any]], Any], item: Shape) -> None:
        super().__init__(name)
        self._kinds = kinds
        self._make = make
        self._item = item

    def fits(self, value: Any) -> bool:
        return type(value) in self._kinds and all(map(self._item.fits, value))

    def dump(self, value: Any) -> Any:
        if type(value) not in self._kinds:
            raise self._not(value)
        items = _in_order(repeat(self._item.dump), value)
        return _sorted(items) if type(value) in (set, frozenset) else items

    def load(self, data: Any) -> Any:
        if type(data) is not list:
            raise self._not_from(data)
        items = _in_order(repeat(self._item.load), data)
        try:
            return self._make(items)
        except TimedOut:
            raise
        except Exception as error:
            misfit = _because(f"the stored data makes no {self.name}", error)
        raise misfit


class _Places(Shape):
    """A tuple with a shape per place, stored as a list."""

    __slots__ = ("_dumps", "_fits", "_loads")

    def __init__(self, name: str, shapes: Collection[Shape | None]) -> None:
        super().__init__(name)
        self._fits = tuple(None if shape is None else shape.fits for shape in shapes)
        self._dumps = tuple(None if shape is None else shape.dump for shape in shapes)
        self._loads = tuple(None if shape is None else shape.load for shape in shapes)

    def fits(self, value: Any) -> bool:
        return (
            type(value) is tuple
            and len(value) == len(self._fits)
            and all(fits is None or fits(item) for fits, item in zip(self._fits, value, strict=True))
        )

    def dump(self, value: Any) -> Any:
        if type(value) is not tuple:
            raise self._not(value)
        return self._all(self._dumps, value)

    def load(self, data: Any) -> Any:
        if type(data) is not list:
            raise self._not_from(data)
        return tuple(self._all(self._loads, data))

    def _all(self, turns: tuple[_Turn | None, ...], values: Collection[Any]) -> list[Any]:
        if len(values) != len(turns):
            raise _Misfit(f"the function says {self.name}, but the number of items is {len(values)}.")
        return _in_order(turns, values)


def _sorted(items: list[Any]) -> list[Any]:
    """The same set is the same data, in every process."""
    try:
        return sorted(items, key=repr)
    except RecursionError:
        pass
    raise _too_deep()


def _in_order(turns: Iterable[_Turn | None], values: Iterable[Any]) -> list[Any]:
    turned: list[Any] = []
    try:
        for turn, value in zip(turns, values, strict=False):
            turned.append(value if turn is None else turn(value))
    except _Misfit as error:
        error.inside(f"[{len(turned)}]")
        raise
    return turned


class _Table(Shape):
    """A dictionary. Its keys are stored as text, which the codec checks where they have no shape."""

    __slots__ = ("_key", "_value")

    def __init__(self, name: str, key: Shape | None, value: Shape | None) -> None:
        super().__init__(name)
        self._key = key
        self._value = value

    def fits(self, value: Any) -> bool:
        return (
            type(value) is dict
            and (self._key is None or all(map(self._key.fits, value)))
            and (self._value is None or all(map(self._value.fits, value.values())))
        )

    def dump(self, value: Any) -> Any:
        if type(value) is not dict:
            raise self._not(value)
        data = self._all(_dump, value)
        if self._key is not None and not all(type(key) is str for key in data):
            raise _Misfit(f"the keys of {self.name} are not stored as text. Use keys whose values are texts.")
        return data

    def load(self, data: Any) -> Any:
        if type(data) is not dict:
            raise self._not_from(data)
        return self._all(_load, data)

    def _all(self, turn: Callable[[Shape, Any], Any], values: dict[Any, Any]) -> dict[Any, Any]:
        turned: dict[Any, Any] = {}
        place = 0
        try:
            for place, (key, value) in enumerate(values.items(), 1):  # noqa: B007
                name = key if self._key is None else turn(self._key, key)
                turned[name] = value if self._value is None else turn(self._value, value)
        except _Misfit as error:
            # By number: a key is a value too.
            error.inside(f"[key {place}]")
            raise
        except TypeError:
            pass
        else:
            return turned
        raise _Misfit(f"a key of {self.name} is stored as something that cannot be a key.")


class _Optional(Shape):
    """One shape, or None."""

    __slots__ = ("_shape",)

    stores_none = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(f"{shape.name} | None")
        self._shape = shape

    def fits(self, value: Any) -> bool:
        return value is None or self._shape.fits(value)

    def dump(self, value: Any) -> Any:
        return None if value is None else self._shape.dump(value)

    def load(self, data: Any) -> Any:
        return None if data is None else self._shape.load(data)


class _Union(Shape):
    """Several members, stored as the name of one and its data. Those without a shape have no name."""

    __slots__ = ("_members", "_others", "stores_none")

    def __init__(self, name: str, members: Mapping[str, Shape], others: bool, none: bool) -> None:
        super().__init__(name)
        self._members = members
        self._others = others
        self.stores_none = none

    def fits(self, value: Any) -> bool:
        return self._others or (value is None and self.stores_none) or self._pick(value) is not None

    def dump(self, value: Any) -> Any:
        if value is None and self.stores_none:
            return None
        name = self._pick(value)
        if name is not None:
            return [name, self._members[name].dump(value)]
        if self._others:
            return [None, value]
        raise self._not(value)

    def load(self, data: Any) -> Any:
        if data is None and self.stores_none:
            return None
        if type(data) is not list or len(data) != 2:
            raise self._not_from(data)
        name, plain = data
        if type(name) is str and name in self._members:
            return self._members[name].load(plain)
        if name is None and self._others:
            return plain
        raise _Misfit(f"the stored data is of no member of {self.name}.")

    def _pick(self, value: Any) -> str | None:
        return next((name for name, shape in self._members.items() if shape.fits(value)), None)


class _Later(Shape):
    """A shape inside itself. Whatever nests without end passes here."""

    __slots__ = ("shape",)

    shape: Shape

    def fits(self, value: Any) -> bool:
        return self.shape.fits(value)

    def dump(self, value: Any) -> Any:
        try:
            return self.shape.dump(value)
        except RecursionError:
            pass
        raise _too_deep()

    def load(self, data: Any) -> Any:
        try:
            return self.shape.load(data)
        except RecursionError:
            pass
        raise _too_deep()


# From annotations to shapes. Abstract containers take the plain ones only: what is read once, or lazily, or knows more
# than its items would not come back equal.

_ITEMS: Mapping[Any, tuple[frozenset[type], Callable[[list[Any]], Any]]] = {
    list: (frozenset({list}), list),
    tuple: (frozenset({tuple}), tuple),
    set: (frozenset({set}), set),
    frozenset: (frozenset({frozenset}), frozenset),
    abc.Sequence: (frozenset({list, tuple}), list),
    abc.MutableSequence: (frozenset({list}), list),
    abc.Set: (frozenset({set, frozenset}), set),
    abc.MutableSet: (frozenset({set}), set),
    abc.Collection: (frozenset({list, tuple, set, frozenset}), list),
    abc.Iterable: (frozenset({list, tuple, set, frozenset}), list),
}
_TABLES: Collection[Any] = frozenset({dict, abc.Mapping, abc.MutableMapping})


class _Compiler:
    """Compiles each class once, so that one which mentions itself comes to an end."""

    def __init__(self, carried: Collection[type]) -> None:
        self._carried = carried
        self._records: dict[Any, Shape] = {}
        self._aliases: frozenset[Any] = frozenset()

    def shape(self, annotation: Any) -> Shape | None:
        aliases = self._aliases
        try:
            shapes = {member: self._one(member) for member in self._members(annotation)}
            return self._union(_name(annotation), shapes) if len(shapes) > 1 else next(iter(shapes.values()))
        finally:
            self._aliases = aliases

    def _members(self, annotation: Any) -> list[Any]:
        """The members of a union, or else the annotation alone, without wrappings."""
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin in (Annotated, Final):
            return self._members(arguments[0])
        if origin in (Union, UnionType):
            return [member for argument in arguments for member in self._members(argument)]
        if isinstance(annotation, NewType):
            return self._members(annotation.__supertype__)
        alias = origin or annotation
        if type(alias).__name__ == "TypeAliasType":  # of Python 3.12, or of typing_extensions
            return self._members(self._opened(alias, arguments))
        # Only classes can have a shape, and the rest cannot always be hashed.
        return [annotation if isinstance(alias, type) else Any]

    def _opened(self, alias: Any, arguments: tuple[Any, ...]) -> Any:
        # An alias inside itself is left alone there: the codec carries it, or refuses it.
        if alias in self._aliases:
            return Any
        self._aliases |= {alias}
        try:
            value = alias.__value__
        except TimedOut:
            raise
        except Exception:
            raise _Unresolved from None
        return _substituted(value, _variables(alias.__type_params__, arguments))

    def _union(self, name: str, shapes: dict[Any, Shape | None]) -> Shape | None:
        shaped = {member: shape for member, shape in shapes.items() if shape is not None}
        none = NoneType in shapes
        others = len(shapes) - len(shaped) - none > 0
        if not shaped:
            return None
        if len(shaped) == 1 and none and not others:
            [shape] = shaped.values()
            if not shape.stores_none:
                return _Optional(shape)
        members = {shape.name: shape for shape in shaped.values()}
        if len(members) < len(shaped):
            members = {_name(member, _full_name): shape for member, shape in shaped.items()}
        if len(members) < len(shaped):
            raise ConfigError(f"The members of {name} cannot be told apart: some have the same name.")
        return _Union(name, members, others, none)

    def _one(self, annotation: Any) -> Shape | None:
        kind, arguments = get_origin(annotation) or annotation, get_args(annotation)
        if not isinstance(kind, type) or kind in self._carried:
            return None
        if kind in _ITEMS or kind in _TABLES:
            return self._container(annotation, kind, arguments)
        if issubclass(kind, Enum):
            return _Member(kind) if kind.__members__ else None
        if dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_field_defaults")):
            return self._record(annotation, kind, arguments)
        # A Struct can only be met where msgspec was imported.
        msgspec: Any = sys.modules.get("msgspec")
        if msgspec is not None and issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct:
            return _Struct(annotation, kind, msgspec)
        return None

    def _container(self, annotation: Any, kind: Any, arguments: tuple[Any, ...]) -> Shape | None:
        shapes = [self.shape(argument) for argument in arguments]
        if not any(shapes):
            return None
        if kind is tuple and arguments[-1] is not ...:
            return None if any(map(_is_unpacked, arguments)) else _Places(_name(annotation), shapes)
        if kind in _TABLES:
            return _Table(_name(annotation), *shapes)
        kinds, make = _ITEMS[kind]
        return None if shapes[0] is None else _Items(_name(annotation), kinds, make, shapes[0])

    def _record(self, annotation: Any, kind: Any, arguments: tuple[Any, ...]) -> Shape:
        if annotation in self._records:
            return self._records[annotation]
        later = self._records[annotation] = _Later(_name(annotation))
        names, required = _fields_of(kind) if dataclasses.is_dataclass(kind) else _places_of(kind)
        hints = _hints(kind)
        variables = _variables(getattr(kind, "__parameters__", ()), arguments)
        fields = {name: self.shape(_substituted(hints.get(name), variables)) for name in names}
        later.shape = self._records[annotation] = _Record(later.name, kind, fields, required)
        return later.shape


def _compiled(compiler: _Compiler, annotation: Any) -> Shape | None:
    try:
        return compiler.shape(annotation)
    except RecursionError:
        raise ConfigError(f"The annotation {_name(annotation)} nests ever new types, without end.") from None


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise _Unresolved from None


def _hints(thing: Any) -> dict[str, Any]:
    # Resolving an annotation runs it, so it can fail in any way.
    try:
        return get_type_hints(thing)
    except TimedOut:
        raise
    except Exception:
        raise _Unresolved from None


def _fields_of(kind: Any) -> tuple[list[str], list[str]]:
    """Their names, and the names of those without a default."""
    fields = [it for it in dataclasses.fields(kind) if it.init]
    _check_init(kind, {it.name for it in fields})
    unset = dataclasses.MISSING
    required = [it.name for it in fields if it.default is unset and it.default_factory is unset]
    return [it.name for it in fields], required


def _check_init(kind: Any, names: set[str]) -> None:
    _, *parameters = inspect.signature(kind.__init__).parameters.values()
    if kind.__init__ is object.__init__:  # which claims to take anything
        parameters = []
    taken = {it.name for it in parameters if it.kind in (it.POSITIONAL_OR_KEYWORD, it.KEYWORD_ONLY)}
    takes_any = any(it.kind is it.VAR_KEYWORD for it in parameters)
    if extra := sorted(taken - names):
        why = f"takes {extra[0]!r}, which is no field (an InitVar?)"
    elif (missing := sorted(names - taken)) and not takes_any:
        why = f"does not take the field {missing[0]!r}"
    else:
        return
    raise ConfigError(
        f"{kind.__name__} cannot be an argument or result: its __init__ {why}, "
        "so it could not be made again from what is stored."
    )


def _places_of(kind: Any) -> tuple[list[str], list[str]]:
    return list(kind._fields), [name for name in kind._fields if name not in kind._field_defaults]


def _is_unpacked(argument: Any) -> bool:
    return get_origin(argument) is Unpack or getattr(argument, "__unpacked__", False)


def _variables(parameters: tuple[Any, ...], arguments: tuple[Any, ...]) -> dict[Any, Any]:
    plain = len(parameters) == len(arguments) and all(isinstance(parameter, TypeVar) for parameter in parameters)
    return dict(zip(parameters, arguments, strict=True)) if plain else {}


def _substituted(hint: Any, variables: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return variables.get(hint, hint)
    parameters = () if isinstance(hint, type) else getattr(hint, "__parameters__", ())
    if not variables or not parameters:
        return hint
    return hint[tuple(variables.get(parameter, parameter) for parameter in parameters)]
