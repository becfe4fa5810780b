"""OOM kills on this kernel, by its counters: the node's own limit, a pod's own, and another cgroup's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from reactor.kernel.cgroup import CgroupTree
from reactor.model.kills import OomKill, OomScope
from reactor.model.settings import Settings, SourceSettings
from reactor.model.wakes import SourceHealth, SourceState
from reactor.sources.catalogue import OOM_COUNTERS, SourceBoard
from reactor.sources.oom import OomSource
from reactor.sources.wakes import Wakes
from tests.support.this_machine import needs_memcg_v1, open_descriptors

MIB = 1 << 20
NODE = f"/reactor-oom-{os.getpid()}"
_EATER = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
kept = b"1" * (64 << 20)
"""

pytestmark = needs_memcg_v1


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    """A virtual node with two pods; removed afterwards."""
    found = CgroupTree.discover()
    made = [NODE, f"{NODE}/a", f"{NODE}/b", f"{NODE}-other"]
    try:
        for cgroup in made:
            found.path(cgroup).mkdir()
        yield found
    finally:
        for cgroup in reversed(made):
            found.path(cgroup).rmdir()


def eat(directory: Path) -> None:
    """Have a process take more memory than the cgroup may; it is killed."""
    done = subprocess.run([sys.executable, "-S", "-c", _EATER, directory], check=False, timeout=60)
    assert done.returncode == -9


async def told_of(
    tree: CgroupTree, oom: Callable[[], None], *, is_told: bool = True
) -> tuple[list[OomKill], int]:
    """Return what was told of what `oom` brought about, and how many wakes were given."""
    told: list[OomKill] = []
    armed, heard = trio.Event(), trio.Event()

    def tell(kill: OomKill) -> None:
        told.append(kill)
        heard.set()

    def changed(state: SourceState) -> None:
        if state.name == OOM_COUNTERS and state.health is SourceHealth.ARMED:
            armed.set()

    board = SourceBoard(changed)

    wakes = Wakes(board)
    settings = Settings(
        node_cgroup=NODE,
        pod_parents=(NODE,),
        housekeeping_interval_seconds=0.1,
        sources=SourceSettings(ebpf=False),
    )
    source = OomSource(tree, settings, wakes, tell)
    async with trio.open_nursery() as nursery:
        await nursery.start(source.run)
        await armed.wait()
        await trio.to_thread.run_sync(oom)
        with trio.move_on_after(60 if is_told else 3):
            await heard.wait()
        nursery.cancel_scope.cancel()
    return told, board.state(OOM_COUNTERS).wakes


async def test_kill_at_the_nodes_limit_is_counted_as_the_nodes_and_wakes_the_loop(tree: CgroupTree) -> None:
    tree.set_memory_limit(NODE, 32 * MIB)
    told, wakes = await told_of(tree, lambda: eat(tree.path(f"{NODE}/a")))
    assert [(OomScope.NODE, 1)] == [(kill.scope, kill.kills) for kill in told]
    assert wakes == 1


async def test_kill_at_a_pods_own_limit_is_counted_as_such_and_does_not_wake_the_loop(
    tree: CgroupTree,
) -> None:
    tree.set_memory_limit(f"{NODE}/a", 32 * MIB)
    told, wakes = await told_of(tree, lambda: eat(tree.path(f"{NODE}/a")))
    assert [(OomScope.OWN_LIMIT, 1)] == [(kill.scope, kill.kills) for kill in told]
    assert wakes == 0


async def test_kill_outside_the_node_is_not_counted(tree: CgroupTree) -> None:
    tree.set_memory_limit(f"{NODE}-other", 32 * MIB)
    told, _ = await told_of(tree, lambda: eat(tree.path(f"{NODE}-other")), is_told=False)
    assert told == []


async def test_registrations_are_gone_with_the_source(tree: CgroupTree) -> None:
    before = open_descriptors()
    await told_of(tree, lambda: None, is_told=False)
    assert before == open_descriptors()
