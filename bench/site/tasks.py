"""The task of the site."""

from __future__ import annotations

from django.tasks import task

from bench import bodies


@task  # type: ignore[untyped-decorator]
def noop(number: int, text: str, *, three: int) -> None:
    bodies.noop(number, text, three=three)
