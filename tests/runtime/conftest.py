"""An application on each store that needs no server."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import Packhorse

QUICK: dict[str, Any] = {"heartbeat": 0.05, "lease": 30, "polling_interval": 0.2}


@pytest.fixture(params=["memory", "sqlite"])
def make_app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Packhorse]]:
    """Makes applications; those of one test share one store."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"
    made: list[Packhorse] = []

    def make(**settings: Any) -> Packhorse:
        store = made[0].store if made else url
        made.append(Packhorse("shop", store, **QUICK | settings))
        return made[-1]

    yield make
    if made:
        made[0].close()


@pytest.fixture
def app(make_app: Callable[..., Packhorse]) -> Packhorse:
    return make_app()
