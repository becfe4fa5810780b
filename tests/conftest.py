"""A virtual node and a daemon for it, for the suites that run the daemon itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.lab.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.this_machine import allocator, cgroup_tree, virtual_node


@pytest.fixture
def tool() -> Path:
    """Return the laboratory's compiled tool, for cgroups of this machine."""
    cgroup_tree()
    return allocator()


@pytest.fixture
def node_mib() -> int:
    """Return how large the virtual node is; a suite may have its own."""
    return 512


@pytest.fixture
def node(request: pytest.FixtureRequest, node_mib: int) -> Iterator[VirtualNode]:
    """Return a virtual node that is gone after the test."""
    with virtual_node(request.node.name, node_mib) as made:
        yield made


@pytest.fixture
def daemon(node: VirtualNode, tmp_path: Path) -> Iterator[RunningDaemon]:
    """Return a daemon for the virtual node, not yet started; it is ended after the test."""
    running = RunningDaemon(tmp_path, node.cgroup)
    yield running
    running.stop()
