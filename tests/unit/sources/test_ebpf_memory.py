import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from reactor.errors import BpfError, failure_text
from reactor.kernel.bpf.records import Level, NodeCounting, RecordKind
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.mem_available import Watermarks
from reactor.model.settings import EbpfLoader, SourceSettings
from reactor.model.signals import Signal
from reactor.model.wakes import SourceHealth, SourceState, Wake, WakeKind
from reactor.sources.catalogue import EBPF, SourceBoard, switched_on
from reactor.sources.chain import Chain
from reactor.sources.levels import MemoryLevel
from reactor.sources.memory import EbpfMemory
from reactor.sources.wakes import Wakes
from tests.support.waiting import until
from tests.unit.sources.probe_of_records import ProbeOfCgroups, watch_record

LevelFactory = Callable[..., MemoryLevel]
MIB = 1 << 20
PAGES = MIB // os.sysconf("SC_PAGESIZE")


class Probe(ProbeOfCgroups):
    """Watches the machine too, by its working set."""

    def __init__(self) -> None:
        super().__init__()
        self.node: tuple[int, list[Level]] | None = None
        self.node_refusal: BpfError | None = None
        self.node_counting: NodeCounting | None = None
        self.counts_available = False

    def prepare_node(self, *, mem_available: bool = False) -> None:
        self.counts_available = mem_available
        if self.node_refusal is not None:
            raise self.node_refusal

    def watch_node(
        self, watch_id: int, levels: Sequence[Level], counting: NodeCounting | None = None
    ) -> None:
        self.node = (watch_id, list(levels))
        self.node_counting = counting


