from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import KernelInterfaceError
from reactor.kernel.psi import Pressure, Stall, open_trigger, parse_pressure

SOME = b"some avg10=1.50 avg60=0.25 avg300=0.00 total=1234\n"
FULL = b"full avg10=0.00 avg60=0.00 avg300=100.00 total=0\n"


def test_pressure_is_read_as_the_kernel_writes_it() -> None:
    some = Stall(avg10_percent=1.5, avg60_percent=0.25, avg300_percent=0.0, total_us=1234)
    full = Stall(avg10_percent=0.0, avg60_percent=0.0, avg300_percent=100.0, total_us=0)
    assert Pressure(some=some, full=full) == parse_pressure(SOME + FULL, "memory.pressure")
    assert Pressure(some=some, full=None) == parse_pressure(SOME, "cpu.pressure")


@pytest.mark.parametrize(
    "raw", [b"", FULL, b"some\n", SOME.replace(b"1.50", b"nan"), SOME.replace(b"1234", b"-1"), SOME[:30]]
)
def test_anything_else_is_refused(raw: bytes) -> None:
    with pytest.raises(KernelInterfaceError, match="accepted"):
        parse_pressure(raw, "memory.pressure")


@given(st.binary(max_size=120) | st.binary(max_size=12).map(lambda part: SOME[:20] + part + SOME[20:]))
def test_arbitrary_bytes_are_read_or_refused(raw: bytes) -> None:
    with suppress(KernelInterfaceError):
        parse_pressure(raw, "memory.pressure")


def test_a_trigger_ends_with_the_nul_that_the_kernel_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "memory.pressure"
    path.write_bytes(SOME)
    with open(open_trigger(path, "some", 50_000, 500_000), "rb") as file:
        file.seek(0)
        assert b"some 50000 500000\0" == file.read(18)


def test_a_missing_file_is_an_oserror_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="pressure"):
        open_trigger(tmp_path / "pressure", "full", 1, 2)
