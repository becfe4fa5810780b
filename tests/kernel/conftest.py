"""The cgroup hierarchies of the machine, for the tests that make cgroups of their own in them."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from tests.support.this_machine import cgroup_tree
from tests.support.yard import Yard


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """Let children answer SIGINT, which a shell without job control has background jobs ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def v1_tree() -> CgroupTree:
    """Return the hierarchies, where the memory controller is on v1 and may be used."""
    tree = cgroup_tree()
    if tree.version is not CgroupVersion.V1:
        pytest.skip("the memory controller is on v2; boot with systemd.unified_cgroup_hierarchy=0")
    return tree


@pytest.fixture
def node_mib() -> int:
    """Return how large the virtual node is."""
    return 256


# Skips of async tests are in fixtures: pytest-trio loses the reason of one that is raised in the test itself.
@pytest.fixture
def bounded(yard: Yard) -> Callable[[str], None]:
    """Return what keeps a fork storm in a cgroup to 400 tasks."""
    if yard.tree.pids_root is None:
        pytest.skip("needs the pids controller, so that the storm stays bounded")

    def bound(cgroup: str) -> None:
        (yard.tree.path(cgroup, "pids") / "pids.max").write_text("400")

    return bound
