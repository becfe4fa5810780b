"""Pods from real cgroups on v1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from reactor.kernel.cgroup import CgroupTree, own_cgroup
from reactor.model.pods import QosClass
from reactor.model.settings import Settings
from reactor.model.signals import Resource
from reactor.workloads.pods import Workloads

PARENT = f"/reactor-test-pods-{os.getpid()}"
MIB = 1 << 20


@pytest.fixture
def parent(v1_tree: CgroupTree) -> Iterator[Path]:
    parent = v1_tree.path(PARENT)
    parent.mkdir()
    yield parent
    for child in parent.glob("*/"):
        child.rmdir()
    parent.rmdir()


def test_pods_are_what_their_cgroups_say(v1_tree: CgroupTree, parent: Path) -> None:
    for name in ("best-effort", "burstable", "guaranteed"):
        (parent / name).mkdir()
    v1_tree.set_memory_limit(f"{PARENT}/guaranteed", 64 * MIB)
    for name in ("guaranteed", "burstable"):
        v1_tree.set_memory_request(f"{PARENT}/{name}", 64 * MIB)
    os.setxattr(parent / "burstable", "user.reactor.priority", b"12")
    os.setxattr(parent / "guaranteed", "user.oomd_omit", b"1")
    workloads = Workloads(v1_tree, Settings(pod_parents=(PARENT,)))
    best_effort, burstable, guaranteed = trio.run(workloads.listed)
    assert (QosClass.BEST_EFFORT, 0, {}) == (
        best_effort.qos_class,
        best_effort.priority,
        best_effort.requests,
    )
    assert (QosClass.BURSTABLE, 12) == (burstable.qos_class, burstable.priority)
    assert {Resource.MEMORY: 64 * MIB} == burstable.requests
    assert (QosClass.GUARANTEED, "user.oomd_omit") == (guaranteed.qos_class, guaranteed.critical_because)
    assert {} == workloads.problems


def test_recreated_cgroup_is_another_pod(v1_tree: CgroupTree, parent: Path) -> None:
    workloads = Workloads(v1_tree, Settings(pod_parents=(PARENT,)))
    uids = set()
    for _ in range(3):
        (parent / "a").mkdir()
        (pod,) = workloads.glance()
        uids.add(pod.uid)
        (parent / "a").rmdir()
        assert () == workloads.glance()
    assert 3 == len(uids)


def test_own_cgroup_is_no_pod_even_below_a_parent(v1_tree: CgroupTree, parent: Path) -> None:
    (parent / "a").mkdir()
    own = own_cgroup(v1_tree) or "/"
    settings = Settings(pod_parents=(PARENT, os.path.dirname(own)))
    cgroups = {pod.cgroup or "" for pod in trio.run(Workloads(v1_tree, settings).listed)}
    assert f"{PARENT}/a" in cgroups
    assert not any(cgroup == own or v1_tree.contains(cgroup, own) for cgroup in cgroups)
