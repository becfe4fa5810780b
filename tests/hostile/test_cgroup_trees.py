"""Cgroups that tenants make below their pods: deep, by the thousand, made and removed all the time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import hold
from tests.support.trials import Trial
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.suite("hostile trees")

HARD = {"evictionHard": {"memory.available": "64Mi"}}
DEEP = 1_100
WIDE = 3_000
CROWD = int(os.environ.get("CROWD", "8000"))
# Makes cgroups below its own, moves a child through them, and removes them, as fast as it can.
CHURN = """
import os, sys
top = sys.argv[1]
child = os.fork()
if child == 0:
    import signal
    signal.pause()
number = 0
while True:
    number += 1
    one = f"{top}/{number}"
    os.makedirs(f"{one}/a/b")
    try:
        with open(f"{one}/a/b/cgroup.procs", "w") as procs:
            procs.write(str(child))
        with open(f"{top}/cgroup.procs", "w") as procs:
            procs.write(str(child))
    except OSError:
        pass
    for path in (f"{one}/a/b", f"{one}/a", one):
        try:
            os.rmdir(path)
        except OSError:
            pass
"""


@contextmanager
def nest(top: Path, levels: int) -> Iterator[int]:
    """Make cgroups in one another; yield a descriptor of the innermost one."""
    fd = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        fd = _step(fd, "d")
    try:
        yield fd
    finally:
        for _ in range(levels):
            fd = _step(fd, "..")
            with suppress(FileNotFoundError):
                os.rmdir("d", dir_fd=fd)
        os.close(fd)


def _step(fd: int, name: str) -> int:
    below = os.open(name, os.O_RDONLY, dir_fd=fd)
    os.close(fd)
    return below


def evicts(node: VirtualNode, daemon: RunningDaemon, name: str) -> None:
    """Have a hog evicted, and wait until the journal has it."""
    victim = node.spawn(node.add_pod(name), hold(470))
    assert -signal.SIGKILL == victim.wait(30 * PATIENCE)
    eventually(lambda: daemon.evicted()[-1:] == [name], "the eviction in the journal")


def test_a_daemon_starts_beside_a_nest_and_a_crowd_of_cgroups_and_evicts_a_hog_in_the_nest(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    trial.right |= {"deep", "hog"}
    wide = node.tree.path(node.add_pod("wide"))
    for number in range(WIDE):
        (wide / str(number)).mkdir()
    innocent = node.spawn(node.add_pod("innocent"), hold(30))
    trial.must_live([innocent])
    with nest(node.tree.path(node.add_pod("deep")), DEEP) as innermost:
        daemon.configure(HARD)
        daemon.start()
        hog = _spawned(Path(f"/proc/{os.getpid()}/fd/{innermost}"), hold(470))
        assert -signal.SIGKILL == hog.wait(30 * PATIENCE)
        eventually(lambda: daemon.evicted() == ["deep"], "the eviction in the journal")
        evicts(node, daemon, "hog")
        assert 0 == daemon.stop()


def _spawned(cgroup: Path, command: list[str]) -> subprocess.Popen[bytes]:
    """Start a command in a cgroup that is there in the memory controller's hierarchy alone."""
    entering = ["/bin/sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh", *command]
    return subprocess.Popen(entering, stdin=subprocess.DEVNULL)


def _crowd(node: VirtualNode) -> Path:
    """Return the cgroup of a pod with CROWD cgroups in it, a hundred in each of those directly below."""
    path = node.tree.path(node.add_pod("crowd"))
    for number in range(CROWD):
        (path / f"{number // 100}").mkdir(exist_ok=True)
        (path / f"{number // 100}" / str(number)).mkdir()
    return path


