"""Arguments that only Django knows: models travel as references and are fetched when the task begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from django.apps import apps
from django.core.exceptions import ObjectDoesNotExist
from django.core.files.base import File
from django.db.models import Manager, Model, QuerySet
from django.utils.functional import LazyObject, Promise

from packhorse.codec import Codec, Tag
from packhorse.errors import DeserializationError, PayloadError

CONTAINERS = (list, tuple, dict, set, frozenset)


class InvalidArgument(PayloadError, TypeError):
    """A TypeError too, as Django's own backends raise where JSON has no such type."""


class ModelReference(NamedTuple):
    """Which row a model stands for: what travels in its place, and what results show."""

    model: str
    pk: Any
    database: str

    def __str__(self) -> str:
        return f"{self.model} {self.pk} in {self.database!r}"

    def fetch(self) -> Model:
        """With the base manager: which rows a default manager hides must not decide what a task can be given."""
        try:
            kind = apps.get_model(self.model)
        except (LookupError, ValueError):
            raise DeserializationError(f"There is no model {self.model} (any more).") from None
        try:
            found: Model = kind._base_manager.using(self.database).get(pk=self.pk)
        except ObjectDoesNotExist:
            raise DeserializationError(f"The row {self} is no longer there.") from None
        return found


def teach(codec: Codec) -> None:
    """Let the codec carry what Django programs pass around."""
    codec.register(Tag("model", ModelReference, list, _to_reference))
    codec.register_family(_tag_of)


def _tag_of(kind: type) -> Tag | None:
    if issubclass(kind, Model):
        return Tag("", kind, _reference, _nothing)
    if issubclass(kind, LazyObject):  # request.user, for one
        return Tag("", kind, _behind, _nothing)
    if issubclass(
        kind, Promise | str
    ):  # a lazy translation in the language that is active now, SafeString, TextChoices
        return Tag("", kind, lambda value: "".join([str(value)]), _nothing)
    if issubclass(kind, int):  # IntegerChoices
        return Tag("", kind, lambda value: int(value), _nothing)
    for known, advice in REFUSED.items():
        if issubclass(kind, known):
            return Tag("", kind, _refusing(kind, advice), _nothing)
    return None


REFUSED: dict[type, str] = {
    QuerySet: "It would be another one when the task runs. Pass primary keys, or a list of its models",
    Manager: "Let the task name the model itself",
    File: "Store the file, and pass the model that has it or its name",
}


def _refusing(kind: type, advice: str) -> Callable[[Any], Any]:
    def refuse(value: object) -> Any:
        raise PayloadError(f"a {kind.__name__} cannot travel. {advice}.")

    return refuse


def _nothing(data: Any) -> Any:
    raise AssertionError  # what has no name is never decoded


def _reference(model: Model) -> ModelReference:
    if model.pk is None or model._state.adding:
        raise PayloadError(f"the {model._meta.label} has not been saved yet, so that no task could find it.")
    return ModelReference(model._meta.label_lower, model.pk, model._state.db or "default")


def _behind(value: LazyObject) -> Any:
    value.__class__  # noqa: B018 - makes it if nobody has looked yet
    return value._wrapped


def _to_reference(data: Any) -> ModelReference:
    model, pk, database = data
    if type(model) is not str or type(database) is not str:
        raise ValueError
    return ModelReference(model, pk, database)


def refers(values: Iterable[Any]) -> bool:
    """Whether a model is to be fetched somewhere in there."""
    for value in values:
        kind = type(value)
        if kind is ModelReference:
            return True
        if kind in CONTAINERS and refers(value.values() if kind is dict else value):
            return True
    return False


def fetched(value: Any) -> Any:
    """With models in the place of references."""
    kind = type(value)
    if kind is ModelReference:
        return value.fetch()
    if kind is dict:
        return {key: fetched(item) for key, item in value.items()}
    return kind(fetched(item) for item in value) if kind in CONTAINERS else value


def shown(value: Any) -> Any:
    """As results show arguments: lists for what JSON has only lists for."""
    kind = type(value)
    if kind is dict:
        return {key: shown(item) for key, item in value.items()}
    return [shown(item) for item in value] if kind in CONTAINERS else value
