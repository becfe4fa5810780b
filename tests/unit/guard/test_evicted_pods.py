"""Evicted pods stay down, also after a restart of the guard, until their cgroups are gone."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest

from reactor.act.reap import KillReport, ReapReport
from reactor.guard.kubernetes import EvictedPods
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.pods import Pod
from tests.support.waiting import until

CGROUP = "/kubepods/podu"


class Kills:
    """Kills whatever is in a fake cgroup."""

    def __init__(self, fake) -> None:
        self.fake = fake
        self.killed: list[Pod] = []

    def kill_now(self, pod: Pod) -> KillReport:
        self.killed.append(pod)
        self.fake.populated(pod.cgroup, is_populated=False)
        return KillReport(killed_ns=1, processes=1)

    async def reap(self, _: Pod, deadline_seconds: float = 0.0) -> ReapReport:
        del deadline_seconds
        return ReapReport(freed_ns=1)


class World:
    """A hierarchy of version 2 with one pod, and who keeps it down."""

    def __init__(self, make_tree, directory) -> None:
        self.fake = make_tree(CgroupVersion.V2)
        self.fake.add(CGROUP)
        self.populated(CGROUP, is_populated=False)
        self.kills = Kills(self)
        self.present: list[Pod] = []
        self.path = directory / "state.json"
        self.boot_id = directory / "boot_id"
        self.boot_id.write_text("one")
        inode = self.fake.tree.path(CGROUP).stat().st_ino
        self.pod = Pod(name="web", namespace="shop", uid="u", cgroup=CGROUP, cgroup_inode=inode)

    def populated(self, cgroup: str, *, is_populated: bool) -> None:
        self.fake.file(cgroup, "cgroup.procs", f"{os.getpid()}\n" if is_populated else "")
        self.fake.file(cgroup, "cgroup.events", f"populated {int(is_populated)}\nfrozen 0\n")

    def held_down(self) -> EvictedPods:
        made = EvictedPods(self.fake.tree, self.kills, self.path, lambda: self.present, boot_id=self.boot_id)
        made.load()
        return made

    def remove(self) -> None:
        shutil.rmtree(self.fake.tree.path(CGROUP))


@pytest.fixture
def world(make_tree, tmp_path):
    return World(make_tree, tmp_path)


async def test_what_comes_to_life_in_an_evicted_pod_is_killed_until_its_cgroup_is_gone(world, nursery):
    held = world.held_down()
    held.keep_killed(world.pod, nursery)
    held.keep_killed(world.pod, nursery)
    for count in (1, 2):
        world.populated(CGROUP, is_populated=True)
        await until(lambda count=count: len(world.kills.killed) == count)
    world.remove()
    await until(lambda: len(held) == 0)


async def test_an_evicted_pod_is_kept_down_by_the_next_guard_too(world, nursery):
    held = world.held_down()
    nursery.start_soon(held.file.run)
    held.keep_killed(world.pod, nursery)
    await held.file.wait_saved()
    nursery.cancel_scope.cancel()

    again = world.held_down()
    assert len(again) == 1


async def test_a_guard_that_has_restarted_kills_what_lives_again(world, nursery):
    held = world.held_down()
    held.keep_killed(world.pod, nursery)
    held.file.flush()
    again = world.held_down()
    again.resume(nursery)
    world.populated(CGROUP, is_populated=True)
    await until(lambda: world.kills.killed)
    assert world.kills.killed[0] == world.pod


async def test_after_a_reboot_no_pod_is_kept_down(world, nursery):
    held = world.held_down()
    held.keep_killed(world.pod, nursery)
    held.file.flush()
    world.boot_id.write_text("two")
    assert len(world.held_down()) == 0


async def test_a_cgroup_of_the_same_path_that_is_anothers_is_left_alone(world, nursery):
    held = world.held_down()
    world.populated(CGROUP, is_populated=True)
    held.keep_killed(replace(world.pod, cgroup_inode=world.pod.cgroup_inode + 1), nursery)
    await until(lambda: len(held) == 0)
    assert world.kills.killed == []


async def test_of_too_many_evicted_pods_the_first_are_kept_down(world, nursery, caplog):
    held = world.held_down()
    for number in range(300):
        held.keep_killed(replace(world.pod, uid=f"u{number}"), nursery)
    assert len(held) == 256
    assert "not kept killed after its eviction" in caplog.text


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"version": 1, "boot_id": "one", "pods": [{}]}', b"[]"])
def test_a_file_that_can_not_be_read_is_a_problem_and_not_a_crash(world, raw):
    world.path.with_name("held-down.json").write_bytes(raw)
    held = world.held_down()
    assert len(held) == 0
    assert "held-down.json" in held.file.problem
