"""The benchmark of the disks, with little in it: that it runs, and that the counts are true."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import disk
from reactor.errors import RefusedError
from reactor.model.settings import Settings


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount filesystems; run as root")
    for name, value in {
        "_FILES": 4000,
        "_PODS": 20,
        "_LOOKS": 2,
        "_SETTLED_SECONDS": 0,
        "_DISK_MIB": 2560,
        "_RAMP_SECONDS": 0.5,
        "_AT_REST_SECONDS": 1.2,
    }.items():
        monkeypatch.setattr(disk, name, value)
    try:
        with disk.mounted(tmp_path, 16):
            pass
    except RefusedError as error:
        pytest.skip(f"no loop device can be had; load the module loop: {error}")
    return tmp_path


def test_counts_are_those_of_du_and_an_idle_disk_costs_next_to_nothing(small: Path) -> None:
    found = disk.counting(small)
    assert {"largest_error_bytes": 0, "largest_error_inodes": 0, "pods": 20} == found["against_du"]
    assert found["idle_look_cpu_ms"] < found["first_look"]["cpu_ms"]


@pytest.mark.parametrize("rate_mib", [100, 1024])
def test_filling_disk_is_answered_long_before_housekeeping_would_look(small: Path, rate_mib: int) -> None:
    (taken_ms,) = disk.crossing_to_reclaim_ms(small, rate_mib, 1)
    assert taken_ms < 1000 * Settings().housekeeping_interval_seconds / 2
