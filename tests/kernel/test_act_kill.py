"""The kill path against this machine's kernel, in cgroups of the tests' own."""

import contextlib
import dataclasses
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from reactor.act.kill_path import KillPath
from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.pod_lists import ProcessVictim
from reactor.model.pods import Pod
from tests.support.this_machine import cgroup_tree, open_descriptors
from tests.support.waiting import eventually
from tests.support.yard import FORK_STORM, IGNORE_TERM, Yard, pod_at, yard_in


@pytest.fixture
def yard() -> Iterator[Yard]:
    with yard_in(cgroup_tree()) as yard:
        yield yard


async def test_kill_ends_every_process_of_the_pod_and_of_its_containers(
    yard: Yard, kill_path: KillPath
) -> None:
    pod = yard.pod()
    inner = yard.make(f"{pod.cgroup}/container")
    children = [yard.spawn(c) for c in (pod.cgroup, inner, inner)]
    began_ns = time.monotonic_ns()
    report = kill_path.kill_now(pod)
    reaped = await kill_path.reap(pod)
    assert (3, ()) == (report.processes, report.problems)
    assert began_ns < report.killed_ns
    assert reaped.freed_ns
    assert reaped.freed_ns > report.killed_ns
    assert [-signal.SIGKILL] * 3 == [child.wait(60) for child in children]


async def test_kill_spares_the_neighbours(yard: Yard, kill_path: KillPath) -> None:
    pod, neighbour = yard.pod("a"), yard.pod("a-neighbour")
    yard.spawn(pod.cgroup)
    spared = yard.spawn(neighbour.cgroup)
    kill_path.kill_now(pod)
    await kill_path.reap(pod)
    assert spared.poll() is None
    assert [spared.pid] == yard.tree.processes(neighbour.cgroup)


@pytest.mark.parametrize("is_whole", [True, False], ids=["pod", "one-process"])
def test_no_kill_pauses_so_that_of_many_the_last_is_not_late(
    yard: Yard, kill_path: KillPath, monkeypatch: pytest.MonkeyPatch, *, is_whole: bool
) -> None:
    """The pass leaves its CPU to all victims at once."""
    pod = dataclasses.replace(yard.pod(), process_victim=ProcessVictim(entry="unit pod"))
    child = yard.spawn(pod.cgroup)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    if is_whole:
        kill_path.kill_now(pod)
    else:
        kill_path.one_process.kill_first(pod, None).close()
    monkeypatch.undo()
    assert [] == pauses
    assert -signal.SIGKILL == child.wait(60)


async def test_a_fork_storm_is_ended_to_the_last_process(
    yard: Yard, kill_path: KillPath, bounded: Callable[[str], None]
) -> None:
    pod = yard.pod()
    bounded(pod.cgroup)
    yard.spawn(pod.cgroup, FORK_STORM)
    eventually(lambda: len(yard.tree.processes(pod.cgroup)) > 300, "a storm of 300")
    kill_path.kill_now(pod)
    reaped = await kill_path.reap(pod)
    assert reaped.freed_ns
    assert [] == yard.tree.processes(pod.cgroup)


async def test_a_fork_storm_is_ended_without_a_freezer_too(
    yard: Yard, bounded: Callable[[str], None]
) -> None:
    pod = yard.pod()
    bounded(pod.cgroup)
    bare = CgroupTree(version=yard.tree.version, memory_root=yard.tree.memory_root)
    kill_path = KillPath(bare, (yard.parent,))
    yard.spawn(pod.cgroup, FORK_STORM)
    eventually(lambda: len(yard.tree.processes(pod.cgroup)) > 300, "a storm of 300")
    kill_path.kill_now(pod)
    assert (await kill_path.reap(pod)).freed_ns


@pytest.fixture
def without_freezer(yard: Yard) -> Iterator[KillPath]:
    tree = dataclasses.replace(yard.tree, freezer_root=None)
    path = KillPath(tree, (yard.parent,))
    yield path
    path.close()


