"""A new store for every test, on a clock that stands still until told to move, and processes to use it."""

from collections.abc import Callable, Iterator

import pytest

from packhorse.clock import SECOND, Clock, ManualClock
from packhorse.stores import Store
from packhorse.testing.contract.helpers import Worker


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(new_store: Callable[[Clock], Store], clock: ManualClock) -> Iterator[Store]:
    """Nobody has used it yet."""
    store = new_store(clock)
    yield store
    store.close()


@pytest.fixture
def worker(store: Store) -> Worker:
    return Worker(store, "worker")


@pytest.fixture
def other(store: Store) -> Worker:
    return Worker(store, "other")


@pytest.fixture
def steady(store: Store) -> Worker:
    """Its lease outlasts every test, so that hours may pass between two claims."""
    return Worker(store, "steady", lease=10**9 * SECOND)
