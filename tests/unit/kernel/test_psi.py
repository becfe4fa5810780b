from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel.psi import UNPRIVILEGED_WINDOW_US, open_trigger, parse_pressure

SOME = b"some avg10=0.12 avg60=3.00 avg300=100.00 total=4711\n"
FULL = b"full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def test_pressure_is_read() -> None:
    found = parse_pressure(SOME + FULL, "memory.pressure")
    assert (0.12, 3.0, 100.0, 4711) == (
        found.some.avg10_percent,
        found.some.avg60_percent,
        found.some.avg300_percent,
        found.some.total_us,
    )
    assert found.full is not None
    assert 0 == found.full.total_us


def test_file_without_a_full_line_has_none() -> None:
    assert parse_pressure(SOME, "cpu.pressure").full is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        FULL,
        SOME[:-20],
        SOME.replace(b"0.12", b"nan"),
        SOME.replace(b"0.12", b"-1.0"),
        SOME.replace(b"4711", b"-1"),
        SOME.replace(b"avg60=", b"avg60"),
    ],
)
def test_broken_pressure_is_refused_by_name(raw: bytes) -> None:
    with pytest.raises(KernelInterfaceError, match=r"memory\.pressure"):
        parse_pressure(raw, "memory.pressure")


@given(st.one_of(st.binary(), st.binary().map(lambda raw: b"some " + raw + b"\n")))
def test_arbitrary_bytes_are_refused_by_name_only(raw: bytes) -> None:
    try:
        parse_pressure(raw, "x")
    except KernelInterfaceError:
        return


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
