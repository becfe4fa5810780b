from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import BpfError
from reactor.kernel.bpf.records import Level, RecordKind
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.proc_events import MAXIMUM_SAMPLE
from reactor.model.settings import SourceSettings
from reactor.model.signals import Signal
from reactor.model.thresholds import Threshold
from reactor.model.wakes import SourceHealth, WakeKind
from reactor.sources.catalogue import EBPF_PIDS, PROCESSES, SourceBoard
from reactor.sources.chain import Chain
from reactor.sources.processes import EbpfPids, ProcessLevels, process_chain, sample_for
from reactor.sources.wakes import Wakes
from tests.support.builders import make_threshold
from tests.support.waiting import until
from tests.unit.sources.probe_of_records import ProbeOfCgroups, watch_record


@pytest.mark.parametrize(
    ("margin", "one_in"), [(None, 4096), (-5, 1), (0, 1), (15, 1), (16, 2), (30_000, 2048), (10**7, 4096)]
)
def test_the_sample_is_an_eighth_of_the_margin(margin: int | None, one_in: int) -> None:
    assert one_in == sample_for(margin)


def test_a_crowd_of_forks_is_thinned_out_further() -> None:
    assert 64 == sample_for(8, 64)


@given(st.none() | st.integers(-(10**9), 10**9), st.integers(1, 4096))
def test_the_sample_is_always_one_that_the_filter_takes(margin: int | None, crowding: int) -> None:
    one_in = sample_for(margin, crowding)
    assert 1 <= one_in <= MAXIMUM_SAMPLE
    assert 0 == one_in & (one_in - 1)


async def test_a_source_that_is_switched_off_says_so_and_watches_nothing(tmp_path: Path) -> None:
    board = SourceBoard()
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=tmp_path)
    source = process_chain(tree, SourceSettings(processes=False), Wakes(board))
    async with trio.open_nursery() as nursery:
        await nursery.start(source.run)
    source.arm(None)
    assert [SourceHealth.OFF] * 2 == [board.state(name).health for name in (EBPF_PIDS, PROCESSES)]


def threshold(amount: int, grace_seconds: float = 0.0) -> Threshold:
    return make_threshold(amount, Signal.PID_AVAILABLE, grace_seconds)


HARD, SOFT = threshold(20), threshold(40, 30)


class Probe(ProbeOfCgroups):
    """Watches the machine too, by its tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.machine: tuple[int, list[Level]] | None = None
        self.refusal: BpfError | None = None

    def watch_node(self, watch_id: int, levels: Sequence[Level]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.machine = (watch_id, list(levels))

    def tell_of(self, kind: RecordKind) -> None:
        """Tell of the first level of the only watch there is."""
        ((watch_id, _),) = self.watches.values()
        self.tell(watch_record(kind, watch_id, at_ns=5))


class Other:
    """The step that stands in: it does nothing but be armed."""

    name = PROCESSES

    def unavailable_because(self) -> None:
        return None

    def arm(self, levels: ProcessLevels | None) -> None:
        pass

    async def watch(self, armed: Callable[[str], None]) -> None:
        armed("standing in")
        await trio.sleep_forever()


class Node:
    """A v2 cgroup /node with a pids controller, 10 tasks in it."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "node"
        self.directory.mkdir()
        self.tree = CgroupTree(version=CgroupVersion.V2, memory_root=root, pids_root=root)
        self.wakes = Wakes()
        self.board = self.wakes.board
        self.probes: list[Probe] = []
        self.next_probe = Probe()
        self.proc = root / "proc"
        self.proc.mkdir()
        (self.proc / "loadavg").write_text("0.1 0.2 0.3 1/500 4711\n")
        self.has(10)
        step = EbpfPids(
            self.tree,
            self.wakes,
            open_probe=self.open_probe,
            proc=self.proc,
        )
        self.source = Chain[ProcessLevels | None]((step, Other()), {}, self.wakes, kind=WakeKind.PROCESSES)

    def open_probe(self) -> Probe:
        self.probes.append(self.next_probe)
        self.next_probe = Probe()
        return self.probes[-1]

    @property
    def probe(self) -> Probe:
        return self.probes[-1]

    @property
    def levels(self) -> list[Level]:
        ((_, levels),) = self.probe.watches.values()
        return levels

    def has(self, tasks: int) -> None:
        (self.directory / "pids.current").write_text(f"{tasks}\n")

    def expect(self, *thresholds: Threshold, used: int = 10, limit: int = 100, cgroup: str = "/node") -> None:
        self.source.arm(ProcessLevels(cgroup=cgroup, limit=limit, used=used, thresholds=thresholds))

    @asynccontextmanager
    async def watched(self, *thresholds: Threshold) -> AsyncIterator[None]:
        self.expect(*thresholds)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.source.run)
            with trio.fail_after(90):
                await self.source.wait_armed()
            yield
            nursery.cancel_scope.cancel()

    async def wake(self) -> None:
        with trio.fail_after(90):
            (wake,) = await self.wakes.wait()
        assert (EBPF_PIDS, WakeKind.PROCESSES) == (wake.source, wake.kind)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_each_threshold_is_a_level_of_the_nodes_counter(node: Node) -> None:
    async with node.watched(HARD, SOFT):
        assert [81, 61] == [level.fire for level in node.levels]
        assert [None, None] == [level.reported for level in node.levels]
        assert "/node pid.available<20 at 81 tasks" in node.board.state(EBPF_PIDS).detail
        assert node.board.state(PROCESSES).detail == "ebpf-pids is armed"
    assert node.probe.closed


