from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.pods import ContainerUsage, Pod, PodUsage
from reactor.model.settings import MemoryAvailable
from reactor.model.signals import Resource
from reactor.observe.pods import PodObserver
from tests.support.this_machine import no_descriptor_to_spare, open_descriptors, without_descriptors

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker

MIB = 1 << 20
UNREADABLE = PodUsage(unreadable=frozenset({Resource.MEMORY, Resource.PIDS}))


def pod(name: str, cgroup: str | None = None, uid: str | None = None) -> Pod:
    return Pod(name=name, namespace="cgroup", uid=uid or name, cgroup=cgroup or f"/pods/{name}")


@pytest.fixture
def pods(fake: FakeTree) -> FakeTree:
    for index, name in enumerate(("a", "b", "c")):
        fake.add(f"/pods/{name}", usage_bytes=(index + 2) * MIB, inactive_file_bytes=MIB)
        fake.file(f"/pods/{name}", "pids.current", f"{index + 5}\n", "pids")
    return fake


@pytest.fixture
def observer(fake: FakeTree) -> Iterator[PodObserver]:
    observer = PodObserver(fake.tree)
    yield observer
    observer.close()


def test_working_sets_are_by_uid(pods: FakeTree, observer: PodObserver) -> None:
    observer.track([pod("a"), pod("b", uid="uid-b")])
    expected = {
        "a": PodUsage(memory_working_set_bytes=MIB),
        "uid-b": PodUsage(memory_working_set_bytes=2 * MIB),
    }
    assert expected == observer.memory()
    pods.counters("/pods/a", usage_bytes=9 * MIB, inactive_file_bytes=0)
    assert PodUsage(memory_working_set_bytes=9 * MIB) == observer.memory()["a"]


def swap_names(pods: FakeTree, one: str, other: str) -> None:
    """Rename two cgroups to each other's names, as cgroup v1 allows."""
    first, second = pods.directory(one), pods.directory(other)
    between = first.with_name("between")
    first.rename(between)
    second.rename(first)
    between.rename(second)


def listed(pods: FakeTree, name: str) -> Pod:
    return replace(pod(name), cgroup_inode=pods.directory(f"/pods/{name}").stat().st_ino)


@pytest.mark.parametrize("most_held", [None, 0])
def test_what_is_read_of_a_pod_is_of_the_cgroup_that_was_listed_whatever_its_name_is_by_now(
    make_tree: FakeTreeMaker, most_held: int | None
) -> None:
    pods = make_tree(CgroupVersion.V1)
    for name, mib in (("a", 200), ("b", 10)):
        pods.add(f"/pods/{name}", usage_bytes=mib * MIB)
        stat = f"total_inactive_file 0\ntotal_shmem {mib}\n"
        pods.file(f"/pods/{name}", "memory.stat", stat)
    both = [listed(pods, name) for name in ("a", "b")]
    swap_names(pods, "/pods/a", "/pods/b")
    with closing(PodObserver(pods.tree, most_held=most_held)) as observer:
        observer.track(both)
        used = observer.memory()
        assert (200 * MIB, 10 * MIB) == tuple(used[one].memory_working_set_bytes for one in ("a", "b"))
        assert 200 == observer.shared_memory_bytes("a")
        assert frozenset() == observer.vanished


def test_another_cgroup_under_a_pods_path_is_not_the_pod(pods: FakeTree, observer: PodObserver) -> None:
    one = listed(pods, "a")
    pods.directory("/pods/a").rename(pods.directory("/pods/a").parents[1] / "elsewhere")
    pods.add("/pods/a", usage_bytes=9 * MIB)
    observer.track([one, pod("b")])
    assert {"b"} == observer.memory().keys()
    assert {"a"} == observer.vanished


def test_what_is_charged_is_read_with_the_page_cache(pods: FakeTree, observer: PodObserver) -> None:
    observer.track([pod("a"), pod("b")])
    assert observer.charged_bytes(["a", "b", "unknown"]) == {"a": 2 * MIB, "b": 3 * MIB}


