"""What a killed guard has left of its kills is restored by its notes, and nothing else is touched."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reactor.act.cgroup_changes import (
    CPU,
    boost_cpu,
    forget,
    frozen,
    note,
    restore,
    restore_in,
    without_forks,
)
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker


QUOTA = {CgroupVersion.V1: "cpu.cfs_quota_us", CgroupVersion.V2: "cpu.max"}
WEIGHT = {CgroupVersion.V1: "cpu.shares", CgroupVersion.V2: "cpu.weight"}
STATE = {CgroupVersion.V1: "freezer.state", CgroupVersion.V2: "cgroup.freeze"}


@pytest.fixture
def pod(fake: FakeTree) -> FakeTree:
    """Return a tree with a pod of 20 % of a CPU, in which there is a cgroup with 10 %."""
    version = fake.tree.version
    for cgroup, quota in (("/pods/a", 20000), ("/pods/a/b", 10000)):
        fake.add(cgroup)
        fake.tree.set_cpu_quota(cgroup, quota)
        fake.file(cgroup, WEIGHT[version], "10\n", "cpu")
        fake.file(cgroup, "pids.max", "7\n", "pids")
        fake.file(cgroup, STATE[version], "THAWED\n" if version is CgroupVersion.V1 else "0\n", "freezer")
        fake.file(cgroup, "cgroup.procs", "", "freezer")
    try:
        os.setxattr(fake.directory("/pods/a"), "trusted.reactor.test", b"1")
    except OSError as error:
        pytest.skip(f"no trusted attributes here ({error}); run as root, with TMPDIR on tmpfs or ext4")
    return fake


def killed_amid_a_kill(pod: FakeTree) -> None:
    """Leave the pod as a guard does that is killed at its worst moment."""
    guard = os.fork()
    if guard == 0:
        kill = begin_to_kill(pod)
        os._exit(len(kill) - 2)
    assert (guard, 0) == os.waitpid(guard, 0)


def begin_to_kill(pod: FakeTree) -> list[tuple[AbstractContextManager[None], None]]:
    """Change all that a kill does; it is restored when what is returned is gone."""
    tree = pod.tree
    with tree.open("/pods/a", "cpu") as cpu:
        boost_cpu(cpu, tree.version)
    contexts = [
        without_forks(tree.open("/pods/a", "pids"), print),
        frozen(tree.open("/pods/a", "freezer"), tree.version, print),
    ]
    return [(context, context.__enter__()) for context in contexts]


def found(pod: FakeTree, cgroup: str = "/pods/a") -> dict[str, str]:
    version = pod.tree.version
    files = {QUOTA[version]: "cpu", WEIGHT[version]: "cpu", "pids.max": "pids", STATE[version]: "freezer"}
    return {name: pod.read(cgroup, name, controller).strip() for name, controller in files.items()}


def test_all_that_a_killed_guard_has_left_is_restored_once_and_named(pod: FakeTree) -> None:
    before = found(pod), found(pod, "/pods/a/b")
    killed_amid_a_kill(pod)
    assert found(pod) != before[0]
    assert found(pod)["pids.max"] == "0"

    lines = restore(pod.tree)

    assert (found(pod), found(pod, "/pods/a/b")) == before
    assert 5 == len(lines)
    assert any(line.endswith("/pods/a/pids.max is 7 again, as before a crash") for line in lines)
    assert [] == restore(pod.tree)


def test_what_a_guard_that_lives_has_under_way_is_left_to_it(pod: FakeTree) -> None:
    kill = begin_to_kill(pod)
    during = found(pod)
    assert during["pids.max"] == "0"
    assert [] == restore(pod.tree)
    assert during == found(pod)
    del kill


def test_what_a_killed_guard_has_left_is_not_restored_while_the_next_one_kills_there(pod: FakeTree) -> None:
    before = found(pod)
    killed_amid_a_kill(pod)
    kill = begin_to_kill(pod)
    during = found(pod)
    state = STATE[pod.tree.version]
    restore(pod.tree)
    assert [during["pids.max"], during[state]] == [found(pod)["pids.max"], found(pod)[state]]
    for context, _ in reversed(kill):
        context.__exit__(None, None, None)
    assert before["pids.max"] == found(pod)["pids.max"]


def test_what_the_operator_has_written_since_stays(pod: FakeTree) -> None:
    version = pod.tree.version
    killed_amid_a_kill(pod)
    pod.file("/pods/a", QUOTA[version], "5000 100000\n", "cpu")
    restore(pod.tree)
    assert pod.read("/pods/a", QUOTA[version], "cpu").startswith("5000")
    assert [] == restore(pod.tree)


def test_of_one_cgroup_what_is_asked_for_is_restored(pod: FakeTree) -> None:
    before = found(pod)
    killed_amid_a_kill(pod)
    with pod.tree.open("/pods/a", "cpu") as directory:
        assert 2 == len(restore_in(directory, CPU))
        assert [] == restore_in(directory, CPU)
    after = found(pod)
    assert [before[QUOTA[pod.tree.version]], "0"] == [after[QUOTA[pod.tree.version]], after["pids.max"]]


def test_what_is_no_note_is_left_alone(pod: FakeTree) -> None:
    directory = pod.directory("/pods/a", "pids")
    for name, value in (("pids.max", b"nonsense"), ("memory.max", b"1:7 5"), ("../x", b"1:7 5")):
        os.setxattr(directory, f"trusted.reactor.before.{name}", value)
    before = found(pod)
    assert [] == restore(pod.tree)
    assert before == found(pod)


def test_an_earlier_note_stands_until_it_is_forgotten(pod: FakeTree) -> None:
    with pod.tree.open("/pods/a", "pids") as directory:
        assert b"77" == note(directory, "pids.max", b"77")
        assert b"77" == note(directory, "pids.max", b"0")
        forget(directory, "pids.max")
        assert b"5" == note(directory, "pids.max", b"5")


def test_without_controllers_there_is_nothing_to_restore(make_tree: FakeTreeMaker) -> None:
    fake = make_tree(CgroupVersion.V1)
    assert [] == restore(CgroupTree(version=CgroupVersion.V1, memory_root=fake.tree.memory_root))


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


def test_limit_that_can_not_be_had_is_reported_and_the_kill_goes_on(tree: CgroupTree, tmp_path: Path) -> None:
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


def test_what_has_very_many_cgroups_is_not_frozen(tree: CgroupTree, tmp_path: Path) -> None:
    """To look for the guard itself in all of them takes long, and no other pod is killed meanwhile."""
    (tmp_path / "pod/freezer.state").write_text("THAWED\n")
    for number in range(1000):
        (tmp_path / f"pod/{number}").mkdir()
    problems: list[str] = []
    with tree.open("/pod", "pids") as pod, frozen(pod, CgroupVersion.V1, problems.append):
        assert "THAWED\n" == (tmp_path / "pod/freezer.state").read_text()
    assert ["/pod: got 'more cgroups'; accepted: 128; killing without freezing"] == problems