@pytest.mark.parametrize("node_mib", [512 + CROWD // 100])  # the kernel charges 10 KiB for each cgroup on v1
def test_a_pod_with_thousands_of_cgroups_each_inhabited_or_not_is_evicted_as_one_and_delays_no_other(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    """Reported were 42,000 in one pod, as by CROWD=42000; a kernel has 65,535 ids of memory cgroups."""
    trial.right |= {"crowd", "hog"}
    path = _crowd(node)
    daemon.configure(HARD)
    daemon.start()
    evicts(node, daemon, "hog")

    small = _spawned(path / "0/0", hold(5))
    big = _spawned(path / f"{(CROWD - 1) // 100}" / f"{CROWD - 1}", hold(470))
    assert -signal.SIGKILL == big.wait(30 * PATIENCE)
    assert -signal.SIGKILL == small.wait(30 * PATIENCE)
    eventually(lambda: daemon.evicted() == ["hog", "crowd"], "the eviction in the journal")
    times = [line["timing"] for line in daemon.evictions()]
    late = [round((one["killed_ns"] - one["woke_ns"]) / 1e6, 1) for one in times]
    print(f"{CROWD} cgroups in a pod: ms from wake to kill: {late}")
    assert 0 == daemon.stop()
    subprocess.run(["find", path, "-mindepth", "1", "-depth", "-type", "d", "-delete"], check=False)


@pytest.mark.parametrize("node_mib", [512 + CROWD // 100])
def test_an_evicted_pod_that_has_left_thousands_of_cgroups_delays_no_kill_of_another(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    """Each pass listed all of them on v1, for whether a process lives there again: 8,000 took 250 ms."""
    trial.right |= {"crowd", "hog"}
    path = _crowd(node)
    daemon.configure(HARD)
    daemon.start()
    big = _spawned(path / "0/0", hold(470))
    assert -signal.SIGKILL == big.wait(30 * PATIENCE)
    eventually(lambda: daemon.evicted() == ["crowd"], "the eviction in the journal")
    evicts(node, daemon, "hog")
    line = daemon.evictions()[-1]["timing"]
    assert line["killed_ns"] - line["woke_ns"] < 100_000_000 * PATIENCE

    again = _spawned(path / f"{(CROWD - 1) // 100}" / f"{CROWD - 1}", hold(470))
    assert -signal.SIGKILL == again.wait(30 * PATIENCE)
    eventually(lambda: daemon.evicted() == ["crowd", "hog", "crowd"], "the eviction in the journal")
    assert 0 == daemon.stop()
    subprocess.run(["find", path, "-mindepth", "1", "-depth", "-type", "d", "-delete"], check=False)


def test_a_pod_that_makes_and_removes_cgroups_all_the_time_keeps_no_hog_alive_and_can_be_evicted(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    trial.right |= {"hog", "churn"}
    churn = node.add_pod("churn")
    command = [sys.executable, "-S", "-c", CHURN, str(node.tree.path(churn))]
    churning = node.spawn(churn, command)
    daemon.configure(HARD)
    daemon.start()
    evicts(node, daemon, "hog")
    assert churning.poll() is None
    hog = node.spawn(churn, hold(470))
    assert -signal.SIGKILL == hog.wait(30 * PATIENCE)
    assert -signal.SIGKILL == churning.wait(30 * PATIENCE)
    eventually(lambda: daemon.evicted() == ["hog", "churn"], "the eviction in the journal")
    eventually(lambda: not node.tree.processes(churn), "nobody of it is left")
    assert 0 == daemon.stop()


def test_a_user_who_floods_what_a_pattern_matches_is_one_pod_and_no_other_goes_for_it(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    trial.right |= {"hog", "app.slice"}
    flooded, quiet = (_applications(node, user) for user in ("1", "2"))
    for number in range(WIDE):  # by names that the churn does not remove
        (node.tree.path(f"{node.cgroup}/{flooded}") / f"flood-{number}").mkdir()
    command = [sys.executable, "-S", "-c", CHURN, str(node.tree.path(f"{node.cgroup}/{flooded}"))]
    churning = node.spawn(node.add_pod(f"{flooded}/churn"), command)
    innocent = node.spawn(node.add_pod(f"{quiet}/innocent"), hold(30))
    trial.must_live([innocent])
    pattern = f"{node.cgroup}/user-*.slice/user@*.service/app.slice"
    daemon.configure(HARD, {"pods": {"parents": [pattern]}})
    daemon.start()

    first = node.spawn(node.add_pod(f"{quiet}/hog"), hold(470))
    assert -signal.SIGKILL == first.wait(30 * PATIENCE)
    eventually(lambda: daemon.evicted() == ["hog"], "the eviction in the journal")
    assert churning.poll() is None
    hidden = node.spawn(node.add_pod(f"{flooded}/hidden"), hold(470))
    assert -signal.SIGKILL == hidden.wait(30 * PATIENCE)
    assert -signal.SIGKILL == churning.wait(30 * PATIENCE)
    eventually(lambda: daemon.evicted() == ["hog", "app.slice"], "the eviction in the journal")
    assert 0 == daemon.stop()


def _applications(node: VirtualNode, user: str) -> str:
    """Make what systemd makes for a user, and return the name of the parent of his applications."""
    slice_name = f"user-{user}.slice"
    names = (slice_name, f"{slice_name}/user@{user}.service", f"{slice_name}/user@{user}.service/app.slice")
    for name in names:
        node.add_pod(name)
    return names[-1]
