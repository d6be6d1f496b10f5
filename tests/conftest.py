"""What every test shares."""

import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.servers import postgres as postgres_server

# A shell has its background jobs ignore it, and whatever they start; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason to fail: pytest's own timeout is the limit.
settings.register_profile("packhorse", deadline=None)
settings.load_profile("packhorse")


# scripts/test-django runs those, each Django in an environment of its own.
collect_ignore = [] if "PACKHORSE_TEST_STORE" in os.environ else ["django"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A skip tells a developer what their machine lacks. The build machine must lack nothing, so there it fails."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which is not allowed where CI is set: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.Server]:
    """A server of this process's own; to make one takes a second."""
    try:
        server = postgres_server.Server()
    except postgres_server.Missing as missing:
        pytest.skip(str(missing))
    try:
        server.start()
        yield server
    finally:
        server.remove()


# They start processes, or wait for workers so often that together they take more than a minute.
LEFT_OUT_OF_CHECK = (
    "tests/contract/test_admission_alike.py",
    "tests/contract/test_gates_alike.py",
    "tests/contract/test_outsiders_store.py",
    "tests/contract/test_postgres_server.py",
    "tests/contract/test_runs.py",
    "tests/faults/",
    "tests/runtime/test_async_names.py",
    "tests/runtime/test_callbacks.py",
    "tests/runtime/test_children.py",
    "tests/runtime/test_context.py",
    "tests/runtime/test_encryption.py",
    "tests/runtime/test_events.py",
    "tests/runtime/test_flows.py",
    "tests/runtime/test_hooks.py",
    "tests/runtime/test_hostile_rows.py",
    "tests/runtime/test_limits.py",
    "tests/runtime/test_masking.py",
    "tests/runtime/test_middleware.py",
    "tests/runtime/test_pickling.py",
    "tests/runtime/test_reporters.py",
    "tests/runtime/test_retention.py",
    "tests/runtime/test_rotation.py",
    "tests/runtime/test_schedules.py",
    "tests/runtime/test_steps.py",
    "tests/runtime/test_store_trouble.py",
    "tests/runtime/test_timeouts.py",
    "tests/runtime/test_transactions.py",
    "tests/runtime/test_transactions_django.py",
    "tests/runtime/test_turns.py",
    "tests/runtime/test_unknown_tasks.py",
    "tests/runtime/test_waiting_for_many.py",
    "tests/skins/",
)


def _is_text(value: object) -> bool:
    return type(value) is str


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
        on_server = "postgres" in getattr(item, "fixturenames", ()) or "postgres" in filter(_is_text, chosen)
        if on_server:
            item.add_marker(pytest.mark.servers)
        if on_server and item.name.startswith("test_many_long_histories"):
            item.add_marker(pytest.mark.thorough)  # two minutes; the same histories are run on the other stores
        if on_server or item.nodeid.startswith(LEFT_OUT_OF_CHECK):
            item.add_marker(pytest.mark.slow)
