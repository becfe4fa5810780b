"""The kernel's own triggers on the pressure of cgroups of v2, which a machine with v1 may have as well."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from reactor.kernel.cgroup import parse_cgroup_mounts
from reactor.model.wakes import SourceHealth
from reactor.rules.pressure import RulePressure, Trigger
from reactor.sources.catalogue import RULE_PRESSURE, SourceBoard
from tests.support.this_machine import open_descriptors, remove_cgroup
from tests.support.waiting import until

# Both want the one CPU: one of them always waits.
SPINNER = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
while True:
    pass
"""


def unified() -> Path | None:
    """Return where cgroups of v2 are that account their pressure, None where there are none."""
    _, root = parse_cgroup_mounts(Path("/proc/self/mounts").read_bytes())
    return root if root is not None and (root / "cpu.pressure").exists() else None


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or unified() is None,
    reason="needs root, a mounted cgroup v2 and accounted pressure (boot with psi=1)",
)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    directory = (unified() or Path()) / f"reactor-rule-pressure-{os.getpid()}"
    directory.mkdir()
    yield directory
    remove_cgroup(directory)


@pytest.fixture
def stalls(cgroup: Path) -> Iterator[None]:
    """Have two processes of the cgroup want one CPU."""
    command = [sys.executable, "-c", SPINNER, str(cgroup / "cgroup.procs")]
    spinners = [subprocess.Popen(command) for _ in range(2)]
    yield
    for spinner in spinners:
        spinner.kill()
        spinner.wait()


def trigger(cgroup: Path, window_seconds: float = 1.0) -> Trigger:
    return Trigger(
        cgroup=f"/{cgroup.name}",
        inode=cgroup.stat().st_ino if cgroup.exists() else 0,
        path=str(cgroup / "cpu.pressure"),
        resource="cpu",
        kind="some",
        stall_seconds=0.1 * window_seconds,
        window_seconds=window_seconds,
    )


@pytest.mark.usefixtures("stalls")
@pytest.mark.parametrize(
    ("window_seconds", "is_exact"),
    # Without CAP_SYS_RESOURCE windows are of whole 2 s.
    [(1.0, {True, False}), (2.0, {True}), (60.0, {False})],
)
async def test_stalled_tasks_of_a_cgroup_fire_its_trigger(
    cgroup: Path, nursery: trio.Nursery, window_seconds: float, is_exact: set[bool]
) -> None:
    board = SourceBoard()
    pressure = RulePressure(board)
    await nursery.start(pressure.run)
    wanted = trigger(cgroup, window_seconds)
    pressure.want([wanted])
    fired = await pressure.wait(60)
    assert [wanted] == list(fired)
    assert is_exact.issuperset(fired.values())
    assert (SourceHealth.ARMED, "1 trigger") == (
        board.state(RULE_PRESSURE).health,
        board.state(RULE_PRESSURE).detail,
    )


async def test_a_trigger_at_rest_does_not_fire_and_a_cgroup_that_goes_takes_it_along(
    cgroup: Path,
) -> None:
    board = SourceBoard()
    pressure = RulePressure(board)
    before = open_descriptors()
    async with trio.open_nursery() as nursery:
        await nursery.start(pressure.run)
        for number in range(10):
            one = cgroup / f"c{number}"
            one.mkdir()
            pressure.want([trigger(cgroup), trigger(one)])
            await until(lambda one=one: trigger(one) in pressure.armed)  # type: ignore[misc]
            one.rmdir()
        pressure.want([trigger(cgroup)])
        await until(lambda: frozenset({trigger(cgroup)}) == pressure.armed)
        assert {} == await pressure.wait(0)
        await until(lambda: before + 2 == open_descriptors())
        nursery.cancel_scope.cancel()
    await until(lambda: before == open_descriptors())


async def test_what_is_not_there_is_refused_and_said(cgroup: Path, nursery: trio.Nursery) -> None:
    board = SourceBoard()
    pressure = RulePressure(board)
    await nursery.start(pressure.run)
    pressure.want([trigger(cgroup), trigger(cgroup / "none")])
    await until(lambda: "1 refused (No such file" in board.state(RULE_PRESSURE).detail)
    assert SourceHealth.ARMED is board.state(RULE_PRESSURE).health
