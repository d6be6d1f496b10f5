"""Typed values: what the annotations say comes back as that, and everything else is refused without being shown."""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, make_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum, auto
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, NamedTuple, NewType, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.codec import Codec
from packhorse.errors import ConfigError, PayloadError
from packhorse.shapes import Shape, Shapes, shape_of, shapes_of

T = TypeVar("T")


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Corner(Enum):
    ORIGIN = (0, 0)
    FAR = (9, 9)


class Answer(Enum):
    YES = True
    NO = False
    UNKNOWN = None


class Rights(Flag):
    READ = auto()
    WRITE = auto()


class Mode(IntFlag):
    READ = auto()
    WRITE = auto()


class Renamed(Enum):
    NEW = "new"

    @classmethod
    def _missing_(cls, value: object) -> Renamed | None:
        return cls.NEW if value == "old" else None


@dataclass
class Line:
    article: str
    price: int
    colour: Colour = Colour.RED


@dataclass
class Order:
    number: int
    lines: list[Line] = field(default_factory=list)
    size: Size | None = None


@dataclass(frozen=True, slots=True)
class Invoice:
    number: int
    _: KW_ONLY
    colours: frozenset[Colour] = frozenset()


@dataclass
class Express(Order):
    courier: Line | None = None
    total: int = field(init=False, default=0)
    kinds: ClassVar[int] = 3


@dataclass
class Node:
    size: Size
    next: Node | None = None
    other: list[Node] | list[Line] = field(default_factory=list)
    children: dict[str, list[Node]] = field(default_factory=dict)


@dataclass
class Box(Generic[T]):
    item: T
    more: list[T] = field(default_factory=list)
    inner: Box[T] | None = None


@dataclass(frozen=True)
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ArithmeticError(f"{self.number} is not positive")


class Point(NamedTuple):
    x: int
    colour: Colour
    y: int = 0


Pair = namedtuple("Pair", ["left", "right"])


class Parcel(msgspec.Struct):
    number: int
    sent: datetime
    weight: Decimal
    id: UUID
    label: bytes = b""
    colours: set[Colour] = msgspec.field(default_factory=set)
    inner: Parcel | None = None
    place: tuple[int, int] = (0, 0)


class Crate(msgspec.Struct, Generic[T]):
    item: T


