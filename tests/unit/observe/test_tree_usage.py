"""Trees on this machine's own filesystem, against du."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reactor.model.pods import FilesystemUsage
from reactor.observe.tree_usage import DirectoryBudget, TreeUsage

PLENTY = 10_000


def du(path: Path) -> FilesystemUsage:
    """Return what du counts; -x: without what is mounted below."""

    def figure(*options: str) -> int:
        command = ["du", "-sx", *options, str(path)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])

    return FilesystemUsage(used_bytes=figure("-B1"), inodes_used=figure("--inodes"))


def looked(tree: TreeUsage) -> FilesystemUsage | None:
    tree.look(lambda: None)
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
    monkeypatch.setattr("reactor.observe.tree_usage._LINKS_REMEMBERED", 2)
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
    monkeypatch.setattr("reactor.observe.tree_usage._LARGE_INODES", 10)
    monkeypatch.setattr("reactor.observe.tree_usage._LATELY_NS", -(10**18))  # a change just made is none


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
    scandir = os.scandir

    def noting(fd: int):
        listed.append(fd)
        return scandir(fd)

    for _ in range(40):
        looked(tree)
    most = 0
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", noting)
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
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeError):
        TreeUsage(str(tmp_path), DirectoryBudget(PLENTY)).look(_raise_at(3))
    assert before == sorted(os.listdir("/proc/self/fd"))


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
        tree.look(_raise_at(10))
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
