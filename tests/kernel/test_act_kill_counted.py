"""A kill is counted in the cgroup's attributes as systemd-oomd counts its own, on cgroup v2."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import pytest

from reactor.act.kill_path import KillPath
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.model.pods import Pod
from reactor.rules.managed import count_kill
from tests.support.yard import Yard, tree_of, yard_in

NAMES = ("user.oomd_ooms", "user.oomd_kill")


@pytest.fixture
def yard() -> Iterator[Yard]:
    with yard_in(tree_of(CgroupVersion.V2)) as made:
        yield made


def counted(yard: Yard, pod: Pod) -> list[bytes | None]:
    directory = yard.tree.path(str(pod.cgroup))
    present = os.listxattr(directory)
    return [os.getxattr(directory, name) if name in present else None for name in NAMES]


async def test_each_kill_of_a_pod_is_counted_once_and_so_are_its_processes(
    yard: Yard, kill_path: KillPath
) -> None:
    kill_path.on_struck = count_kill
    pod, neighbour = yard.pod("a"), yard.pod("b")
    yard.spawn(pod.cgroup), yard.spawn(pod.cgroup)
    kill_path.prepare([pod])
    kill_path.kill_now(pod)
    assert [b"1", b"2"] == counted(yard, pod)
    await kill_path.reap(pod)  # which kills again what is left
    assert [b"1", b"2"] == counted(yard, pod)

    yard.spawn(pod.cgroup)
    kill_path.prepare([pod])  # one that is dead before it is listed is not known otherwise
    kill_path.kill_now(pod)
    await kill_path.reap(pod)
    assert [b"2", b"3"] == counted(yard, pod)
    assert [None, None] == counted(yard, neighbour)


async def test_nothing_is_counted_unless_that_is_asked_for(yard: Yard, kill_path: KillPath) -> None:
    pod = yard.pod()
    yard.spawn(pod.cgroup)
    kill_path.kill_now(pod)
    await kill_path.reap(pod)
    assert [None, None] == counted(yard, pod)


@pytest.mark.parametrize("before", [b"many", b"-5", b"9" * 40, b"", "²".encode(), b"7\n", b"x" * 4096])
async def test_what_a_tenant_wrote_there_is_counted_from_nothing_and_spares_nobody(
    yard: Yard, kill_path: KillPath, before: bytes
) -> None:
    kill_path.on_struck = count_kill
    pod = yard.pod()
    child = yard.spawn(pod.cgroup)
    os.setxattr(yard.tree.path(str(pod.cgroup)), NAMES[0], before)
    report = kill_path.kill_now(pod)
    assert report.problems == ()
    assert counted(yard, pod)[0] == b"1"
    await kill_path.reap(pod)
    assert child.wait(60) < 0


async def test_a_cgroup_without_room_for_attributes_is_killed_all_the_same(
    yard: Yard, kill_path: KillPath
) -> None:
    kill_path.on_struck = count_kill
    pod = yard.pod()
    child = yard.spawn(pod.cgroup)
    directory = yard.tree.path(str(pod.cgroup))
    fill = functools.partial(os.setxattr, directory, value=b"x")
    for number in range(128):  # KERNFS_MAX_USER_XATTRS
        fill(attribute=f"user.{number}")
    with pytest.raises(OSError, match="No space left"):
        fill(attribute="user.one-more")
    report = kill_path.kill_now(pod)
    assert report.problems == ()
    await kill_path.reap(pod)
    assert child.wait(60) < 0
