"""What pressure shows of loads that memory is too small for, and what refaults show; printed as one table.

docs/pressure.md has the stalls on each kernel. Since 6.16 and 6.19 reclaim sleeps less, and
pressure shows less of it (kubernetes/kubernetes#141146).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final, NamedTuple

import load
import pytest
from machine_memory import ZramSwap
from probing import MARKS, MIB, Cgroup

from reactor.kernel.files import parse_field
from reactor.kernel.psi import parse_pressure

pytestmark = MARKS
LIMIT_MIB: Final = 64
WARM_SECONDS, MEASURED_SECONDS = 15, 40
_FILE: Final = "/var/tmp/reactor-read-again"


class Shown(NamedTuple):
    """What a cgroup showed: shares of the time in percent, the highest averages, pages a second."""

    some_percent: float
    full_percent: float
    some_avg10: float
    full_avg10: float
    refaults: float
    scanned: float


@pytest.fixture(autouse=True)
def no_file_left() -> Iterator[None]:
    yield
    Path(_FILE).unlink(missing_ok=True)


def _counters(cgroup: Cgroup) -> tuple[float, float, int, int]:
    pressure = parse_pressure((cgroup.path / "memory.pressure").read_bytes(), "memory.pressure")
    stat = (cgroup.path / "memory.stat").read_bytes()
    refaults = sum(
        parse_field(stat, b"workingset_refault_" + kind, "memory.stat") for kind in (b"anon", b"file")
    )
    scanned = parse_field(stat, b"pgscan", "memory.stat")
    return pressure["some"].total_seconds, pressure["full"].total_seconds, refaults, scanned


def shown_by(cgroup: Cgroup) -> Shown:
    time.sleep(WARM_SECONDS)
    began, before, highest = time.monotonic(), _counters(cgroup), (0.0, 0.0)
    while time.monotonic() < began + MEASURED_SECONDS:
        time.sleep(2)
        found = parse_pressure((cgroup.path / "memory.pressure").read_bytes(), "memory.pressure")
        highest = max(highest[0], found["some"].avg10), max(highest[1], found["full"].avg10)
    took = time.monotonic() - began
    some, full, refaults, scanned = (now - then for now, then in zip(_counters(cgroup), before, strict=True))
    return Shown(100 * some / took, 100 * full / took, *highest, refaults / took, scanned / took)


def _reads_a_file_again(cgroup: Cgroup) -> None:
    cgroup.run(lambda: load.read(_FILE, 96, 0.0))


def _writes_to_more_than_fits(cgroup: Cgroup) -> None:
    cgroup.run(lambda: load.revisit(80))


def _leaves_no_room_for_files(cgroup: Cgroup) -> None:
    cgroup.run(lambda: load.revisit(LIMIT_MIB - 22))
    cgroup.run(lambda: load.read(_FILE, 24, 0.0))


LOADS: Final[dict[str, Callable[[Cgroup], None]]] = {
    "file": _reads_a_file_again,
    "zram": _writes_to_more_than_fits,
    "anonymous": _leaves_no_room_for_files,
}


@pytest.mark.parametrize("kind", LOADS)
def test_what_pressure_and_refaults_show_of_a_load(cgroup: Cgroup, kind: str) -> None:
    if kind == "zram" and (missing := ZramSwap.missing_because()) is not None:
        pytest.skip(missing)
    cgroup.write("memory.max", str(LIMIT_MIB * MIB))
    with ZramSwap(256) if kind == "zram" else nullcontext():
        LOADS[kind](cgroup)
        shown = shown_by(cgroup)
        cgroup.end()
    print(
        f"PRESSURE | {os.uname().release} | {kind} | {shown.some_percent:.1f} | {shown.full_percent:.1f} | "
        f"{shown.some_avg10:.1f} | {shown.full_avg10:.1f} | {shown.refaults:.0f} | {shown.scanned:.0f} |"
    )
    assert shown.refaults > 0, "the load refaults nothing: it is no load that memory is too small for"
