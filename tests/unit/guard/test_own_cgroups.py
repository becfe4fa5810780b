"""What is never divided, and what a division writes; the moves are the real kernel's (tests/kernel)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reactor.guard.own_cgroups import OwnCgroups
from reactor.kernel.cgroup import CgroupVersion
from reactor.processes import STEWARD_DATA_BYTES
from tests.unit.conftest import FakeTree, FakeTreeMaker

MIB = 1 << 20
UNIT = "/system.slice/reactor.service"


class House:
    """A unit in files, as systemd makes it; this process is what `proc` and the unit show."""

    def __init__(self, fake: FakeTree, directory: Path) -> None:
        self.fake = fake
        self.proc = directory / "proc"
        (self.proc / "self").mkdir(parents=True)

    def add(self, cgroup: str, *, own: bool = False, delegated: bool = False, **files: str) -> None:
        """Make a cgroup as the kernel would, with these files besides."""
        self.fake.add(cgroup)
        defaults = {"cgroup.controllers": "memory pids\n", "cgroup.subtree_control": "\n"}
        for name, text in {**defaults, **files}.items():
            self.fake.file(cgroup, name.replace("_m", ".m"), text)
        if delegated:
            os.setxattr(self.fake.directory(cgroup), "user.delegate", b"1")
        if own:
            self.live_in(cgroup)

    def live_in(self, cgroup: str) -> None:
        number = "0:" if self.fake.tree.version is CgroupVersion.V2 else "4:memory"
        (self.proc / "self/cgroup").write_text(f"{number}:{cgroup}\n")
        self.fake.file(cgroup, "cgroup.procs", f"{os.getpid()}\n")

    def made(self, *parents: str) -> OwnCgroups:
        cgroups = OwnCgroups(self.fake.tree, parents, proc=self.proc)
        cgroups.make()
        cgroups.adopt(4711)
        return cgroups

    def written(self, cgroup: str, name: str) -> str:
        return self.fake.read(cgroup, name).strip()


@pytest.fixture
def house(make_tree: FakeTreeMaker, tmp_path: Path) -> House:
    return House(make_tree(CgroupVersion.V2), tmp_path)


@pytest.fixture
def unit(house: House) -> House:
    """Return a unit with the limits that deploy/reactor.service has, and room for the two parts of it."""
    limits = {"memory_max": f"{256 * MIB}\n", "memory_min": f"{48 * MIB}\n", "pids_max": "96\n"}
    house.add(UNIT, own=True, delegated=True, **limits)
    for name in ("guard", "steward"):
        house.add(f"{UNIT}/{name}")
    return house


def assert_rlimit(cgroups: OwnCgroups, because: str) -> None:
    document = cgroups.document()
    assert ("rlimit", STEWARD_DATA_BYTES, None) == tuple(
        document[name] for name in ("limited_by", "limit_bytes", "cgroup")
    )
    assert because in document["because"]


def test_steward_gets_what_the_unit_has_but_for_the_guards_part(unit: House) -> None:
    expected = {
        "limited_by": "cgroup",
        "limit_bytes": 192 * MIB,
        "cgroup": f"{UNIT}/steward",
        "because": None,
    }
    assert expected == unit.made("/tenants.slice").document()
    assert str(os.getpid()) == unit.written(f"{UNIT}/guard", "cgroup.procs")
    assert "4711" == unit.written(f"{UNIT}/steward", "cgroup.procs")
    assert str(192 * MIB) == unit.written(f"{UNIT}/steward", "memory.max")
    assert "64" == unit.written(f"{UNIT}/steward", "pids.max")
    assert str(48 * MIB) == unit.written(f"{UNIT}/guard", "memory.min")
    assert "+pids" == unit.written(UNIT, "cgroup.subtree_control")


@pytest.mark.parametrize(
    ("limit", "expected_mib"), [("max", 256), (str(512 * MIB), 448), (str(64 * MIB), 32)]
)
def test_stewards_bound_follows_the_units(unit: House, limit: str, expected_mib: int) -> None:
    unit.fake.file(UNIT, "memory.max", f"{limit}\n")
    assert expected_mib * MIB == unit.made().document()["limit_bytes"]


def test_tasks_are_divided_only_where_the_unit_has_the_controller_and_a_limit(unit: House) -> None:
    unit.fake.file(UNIT, "cgroup.controllers", "memory\n")
    assert "cgroup" == unit.made().document()["limited_by"]
    assert "max" == unit.written(f"{UNIT}/steward", "pids.max")
    unit.fake.file(UNIT, "cgroup.controllers", "memory pids\n")
    unit.fake.file(UNIT, "pids.max", "max\n")
    assert "cgroup" == unit.made().document()["limited_by"]
    assert "max" == unit.written(f"{UNIT}/steward", "pids.max")


def test_guard_that_starts_in_its_place_divides_the_unit_above(unit: House) -> None:
    unit.fake.file(UNIT, "cgroup.procs", "")
    unit.live_in(f"{UNIT}/guard")
    assert f"{UNIT}/steward" == unit.made().document()["cgroup"]


def test_steward_that_is_not_adopted_is_said_to_have_the_rlimit_and_the_next_may_be(unit: House) -> None:
    procs = unit.fake.directory(f"{UNIT}/steward") / "cgroup.procs"
    procs.unlink()
    cgroups = unit.made()
    assert_rlimit(cgroups, "it can't be moved")
    procs.touch()
    cgroups.adopt(4712)
    assert "cgroup" == cgroups.document()["limited_by"]


@pytest.mark.parametrize("name", ["guard/cgroup.procs", "cgroup.subtree_control", "steward/memory.max"])
def test_each_step_that_is_refused_leaves_the_rlimit(unit: House, name: str) -> None:
    (unit.fake.directory(UNIT) / name).unlink()
    assert_rlimit(unit.made(), "can't be divided")


def test_cgroup_v1_is_not_divided(make_tree: FakeTreeMaker, tmp_path: Path) -> None:
    house = House(make_tree(CgroupVersion.V1), tmp_path)
    house.add(UNIT, own=True, delegated=True)
    assert_rlimit(house.made(), "cgroup v1")


def test_root_of_a_tree_is_not_divided(house: House) -> None:
    """In a container it is where its namespace begins, which the mounted tree need not be."""
    house.add("/", own=True, delegated=True)
    assert_rlimit(house.made(), "no cgroup of its own")


@pytest.mark.parametrize(
    "cgroup",
    [
        "/user.slice/user-0.slice/session-1.scope",
        "/kubepods.slice/cri-containerd-0123.scope",
        "/user.slice/user-1000.slice/user@1000.service/app.slice",
    ],
)
def test_cgroup_that_is_no_service_is_not_divided_though_it_is_delegated(house: House, cgroup: str) -> None:
    house.add(cgroup, own=True, delegated=True)
    assert_rlimit(house.made(), "no service")
    assert not (house.fake.directory(cgroup) / "guard").exists()


def test_service_that_is_not_delegated_is_not_divided(unit: House) -> None:
    os.removexattr(unit.fake.directory(UNIT), "user.delegate")
    assert_rlimit(unit.made(), "Delegate=")


def test_service_with_other_processes_is_not_divided(unit: House) -> None:
    unit.fake.file(UNIT, "cgroup.procs", f"{os.getpid()}\n1\n")
    assert_rlimit(unit.made(), "other processes")


def test_service_of_the_same_name_in_a_tree_that_is_not_ours_is_not_divided(unit: House) -> None:
    unit.fake.file(UNIT, "cgroup.procs", "1\n")
    assert_rlimit(unit.made(), "other processes")


def test_service_without_the_memory_controller_is_not_divided(unit: House) -> None:
    unit.fake.file(UNIT, "cgroup.controllers", "pids\n")
    assert_rlimit(unit.made(), "no memory controller")


def test_service_that_is_a_parent_of_pods_is_not_divided(unit: House) -> None:
    assert_rlimit(unit.made(UNIT), "parent of pods")


def test_a_unit_that_a_pattern_of_parents_matches_is_not_divided(unit: House) -> None:
    assert_rlimit(unit.made("/system.slice/*.service"), "parent of pods")


def test_cgroup_that_cannot_be_read_is_not_divided(unit: House) -> None:
    (unit.fake.directory(UNIT) / "cgroup.procs").unlink()
    assert_rlimit(unit.made(), "cgroup.procs")
