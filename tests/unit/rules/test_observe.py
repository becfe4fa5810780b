from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.doctor.rules import why_not_observed
from reactor.kernel.cgroup import CgroupVersion
from reactor.model.rules import Measure, Metric, PressureResource
from reactor.rules.observe import RuleObserver, share_of_machine
from reactor.workloads.search import Selected

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker

MIB = 1 << 20
USAGE, SWAP, SCANNED = Metric(Measure.USAGE), Metric(Measure.SWAP_USED), Metric(Measure.PAGES_SCANNED)
TRAFFIC, REFAULTS = Metric(Measure.SWAP_TRAFFIC), Metric(Measure.REFAULTS)
MAX, HIGH = Metric(Measure.EVENTS, "max"), Metric(Measure.EVENTS, "high")
FULL_AVG10 = Metric(Measure.PRESSURE, "memory full avg10")
SOME_AVG60 = Metric(Measure.PRESSURE, "io some avg60")
STALL = Metric(Measure.STALL, "memory full")
PRESSURE = (
    "some avg10=1.00 avg60=2.50 avg300=3.00 total=4000000\n"
    "full avg10=71.25 avg60=0.10 avg300=0.00 total=1500000\n"
)
MEMINFO = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 250 kB\nSwapTotal: 800 kB\nSwapFree: 200 kB\n"


class Seen:
    """A machine in files, the cgroup /pod and what is observed of both."""

    def __init__(self, fake: FakeTree, directory: Path) -> None:
        self.fake = fake
        self.proc, self.pressure = directory / "proc", directory / "proc" / "pressure"
        self.pressure.mkdir(parents=True)
        (self.proc / "meminfo").write_text(MEMINFO)
        (self.proc / "vmstat").write_text(
            "workingset_refault_anon 7\nworkingset_refault_file 9\n"
            "pgscan_kswapd 100\npgscan_direct 20\npswpin 3\npswpout 5\n"
        )
        for resource in PressureResource:
            (self.pressure / resource).write_text(PRESSURE)
        fake.add("/pod")
        self.now_seconds = 0.0
        self.observer = RuleObserver(
            fake.tree, proc=self.proc, pressure=self.pressure, clock_seconds=lambda: self.now_seconds
        )

    def value(self, metric: Metric, cgroup: str = "/pod") -> float | None:
        return self.observer.read(cgroup, str(self.fake.directory(cgroup)), [metric])[metric]

    def why_not(self, metric: Metric, cgroup: str = "/pod") -> str | None:
        selected = Selected(cgroup, str(self.fake.directory(cgroup)), 0)
        return why_not_observed(self.observer, self.fake.tree.version, selected, metric)


@pytest.fixture
def seen(fake: FakeTree, tmp_path: Path) -> Seen:
    return Seen(fake, tmp_path)


@pytest.fixture
def on_v2(make_tree: FakeTreeMaker, tmp_path: Path) -> Seen:
    return Seen(make_tree(CgroupVersion.V2), tmp_path)


@pytest.fixture
def on_v1(make_tree: FakeTreeMaker, tmp_path: Path) -> Seen:
    return Seen(make_tree(CgroupVersion.V1), tmp_path)


def test_usage_is_the_working_set_of_the_cgroups_own_limit(seen: Seen) -> None:
    assert seen.value(USAGE) is None
    assert "no memory limit" in str(seen.why_not(USAGE))
    seen.now_seconds = 60.0
    seen.fake.tree.set_memory_limit("/pod", 100 * MIB)
    seen.fake.counters("/pod", usage_bytes=90 * MIB, inactive_file_bytes=15 * MIB)
    assert 75.0 == seen.value(USAGE)
    assert seen.why_not(USAGE) is None


def test_a_limit_that_was_raised_is_seen_at_once_where_it_matters(seen: Seen) -> None:
    seen.fake.tree.set_memory_limit("/pod", 100 * MIB)
    seen.fake.counters("/pod", usage_bytes=90 * MIB, inactive_file_bytes=0)
    assert 90.0 == seen.value(USAGE)
    seen.fake.tree.set_memory_limit("/pod", 200 * MIB)
    assert 45.0 == seen.value(USAGE)


def test_a_limit_far_above_is_read_once_in_a_minute_and_no_more_of_a_cgroup_that_is_gone(seen: Seen) -> None:
    seen.fake.tree.set_memory_limit("/pod", 1000 * MIB)
    seen.fake.counters("/pod", usage_bytes=90 * MIB, inactive_file_bytes=0)
    assert 9.0 == seen.value(USAGE)
    seen.fake.tree.set_memory_limit("/pod", 100 * MIB)
    assert 9.0 == seen.value(USAGE)
    seen.now_seconds = 60.0
    assert 90.0 == seen.value(USAGE)
    seen.observer.forget_absent({"/other"})
    assert 90.0 == seen.value(USAGE)


def test_of_the_machine_is_counted_what_is_not_available(seen: Seen) -> None:
    assert 75.0 == seen.value(USAGE, "/")
    assert 75.0 == seen.value(SWAP, "/")
    assert 120 == seen.value(SCANNED, "/")
    assert 8 * mmap.PAGESIZE == seen.value(TRAFFIC, "/")
    assert 71.25 == seen.value(FULL_AVG10, "/")
    assert 2.5 == seen.value(SOME_AVG60, "/")
    assert 1.5 == seen.value(STALL, "/")
    assert seen.value(MAX, "/") is None
    (seen.proc / "meminfo").write_text(
        "MemTotal: 1000 kB\nMemFree: 100 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
    )
    assert seen.value(USAGE, "/") is None
    assert seen.value(SWAP, "/") is None
    assert "no swap" in str(seen.why_not(SWAP, "/"))


