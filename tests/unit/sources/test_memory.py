import os
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from reactor.errors import BpfError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.settings import SourceSettings
from reactor.model.wakes import SourceHealth, WakeKind
from reactor.sources.catalogue import MEMCG_EVENTFD, switched_on
from reactor.sources.chain import Chain as SourceChain
from reactor.sources.levels import FLOOR
from reactor.sources.memcg import MemcgEventfd
from reactor.sources.wakes import Wakes
from tests.support.this_machine import open_descriptors

MIB = 1 << 20


class Step:
    """A step whose fate the test decides."""

    def __init__(self, name: str, *, missing: str | None = None) -> None:
        self.name = name
        self.missing = missing
        self.works = True
        self.takes_seconds = 0.0
        self.watching = False
        self.levels: tuple[object, ...] = ()
        self.fate = trio.Event()

    def unavailable_because(self) -> str | None:
        return self.missing

    def arm(self, levels) -> None:
        self.levels = tuple(levels)

    async def watch(self, armed) -> None:
        if not self.works:
            raise OSError(19, "broken")
        await trio.sleep(self.takes_seconds)
        self.watching = True
        try:
            armed("here")
            self.fate = trio.Event()
            await self.fate.wait()
        finally:
            self.watching = False
        raise OSError(19, "broken")

    def breaks(self) -> None:
        self.works = False
        self.fate.set()


class Chain:
    def __init__(
        self, *steps: Step, hints: tuple[Step, ...] = (), sources: SourceSettings | None = None
    ) -> None:
        self.wakes = Wakes()
        self.board = self.wakes.board
        allowed = switched_on(sources or SourceSettings())
        self.source = SourceChain(steps, allowed, self.wakes, kind=WakeKind.MEMORY, hints=hints)

    def healths(self) -> dict[str, str]:
        return {state.name: state.health.value for state in self.board.states()}


async def test_one_step_watches_and_the_others_stand_by(autojump_clock: trio.testing.MockClock) -> None:
    first, second = Step("first"), Step("second")
    chain = Chain(first, second)
    async with trio.open_nursery() as nursery:
        await nursery.start(chain.source.run)
        await trio.sleep(1)
        assert (True, False) == (first.watching, second.watching)
        assert {"first": "armed", "second": "off"} == chain.healths()
        assert "first is armed" == chain.board.state("second").detail
        nursery.cancel_scope.cancel()
    assert not first.watching


async def test_a_step_that_fails_is_stood_in_for_until_it_works_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, second = Step("first"), Step("second")
    chain = Chain(first, second)
    async with trio.open_nursery() as nursery:
        await nursery.start(chain.source.run)
        assert "first" == await chain.source.wait_armed()
        first.breaks()
        await trio.sleep(60)
        assert (False, True) == (first.watching, second.watching)
        assert {"first": "degraded", "second": "armed"} == chain.healths()
        assert "[Errno 19] broken; second stands in" == chain.board.state("first").detail
        first.works = True
        await trio.sleep(60)
        assert (True, False) == (first.watching, second.watching)
        assert {"first": "armed", "second": "off"} == chain.healths()
        nursery.cancel_scope.cancel()


