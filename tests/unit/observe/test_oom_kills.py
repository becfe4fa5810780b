"""In which pod the kernel has killed is read off the counters of the pods' cgroups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reactor.kernel.cgroup_files import CgroupVersion
from reactor.observe import oom_kills
from reactor.observe.oom_kills import PodOomKills
from tests.support.builders import make_pod


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
