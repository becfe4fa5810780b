"""In which pod the kernel has killed is read off the counters of the pods' cgroups."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.observe import oom_kills
from reactor.observe.oom_kills import PodOomKills
from tests.support.builders import make_pod

MIB = 1 << 20
PAGE_BYTES = os.sysconf("SC_PAGESIZE")


class Node:
    """Pods in files, whose cgroups count kills."""

    def __init__(self, fake, proc: Path) -> None:
        self._fake = fake
        self._proc = proc
        self._kills = 0
        self._in_pod: dict[str, int] = {}
        self.pods = []
        self.counts = PodOomKills(fake.tree, proc=proc)
        self.machine(0)

    def machine(self, kills: int) -> None:
        self._kills = kills
        self._proc.mkdir(exist_ok=True)
        (self._proc / "vmstat").write_text(f"nr_free_pages 5\noom_kill {kills}\nswap_ra 0\n")

    def add(self, name: str) -> None:
        pod = make_pod(name)
        self._fake.add(pod.cgroup)
        inode = self._fake.directory(pod.cgroup).stat().st_ino
        self.pods.append(replace(pod, cgroup_inode=inode))
        self.kill_in(pod.cgroup, 0)

    def kill_in(self, cgroup: str, times: int = 1) -> None:
        """Have the kernel kill in a cgroup: v1 counts there alone."""
        kills = self._in_pod[cgroup] = self._in_pod.get(cgroup, 0) + times
        name = "memory.events" if self._fake.tree.version is CgroupVersion.V2 else "memory.oom_control"
        self._fake.file(cgroup, name, f"under_oom 0\noom_kill {kills}\n")
        self.machine(self._kills + times)

    def struck(self) -> tuple[str, ...]:
        return self.counts.struck(self.pods)

    def recount(self) -> None:
        self.counts.recount(self.pods)


@pytest.fixture(params=CgroupVersion)
def node(request, make_tree, tmp_path):
    made = Node(make_tree(request.param), tmp_path / "proc")
    made.add("a")
    made.add("b")
    return made


def test_pod_whose_counter_has_risen_is_found_once(node):
    node.recount()
    node.kill_in("/node/b")
    assert node.struck() == ("uid-b",)
    assert node.struck() == ()


def test_kill_from_before_the_last_count_finds_no_pod(node):
    node.kill_in("/node/a")
    node.recount()
    node.kill_in("/node/a")
    node.recount()
    node.kill_in("/node/b")
    assert node.struck() == ("uid-b",)


def test_pod_that_has_come_since_counts_from_nothing(node):
    node.recount()
    node.add("young")
    node.kill_in("/node/young")
    assert node.struck() == ("uid-young",)


def test_nothing_is_found_before_the_first_count(node):
    node.kill_in("/node/a")
    assert node.struck() == ()


def test_counters_are_not_read_where_the_machine_has_not_killed(node):
    node.recount()
    node._fake.directory("/node/a").joinpath("memory.events").unlink(missing_ok=True)
    node._fake.directory("/node/a").joinpath("memory.oom_control").unlink(missing_ok=True)
    node.recount()
    node.kill_in("/node/a")
    assert node.struck() == ("uid-a",)


def test_machine_without_a_counter_is_no_reason_to_fail(node):
    (node._proc / "vmstat").unlink()
    node.recount()
    assert node.struck() == ()


def test_pod_whose_cgroup_was_made_again_is_another(node):
    node.recount()
    node.kill_in("/node/a")
    node.pods[0] = replace(node.pods[0], cgroup_inode=1)
    assert node.struck() == ()


def test_pod_without_a_cgroup_is_passed_over(node):
    node.recount()
    node.kill_in("/node/b")
    node.pods[0] = replace(node.pods[0], cgroup=None)
    assert node.struck() == ("uid-b",)


def test_containers_count_on_v1_as_their_pod(make_tree, tmp_path):
    node = Node(make_tree(CgroupVersion.V1), tmp_path / "proc")
    node.add("a")
    for name in ("one", "two"):
        node._fake.add(f"/node/a/{name}")
        node.kill_in(f"/node/a/{name}", 0)
    node.recount()
    node.kill_in("/node/a/two")
    assert node.struck() == ("uid-a",)


def test_pods_beyond_what_is_read_in_one_go_count_as_not_struck(monkeypatch, node):
    monkeypatch.setattr(oom_kills, "_MOST_CGROUPS", 1)
    node.recount()
    monkeypatch.undo()
    node.kill_in("/node/a")
    node.kill_in("/node/b")
    assert node.struck() == ("uid-a",)
    node.kill_in("/node/b")
    assert node.struck() == ("uid-b",)


@pytest.fixture
def processes(node):
    """Return what puts processes of so many MiB each into a pod's cgroup, from pid 100 on."""

    def put(cgroup: str, *mib: int) -> None:
        pids = range(100, 100 + len(mib))
        for pid, size in zip(pids, mib, strict=True):
            (node._proc / str(pid)).mkdir(exist_ok=True)
            (node._proc / str(pid) / "statm").write_text(f"9999999 {size * MIB // PAGE_BYTES} 7 1 0 5 0\n")
        node._fake.file(cgroup, "cgroup.procs", "".join(f"{pid}\n" for pid in pids))

    return put


def most_mib(node, held_mib: int) -> float:
    return node.counts.most_of_one_process(node.pods[0], held_mib * MIB) / MIB


def test_most_that_one_process_holds_is_what_the_largest_does(node, processes):
    processes("/node/a", 10, 40, 30)
    assert 40 == most_mib(node, 80)


def test_what_the_listed_processes_do_not_hold_may_be_one_that_is_exiting(node, processes):
    processes("/node/a", 10, 20)
    assert 270 == most_mib(node, 300)
    processes("/node/a")
    assert 300 == most_mib(node, 300)


def test_one_process_holds_no_more_than_all_do(node, processes):
    processes("/node/a", 100)  # page cache that it has mapped, and other pods have, too
    assert 60 == most_mib(node, 60)


def test_of_a_pod_of_very_many_processes_the_first_are_read(monkeypatch, node, processes):
    processes("/node/a", 8, 12, 90)
    monkeypatch.setattr(oom_kills, "_MOST_PROCESSES", 2)
    assert 12 == most_mib(node, 400)


def test_process_that_has_gone_holds_nothing(node, processes):
    processes("/node/a", 10, 20)
    (node._proc / "100" / "statm").unlink()
    assert 30 == most_mib(node, 50)


def test_of_a_pod_that_can_not_be_read_one_process_may_hold_all(node, processes):
    processes("/node/a", 10)
    for changed in ({"cgroup_inode": 1}, {"cgroup": None}):
        pod = replace(node.pods[0], **changed)
        assert 50 * MIB == node.counts.most_of_one_process(pod, 50 * MIB)
