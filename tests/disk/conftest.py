"""A virtual node with a disk of its own, for the tests that fill it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_fixtures import RunningDaemon
from disks import Guarded
from mounting import mounted
from this_machine import virtual_node

from reactor.lab.virtual_node import VirtualNode


@pytest.fixture(params=["ext4", "xfs"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return each kind of filesystem in turn."""
    found: str = request.param
    return found


@pytest.fixture
def disk(tmp_path: Path, kind: str) -> Iterator[Path]:
    """Return an empty filesystem of 400 MiB, on ext4 with 4096 inodes."""
    with mounted(tmp_path, kind, 400, *(["-N", "4096"] if kind == "ext4" else [])) as point:
        yield point


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[VirtualNode]:
    """Return a virtual node of 512 MiB that is gone after the test."""
    with virtual_node(request.node.name, 512) as made:
        yield made


@pytest.fixture
def daemon(node: VirtualNode, tmp_path: Path) -> Iterator[RunningDaemon]:
    """Return a daemon for the virtual node, not yet started; it is ended after the test."""
    running = RunningDaemon(tmp_path, node.cgroup)
    yield running
    running.stop()


@pytest.fixture
def guarded(disk: Path, node: VirtualNode, daemon: RunningDaemon, tmp_path: Path) -> Guarded:
    """Return the node with its disk, and its daemon not yet started."""
    (tmp_path / "pods").mkdir()
    return Guarded(node, daemon, disk, tmp_path / "pods")


@pytest.fixture(autouse=True)
def _no_mount_is_left(tmp_path: Path) -> Iterator[None]:
    """Loop devices go with their last mount, and a mount namespace made meanwhile has a copy of ours."""
    yield
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