def test_a_pod_holds_no_more_than_its_bound(pods: FakeTree, observer: PodObserver) -> None:
    observer.track([pod("a"), pod("b"), Pod(name="none", namespace="cgroup", uid="none")])
    assert observer.bounds() == ({"a": 2 * MIB, "b": 3 * MIB}, {"none": UNREADABLE})
    pods.counters("/pods/a", usage_bytes=9 * MIB, inactive_file_bytes=MIB)
    assert observer.bounds()[0]["a"] == 9 * MIB


@pytest.mark.parametrize("content", ["", "many\n", "-1 0\n"])
def test_a_pod_whose_charge_is_no_number_has_no_bound_and_is_read_as_ever(
    pods: FakeTree, observer: PodObserver, content: str
) -> None:
    observer.track([pod("a"), pod("b")])
    is_v2 = pods.tree.version is CgroupVersion.V2
    pods.file("/pods/a", "memory.current" if is_v2 else "memory.usage_in_bytes", content)
    assert observer.bounds() == ({"b": 3 * MIB}, {"a": UNREADABLE})


def test_a_pod_beyond_the_room_for_descriptors_is_read_in_place_of_its_bound(pods: FakeTree) -> None:
    with closing(PodObserver(pods.tree, most_held=1)) as observer:
        observer.track([pod("a"), pod("b")])
        assert observer.bounds() == ({"a": 2 * MIB}, {"b": PodUsage(memory_working_set_bytes=2 * MIB)})


def test_bounds_are_of_the_cgroup_that_was_listed_whatever_its_name_is_by_now(
    make_tree: FakeTreeMaker,
) -> None:
    pods = make_tree(CgroupVersion.V1)
    for name, mib in (("a", 200), ("b", 10)):
        pods.add(f"/pods/{name}", usage_bytes=mib * MIB)
    both = [listed(pods, name) for name in ("a", "b")]
    swap_names(pods, "/pods/a", "/pods/b")
    with closing(PodObserver(pods.tree)) as observer:
        observer.track(both)
        assert observer.bounds()[0] == {"a": 200 * MIB, "b": 10 * MIB}


def test_what_is_in_swap_counts_in_a_bound_where_it_decides(pods: FakeTree) -> None:
    """On v1 by the counter of both, if there is one."""
    swap_out(pods, "/pods/a", 70)
    with closing(PodObserver(pods.tree, counts_swap=True)) as observer:
        observer.track([pod("a"), pod("b")])
        assert observer.bounds()[0] == {"a": 2 * MIB + 70, "b": 3 * MIB}
    if pods.tree.version is CgroupVersion.V1:
        pods.file("/pods/a", "memory.memsw.usage_in_bytes", f"{5 * MIB}\n")
        with closing(PodObserver(pods.tree, counts_swap=True)) as observer:
            observer.track([pod("a"), pod("b")])
            assert observer.bounds()[0] == {"a": 5 * MIB, "b": 3 * MIB}


@pytest.fixture
def still(fake: FakeTree) -> Iterator[PodObserver]:
    """Return an observer for which no time passes."""
    observer = PodObserver(fake.tree, clock_seconds=lambda: 0.0)
    yield observer
    observer.close()


def test_a_pod_holds_no_more_than_its_parent_has_but_for_the_others(
    pods: FakeTree, still: PodObserver
) -> None:
    """What is under way between two counters is allowed for."""
    pods.add("/pods", usage_bytes=10 * MIB)
    still.track([pod("a"), pod("b"), pod("c")])
    assert still.wide_bounds(["b"]) is None, "the descriptors are not held yet"
    still.bounds()
    found = still.wide_bounds(["b", "unknown", "b"])
    assert found is not None
    bounds, used, charged = found
    under_way_bytes = bounds["a"] - 7 * MIB
    assert under_way_bytes % (2 * MIB) == 0
    assert 0 < under_way_bytes
    assert bounds == {"a": 7 * MIB + under_way_bytes, "b": 3 * MIB, "c": 7 * MIB + under_way_bytes}
    assert (used, charged) == ({}, {"b"})
    pods.counters("/pods", usage_bytes=0, inactive_file_bytes=0)
    assert still.wide_bounds(["b"]) == ({**bounds, "a": under_way_bytes, "c": under_way_bytes}, {}, {"b"})