async def test_a_fork_storm_without_a_freezer_gets_no_more_forks_and_its_cgroup_keeps_its_limit(
    yard: Yard, without_freezer: KillPath, bounded: Callable[[str], None]
) -> None:
    pod = yard.pod()
    inner = yard.make(f"{pod.cgroup}/container")
    bounded(pod.cgroup)
    yard.spawn(inner, FORK_STORM)
    eventually(lambda: len(yard.tree.processes(inner)) > 300, "a storm of 300")
    report = without_freezer.kill_now(pod)
    reaped = await without_freezer.reap(pod)
    assert report.problems == ()
    assert reaped.freed_ns
    assert [] == yard.tree.processes(pod.cgroup)
    assert "400\n" == (yard.tree.path(pod.cgroup, "pids") / "pids.max").read_text()


async def test_kill_leaves_no_descriptor_open(yard: Yard, kill_path: KillPath) -> None:
    pod = yard.pod()
    await trio.to_thread.run_sync(int)  # the first worker thread opens what it keeps
    before = open_descriptors()
    for _ in range(10):
        children = [yard.spawn(pod.cgroup) for _ in range(3)]
        kill_path.kill_now(pod)
        await kill_path.reap(pod)
        for child in children:
            child.communicate()
    # A thread may still be at what has died meanwhile.
    eventually(lambda: before == open_descriptors(), "no descriptor more than before")


async def test_two_who_wait_for_the_same_pod_both_learn_that_it_is_gone(
    yard: Yard, kill_path: KillPath
) -> None:
    pod = yard.pod()
    yard.spawn(pod.cgroup or "", IGNORE_TERM)
    freed: list[bool] = []

    async def reap() -> None:
        freed.append((await kill_path.reap(pod)).freed_ns is not None)

    kill_path.kill_now(pod)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reap)
        nursery.start_soon(reap)
    assert [True, True] == freed
    assert {} == kill_path._dying._turns


async def test_a_kill_that_is_never_reaped_leaves_no_descriptor_after_close(
    yard: Yard,
) -> None:
    pod = yard.pod()
    child = yard.spawn(pod.cgroup)
    before = open_descriptors()
    kill_path = KillPath(yard.tree, (yard.parent,))
    kill_path.kill_now(pod)
    kill_path.kill_now(pod)
    kill_path.close()
    kill_path.close()
    assert before == open_descriptors()
    assert -signal.SIGKILL == child.wait(60)


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Use up this process's file descriptors but for `count`."""
    taken = [os.open("/dev/null", os.O_RDONLY)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + count + 8, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(taken[0]))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


@pytest.mark.parametrize("count", range(12))
async def test_kill_with_few_descriptors_left_still_ends_all(
    yard: Yard, kill_path: KillPath, count: int
) -> None:
    pod = yard.pod()
    children = [yard.spawn(pod.cgroup) for _ in range(12)]
    with descriptors_left(count):
        report = kill_path.kill_now(pod)
        kill_path.kill_now(pod)  # what the first one keeps must leave enough for another
    assert 12 == report.processes
    assert [-signal.SIGKILL] * 12 == [child.wait(60) for child in children]


async def test_reap_without_a_descriptor_left_is_a_problem_in_its_report(
    yard: Yard, kill_path: KillPath
) -> None:
    pod = yard.pod()
    child = yard.spawn(pod.cgroup)
    kill_path.kill_now(pod)
    await trio.to_thread.run_sync(int)  # the first worker thread opens what it keeps
    with descriptors_left(0):
        report = await kill_path.reap(pod, deadline_seconds=0.5)
    assert any(os.strerror(errno.EMFILE) in problem for problem in report.problems) or report.freed_ns
    assert -signal.SIGKILL == child.wait(60)


