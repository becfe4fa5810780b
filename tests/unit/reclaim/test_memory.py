"""What a reclaim asks the kernel for, on fake cgroups whose memory a test takes away."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import read_file
from reactor.model.decisions import Hold
from reactor.model.signals import Reclaim
from reactor.reclaim.memory import MemoryReclaim
from reactor.reclaim.reclaims import ReclaimReport
from reactor.reclaim.runner import Taken

MIB = 1 << 20


class Kernel:
    """Answers writes to the files of a reclaim, by the cgroup's name."""

    def __init__(self, tree, usage_file: str) -> None:
        self.tree = tree
        self.usage_file = usage_file
        self.asked: list[tuple[str, str, str]] = []
        self.gives: dict[str, int] = {}
        self.fails: dict[str, int] = {}

    def write(self, path: Path, text: str) -> None:
        name = path.parent.name
        self.asked.append((name, path.name, text))
        if name in self.fails:
            raise OSError(self.fails[name], "refused", str(path))
        usage = path.parent / self.usage_file
        left = self.gives.get(name, 0)
        freed = min(left, int(text) or left)
        self.gives[name] = left - freed
        usage.write_text(f"{int(read_file(usage)) - freed}\n")
        if freed < int(text):
            raise OSError(errno.EAGAIN, "less than that", str(path))


@pytest.fixture
def make_kernel(make_tree, monkeypatch) -> Callable[[CgroupVersion], Kernel]:
    def make(version: CgroupVersion) -> Kernel:
        tree = make_tree(version)
        for cgroup in ("/pods", "/pods/dead", "/pods/other"):
            tree.add(cgroup, usage_bytes=300 * MIB)
            (tree.tree.path(cgroup) / "cgroup.procs").write_text("")
        kernel = Kernel(
            tree.tree, "memory.current" if version is CgroupVersion.V2 else "memory.usage_in_bytes"
        )
        monkeypatch.setattr("reactor.kernel.memory_control.write_file", kernel.write)
        monkeypatch.setattr("reactor.reclaim.memory.write_file", kernel.write)
        return kernel

    return make


def run(kernel: Kernel, wanted_mib: int, *dead: str, parent: str = "/pods") -> ReclaimReport:
    asked = Hold(
        kind=Reclaim.MEMORY,
        reason="reclaim: it is",
        began_seconds=0.0,
        until_seconds=0.5,
        wanted_bytes=wanted_mib * MIB,
    )
    taken = Taken()
    reclaim = MemoryReclaim(kernel.tree, (parent,), counts_cache=True)
    for _ in reclaim.of_no_pod(asked, dead, lambda: None).takes(taken):
        pass
    return taken.report()


def test_dead_cgroups_give_first_and_what_is_then_enough_is_enough(make_kernel) -> None:
    kernel = make_kernel(CgroupVersion.V2)
    kernel.gives = {"dead": 100 * MIB, "pods": 100 * MIB}
    report = run(kernel, 40, "/pods/dead")
    assert [
        *(("dead", "memory.reclaim", str(16 * MIB)) for _ in range(2)),
        ("dead", "memory.reclaim", str(8 * MIB)),
    ] == kernel.asked
    assert (("40Mi from /pods/dead",), ()) == (report.did, report.problems)


def test_the_parents_of_pods_give_the_rest(make_kernel) -> None:
    kernel = make_kernel(CgroupVersion.V2)
    kernel.gives = {"dead": 20 * MIB, "pods": 100 * MIB}
    report = run(kernel, 40, "/pods/dead")
    assert ("20Mi from /pods/dead", "20Mi from /pods") == report.did


def test_a_live_cgroup_of_v1_is_not_emptied_and_no_parent_is(make_kernel) -> None:
    kernel = make_kernel(CgroupVersion.V1)
    (kernel.tree.path("/pods/other") / "cgroup.procs").write_text("1\n")
    kernel.gives = {"dead": 300 * MIB, "other": 300 * MIB, "pods": 300 * MIB}
    report = run(kernel, 400, "/pods/other", "/pods/dead")
    assert [("dead", "memory.force_empty", "0")] == kernel.asked
    assert ("300Mi from /pods/dead",) == report.did


@pytest.mark.parametrize("version", list(CgroupVersion))
def test_one_cgroups_error_is_a_problem_and_the_others_are_asked(make_kernel, version) -> None:
    kernel = make_kernel(version)
    kernel.fails = {"other": errno.EBUSY}
    kernel.gives = {"dead": 40 * MIB}
    report = run(kernel, 40, "/pods/other", "/pods/dead", "/pods/gone", "/..")
    assert ("40Mi from /pods/dead",) == report.did
    assert 1 == len(report.problems)
    assert "refused" in report.problems[0]


def test_a_path_that_is_not_plain_is_refused_and_a_cgroup_that_is_gone_is_nothing(make_kernel) -> None:
    kernel = make_kernel(CgroupVersion.V1)
    report = run(kernel, 40, "/pods/../etc", "/pods/gone")
    assert ([], 1) == (kernel.asked, len(report.problems))


def test_the_machine_itself_is_not_asked(make_kernel) -> None:
    kernel = make_kernel(CgroupVersion.V2)
    run(kernel, 1, parent="/")
    assert [] == kernel.asked
