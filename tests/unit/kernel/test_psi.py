from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel.psi import UNPRIVILEGED_WINDOW_US, open_trigger, parse_pressure
from tests.support.this_machine import open_descriptors

SOME = b"some avg10=0.12 avg60=3.00 avg300=100.00 total=4711\n"


def test_trigger_on_this_kernel_is_opened_or_refused_by_name() -> None:
    path = Path("/proc/pressure/memory")
    if not path.exists():
        pytest.skip("no /proc/pressure; boot with psi=1")
    os.close(open_trigger(path, "some", UNPRIVILEGED_WINDOW_US // 10, UNPRIVILEGED_WINDOW_US))
    before = open_descriptors()
    with pytest.raises(OSError, match="/proc/pressure/memory") as caught:
        open_trigger(path, "some", 1, 60_000_000)
    assert errno.EINVAL == caught.value.errno
    assert before == open_descriptors()


def test_trigger_ends_with_the_nul_that_the_kernel_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "memory.pressure"
    path.write_bytes(SOME)
    with open(open_trigger(path, "some", 50_000, 500_000), "rb") as file:
        file.seek(0)
        assert b"some 50000 500000\0" == file.read(18)


def test_pressure_is_read_by_kind() -> None:
    raw = (
        b"some avg10=1.25 avg60=0.50 avg300=0.00 total=1500000\n"
        b"full avg10=100.00 avg60=0.00 avg300=0.00 total=18446744073709551615\n"
    )
    found = parse_pressure(raw, "file")
    assert {"some", "full"} == found.keys()
    assert (1.25, 0.5, 1.5) == found["some"]
    assert found["full"].avg10 == 100.0


@pytest.mark.parametrize(
    "raw", [b"", b"some avg10=1 total=2\n", b"none avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"]
)
def test_what_is_no_pressure_is_refused(raw: bytes) -> None:
    with pytest.raises(KernelInterfaceError):
        parse_pressure(raw, "file")


@given(st.binary())
def test_no_bytes_give_pressure_out_of_range(raw: bytes) -> None:
    try:
        found = parse_pressure(raw, "file")
    except KernelInterfaceError:
        return
    assert all(one.avg10 >= 0 and one.total_seconds >= 0 for one in found.values())
