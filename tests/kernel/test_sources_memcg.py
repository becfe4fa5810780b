import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.memory_control import BorrowedHighs
from reactor.model.settings import Settings
from reactor.model.signals import Signal
from reactor.model.thresholds import Threshold, ThresholdValue
from reactor.model.wakes import SourceHealth
from reactor.sources.catalogue import MEMCG_EVENTFD, MEMCG_RECLAIM
from reactor.sources.levels import MemoryLevel
from reactor.sources.memcg import MemcgEventfd
from reactor.sources.memory import memory_chain
from reactor.sources.wakes import Wakes
from tests.support.processes import hog
from tests.support.this_machine import V1_ROOT, needs_memcg_v1, open_descriptors, remove_cgroup
from tests.support.waiting import until

pytestmark = needs_memcg_v1
MIB = 1 << 20
READER = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
with open(sys.argv[2], "rb") as file:
    while file.read(1 << 20):
        pass
"""
# Page tables alone: the one page of zeros is mapped at each 2 MiB.
PAGE_TABLES = """
import mmap, os, signal, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
held = []  # 1 MiB of tables each
for _ in range(int(sys.argv[2])):
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    held.append(mmap.mmap(-1, 512 << 20, flags=flags, prot=mmap.PROT_READ))
    held[-1].madvise(mmap.MADV_NOHUGEPAGE)
    for offset in range(0, 512 << 20, 2 << 20):
        held[-1][offset]
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def cgroup() -> Iterator[str]:
    name = f"/reactor-sources-{os.getpid()}"
    directory(name).mkdir()
    try:
        yield name
    finally:
        remove_cgroup(directory(name))


def directory(cgroup: str) -> Path:
    return V1_ROOT / cgroup[1:]


def level(
    cgroup: str, mib: float, *, amount: str = "100Mi", working_set_mib: int | None = None
) -> MemoryLevel:
    threshold = Threshold(
        signal=Signal.MEMORY_AVAILABLE, value=ThresholdValue(text=amount, amount=Fraction(100 * MIB))
    )
    return MemoryLevel(
        signal=Signal.MEMORY_AVAILABLE,
        cgroup=cgroup,
        level_bytes=int(mib * MIB),
        threshold=threshold,
        working_set_bytes=None if working_set_mib is None else working_set_mib * MIB,
    )


@contextmanager
def page_tables(directory: Path, *, mib: int) -> Iterator[None]:
    """Have a process hold so much kernel memory, and next to nothing else, in the cgroup."""
    command = [sys.executable, "-S", "-c", PAGE_TABLES, str(directory), str(mib)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        process.kill()


class Machine:
    """A memory source on this machine, armed."""

    def __init__(self) -> None:
        self.wakes = Wakes()
        self.board = self.wakes.board
        self.source = memory_chain(CgroupTree.discover(), Settings(), self.wakes, BorrowedHighs())

    async def woken_by(self, name: str) -> None:
        with trio.fail_after(90):
            while name not in {wake.source for wake in await self.wakes.wait()}:
                pass

    async def is_quiet(self, *, about: str = MEMCG_EVENTFD) -> bool:
        with trio.move_on_after(0.1) as nothing_came:
            await self.woken_by(about)
        return nothing_came.cancelled_caught

    async def armed_at(self, text: str) -> None:
        await until(lambda: text in self.board.state(MEMCG_EVENTFD).detail)


async def test_a_crossing_wakes_the_loop_either_way_and_its_absence_does_not(cgroup: str) -> None:
    machine = Machine()
    with hog(directory(cgroup)) as process:
        async with trio.open_nursery() as nursery:
            machine.source.arm([level(cgroup, 60)])
            await nursery.start(machine.source.run)
            assert MEMCG_EVENTFD == await machine.source.wait_armed()
            process.hold_mib(30)
            assert await machine.is_quiet()
            process.hold_mib(80)
            await machine.woken_by(MEMCG_EVENTFD)
            await machine.woken_by(MEMCG_EVENTFD)  # a second look, as usage may have dipped at the first
            assert await machine.is_quiet()
            process.hold_mib(10)
            await machine.woken_by(MEMCG_EVENTFD)
            nursery.cancel_scope.cancel()


async def test_a_level_that_kernel_memory_crosses_wakes_the_loop(cgroup: str) -> None:
    machine = Machine()
    async with trio.open_nursery() as nursery:
        machine.source.arm([level(cgroup, 40)])
        await nursery.start(machine.source.run)
        assert MEMCG_EVENTFD == await machine.source.wait_armed()
        with page_tables(directory(cgroup), mib=64):
            await machine.woken_by(MEMCG_EVENTFD)
        nursery.cancel_scope.cancel()


async def test_an_early_level_wakes_the_loop_and_rests_before_it_does_so_again(cgroup: str) -> None:
    machine = Machine()
    early = replace(level(cgroup, 60), place_ahead=1)
    with hog(directory(cgroup)) as process:
        async with trio.open_nursery() as nursery:
            machine.source.arm([level(cgroup, 200), early])
            await nursery.start(machine.source.run)
            await machine.armed_at("at 200Mi")
            await until(lambda: machine.board.state(MEMCG_EVENTFD).health is SourceHealth.ARMED)
            process.hold_mib(80)
            await machine.woken_by(MEMCG_EVENTFD)
            wakes = machine.board.state(MEMCG_EVENTFD).wakes
            process.hold_mib(30)
            process.hold_mib(80)
            assert wakes == machine.board.state(MEMCG_EVENTFD).wakes
            await machine.woken_by(MEMCG_EVENTFD)  # after its rest, for what happened in it
            nursery.cancel_scope.cancel()


async def test_an_early_level_does_not_rest_if_usage_has_fallen_below_it(cgroup: str) -> None:
    """The next crossing may follow a kill at once."""
    wakes, armed = Wakes(), trio.Event()
    source = MemcgEventfd(CgroupTree.discover(), wakes)
    source.early_pause_seconds = math.inf
    source.arm([replace(level(cgroup, 60), place_ahead=1)])
    with hog(directory(cgroup)) as process, trio.fail_after(90):
        process.hold_mib(80)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.watch, lambda _: armed.set())
            await armed.wait()
            for mib in (30, 80):
                await wakes.wait()
                process.hold_mib(mib)
            await wakes.wait()
            nursery.cancel_scope.cancel()


