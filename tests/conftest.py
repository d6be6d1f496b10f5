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
