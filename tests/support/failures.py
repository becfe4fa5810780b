"""A hook for suites that take long: imported by their conftest.py."""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a failure when it happens: a whole run takes long, and its machine may be lost before the end."""
    report = yield
    terminal = item.config.pluginmanager.get_plugin("terminalreporter")
    if report.failed and terminal is not None:
        terminal.write_line(f"\n{report.longreprtext}")
    return report
