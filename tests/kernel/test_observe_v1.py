"""Observation of real cgroups on v1: vanishing pods, pods made anew, descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.files import read_file
from reactor.kernel.procfs import PROC, parse_memory_in_use, read_meminfo
from reactor.model.pods import Pod
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.observe.node import NodeObserver
from reactor.observe.pods import PodObserver
from tests.support.this_machine import open_descriptors

NODE = f"/reactor-test-observe-{os.getpid()}"


@pytest.fixture
def tree(v1_tree: CgroupTree) -> Iterator[CgroupTree]:
    tree = v1_tree
    node = tree.path(NODE)
    node.mkdir()
    yield tree
    for child in sorted(node.rglob("*/"), reverse=True):
        child.rmdir()
    if node.exists():
        node.rmdir()


def pod(name: str) -> Pod:
    return Pod(name=name, namespace="cgroup", uid=name, cgroup=f"{NODE}/{name}")


def test_pod_that_vanishes_between_readings_is_absent(tree: CgroupTree) -> None:
    for name in ("a", "b"):
        tree.path(f"{NODE}/{name}").mkdir()
    observer = PodObserver(tree)
    observer.track([pod("a"), pod("b")])
    assert {"a", "b"} == observer.full().keys()
    tree.path(f"{NODE}/a").rmdir()
    assert {"b"} == observer.memory().keys()
    assert frozenset({"a"}) == observer.vanished
    tree.path(f"{NODE}/a").mkdir()
    observer.track([pod("a"), pod("b")])
    assert {"a", "b"} == observer.memory().keys()
    observer.close()


def test_a_pod_that_was_removed_and_made_again_has_no_bound_until_it_is_listed(tree: CgroupTree) -> None:
    """A descriptor is of the cgroup that was opened: once that is gone it answers ENODEV."""
    for name in ("a", "b"):
        tree.path(f"{NODE}/{name}").mkdir()
    observer = PodObserver(tree)
    observer.track([pod("a"), pod("b")])
    assert observer.bounds()[0].keys() == {"a", "b"}
    tree.path(f"{NODE}/a").rmdir()
    tree.path(f"{NODE}/a").mkdir()
    assert observer.bounds()[0].keys() == {"b"}
    assert observer.vanished == {"a"}
    assert observer.bounds()[0].keys() == {"b"}
    observer.track([pod("a"), pod("b")])
    assert observer.bounds()[0].keys() == {"a", "b"}
    observer.close()


def test_a_parent_that_was_removed_and_made_again_bounds_its_new_pods(tree: CgroupTree) -> None:
    observer = PodObserver(tree, clock_seconds=lambda: 0.0)
    for _ in range(2):
        tree.path(f"{NODE}/a").mkdir()
        observer.track([pod("a")])
        assert observer.bounds()[0].keys() == {"a"}
        found = observer.wide_bounds(())
        assert found is not None
        assert found[0].keys() == {"a"}
        tree.path(f"{NODE}/a").rmdir()
        tree.path(NODE).rmdir()
        tree.path(NODE).mkdir()
        assert observer.wide_bounds(()) is None
        assert observer.bounds() == ({}, {})
        assert observer.vanished == {"a"}
    observer.close()


def test_pods_that_come_and_go_leave_no_descriptor(tree: CgroupTree) -> None:
    before = open_descriptors()
    observer = PodObserver(tree)
    directory = tree.path(f"{NODE}/a")
    for _ in range(1000):
        directory.mkdir()
        observer.track([pod("a")])
        observer.bounds()
        observer.memory()
        directory.rmdir()
        observer.wide_bounds(["a"])
        observer.memory()
        observer.track(())
    assert before == open_descriptors()


def test_recreated_node_cgroup_is_observed_again(tree: CgroupTree) -> None:
    before = open_descriptors()
    node = NodeObserver(tree, Settings(node_cgroup=NODE, pod_parents=(NODE,)))
    tree.set_memory_limit(NODE, 64 << 20)
    assert 64 << 20 == node.memory()[Signal.MEMORY_AVAILABLE].capacity
    tree.path(NODE).rmdir()
    assert {} == node.memory()
    assert NODE in node.problems[Signal.MEMORY_AVAILABLE]
    tree.path(NODE).mkdir()
    tree.set_memory_limit(NODE, 32 << 20)
    assert 32 << 20 == node.memory()[Signal.MEMORY_AVAILABLE].capacity
    assert {} == node.problems
    node.close()
    assert before == open_descriptors()


def test_process_ids_are_those_of_a_node_cgroup_that_was_removed_and_made_again(tree: CgroupTree) -> None:
    """On v1 it may be missing in the hierarchy of process ids; its limit is its own each time."""
    observer = NodeObserver(tree, Settings(node_cgroup=NODE))
    node = tree.path(NODE, "pids")
    for most in (100, 50):
        observer.processes()
        assert observer.processes_of == "/"
        node.mkdir()
        try:
            (node / "pids.max").write_text(f"{most}")
            (seen,) = observer.processes().values()
        finally:
            node.rmdir()
        assert (seen.available, seen.capacity, observer.processes_of) == (most, most, NODE)
    observer.close()


def test_machine_is_observed_as_its_root_cgroup_counts(tree: CgroupTree) -> None:
    node = NodeObserver(tree, Settings())
    found = node.memory()[Signal.MEMORY_AVAILABLE]
    assert read_meminfo().capacity_bytes == found.capacity
    assert found.absurdity is None
    assert found.inactive_file_bytes is not None
    assert {} == node.problems
    node.close()


def test_usage_of_the_machine_is_the_same_by_meminfo_as_by_the_root_cgroup(tree: CgroupTree) -> None:
    """The root of v2 has no counter, and is read from meminfo; on v1 the two can be compared."""
    node = NodeObserver(tree, Settings())
    try:
        seen = node.memory()[Signal.MEMORY_AVAILABLE]
    finally:
        node.close()
    used = parse_memory_in_use(read_file(PROC / "meminfo"))
    expected = seen.capacity - (used.usage_bytes - used.inactive_file_bytes)
    assert abs(expected - seen.available) < 64 << 20  # others allocate meanwhile
