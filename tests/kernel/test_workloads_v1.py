"""Pods from real cgroups on v1."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from reactor.kernel.cgroup import CgroupTree, own_cgroup
from reactor.model.pod_lists import PodEntry, PodLists, Preference
from reactor.model.pods import QosClass
from reactor.model.settings import Settings
from reactor.model.signals import Resource
from reactor.workloads.cgroups import CgroupPods
from tests.support.waiting import eventually

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
    workloads = CgroupPods(v1_tree, Settings(pod_parents=(PARENT,)))
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


def _watches() -> int:
    """Return how many directories this process has watched."""
    held = (path.read_text() for path in Path("/proc/self/fdinfo").iterdir() if path.exists())
    return sum(text.count("inotify wd:") for text in held)


def test_what_is_written_to_a_pod_is_seen_when_all_are_listed_again(
    v1_tree: CgroupTree, parent: Path
) -> None:
    """The kernel reports writes and attributes; that a cgroup is removed it does not."""
    for name in ("a", "b"):
        (parent / name).mkdir()
    listing = CgroupPods(v1_tree, Settings(pod_parents=(PARENT,)))
    assert listing.list() == listing.list()
    watches = _watches()

    os.setxattr(parent / "a", "user.reactor.priority", b"7")
    assert [7, 0] == [one.priority for one in listing.list()]
    v1_tree.set_memory_limit(f"{PARENT}/b", 64 * MIB)
    assert [QosClass.BEST_EFFORT, QosClass.BURSTABLE] == [one.qos_class for one in listing.list()]
    (parent / "a").rename(parent / "c")
    assert [("b", 0), ("c", 7)] == [(one.name, one.priority) for one in listing.list()]
    os.removexattr(parent / "c", "user.reactor.priority")
    (parent / "b").rmdir()
    (parent / "b").mkdir()
    found = listing.list()
    assert [("b", 0, QosClass.BEST_EFFORT), ("c", 0, QosClass.BEST_EFFORT)] == [
        (one.name, one.priority, one.qos_class) for one in found
    ]
    assert found == listing.list()
    assert watches == _watches()


def test_what_is_written_to_a_pod_that_came_a_moment_ago_is_seen_by_the_next_refresh(
    v1_tree: CgroupTree, parent: Path
) -> None:
    """Who makes a cgroup writes what it asks for afterwards; no clock says when it is read again."""
    listing = CgroupPods(v1_tree, Settings(pod_parents=(PARENT,)), clock_seconds=lambda: 100.0)
    assert () == listing.refresh()
    (parent / "a").mkdir()
    assert [(0, {})] == [(one.priority, one.requests) for one in listing.refresh()]

    v1_tree.set_memory_request(f"{PARENT}/a", 64 * MIB)
    assert [{Resource.MEMORY: 64 * MIB}] == [one.requests for one in listing.refresh()]
    os.setxattr(parent / "a", "user.reactor.priority", b"7")
    (pod,) = listing.refresh()
    assert (7, 64 * MIB) == (pod.priority, pod.requests[Resource.MEMORY])
    assert pod is listing.refresh()[0]


def test_what_is_gone_is_watched_no_more(v1_tree: CgroupTree, parent: Path) -> None:
    listing = CgroupPods(v1_tree, Settings(pod_parents=(f"{PARENT}/*",)))
    assert () == listing.list()
    watches = _watches()
    for number in range(3):
        inner = parent / f"user-{number}" / "pod"
        inner.mkdir(parents=True)
        assert ["pod"] == [pod.name for pod in listing.list()]
        inner.rmdir()
        inner.parent.rmdir()
    assert () == listing.list()
    assert watches == _watches()


@pytest.fixture
def sleeping(parent: Path) -> Iterator[Callable[[str], int]]:
    """Return what makes a pod in which one process sleeps, and returns its id."""
    with ExitStack() as stack:

        def start(name: str) -> int:
            (parent / name).mkdir()
            process = stack.enter_context(subprocess.Popen(["sleep", "60"]))
            stack.callback(process.kill)
            (parent / name / "cgroup.procs").write_text(str(process.pid))
            return process.pid

        yield start


def test_lists_place_real_pods_by_unit_and_process(
    v1_tree: CgroupTree, parent: Path, sleeping: Callable[[str], int]
) -> None:
    for name in ("batch.service", "sshd.service"):
        (parent / name).mkdir()
    for name in ("db.service", "db-2.service"):
        sleeping(name)
    lists = PodLists(
        never=(PodEntry(unit="db.*", process="sleep"), PodEntry(unit="db-2*", process="postgres")),
        prefer=(PodEntry(unit="~batch\\.(service|scope)"),),
    )
    workloads = CgroupPods(v1_tree, Settings(pod_parents=(PARENT,), pod_lists=lists))
    found = {pod.name: (pod.critical_because, pod.preference) for pod in trio.run(workloads.listed)}
    assert {
        "batch.service": (None, Preference.PREFER),
        "db-2.service": (None, Preference.NONE),
        "db.service": ("pods.never: unit db.*, process sleep", Preference.NONE),
        "sshd.service": ("sshd.service is in the built-in never list", Preference.NONE),
    } == found


def test_pod_whose_main_process_the_kernel_may_not_kill_is_never_evicted(
    v1_tree: CgroupTree, sleeping: Callable[[str], int]
) -> None:
    vital, _ = sleeping("vital"), sleeping("other")
    try:
        Path(f"/proc/{vital}/oom_score_adj").write_text("-1000")
    except PermissionError:
        pytest.skip("lowering an oom_score_adj needs CAP_SYS_RESOURCE; run as root with all capabilities")
    workloads = CgroupPods(v1_tree, Settings(pod_parents=(PARENT,)))
    assert {"vital": "oom_score_adj -1000 of its main process", "other": None} == {
        pod.name: pod.critical_because for pod in trio.run(workloads.listed)
    }


@pytest.mark.parametrize("is_moved", [False, True])
def test_main_process_that_ends_or_moves_makes_way_for_the_next_at_the_listing_that_follows(
    v1_tree: CgroupTree, parent: Path, *, is_moved: bool
) -> None:
    """Each listing is two seconds after the one before at the least, as the guard's are by default."""
    (parent / "pod").mkdir()
    with ExitStack() as stack:
        processes = []
        for command in (["sleep", "600"], ["tail", "-f", "/dev/null"]):
            processes.append(stack.enter_context(subprocess.Popen(command)))
            stack.callback(processes[-1].kill)
            (parent / "pod/cgroup.procs").write_text(str(processes[-1].pid))
        main = min(processes, key=lambda one: one.pid)
        never = PodEntry(unit="pod", process=Path(f"/proc/{main.pid}/comm").read_text().strip())
        pods = CgroupPods(v1_tree, Settings(pod_parents=(PARENT,), pod_lists=PodLists(never=(never,))))

        def is_spared() -> bool:
            time.sleep(2.1)
            return pods.list()[0].critical_because is not None

        assert [True] * 2 == [is_spared() for _ in range(2)]
        if is_moved:
            v1_tree.path("/cgroup.procs").write_text(str(main.pid))
        else:
            main.kill()
            main.wait()
        eventually(lambda: not is_spared())
        assert not is_spared()


