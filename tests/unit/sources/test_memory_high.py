import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.memory_control import BorrowedHigh, BorrowedHighs
from reactor.model.settings import Settings, SourceSettings
from reactor.model.wakes import SourceHealth, WakeKind
from reactor.sources.catalogue import MEMORY_HIGH, SourceBoard
from reactor.sources.chain import Chain
from reactor.sources.levels import MemoryLevel
from reactor.sources.memory import memory_chain
from reactor.sources.memory_high import MemoryHigh
from reactor.sources.wakes import Wakes
from tests.support.waiting import until

MIB = 1 << 20


_HIGH_BYTES = 24  # more than any limit has digits


class FakeNode:
    """A v2 cgroup /node as a directory of files; whoever writes them is the kernel."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "node"
        self.directory.mkdir()
        try:
            os.setxattr(self.directory, "user.reactor.probe", b"")
        except OSError:
            pytest.skip("needs a temporary directory with user extended attributes (pytest --basetemp)")
        self.tree = CgroupTree(version=CgroupVersion.V2, memory_root=root)
        self.wakes = Wakes()
        self.board = self.wakes.board
        self.high = "max"
        self.uses(50)
        self.happens(0)

    @property
    def high(self) -> str:
        return (self.directory / "memory.high").read_text().strip()

    @high.setter
    def high(self, text: str) -> None:
        # In one write over what is there: a control file is never found empty.
        with (self.directory / "memory.high").open("ab"):
            pass
        with (self.directory / "memory.high").open("r+b", buffering=0) as file:
            file.write(f"{text}\n".encode().ljust(_HIGH_BYTES, b"\n"))

    def uses(self, mib: int, *, inactive_file_mib: int = 0) -> None:
        (self.directory / "memory.stat").write_text(f"inactive_file {inactive_file_mib * MIB}\n")
        (self.directory / "memory.current").write_text(f"{mib * MIB}\n")

    def happens(self, count: int, *names: str) -> None:
        """Count in these files, in both at the cgroup's own level."""
        for name in names or ("memory.events.local", "memory.events"):
            (self.directory / name).write_text(f"low 0\nhigh {count}\nmax 0\noom 0\noom_kill 0\n")

    @asynccontextmanager
    async def watched(
        self, *levels: MemoryLevel, highs: BorrowedHighs | None = None
    ) -> AsyncIterator[MemoryHigh]:
        step = MemoryHigh(self.tree, self.wakes, highs or BorrowedHighs())
        step.arm(levels)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                step.watch, lambda detail: self.board.set(MEMORY_HIGH, SourceHealth.ARMED, detail)
            )
            yield step
            nursery.cancel_scope.cancel()

    async def woken(self) -> None:
        with trio.fail_after(600):
            assert (MEMORY_HIGH,) == tuple(wake.source for wake in await self.wakes.wait())

    async def quiet(self) -> bool:
        with trio.move_on_after(3) as nothing_came:
            await self.wakes.wait()
        return nothing_came.cancelled_caught


# By a clock that runs 20 times as fast.
eventually = partial(until, seconds=600.0, pause_seconds=0.05)


@pytest.fixture
def node(tmp_path: Path, mock_clock: trio.testing.MockClock) -> FakeNode:
    mock_clock.rate = 20
    return FakeNode(tmp_path)


async def test_it_sets_the_level_and_puts_back_what_was_there(node: FakeNode, level, mock_clock) -> None:
    node.high = str(900 * MIB)
    async with node.watched(level(100)):
        await eventually(lambda: node.high == str(100 * MIB))
    assert str(900 * MIB) == node.high
    assert "user.reactor.memory_high" not in os.listxattr(node.directory)


async def test_the_level_stays_while_a_pod_is_throttled_at_its_own(node: FakeNode, level, mock_clock) -> None:
    # With MemoryQoS the kubelet sets memory.high of pods, which may be past it all the time.
    async with node.watched(level(100)):
        await eventually(lambda: node.high == str(100 * MIB))
        seen = set()
        for count in range(1, 40):
            node.happens(count, "memory.events")
            await trio.sleep(0.1)
            seen.add(node.high)
    assert {str(100 * MIB)} == seen


async def test_a_lower_value_of_the_operators_is_left_alone(node: FakeNode, level, mock_clock) -> None:
    node.high = str(80 * MIB)
    async with node.watched(level(100)):
        await eventually(lambda: "has a lower" in node.board.state(MEMORY_HIGH).detail)
        assert str(80 * MIB) == node.high
    assert str(80 * MIB) == node.high


async def test_a_value_that_the_operator_sets_meanwhile_stays(node: FakeNode, level, mock_clock) -> None:
    async with node.watched(level(100)):
        await eventually(lambda: node.high == str(100 * MIB))
        node.high = str(700 * MIB)
    assert str(700 * MIB) == node.high


async def test_a_level_that_is_overwritten_is_set_again_and_the_foreign_one_put_back(
    node: FakeNode, level, mock_clock
) -> None:
    async with node.watched(level(100, working_set_mib=100)):
        await eventually(lambda: node.high == str(100 * MIB))
        for theirs in ("max", str(700 * MIB)):
            node.high = theirs
            await eventually(lambda: node.high == str(100 * MIB))
        node.uses(100)
        node.happens(1)
        await node.woken()
    assert str(700 * MIB) == node.high


async def test_a_level_that_is_overwritten_by_a_lower_one_is_given_up(
    node: FakeNode, level, mock_clock
) -> None:
    async with node.watched(level(100)):
        await eventually(lambda: node.high == str(100 * MIB))
        node.high = str(60 * MIB)
        await eventually(lambda: "has a lower" in node.board.state(MEMORY_HIGH).detail)
        assert str(60 * MIB) == node.high
    assert str(60 * MIB) == node.high


