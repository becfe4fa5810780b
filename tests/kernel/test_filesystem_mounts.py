"""Filesystems as they are mounted, in a mount namespace of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reactor.kernel.filesystem import MountTable

_READ = "from reactor.kernel.filesystem import read_space; print(read_space({path!r}).read_only)"


@pytest.mark.parametrize(
    ("mounting", "read_only"),
    [
        ("mount --bind {0} {0} && mount -o remount,bind,ro {0}", "False"),
        ("mount -t tmpfs -o ro none {0}", "True"),
        ("mount -t tmpfs none {0}", "False"),
    ],
)
def test_filesystem_that_only_this_mount_makes_read_only_is_not_taken_for_one(
    tmp_path: Path, mounting: str, read_only: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root; run as root")
    script = f'{mounting.format(tmp_path)} && exec {sys.executable} -c "$1"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    command.append(_READ.format(path=str(tmp_path)))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == read_only, done.stderr


_SIZED = (
    "from reactor.kernel.filesystem import read_mounts; "
    "print(*(one.is_sized for one in read_mounts() if one.mount_point == {path!r}))"
)

_TOO_SMALL = """mount -t tmpfs -o size=2m none {0} && dd if=/dev/zero of={0}/f bs=1M count=1 2>/dev/null &&
! mount -o remount,size=512k -t tmpfs none {0} 2>/dev/null"""


@pytest.mark.parametrize(
    ("mounting", "is_sized"),
    [
        ("mount -t tmpfs -o size=1m none {0}", "True"),
        ("mount -t tmpfs none {0}", "False"),
        # The kubelet's way to resize a volume; what does not fit is refused, and the mount stays as it was.
        ("mount -t tmpfs -o size=1m none {0} && mount -o remount,size=2m -t tmpfs none {0}", "True"),
        (_TOO_SMALL, "True"),
    ],
)
def test_a_volume_in_memory_shows_whether_its_mount_has_a_size(
    tmp_path: Path, mounting: str, is_sized: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root; run as root")
    script = f'{mounting.format(tmp_path)} && exec {sys.executable} -c "$1"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    command.append(_SIZED.format(path=str(tmp_path)))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == is_sized, done.stderr


_CHANGES = """
import subprocess
from reactor.kernel.filesystem import MountTable
table = MountTable()
shown = [table.changes(), table.changes()]
for command in (["mount", "-t", "tmpfs", "none", {path!r}], ["true"], ["umount", {path!r}], ["true"]):
    subprocess.run(command, check=True)
    shown.append(table.changes())
print(*shown)
"""


def test_the_mount_table_tells_each_change_and_nothing_else(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root; run as root")
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c"]
    command.append(_CHANGES.format(path=str(tmp_path)))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["1", "1", "2", "2", "3", "3"], done.stderr


def test_a_mount_table_that_can_not_be_opened_counts_as_changed_each_time(tmp_path: Path) -> None:
    table = MountTable(tmp_path / "mountinfo")
    assert [1, 2, 3] == [table.changes() for _ in range(3)]
