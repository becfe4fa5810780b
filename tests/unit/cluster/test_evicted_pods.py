"""Whether anything of an evicted pod is left on the node, as its cgroups show."""

from __future__ import annotations

import shutil

import pytest
import trio

from reactor.cluster.announce import Announcement
from reactor.cluster.evicted_pods import EvictedOnNode
from reactor.errors import RuntimeUnavailableError
from reactor.kernel.cgroup_directory import CgroupVersion

UID = "0e4a3c0a-1111-4222-8333-0123456789ab"
CGROUP = f"/kubepods/besteffort/pod{UID}"
EVICTED = Announcement(uid=UID, name="web", namespace="shop", message="low", at_unix_seconds=0.0)


def no_runtime():
    raise RuntimeUnavailableError("nowhere", "connect", "there is none")


@pytest.fixture
def fake(make_tree):
    made = make_tree(CgroupVersion.V2)
    made.add("/kubepods/besteffort")
    return made


async def test_a_pod_is_gone_when_its_cgroup_is(fake, nursery, autojump_clock):
    fake.add(CGROUP)
    on_node = EvictedOnNode(lambda: fake.tree, ("/absent", "/kubepods"), no_runtime)
    gone = trio.Event()

    async def wait() -> None:
        await on_node.wait_gone(EVICTED)
        gone.set()

    nursery.start_soon(wait)
    await trio.sleep(100)
    assert not gone.is_set()
    shutil.rmtree(fake.directory(CGROUP))
    await trio.sleep(10)
    assert gone.is_set()


async def test_a_pod_that_has_no_cgroup_is_gone(fake):
    with trio.fail_after(90):
        await EvictedOnNode(lambda: fake.tree, ("/kubepods",), no_runtime).wait_gone(EVICTED)


async def test_a_pod_whose_cgroup_can_not_be_looked_for_is_not_gone(autojump_clock):
    def no_tree():
        raise OSError(5, "cgroups can't be had")

    with trio.move_on_after(100) as scope:
        await EvictedOnNode(no_tree, ("/kubepods",), no_runtime).wait_gone(EVICTED)
    assert scope.cancelled_caught
