"""The pytest plugin: fixtures, all named `packhorse_…`. It is loaded in every run, hence the late imports.

Say once which application is meant: in the configuration of pytest, as in `packhorse_app = "shop.tasks:app"`, or with
a fixture `packhorse_app` of your own that returns it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.testing.recording import Recording


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("packhorse_app", "the Packhorse application under test, as in shop.tasks:app", default="")


@pytest.fixture(scope="session")
def packhorse_app(pytestconfig: pytest.Config) -> Packhorse:
    """The application under test; define a fixture of this name to choose it yourself."""
    path = str(pytestconfig.getini("packhorse_app"))
    if not path:
        pytest.fail(
            'Which application is under test? Set packhorse_app = "module:name" in the configuration of pytest, or '
            "define a fixture packhorse_app that returns it.",
            pytrace=False,
        )
    from packhorse.runtime.loading import load_app

    return load_app(path)


@pytest.fixture
def packhorse_jobs(packhorse_app: Packhorse) -> Iterator[Recording]:
    """What the test enqueues: kept, and performed when the test says so. See packhorse.testing.recorded."""
    from packhorse.testing.recording import recorded

    with recorded(packhorse_app) as jobs:
        yield jobs


@pytest.fixture
def packhorse_inline(packhorse_app: Packhorse) -> Iterator[Recording]:
    """What the test enqueues is performed at once. See packhorse.testing.inline."""
    from packhorse.testing.recording import inline

    with inline(packhorse_app) as jobs:
        yield jobs
