from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from reactor.kernel.psi import UNPRIVILEGED_WINDOW_US, open_trigger

SOME = b"some avg10=0.12 avg60=3.00 avg300=100.00 total=4711\n"


def test_trigger_on_this_kernel_is_opened_or_refused_by_name() -> None:
    path = Path("/proc/pressure/memory")
    if not path.exists():
        pytest.skip("no /proc/pressure; boot with psi=1")
    os.close(open_trigger(path, "some", UNPRIVILEGED_WINDOW_US // 10, UNPRIVILEGED_WINDOW_US))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="/proc/pressure/memory") as caught:
        open_trigger(path, "some", 1, 60_000_000)
    assert errno.EINVAL == caught.value.errno
    assert before == len(os.listdir("/proc/self/fd"))


def test_trigger_ends_with_the_nul_that_the_kernel_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "memory.pressure"
    path.write_bytes(SOME)
    with open(open_trigger(path, "some", 50_000, 500_000), "rb") as file:
        file.seek(0)
        assert b"some 50000 500000\0" == file.read(18)