def test_a_user_who_was_given_the_parent_protects_no_pod_by_its_name(
    v1_tree: CgroupTree, parent: Path
) -> None:
    for name in ("sshd.service", "db.service"):
        (parent / name).mkdir()
    os.chown(parent, 1000, 1000)
    lists = PodLists(never=(PodEntry(unit="db.service"),))
    workloads = CgroupPods(v1_tree, Settings(pod_parents=(PARENT,), pod_lists=lists))
    assert [None, None] == [pod.critical_because for pod in trio.run(workloads.listed)]


def test_recreated_cgroup_is_another_pod(v1_tree: CgroupTree, parent: Path) -> None:
    workloads = CgroupPods(v1_tree, Settings(pod_parents=(PARENT,)))
    uids = set()
    for _ in range(3):
        (parent / "a").mkdir()
        (pod,) = workloads.refresh()
        uids.add(pod.uid)
        (parent / "a").rmdir()
        assert () == workloads.refresh()
    assert 3 == len(uids)


def test_own_cgroup_is_no_pod_even_below_a_parent(v1_tree: CgroupTree, parent: Path) -> None:
    (parent / "a").mkdir()
    own = own_cgroup(v1_tree) or "/"
    settings = Settings(pod_parents=(PARENT, os.path.dirname(own)))
    cgroups = {pod.cgroup or "" for pod in trio.run(CgroupPods(v1_tree, settings).listed)}
    assert f"{PARENT}/a" in cgroups
    assert not any(cgroup == own or v1_tree.contains(cgroup, own) for cgroup in cgroups)
