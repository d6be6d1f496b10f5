"""Which stores the suite of the contract runs on."""

from collections.abc import Callable, Iterator

import pytest

from packhorse.clock import Clock
from packhorse.stores import Store, open_store
from packhorse.testing.contract.fixtures import clock, other, steady, store, worker
from tests.contract.stores import FRESH, KINDS, emptied, on_kept_lines, opened, quick_folder, schemas

__all__ = ["clock", "other", "steady", "store", "worker"]


@pytest.fixture(params=KINDS)
def new_store(request: pytest.FixtureRequest) -> Iterator[Callable[[Clock], Store]]:
    if request.param == "postgres":
        fresh = request.node.name.startswith(FRESH)
        server = request.getfixturevalue("postgres")
        with schemas(server, fresh=fresh) as urls:
            yield lambda clock: open_store(next(urls), clock) if fresh else on_kept_lines(server, next(urls), clock)
        return
    with quick_folder() as folder:
        yield lambda clock: opened(request.param, emptied(folder / "store"), clock)
