"""Every test of this folder runs on every store, on a clock that stands still until told to move."""

from collections.abc import Callable, Iterator

import pytest

from packhorse.clock import ManualClock
from packhorse.stores import Store
from tests.contract.helpers import Worker
from tests.contract.stores import KINDS, opened, quick_folder


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=KINDS)
def new_store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Callable[[], Store]]:
    """Opens a store that nobody has used yet; call it once."""
    stores = []
    with quick_folder() as folder:

        def new() -> Store:
            stores.append(opened(request.param, folder, clock))
            return stores[-1]

        yield new
        for store in stores:
            store.close()


@pytest.fixture
def store(new_store: Callable[[], Store]) -> Store:
    return new_store()


@pytest.fixture
def worker(store: Store) -> Worker:
    return Worker(store, "worker")


@pytest.fixture
def other(store: Store) -> Worker:
    return Worker(store, "other")
