"""A guard that ends amid a kill leaves a frozen pod that can't fork; once it is restored, it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from reactor.act.cgroup_changes import frozen, note, without_forks
from reactor.config.settings import settings_from_text
from reactor.guard.run import run
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.testbed.virtual_node import VirtualNode
from tests.support.waiting import until
from tests.support.yard import Yard

RESTORE = """
from reactor.act.cgroup_changes import restore
from reactor.kernel.cgroup import CgroupTree
print(*restore(CgroupTree.discover()), sep="\\n")
"""
# Mounts one directory after the other in the place of another, and runs the command.
ELSEWHERE = 'while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit; shift 2; done; shift; exec "$@"'


def by_the_next_guard(_: Path) -> list[str]:
    return [sys.executable, "-c", RESTORE]


def by_the_command(directory: Path) -> list[str]:
    config = directory / "reactor.json"
    config.write_text(json.dumps({"reactor": {"stateFile": str(directory / "state.json")}}))
    return [sys.executable, "-m", "reactor", "clean", "--config", str(config)]


def where_nothing_but_the_yard_is(yard: Yard, command: list[str]) -> list[str]:
    """Return the lines of a command for which no process outside exists, and no cgroup but the yard's.

    So it restores nothing of others, and takes the guard for ended, which lives for all others: whatever
    daemons start on the machine meanwhile, they leave its pod to it.
    """
    tree = yard.tree
    roots = dict.fromkeys(filter(None, (tree.memory_root, tree.pids_root, tree.cpu_root, tree.freezer_root)))
    mounts = [str(path) for root in roots for path in (root / yard.parent[1:], root)]
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"]
    inside = [*namespaces, "/bin/sh", "-c", ELSEWHERE, "sh", *mounts, "--", *command]
    return subprocess.run(inside, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("restored", [by_the_next_guard, by_the_command])
def test_a_pod_that_an_ended_guard_has_left_frozen_dies_once_it_is_restored(
    yard: Yard, tmp_path: Path, restored: Callable[[Path], list[str]]
) -> None:
    tree, pod = yard.tree, yard.pod()
    if tree.version is CgroupVersion.V2 or tree.freezer_root is None or tree.pids_root is None:
        pytest.skip("needs the freezer and the pids controller on v1")
    child = yard.spawn(pod.cgroup or "")
    limit = tree.path(pod.cgroup or "", "pids") / "pids.max"
    limit.write_text("400")
    guard = os.fork()
    if guard == 0:
        with ExitStack() as stack:
            stack.enter_context(without_forks(tree.open(pod.cgroup or "", "pids"), print))
            stack.enter_context(frozen(tree.open(pod.cgroup or "", "freezer"), tree.version, print))
            os.kill(child.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGSTOP)
    try:
        os.waitpid(guard, os.WUNTRACED)
        assert "0" == limit.read_text().strip()
        state = tree.path(pod.cgroup or "", "freezer") / "freezer.state"
        assert "THAWED" != state.read_text().strip()

        lines = where_nothing_but_the_yard_is(yard, restored(tmp_path))

        assert -signal.SIGKILL == child.wait(60)
        assert ["400", "THAWED"] == [limit.read_text().strip(), state.read_text().strip()]
        assert 2 == sum(line.startswith("/pod/") for line in lines)
    finally:
        os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)


@pytest.fixture
def left(tmp_path: Path) -> CgroupTree:
    """Return hierarchies of which that of the CPU is a directory, and in it what a guard has left that ended.

    In the machine's own any daemon that starts meanwhile would restore it.
    """
    tree = replace(CgroupTree.discover(), cpu_root=tmp_path)
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/cpu.shares").write_text("262144")
    guard = os.fork()
    if guard == 0:
        with tree.open("/pod", "cpu") as directory:
            note(directory, "cpu.shares", b"2")
        os._exit(0)
    os.waitpid(guard, 0)
    if not os.listxattr(tmp_path / "pod"):
        pytest.skip("no trusted attributes here; run as root, with TMPDIR on tmpfs or ext4")
    return tree


async def test_a_daemon_restores_what_an_ended_guard_has_left(
    left: CgroupTree, node: VirtualNode, tmp_path: Path
) -> None:
    reactor = {
        "nodeCgroup": node.cgroup,
        "metrics": "off",
        "socket": str(tmp_path / "s.sock"),
        "stateFile": str(tmp_path / "state.json"),
        "realtime": {"fifoPriority": 0, "lockMemory": False, "oomScoreAdj": None},
    }
    settings = settings_from_text(json.dumps({"reactor": reactor}), "the test")
    weight = tmp_path / "pod/cpu.shares"
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run, settings, tree=left))
        await until(lambda: "2" == weight.read_text(), "the weight that it had before")
        nursery.cancel_scope.cancel()
    assert [] == os.listxattr(weight.parent)