def test_each_parent_bounds_its_own_pods(pods: FakeTree, still: PodObserver) -> None:
    pods.add("/pods", usage_bytes=10 * MIB)
    pods.add("/more", usage_bytes=50 * MIB)
    pods.add("/more/d", usage_bytes=40 * MIB)
    still.track([pod("a"), pod("b"), pod("d", cgroup="/more/d")])
    still.bounds()
    found = still.wide_bounds(["d"])
    assert found is not None
    assert found[0]["d"] == 40 * MIB
    assert found[0]["a"] == found[0]["b"]


@pytest.mark.parametrize("cgroup", ["/d", "/many"])
def test_pods_of_the_root_or_of_many_parents_have_no_wide_bounds(
    pods: FakeTree, still: PodObserver, cgroup: str
) -> None:
    names = [cgroup] if cgroup == "/d" else [f"/parent-{number}/d" for number in range(9)]
    for name in names:
        pods.add(name.rpartition("/")[0] or "/", usage_bytes=50 * MIB)
        pods.add(name, usage_bytes=40 * MIB)
    still.track([pod("a"), *(pod(name[1:].replace("/", "-"), cgroup=name) for name in names)])
    still.bounds()
    assert still.wide_bounds(["a"]) is None


def test_there_are_no_wide_bounds_if_the_reader_was_held_up(pods: FakeTree) -> None:
    """Much may have moved between the two readings of the parent."""
    pods.add("/pods", usage_bytes=10 * MIB)
    now = iter([0.0, 0.0, 0.0005, 1.0, 1.01])
    with closing(PodObserver(pods.tree, clock_seconds=lambda: next(now))) as observer:
        observer.track([pod("a"), pod("b")])
        observer.bounds()
        assert [observer.wide_bounds(["b"]) is None for _ in range(2)] == [False, True]


def test_there_are_no_wide_bounds_where_one_can_not_be_read(pods: FakeTree, still: PodObserver) -> None:
    pods.add("/pods", usage_bytes=10 * MIB)
    still.track([pod("a"), pod("b")])
    still.bounds()
    is_v2 = pods.tree.version is CgroupVersion.V2
    pods.file("/pods/a", "memory.current" if is_v2 else "memory.usage_in_bytes", "many\n")
    assert still.wide_bounds(["b"]) is not None
    assert still.wide_bounds(["a", "b"]) is None


def test_containers_are_read_with_a_pod_that_may_be_chosen(pods: FakeTree, observer: PodObserver) -> None:
    pods.add("/pods/a/main", usage_bytes=2 * MIB, inactive_file_bytes=MIB)
    observer.track([replace(pod("a"), container_cgroups={"main": "/pods/a/main"}), pod("b")])
    found = observer.of(["a", "b"], with_containers=True)
    assert found["a"].containers == (ContainerUsage(name="main", memory_working_set_bytes=MIB),)
    assert observer.of(["a"])["a"].containers == ()


def test_files_of_a_pod_are_those_of_its_subtree(pods: FakeTree, observer: PodObserver) -> None:
    prefix = "" if pods.tree.version is CgroupVersion.V2 else "total_"
    stat = "".join(f"{prefix}{key} {size}\n" for key, size in (("shmem", 20), ("active_file", 30)))
    pods.file("/pods/a", "memory.stat", stat)
    observer.track([pod("a")])
    assert (20, 30) == (observer.shared_memory_bytes("a"), observer.active_file_bytes("a"))
    assert (None, None) == (observer.shared_memory_bytes("b"), observer.active_file_bytes("b"))


def test_full_counts_tasks_too(pods: FakeTree, observer: PodObserver) -> None:
    observer.track([pod("b")])
    assert {"b": PodUsage(memory_working_set_bytes=2 * MIB, process_count=6)} == observer.full()
    assert pods.tree.exists("/pods/b")


