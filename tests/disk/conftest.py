"""A virtual node with a disk of its own, for the tests that fill it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.disks import Guarded
from tests.support.mounting import mounted


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
def guarded(disk: Path, node: VirtualNode, daemon: RunningDaemon, tmp_path: Path) -> Guarded:
    """Return the node with its disk, and its daemon not yet started."""
    (tmp_path / "pods").mkdir()
    return Guarded(node, daemon, disk, tmp_path / "pods")


@pytest.fixture(autouse=True)
def _no_mount_is_left(tmp_path: Path) -> Iterator[None]:
    """Loop devices go with their last mount, and a mount namespace made meanwhile has a copy of ours."""
    yield
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
