"""A guard that is killed amid a kill leaves a frozen pod that can't fork; once it is restored, it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from reactor.act.freezer import frozen, without_forks
from reactor.act.leftovers import restore
from reactor.kernel.cgroup_files import CgroupVersion
from tests.support.yard import Yard


def by_the_next_guard(yard: Yard, _: Path) -> list[str]:
    return restore(yard.tree)


def by_the_command(_: Yard, directory: Path) -> list[str]:
    config = directory / "reactor.json"
    config.write_text(json.dumps({"reactor": {"stateFile": str(directory / "state.json")}}))
    command = [sys.executable, "-m", "reactor", "clean", "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("restored", [by_the_next_guard, by_the_command])
def test_a_pod_that_a_killed_guard_has_left_frozen_dies_once_it_is_restored(
    yard: Yard, tmp_path: Path, restored: Callable[[Yard, Path], list[str]]
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
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(guard, 0)
    assert "0" == limit.read_text().strip()
    state = tree.path(pod.cgroup or "", "freezer") / "freezer.state"
    assert "THAWED" != state.read_text().strip()

    lines = restored(yard, tmp_path)

    assert -signal.SIGKILL == child.wait(60)
    assert ["400", "THAWED"] == [limit.read_text().strip(), state.read_text().strip()]
    assert 2 == sum(line.startswith(f"{pod.cgroup}/") for line in lines)