def test_on_v2_a_cgroup_has_pressure_events_swap_and_reclaim(on_v2: Seen) -> None:
    on_v2.fake.file("/pod", "memory.pressure", PRESSURE)
    on_v2.fake.file("/pod", "memory.events", "low 1\nhigh 22\nmax 33\noom 44\noom_kill 55\n")
    on_v2.fake.file("/pod", "memory.stat", "anon 1\ninactive_file 0\npgscan 77\n")
    on_v2.fake.file("/pod", "memory.swap.current", f"{40 << 10}\n")
    on_v2.fake.file("/pod", "memory.swap.max", f"{80 << 10}\n")
    assert 71.25 == on_v2.value(FULL_AVG10)
    assert 1.5 == on_v2.value(STALL)
    assert on_v2.value(SOME_AVG60) is None  # no io.pressure
    assert "this kernel has no" in str(on_v2.why_not(SOME_AVG60))
    assert (22, 33) == (on_v2.value(HIGH), on_v2.value(MAX))
    assert 77 == on_v2.value(SCANNED)
    assert on_v2.value(TRAFFIC) is None
    assert "since Linux 6.13" in str(on_v2.why_not(TRAFFIC))
    on_v2.fake.file("/pod", "memory.stat", "anon 1\ninactive_file 0\npswpin 1\npswpout 2\n")
    assert 3 * mmap.PAGESIZE == on_v2.value(TRAFFIC)
    assert 50.0 == on_v2.value(SWAP)


def test_refaults_are_those_of_files_and_of_the_cgroup_as_a_whole(seen: Seen) -> None:
    assert 9 == seen.value(REFAULTS, "/")
    own = "workingset_refault_anon 4\nworkingset_refault_file 11\n"
    seen.fake.file("/pod", "memory.stat", f"{own}total_workingset_refault_file 13\n")
    assert seen.value(REFAULTS) == (11 if seen.fake.tree.version is CgroupVersion.V2 else 13)
    seen.fake.file("/pod", "memory.stat", "cache 1\n")
    assert seen.value(REFAULTS) is None
    assert "workingset_refault_file" in str(seen.why_not(REFAULTS))


def test_on_v2_swap_without_a_limit_is_of_the_machines(on_v2: Seen) -> None:
    on_v2.fake.file("/pod", "memory.swap.current", f"{200 << 10}\n")
    on_v2.fake.file("/pod", "memory.swap.max", "max\n")
    assert 25.0 == on_v2.value(SWAP)


def test_on_v1_a_cgroup_has_max_alone_and_why_not_says_so(on_v1: Seen) -> None:
    on_v1.fake.file("/pod", "memory.failcnt", "5\n")
    assert 5 == on_v1.value(MAX)
    assert on_v1.value(TRAFFIC) is None
    for metric in (HIGH, SCANNED, FULL_AVG10, STALL):
        assert on_v1.value(metric) is None
        assert "cgroup v1" in str(on_v1.why_not(metric))


def test_a_pressure_file_without_a_full_line_has_none(seen: Seen) -> None:
    (seen.pressure / "cpu").write_text(PRESSURE.splitlines()[0] + "\n")
    assert seen.value(Metric(Measure.PRESSURE, "cpu full avg10"), "/") is None
    assert seen.value(Metric(Measure.STALL, "cpu full"), "/") is None
    assert 4.0 == seen.value(Metric(Measure.STALL, "cpu some"), "/")


@given(content=st.binary(max_size=200))
def test_no_content_of_a_file_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    from reactor.kernel.cgroup import CgroupTree  # noqa: PLC0415
    from tests.unit.conftest import FakeTree  # noqa: PLC0415

    root = tmp_path_factory.mktemp("any")
    fake = FakeTree(CgroupTree(version=CgroupVersion.V2, memory_root=root, pids_root=root, cpu_root=root))
    (root / "pod").mkdir()
    for name in ("memory.current", "memory.max", "memory.stat", "memory.events", "memory.pressure"):
        fake.file("/pod", name, content)
    observer = RuleObserver(fake.tree, proc=root, pressure=root / "pod", clock_seconds=lambda: 0.0)
    metrics = [USAGE, SWAP, SCANNED, TRAFFIC, MAX, FULL_AVG10, STALL, SOME_AVG60]
    for cgroup in ("/pod", "/"):
        assert metrics == list(observer.read(cgroup, str(root / "pod"), metrics))


def test_the_machines_stall_is_of_any_task_and_none_where_it_is_not_accounted(seen: Seen) -> None:
    assert 4.0 == seen.observer.machine_stall_seconds(PressureResource.MEMORY)
    (seen.pressure / "memory").write_text("")
    assert seen.observer.machine_stall_seconds(PressureResource.MEMORY) is None
    (seen.pressure / "io").unlink()
    assert seen.observer.machine_stall_seconds(PressureResource.IO) is None


@given(
    stalls=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=16),
    others=st.floats(0, 1),
)
def test_the_machine_never_stalls_for_less_than_what_is_asked_for(
    stalls: list[tuple[float, float]], others: float
) -> None:
    """As the kernel counts: each CPU's stall weighted by how long it is not idle, `others` keep it busy."""
    in_cgroup = [(stall, max(stall, busy)) for stall, busy in stalls]
    in_machine = [(stall, max(busy, others)) for stall, busy in in_cgroup]
    cgroup, machine = (
        sum(stall * busy for stall, busy in cpus) / max(sum(busy for _, busy in cpus), 1e-9)
        for cpus in (in_cgroup, in_machine)
    )
    assert machine >= share_of_machine(cgroup, len(stalls)) - 1e-6
