"""Timeouts at random moments, into tasks that are nearly always inside a call of the store: a short storm of them."""

import pytest

from chaos.timeouts import storm

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("store", "count"),
    [("sqlite", 300), ("postgres", 200)]
    + [pytest.param(store, 5_000, marks=pytest.mark.thorough) for store in ("sqlite", "postgres")],
)
def test_a_storm_of_timeouts_loses_nothing_and_leaves_nothing_behind(store: str, count: int):
    """The same form, longer, is a part of `make chaos`."""
    said: list[str] = []
    figures = storm(store, count, 1, said.append)
    assert figures.ok, (figures, said[-1:])
    assert figures.jobs == count
    assert figures.raised >= count
    assert figures.deferred > 0
