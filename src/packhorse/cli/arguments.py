"""The arguments of a task as they are given on a command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import click

from packhorse.task import BaseTask, Call

_KEYWORD = re.compile(r"([^\W\d]\w*)=(.*)", re.DOTALL)

arguments_argument = click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1)
kwargs_option = click.option("--kwargs", metavar="JSON", help="Arguments by name, as one JSON object.")


def parse_arguments(arguments: Iterable[str], kwargs: str | None) -> tuple[list[Any], dict[str, Any]]:
    """An argument is JSON, or text where it is not JSON; one with a name and = before it goes by name."""
    args: list[Any] = []
    named = _object(kwargs) if kwargs is not None else {}
    for text in arguments:
        keyword = _KEYWORD.fullmatch(text)
        if keyword is None:
            args.append(_value(text))
        elif keyword[1] in named:
            raise click.UsageError(f"{keyword[1]!r} is given twice.")
        else:
            named[keyword[1]] = _value(keyword[2])
    return args, named


def fitting(
    task: BaseTask[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """As the function takes them."""
    try:
        task.check_call(args, kwargs)
        if task.shapes and task.stored.codec is None:  # the function wants a dataclass, and JSON gave a dictionary
            return task.shapes.load_arguments(args, kwargs)
        return args, kwargs
    except TypeError as error:
        raise click.UsageError(str(error)) from None


def made_call(task: BaseTask[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Call[Any]:
    args_, kwargs_ = fitting(task, args, kwargs)
    return task.call(*args_, **kwargs_)


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_not_json)
    except ValueError:
        return text
    except RecursionError:
        raise click.UsageError("An argument is nested too deep.") from None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--kwargs is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError("--kwargs must be a JSON object, like '{\"year\": 2026}'.")
    return found


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")  # Python's parser takes NaN and Infinity