lines = st.builds(Line, st.text(), st.integers(), st.sampled_from(Colour))
orders = st.builds(Order, st.integers(), st.lists(lines), st.none() | st.sampled_from(Size))
invoices = st.builds(Invoice, st.integers(-9, 9), colours=st.frozensets(st.sampled_from(Colour)))
nodes = st.recursive(
    st.builds(Node, st.sampled_from(Size)),
    lambda inner: st.builds(
        Node,
        st.sampled_from(Size),
        inner,
        st.lists(inner) | st.lists(lines),
        st.dictionaries(st.text(), st.lists(inner)),
    ),
    max_leaves=10,
)
points = st.builds(Point, st.integers(), st.sampled_from(Colour), st.integers())
parcels = st.builds(
    Parcel,
    st.integers(-(2**63), 2**63),
    st.datetimes(timezones=st.just(UTC)),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
    st.binary(),
    st.sets(st.sampled_from(Colour)),
)
SHAPED: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text enum": (Colour, st.sampled_from(Colour)),
    "number enum": (Size, st.sampled_from(Size)),
    "enum of tuples": (Corner, st.sampled_from(Corner)),
    "enum with None": (Answer, st.sampled_from(Answer)),
    "enum with None, or None": (Answer | None, st.none() | st.sampled_from(Answer)),
    "flag": (Rights, st.integers(0, 3).map(Rights)),
    "number flag": (Mode, st.integers(0, 7).map(Mode)),
    "dataclass": (Order, orders),
    "frozen dataclass with slots": (Invoice, invoices),
    "recursive dataclass": (Node, nodes),
    "generic dataclass": (Box[Size], st.builds(Box, st.sampled_from(Size), st.lists(st.sampled_from(Size)))),
    "named tuple": (Point, points),
    "untyped named tuple": (Pair, st.builds(Pair, st.integers(), st.text())),
    "struct": (Parcel, parcels),
    "optional": (Order | None, st.none() | orders),
    "list": (list[Order], st.lists(orders)),
    "set": (set[Colour], st.sets(st.sampled_from(Colour))),
    "frozenset": (frozenset[Point], st.frozensets(points)),
    "tuple of any length": (tuple[Size, ...], st.lists(st.sampled_from(Size)).map(tuple)),
    "tuple of places": (tuple[int, Order, str], st.tuples(st.integers(), orders, st.text())),
    "dictionary": (dict[str, Order], st.dictionaries(st.text(), orders)),
    "dictionary with enum keys": (dict[Colour, int], st.dictionaries(st.sampled_from(Colour), st.integers())),
    "sequence": (Sequence[Line], st.lists(lines)),
    "mapping": (Mapping[str, Line], st.dictionaries(st.text(), lines)),
    "iterable": (Iterable[Line], st.lists(lines)),
    "union": (Order | Invoice | None, st.none() | orders | invoices),
    "union with plain members": (Order | int | list[int], st.integers() | st.lists(st.integers()) | orders),
    "union of containers": (list[Order] | list[Invoice], st.lists(orders) | st.lists(invoices)),
    "union of dictionaries": (dict[str, Size] | dict[str, Line], st.dictionaries(st.text(), lines)),
    "union of tuples": (tuple[Size] | tuple[Size, Size], st.just((Size.SMALL, Size.LARGE))),
    "union of lists of optionals": (list[Size | None] | list[Line], st.lists(st.none() | st.sampled_from(Size))),
    "union of lists of unions": (list[Size | Line] | list[Order], st.lists(st.sampled_from(Size) | lines)),
    "union with text": (Colour | str, st.sampled_from(Colour) | st.text()),
}


def compiled(annotation: Any) -> Shape:
    shape = shape_of(annotation)
    assert shape is not None
    return shape


SHAPES = {name: compiled(annotation) for name, (annotation, _) in SHAPED.items()}
CARRIED = {type(None), bool, int, float, str, bytes, datetime, date, timedelta, Decimal, UUID}


