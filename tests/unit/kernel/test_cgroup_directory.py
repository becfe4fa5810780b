"""Directories by descriptor, and the walk over what is below them, in trees that no path can name."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.kernel.cgroup_directory import CgroupDirectory, walk
from reactor.kernel.memory_control import BorrowedHighs
from tests.support.this_machine import lift_quotas, open_descriptors

pytestmark = pytest.mark.suite("hostile trees")

LONG = "n" * 240


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "root"
    made.mkdir()
    yield made
    subprocess.run(["rm", "-rf", "--", str(made)], check=True)  # which knows no longest path


def nest(root: Path, names: Sequence[str], *, pids: str = "") -> None:
    """Make directories below one another, the last one with these processes."""
    fd = os.open(root, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    procs = os.open("cgroup.procs", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.write(procs, pids.encode())
    os.close(procs)
    os.close(fd)


def walked(root: Path, **options: int) -> list[str]:
    refused: list[str] = []
    with (
        CgroupDirectory.open(str(root), "/") as top,
        closing(walk(top, lambda cgroup, error: refused.append(f"{cgroup}: {error}"), **options)) as found,
    ):
        cgroups = [directory.cgroup for directory in found]
    assert [] == refused
    return cgroups


def test_a_walk_goes_breadth_first_so_that_a_deep_nest_hides_no_process_beside_it(root: Path) -> None:
    for path in ("a/b/c/d", "e/f"):
        (root / path).mkdir(parents=True)
    assert ["/", *sorted(walked(root)[1:], key=lambda cgroup: cgroup.count("/"))] == walked(root)
    assert {"/", "/a", "/a/b", "/a/b/c", "/a/b/c/d", "/e", "/e/f"} == set(walked(root))


@pytest.mark.parametrize("held", [0, 1, 64])
def test_a_walk_finds_all_however_few_directories_it_may_keep_open(root: Path, held: int) -> None:
    made = {f"/{a}/{b}/{c}" for a in "abc" for b in "def" for c in "ghi"}
    for path in made:
        (root / path[1:]).mkdir(parents=True)
    before = open_descriptors()
    found = walked(root, held=held)
    assert 1 + 3 + 9 + 27 == len(found) == len(set(found))
    assert made <= set(found)
    assert before == open_descriptors()


@pytest.mark.parametrize("names", [[LONG] * 18, ["x"] * 1_100, [LONG] * 300], ids=["long", "deep", "both"])
@pytest.mark.parametrize("held", [0, 64])
def test_a_path_of_any_length_and_depth_is_walked_without_recursion_and_with_few_descriptors(
    root: Path, names: Sequence[str], held: int
) -> None:
    nest(root, ["pod", *names], pids="4711\n")
    tree = CgroupTree(version=CgroupVersion.V1, memory_root=root, cpu_root=root)
    before = open_descriptors()
    assert [4711] == tree.processes("/pod")
    assert 0 == lift_quotas(tree, "/pod")
    assert 2 + len(names) == len(walked(root, held=held))
    assert before == open_descriptors()


def test_what_daemons_left_behind_is_looked_for_in_a_nest_that_recursion_would_not_survive(
    root: Path,
) -> None:
    nest(root, ["x"] * 1_100)
    assert [] == BorrowedHighs().restore_abandoned(root)


def test_names_that_are_no_text_are_walked_as_any_other(root: Path) -> None:
    name = os.fsdecode(b"\xff\xfe\x1b[31m")
    nest(root, [name, name, "inner"], pids="12\n")
    tree = CgroupTree(version=CgroupVersion.V1, memory_root=root)
    assert [12] == tree.processes(f"/{name}")
    assert ["/", f"/{name}", f"/{name}/{name}", f"/{name}/{name}/inner"] == walked(root)


def test_of_a_list_without_end_no_more_is_read_than_shows_that_it_is_too_long(root: Path) -> None:
    pids = range(10_000, 99_999)
    (root / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    with CgroupDirectory.open(str(root), "/") as directory:
        assert 0 == directory.children_count()
        assert list(pids) == directory.processes() == directory.processes(len(pids))
        found = directory.processes(256)
    assert found == list(pids[: len(found)])
    assert 256 < len(found) < 10_000


def test_a_thousand_cgroups_side_by_side_take_no_descriptor_each(root: Path) -> None:
    for number in range(1_000):
        (root / str(number) / "inner").mkdir(parents=True)
    before, most, found = open_descriptors(), 0, 0
    with CgroupDirectory.open(str(root), "/") as top, closing(walk(top, pytest.fail, held=64)) as directories:
        for _ in directories:
            found += 1
            most = max(most, len(os.listdir("/proc/self/fd")) - before)
    assert 2_001 == found
    assert most <= 64 + 8


def test_what_is_spared_is_not_walked_and_neither_is_what_is_below(root: Path) -> None:
    for path in ("pause/inner", "pauses"):
        (root / path).mkdir(parents=True)
    with CgroupDirectory.open(str(root), "/") as top:
        assert ["/", "/pauses"] == [one.cgroup for one in walk(top, pytest.fail, spared={"/pause"})]


def test_what_can_not_be_opened_is_reported_and_the_others_are_walked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (root / name).mkdir()
    really = os.open

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "b":
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return really(path, flags, mode, dir_fd=dir_fd)

    told: list[tuple[str, int | None]] = []
    with CgroupDirectory.open(str(root), "/") as top:
        monkeypatch.setattr(os, "open", refusing)
        found = [one.cgroup for one in walk(top, lambda cgroup, error: told.append((cgroup, error.errno)))]
    assert {"/", "/a", "/c"} == set(found)
    assert [("/b", errno.ENOMEM)] == told


def test_a_walk_that_is_given_up_leaves_no_descriptor(root: Path) -> None:
    for path in ("a/b/c", "d/e/f"):
        (root / path).mkdir(parents=True)
    before = open_descriptors()
    for held in (0, 64):
        for steps in range(8):
            with (
                CgroupDirectory.open(str(root), "/") as top,
                closing(walk(top, pytest.fail, held=held)) as found,
            ):
                for _ in range(steps):
                    next(found, None)
    assert before == open_descriptors()


def test_a_directory_is_known_by_its_inode_and_a_removed_one_lists_no_process(root: Path) -> None:
    (root / "pod").mkdir()
    (root / "pod" / "cgroup.procs").write_text("5\n")
    with CgroupDirectory.open(str(root), "/pod") as held:
        assert (True, [5]) == (held.exists(), held.processes())
        os.rename(root / "pod", root / "old")
        (root / "pod").mkdir()
        (root / "pod" / "cgroup.procs").write_text("6\n")
        with CgroupDirectory.open(str(root), "/pod") as another:
            assert another.inode != held.inode
        assert [5] == held.processes()
        shutil.rmtree(root / "old")
        assert (False, []) == (held.exists(), held.processes())


@pytest.mark.parametrize("cgroup", ["/link", "/link/pod", "/file", "//", "/..", "x"])
def test_what_is_no_plain_directory_is_not_opened(root: Path, cgroup: str) -> None:
    (root / "real" / "pod").mkdir(parents=True)
    (root / "link").symlink_to(root / "real")
    (root / "file").touch()
    before = open_descriptors()
    with pytest.raises((RefusedError, NotADirectoryError)):
        CgroupDirectory.open(str(root), cgroup)
    assert before == open_descriptors()
