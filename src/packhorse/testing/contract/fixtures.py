"""A new store for every test, on a clock that stands still until told to move, and two processes to use it."""

from collections.abc import Callable, Iterator

import pytest

from packhorse.clock import Clock, ManualClock
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
