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

import pytest

from reactor.act.kill import KillPath
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.model.pods import Pod
from tests.support.this_machine import open_descriptors
from tests.support.waiting import PATIENCE
from tests.support.yard import Yard, tree_of, yard_in

pytestmark = pytest.mark.suite("hostile trees")

LONG = "n" * 240
ODD = os.fsdecode(b"\xff\xfe \x1b[2J'\"\\")


@pytest.fixture(params=list(CgroupVersion))
def yard(request: pytest.FixtureRequest) -> Iterator[Yard]:
    with yard_in(tree_of(request.param)) as made:
        yield made


@pytest.fixture
def kill_path(yard: Yard) -> Iterator[KillPath]:
    path = KillPath(yard.tree, (yard.parent,))
    yield path
    path.close()


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
        kill_path.get_ready([pod] * prepared)
        report = kill_path.kill_now(pod)
        assert () == report.problems
        assert [-signal.SIGKILL] * 2 == [child.wait(10 * PATIENCE) for child in (innermost, outer)]
        assert (await kill_path.reap(pod)).freed_ns is not None
        kill_path.get_ready(())
        assert before >= open_descriptors()
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


async def test_thousands_of_empty_cgroups_delay_the_end_of_the_kill_and_not_the_signal(
    yard: Yard, kill_path: KillPath, four_thousand: Pod, record_property: Callable[[str, object], None]
) -> None:
    hog = yard.spawn(four_thousand.cgroup)
    found: list[int] = []
    thread = died_ns(hog, found)
    report = kill_path.kill_now(four_thousand)
    returned_ns = time.monotonic_ns()
    thread.join()
    to_death, to_return = found[0] - report.started_ns, returned_ns - report.started_ns
    print(f"dead after {to_death / 1e6:.2f} ms, the kill returned after {to_return / 1e6:.2f} ms")
    record_property("dead_after_ms", to_death / 1e6)
    record_property("returned_after_ms", to_return / 1e6)
    assert () == report.problems
    assert -signal.SIGKILL == hog.wait(10 * PATIENCE)
    if yard.tree.version is CgroupVersion.V1:
        # Two rounds go over all of them; the signal comes before the first has begun with that.
        assert to_death < to_return / 4
    assert (await kill_path.reap(four_thousand)).freed_ns is not None
