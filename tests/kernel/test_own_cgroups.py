"""The guard divides a delegated cgroup between itself and its steward, and puts it back; on the real kernel.

Where the memory controller is on v1, the moves are made in the v2 hierarchy beside it, with the one
controller that distributes there (hugetlb).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from tests.support.this_machine import cgroup_tree, remove_cgroup
from tests.support.waiting import eventually

UNIT: Final = Path(__file__).parents[2] / "deploy" / "reactor.service"
UNIFIED: Final = Path("/sys/fs/cgroup/unified")
MIB: Final = 1 << 20
# Enters the cgroup that is given, then runs each line that it is sent, and says what came of it.
GUARD: Final = """
import json, os, sys
from pathlib import Path
from reactor.guard.own_cgroups import OwnCgroups
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
root, start, controller, parents = sys.argv[1:]
tree = CgroupTree(version=CgroupVersion.V2, memory_root=Path(root), pids_root=Path(root))
Path(root + start, "cgroup.procs").write_text(str(os.getpid()))
cgroups = OwnCgroups(tree, parents.split(), controller=controller)
for line in sys.stdin:
    answer = eval(line)
    own = [one[3:-1] for one in open("/proc/self/cgroup") if one.startswith("0::")]
    said = {"own": own[0], "answer": answer, **cgroups.document()}
    print(json.dumps(said), flush=True)
