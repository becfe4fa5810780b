"""Grace periods through the runtime, which the steward asks; without it the processes are asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

import pytest
import trio

from reactor.act.kill_path import KillPath
from reactor.act.reap import KillReport
from reactor.errors import StewardError
from reactor.guard.kubernetes import RuntimeKills
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.link.frames import FrameKind
from reactor.link.requests import ReclaimOver
from reactor.model.pods import Pod

CGROUP = "/kubepods/podu"
POD = Pod(name="web", namespace="shop", uid="u", cgroup=CGROUP)


class Kills(KillPath):
    """Notes what is asked of it."""

    asked: list[object]

    def kill_now(self, _: Pod) -> KillReport:
        self.asked.append("kill")
        return KillReport(killed_ns=1, processes=1)

    async def terminate(
        self, pod: Pod, grace_period_seconds: float, still_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        del pod
        self.asked.append(("terminate", grace_period_seconds))
        await trio.sleep(grace_period_seconds)
        if still_wanted():
            self.asked.append("kill")


class RecordedKills(RuntimeKills, Kills):
    """Notes what is asked of the processes themselves."""


class Steward:
    """Stops a pod after `seconds`, or answers with a problem, or ends."""

    def __init__(self, seconds: float = 0.0, *, problems: tuple[str, ...] = (), ends: bool = False) -> None:
        self.seconds = seconds
        self.problems = problems
        self.ends = ends
        self.asked: list[tuple[str, float]] = []

    async def ask(self, order: FrameKind, *, uid: str, grace_seconds: float) -> ReclaimOver:
        assert order is FrameKind.STOP
        self.asked.append((uid, grace_seconds))
        await trio.sleep(self.seconds)
        if self.ends:
            raise StewardError("steward: has ended meanwhile")
        return ReclaimOver(number=1, did=(), problems=self.problems)


@pytest.fixture
def tree(make_tree):
    fake = make_tree(CgroupVersion.V2)
    fake.add(CGROUP)
    fake.file(CGROUP, "cgroup.events", "populated 0\n")
    return fake


async def terminated(
    tree, steward: Steward, still_wanted: Callable[[], bool] = lambda: True
) -> tuple[KillReport | None, list[object]]:
    with closing(RecordedKills(tree.tree, ("/kubepods",), steward)) as kills:
        kills.asked = []
        return await kills.terminate(POD, 30, still_wanted), kills.asked


async def test_containers_that_end_in_time_are_not_killed(tree, autojump_clock):
    steward = Steward(10)
    assert await terminated(tree, steward) == (None, [])
    assert steward.asked == [("u", 30)]


async def test_what_outlives_the_grace_period_is_killed(tree, autojump_clock):
    tree.file(CGROUP, "cgroup.events", "populated 1\n")
    tree.file(CGROUP, "cgroup.procs", f"{os.getpid()}\n")
    report, asked = await terminated(tree, Steward(1000))
    assert report is not None
    assert asked == ["kill"]
    assert trio.current_time() <= 31


@pytest.mark.parametrize("steward", [Steward(2, ends=True), Steward(2, problems=("no runtime",))])
async def test_without_a_steward_or_a_runtime_the_processes_are_asked_for_what_is_left_of_the_time(
    tree, autojump_clock, steward
):
    _, asked = await terminated(tree, steward)
    assert asked == [("terminate", pytest.approx(28)), "kill"]


async def test_what_outlives_the_grace_period_of_a_shutdown_that_was_cancelled_is_not_killed(
    tree, autojump_clock
):
    tree.file(CGROUP, "cgroup.events", "populated 1\n")
    tree.file(CGROUP, "cgroup.procs", f"{os.getpid()}\n")
    report, asked = await terminated(tree, Steward(1000), lambda: trio.current_time() < 10)
    assert report is None
    assert asked == []


async def test_without_a_runtime_a_shutdown_that_is_cancelled_in_the_grace_period_kills_no_pod(
    tree, autojump_clock
):
    _, asked = await terminated(tree, Steward(2, problems=("no runtime",)), lambda: trio.current_time() < 10)
    assert asked == [("terminate", pytest.approx(28))]


async def test_without_a_runtime_a_shutdown_that_is_cancelled_before_asks_no_process(tree, autojump_clock):
    _, asked = await terminated(tree, Steward(2, problems=("no runtime",)), lambda: trio.current_time() < 1)
    assert asked == []
