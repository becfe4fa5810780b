"""The cgroup hierarchies of the machine, for the tests that make cgroups of their own in them."""

from __future__ import annotations

import os

import pytest

from reactor.errors import KernelInterfaceError
from reactor.kernel.cgroup import CgroupTree, CgroupVersion


@pytest.fixture
def v1_tree() -> CgroupTree:
    """Return the hierarchies, where the memory controller is on v1 and may be used."""
    if os.geteuid() != 0:
        pytest.skip("needs root; run as root")
    try:
        tree = CgroupTree.discover()
    except KernelInterfaceError as error:
        pytest.skip(f"no memory controller; mount one: {error}")
    if tree.version is not CgroupVersion.V1:
        pytest.skip("the memory controller is on v2; boot with systemd.unified_cgroup_hierarchy=0")
    return tree