"""


class Unit:
    """A cgroup as systemd makes it for a delegated service, and a guard that starts in it."""

    def __init__(self, tree: CgroupTree, controller: str, name: str) -> None:
        self.root, self.controller = tree.memory_root, controller
        self.cgroup = f"/{name}"
        self.directory = self.root / name
        self._children: list[subprocess.Popen[str]] = []
        self.directory.mkdir()
        os.setxattr(self.directory, "user.delegate", b"1")

    def start_guard(self, start: str = "", parents: str = "") -> Callable[[str], dict[str, Any]]:
        """Return what has a guard, which starts in the cgroup or one below it, run a line."""
        arguments = [str(self.root), self.cgroup + start, self.controller, parents]
        child = self._started(sys.executable, "-c", GUARD, *arguments)
        assert child.stdin
        assert child.stdout

        def say(line: str) -> dict[str, Any]:
            assert child.stdin
            assert child.stdout
            child.stdin.write(f"{line}\n")
            child.stdin.flush()
            answer: dict[str, Any] = json.loads(child.stdout.readline())
            return answer

        return say

    def start_steward(self) -> int:
        """Return the process id of one that waits."""
        return self._started("sleep", "1000").pid

    def _started(self, *command: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._children.append(child)
        return child

    def parts(self) -> set[str]:
        """Return the cgroups below."""
        return {one.name for one in self.directory.iterdir() if one.is_dir()}

    def distributed(self) -> str:
        return (self.directory / "cgroup.subtree_control").read_text().strip()

    def end(self) -> None:
        for child in self._children:
            child.kill()
            child.communicate()
        for name in self.parts():
            remove_cgroup(self.directory / name)
        remove_cgroup(self.directory)


@pytest.fixture(scope="module")
def hierarchy() -> Iterator[tuple[CgroupTree, str]]:
    """Return a v2 hierarchy, and a controller that it distributes to the cgroups below its root."""
    tree, controller = cgroup_tree(), "memory"
    if tree.version is CgroupVersion.V1:
        tree = CgroupTree(version=CgroupVersion.V2, memory_root=UNIFIED, pids_root=UNIFIED)
        controller = "hugetlb"
    given = tree.memory_root / "cgroup.subtree_control"
    available = tree.memory_root / "cgroup.controllers"
    if not available.exists() or controller not in available.read_text().split():
        pytest.skip(f"needs cgroup v2 with the {controller} controller: boot with cgroup_no_v1={controller}")
    is_given = controller in given.read_text().split()
    given.write_text(f"+{controller}")
    yield tree, controller
    if not is_given:
        given.write_text(f"-{controller}")


@pytest.fixture
def unit(hierarchy: tuple[CgroupTree, str]) -> Iterator[Unit]:
    made = Unit(*hierarchy, f"reactor-test-{os.getpid()}.service")
    yield made
    made.end()


@pytest.fixture
def limited(unit: Unit) -> Unit:
    """Return the unit with limits as those of deploy/reactor.service."""
    if unit.controller != "memory":
        pytest.skip("the memory controller is on v1; boot with systemd.unified_cgroup_hierarchy=1")
    for name, text in {"memory.max": "256M", "memory.min": "48M", "pids.max": "96"}.items():
        with suppress(FileNotFoundError):  # the pids controller is not given
            (unit.directory / name).write_text(text)
    return unit


def test_guard_and_steward_live_apart_and_everything_is_put_back(unit: Unit) -> None:
    guard, steward = unit.start_guard(), unit.start_steward()
    before = guard("None")
    made = guard(f"cgroups.make(), cgroups.adopt({steward})")
    assert (unit.cgroup, "rlimit") == (before["own"], before["limited_by"])
    assert (f"{unit.cgroup}/guard", "cgroup") == (made["own"], made["limited_by"])
    assert (f"{unit.cgroup}/steward", None) == (made["cgroup"], made["because"])
    assert f"0::{unit.cgroup}/steward" in Path(f"/proc/{steward}/cgroup").read_text().splitlines()
    assert {"guard", "steward"} == unit.parts()
    assert unit.controller in unit.distributed()

    os.kill(steward, 9)
    eventually(lambda: not (unit.directory / "steward/cgroup.procs").read_text(), "the steward's end")
    removed = guard("cgroups.remove(), cgroups.remove()")
    assert (unit.cgroup, "rlimit") == (removed["own"], removed["limited_by"])
    assert (set(), "") == (unit.parts(), unit.distributed())


def test_every_next_steward_has_the_same_cgroup(unit: Unit) -> None:
    guard = unit.start_guard()
    for steward in (unit.start_steward(), unit.start_steward()):
        made = guard(f"cgroups.make(), cgroups.adopt({steward})")
        assert (f"{unit.cgroup}/guard", "cgroup") == (made["own"], made["limited_by"])
        assert str(steward) in (unit.directory / "steward/cgroup.procs").read_text().split()


def test_what_a_killed_guard_has_left_is_used_again(unit: Unit) -> None:
    for name in ("guard", "steward"):
        (unit.directory / name).mkdir()
    made = unit.start_guard()(f"cgroups.make(), cgroups.adopt({unit.start_steward()})")
    assert (f"{unit.cgroup}/guard", "cgroup") == (made["own"], made["limited_by"])


def test_guard_that_starts_in_its_place_is_not_moved(unit: Unit) -> None:
    (unit.directory / "guard").mkdir()
    guard = unit.start_guard("/guard")
    made = guard(f"cgroups.make(), cgroups.adopt({unit.start_steward()})")
    assert (f"{unit.cgroup}/guard", "cgroup") == (made["own"], made["limited_by"])
    assert f"{unit.cgroup}/guard" == guard("cgroups.remove()")["own"]
    assert "" == unit.distributed()


def test_unit_in_which_another_process_lives_is_left_as_it_is(unit: Unit) -> None:
    other = unit.start_steward()
    (unit.directory / "cgroup.procs").write_text(str(other))
    refused = unit.start_guard()(f"cgroups.make(), cgroups.adopt({unit.start_steward()})")
    assert (unit.cgroup, "rlimit") == (refused["own"], refused["limited_by"])
    assert "other processes" in refused["because"]
    assert (set(), "") == (unit.parts(), unit.distributed())


def test_unit_that_is_not_delegated_is_left_as_it_is(unit: Unit) -> None:
    os.removexattr(unit.directory, "user.delegate")
    refused = unit.start_guard()("cgroups.make()")
    assert (unit.cgroup, "rlimit") == (refused["own"], refused["limited_by"])
    assert "Delegate=" in refused["because"]
    assert set() == unit.parts()


def test_parent_of_pods_is_not_divided(unit: Unit) -> None:
    refused = unit.start_guard(parents=unit.cgroup)("cgroups.make()")
    assert (unit.cgroup, "rlimit") == (refused["own"], refused["limited_by"])
    assert "parent of pods" in refused["because"]
    assert set() == unit.parts()


def test_what_was_begun_is_undone_where_the_kernel_refuses_the_rest(unit: Unit) -> None:
    (unit.directory / "cgroup.max.descendants").write_text("1")
    refused = unit.start_guard()(f"cgroups.make(), cgroups.adopt({unit.start_steward()})")
    assert (unit.cgroup, "rlimit") == (refused["own"], refused["limited_by"])
    assert "can't be divided" in refused["because"]
    assert (set(), "") == (unit.parts(), unit.distributed())


def test_guard_is_moved_back_where_the_controller_is_refused(unit: Unit) -> None:
    other = unit.start_steward()
    guard = unit.start_guard()
    # It comes between the check and the division, as a process that systemd starts there would.
    enters = f"Path({str(unit.directory / 'cgroup.procs')!r}).write_text('{other}')"
    refused = guard(f"setattr(cgroups, '_check', lambda *_: {enters}), cgroups.make()")
    assert (unit.cgroup, "rlimit") == (refused["own"], refused["limited_by"])
    assert "cgroup.subtree_control" in refused["because"]
    assert set() == unit.parts()


def test_next_guard_can_be_started_though_the_last_was_killed_and_its_steward_does_not_end(
    unit: Unit,
) -> None:
    """The steward stays because it waits for a disk; the unit's ExecStopPost= is run as systemd runs it."""
    guard = unit.start_guard()
    guard(f"cgroups.make(), cgroups.adopt({unit.start_steward()})")
    os.kill(guard("os.getpid()")["answer"], 9)
    next_guard = unit.start_steward()
    with pytest.raises(OSError, match="busy"):
        (unit.directory / "cgroup.procs").write_text(str(next_guard))

    (line,) = (one for one in UNIT.read_text().splitlines() if one.startswith("ExecStopPost=-/bin/sh"))
    script = re.fullmatch(r"ExecStopPost=-/bin/sh -c '(.*)'", line)
    assert script
    text = script[1].replace("$$", "$").replace("%%", "%")
    text = text.replace("/sys/fs/cgroup", str(unit.root)).replace("memory", unit.controller)
    if unit.controller != "memory":
        text = text.replace(" -pids", "")
    control = unit.directory / ".control"
    control.mkdir()
    enter = f'echo $$ >"{control}/cgroup.procs"; '
    subprocess.run(["/bin/sh", "-c", enter + text], check=True)

    (unit.directory / "cgroup.procs").write_text(str(next_guard))
    assert "" == unit.distributed()


def test_steward_has_the_units_limits_less_what_is_the_guards(limited: Unit) -> None:
    made = limited.start_guard()(f"cgroups.make(), cgroups.adopt({limited.start_steward()})")
    assert ("cgroup", 192 * MIB) == (made["limited_by"], made["limit_bytes"])
    assert f"{192 * MIB}\n" == (limited.directory / "steward/memory.max").read_text()
    assert f"{48 * MIB}\n" == (limited.directory / "guard/memory.min").read_text()
    if "pids" in limited.distributed().split():
        assert "64\n" == (limited.directory / "steward/pids.max").read_text()


def test_steward_that_takes_too_much_is_killed_and_the_guard_is_not(limited: Unit) -> None:
    (limited.directory / "memory.swap.max").write_text("0")
    guard = limited.start_guard()
    hog = limited._started(sys.executable, "-c", "input(); taken = b'x' * (300 << 20)")
    assert "cgroup" == guard(f"cgroups.make(), cgroups.adopt({hog.pid})")["limited_by"]
    hog.communicate("\n", timeout=60)
    assert -9 == hog.returncode
    assert "cgroup" == guard("None")["limited_by"]
