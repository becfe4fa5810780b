"""A daemon for which the kernel has no inotify left: it lists pods in each pass, and says so."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Final

import pytest

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import hold
from tests.support.waiting import PATIENCE, eventually

HARD: Final[Mapping[str, object]] = {"evictionHard": {"memory.available": "32Mi"}}
# The quota of a user namespace is its own: that of this machine's root stays as it is.
_INSIDE: Final = ["unshare", "--user", "--map-root-user", "/bin/sh", "-c"]


@pytest.fixture(params=["max_inotify_instances", "max_inotify_watches"])
def quota(request: pytest.FixtureRequest) -> str:
    """Return which of the two quotas is used up; skip where there are no user namespaces."""
    if os.geteuid() != 0:
        pytest.skip("needs root; run as root")
    name: str = request.param
    done = subprocess.run(
        [*_INSIDE, f"test -w /proc/sys/user/{name}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no user namespace, or no quota of its own: {done.stderr.strip()}")
    return name


def test_pods_that_come_are_evicted_all_the_same_and_the_problem_is_named(
    node: VirtualNode, daemon: RunningDaemon, quota: str
) -> None:
    innocent = node.spawn(node.add_pod("innocent"), hold(20))
    daemon.inside = [*_INSIDE, f'echo 0 > /proc/sys/user/{quota} && exec "$@"', "sh"]
    daemon.configure(HARD, {"housekeepingInterval": "2s"})
    daemon.start()
    limit = quota.replace("max_inotify_", "fs.inotify.max_user_")
    eventually(lambda: "pods' cgroups" in daemon.status()["problems"], "the problem is named")
    assert (
        f"raise {limit}): they are listed anew in each pass" in daemon.status()["problems"]["pods' cgroups"]
    )
    for number in range(3):  # each in a pod that has come since the last housekeeping, or not
        # The node has room for it: the kernel has nothing to kill for, however late the daemon is.
        hog = node.spawn(node.add_pod(f"hog-{number}"), hold(210))
        assert -signal.SIGKILL == hog.wait(30 * PATIENCE)
        eventually(lambda count=number + 1: len(daemon.evicted()) == count, "the eviction in the journal")
    assert [f"hog-{number}" for number in range(3)] == daemon.evicted()
    assert innocent.poll() is None
    assert 0 == daemon.stop()
