"""Which stores the suite of the contract runs on."""

from collections.abc import Callable, Iterator

import pytest

from packhorse.clock import Clock
from packhorse.stores import Store, open_store
from packhorse.testing.contract.fixtures import clock, other, steady, store, worker
from tests.contract.stores import FRESH, KINDS, emptied, on_kept_lines, opened, quick_folder, schemas

__all__ = ["clock", "other", "steady", "store", "worker"]


# Of what runs once more with a prefix, these parts in every run.
WITH_PREFIX = ("test_prefix", "test_insert", "test_limits", "test_outcomes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name == "test_prefix.py" and isinstance(item, pytest.Function):
            item.add_marker(pytest.mark.slow)
            if item.function.__module__.rpartition(".")[2] not in WITH_PREFIX:
                item.add_marker(pytest.mark.thorough)


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