@pytest.fixture
def quota_pod(yard: Yard) -> Pod:
    """Return a pod in a cgroup that can have a CPU quota."""
    pod = yard.pod()
    if yard.tree.cpu_root is None or not (yard.tree.path(pod.cgroup, "cpu") / "cpu.cfs_quota_us").exists():
        pytest.skip("needs the cpu controller with CONFIG_CFS_BANDWIDTH")
    return pod


async def test_the_victims_cpu_quota_and_weight_are_lifted_while_it_dies_and_restored_then(
    yard: Yard, kill_path: KillPath, quota_pod: Pod
) -> None:
    def limits() -> list[str]:
        names = ("cpu.cfs_quota_us", "cpu.shares")
        return [
            (yard.tree.path(cgroup, "cpu") / name).read_text().strip()
            for cgroup in (quota_pod.cgroup or "", inner)
            for name in names
        ]

    inner = yard.make(f"{quota_pod.cgroup}/container")
    for cgroup, quota_us, weight in ((quota_pod.cgroup or "", 20000, 10), (inner, 10000, 20)):
        yard.tree.set_cpu_quota(cgroup, quota_us)
        (yard.tree.path(cgroup, "cpu") / "cpu.shares").write_text(str(weight))
    before = limits()
    for _ in range(2):  # what the first kill has lifted is not taken for the pod's own by the second
        yard.spawn(inner)
        kill_path.kill_now(quota_pod)
        assert ["-1", "262144", "-1", "20"] == limits()
        assert (await kill_path.reap(quota_pod)).freed_ns
        assert before == limits()


async def test_kill_of_a_vanished_cgroup_is_a_kill_of_nothing(yard: Yard, kill_path: KillPath) -> None:
    pod = pod_at(f"{yard.parent}/gone")
    report = kill_path.kill_now(pod)
    assert (0, ()) == (report.processes, report.problems)
    assert (await kill_path.reap(pod)).freed_ns


@pytest.mark.parametrize(
    "cgroup",
    [
        None,
        "/",
        "/elsewhere",
        "..",
        "",
        "{parent}",
        "{parent}/",
        "{parent}/../x",
        "{parent}x/pod",
        "{parent}/\0",
    ],
)
async def test_kill_refuses_what_is_not_strictly_inside_the_parents(
    yard: Yard, kill_path: KillPath, cgroup: str | None
) -> None:
    pod = pod_at(cgroup and cgroup.format(parent=yard.parent))
    with pytest.raises(RefusedError):
        kill_path.kill_now(pod)
    with pytest.raises(RefusedError):
        await kill_path.reap(pod)
    with pytest.raises(RefusedError):
        await kill_path.terminate(pod, 0)


