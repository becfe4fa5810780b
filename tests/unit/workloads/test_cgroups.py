from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.model.pod_lists import PodEntry, PodLists, Preference
from reactor.model.pods import Pod, QosClass
from reactor.model.settings import Settings
from reactor.model.signals import Resource
from reactor.workloads.cgroups import CgroupPods
from reactor.workloads.parents import PodBoundaries
from tests.support.this_machine import no_descriptor_to_spare, without_descriptors

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker

MIB = 1 << 20


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a /proc in which nobody is in any cgroup."""
    return tmp_path / "proc"


def lives_in(proc: Path, who: str, cgroup: str) -> None:
    (proc / who).mkdir(parents=True)
    (proc / who / "cgroup").write_text(f"4:memory:{cgroup}\n0::{cgroup}\n")


def pods_of(fake: FakeTree, proc: Path, *parents: str, node_cgroup: str | None = None) -> CgroupPods:
    return CgroupPods(fake.tree, Settings(pod_parents=parents, node_cgroup=node_cgroup), proc=proc)


def timed_pods(fake: FakeTree, proc: Path) -> tuple[CgroupPods, list[float]]:
    """Return the pods below /pods, and their clock."""
    now = [100.0]
    settings = Settings(pod_parents=("/pods",))
    return CgroupPods(fake.tree, settings, proc=proc, clock_seconds=lambda: now[0]), now


def test_a_pod_that_came_to_a_guard_without_a_descriptor_to_spare_is_listed(
    fake: FakeTree, proc: Path
) -> None:
    fake.add("/pods/old")
    pods = pods_of(fake, proc, "/pods")
    pods.list()
    fake.add("/pods/new")
    with no_descriptor_to_spare():
        found = pods.refresh()

    assert ["new", "old"] == sorted(pod.name for pod in found)
    assert {} == pods.problems


def set_attribute(fake: FakeTree, cgroup: str, name: str, value: bytes) -> None:
    try:
        os.setxattr(fake.directory(cgroup), name, value)
    except OSError as error:
        pytest.skip(f"no attributes on the temporary directory ({error}); use one on ext4")


def test_every_child_of_every_parent_is_a_pod(fake: FakeTree, proc: Path) -> None:
    for cgroup in ("/a/x", "/a/w", "/b/y", "/b/y/inner", "/c/z"):
        fake.add(cgroup)
    found = pods_of(fake, proc, "/a", "/b", "/missing").list()
    assert ["/a/w", "/a/x", "/b/y"] == [pod.cgroup for pod in found]
    assert ["cgroup/w", "cgroup/x", "cgroup/y"] == [pod.key for pod in found]


@pytest.mark.parametrize(
    ("request_mib", "limit_mib", "qos_class", "asked_mib"),
    [
        (0, None, QosClass.BEST_EFFORT, None),
        (64, 64, QosClass.GUARANTEED, 64),
        (32, 64, QosClass.BURSTABLE, 32),
        (32, None, QosClass.BURSTABLE, 32),
        (0, 64, QosClass.BURSTABLE, None),
        (128, 64, QosClass.GUARANTEED, 64),
    ],
)
def test_class_follows_request_and_limit(
    fake: FakeTree,
    proc: Path,
    request_mib: int,
    limit_mib: int | None,
    qos_class: QosClass,
    asked_mib: int | None,
) -> None:
    fake.add("/pods/a")
    if request_mib:
        fake.tree.set_memory_request("/pods/a", request_mib * MIB)
    if limit_mib is not None:
        fake.tree.set_memory_limit("/pods/a", limit_mib * MIB)
    (pod,) = pods_of(fake, proc, "/pods").list()
    assert qos_class == pod.qos_class
    assert ({} if asked_mib is None else {Resource.MEMORY: asked_mib * MIB}) == pod.requests


def test_pod_that_all_is_protected_for_never_exceeds_its_request(
    make_tree: FakeTreeMaker, proc: Path
) -> None:
    fake = make_tree(CgroupVersion.V2)
    fake.add("/pods/a")
    fake.file("/pods/a", "memory.low", "max\n")
    (pod,) = pods_of(fake, proc, "/pods").list()
    assert pod.requests[Resource.MEMORY] > 1 << 60
    assert QosClass.BURSTABLE == pod.qos_class


def test_attributes_decide_priority_and_protection(fake: FakeTree, proc: Path) -> None:
    for name in ("avoided", "critical", "omitted", "plain", "ranked"):
        fake.add(f"/pods/{name}")
    set_attribute(fake, "/pods/avoided", "user.oomd_avoid", b"1")
    set_attribute(fake, "/pods/avoided", "user.reactor.priority", b"3")
    set_attribute(fake, "/pods/critical", "user.reactor.priority", b"2000000000")
    set_attribute(fake, "/pods/omitted", "user.oomd_omit", b"1")
    set_attribute(fake, "/pods/ranked", "user.reactor.priority", b"7")
    pods = {pod.name: pod for pod in pods_of(fake, proc, "/pods").list()}
    assert {"avoided": Preference.AVOID} == {
        name: pod.preference for name, pod in pods.items() if pod.preference is not Preference.NONE
    }
    assert {"avoided": 3, "critical": 2_000_000_000, "omitted": 0, "plain": 0, "ranked": 7} == {
        name: pod.priority for name, pod in pods.items()
    }
    assert {"critical": "priority 2000000000", "omitted": "user.oomd_omit"} == {
        name: pod.critical_because for name, pod in pods.items() if pod.critical_because
    }


def test_wrong_attribute_is_a_problem_and_the_pod_stays(fake: FakeTree, proc: Path) -> None:
    fake.add("/pods/a")
    set_attribute(fake, "/pods/a", "user.reactor.priority", b"\xff")
    listing = pods_of(fake, proc, "/pods")
    assert [0] == [pod.priority for pod in listing.list()]
    assert "user.reactor.priority" in listing.problems["/pods/a"]


def test_symlinks_and_files_are_no_pods(fake: FakeTree, proc: Path) -> None:
    fake.add("/pods/a")
    fake.add("/other/b")
    (fake.directory("/pods") / "link").symlink_to(fake.directory("/other/b"))
    assert ["a"] == [pod.name for pod in pods_of(fake, proc, "/pods").list()]


def test_parent_that_is_a_symlink_is_refused_and_named(fake: FakeTree, proc: Path) -> None:
    fake.add("/other/b")
    fake.add("/pods/a")
    fake.directory("/link").symlink_to(fake.directory("/other"))
    listing = pods_of(fake, proc, "/link", "/pods")
    assert ["a"] == [pod.name for pod in listing.list()]
    assert "symlink" in listing.problems["/link"]


def test_what_reactor_and_init_stand_on_is_no_pod(fake: FakeTree, proc: Path) -> None:
    """Nor is what holds it: ending that would end it too."""
    for cgroup in ("/p/own/deeper", "/p/init.scope", "/p/node/pods/a", "/p/pod"):
        fake.add(cgroup)
    lives_in(proc, "self", "/p/own/deeper")
    lives_in(proc, "1", "/p/init.scope")
    listing = pods_of(fake, proc, "/p", "/p/node/pods", node_cgroup="/p/node")
    assert ["/p/pod", "/p/node/pods/a"] == [pod.cgroup for pod in listing.list()]


def test_steward_beside_the_guard_is_no_pod_and_a_pod_of_that_name_is(fake: FakeTree, proc: Path) -> None:
    for cgroup in ("/s/reactor.service/guard", "/s/reactor.service/steward", "/s/steward"):
        fake.add(cgroup)
    lives_in(proc, "self", "/s/reactor.service/guard")
    listing = pods_of(fake, proc, "/s", "/s/reactor.service")
    assert ["/s/steward"] == [pod.cgroup for pod in listing.list()]


def test_init_in_the_root_spares_nothing_else(fake: FakeTree, proc: Path) -> None:
    fake.add("/pods/a")
    lives_in(proc, "1", "/")
    assert ["a"] == [pod.name for pod in pods_of(fake, proc, "/pods").list()]


@pytest.mark.parametrize(
    "cgroup",
    ["/", "/pods", "/pods/../etc", "/etc", "/pods/a/b", "pods/a", "//pods/a", "/pods/a/", "/podsx/a"],
)
def test_fence_refuses_what_is_no_child_of_a_parent(fake: FakeTree, proc: Path, cgroup: str) -> None:
    assert PodBoundaries(fake.tree, ("/pods",), None, proc).refusal(cgroup) is not None


def test_fence_lets_children_be_pods(fake: FakeTree, proc: Path) -> None:
    assert PodBoundaries(fake.tree, ("/pods", "/"), None, proc).refusal("/pods/a") is None
    assert PodBoundaries(fake.tree, ("/pods", "/"), None, proc).refusal("/x") is None
    assert PodBoundaries(fake.tree, ("/pods", "/"), None, proc).refusal("/pods") is not None


def test_recreated_cgroup_is_another_pod(fake: FakeTree, proc: Path) -> None:
    fake.add("/pods/a")
    listing = pods_of(fake, proc, "/pods")
    (before,) = listing.list()
    # Keeps the inode from being given out again at once.
    fake.directory("/pods/a").rename(fake.tree.memory_root / "kept")
    fake.add("/pods/a")
    (after,) = listing.list()
    assert before.cgroup == after.cgroup
    assert before.uid != after.uid


def test_pod_that_was_refreshed_at_while_it_was_made_is_read_again_until_it_has_settled(
    fake: FakeTree, proc: Path
) -> None:
    listing, now = timed_pods(fake, proc)
    fake.add("/pods/old")
    listing.list()
    now[0] += 10
    fake.add("/pods/new")
    assert [{}, {}] == [pod.requests for pod in listing.refresh()]

    # systemd and the runtimes write what a cgroup asks for after they made it.
    for name in ("old", "new"):
        fake.tree.set_memory_request(f"/pods/{name}", 32 * MIB)
    now[0] += 0.5

    asked = {pod.name: pod.requests.get(Resource.MEMORY) for pod in listing.refresh()}
    assert {"old": None, "new": 32 * MIB} == asked
    for seconds, asks in ((0.6, 64), (0.1, 128)):
        fake.tree.set_memory_request("/pods/new", asks * MIB)
        now[0] += seconds
        asked = {pod.name: pod.requests.get(Resource.MEMORY) for pod in listing.refresh()}
        assert {"old": None, "new": 64 * MIB} == asked


def test_pod_that_no_refresh_saw_in_its_first_second_is_read_again_at_the_next(
    fake: FakeTree, proc: Path
) -> None:
    listing, now = timed_pods(fake, proc)
    listing.list()
    fake.add("/pods/new")
    listing.refresh()
    fake.tree.set_memory_request("/pods/new", 32 * MIB)
    now[0] += 1.6

    assert [32 * MIB] == [pod.requests.get(Resource.MEMORY) for pod in listing.refresh()]


def test_first_pod_of_all_is_read_again_too(fake: FakeTree, proc: Path) -> None:
    listing = pods_of(fake, proc, "/pods")
    assert () == listing.list()
    fake.add("/pods/a")
    assert [{}] == [pod.requests for pod in listing.refresh()]
    fake.tree.set_memory_request("/pods/a", 32 * MIB)

    assert [32 * MIB] == [pod.requests.get(Resource.MEMORY) for pod in listing.refresh()]


def test_so_many_new_pods_do_not_make_a_refresh_long(fake: FakeTree, proc: Path) -> None:
    listing = CgroupPods(fake.tree, Settings(pod_parents=("/pods",)), proc=proc, clock_seconds=lambda: 100.0)
    fake.add("/pods/old")
    listing.list()
    names = [f"new-{number:02}" for number in range(20)]
    for name in names:
        fake.add(f"/pods/{name}")
    listing.refresh()
    for name in names:
        fake.tree.set_memory_request(f"/pods/{name}", 32 * MIB)

    read_again = [pod.name for pod in listing.refresh() if pod.requests]

    assert names[-8:] == read_again


def test_pod_that_is_being_made_is_read_at_every_refresh_and_later_not_twice_in_a_hundredth(
    fake: FakeTree, proc: Path
) -> None:
    listing, now = timed_pods(fake, proc)

    def seen_after(seconds: float, asked: int) -> int | None:
        now[0] += seconds
        fake.tree.set_memory_request("/pods/new", asked * MIB)
        return listing.refresh()[0].requests[Resource.MEMORY] // MIB

    listing.refresh()
    fake.add("/pods/new")
    listing.refresh()

    assert [1, 2, 3] == [seen_after(seconds, asked) for seconds, asked in ((0.0, 1), (0.0, 2), (0.09, 3))]
    assert [4, 4, 6] == [seen_after(seconds, asked) for seconds, asked in ((0.02, 4), (0.005, 5), (0.006, 6))]


def test_a_young_pod_is_read_again_once_it_was_written_to_and_by_the_clock_only_if_it_is_not_watched(
    fake: FakeTree, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    listed = CgroupTree.listed_memory_request_bytes

    def counted(tree: CgroupTree, directory: str) -> int:
        read.append(directory)
        return listed(tree, directory)

    monkeypatch.setattr(CgroupTree, "listed_memory_request_bytes", counted)
    listing, now = timed_pods(fake, proc)
    listing.refresh()
    fake.add("/pods/new")

    def reads(times: int = 5) -> int:
        read.clear()
        for _ in range(times):
            listing.refresh()
            now[0] += 0.02
        return len(read)

    assert 1 == reads()
    set_attribute(fake, "/pods/new", "user.reactor.priority", b"3")
    assert 1 == reads()
    assert [3] == [pod.priority for pod in listing.refresh()]
    monkeypatch.setattr("reactor.kernel.directories.watch_directory", _refuse)
    fake.add("/pods/unwatched")
    assert 5 == reads()
    now[0] += 1.0
    assert 1 == reads()  # once more, as it has settled


def test_a_listed_pod_that_could_not_be_read_once_is_there_again_though_no_directory_has_changed(
    fake: FakeTree, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> int:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    listing, _ = timed_pods(fake, proc)
    listing.refresh()
    fake.add("/pods/new")
    assert ["new"] == [pod.name for pod in listing.refresh()]
    fake.tree.set_memory_request("/pods/new", MIB)
    with monkeypatch.context() as patched:
        patched.setattr(CgroupTree, "listed_memory_limit_bytes", gone)
        assert [] == [pod.name for pod in listing.refresh()]
    assert ["new"] == [pod.name for pod in listing.refresh()]


def test_refresh_sees_who_came_and_went_without_reading_the_known(fake: FakeTree, proc: Path) -> None:
    for name in ("a", "b"):
        fake.add(f"/pods/{name}")
    listing, now = timed_pods(fake, proc)
    listing.list()
    now[0] += 10
    listing.refresh()
    shutil.rmtree(fake.directory("/pods/a"))
    fake.add("/pods/c")
    for name in ("b", "c"):
        fake.tree.set_memory_request(f"/pods/{name}", MIB)
    requests = {pod.name: pod.requests.get(Resource.MEMORY) for pod in listing.refresh()}
    assert {"b": None, "c": MIB} == requests
    assert {"b": MIB, "c": MIB} == {pod.name: pod.requests.get(Resource.MEMORY) for pod in listing.list()}


def test_pod_that_comes_or_is_written_to_while_the_others_are_read_is_listed_as_it_is(
    fake: FakeTree, proc: Path
) -> None:
    for number in range(60):
        fake.add(f"/pods/p{number}")
    listing = pods_of(fake, proc, "/pods")
    listing.list()
    fake.add("/pods/a-young-one")
    listing.refresh()
    turns = listing.turns()
    next(turns)  # the young one is read, first of all
    fake.tree.set_memory_request("/pods/a-young-one", MIB)
    fake.add("/pods/z")
    shutil.rmtree(fake.directory("/pods/p0"))
    assert "z" in [pod.name for pod in listing.refresh()]
    pods = _result_of(turns)

    found = {pod.name: pod.requests.get(Resource.MEMORY) for pod in pods}
    assert {"a-young-one", "z", *(f"p{number}" for number in range(1, 60))} == found.keys()
    assert found["a-young-one"] == MIB
    assert pods == listing.refresh()


def test_pod_that_a_listing_has_found_is_known_before_all_others_are_read(fake: FakeTree, proc: Path) -> None:
    """A crossing in between chose among those that were known before, and killed another."""
    for number in range(60):
        fake.add(f"/pods/p{number}")
    listing = pods_of(fake, proc, "/pods")
    listing.list()
    fake.add("/pods/hog")
    shutil.rmtree(fake.directory("/pods/p0"))

    next(turns := listing.turns())

    found = [pod.name for pod in listing.refresh()]
    assert {"hog", *(f"p{number}" for number in range(1, 60))} == set(found)
    assert found == [pod.name for pod in _result_of(turns)]


def _refuse(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _changes(fake: FakeTree, proc: Path) -> dict[str, Callable[[], object]]:
    return {
        "request": lambda: fake.tree.set_memory_request("/pods/a", MIB),
        "limit": lambda: fake.tree.set_memory_limit("/pods/a", MIB),
        "attribute": lambda: set_attribute(fake, "/pods/a", "user.reactor.priority", b"3"),
        "score of the main process": lambda: (proc / "7/oom_score_adj").write_text("-1000\n"),
        "main process": lambda: fake.file("/pods/a", "cgroup.procs", "8\n"),
    }


@pytest.mark.parametrize("pause_seconds", [0, 10])
@pytest.mark.parametrize("is_watched", [True, False])
@pytest.mark.parametrize("change", _changes(None, None))  # type: ignore[arg-type]
def test_a_listing_makes_pods_anew_that_have_changed_and_no_others(
    fake: FakeTree,
    proc: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    pause_seconds: float,
    *,
    is_watched: bool,
) -> None:
    """Without inotify it makes all of them anew."""
    if not is_watched:
        monkeypatch.setattr("reactor.kernel.directories.open_inotify", _refuse)
    for number, name in enumerate("abc"):
        fake.add(f"/pods/{name}")
        runs(fake, proc, f"/pods/{name}", "web", pid=7 if name == "a" else 70 + number)
    runs(fake, proc, "/pods/a", "vital", -1000, pid=8)
    fake.file("/pods/a", "cgroup.procs", "7\n")
    listing, now = timed_pods(fake, proc)
    listing.list()
    now[0] += 10  # they are not young any more
    before = {pod.name: pod for pod in listing.list()}
    now[0] += pause_seconds
    again = {pod.name: pod for pod in listing.list()}
    assert [is_watched] * 3 == [again[name] is pod for name, pod in before.items()]

    _changes(fake, proc)[change]()
    now[0] += pause_seconds
    after = {pod.name: pod for pod in listing.list()}

    assert before["a"] != after["a"]
    assert (after["b"], after["c"]) == (before["b"], before["c"])
    assert (after["b"] is before["b"], after["c"] is before["c"]) == (is_watched, is_watched)
    assert after == {pod.name: pod for pod in pods_of(fake, proc, "/pods").list()}


def test_no_more_files_are_held_open_than_descriptors_leave_room_for(
    fake: FakeTree, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate("abc"):
        fake.add(f"/pods/{name}")
        runs(fake, proc, f"/pods/{name}", "vital", -1000, pid=70 + number)
    listing, now = timed_pods(fake, proc)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (264, limit[1]))
        monkeypatch.setattr(resource, "setrlimit", _refuse)
        listing.list()
    finally:
        monkeypatch.undo()
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert ["a"] == _held(fake)
    now[0] += 10
    because = "oom_score_adj -1000 of its main process"
    assert [because] * 3 == [pod.critical_because for pod in listing.list()]
    assert ["a", "b", "c"] == _held(fake)
    shutil.rmtree(fake.directory("/pods/b"))
    listing.list()
    assert ["a", "c"] == _held(fake)


def _held(fake: FakeTree) -> list[str]:
    """Return of which pods this process has the list of processes open."""
    held = (os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    lists = (path.removesuffix(" (deleted)") for path in held)
    pods = (Path(path).parent for path in lists if path.endswith("/cgroup.procs"))
    return sorted(pod.name for pod in pods if pod.parent == fake.directory("/pods"))


def test_a_pod_that_a_refresh_read_in_between_is_as_the_listing_reads_it(fake: FakeTree, proc: Path) -> None:
    fake.add("/pods/a")
    listing, now = timed_pods(fake, proc)
    listing.list()
    fake.tree.set_memory_request("/pods/a", MIB)
    now[0] += 0.5  # it is young: a refresh reads it again
    assert [MIB] == [pod.requests.get(Resource.MEMORY) for pod in listing.refresh()]
    fake.tree.set_memory_request("/pods/a", 0)
    assert [None] == [pod.requests.get(Resource.MEMORY) for pod in listing.list()]


def _result_of(turns: Generator[None, None, tuple[Pod, ...]]) -> tuple[Pod, ...]:
    while True:
        try:
            next(turns)
        except StopIteration as over:
            pods: tuple[Pod, ...] = over.value
            return pods


def test_parent_that_cannot_be_listed_keeps_the_pods_that_were_known(fake: FakeTree, proc: Path) -> None:
    """One that has not changed is not listed. Of pods that may not be all none is evicted."""
    for cgroup in ("/a/x", "/b/y"):
        fake.add(cgroup)
    listing = pods_of(fake, proc, "/a", "/b")
    before = listing.list()
    for is_changed in (False, True):
        if is_changed:
            for cgroup in ("/a/z", "/b/z"):
                fake.add(cgroup)
        with without_descriptors():
            refreshed, again = listing.refresh(), listing.list()
        assert ({"/a", "/b"} if is_changed else set()) == listing.problems.keys()
        why = "reactor has no descriptors left to see which pods there are" if is_changed else None
        assert refreshed == again == tuple(replace(pod, critical_because=why) for pod in before)
    assert ["x", "z", "y", "z"] == [pod.name for pod in listing.list()]
    assert {} == listing.problems


def test_pod_whose_coming_was_not_reported_is_found_by_the_next_listing(fake: FakeTree, proc: Path) -> None:
    fake.add("/pods/a")
    listing = pods_of(fake, proc, "/pods")
    listing.list()
    fake.add("/pods/b")
    assert os.read(listing.changed_fd(), 4096)
    assert ["a"] == [pod.name for pod in listing.refresh()]
    assert ["a", "b"] == [pod.name for pod in listing.list()]


@pytest.mark.parametrize("garbage", [b"", b"x", b"-1\n", b"\0\0"])
def test_pod_that_cannot_be_read_is_spared_or_stays_as_it_was(
    fake: FakeTree, proc: Path, garbage: bytes
) -> None:
    fake.add("/pods/a")
    fake.tree.set_memory_request("/pods/a", MIB)
    listing = pods_of(fake, proc, "/pods")
    before = listing.list()
    name = "memory.max" if fake.tree.version is CgroupVersion.V2 else "memory.limit_in_bytes"
    fake.file("/pods/a", name, garbage)
    assert before == listing.list()
    assert name in listing.problems["/pods/a"]
    (pod,) = pods_of(fake, proc, "/pods").list()
    assert "its cgroup can't be read" == pod.critical_because


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(raw=st.binary(max_size=40))
def test_arbitrary_limits_never_raise(fake: FakeTree, proc: Path, raw: bytes) -> None:
    fake.add("/pods/a")
    for name in ("memory.max", "memory.low", "memory.limit_in_bytes", "memory.soft_limit_in_bytes"):
        fake.file("/pods/a", name, raw)
    (pod,) = pods_of(fake, proc, "/pods").list()
    assert isinstance(pod, Pod)


def test_climbing_parent_is_refused_and_named(fake: FakeTree, proc: Path) -> None:
    listing = pods_of(fake, proc, "/../etc")
    assert () == listing.list() == listing.refresh()
    assert "/../etc" in listing.problems


def listed_pods(fake: FakeTree, proc: Path, *parents: str, **lists: object) -> CgroupPods:
    settings = Settings(pod_parents=parents, pod_lists=PodLists(**lists))  # type: ignore[arg-type]
    return CgroupPods(fake.tree, settings, proc=proc)


def runs(fake: FakeTree, proc: Path, cgroup: str, name: str, score: int = 0, pid: int = 7) -> None:
    """Have one process in a cgroup."""
    fake.file(cgroup, "cgroup.procs", f"{pid}\n")
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "comm").write_text(f"{name}\n")
    (proc / str(pid) / "oom_score_adj").write_text(f"{score}\n")


def test_what_an_operator_needs_to_get_in_is_never_evicted(fake: FakeTree, proc: Path) -> None:
    """The natural configuration of a server: everything below /system.slice."""
    for unit in ("ssh.service", "web.service", "system-ssh.slice"):
        fake.add(f"/system.slice/{unit}")
    for pods in ((listing := listed_pods(fake, proc, "/system.slice")).refresh(), listing.list()):
        assert {
            "ssh.service": "ssh.service is in the built-in never list",
            "system-ssh.slice": "system-ssh.slice is in the built-in never list",
        } == {pod.name: pod.critical_because for pod in pods if pod.critical_because}


def test_a_slice_that_holds_sshd_is_never_evicted_and_one_that_does_not_may_be(
    fake: FakeTree, proc: Path
) -> None:
    for cgroup in ("/system.slice/sshd.service", "/batch.slice/job.service", "/user.slice/sshd.service"):
        fake.add(cgroup)
    if os.geteuid() == 0:
        os.chown(fake.directory("/user.slice"), 1000, 1000)
    pods = {pod.name: pod.critical_because for pod in listed_pods(fake, proc, "/").list()}
    why = "holds /system.slice/sshd.service: sshd.service is in the built-in never list"
    assert why == pods["system.slice"]
    assert pods["batch.slice"] is None
    if os.geteuid() == 0:
        assert pods["user.slice"] is None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a cgroup to a user: needs root")
def test_podmans_monitors_in_a_slice_are_spared_where_root_has_named_them(fake: FakeTree, proc: Path) -> None:
    shop, users = "/machine.slice/machine-libpod_pod_1.slice", "/machine.slice/users.slice"
    monitors = [f"libpod-conmon-{digit * 64}.scope" for digit in "ab"]
    for name in (*monitors, f"libpod-{'a' * 64}.scope", "libpod-conmon-short.scope", "inner.slice"):
        fake.add(f"{shop}/{name}")
    fake.add(f"{shop}/inner.slice/{monitors[0]}")  # a kill takes whole subtrees
    fake.add(f"{users}/{monitors[0]}")
    os.chown(fake.directory(users), 1000, 1000)
    pods = {pod.cgroup: pod.spared_cgroups for pod in listed_pods(fake, proc, "/machine.slice").list()}
    assert pods == {shop: tuple(f"{shop}/{name}" for name in monitors), users: ()}


def test_a_user_does_not_protect_his_cgroup_by_its_name(fake: FakeTree, proc: Path) -> None:
    app = "/user.slice/user-1000.slice/user@1000.service/app.slice"
    for unit in ("sshd.service", "db.service", "hog.scope"):
        fake.add(f"{app}/{unit}")
    rule = PodEntry(unit="db.service")
    pods = listed_pods(fake, proc, app, never=(rule,), avoid=(rule,), priorities=((rule, 9),)).list()
    assert {(None, Preference.NONE, 0)} == {
        (pod.critical_because, pod.preference, pod.priority) for pod in pods
    }


def test_lists_place_a_pod_and_name_the_rule(fake: FakeTree, proc: Path) -> None:
    for unit in ("db.service", "web.service", "batch.service", "other.service"):
        fake.add(f"/s/{unit}")
    listing = listed_pods(
        fake,
        proc,
        "/s",
        never=(PodEntry(unit="db*"),),
        avoid=(PodEntry(cgroup="/s/web.*"),),
        prefer=(PodEntry(unit="batch.service"),),
        priorities=((PodEntry(unit="web*"), 5), (PodEntry(unit="db.service"), 2_000_000_000)),
    )
    for pods in (listing.refresh(), listing.list()):
        assert {
            "db.service": ("pods.never: unit db*", Preference.NONE, 2_000_000_000),
            "web.service": (None, Preference.AVOID, 5),
            "batch.service": (None, Preference.PREFER, 0),
            "other.service": (None, Preference.NONE, 0),
        } == {pod.name: (pod.critical_because, pod.preference, pod.priority) for pod in pods}


def test_a_priority_of_the_configuration_can_make_critical(fake: FakeTree, proc: Path) -> None:
    fake.add("/s/db.service")
    rule = PodEntry(unit="db.service")
    (pod,) = listed_pods(fake, proc, "/s", priorities=((rule, 2_000_000_000),)).list()
    assert "priority 2000000000" == pod.critical_because


def test_pod_whose_main_process_the_kernel_may_not_kill_is_never_evicted(fake: FakeTree, proc: Path) -> None:
    fake.add("/pods/a")
    runs(fake, proc, "/pods/a", "vital", -1000)
    listing = pods_of(fake, proc, "/pods")
    expected = "oom_score_adj -1000 of its main process"
    assert [expected] == [pod.critical_because for pod in listing.list()]
    assert [expected] == [pod.critical_because for pod in listing.refresh()]
    (proc / "7/oom_score_adj").write_text("-999\n")
    assert [None] == [pod.critical_because for pod in listing.list()]


def test_process_of_a_rule_counts_once_all_is_read_and_protects_until_then(
    fake: FakeTree, proc: Path
) -> None:
    fake.add("/s/db.service")
    runs(fake, proc, "/s/db.service", "backup")
    listing = listed_pods(fake, proc, "/s", never=(PodEntry(unit="db*", process="postgres"),))
    assert [True] == [pod.critical_because is not None for pod in listing.refresh()]
    assert [None] == [pod.critical_because for pod in listing.list()]
    (proc / "7/comm").write_text("postgres\n")
    assert [True] == [pod.critical_because is not None for pod in listing.list()]


def test_what_systemd_says_of_a_unit_does_not_count_where_the_operator_says_so(
    fake: FakeTree, proc: Path
) -> None:
    fake.add("/s/a")
    set_attribute(fake, "/s/a", "user.oomd_omit", b"1")
    set_attribute(fake, "/s/a", "user.reactor.priority", b"3")
    (pod,) = listed_pods(fake, proc, "/s", honours_oomd=False).list()
    assert (None, 3) == (pod.critical_because, pod.priority)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("databse.service", "databse.service matches no pod now (did you mean database.service?)"),
        ("database", "database matches no pod now (did you mean database.service?)"),
        ("xyz", "xyz matches no pod now"),
        ("database.service", None),
        ("inner.service", None),
    ],
)
def test_a_name_on_the_never_list_that_is_no_pods_is_a_problem_with_the_nearest(
    fake: FakeTree, proc: Path, name: str, why: str | None
) -> None:
    for cgroup in ("/s/database.service", "/s/web.service", "/s/a.slice/inner.service"):
        fake.add(cgroup)
    settings = Settings(pod_parents=("/s",), pod_lists=PodLists(never=(PodEntry(unit=name),)))
    pods = CgroupPods(fake.tree, settings, proc=proc)
    expected = {} if why is None else {"reactor.pods.never[0]": why}
    pods.list()
    assert expected == pods.problems
    pods.refresh()
    assert expected == pods.problems
    shutil.rmtree(fake.directory("/s/web.service"))
    pods.list()
    assert expected == pods.problems


def test_a_name_is_not_judged_before_there_is_a_pod(fake: FakeTree, proc: Path) -> None:
    fake.add("/s")
    settings = Settings(pod_parents=("/s",), pod_lists=PodLists(never=(PodEntry(unit="later.service"),)))
    pods = CgroupPods(fake.tree, settings, proc=proc)
    pods.list()
    assert {} == pods.problems
