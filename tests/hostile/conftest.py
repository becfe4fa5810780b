"""A virtual node and a daemon, for the tests of hostile and unlucky neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_fixtures import RunningDaemon
from this_machine import allocator, cgroup_tree, virtual_node

from reactor.lab.virtual_node import VirtualNode


@pytest.fixture
def tool() -> Path:
    """Return the laboratory's compiled tool, for cgroups of this machine."""
    cgroup_tree()
    return allocator()


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[VirtualNode]:
    """Return a virtual node of 512 MiB that is gone after the test."""
    with virtual_node(request.node.name, 512) as made:
        yield made


@pytest.fixture
def daemon(node: VirtualNode, tmp_path: Path) -> Iterator[RunningDaemon]:
    """Return a daemon for the virtual node, not yet started; it is stopped after the test."""
    running = RunningDaemon(tmp_path, node.cgroup)
    yield running
    running.stop()