def test_kill_refuses_a_cgroup_that_holds_reactor_itself(yard: Yard) -> None:
    pod = yard.pod()
    inner = yard.make(f"{pod.cgroup}/inner")
    procs = yard.tree.path(inner) / "cgroup.procs"
    code = (
        "import os, sys\n"
        "from reactor.act.kill_path import KillPath\n"
        "from reactor.errors import RefusedError\n"
        "from reactor.kernel.cgroup import CgroupTree\n"
        "from reactor.model.pods import Pod\n"
        "procs, parent, cgroup = sys.argv[1:]\n"
        "open(procs, 'w').write(str(os.getpid()))\n"
        "pod = Pod(name='p', namespace='n', uid='1', cgroup=cgroup)\n"
        "try:\n"
        "    KillPath(CgroupTree.discover(), (parent,)).kill_now(pod)\n"
        "except RefusedError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, procs, yard.parent, pod.cgroup],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert "holds process" in done.stdout


async def test_terminate_lets_a_pod_end_by_itself(yard: Yard, kill_path: KillPath) -> None:
    pod = yard.pod()
    child = yard.spawn(pod.cgroup)
    report = await kill_path.terminate(pod, 30)
    assert report is None
    assert -signal.SIGTERM == child.wait(60)


async def test_terminate_kills_what_is_left_when_the_grace_period_is_over(
    yard: Yard, kill_path: KillPath
) -> None:
    pod = yard.pod()
    child = yard.spawn(pod.cgroup, IGNORE_TERM)
    assert child.stdout
    child.stdout.readline()
    report = await kill_path.terminate(pod, 0.05)
    assert report
    assert 1 == report.processes
    await kill_path.reap(pod)
    assert -signal.SIGKILL == child.wait(60)


async def test_a_kill_preempts_the_grace_period_of_the_same_pod(yard: Yard, kill_path: KillPath) -> None:
    pod = yard.pod()
    child = yard.spawn(pod.cgroup, IGNORE_TERM)
    assert child.stdout
    child.stdout.readline()
    outcome = []

    async def terminate() -> None:
        outcome.append(await kill_path.terminate(pod, 3600))

    with trio.fail_after(90):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(terminate)
            await trio.sleep(0.02)
            kill_path.kill_now(pod)
            await kill_path.reap(pod)
    assert [None] == outcome
    assert -signal.SIGKILL == child.wait(60)


@pytest.fixture
def set_parent(yard: Yard) -> Callable[[str], object]:
    """Return what makes the parent FROZEN or THAWED."""
    state = yard.directories(yard.parent)[-1] / "freezer.state"
    if not state.exists():
        pytest.skip("needs the v1 freezer: on v2 a frozen process dies of SIGKILL at once")
    return state.write_text


async def test_reap_reports_what_an_ancestors_freezer_holds_back(
    yard: Yard, kill_path: KillPath, set_parent: Callable[[str], object]
) -> None:
    pod = yard.pod()
    child = yard.spawn(pod.cgroup)
    set_parent("FROZEN")
    kill_path.kill_now(pod)
    reaped = await kill_path.reap(pod, deadline_seconds=0.4)
    assert reaped.freed_ns is None
    assert any("an ancestor is frozen" in problem for problem in reaped.problems)
    set_parent("THAWED")
    assert -signal.SIGKILL == child.wait(60)


@pytest.mark.parametrize("paused", ["the pod", "a container", "both"])
async def test_a_pod_that_a_runtime_or_its_tenant_has_paused_dies_of_a_kill(
    yard: Yard, kill_path: KillPath, set_parent: Callable[[str], object], paused: str
) -> None:
    del set_parent  # skips where there is no such freezer
    pod = yard.pod()
    container = yard.make(f"{pod.cgroup}/container")
    children = [yard.spawn(cgroup) for cgroup in (pod.cgroup, container)]
    for cgroup, is_paused in ((pod.cgroup, paused != "a container"), (container, paused != "the pod")):
        if is_paused:
            (yard.directories(cgroup)[-1] / "freezer.state").write_text("FROZEN")

    kill_path.kill_now(pod)
    reaped = await kill_path.reap(pod)

    assert reaped.freed_ns
    assert [-signal.SIGKILL] * 2 == [child.wait(60) for child in children]


def test_the_exercise_passes_here_and_leaves_nothing_behind(yard: Yard) -> None:
    pods = yard.make(f"{yard.parent}/pods")

    def there_is() -> tuple[int, list[list[Path]]]:
        return (open_descriptors(), [sorted(d.iterdir()) for d in yard.directories(yard.parent)])

    before = there_is()
    assert KillPath(yard.tree, (pods,)).exercise() is None
    assert before == there_is()


def test_the_exercise_finds_a_place_while_the_pod_parent_does_not_exist_yet(yard: Yard) -> None:
    assert KillPath(yard.tree, (f"{yard.parent}/later/pods",)).exercise() is None
    assert () == yard.tree.children(yard.parent)


def test_the_exercise_says_what_is_wrong(tmp_path: Path) -> None:
    nothing = CgroupTree(version=CgroupVersion.V1, memory_root=tmp_path / "absent")
    assert str(KillPath(nothing, ("/pods",)).exercise()).startswith("kill path: ")