async def test_crossing_wakes_the_loop_with_the_time_of_the_fork(node: Node) -> None:
    async with node.watched(HARD):
        node.probe.tell_of(RecordKind.CROSSING)
        with trio.fail_after(90):
            (wake,) = await node.wakes.wait()
    assert (EBPF_PIDS, WakeKind.PROCESSES, Signal.PID_AVAILABLE, 5) == (
        wake.source,
        wake.kind,
        wake.signal,
        wake.at_ns,
    )


async def test_threshold_that_is_past_when_it_is_armed_wakes_the_loop_once(node: Node) -> None:
    node.has(90)
    async with node.watched(HARD, SOFT):
        await node.wake()
        assert [90, 90] == [level.reported for level in node.levels]
        node.expect(HARD, SOFT, used=90)
        await trio.sleep(0.05)
        assert node.board.state(EBPF_PIDS).wakes == 1


async def test_crossing_that_was_undone_is_armed_again_and_one_that_stands_is_not(node: Node) -> None:
    async with node.watched(HARD):
        node.probe.tell_of(RecordKind.CROSSING)
        await node.wake()
        before = node.levels
        node.expect(HARD, used=85)
        await trio.sleep(0.05)
        assert node.levels is before
        node.expect(HARD, used=50)
        await until(lambda: node.levels is not before)


async def test_levels_follow_the_limit_and_stay_where_nothing_changed(node: Node) -> None:
    async with node.watched(HARD):
        before = node.levels
        node.expect(HARD, used=30)
        await trio.sleep(0.05)
        assert node.levels is before
        node.expect(HARD, limit=200)
        await until(lambda: node.levels[0].fire == 181)


async def test_machine_is_watched_where_the_node_has_no_limit(node: Node) -> None:
    async with node.watched(HARD):
        node.expect(threshold(1000), used=500, limit=2000, cgroup="/")
        await until(lambda: node.probe.machine is not None)
        assert node.probe.machine is not None
        assert [1001] == [level.fire for level in node.probe.machine[1]]
        assert node.probe.watches == {}


async def test_nothing_is_loaded_without_a_threshold(node: Node) -> None:
    async with node.watched():
        node.expect()
        assert node.probes == []
        assert node.board.state(EBPF_PIDS).detail == "no threshold on pid.available"
        node.expect(HARD)
        await until(lambda: node.probes and node.probe.watches)
    node.next_probe.close()


async def test_what_the_kernel_hides_has_the_connector_stand_in(node: Node) -> None:
    node.next_probe.refusal = BpfError("eBPF object processes", "needs CAP_SYSLOG")
    node.source.arm(ProcessLevels(cgroup="/", limit=2000, used=1, thresholds=(HARD,)))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.source.run)
        await until(lambda: node.board.state(PROCESSES).health is SourceHealth.ARMED)
        assert node.board.state(EBPF_PIDS).health is SourceHealth.DEGRADED
        assert "CAP_SYSLOG" in node.board.state(EBPF_PIDS).detail
        nursery.cancel_scope.cancel()


async def test_cgroup_that_was_replaced_is_watched_again_by_the_same_programs(node: Node) -> None:
    async with node.watched(HARD):
        ((watch_id, _),) = node.probe.watches.values()
        node.probe.tell_of(RecordKind.REMOVED)
        await node.wake()
        await until(lambda: [watch_id + 1] == [one for one, _ in node.probe.watches.values()])
        assert 1 == len(node.probes)


async def test_cgroup_that_is_gone_is_a_failure_and_the_connector_stands_in(node: Node) -> None:
    async with node.watched(HARD):
        first = node.probe
        shutil.rmtree(node.directory)
        first.tell_of(RecordKind.REMOVED)
        await until(lambda: first.closed)
        await until(lambda: node.board.state(PROCESSES).health is SourceHealth.ARMED)
        assert node.board.state(EBPF_PIDS).health is SourceHealth.DEGRADED


async def test_lost_records_are_counted_and_wake_the_loop(node: Node) -> None:
    async with node.watched(HARD):
        node.probe.lost_records = 4
        os.eventfd_write(node.probe.fd, 1)
        await node.wake()
    assert node.board.state(EBPF_PIDS).lost == 4


def test_ebpf_is_not_loaded_for_processes_alone_on_v1(node: Node) -> None:
    tree = CgroupTree(version=CgroupVersion.V1, memory_root=node.proc)
    step = EbpfPids(tree, node.wakes)
    assert "cgroup v1" in (step.unavailable_because() or "")
