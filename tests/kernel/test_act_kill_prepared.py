"""Pods that were prepared to be killed, and their changes before the kill; on v1 and on v2."""

import os
import signal
from dataclasses import replace

import pytest

from reactor.act.kill_path import KillPath
from reactor.errors import RefusedError
from reactor.kernel.cgroup_directory import CgroupVersion
from tests.support.this_machine import open_descriptors
from tests.support.yard import Yard, home


async def test_a_prepared_pod_is_killed_as_any_other(yard: Yard, kill_path: KillPath) -> None:
    pod = yard.pod()
    children = [yard.spawn(pod.cgroup) for _ in range(3)]
    kill_path.prepare([pod])
    late = yard.spawn(pod.cgroup)
    report = kill_path.kill_now(pod)
    assert () == report.problems
    # Through cgroup.kill the late one is killed before it is listed, and may have begun to exit.
    assert report.processes == 4 or (yard.tree.version is CgroupVersion.V2 and report.processes == 3)
    assert [-signal.SIGKILL] * 4 == [child.wait(60) for child in (*children, late)]
    assert (await kill_path.reap(pod)).freed_ns is not None


async def test_a_process_that_left_the_pod_after_it_was_prepared_is_not_killed(
    yard: Yard, kill_path: KillPath
) -> None:
    pod, elsewhere = yard.pod(), yard.make(f"{yard.parent}/elsewhere")
    leaves, stays = yard.spawn(pod.cgroup), yard.spawn(pod.cgroup)
    kill_path.prepare([pod])
    for directory in yard.directories(elsewhere):
        (directory / "cgroup.procs").write_text(str(leaves.pid))
    assert 1 == kill_path.kill_now(pod).processes
    assert -signal.SIGKILL == stays.wait(60)
    await kill_path.reap(pod)
    assert leaves.poll() is None


async def test_a_cgroup_recreated_after_it_was_prepared_is_another_pods_and_is_spared(
    yard: Yard, kill_path: KillPath
) -> None:
    pod = yard.pod()
    first = yard.spawn(pod.cgroup)
    kill_path.prepare([pod])
    first.kill()
    first.communicate()
    for directory in yard.directories(pod.cgroup):
        directory.rmdir()
    yard.make(pod.cgroup)
    second = yard.spawn(pod.cgroup)
    report = kill_path.kill_now(pod)
    assert (0, True, ()) == (report.processes, report.is_gone, report.problems)
    assert second.poll() is None


def test_a_prepared_pod_that_is_gone_is_a_kill_without_a_victim(yard: Yard, kill_path: KillPath) -> None:
    pod = yard.pod()
    child = yard.spawn(pod.cgroup)
    kill_path.prepare([pod])
    child.kill()
    child.communicate()
    for directory in yard.directories(pod.cgroup):
        directory.rmdir()
    report = kill_path.kill_now(pod)
    assert (0, ()) == (report.processes, report.problems)


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_cgroup_without_a_process_is_said_to_be_empty_and_one_with_a_process_is_not(
    yard: Yard, kill_path: KillPath, *, is_ready: bool
) -> None:
    empty, full = yard.pod("empty"), yard.pod("full")
    child = yard.spawn(full.cgroup)
    if is_ready:
        kill_path.prepare([empty, full])
    found = [kill_path.kill_now(pod) for pod in (empty, full)]
    assert [(True, False), (False, False)] == [(report.is_empty, report.is_gone) for report in found]
    assert -signal.SIGKILL == child.wait(60)


def test_a_prepared_pod_is_released_when_others_are_prepared_or_the_parents_change(
    yard: Yard, kill_path: KillPath
) -> None:
    pods = [replace(yard.pod(name), uid=name) for name in ("a", "b")]
    for pod in pods:
        yard.spawn(pod.cgroup)
    before = open_descriptors()
    kill_path.prepare(pods[:1])
    held = open_descriptors()
    assert held > before
    assert [True, False] == [kill_path.holds(pod) for pod in pods]
    assert not kill_path.holds(replace(pods[0], cgroup_inode=1))
    kill_path.prepare(pods[:1])
    kill_path.prepare(pods[1:])
    assert held == open_descriptors()
    kill_path.guard(("/reactor-test-nowhere",))
    assert before == open_descriptors()
    kill_path.prepare(pods)
    assert before == open_descriptors()
    with pytest.raises(RefusedError, match="not inside"):
        kill_path.kill_now(pods[0])


def test_reactor_itself_is_not_killed_where_it_came_into_a_prepared_pod(
    yard: Yard, kill_path: KillPath
) -> None:
    pod = yard.pod()
    child = yard.spawn(pod.cgroup)
    kill_path.prepare([pod])
    procs = yard.tree.path(pod.cgroup) / "cgroup.procs"
    back = home(yard)
    before = open_descriptors()
    procs.write_text(str(os.getpid()))
    try:
        with pytest.raises(RefusedError, match="reactor"):
            kill_path.kill_now(pod)
        kill_path.prepare([pod])  # refused as well, silently
        assert not kill_path.holds(pod)
    finally:
        back.write_text(str(os.getpid()))
    assert child.poll() is None
    assert before > open_descriptors()