async def test_a_hard_crossing_wakes_and_throttles_briefly(node: FakeNode, level, mock_clock) -> None:
    async with node.watched(level(100, working_set_mib=100)):
        await eventually(lambda: node.high == str(100 * MIB))
        mock_clock.rate = 1  # or it might be over before it is looked at
        node.uses(100)
        node.happens(1)
        await node.woken()
        assert str(100 * MIB) == node.high
        mock_clock.rate = 20
        await eventually(lambda: node.high == "max")
        node.uses(20)
        await eventually(lambda: node.high == str(100 * MIB))
        await node.quiet()  # what came while it was past
        assert await node.quiet()


async def test_a_level_that_stays_met_wakes_the_loop_again_ever_more_rarely(
    node: FakeNode, level, mock_clock
) -> None:
    async with node.watched(level(100, working_set_mib=100)):
        await eventually(lambda: node.high == str(100 * MIB))
        node.uses(100)
        node.happens(1)
        began = trio.current_time()
        for _ in range(6):
            await node.woken()
        assert trio.current_time() - began > 10


async def test_usage_that_meets_a_level_while_it_is_being_set_wakes_the_loop_without_an_event(
    node: FakeNode, level, mock_clock
) -> None:
    class Slow(BorrowedHigh):
        def set(self, high_bytes: int) -> bool:
            stands = super().set(high_bytes)
            if stands:
                node.uses(100)
            return stands

    class Highs(BorrowedHighs):
        def of(self, directory: Path) -> BorrowedHigh:
            return Slow(directory)

    async with node.watched(level(100, working_set_mib=100), highs=Highs()):
        await node.woken()


async def test_a_soft_crossing_wakes_and_does_not_throttle(node: FakeNode, level, mock_clock) -> None:
    async with node.watched(level(100, working_set_mib=100, grace_seconds=60)):
        await eventually(lambda: node.high == str(100 * MIB))
        node.uses(100)
        node.happens(1)
        await node.woken()
        await eventually(lambda: node.high == "max")


async def test_page_cache_neither_throttles_nor_wakes(node: FakeNode, level, mock_clock) -> None:
    async with node.watched(level(100, working_set_mib=100)) as step:
        await eventually(lambda: node.high == str(100 * MIB))
        node.uses(100, inactive_file_mib=50)
        node.happens(1)
        await eventually(lambda: node.high == "max")
        assert await node.quiet()
        step.arm([level(150, working_set_mib=100)])
        await eventually(lambda: node.high == str(150 * MIB))


async def test_a_level_that_is_met_a_little_short_wakes_the_loop_again_once_it_is_passed(
    node: FakeNode, level, mock_clock
) -> None:
    async with node.watched(level(100, working_set_mib=100)):
        await eventually(lambda: node.high == str(100 * MIB))
        (node.directory / "memory.current").write_text(f"{100 * MIB - 4096}\n")
        node.happens(1)
        await node.woken()
        node.uses(101)
        await node.woken()


async def test_once_usage_is_down_the_level_is_set_again(node: FakeNode, level, mock_clock) -> None:
    async with node.watched(level(100, working_set_mib=100)):
        node.uses(110)
        await node.woken()
        node.uses(20)
        await eventually(lambda: node.high == str(100 * MIB))
        node.uses(110)
        node.happens(1)
        await node.woken()


async def test_what_a_killed_daemon_left_is_put_back(node: FakeNode) -> None:
    node.high = str(900 * MIB)
    BorrowedHigh(node.directory).set(100 * MIB)
    BorrowedHigh(node.directory).set(120 * MIB)
    assert str(120 * MIB) == node.high
    BorrowedHigh(node.directory).restore()
    assert str(900 * MIB) == node.high


async def test_a_daemon_killed_between_the_attribute_and_the_file_loses_nothing(node: FakeNode) -> None:
    node.high = str(900 * MIB)
    BorrowedHigh(node.directory).set(100 * MIB)
    remembered = f"{900 * MIB} {120 * MIB} {100 * MIB}".encode()
    os.setxattr(node.directory, "user.reactor.memory_high", remembered)
    BorrowedHigh(node.directory).restore()
    assert str(900 * MIB) == node.high


async def test_in_a_dry_run_no_task_is_throttled(
    tmp_path: Path, level, autojump_clock: trio.testing.MockClock
) -> None:
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=tmp_path)
    settings = Settings(sources=SourceSettings(ebpf=False), dry_run=True)
    board = SourceBoard()
    source = memory_chain(tree, settings, Wakes(board), BorrowedHighs())
    source.arm([level(100, "/node")])
    async with trio.open_nursery() as nursery:
        await nursery.start(source.run)
        assert (SourceHealth.OFF, "switched off in the configuration") == (
            board.state(MEMORY_HIGH).health,
            board.state(MEMORY_HIGH).detail,
        )
        nursery.cancel_scope.cancel()


async def test_a_vanished_cgroup_and_the_root_are_failures_that_the_chain_survives(
    tmp_path: Path, level, autojump_clock
) -> None:
    tree = CgroupTree(version=CgroupVersion.V2, memory_root=tmp_path)
    for cgroup, reason in (("/gone", "memory.current"), ("/", "root cgroup has no memory.high")):
        board = SourceBoard()
        wakes = Wakes(board)
        step = MemoryHigh(tree, wakes, BorrowedHighs())
        source = Chain([step], {}, wakes, kind=WakeKind.MEMORY)
        source.arm([level(100, cgroup)])
        async with trio.open_nursery() as nursery:
            await nursery.start(source.run)
            await trio.sleep(60)
            assert SourceHealth.FAILED is board.state(MEMORY_HIGH).health
            assert reason in board.state(MEMORY_HIGH).detail
            nursery.cancel_scope.cancel()
