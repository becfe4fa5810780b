"""For the suites that use real cgroups: a virtual node, its daemon, and a yard of pods with its kill path."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from reactor.act.kill_path import KillPath
from reactor.kernel.cgroup import CgroupVersion
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.terminated import pytest_sessionstart  # noqa: F401 - a hook
from tests.support.this_machine import allocator, cgroup_tree, virtual_node
from tests.support.yard import Yard, tree_of, yard_in

_unfreeze: Final = gc.unfreeze
_is_unfrozen: Final = Event()


def pytest_configure() -> None:
    """Collect no garbage while tests are collected: nothing is, and the search takes a third of the time."""
    gc.disable()
    gc.unfreeze = _noted_unfreeze


def pytest_collection_finish() -> None:
    """Leave what collecting has made out of each later search for garbage, which many tests ask for."""
    gc.freeze()
    gc.enable()


def pytest_runtest_logfinish() -> None:
    """Leave it out again after a test that has undone that: each search would take half a second."""
    if _is_unfrozen.is_set():
        _is_unfrozen.clear()
        gc.collect(1)  # the test's own garbage is young
        gc.freeze()


def _noted_unfreeze() -> None:
    _unfreeze()
    _is_unfrozen.set()


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


@pytest.fixture(params=CgroupVersion)
def yard(request: pytest.FixtureRequest) -> Iterator[Yard]:
    """Return a place for pods, in the memory hierarchy of v1 and in a hierarchy of v2 without controllers."""
    with yard_in(tree_of(request.param)) as made:
        yield made


@pytest.fixture
def kill_path(yard: Yard) -> Iterator[KillPath]:
    """Return a kill path for the pods of the yard."""
    path = KillPath(yard.tree, (yard.parent,))
    yield path
    path.close()
