import dataclasses
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.model.settings import SourceSettings
from reactor.model.signals import Signal
from reactor.model.wakes import SourceHealth
from reactor.sources.catalogue import PROCESSES, SourceBoard
from reactor.sources.processes import ProcessChain, ProcessLevels, process_chain
from reactor.sources.wakes import Wakes
from tests.support.builders import make_threshold
from tests.support.this_machine import open_descriptors

pytestmark = pytest.mark.usefixtures("connector")
# What eBPF has to say here is tested in the virtual machines.
SETTINGS = SourceSettings(ebpf=False)
THRESHOLD = make_threshold(0, Signal.PID_AVAILABLE)
FORKER = Path(__file__).with_name("forker.c")


def new_source(wakes: Wakes) -> ProcessChain:
    return process_chain(CgroupTree.discover(), SETTINGS, wakes)


def margin_of(margin: int) -> ProcessLevels:
    return ProcessLevels(cgroup="/", limit=margin, used=0, thresholds=(THRESHOLD,))


@pytest.fixture(scope="module")
def connector() -> None:
    """Skip where the kernel does not grant the process connector."""

    async def ask() -> str:
        board = SourceBoard()
        async with trio.open_nursery() as nursery:
            source = new_source(Wakes(board))
            await nursery.start(source.run)
            with trio.move_on_after(3):
                await source.wait_armed()
            nursery.cancel_scope.cancel()
        state = board.state(PROCESSES)
        return "" if state.health is SourceHealth.ARMED else state.detail

    refusal = trio.run(ask)
    if refusal:
        pytest.skip(f"needs root, CONFIG_PROC_EVENTS and the initial pid namespace: {refusal}")


@pytest.fixture(scope="module")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: apt install gcc")
    program = tmp_path_factory.mktemp("forker") / "forker"
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-o", program, FORKER], check=True)
    return program


async def armed(nursery: trio.Nursery, source: ProcessChain, board: SourceBoard) -> None:
    with trio.fail_after(90):
        await nursery.start(source.run)
        await source.wait_armed()
    assert SourceHealth.ARMED is board.state(PROCESSES).health


class Steps(trio.abc.Instrument):
    """Counts the steps of tasks of a name, from now on."""

    def __init__(self, name: str) -> None:
        self.count = 0
        self._name = name
        trio.lowlevel.add_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += self._name in task.name


async def test_a_fork_near_the_threshold_wakes_the_loop() -> None:
    wakes = Wakes()
    board = wakes.board
    source = new_source(wakes)
    source.arm(margin_of(8))
    async with trio.open_nursery() as nursery:
        await armed(nursery, source, board)
        await wakes.wait()  # for what was forked before it listened
        with trio.fail_after(90):
            await trio.run_process(["true"])
            await wakes.wait()
        nursery.cancel_scope.cancel()


async def test_a_new_margin_changes_the_sample() -> None:
    board = SourceBoard()
    source = new_source(Wakes(board))
    async with trio.open_nursery() as nursery:
        await armed(nursery, source, board)
        source.arm(margin_of(800))
        assert "one fork in 64" == board.state(PROCESSES).detail
        source.arm(dataclasses.replace(margin_of(800), thresholds=()))
        assert "no threshold on pid.available" == board.state(PROCESSES).detail
        nursery.cancel_scope.cancel()


async def test_cancellation_leaves_no_descriptor() -> None:
    before = open_descriptors()
    for _ in range(5):
        board = SourceBoard()
        async with trio.open_nursery() as nursery:
            await armed(nursery, new_source(Wakes(board)), board)
            nursery.cancel_scope.cancel()
    assert before == open_descriptors()


@pytest.mark.parametrize("margin", [30_000, 3_000, 8])
async def test_a_fork_storm_wakes_the_loop_a_bounded_number_of_times(
    forker: Path, margin: int, capsys: pytest.CaptureFixture[str]
) -> None:
    wakes = Wakes()
    board = wakes.board
    source = new_source(wakes)
    source.arm(margin_of(margin))

    async def loop() -> None:
        while True:
            await wakes.wait()
            source.arm(margin_of(margin))

    async with trio.open_nursery() as nursery:
        await armed(nursery, source, board)
        nursery.start_soon(loop)
        began, cpu_began = time.monotonic(), time.process_time()
        done = await trio.run_process([forker, "20000", "2"], capture_stdout=True)
        seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu_began
        nursery.cancel_scope.cancel()
    wakes_given = board.state(PROCESSES).wakes
    with capsys.disabled():
        forks_per_second = int(done.stdout) / seconds
        print(
            f"\nmargin {margin}: {forks_per_second:.0f} forks/s cost {100 * cpu_seconds / seconds:.2f} % of"
            f" a CPU, {wakes_given} wakes"
        )
    assert 1 < wakes_given < 60 * seconds  # one in 20 ms at the most


async def test_without_a_threshold_forks_wake_nothing(forker: Path) -> None:
    """Each listener is reported to all others, so on a busy machine the count is not zero."""
    wakes = Wakes()
    board = wakes.board
    source = new_source(wakes)
    source.arm(ProcessLevels(cgroup="/", limit=30_000, used=0, thresholds=()))
    async with trio.open_nursery() as nursery:
        await armed(nursery, source, board)
        await wakes.wait()  # for what was forked before it listened
        steps = Steps("Chain._keep")
        await trio.run_process([forker, "20000", "2"], capture_stdout=True)
        trio.lowlevel.remove_instrument(steps)
        ended_ns = time.monotonic_ns()
        source.arm(margin_of(8))
        with trio.fail_after(90):
            await trio.run_process(["true"])
            taken = await wakes.wait()
        nursery.cancel_scope.cancel()
    assert all(wake.at_ns > ended_ns for wake in taken)
    assert steps.count < 200  # each report would be a step
