"""A pod that its kubelet starts again and again is kept down until its cgroup is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from reactor.act.kill_path import KillPath
from reactor.guard.kubernetes import keep_killed
from reactor.kernel.cgroup import CgroupTree
from reactor.model.pods import Pod
from tests.support.this_machine import open_descriptors


class _Kubelet:
    """Starts a process in the pod's cgroup, and another whenever that has died."""

    def __init__(self, tree: CgroupTree) -> None:
        self.parent = f"/reactor-test-standing-{os.getpid()}"
        self.directory = Path(tree.path(self.parent))
        (self.directory / "pod").mkdir(parents=True)
        self.pod = Pod(name="web", namespace="default", uid="u", cgroup=f"{self.parent}/pod")
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", "input()\nimport signal; signal.pause()"], stdin=-1
        )
        self.children.append(child)
        (self.directory / "pod" / "cgroup.procs").write_text(str(child.pid))
        assert child.stdin
        child.stdin.write(b"\n")
        child.stdin.flush()

    async def ended(self) -> None:
        with trio.fail_after(90):
            while self.children[-1].poll() is None:  # noqa: ASYNC110 - a child of a synchronous Popen
                await trio.sleep(0.01)

    def remove(self) -> None:
        (self.directory / "pod").rmdir()

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()
            assert child.stdin
            child.stdin.close()
        for directory in (self.directory / "pod", self.directory):
            if directory.exists():
                directory.rmdir()


@pytest.fixture
def tree() -> CgroupTree:
    return CgroupTree.discover()


@pytest.fixture
def kubelet(tree: CgroupTree) -> Iterator[_Kubelet]:
    made = _Kubelet(tree)
    yield made
    made.close()


async def test_what_comes_to_life_again_is_killed_again_until_the_cgroup_is_gone(
    tree: CgroupTree, kubelet: _Kubelet
) -> None:
    kills = KillPath(tree, (kubelet.parent,))
    before = open_descriptors()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_killed, tree, kills, lambda: kubelet.pod)
        for _ in range(3):
            kubelet.start()
            await kubelet.ended()
        kubelet.remove()
    kills.close()
    assert before + 3 >= open_descriptors()  # the children's standard inputs


async def test_a_pod_without_a_cgroup_needs_no_holding_down(tree: CgroupTree, kubelet: _Kubelet) -> None:
    pod = Pod(name="web", namespace="default", uid="u")
    kubelet.start()
    kills = KillPath(tree, (kubelet.parent,))
    with trio.fail_after(90):
        assert 0 == await keep_killed(tree, kills, lambda: pod)
    assert kubelet.children[-1].poll() is None
    kills.close()


async def test_a_pod_that_may_not_be_touched_is_left_alone_without_an_end_to_the_daemon(
    tree: CgroupTree, kubelet: _Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet.start()
    kills = KillPath(tree, ("/reactor-test-elsewhere",))
    with trio.move_on_after(0.5):
        await keep_killed(tree, kills, lambda: kubelet.pod)
    assert kubelet.children[-1].poll() is None
    assert 1 == sum("can't be kept killed" in record.message for record in caplog.records)
    kills.close()