def test_processes_are_counted_where_no_controller_does(pods: FakeTree, observer: PodObserver) -> None:
    (pods.directory("/pods/a", "pids") / "pids.current").unlink()
    pods.file("/pods/a", "cgroup.procs", "1\n2\n")
    observer.track([pod("a")])
    assert 2 == observer.full()["a"].process_count


def test_of_a_pod_without_a_cgroup_nothing_can_be_read(observer: PodObserver) -> None:
    observer.track([Pod(name="x", namespace="default", uid="x")])
    assert {"x": UNREADABLE} == observer.memory() == observer.full()
    assert {} == observer.problems


def test_vanished_pod_is_absent_and_told_from_an_unreadable_one(
    pods: FakeTree, observer: PodObserver
) -> None:
    pods.file("/pods/b", "memory.stat", "garbage")
    observer.track([pod("a"), pod("b"), pod("gone")])
    seen = observer.memory()
    assert {"a", "b"} == seen.keys()
    assert UNREADABLE == seen["b"]
    assert frozenset({"gone"}) == observer.vanished
    assert {"/pods/b"} == observer.problems.keys()
    assert "memory.stat" in observer.problems["/pods/b"]


def test_pod_that_comes_back_is_observed_again(pods: FakeTree, observer: PodObserver) -> None:
    shutil.rmtree(pods.directory("/pods/a"))
    observer.track([pod("a")])
    assert {} == observer.memory()
    pods.add("/pods/a", usage_bytes=7)
    observer.track([pod("a")])
    assert {"a": PodUsage(memory_working_set_bytes=7)} == observer.memory()
    assert frozenset() == observer.vanished


def test_pod_that_moved_is_read_where_it_is_now(pods: FakeTree, observer: PodObserver) -> None:
    observer.track([pod("a", uid="same")])
    observer.track([pod("c", uid="same")])
    assert pods.tree.exists("/pods/c")
    assert 3 * MIB == observer.memory()["same"].memory_working_set_bytes


def test_broken_task_count_does_not_lose_the_memory(pods: FakeTree, observer: PodObserver) -> None:
    pods.file("/pods/a", "pids.current", "lots\n", "pids")
    observer.track([pod("a")])
    unreadable = frozenset({Resource.PIDS})
    assert {"a": PodUsage(memory_working_set_bytes=MIB, unreadable=unreadable)} == observer.full()
    assert "pids.current" in observer.problems["/pods/a"]


def test_counter_that_fails_to_be_read_makes_its_pod_alone_unreadable(
    pods: FakeTree, observer: PodObserver
) -> None:
    path = pods.directory("/pods/a") / "memory.stat"
    path.unlink()
    path.mkdir()
    observer.track([pod("a"), pod("b")])
    seen = observer.memory()
    assert (UNREADABLE, frozenset()) == (seen["a"], seen["b"].unreadable)
    assert UNREADABLE == observer.full()["a"]
    assert "memory.stat" in observer.problems["/pods/a"]
    assert frozenset() == observer.vanished


def test_a_number_that_cannot_be_read_stays_what_it_was_while_that_is_fresh(pods: FakeTree) -> None:
    now = [100.0]
    observer = PodObserver(pods.tree, fresh_seconds=5, clock_seconds=lambda: now[0])
    observer.track([pod("a"), pod("b")])
    before = observer.full()
    pods.file("/pods/a", "memory.stat", "garbage")
    pods.file("/pods/b", "pids.current", "lots\n", "pids")
    for now[0] in (101.0, 103.0, 105.0):
        assert before["a"].memory_working_set_bytes == observer.memory()["a"].memory_working_set_bytes
        assert before == observer.full()
        assert {"/pods/a", "/pods/b"} == observer.problems.keys()
    now[0] = 105.1
    late = observer.full()
    assert UNREADABLE == late["a"]
    assert frozenset({Resource.PIDS}) == late["b"].unreadable
    assert before["b"].memory_working_set_bytes == late["b"].memory_working_set_bytes

    pods.counters("/pods/a", usage_bytes=7 * MIB, inactive_file_bytes=0)
    pods.file("/pods/b", "pids.current", "9\n", "pids")
    again = observer.full()
    assert (7 * MIB, 9) == (again["a"].memory_working_set_bytes, again["b"].process_count)
    pods.file("/pods/a", "memory.stat", "garbage")
    pods.file("/pods/b", "pids.current", "lots\n", "pids")
    assert again == observer.full()
    observer.close()


