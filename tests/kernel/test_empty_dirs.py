"""Emptying a volume among real mounts, in a mount namespace of the test's own, and while it is rearranged."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reactor.reclaim.empty_dirs import empty_directory

pytestmark = pytest.mark.suite("hostile trees")

_EMPTY = (
    "import sys; from reactor.reclaim.empty_dirs import empty_directory; print(empty_directory(sys.argv[1]))"
)


def _emptied(volume: Path, mounting: str) -> str:
    """Return what is told of emptying a volume after `mounting`, in a namespace that nobody else sees."""
    if os.geteuid() != 0:
        pytest.skip("needs root; run as root")
    script = f'{mounting} && exec {sys.executable} -c "$1" "$2"'
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        "sh",
        _EMPTY,
        str(volume),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def _kept(tmp_path: Path) -> Path:
    """Return a directory of another owner, on the same filesystem."""
    kept = tmp_path / "kept"
    (kept / "inner").mkdir(parents=True)
    (kept / "file").touch()
    (kept / "inner/file").touch()
    return kept


def _is_whole(kept: Path) -> bool:
    return (kept / "file").exists() and (kept / "inner/file").exists()


@pytest.mark.parametrize("depth", [1, 5, 60])
def test_a_bind_mount_of_the_same_filesystem_is_not_entered_and_the_rest_is_removed(
    tmp_path: Path, depth: int
) -> None:
    kept, volume = _kept(tmp_path), tmp_path / "volume"
    within = volume.joinpath(*["d"] * depth)
    within.mkdir(parents=True)
    for number in range(10):
        (volume / f"file{number}").touch()
        (within / f"file{number}").touch()
    told = _emptied(volume, f"mount --bind {kept} {within}")
    assert "mounted there" in told or "busy" in told
    assert _is_whole(kept)
    assert not list(volume.glob("file*"))


def test_a_mounted_filesystem_is_not_entered(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "mounted").mkdir(parents=True)
    told = _emptied(volume, f"mount -t tmpfs none {volume}/mounted && touch {volume}/mounted/file")
    assert "mounted there" in told


def test_a_volume_that_is_a_mount_of_its_own_is_emptied(tmp_path: Path) -> None:
    volume, disk = tmp_path / "volume", tmp_path / "disk"
    volume.mkdir()
    (disk / "deep").mkdir(parents=True)
    (disk / "deep/file").touch()
    assert "None" == _emptied(volume, f"mount --bind {disk} {volume}")
    assert [] == os.listdir(disk)


def test_a_tree_that_is_rearranged_meanwhile_does_not_lead_out_of_the_volume(tmp_path: Path) -> None:
    """A tenant exchanges directories with symlinks and moves them out and in, as fast as it can."""
    kept, outside, volume = _kept(tmp_path), tmp_path / "outside", tmp_path / "volume"
    outside.mkdir()
    stop = threading.Event()

    def rearrange() -> None:
        while not stop.is_set():
            for step in (
                lambda: (volume / "a/b").mkdir(parents=True, exist_ok=True),
                (volume / "a/b/file").touch,
                lambda: (volume / "a/b").rename(outside / "b"),
                lambda: (volume / "a/b").symlink_to(kept),
                lambda: (volume / "a").rename(outside / "a"),
                lambda: (volume / "a").symlink_to(kept),
                (volume / "a").unlink,
                lambda: (outside / "b").rename(volume / "b"),
                lambda: (outside / "a").rename(volume / "a"),
            ):
                try:
                    step()
                except OSError:
                    continue

    volume.mkdir()
    tenant = threading.Thread(target=rearrange)
    tenant.start()
    try:
        for _ in range(2000):
            empty_directory(str(volume))
    finally:
        stop.set()
        tenant.join()
    assert _is_whole(kept)
    assert empty_directory(str(volume)) is None
    assert [] == os.listdir(volume)
