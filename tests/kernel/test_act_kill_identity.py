"""A unit that is started again under the path of one that is evicted is another, at every step; v1 and v2."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
import trio

from reactor.act.kill_path import KillPath
from reactor.act.reap import Populated
from reactor.guard.kubernetes import keep_killed
from reactor.model.pods import Pod
from tests.support.this_machine import open_descriptors
from tests.support.yard import IGNORE_TERM, Yard

pytestmark = pytest.mark.suite("path reuse")


def ranked(yard: Yard) -> Pod:
    """Return a pod as it is listed: with its directory's inode."""
    pod = yard.pod()
    return replace(pod, cgroup_inode=yard.tree.path(pod.cgroup or "").stat().st_ino)


def started_again(yard: Yard, pod: Pod, *before: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """End what is in a pod, make its cgroup anew, and return the process that lives in it now."""
    for child in before:
        child.kill()
        child.wait()
    for directory in yard.directories(pod.cgroup or ""):
        directory.rmdir()
    return yard.spawn(yard.make(pod.cgroup or ""))


@pytest.mark.parametrize("prepared", [0, 1], ids=["unprepared", "prepared"])
async def test_a_pod_that_was_ranked_is_not_killed_in_its_successor(
    yard: Yard, kill_path: KillPath, prepared: int
) -> None:
    pod = ranked(yard)
    before = open_descriptors()
    kill_path.prepare([pod] * prepared)
    successor = started_again(yard, pod)
    report = kill_path.kill_now(pod)
    assert (0, True, ()) == (report.processes, report.is_gone, report.problems)
    assert (await kill_path.reap(pod)).freed_ns is not None
    assert (await kill_path.terminate(pod, 0)) is not None
    assert successor.poll() is None
    assert Populated(yard.tree)(pod) is False
    assert before + 2 == open_descriptors()  # the successor's own pipes


async def test_a_unit_that_starts_again_in_a_grace_period_is_neither_waited_for_nor_killed(
    yard: Yard, kill_path: KillPath
) -> None:
    pod = yard.pod()
    stubborn = yard.spawn(pod.cgroup, IGNORE_TERM)
    assert stubborn.stdout
    stubborn.stdout.readline()
    reports = []

    async def terminate() -> None:
        reports.append(await kill_path.terminate(pod, 3600))

    with trio.fail_after(90):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(terminate)
            await trio.sleep(0.05)
            successor = started_again(yard, pod, stubborn)
    assert [None] == reports
    assert successor.poll() is None


async def test_a_pod_that_is_not_needed_any_more_at_the_end_of_its_grace_period_lives_on(
    yard: Yard, kill_path: KillPath
) -> None:
    pod = yard.pod()
    stubborn = yard.spawn(pod.cgroup, IGNORE_TERM)
    assert stubborn.stdout
    stubborn.stdout.readline()
    before = open_descriptors()
    assert await kill_path.terminate(pod, 0.05, lambda: False) is None
    assert stubborn.poll() is None
    assert before >= open_descriptors()


async def test_what_starts_under_the_path_of_a_killed_pod_is_not_taken_for_what_outlives_the_kill(
    yard: Yard, kill_path: KillPath
) -> None:
    pod = yard.pod()
    child = yard.spawn(pod.cgroup)
    kill_path.kill_now(pod)
    successor = started_again(yard, pod, child)
    with trio.fail_after(90):
        report = await kill_path.reap(pod)
    assert report.freed_ns is not None
    assert successor.poll() is None


async def test_keeping_a_pod_killed_ends_with_its_cgroup_and_does_not_pass_to_the_next_of_its_path(
    yard: Yard, kill_path: KillPath
) -> None:
    pod = yard.pod()
    child = yard.spawn(pod.cgroup)
    times: list[int] = []

    async def keep() -> None:
        times.append(await keep_killed(yard.tree, kill_path, lambda: pod))

    with trio.fail_after(90):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep)
            while child.poll() is None:  # noqa: ASYNC110 - a child of a synchronous Popen
                await trio.sleep(0.01)
            successor = started_again(yard, pod)
    assert times == [1]
    assert successor.poll() is None
