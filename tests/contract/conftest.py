"""Which stores the suite of the contract runs on."""

from collections.abc import Callable, Iterator

import pytest

from packhorse.clock import Clock
from packhorse.stores import Store
from packhorse.testing.contract.fixtures import clock, other, steady, store, worker
from tests.contract.stores import KINDS, emptied, opened, quick_folder

__all__ = ["clock", "other", "steady", "store", "worker"]


@pytest.fixture(params=KINDS)
def new_store(request: pytest.FixtureRequest) -> Iterator[Callable[[Clock], Store]]:
    with quick_folder() as folder:
        yield lambda clock: opened(request.param, emptied(folder / "store"), clock)