def test_symlinked_and_climbing_pods_are_not_observed(pods: FakeTree, observer: PodObserver) -> None:
    (pods.directory("/pods") / "link").symlink_to("a")
    observer.track([pod("link"), pod("up", cgroup="/pods/../pods/a")])
    assert {"link": UNREADABLE, "up": UNREADABLE} == observer.memory()
    assert "symlink" in observer.problems["/pods/link"]


def test_thousands_of_comings_and_goings_leave_no_descriptor(pods: FakeTree, observer: PodObserver) -> None:
    before = open_descriptors()
    for index in range(3000):
        observer.track([pod(name) for name in ("a", "b", "c", "gone") if hash((index, name)) % 2])
        if index % 100 == 0:
            observer.full()
    observer.track([pod("a"), pod("b")])
    observer.track(())
    assert before == open_descriptors()
    assert pods.tree.exists("/pods")


def test_descriptors_are_asked_for_where_the_soft_limit_is_too_low(
    pods: FakeTree, observer: PodObserver
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip("the hard limit of descriptors is below 3000; ulimit -Hn 3000")
    names = [path.name for path in pods.directory("/pods").iterdir()]
    many = [pod(name, uid=f"{name}{index}") for index in range(200) for name in names]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        observer.track(many)
        assert len(many) == len(observer.memory())
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= len(many) * 3
    finally:
        observer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_pod_for_which_no_descriptor_is_left_is_read_with_those_of_another(pods: FakeTree) -> None:
    observer = PodObserver(pods.tree, most_held=2)
    observer.track([pod("a"), pod("b")])
    observer.track([pod("a"), pod("b"), pod("c")])
    with closing(observer), no_descriptor_to_spare():
        used = observer.full()
    assert all(used[name].memory_working_set_bytes is not None for name in ("a", "b", "c"))


def test_a_pod_that_lacks_descriptors_to_be_read_is_named_until_it_is_read_or_gone(pods: FakeTree) -> None:
    with closing(PodObserver(pods.tree, most_held=0)) as observer:
        observer.track([pod("a"), pod("gone"), pod("b")])
        with without_descriptors():
            assert {"a": UNREADABLE, "b": UNREADABLE, "gone": UNREADABLE} == observer.memory()
        assert {"a", "b", "gone"} == observer.unseen
        observer.of(["b", "gone"])
        assert {"a"} == observer.unseen
        observer.track([pod("b")])
        assert set() == observer.unseen


def test_pods_beyond_the_room_for_descriptors_are_read_all_the_same(pods: FakeTree) -> None:
    before = open_descriptors()
    observer = PodObserver(pods.tree, most_held=1)
    observer.track([pod("a"), pod("b"), pod("c")])
    assert 3 == open_descriptors() - before
    assert {"a", "b", "c"} == observer.full().keys()
    assert 3 == open_descriptors() - before
    observer.close()
    assert before == open_descriptors()


def with_containers(name: str, **changes: object) -> Pod:
    cgroups = {f"{name}-{number}": f"/pods/{name}/{number}" for number in (1, 2)}
    return replace(pod(name), container_cgroups=cgroups, **changes)


@pytest.fixture
def contained(pods: FakeTree) -> FakeTree:
    for index, name in enumerate(("a", "b", "c")):
        for number in (1, 2):
            pods.add(f"/pods/{name}/{number}", usage_bytes=index * MIB + number, inactive_file_bytes=0)
    return pods


def detailed(observer: PodObserver) -> set[str]:
    return {uid for uid, used in observer.memory().items() if used.containers}


def test_containers_are_read_of_the_pods_that_would_go_first(
    contained: FakeTree, observer: PodObserver
) -> None:
    """The least priority first, and then who is the furthest above its request; c uses 3 MiB, a 1 MiB."""
    observer.track([with_containers(name) for name in "abc"])
    assert detailed(observer) == {"b", "c"}
    expected = tuple(
        ContainerUsage(name=f"c-{number}", memory_working_set_bytes=2 * MIB + number) for number in (1, 2)
    )
    assert expected == observer.memory()["c"].containers
    assert expected == observer.full()["c"].containers
    observer.track([with_containers("a"), with_containers("b", priority=5), with_containers("c", priority=9)])
    assert detailed(observer) == {"a", "b"}
    request = {Resource.MEMORY: 100 * MIB}
    observer.track([with_containers("a"), with_containers("b"), with_containers("c", requests=request)])
    assert detailed(observer) == {"a", "b"}


def test_containers_are_not_read_of_pods_that_never_go_or_have_none(
    contained: FakeTree, observer: PodObserver
) -> None:
    observer.track([pod("a"), with_containers("b", critical_because="static pod"), with_containers("c")])
    assert detailed(observer) == {"c"}


def test_a_container_that_is_gone_is_left_out_and_its_pod_is_not(
    contained: FakeTree, observer: PodObserver
) -> None:
    observer.track([with_containers("c")])
    shutil.rmtree(contained.directory("/pods/c/1"))
    used = observer.memory()["c"]
    assert used.memory_working_set_bytes == 3 * MIB
    assert [one.name for one in used.containers] == ["c-2"]


def test_reading_containers_leaves_no_descriptor_open(contained: FakeTree, observer: PodObserver) -> None:
    observer.track([with_containers(name) for name in "abc"])
    before = open_descriptors()
    observer.memory()
    assert before == open_descriptors()


def test_cache_that_can_be_reclaimed_is_none_of_a_pods_where_memory_counts_as_mem_available(
    pods: FakeTree,
) -> None:
    prefix = "" if pods.tree.version is CgroupVersion.V2 else "total_"
    pods.counters("/pods/a", usage_bytes=300 * MIB, inactive_file_bytes=0)
    pods.file(
        "/pods/a", "memory.stat", f"{prefix}inactive_file {50 * MIB}\n{prefix}active_file {200 * MIB}\n"
    )
    for counted, expected_mib in ((MemoryAvailable.WORKING_SET, 250), (MemoryAvailable.MEM_AVAILABLE, 50)):
        observer = PodObserver(pods.tree, memory_available=counted)
        observer.track([pod("a")])
        assert expected_mib * MIB == observer.memory()["a"].memory_working_set_bytes
        observer.close()


def swap_out(pods: FakeTree, cgroup: str, swapped: int) -> None:
    if pods.tree.version is CgroupVersion.V2:
        pods.file(cgroup, "memory.swap.current", f"{swapped}\n")
    else:
        pods.file(cgroup, "memory.stat", f"cache 1\ntotal_inactive_file 0\ntotal_swap {swapped}\n")


def test_swap_of_a_pod_is_what_it_was_when_it_was_noted(pods: FakeTree) -> None:
    observer = PodObserver(pods.tree)
    observer.track([pod("a"), pod("b")])
    swap_out(pods, "/pods/a", 70)
    assert observer.memory()["a"].swap_bytes is None
    observer.note_swap(has_swap=True)
    swap_out(pods, "/pods/a", 90)
    for seen in (observer.memory(), observer.full(), observer.of(["a"])):
        assert 70 == seen["a"].swap_bytes
    assert observer.memory()["b"].swap_bytes is None  # not counted there
    observer.note_swap(has_swap=False)
    assert observer.memory()["a"].swap_bytes is None
    observer.close()


def test_swap_is_read_afresh_where_it_decides(pods: FakeTree) -> None:
    observer = PodObserver(pods.tree, counts_swap=True)
    observer.track([pod("a"), pod("b")])
    for swapped in (70, 90):
        swap_out(pods, "/pods/a", swapped)
        for seen in (observer.memory(), observer.full()):
            assert swapped == seen["a"].swap_bytes
            assert seen["b"].swap_bytes is None
    swap_out(pods, "/pods/a", 10)
    observer.track([pod("b")])
    observer.close()
