"""The end of a pod whose pause container lives on, on cgroup v1 and through v2's cgroup.kill."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable

import pytest
import trio

from reactor.act.kill_path import KillPath
from reactor.act.reap import Populated
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.pods import Pod
from tests.support.this_machine import open_descriptors
from tests.support.waiting import eventually
from tests.support.yard import FORK_STORM, IGNORE_TERM, Yard


@pytest.fixture
def pod(yard: Yard) -> Pod:
    """Return a pod with a sandbox, which is spared, and two containers."""
    made = yard.pod()
    for name in ("sandbox", "one", "other"):
        yard.make(f"{made.cgroup}/{name}")
    return dataclasses.replace(made, spared_cgroups=(f"{made.cgroup}/sandbox",))


async def test_a_kill_ends_the_containers_and_spares_the_pause_container(
    yard: Yard, kill_path: KillPath, pod: Pod
) -> None:
    pause = yard.spawn(f"{pod.cgroup}/sandbox")
    inner = yard.make(f"{pod.cgroup}/other/inner")
    children = [yard.spawn(cgroup) for cgroup in (f"{pod.cgroup}/one", f"{pod.cgroup}/other", inner)]
    report = kill_path.kill_now(pod)
    reaped = await kill_path.reap(pod)
    assert () == report.problems
    # Killed through cgroup.kill before they were listed: some may have begun to exit.
    assert report.processes == 3 or (yard.tree.version is CgroupVersion.V2 and report.processes < 3)
    assert reaped.freed_ns is not None
    assert [-signal.SIGKILL] * 3 == [child.wait(60) for child in children]
    assert pause.poll() is None
    assert [pause.pid] == yard.tree.processes(pod.cgroup or "")
    assert Populated(yard.tree)(pod) is False
    assert Populated(yard.tree)(dataclasses.replace(pod, spared_cgroups=()))


async def test_a_fork_storm_beside_a_pause_container_is_ended_to_the_last_process(
    yard: Yard, kill_path: KillPath, pod: Pod, bounded: Callable[[str], None]
) -> None:
    bounded(pod.cgroup or "")
    pause = yard.spawn(f"{pod.cgroup}/sandbox")
    yard.spawn(f"{pod.cgroup}/one", FORK_STORM)
    eventually(lambda: len(yard.tree.processes(pod.cgroup or "")) > 300, "a storm of 300")
    kill_path.kill_now(pod)
    assert (await kill_path.reap(pod)).freed_ns is not None
    assert [pause.pid] == yard.tree.processes(pod.cgroup or "")


async def test_a_pod_with_nothing_but_its_pause_container_is_a_kill_of_nothing(
    yard: Yard, kill_path: KillPath, pod: Pod
) -> None:
    pause = yard.spawn(f"{pod.cgroup}/sandbox")
    assert kill_path.kill_now(pod).processes == 0
    assert (await kill_path.reap(pod)).freed_ns is not None
    assert pause.poll() is None


async def test_a_grace_period_is_asked_of_the_containers_alone(
    yard: Yard, kill_path: KillPath, pod: Pod
) -> None:
    pause = yard.spawn(f"{pod.cgroup}/sandbox")
    willing = yard.spawn(f"{pod.cgroup}/one")
    stubborn = yard.spawn(f"{pod.cgroup}/other", IGNORE_TERM)
    assert stubborn.stdout
    stubborn.stdout.readline()
    report = await kill_path.terminate(pod, 0.2)
    assert report is not None
    assert report.processes <= 1
    assert (await kill_path.reap(pod)).freed_ns is not None
    assert [-signal.SIGTERM, -signal.SIGKILL] == [willing.wait(60), stubborn.wait(60)]
    assert pause.poll() is None


async def test_a_pod_whose_cgroup_is_gone_is_a_kill_of_nothing(yard: Yard, kill_path: KillPath) -> None:
    gone = f"{yard.parent}/gone"
    pod = Pod(name="p", namespace="n", uid="u", cgroup=gone, spared_cgroups=(f"{gone}/sandbox",))
    report = kill_path.kill_now(pod)
    assert (0, ()) == (report.processes, report.problems)


async def test_sparing_leaves_no_descriptor_open(yard: Yard, kill_path: KillPath, pod: Pod) -> None:
    yard.spawn(f"{pod.cgroup}/sandbox")
    await trio.to_thread.run_sync(int)  # the first worker thread opens what it keeps
    before = open_descriptors()
    for _ in range(5):
        children = [yard.spawn(f"{pod.cgroup}/{name}") for name in ("one", "other")]
        kill_path.kill_now(pod)
        await kill_path.reap(pod)
        for child in children:
            child.communicate()
    # A worker may still be at freeing memory.
    eventually(lambda: before == open_descriptors(), "no descriptor more than before")