async def test_a_level_that_usage_is_past_already_wakes_once(cgroup: str) -> None:
    machine = Machine()
    with hog(directory(cgroup)) as process:
        process.hold_mib(80)
        async with trio.open_nursery() as nursery:
            machine.source.arm([level(cgroup, 60)])
            await nursery.start(machine.source.run)
            await machine.woken_by(MEMCG_EVENTFD)
            assert await machine.is_quiet()
            nursery.cancel_scope.cancel()


async def test_a_level_at_which_usage_stands_is_reported_once_usage_is_past_it(cgroup: str) -> None:
    """There a threshold is not met yet, and the kernel would not report what comes then."""
    machine = Machine()
    usage = directory(cgroup) / "memory.usage_in_bytes"
    with hog(directory(cgroup)) as process:
        process.hold_mib(80)
        at = replace(level(cgroup, 80), level_bytes=int(usage.read_text()))
        async with trio.open_nursery() as nursery:
            machine.source.arm([at])
            await nursery.start(machine.source.run)
            assert await machine.is_quiet()
            process.hold_mib(84)
            await machine.woken_by(MEMCG_EVENTFD)
            nursery.cancel_scope.cancel()


async def test_a_level_follows_the_page_cache_and_the_old_one_is_gone(cgroup: str) -> None:
    machine = Machine()
    with hog(directory(cgroup)) as process:
        async with trio.open_nursery() as nursery:
            machine.source.arm([level(cgroup, 60)])
            await nursery.start(machine.source.run)
            await machine.armed_at("at 60Mi")
            machine.source.arm([level(cgroup, 120)])
            await machine.armed_at("at 120Mi")
            process.hold_mib(90)
            assert await machine.is_quiet()
            process.hold_mib(140)
            await machine.woken_by(MEMCG_EVENTFD)
            nursery.cancel_scope.cancel()


async def test_levels_of_one_cgroup_are_told_apart(cgroup: str) -> None:
    machine = Machine()
    with hog(directory(cgroup)) as process:
        async with trio.open_nursery() as nursery:
            machine.source.arm([level(cgroup, 60), level(cgroup, 120, amount="40Mi")])
            await nursery.start(machine.source.run)
            await machine.armed_at("at 120Mi")
            for mib in (90, 140):
                process.hold_mib(mib)
                await machine.woken_by(MEMCG_EVENTFD)
            nursery.cancel_scope.cancel()