def assert_carried(data: Any) -> None:
    """Made of what the codec takes, and nothing else."""
    if type(data) in (list, tuple):
        for item in data:
            assert_carried(item)
    elif type(data) is dict:
        assert all(type(key) is str for key in data)
        assert_carried(list(data.values()))
    else:
        assert type(data) in CARRIED


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types all the way down: 1 and Size.SMALL are two things."""
    if type(left) is not type(right) or left != right:
        return False
    if isinstance(left, list | tuple):
        return all(map(same, left, right))
    if isinstance(left, dict):
        return all(same(left[key], right[key]) for key in right)
    if isinstance(left, set | frozenset):
        return {(type(item), item) for item in left} == {(type(item), item) for item in right}
    names = getattr(right, "__dataclass_fields__", ())
    return all(same(getattr(left, name), getattr(right, name)) for name in names)


@pytest.mark.parametrize("name", SHAPED)
@settings(max_examples=30)
@given(data=st.data())
def test_values_of_the_annotated_type_come_back_equal(name: str, data: st.DataObject):
    """What is stored is plain, and what is loaded has the same types again."""
    _, values = SHAPED[name]
    value = data.draw(values)
    plain = SHAPES[name].dump(value)
    assert_carried(plain)
    assert same(SHAPES[name].load(plain), value)


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.sampled_from(["red", "old", "Order", "list[Order]", "Colour", ""])
    | st.sampled_from([b"x", datetime(2030, 1, 1, tzinfo=UTC), Decimal("NaN"), UUID(int=1), {1}, frozenset({1})]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from(["number", "lines", "size", "article", "price", "colour", "x"]), inner)
        | st.dictionaries(st.none() | st.integers() | st.text(max_size=3), inner, max_size=3)
    ),
)


@settings(max_examples=300)
@given(json_like)
def test_data_that_somebody_else_wrote_raises_only_a_payload_error(data: Any):
    """A worker must not be surprised by a row that no dump has made."""
    for shape in SHAPES.values():
        try:
            shape.load(data)
        except PayloadError:
            pass


@settings(max_examples=300)
@given(json_like)
def test_values_of_any_type_raise_only_a_payload_error(value: Any):
    """What a type checker would have refused is refused here too, where it matters."""
    for shape in SHAPES.values():
        try:
            shape.dump(value)
        except PayloadError:
            pass


PLAIN_LINE = {"article": "pen", "price": 2, "colour": "red"}
STORED = [
    (Colour, Colour.RED, "red"),
    (Corner, Corner.FAR, (9, 9)),
    (Rights, Rights.READ | Rights.WRITE, 3),
    (Order, Order(1, [Line("pen", 2)]), {"number": 1, "lines": [PLAIN_LINE], "size": None}),
    (Point, Point(1, Colour.BLUE), {"x": 1, "colour": "blue", "y": 0}),
    (Crate[date], Crate(date(2030, 1, 1)), {"item": date(2030, 1, 1)}),
    (tuple[Line, int], (Line("pen", 2), 3), [PLAIN_LINE, 3]),
    (set[Colour], {Colour.RED, Colour.BLUE}, ["blue", "red"]),
    (dict[Colour, int], {Colour.RED: 1}, {"red": 1}),
    (Line | None, None, None),
    (Line | None, Line("pen", 2), PLAIN_LINE),
    (Line | Point | None, None, None),
    (Line | Point, Line("pen", 2), ["Line", PLAIN_LINE]),
    (Line | int, 3, [None, 3]),
    (Answer | None, Answer.UNKNOWN, ["Answer", None]),
    (list[Line] | int, [Line("pen", 2)], ["list[Line]", [PLAIN_LINE]]),
]


@pytest.mark.parametrize(("annotation", "value", "plain"), STORED)
def test_this_is_how_values_are_stored(annotation: Any, value: Any, plain: Any):
    """Jobs outlive deployments, so this must not change."""
    assert compiled(annotation).dump(value) == plain
    assert compiled(annotation).load(plain) == value


PLAIN: list[Any] = [
    *(None, Any, int, str, object, datetime, list, dict, tuple, tuple[()], list[int], set[int], tuple[int, ...]),
    *(dict[str, Any], int | None, Literal["a"], Literal[Colour.RED], Annotated[int, "positive"], NewType("Id", int)),
    *(T, list[T], type[Order], Callable[[Order], None], tuple[Size, *tuple[int, ...]], Enum, msgspec.Struct),  # type: ignore[valid-type]
    *("Order", [int], {"not": "an annotation"}, ...),
]


@pytest.mark.parametrize("annotation", PLAIN, ids=repr)
def test_what_the_codec_can_take_or_refuse_alone_has_no_shape(annotation: Any):
    """No shape costs nothing."""
    assert shape_of(annotation) is None


class TypeAliasType:
    """Like the one of Python 3.12: `type Name[T] = ...`."""

    def __init__(self, name: str, value: Any, type_params: tuple[Any, ...] = ()) -> None:
        self.__name__ = name
        self.__value__ = value
        self.__type_params__ = type_params

    def __getitem__(self, argument: Any) -> Any:
        return GenericAlias(self, argument)  # type: ignore[arg-type]


class Later(TypeAliasType):
    """An alias of something that is not there yet."""

    def __init__(self) -> None: ...

    @property
    def __value__(self) -> Any:
        raise NameError


Later.__name__ = "TypeAliasType"


@pytest.mark.parametrize(
    "annotation",
    [Annotated[Order, "x"], Final[Order], NewType("Paid", Order), TypeAliasType("Alias", Order)],
)
def test_wrappings_of_a_type_count_as_the_type(annotation: Any):
    """Whatever a wrapping tells to others, the value is the same."""
    assert compiled(annotation).dump(Order(1)) == compiled(Order).dump(Order(1))


def test_a_union_inside_wrappings_is_one_with_the_union_around():
    """Nobody can tell which of two Nones was stored, and nobody needs to."""
    shape = compiled(NewType("Maybe", Order | None) | Annotated[Invoice | None, "x"])
    assert [shape.dump(value) and shape.dump(value)[0] for value in (None, Order(1), Invoice(1))] == [
        None,
        "Order",
        "Invoice",
    ]


def test_a_generic_alias_is_filled_in():
    """As in `type Many[T] = list[T] | None`."""
    shape = compiled(TypeAliasType("Many", list[T] | None, (T,))[Size])  # type: ignore[valid-type]
    assert shape.dump([Size.SMALL]) == [1]
    assert shape.dump(None) is None


def test_an_alias_inside_itself_is_left_to_the_codec():
    """`type Json = list[Json] | int` needs no shape."""
    json = TypeAliasType("Json", None)
    json.__value__ = list[json] | int  # type: ignore[valid-type]
    assert shape_of(json) is None
    json.__value__ = list[json] | Order  # type: ignore[valid-type]
    assert compiled(json).dump([Order(1)]) == [None, [Order(1)]]


# What is refused.


REFUSED = {
    "dict for a dataclass": (Order, {"number": 1}, "the function says Order, but this is a dict."),
    "subclass": (Order, Express(1), "the function says Order, but this is an Express."),
    "None": (Order, None, "the function says Order, but this is None."),
    "class itself": (Order, Order, "the function says Order, but this is a type."),
    "value for an enum": (Colour, "red", "the function says Colour, but this is a str."),
    "other enum": (Size, Colour.RED, "the function says Size, but this is a Colour."),
    "number for a flag": (Rights, 1, "the function says Rights, but this is an int."),
    "tuple for a named tuple": (Point, (1, Colour.RED, 2), "the function says Point, but this is a tuple."),
    "wrong for an optional": (Order | None, 0, "the function says Order, but this is an int."),
    "tuple for a list": (list[Order], (), "the function says list[Order], but this is a tuple."),
    "generator": (
        Iterable[Order],
        (Order(number) for number in (1, 2)),
        "the function says Iterable[Order], but this is a generator.",
    ),
    "subclass of dict": (Mapping[str, Size], OrderedDict(), "Mapping[str, Size], but this is an OrderedDict."),
    "text for a sequence": (Sequence[Colour], "red", "the function says Sequence[Colour], but this is a str."),
    "wrong length": (
        tuple[Size, int],
        (Size.SMALL,),
        "the function says tuple[Size, int], but the number of items is 1.",
    ),
    "no member": (Order | Invoice, 1, "the function says Order | Invoice, but this is an int."),
    "no named member": (Order | Line | None, {}, "the function says Order | Line | None, but this is a dict."),
    "keys that are no text": (dict[Size, int], {Size.SMALL: 1}, "the keys of dict[Size, int] are not stored as text"),
    "keys that are no keys": (dict[Point, int], {Point(1, Colour.RED): 1}, "a key of dict[Point, int] is stored as"),
    "struct": (Parcel, {}, "the function says Parcel, but this is a dict."),
    "member deep inside": (
        dict[str, list[Order]],
        {"a": [], "b": [Order(1), Order(2, [Line("pen", 1, "red")])]},  # type: ignore[arg-type]
        "[key 2][1].lines[0].colour: the function says Colour, but this is a str.",
    ),
    "place of a tuple": (tuple[int, Size], (1, 1), "[1]: the function says Size, but this is an int."),
    "part of a struct": (
        Crate[int],
        Crate("hunter2"),
        ".item: msgspec could not read this Crate[int] back: ValidationError.",
    ),
    "part that msgspec does not know": (Crate, Crate(1j), "msgspec could not read this Crate back: TypeError."),
}


@pytest.mark.parametrize(("annotation", "value", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_value_that_is_not_what_the_annotation_says_is_refused(annotation: Any, value: Any, message: str):
    """The message names both types, and the place where they differ."""
    with pytest.raises(PayloadError) as caught:
        compiled(annotation).dump(value)
    assert message in str(caught.value)
    assert_silent(caught.value)


BAD_DATA = {
    "no dictionary": (Order, [1], "the function says Order, but the stored data is a list."),
    "missing field": (
        Line,
        {"article": "pen"},
        "the stored data has no field 'price', and Line has no default for it.",
    ),
    "unknown field": (Order, {"number": 1, "colour": 2}, "Order has no field 'colour', but the stored data has."),
    "impossible field": (Order, {"number": 1, "hunter 2": 2}, "Order has no field with an impossible name"),
    "key that is no text": (Order, {"number": 1, 2: 2}, "Order has no field with an impossible name"),
    "missing place": (Point, {"x": 1}, "the stored data has no field 'colour', and Point has no default for it."),
    "deep inside": (
        list[Order],
        [{"number": 1, "lines": [{"article": "pen", "price": 1, "colour": "hunter2"}]}],
        "[0].lines[0].colour: the stored data is no value of Colour.",
    ),
    "True for 1": (Size, True, "the stored data is no value of Size."),
    "1.0 for 1": (Size, 1.0, "the stored data is no value of Size."),
    "1 for True": (Answer, 1, "the stored data is no value of Answer."),
    "list for an enum": (Size, ["hunter2"], "the stored data is no value of Size."),
    "bits of no flag": (Rights, 64, "the stored data is no value of Rights."),
    "unhashable member": (set[Line], [{"article": "pen", "price": 1}], "makes no set[Line]: TypeError."),
    "refused by the class": (Positive, {"number": -12345}, "the stored data makes no Positive: ArithmeticError."),
    "tuple": (tuple[Size, ...], (1,), "the function says tuple[Size, ...], but the stored data is a tuple."),
    "too many": (tuple[Size, int], [1, 2, 3], "the function says tuple[Size, int], but the number of items is 3."),
    "key": (dict[Colour, int], {"hunter2": 1}, "[key 1]: the stored data is no value of Colour."),
    "no pair": (Order | Line, {"number": 1}, "the function says Order | Line, but the stored data is a dict."),
    "no member": (Order | Line, ["Hunter2", {}], "the stored data is of no member of Order | Line."),
    "no plain member": (Order | Line, [None, {}], "the stored data is of no member of Order | Line."),
    "unhashable name": (Order | Line, [[], {}], "the stored data is of no member of Order | Line."),
    "struct": (Parcel, {"number": "hunter2"}, ".number: the stored data makes no Parcel: ValidationError."),
    "nothing of a struct": (Parcel, 12345, "the stored data makes no Parcel: ValidationError."),
}


@pytest.mark.parametrize(("annotation", "data", "message"), BAD_DATA.values(), ids=BAD_DATA.keys())
def test_data_that_does_not_fit_is_refused_by_class_and_field(annotation: Any, data: Any, message: str):
    """Neither the message nor anything it was raised from shows a value."""
    with pytest.raises(PayloadError) as caught:
        compiled(annotation).load(data)
    assert message in str(caught.value)
    assert_silent(caught.value)


def assert_silent(error: BaseException | None) -> None:
    while error is not None:
        assert "hunter" not in f"{error!s} {error!r}".lower()
        assert "12345" not in f"{error!s} {error!r}"
        error = error.__cause__ or error.__context__


secrets = st.recursive(
    st.just("hunter2") | st.just(12345),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["number", "hunter2 "]), inner),
)


@given(secrets)
def test_errors_never_show_the_value(value: Any):
    """Arguments may be secret, and errors are logged."""
    for shape in SHAPES.values():
        for act in (shape.dump, shape.load):
            try:
                act(value)
            except PayloadError as error:
                assert_silent(error)


def test_missing_fields_take_their_defaults():
    """A job that was enqueued before the field was added can still be performed."""
    assert compiled(Order).load({"number": 1}) == Order(1)
    assert compiled(Point).load({"x": 1, "colour": "red"}) == Point(1, Colour.RED)


def test_fields_that_init_does_not_take_do_not_travel():
    """They are made again by the class."""
    plain = compiled(Express).dump(Express(1, courier=Line("van", 2)))
    assert "total" not in plain
    assert compiled(Express).load(plain) == Express(1, courier=Line("van", 2))


def test_a_field_without_a_value_is_refused():
    """Slots and deleted attributes can be empty."""
    order = Order(1)
    del order.number
    with pytest.raises(PayloadError, match="this Order has no value for its field 'number'"):
        compiled(Order).dump(order)


def test_an_enum_may_translate_what_it_no_longer_has():
    """`_missing_` is how an enum says that a value was renamed."""
    assert compiled(Renamed).load("old") is Renamed.NEW
    with pytest.raises(PayloadError):
        compiled(Renamed).load("older")


def test_classes_of_the_same_name_are_told_apart():
    """In unions and in messages."""
    Twin = make_dataclass("Order", [("size", Size)], namespace={"__module__": "elsewhere"})
    Twin.__module__ = "elsewhere"
    shape = compiled(Order | list[Order] | Twin)
    assert [shape.dump(value)[0] for value in (Order(1), Twin(Size.SMALL))] == [f"{__name__}.Order", "elsewhere.Order"]
    assert shape.load(shape.dump(Twin(Size.SMALL))) == Twin(Size.SMALL)
    with pytest.raises(PayloadError, match=r"says Order, but this is an Order of another kind \(elsewhere\.Order\)"):
        compiled(Order).dump(Twin(Size.SMALL))


def test_members_that_no_name_tells_apart_are_refused():
    """Nobody could say which of them was stored."""
    first, second = (make_dataclass("Same", [("size", Size)]) for _ in range(2))
    with pytest.raises(ConfigError, match="cannot be told apart"):
        shape_of(first | second)


def test_a_class_that_needs_more_than_its_fields_is_refused_at_once():
    """What is stored could not make it again."""

    @dataclass
    class Scaled:
        number: int
        scale: InitVar[int] = 1

    @dataclass(init=False)
    class Silent:
        number: int

    @dataclass
    class Stubborn:
        number: int

        def __init__(self) -> None:
            self.number = 1

    for kind, why in (
        (Scaled, "takes 'scale', which is no field"),
        (Silent, "does not take the field 'number'"),
        (Stubborn, "does not take the field 'number'"),
    ):
        with pytest.raises(ConfigError, match=f"{kind.__name__} cannot be an argument or result: its __init__ {why}"):
            shape_of(list[kind])  # type: ignore[valid-type]


def test_types_that_the_codec_carries_itself_are_left_alone():
    """An app may have registered a dataclass."""
    assert shape_of(Line, carried={Line}) is None
    shape = shape_of(Order, carried={Line})
    assert shape is not None
    assert shape.dump(Order(1, [Line("pen", 1)]))["lines"] == [Line("pen", 1)]


def test_an_annotation_that_nests_ever_new_types_is_refused():
    """It would be compiled for ever."""
    with pytest.raises(ConfigError, match=r"Matryoshka\[int\] nests ever new types"):
        shape_of(Matryoshka[int])


@dataclass
class Matryoshka(Generic[T]):
    inner: Matryoshka[list[T]] | None


def test_values_nested_without_end_are_refused():
    """Also those that contain themselves."""
    node = Node(Size.SMALL)
    node.next = node
    with pytest.raises(PayloadError, match=r"^it is nested too deep\.$"):
        compiled(Node).dump(node)


def test_data_nested_without_end_is_refused():
    """Deep data ends in an ordinary error."""
    data: Any = None
    for _ in range(100_000):
        data = {"size": 1, "next": data}
    with pytest.raises(PayloadError, match=r"^it is nested too deep\.$"):
        compiled(Node).load(data)


def test_data_nested_too_deep_for_msgspec_is_refused():
    """Deep data ends in an ordinary error there too."""
    data: Any = None
    for _ in range(100_000):
        data = {"number": 1, "sent": datetime(2030, 1, 1), "weight": Decimal(1), "id": UUID(int=1), "inner": data}
    with pytest.raises(PayloadError, match=r"^it is nested too deep\.$"):
        compiled(Parcel).load(data)


def test_a_set_of_values_nested_without_end_is_refused():
    """Its members are sorted, so that the same set is the same data."""
    deep: Any = ()
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(PayloadError, match=r"^it is nested too deep\.$"):
        compiled(set[Point]).dump({Point(deep, Colour.RED)})


def test_a_long_path_is_cut():
    """Its end says enough."""
    data: Any = {"size": "x"}
    for _ in range(100):
        data = {"size": 1, "next": data}
    with pytest.raises(PayloadError) as caught:
        compiled(Node).load(data)
    assert str(caught.value).startswith("….next.next")
    assert len(str(caught.value)) < 300


def test_msgspec_is_asked_only_where_it_is_in_use(monkeypatch: pytest.MonkeyPatch):
    """It is no dependency: without it, nothing can be a Struct."""
    monkeypatch.delitem(sys.modules, "msgspec")
    assert shape_of(Parcel) is None
    assert shape_of(Order) is not None
    assert "msgspec" not in sys.modules


def test_generic_structs_are_filled_in():
    """msgspec does it itself."""
    assert compiled(Crate[Size]).load({"item": 1}) == Crate(Size.SMALL)


# Whole functions.


def ship(order: Order, size: int, /, *rest: Size, note: str = "", line: Line | None = None, **more: Colour) -> Point:
    raise NotImplementedError


def test_the_arguments_and_the_result_of_a_function_travel():
    """Every argument by its own annotation, wherever it stands."""
    shapes = shapes_of(ship)
    assert shapes
    assert set(shapes.parameters) == {"order", "line"}
    args, kwargs = (Order(1), 2, Size.SMALL, Size.LARGE), {"note": "x", "line": Line("pen", 1), "order": Colour.RED}
    dumped_args, dumped_kwargs = shapes.dump_arguments(args, kwargs)
    assert dumped_args == ({"number": 1, "lines": [], "size": None}, 2, 1, 2)
    assert dumped_kwargs == {"note": "x", "line": compiled(Line).dump(Line("pen", 1)), "order": "red"}
    assert shapes.load_arguments(list(dumped_args), dumped_kwargs) == (list(args), kwargs)
    assert shapes.load_result(shapes.dump_result(Point(1, Colour.RED))) == Point(1, Colour.RED)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (({},), {}, "argument 'order': the function says Order, but this is a dict."),
        ((Order(1), 1, Size.SMALL, 2), {}, "argument number 4: the function says Size, but this is an int."),
        ((), {"line": Line("pen", 1, "red")}, "argument 'line'.colour: the function says Colour, but this is a str."),  # type: ignore[arg-type]
        ((), {"extra": 1}, "argument 'extra': the function says Colour, but this is an int."),
    ],
)
def test_a_refused_argument_is_named(args: Any, kwargs: Any, message: str):
    """By the name of its parameter or by its number, as the codec does."""
    with pytest.raises(PayloadError) as caught:
        shapes_of(ship).dump_arguments(args, kwargs)
    assert str(caught.value) == f"Cannot store {message}"


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ([[]], {}, "argument 'order': the function says Order, but the stored data is a list."),
        ([{"number": 1}, 1, 1, "x"], {}, "argument number 4: the stored data is no value of Size."),
        ([], {"line": PLAIN_LINE | {"colour": 1}}, "argument 'line'.colour: the stored data is no value of Colour."),
        ([], {"extra": 1}, "argument 'extra': the stored data is no value of Colour."),
    ],
)
def test_an_argument_that_cannot_be_loaded_is_named(args: Any, kwargs: Any, message: str):
    """So that the failure of the job says what to look at."""
    with pytest.raises(PayloadError) as caught:
        shapes_of(ship).load_arguments(args, kwargs)
    assert str(caught.value) == f"Cannot load {message}"


def test_the_result_is_named_in_errors():
    """Both ways."""
    with pytest.raises(PayloadError, match="Cannot store the result: the function says Point, but this is a tuple"):
        shapes_of(ship).dump_result((1, 2))
    with pytest.raises(PayloadError, match="Cannot load the result: the function says Point, but the stored data is a"):
        shapes_of(ship).load_result([1, 2])


def test_a_function_that_needs_nothing_has_no_shapes():
    """It is false, so that the caller can skip it."""

    def plain(a: int, *b: str, c: list[int] | None = None, **d: Any) -> dict[str, Any]: ...  # type: ignore[empty-body]

    shapes = shapes_of(plain)
    assert not shapes
    assert shapes.dump_arguments((1, object), {"c": 2}) == ((1, object), {"c": 2})
    assert shapes.dump_result(object) is shapes.load_result(object) is object


def test_a_result_alone_makes_a_function_one_with_shapes():
    """Though its arguments need nothing."""

    async def only() -> Size: ...  # type: ignore[empty-body]

    assert shapes_of(only)
    assert shapes_of(only).dump_result(Size.LARGE) == 2


def test_the_first_parameter_can_be_skipped():
    """A task that is given its context does not get it from the payload."""

    def task(context: Order, size: Size) -> None: ...

    assert shapes_of(task, skip_first=True).dump_arguments((Size.LARGE,), {}) == ((2,), {})


def test_a_keyword_for_a_plain_parameter_is_not_one_of_the_rest():
    """`**rest: Size` is about the rest only."""

    def task(a: int, **rest: Size) -> None: ...

    assert shapes_of(task).dump_arguments((), {"a": 1, "rest": Size.LARGE}) == ((), {"a": 1, "rest": 2})


def test_annotations_that_cannot_be_resolved_mean_no_shapes():
    """They may be there for a type checker alone."""

    @dataclass
    class Hidden:
        order: Nowhere  # type: ignore[name-defined]  # noqa: F821

    def unknown(order: Order, other: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def broken(order: Order, other: 1 / 0) -> None: ...  # type: ignore[valid-type]
    def nested(order, hidden) -> None: ...

    nested.__annotations__ = {"order": Order, "hidden": Hidden}
    for function in (unknown, broken, nested, object(), int):
        assert shapes_of(function) == Shapes()  # type: ignore[arg-type]
    assert shape_of(Hidden) is None
    assert shape_of(Later()) is None


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
storable = st.builds(Order, st.integers(-9, 9), st.lists(st.builds(Line, texts, st.integers(-9, 9))))


@given(st.lists(storable, max_size=3), storable | invoices, st.sampled_from(Corner))
def test_what_is_dumped_passes_through_the_codec(some: list[Order], one: Order | Invoice, corner: Corner):
    """Both together carry a typed call to the worker."""

    def task(some: list[Order], *, one: Order | Invoice, corner: Corner) -> None: ...

    shapes = shapes_of(task)
    body, typed = Codec().encode_arguments(*shapes.dump_arguments((some,), {"one": one, "corner": corner}))
    args, kwargs, _ = Codec().decode_arguments(body, typed=typed)
    assert shapes.load_arguments(args, kwargs) == ([some], {"one": one, "corner": corner})
