"""The suites of hostile and unlucky neighbours: what they count, and a daemon that is judged at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.failures import pytest_runtest_makereport  # noqa: F401 - a hook
from tests.support.trials import Trial, Trials, trial_of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", type=Path, help="keep what the suites count in this file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Trials(config.getoption("--figures", None)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test here without a suite: `make test-hostile` would leave it out."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("suite") is None:
            raise pytest.UsageError(f"{item.nodeid}: marked with no suite (pytest.mark.suite)")


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Trial:
    """Return what this test counts; see tests.support.trials."""
    return trial_of(request.node)


@pytest.fixture
def daemon(node: VirtualNode, trial: Trial, tmp_path: Path) -> Iterator[RunningDaemon]:
    """Return a daemon for the virtual node, not yet started; after the test it is stopped, and judged."""
    running = RunningDaemon(tmp_path, node.cgroup)
    yield running
    trial.end(running)
