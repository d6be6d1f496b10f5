"""What every test shares."""

import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

# A busy machine is no reason to fail: pytest's own timeout is the limit.
settings.register_profile("packhorse", deadline=None)
settings.load_profile("packhorse")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A skip tells a developer what their machine lacks. The build machine must lack nothing, so there it fails."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which is not allowed where CI is set: {report.longrepr}"
    return report


# They start processes, or wait for workers so often that together they take more than a minute.
LEFT_OUT_OF_CHECK = (
    "tests/contract/test_admission_alike.py",
    "tests/contract/test_gates_alike.py",
    "tests/contract/test_outsiders_store.py",
    "tests/contract/test_runs.py",
    "tests/faults/",
    "tests/runtime/test_async_names.py",
    "tests/runtime/test_children.py",
    "tests/runtime/test_context.py",
    "tests/runtime/test_encryption.py",
    "tests/runtime/test_events.py",
    "tests/runtime/test_flows.py",
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
    "tests/runtime/test_turns.py",
    "tests/runtime/test_unknown_tasks.py",
    "tests/runtime/test_waiting_for_many.py",
    "tests/skins/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(LEFT_OUT_OF_CHECK):
            item.add_marker(pytest.mark.slow)