class Torn(Step):
    """A step in which a task fails while it is called off: a cancellation and a failure in one group."""

    async def watch(self, armed) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().watch, armed)
            nursery.start_soon(self.fail_at_the_end)

    async def fail_at_the_end(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError(9, "torn")


async def test_a_step_that_fails_while_it_is_called_off_fails_no_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, second = Step("first"), Torn("second")
    first.works = False
    chain = Chain(first, second)
    async with trio.open_nursery() as nursery:
        await nursery.start(chain.source.run)
        assert "second" == await chain.source.wait_armed()
        first.works = True
        await trio.sleep(60)
        assert (True, False) == (first.watching, second.watching)
        assert {"first": "armed", "second": "off"} == chain.healths()
        nursery.cancel_scope.cancel()


async def test_a_step_and_a_hint_that_fail_while_the_source_is_stopped_raise_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = Chain(Torn("first"), hints=(Torn("hint"),))
    with trio.move_on_after(5):
        await chain.source.run()


async def test_a_step_that_takes_long_to_arm_is_stood_in_for_meanwhile(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, second = Step("first"), Step("second")
    first.takes_seconds = 40
    chain = Chain(first, second)
    async with trio.open_nursery() as nursery:
        await nursery.start(chain.source.run)
        assert "second" == await chain.source.wait_armed()
        assert trio.current_time() < 2
        assert {"first": "off", "second": "armed"} == chain.healths()
        assert "not armed yet; second stands in" == chain.board.state("first").detail
        await trio.sleep(60)
        assert (True, False) == (first.watching, second.watching)
        assert {"first": "armed", "second": "off"} == chain.healths()
        nursery.cancel_scope.cancel()


async def test_a_step_that_could_not_stand_in_is_no_loss_once_the_one_before_it_is_armed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, second = Step("first"), Step("second")
    first.takes_seconds, second.works = 5.0, False
    chain = Chain(first, second)
    async with trio.open_nursery() as nursery:
        await nursery.start(chain.source.run)
        await trio.sleep(3)
        assert {"first": "off", "second": "failed"} == chain.healths()
        await trio.sleep(60)
        assert {"first": "armed", "second": "off"} == chain.healths()
        assert "first is armed" == chain.board.state("second").detail
        nursery.cancel_scope.cancel()


async def test_a_step_that_arms_within_a_moment_is_not_stood_in_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, second = Step("first"), Step("second")
    first.takes_seconds = 0.5
    chain = Chain(first, second)
    async with trio.open_nursery() as nursery:
        await nursery.start(chain.source.run)
        assert "first" == await chain.source.wait_armed()
        assert "off" == chain.healths()["second"]
        nursery.cancel_scope.cancel()


async def test_a_node_that_refuses_is_asked_less_and_less_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked = []

    class Refused(Step):
        async def watch(self, _) -> None:
            asked.append(trio.current_time())
            raise BpfError("eBPF object memory", "needs CAP_BPF")

    chain = Chain(Refused("first"), Step("second"))
    async with trio.open_nursery() as nursery:
        await nursery.start(chain.source.run)
        await trio.sleep(24 * 3600)
        assert 600 == pytest.approx(asked[-1] - asked[-2])
        assert len(asked) < 170
        nursery.cancel_scope.cancel()


async def test_a_failure_wakes_the_loop_for_what_was_missed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first = Step("first")
    chain = Chain(first)
    async with trio.open_nursery() as nursery:
        await nursery.start(chain.source.run)
        await chain.source.wait_armed()
        first.breaks()
        assert "first" == (await chain.wakes.wait())[0].source
        await trio.sleep(10)
        assert "[Errno 19] broken; the ticker is left" == chain.board.state("first").detail
        assert SourceHealth.FAILED is chain.board.state("first").health
        nursery.cancel_scope.cancel()


async def test_what_a_node_lacks_or_its_operator_forbids_is_off_and_says_why(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = Chain(
        Step(MEMCG_EVENTFD),
        Step("lacking", missing="no such kernel"),
        hints=(Step("psi"),),
        sources=SourceSettings(memcg=False, psi=False),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(chain.source.run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert {MEMCG_EVENTFD: "off", "lacking": "off", "psi": "off"} == chain.healths()
    assert "switched off in the configuration" == chain.board.state(MEMCG_EVENTFD).detail
    assert "no such kernel" == chain.board.state("lacking").detail


async def test_levels_reach_every_step_and_hint_before_and_after_the_start(
    level, autojump_clock: trio.testing.MockClock
) -> None:
    steps = Step("first"), Step("second"), Step("hint")
    chain = Chain(*steps[:2], hints=steps[2:])
    chain.source.arm([level(1)])
    assert all((level(1),) == step.levels for step in steps)


def test_what_this_node_can_not_have_is_given_no_levels(level) -> None:
    missing, step = Step("missing", missing="no such file"), Step("step")
    no_hint, hint = Step("no hint", missing="no such file"), Step("hint")
    Chain(missing, step, hints=(no_hint, hint)).source.arm([level(1)])
    assert [(), (), 1, 1] == [missing.levels, no_hint.levels, len(step.levels), len(hint.levels)]


async def test_a_hint_runs_beside_the_chain_and_its_failure_concerns_no_other_source(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, hint = Step("first"), Step("hint")
    chain = Chain(first, hints=(hint,))
    async with trio.open_nursery() as nursery:
        await nursery.start(chain.source.run)
        await trio.sleep(1)
        hint.breaks()
        await trio.sleep(1)
        assert {"first": "armed", "hint": "failed"} == chain.healths()
        nursery.cancel_scope.cancel()


@pytest.fixture
def fake_cgroup(tmp_path: Path) -> Path:
    directory = tmp_path / "node"
    directory.mkdir()
    for name, text in (
        ("memory.usage_in_bytes", f"{50 * MIB}\n"),
        ("memory.stat", "total_inactive_file 0\n"),
        ("cgroup.event_control", ""),
    ):
        (directory / name).write_text(text)
    return directory


def registered(directory: Path) -> tuple[int, int]:
    """Return the eventfd and the level that the source wrote for the kernel to read."""
    event_fd, _, level_bytes = (directory / "cgroup.event_control").read_text().split()
    return int(event_fd), int(level_bytes)


async def test_the_kernels_signal_wakes_the_loop_and_a_garbled_counter_fails_the_watch(
    fake_cgroup: Path, level
) -> None:
    wakes = Wakes()
    board = wakes.board
    tree = CgroupTree(version=CgroupVersion.V1, memory_root=fake_cgroup.parent)
    source = SourceChain([MemcgEventfd(tree, wakes)], {}, wakes, kind=WakeKind.MEMORY)
    descriptors = open_descriptors()
    async with trio.open_nursery() as nursery:
        source.arm([level(60)])
        await nursery.start(source.run)
        with trio.fail_after(90):
            await source.wait_armed()
            event_fd, level_bytes = registered(fake_cgroup)
            assert 60 * MIB + os.sysconf("SC_PAGE_SIZE") == level_bytes, "the first page past it"
            os.eventfd_write(event_fd, 1)
            assert MEMCG_EVENTFD == (await wakes.wait())[0].source
            (fake_cgroup / "memory.usage_in_bytes").write_text("garbage\n")
            os.eventfd_write(event_fd, 1)
            await wakes.wait()
            while board.state(MEMCG_EVENTFD).health is not SourceHealth.FAILED:
                await wakes.wait()
        assert "garbage" in board.state(MEMCG_EVENTFD).detail
        nursery.cancel_scope.cancel()
    assert descriptors == open_descriptors()


async def test_a_crossing_before_the_registration_stood_wakes_the_loop(fake_cgroup: Path, level) -> None:
    wakes = Wakes()
    tree = CgroupTree(version=CgroupVersion.V1, memory_root=fake_cgroup.parent)
    step = MemcgEventfd(tree, wakes)
    step.arm([level(40)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(step.watch, lambda _: None)
        with trio.fail_after(90):
            await wakes.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("nearer", "is_seen_soon"), [(None, False), (1, False), (FLOOR, True)], ids=["none", "early", "floor"]
)
async def test_a_crossing_that_the_kernel_does_not_report_is_seen_on_a_beat_in_proportion_to_what_is_left(
    fake_cgroup: Path, level, mock_clock: trio.testing.MockClock, nearer: int | None, *, is_seen_soon: bool
) -> None:
    """With 512 MiB left each 2 s; by the nearest level at which something may be crossed."""
    wakes = Wakes()
    step = MemcgEventfd(CgroupTree(version=CgroupVersion.V1, memory_root=fake_cgroup.parent), wakes)
    step.arm([level(562), *([] if nearer is None else [replace(level(90), place_ahead=nearer)])])
    armed = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(step.watch, lambda _: armed.set())
        await armed.wait()
        for jump_seconds in (1.0, 1.0):  # what is left is known from then on; the next check is at 4 s
            mock_clock.jump(jump_seconds)
            await trio.testing.wait_all_tasks_blocked(0.001)
        (fake_cgroup / "memory.usage_in_bytes").write_text(f"{563 * MIB}\n")
        seen = []
        for jump_seconds in (1.9, 0.1, 0.1):
            mock_clock.jump(jump_seconds)
            await trio.testing.wait_all_tasks_blocked(0.001)
            mock_clock.jump(0.005)
            await trio.testing.wait_all_tasks_blocked(0.001)
            seen.append(bool(wakes.board.state(MEMCG_EVENTFD).wakes))
        assert [is_seen_soon, True, True] == seen
        nursery.cancel_scope.cancel()


async def test_a_usage_that_swings_about_a_level_does_not_starve_the_loop(
    fake_cgroup: Path, level, mock_clock: trio.testing.MockClock
) -> None:
    wakes = Wakes()
    board = wakes.board
    tree = CgroupTree(version=CgroupVersion.V1, memory_root=fake_cgroup.parent)
    step = MemcgEventfd(tree, wakes)
    step.arm([level(60)])
    armed = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(step.watch, lambda _: armed.set())
        await armed.wait()
        event_fd, _ = registered(fake_cgroup)
        for _ in range(200):
            os.eventfd_write(event_fd, 1)
            await trio.testing.wait_all_tasks_blocked(0.0002)
        assert board.state(MEMCG_EVENTFD).wakes <= 33
        mock_clock.jump(0.011)
        await trio.testing.wait_all_tasks_blocked(0.001)
        assert board.state(MEMCG_EVENTFD).wakes <= 34
        nursery.cancel_scope.cancel()
