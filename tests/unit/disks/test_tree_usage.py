"""Trees on this machine's own filesystem, against du."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reactor.disks.tree import DirectoryBudget, TreeUsage, open_directory
from reactor.model.pods import FilesystemUsage
from tests.support.this_machine import open_descriptors

pytestmark = pytest.mark.suite("hostile trees")

PLENTY = 10_000


def du(path: Path) -> FilesystemUsage:
    """Return what du counts; -x: without what is mounted below."""

    def figure(*options: str) -> int:
        command = ["du", "-sx", *options, str(path)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])

    return FilesystemUsage(used_bytes=figure("-B1"), inodes_used=figure("--inodes"))


def looked(tree: TreeUsage) -> FilesystemUsage | None:
    tree.count(lambda: None)
    return tree.usage


def fill(root: Path, directories: int, files: int) -> None:
    for number in range(directories):
        directory = root / f"{number % 7}" / f"{number}"
        directory.mkdir(parents=True)
        for name in range(files):
            (directory / f"{name}").write_bytes(b"x" * 100 * name)


@pytest.mark.parametrize("remembered", [0, 3, PLENTY])
def test_it_counts_as_du_does_whatever_is_remembered(tmp_path: Path, remembered: int) -> None:
    fill(tmp_path, 20, 5)
    assert du(tmp_path) == looked(TreeUsage(str(tmp_path), DirectoryBudget(remembered)))


def test_hard_links_count_once_also_between_directories(tmp_path: Path) -> None:
    fill(tmp_path, 3, 0)
    (tmp_path / "one").write_bytes(b"x" * 100_000)
    for number in range(3):
        os.link(tmp_path / "one", tmp_path / f"{number}" / "two")
    usage = looked(TreeUsage(str(tmp_path), DirectoryBudget(PLENTY)))
    assert du(tmp_path) == usage
    assert usage.used_bytes < 200_000


def test_too_many_hard_links_have_their_share_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reactor.disks.tree._LINKS_REMEMBERED", 2)
    for number in range(10):
        (tmp_path / f"{number}").write_bytes(b"x" * 10_000)
        os.link(tmp_path / f"{number}", tmp_path / f"{number}.link")
    counted = looked(TreeUsage(str(tmp_path), DirectoryBudget(PLENTY)))
    # Of the last that was remembered the other name may have its share.
    assert abs(du(tmp_path).inodes_used - counted.inodes_used) <= 1


def test_holes_take_nothing(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    usage = looked(TreeUsage(str(tmp_path), DirectoryBudget(PLENTY)))
    assert du(tmp_path) == usage
    assert usage.used_bytes < 1 << 20


def test_symlinks_are_counted_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "big").write_bytes(b"x" * 1_000_000)
    (tmp_path / "tree" / "file").symlink_to(tmp_path / "big")
    (tmp_path / "tree" / "directory").symlink_to("/usr")
    usage = looked(TreeUsage(str(tmp_path / "tree"), DirectoryBudget(PLENTY)))
    assert du(tmp_path / "tree") == usage
    assert usage.inodes_used == 3


def test_devices_sockets_and_pipes_take_an_inode(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert 2 == looked(TreeUsage(str(tmp_path), DirectoryBudget(PLENTY))).inodes_used


def test_second_look_sees_what_came_grew_shrank_and_went(tmp_path: Path) -> None:
    fill(tmp_path, 20, 5)
    tree = TreeUsage(str(tmp_path), DirectoryBudget(PLENTY))
    looked(tree)
    (tmp_path / "new").write_bytes(b"x" * 50_000)
    (tmp_path / "0" / "0" / "1").write_bytes(b"x" * 1_000_000)
    (tmp_path / "1" / "1" / "4").write_bytes(b"")
    subprocess.run(["rm", "-r", tmp_path / "2"], check=True)
    (tmp_path / "3" / "deeper").mkdir()
    assert du(tmp_path) == looked(tree)


def age(root: Path) -> None:
    """Make everything look as if it had been written long ago."""
    for directory, _, names in os.walk(root, topdown=False):
        for name in (*names, "."):
            os.utime(os.path.join(directory, name), (1, 1))


def in_large_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reactor.disks.tree._LARGE_INODES", 10)
    monkeypatch.setattr("reactor.disks.tree._LATELY_NS", -(10**18))  # a change just made is none


def test_in_a_large_tree_a_file_that_grows_is_seen_within_sixteen_looks_and_a_new_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_large_tree(monkeypatch)
    fill(tmp_path, 40, 5)
    tree = TreeUsage(str(tmp_path), DirectoryBudget(PLENTY))
    for _ in range(8):
        looked(tree)
    (tmp_path / "3" / "3" / "new").write_bytes(b"x" * 50_000)
    assert du(tmp_path) == looked(tree)
    before = tree.usage
    with (tmp_path / "0" / "0" / "1").open("ab") as file:
        file.write(b"x" * 1_000_000)
    seen_after = next((look for look in range(1, 18) if looked(tree) != before), None)
    assert seen_after is not None
    assert du(tmp_path) == tree.usage


def test_in_a_large_tree_files_at_rest_are_mostly_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_large_tree(monkeypatch)
    fill(tmp_path, 40, 5)
    tree, listed = TreeUsage(str(tmp_path), DirectoryBudget(PLENTY)), []

    def noting(name: bytes, at_fd: int) -> int:
        listed.append(name)
        return open_directory(name, at_fd)

    for _ in range(40):
        looked(tree)
    most = 0
    with monkeypatch.context() as patched:
        patched.setattr("reactor.disks.tree.open_directory", noting)
        for _ in range(16):
            before = len(listed)
            looked(tree)
            most = max(most, len(listed) - before)
    assert len(listed) == 48  # each directory comes round once,
    assert most <= 16  # and not all of them at one time


def test_directories_that_are_gone_give_their_room_back(tmp_path: Path) -> None:
    fill(tmp_path, 20, 0)
    budget = DirectoryBudget(30)
    tree = TreeUsage(str(tmp_path), budget)
    looked(tree)
    subprocess.run(["rm", "-r", *tmp_path.iterdir()], check=True)
    looked(tree)
    tree.forget()
    taken = sum(budget.take() for _ in range(40))
    assert 30 == taken


def test_nesting_deeper_than_a_path_may_be_long_is_counted(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 200, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    tree = TreeUsage(str(tmp_path), DirectoryBudget(PLENTY))
    try:
        assert 62 == looked(tree).inodes_used
        assert 62 == looked(tree).inodes_used
    finally:
        subprocess.run(["rm", "-rf", tmp_path / ("d" * 200)], check=True)


def test_missing_tree_is_an_error_and_a_look_given_up_leaves_no_descriptor(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        looked(TreeUsage(str(tmp_path / "nowhere"), DirectoryBudget(PLENTY)))
    fill(tmp_path, 5, 1)
    before = open_descriptors()
    with pytest.raises(RuntimeError):
        TreeUsage(str(tmp_path), DirectoryBudget(PLENTY)).count(_raise_at(3))
    assert before == open_descriptors()


def _raise_at(count: int) -> Callable[[], None]:
    left = [count]

    def pace() -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise RuntimeError

    return pace


def test_first_look_that_is_given_up_counts_as_far_as_it_came(tmp_path: Path) -> None:
    fill(tmp_path, 20, 5)
    tree = TreeUsage(str(tmp_path), DirectoryBudget(PLENTY))
    with contextlib.suppress(RuntimeError):
        tree.count(_raise_at(10))
    assert not tree.complete
    assert 0 < tree.usage.inodes_used < du(tmp_path).inodes_used


def test_tree_that_changes_all_the_time_is_survived(tmp_path: Path) -> None:
    fill(tmp_path, 10, 5)
    over = threading.Event()

    def churn() -> None:
        number = 0
        while not over.is_set():
            number += 1
            directory = tmp_path / f"churn{number % 5}"
            with contextlib.suppress(OSError):
                directory.mkdir()
                (directory / "file").write_bytes(b"x" * 10_000)
                (directory / "file").unlink()
                directory.rmdir()
                directory.symlink_to("/usr")
                directory.unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        tree = TreeUsage(str(tmp_path), DirectoryBudget(PLENTY))
        for _ in range(200):
            looked(tree)
    finally:
        over.set()
        thread.join()
    subprocess.run(["rm", "-rf", *tmp_path.glob("churn*")], check=True)
    assert du(tmp_path) == looked(tree)


def make_chain(at_path: Path, levels: int, name: str = "d") -> None:
    at = os.open(at_path, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=at)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


def test_opens_grow_with_the_directories_and_not_with_their_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", tmp_path / "d"], check=True))
    make_chain(tmp_path, 1000)
    opened = [0]
    real_open, real_stat = os.open, os.stat

    def counting_open(path: bytes | str, *arguments: Any, **named: Any) -> int:
        opened[0] += 1 + os.fsencode(path).count(b"/")
        return real_open(path, *arguments, **named)

    def counting_stat(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        opened[0] += 1 + (os.fsencode(path).count(b"/") if isinstance(path, bytes) else 0)
        return real_stat(path, *arguments, **named)

    tree = TreeUsage(str(tmp_path), DirectoryBudget(PLENTY))
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", counting_open)
        patched.setattr(os, "stat", counting_stat)
        looked(tree)
    assert 2001 == tree.usage.inodes_used
    # A path is at most 512 bytes long: 256 names of two bytes, opened and looked at; the rest one by one.
    assert opened[0] < 256 * 256 + 10 * 1000


def test_deep_and_wide_tree_is_counted_also_where_the_walk_rests_at_each_step(tmp_path: Path) -> None:
    at = tmp_path
    for level in range(40):
        for number in range(30):
            (at / f"{level}-{number}").mkdir()
            (at / f"{level}-{number}" / "file").write_bytes(b"x" * 5000)
        at /= f"{level}-17"
    for remembered in (0, 5, PLENTY):
        tree = TreeUsage(str(tmp_path), DirectoryBudget(remembered))
        tree.count(tree.pause)
        assert du(tmp_path) == tree.usage


def test_directory_of_many_chunks_is_counted(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"{number:04}{'x' * 60}").touch()
    for number in range(1500):
        (tmp_path / f"d{number:04}{'x' * 60}").mkdir()
    for remembered in (0, 700, PLENTY):
        assert du(tmp_path) == looked(TreeUsage(str(tmp_path), DirectoryBudget(remembered)))


def test_names_of_any_bytes_are_counted(tmp_path: Path) -> None:
    for name in (b"\xff\xfe", b"new\nline", b"\x1b[2J", b"x" * 255, "ä".encode() * 127):
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
        os.close(os.open(os.path.join(os.fsencode(tmp_path), name, name), os.O_CREAT | os.O_WRONLY))
    assert 11 == looked(TreeUsage(str(tmp_path), DirectoryBudget(2))).inodes_used
    assert 11 == looked(TreeUsage(str(tmp_path), DirectoryBudget(PLENTY))).inodes_used


def test_directory_that_is_moved_away_while_the_walk_is_below_it_ends_the_walk_there_and_not_the_count(
    tmp_path: Path,
) -> None:
    (tmp_path / "tree" / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "tree" / "other").mkdir()
    (tmp_path / "elsewhere" / "secret").mkdir(parents=True)
    tree = TreeUsage(str(tmp_path / "tree"), DirectoryBudget(1))  # the root alone is remembered
    for _ in tree.steps():
        if (tmp_path / "tree" / "a" / "b").exists() and tree.directories == 4:
            (tmp_path / "tree" / "a" / "b").rename(tmp_path / "elsewhere" / "b")
    assert tree.complete
    assert tree.usage.inodes_used <= 5  # nothing of elsewhere


def test_directory_that_can_not_be_read_is_counted_as_such_and_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 14, 2)

    def refusing(name: bytes, at_fd: int) -> int:
        if name.endswith(b"11"):
            raise PermissionError(errno.EACCES, "refused")
        return open_directory(name, at_fd)

    monkeypatch.setattr("reactor.disks.tree.open_directory", refusing)
    for remembered in (1, PLENTY):
        tree = TreeUsage(str(tmp_path), DirectoryBudget(remembered))
        looked(tree)
        assert (1, errno.EACCES) == (tree.unreadable, tree.error_number)
        assert 1 + 7 + 13 * 3 == tree.usage.inodes_used


def test_want_of_descriptors_is_no_fault_of_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 14, 2)
    tree = TreeUsage(str(tmp_path), DirectoryBudget(PLENTY))
    before = looked(tree)

    def refusing(name: bytes, at_fd: int) -> int:
        raise OSError(errno.EMFILE, "refused")

    monkeypatch.setattr("reactor.disks.tree.open_directory", refusing)
    (tmp_path / "1" / "new").write_bytes(b"x")
    with pytest.raises(OSError, match="refused"):
        looked(tree)
    assert before == tree.usage