class FakeNode:
    """A v2 cgroup /node as a directory of files."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "node"
        self.tree = CgroupTree(version=CgroupVersion.V2, memory_root=root)
        self.wakes = Wakes()
        self.board = self.wakes.board
        self.probe = Probe()
        self.failure: Exception | None = None
        self.directory.mkdir()
        self.uses(50)

    def uses(self, mib: int, *, inactive_file_mib: int = 0) -> None:
        (self.directory / "memory.stat").write_text(f"inactive_file {inactive_file_mib * MIB}\n")
        (self.directory / "memory.current").write_text(f"{mib * MIB}\n")

    def open_probe(self) -> Probe:
        if self.failure is not None:
            raise self.failure
        return self.probe

    def step(self) -> EbpfMemory:
        return EbpfMemory(
            self.tree,
            self.wakes,
            open_probe=self.open_probe,
        )

    @property
    def watch(self) -> tuple[int, list[Level]]:
        return self.probe.watches[os.stat(self.directory).st_ino]

    @asynccontextmanager
    async def watched(self, *levels: MemoryLevel) -> AsyncIterator[EbpfMemory]:
        step = self.step()
        step.arm(levels)
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch, step)
            yield step
            nursery.cancel_scope.cancel()

    async def _watch(self, step: EbpfMemory, *, task_status: trio.TaskStatus[None]) -> None:
        started = False

        def armed(detail: str) -> None:
            nonlocal started
            self.board.set(EBPF, SourceHealth.ARMED, detail)
            if not started:
                started = True
                task_status.started()

        await step.watch(armed)

    async def woken(self) -> Wake:
        with trio.fail_after(60):
            (wake,) = await self.wakes.wait()
        return wake

    async def quiet(self) -> bool:
        await trio.testing.wait_all_tasks_blocked(0.05)
        with trio.move_on_after(0.05) as nothing_came:
            await self.wakes.wait()
        return nothing_came.cancelled_caught


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


async def test_level_is_armed_one_page_past_it_and_again_below_it(
    node: FakeNode, level: LevelFactory
) -> None:
    async with node.watched(level(400)):
        _, (armed,) = node.watch
        assert Level(fire=400 * PAGES + 1, rearm=398 * PAGES + 1, step=PAGES) == armed
        assert "/node memory.available<100Mi at 400Mi" == node.board.state(EBPF).detail


async def test_an_early_level_is_reported_once_and_gives_way_where_there_is_no_room(
    node: FakeNode, level: LevelFactory
) -> None:
    early = [replace(level(amount), place_ahead=place) for place, amount in ((1, 250), (2, 295))]
    crossings = [level(300, grace_seconds=seconds) for seconds in (0, 30, 60)]
    async with node.watched(*crossings, *early):
        armed = node.watch[1]
        assert [300 * PAGES + 1] * 3 + [295 * PAGES + 1] == [one.fire for one in armed]
        assert armed[3].step > 1 << 40  # pages
        assert armed[0].step == PAGES


async def test_reclaim_at_an_early_level_does_not_wake_the_loop(node: FakeNode, level: LevelFactory) -> None:
    async with node.watched(level(400), replace(level(300, working_set_mib=300), place_ahead=1)):
        node.uses(350)
        node.probe.tell(watch_record(RecordKind.RECLAIM, node.watch[0]))
        assert await node.quiet()


async def test_soft_and_hard_level_of_one_cgroup_share_its_watch(node: FakeNode, level: LevelFactory) -> None:
    async with node.watched(level(300, grace_seconds=30), level(400)):
        assert [300 * PAGES + 1, 400 * PAGES + 1] == [armed.fire for armed in node.watch[1]]


async def test_crossing_wakes_with_its_signal_at_the_kernels_time(
    node: FakeNode, level: LevelFactory
) -> None:
    async with node.watched(level(400)):
        node.probe.tell(watch_record(RecordKind.CROSSING, node.watch[0], at_ns=123))
        wake = await node.woken()
    assert (EBPF, 123, Signal.MEMORY_AVAILABLE) == (wake.source, wake.at_ns, wake.signal)
    assert node.board.state(EBPF).wakes == 1


async def test_record_of_a_watch_that_is_no_more_does_not_wake_the_loop(
    node: FakeNode, level: LevelFactory
) -> None:
    async with node.watched(level(400)):
        node.probe.tell(watch_record(RecordKind.CROSSING, 99))
        assert await node.quiet()


async def test_level_that_is_past_when_it_is_armed_wakes_once_and_is_reported_further_on(
    node: FakeNode, level: LevelFactory
) -> None:
    node.uses(450)
    async with node.watched(level(400)) as step:
        await node.woken()
        assert node.watch[1][0].reported == 450 * PAGES
        step.arm([level(400.25)])
        assert await node.quiet()


async def test_level_moves_with_the_page_cache_once_it_has_fired(node: FakeNode, level: LevelFactory) -> None:
    async with node.watched(level(400)) as step:
        node.probe.tell(watch_record(RecordKind.CROSSING, node.watch[0]))
        await node.woken()
        step.arm([level(401)])
        assert await node.quiet()
        assert 401 * PAGES + 1 == node.watch[1][0].fire


async def test_small_drift_of_an_armed_level_is_left_alone(node: FakeNode, level: LevelFactory) -> None:
    async with node.watched(level(400)) as step:
        step.arm([level(400.5)])
        assert await node.quiet()
        assert 400 * PAGES + 1 == node.watch[1][0].fire


async def test_cgroup_that_is_no_longer_asked_for_is_no_longer_watched(
    node: FakeNode, level: LevelFactory
) -> None:
    async with node.watched(level(400)) as step:
        step.arm([])
        assert await node.quiet()
        assert {} == node.probe.watches
        assert node.board.state(EBPF).detail == "no levels"


async def test_reclaim_wakes_only_where_the_working_set_is_at_a_level(
    node: FakeNode, level: LevelFactory
) -> None:
    node.uses(390, inactive_file_mib=200)
    async with node.watched(level(400, working_set_mib=300)):
        node.probe.tell(watch_record(RecordKind.RECLAIM, node.watch[0]))
        assert await node.quiet()
        node.uses(390, inactive_file_mib=50)
        node.probe.tell(watch_record(RecordKind.RECLAIM, node.watch[0]))
        await node.woken()
        node.probe.tell(watch_record(RecordKind.RECLAIM, node.watch[0]))
        assert await node.quiet()


async def test_lost_records_are_counted_and_wake(node: FakeNode, level: LevelFactory) -> None:
    async with node.watched(level(400)):
        node.probe.lost_records = 3
        os.eventfd_write(node.probe.fd, 1)
        await node.woken()
        assert node.board.state(EBPF).lost == 3


async def test_removal_whose_record_was_lost_is_found(node: FakeNode, level: LevelFactory) -> None:
    async with node.watched(level(400)):
        before = node.watch[0]
        (node.directory / "memory.current").write_text("gone")  # the real file gives ENODEV
        node.probe.lost_records = 1
        os.eventfd_write(node.probe.fd, 1)
        await node.woken()
        node.uses(50)
        assert await node.quiet()
        assert before != node.watch[0]


async def test_recreated_cgroup_is_watched_again(node: FakeNode, level: LevelFactory) -> None:
    async with node.watched(level(400)):
        before = node.watch[0]
        node.directory.rename(node.directory.with_name("gone"))
        node.directory.mkdir()
        node.uses(50)
        node.probe.tell(watch_record(RecordKind.REMOVED, before))
        await node.woken()
        assert await node.quiet()
        assert before != node.watch[0]


async def test_cgroup_that_stays_away_fails_the_source(node: FakeNode, level: LevelFactory) -> None:
    with pytest.RaisesGroup(FileNotFoundError, flatten_subgroups=True):
        async with node.watched(level(400)):
            before = node.watch[0]
            node.directory.rename(node.directory.with_name("gone"))
            node.probe.tell(watch_record(RecordKind.REMOVED, before))
            await trio.sleep(60)
    assert node.probe.closed


async def test_machine_is_watched_by_its_working_set(node: FakeNode, level: LevelFactory) -> None:
    async with node.watched(level(3500, "/", working_set_mib=3000)):
        assert node.probe.node is not None
        _, (armed,) = node.probe.node
        assert 3000 * PAGES + 1 == armed.fire


async def test_machine_that_can_not_be_watched_leaves_the_others_watched(
    node: FakeNode, level: LevelFactory
) -> None:
    node.probe.node_refusal = BpfError("eBPF object node", "needs CAP_SYSLOG")
    async with node.watched(level(3500, "/"), level(400)):
        assert 400 * PAGES + 1 == node.watch[1][0].fire
        assert "; not /: eBPF object node: needs CAP_SYSLOG" in node.board.state(EBPF).detail


async def test_machine_alone_that_can_not_be_watched_fails_the_source(
    node: FakeNode, level: LevelFactory
) -> None:
    node.probe.node_refusal = BpfError("eBPF object node", "needs CAP_SYSLOG")
    with pytest.RaisesGroup(BpfError, flatten_subgroups=True):
        async with node.watched(level(3500, "/")):
            await trio.sleep(60)


async def test_probe_is_closed_when_the_source_is_called_off(node: FakeNode, level: LevelFactory) -> None:
    async with node.watched(level(400)):
        assert not node.probe.closed
    assert node.probe.closed


async def test_full_map_is_one_line_that_names_it_and_the_probe_is_closed(
    node: FakeNode, level: LevelFactory
) -> None:
    full = OSError(errno.E2BIG, os.strerror(errno.E2BIG), "eBPF map memory_watches")
    node.probe.watch_refusal = full
    step = node.step()
    step.arm([level(400)])
    with pytest.raises(ExceptionGroup) as caught:
        await step.watch(lambda _: None)
    text = failure_text(caught.value)
    assert text == "[Errno 7] Argument list too long: 'eBPF map memory_watches'"
    assert node.probe.closed


async def test_refused_program_is_one_line_on_the_board_and_the_next_step_is_tried(
    node: FakeNode,
) -> None:
    node.failure = BpfError("eBPF object memory", "not loaded: Operation not permitted")
    failed, told = trio.Event(), []

    def note(state: SourceState) -> None:
        if state.health is SourceHealth.FAILED:
            told.append(state.detail)
            failed.set()

    wakes = Wakes(SourceBoard(note))
    source = Chain([node.step()], {}, wakes, kind=WakeKind.MEMORY)
    async with trio.open_nursery() as nursery:
        await nursery.start(source.run)
        with trio.fail_after(60):
            await failed.wait()
        nursery.cancel_scope.cancel()
    assert ["eBPF object memory: not loaded: Operation not permitted; the ticker is left"] == told


def test_source_is_off_on_cgroup_v1(node: FakeNode) -> None:
    v1 = CgroupTree(version=CgroupVersion.V1, memory_root=node.tree.memory_root)
    step = EbpfMemory(v1, node.wakes)
    assert "cgroup v1" in str(step.unavailable_because())


async def test_source_is_off_where_it_was_switched_off(node: FakeNode) -> None:
    allowed = switched_on(SourceSettings(ebpf=False))
    source = Chain([node.step()], allowed, node.wakes, kind=WakeKind.MEMORY)
    async with trio.open_nursery() as nursery:
        await nursery.start(source.run)
        state = node.board.state(EBPF)
        nursery.cancel_scope.cancel()
    assert (SourceHealth.OFF, "switched off in the configuration") == (state.health, state.detail)


def test_missing_object_is_why_it_is_off(node: FakeNode) -> None:
    class NotBuilt(EbpfMemory):
        bpf_object = "of-no-source"

    step = NotBuilt(node.tree, node.wakes, loader=EbpfLoader.LIBBPF)
    assert (step.unavailable_because() or "").startswith("eBPF object of-no-source.bpf.o: not in")


async def test_machine_is_counted_as_its_levels_are(node: FakeNode, level: LevelFactory) -> None:
    """With other watermarks the watch is made again, though the level has not moved."""
    watermarks = Watermarks(low_bytes=10 * MIB, reserved_bytes=50 * MIB)
    by_cache = replace(
        level(3500, "/", working_set_mib=3000), watermarks=watermarks, capacity_bytes=4000 * MIB
    )
    async with node.watched(by_cache) as step:
        assert node.probe.counts_available
        counting = NodeCounting(total=4000 * PAGES, reserved=50 * PAGES, low=10 * PAGES)
        assert counting == node.probe.node_counting
        assert node.probe.node is not None
        assert 3000 * PAGES + 1 == node.probe.node[1][0].fire
        step.arm([replace(by_cache, watermarks=replace(watermarks, low_bytes=12 * MIB))])
        await until(lambda: replace(counting, low=12 * PAGES) == node.probe.node_counting)


@pytest.mark.parametrize(("watermarks", "wakes"), [(None, 1), (Watermarks(), 0)])
async def test_reclaim_at_a_limit_is_no_crossing_of_what_active_cache_leaves_available(
    node: FakeNode, level: LevelFactory, watermarks: Watermarks | None, wakes: int
) -> None:
    """By the working set 400 MiB are used, and the level of 300 is crossed; as MemAvailable 100 are."""
    node.uses(420, inactive_file_mib=20)
    with (node.directory / "memory.stat").open("a") as stat:
        stat.write(f"active_file {300 * MIB}\n")
    one = replace(level(500, working_set_mib=300), watermarks=watermarks)
    async with node.watched(one):
        node.probe.tell(watch_record(RecordKind.RECLAIM, node.watch[0]))
        assert (wakes == 0) == await node.quiet()
