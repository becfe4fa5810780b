import os
from pathlib import Path

import pytest

from reactor.act.freezer import frozen, without_forks
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion


@pytest.fixture
def tree(tmp_path: Path) -> CgroupTree:
    (tmp_path / "pod").mkdir()
    return CgroupTree(version=CgroupVersion.V1, memory_root=tmp_path, pids_root=tmp_path)


def test_no_process_forks_meanwhile_and_the_limit_is_back_afterwards(
    tree: CgroupTree, tmp_path: Path
) -> None:
    limit, problems = tmp_path / "pod/pids.max", list[str]()
    limit.write_text("max\n")
    with tree.open("/pod", "pids") as pod, without_forks(pod, problems.append):
        assert limit.read_text().startswith("0")
    assert limit.read_text().startswith("max")
    assert problems == []


def test_limit_is_back_after_a_failure_too(tree: CgroupTree, tmp_path: Path) -> None:
    limit = tmp_path / "pod/pids.max"
    limit.write_text("77\n")
    with pytest.raises(OSError, match="full"), tree.open("/pod", "pids") as pod, without_forks(pod, print):
        raise OSError(28, "full")
    assert limit.read_text().startswith("77")


def test_cgroup_that_is_gone_is_no_problem(tree: CgroupTree, tmp_path: Path) -> None:
    problems: list[str] = []
    with tree.open("/pod", "pids") as pod:
        (tmp_path / "pod").rmdir()
        with without_forks(pod, problems.append):
            pass
    assert problems == []


def test_limit_that_can_not_be_had_is_told_and_the_kill_goes_on(tree: CgroupTree, tmp_path: Path) -> None:
    (tmp_path / "pod/pids.max").mkdir()
    problems: list[str] = []
    with tree.open("/pod", "pids") as pod, without_forks(pod, problems.append):
        problems.append("went on")
    assert problems[1:] == ["went on"]
    assert problems[0].endswith("Is a directory; killing among forks")


def test_without_a_pids_controller_nothing_is_touched() -> None:
    told: list[str] = []
    with without_forks(None, told.append):
        told.append("went on")
    assert told == ["went on"]


def test_a_limit_that_a_killed_guard_has_left_at_0_is_not_taken_for_the_pods(
    tree: CgroupTree, tmp_path: Path
) -> None:
    limit = tmp_path / "pod/pids.max"
    limit.write_text("77\n")
    with tree.open("/pod", "pids") as pod:
        first = without_forks(pod, print)
        first.__enter__()  # and never left: killed
        with without_forks(pod, print):
            pass
    assert limit.read_text().startswith("77")


def test_of_a_kill_that_ended_no_note_is_left(tree: CgroupTree, tmp_path: Path) -> None:
    (tmp_path / "pod/pids.max").write_text("77\n")
    (tmp_path / "pod/freezer.state").write_text("THAWED\n")
    (tmp_path / "pod/cgroup.procs").touch()
    with (
        tree.open("/pod", "pids") as pod,
        without_forks(pod, print),
        frozen(pod, CgroupVersion.V1, print),
    ):
        assert 2 == len(os.listxattr(tmp_path / "pod"))
    assert [] == os.listxattr(tmp_path / "pod")
