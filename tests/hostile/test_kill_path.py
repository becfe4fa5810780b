"""Pods whose cgroups were made to be hard to kill: endless paths, nests, thousands of cgroups, odd names.

On cgroup v1 as the machine has it, and through cgroup.kill in a v2 hierarchy without controllers.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from reactor.act.kill_path import KillPath
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.pods import Pod
from tests.support.this_machine import open_descriptors
from tests.support.waiting import PATIENCE, until
from tests.support.yard import Yard

pytestmark = pytest.mark.suite("hostile trees")

LONG = "n" * 240
ODD = os.fsdecode(b"\xff\xfe \x1b[2J'\"\\")


class Nest:
    """Cgroups below one another in the memory hierarchy, reached by descriptors alone."""

    def __init__(self, yard: Yard, pod: Pod, names: Sequence[str]) -> None:
        self._names = names
        fd = os.open(yard.tree.path(pod.cgroup or ""), os.O_RDONLY)
        for name in names:
            os.mkdir(name, dir_fd=fd)
            fd = _step(fd, name)
        self._innermost = fd

    def enter(self, pid: int) -> None:
        """Move a process into the innermost cgroup."""
        fd = os.open("cgroup.procs", os.O_WRONLY, dir_fd=self._innermost)
        os.write(fd, str(pid).encode())
        os.close(fd)

    def remove(self) -> None:
        fd = self._innermost
        for name in reversed(self._names):
            fd = _step(fd, "..")
            os.rmdir(name, dir_fd=fd)
        os.close(fd)


def _step(fd: int, name: str) -> int:
    below = os.open(name, os.O_RDONLY, dir_fd=fd)
    os.close(fd)
    return below


def died_ns(child: subprocess.Popen[str], found: list[int]) -> threading.Thread:
    """Return a thread that notes when a process dies."""
    pidfd = os.pidfd_open(child.pid)

    def wait() -> None:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll(60_000)
        found.append(time.monotonic_ns())
        os.close(pidfd)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def is_killed(pid: int) -> bool:
    """Return whether a child has had SIGKILL, which it may not have been scheduled for yet."""
    fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    pending = int(fields["ShdPnd"], 16) | int(fields["SigPnd"], 16)
    return fields["State"][0] in "ZX" or bool(pending >> (signal.SIGKILL - 1) & 1)


@pytest.mark.parametrize(
    "names",
    [[LONG] * 18, ["x"] * 1_100, [ODD] * 40, [LONG] * 100],
    ids=["long", "deep", "odd", "long-and-deep"],
)
@pytest.mark.parametrize("prepared", [0, 1], ids=["unprepared", "prepared"])
async def test_a_process_at_the_end_of_a_path_of_any_length_dies_as_any_other(
    yard: Yard, kill_path: KillPath, names: Sequence[str], prepared: int
) -> None:
    pod = yard.pod()
    innermost, outer = yard.spawn(pod.cgroup), yard.spawn(pod.cgroup)
    nest = Nest(yard, pod, names)
    try:
        nest.enter(innermost.pid)
        before = open_descriptors()
        kill_path.prepare([pod] * prepared)
        report = kill_path.kill_now(pod)
        reaped = await kill_path.reap(pod)  # which signals who is far below
        assert reaped.freed_ns is not None
        assert () == (*report.problems, *reaped.problems)
        assert [-signal.SIGKILL] * 2 == [child.wait(10 * PATIENCE) for child in (innermost, outer)]
        kill_path.prepare(())
        # The thread that releases memory closes its own, maybe after the processes have gone.
        await until(lambda: before >= open_descriptors(), "no descriptor more")
    finally:
        with suppress(ProcessLookupError):
            innermost.kill()
        innermost.wait()
        nest.remove()


@pytest.fixture
def four_thousand(yard: Yard) -> Iterator[Pod]:
    """Return a pod with as many empty cgroups in it, side by side."""
    pod = yard.pod()
    directory = yard.tree.path(pod.cgroup or "")
    for number in range(4_000):
        (directory / f"empty{number}").mkdir()
    yield pod
    for child in yard.children:
        child.kill()
        child.wait()
    for number in range(4_000):
        (directory / f"empty{number}").rmdir()


async def test_thousands_of_empty_cgroups_delay_neither_the_signal_nor_what_else_is_to_be_done(
    yard: Yard, kill_path: KillPath, four_thousand: Pod, record_property: Callable[[str, object], None]
) -> None:
    hog = yard.spawn(four_thousand.cgroup)
    hidden = yard.spawn(four_thousand.cgroup)
    last = yard.tree.path(four_thousand.cgroup or "") / "empty3999"
    (last / "cgroup.procs").write_text(str(hidden.pid))
    found: list[int] = []
    listing_ns = -time.monotonic_ns()
    assert {hog.pid, hidden.pid} == set(yard.tree.processes(four_thousand.cgroup or ""))
    listing_ns += time.monotonic_ns()
    thread = died_ns(hog, found)
    async with trio.open_nursery() as nursery:
        longest_ns, turns = turns_of_another(nursery)
        await trio.sleep(0.01)
        began_ns = time.monotonic_ns()
        report = kill_path.kill_now(four_thousand)
        returned_ns, before = time.monotonic_ns(), turns()
        signalled = [is_killed(child.pid) for child in (hog, hidden)]
        reaped = await kill_path.reap(four_thousand)
        nursery.cancel_scope.cancel()
    thread.join()
    to_death, to_return = found[0] - began_ns, returned_ns - began_ns
    assert reaped.freed_ns is not None
    to_end = reaped.freed_ns - began_ns
    figures = {
        "listed": listing_ns,
        "dead": to_death,
        "returned": to_return,
        "ended": to_end,
        "longest_hold": longest_ns(),
    }
    print(", ".join(f"{what} {ns / 1e6:.2f} ms" for what, ns in figures.items()))
    for what, ns in figures.items():
        record_property(f"{what}_ms", ns / 1e6)
    assert () == (*report.problems, *reaped.problems)
    assert [-signal.SIGKILL] * 2 == [child.wait(10 * PATIENCE) for child in (hog, hidden)]
    # The process is signalled before the cgroups below its own are listed; v2 kills in all of them by itself.
    assert [True, yard.tree.version is CgroupVersion.V2] == signalled
    if yard.tree.version is CgroupVersion.V1:
        # Three rounds go over all of them: others have their turn between their pieces of 64.
        assert turns() - before > 4_000 / 64


def turns_of_another(nursery: trio.Nursery) -> tuple[Callable[[], int], Callable[[], int]]:
    """Start a task that runs whenever it can; return what tells the longest wait, in ns, and its turns."""
    longest, turns = [0], [0]

    async def run() -> None:
        last_ns = time.monotonic_ns()
        while True:
            await trio.lowlevel.checkpoint()
            now_ns = time.monotonic_ns()
            longest[0], last_ns = max(longest[0], now_ns - last_ns), now_ns
            turns[0] += 1

    nursery.start_soon(run)
    return lambda: longest[0], lambda: turns[0]