async def test_a_removed_cgroup_is_survived_and_watched_again_once_it_is_back(cgroup: str) -> None:
    machine = Machine()
    async with trio.open_nursery() as nursery:
        machine.source.arm([level(cgroup, 60)])
        await nursery.start(machine.source.run)
        await machine.armed_at("at 60Mi")
        remove_cgroup(directory(cgroup))
        await machine.woken_by(MEMCG_EVENTFD)
        await until(lambda: machine.board.state(MEMCG_EVENTFD).health is SourceHealth.FAILED)
        assert "the ticker is left" in machine.board.state(MEMCG_EVENTFD).detail
        directory(cgroup).mkdir()
        await machine.armed_at("at 60Mi")
        with hog(directory(cgroup)) as process:
            process.hold_mib(80)
            await machine.woken_by(MEMCG_EVENTFD)
        nursery.cancel_scope.cancel()


async def test_a_working_set_that_grows_into_the_page_cache_wakes_the_loop(
    cgroup: str, tmp_path: Path
) -> None:
    """Usage stands at the limit all the while, and crosses nothing."""
    (directory(cgroup) / "memory.limit_in_bytes").write_text(str(128 * MIB))
    machine = Machine()
    with hog(directory(cgroup)) as process:
        fill_page_cache(directory(cgroup), tmp_path / "cached", mib=200)
        async with trio.open_nursery() as nursery:
            machine.source.arm([level(cgroup, 150, working_set_mib=60)])
            await nursery.start(machine.source.run)
            await machine.armed_at("at 150Mi")
            await until(lambda: machine.board.state(MEMCG_RECLAIM).health is SourceHealth.ARMED)
            process.hold_mib(40)
            assert await machine.is_quiet(about=MEMCG_RECLAIM)
            process.hold_mib(80)
            await machine.woken_by(MEMCG_RECLAIM)
            assert 0 == machine.board.state(MEMCG_EVENTFD).wakes
            nursery.cancel_scope.cancel()


async def test_cancellation_leaves_no_descriptor(cgroup: str) -> None:
    await trio.to_thread.run_sync(lambda: None)
    before = open_descriptors()
    for _ in range(5):
        machine = Machine()
        async with trio.open_nursery() as nursery:
            machine.source.arm([level(cgroup, 60), level(cgroup, 120, amount="40Mi")])
            await nursery.start(machine.source.run)
            await trio.sleep(0.01)  # sometimes amid a registration
            nursery.cancel_scope.cancel()
    await until(lambda: before == open_descriptors(), "threads have closed what a registration left to them")


@pytest.mark.nightly
async def test_ten_thousand_rearmings_leak_no_descriptor(cgroup: str) -> None:
    """Each waits for an RCU grace period, so they are spread over many cgroups, which wait side by side."""
    rearmings, cgroups = 10_000, 100
    limiter = trio.to_thread.current_default_thread_limiter()
    threads, limiter.total_tokens = limiter.total_tokens, cgroups
    names = [f"{cgroup}/{number}" for number in range(cgroups)]
    with ExitStack() as owned:
        owned.callback(setattr, limiter, "total_tokens", threads)
        for name in names:
            directory(name).mkdir()
            owned.callback(remove_cgroup, directory(name))
        wakes = Wakes()
        board = wakes.board
        watch = MemcgEventfd(CgroupTree.discover(), wakes)
        rounds, arrived = 0, trio.Event()

        def armed(detail: str) -> None:
            nonlocal rounds
            rounds += 1
            arrived.set()

        before = open_descriptors()
        async with trio.open_nursery() as nursery:
            watch.arm([level(name, 50) for name in names])
            nursery.start_soon(watch.watch, armed)
            await arrived.wait()
            standing = open_descriptors()
            for number in range(rearmings // cgroups):
                arrived = trio.Event()
                watch.arm([level(name, 60 + 2 * (number % 2)) for name in names])
                with trio.fail_after(90):
                    await arrived.wait()
                assert standing == open_descriptors()
            nursery.cancel_scope.cancel()
        assert before == open_descriptors()
        assert 1 + rearmings // cgroups == rounds
    assert (0,) * 2 == (board.state(MEMCG_EVENTFD).wakes, board.state(MEMCG_EVENTFD).lost)


def fill_page_cache(directory: Path, path: Path, *, mib: int) -> None:
    """Read a file anew from within the cgroup, so that its pages are charged there."""
    path.write_bytes(bytes(mib * MIB))
    os.sync()
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    subprocess.run([sys.executable, "-c", READER, directory / "cgroup.procs", path], check=True)
