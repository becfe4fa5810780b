"""Filesystems as they are mounted, in a mount namespace of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
