"""Rules beside a tenant that makes and removes cgroups below what they are for, as many as it can."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from reactor.kernel.cgroup import CgroupVersion
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.processes import MIB, hold
from tests.support.trials import Trial
from tests.support.waiting import eventually

pytestmark = pytest.mark.suite("storms")

THRESHOLD = {"evictionHard": {"memory.available": "64Mi"}}
LIMIT_MIB, FULL_MIB = 64, 56
# Makes cgroups until there are 3,000, and then removes and makes them again, one after the other.
CHURN = """
import os, sys
number = 0
while True:
    name = f"{sys.argv[1]}/c{number % 3000}"
    try:
        os.rmdir(name)
    except OSError:
        pass
    try:
        os.mkdir(name)
    except OSError:
        pass
    number += 1
"""


@contextmanager
def churn(node: VirtualNode, cgroup: str) -> Iterator[None]:
    """Have cgroups come and go below a cgroup, and remove them all at the end."""
    directory = node.tree.path(cgroup)
    process = subprocess.Popen([sys.executable, "-c", CHURN, str(directory)])
    try:
        yield
        assert process.poll() is None, "the tenant has given up"
    finally:
        process.kill()
        process.wait()
        for name in node.tree.children(cgroup):
            os.rmdir(directory / name)


def test_a_tenant_that_makes_thousands_of_cgroups_keeps_no_rule_and_no_threshold_from_acting(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial
) -> None:
    trial.right |= {"full", "hog"}
    if node.tree.version is not CgroupVersion.V1:
        pytest.skip("on cgroup v2 a pod with cgroups below it holds no process of its own; run it on v1")
    tenant, full, other = (node.add_pod(name) for name in ("tenant.service", "full", "other"))
    node.tree.set_memory_limit(full, LIMIT_MIB * MIB)
    survivors = [node.spawn(other, hold(20)), node.spawn(tenant, hold(10))]
    trial.must_live(survivors)
    rules = [
        {
            "name": f"full-{number}",
            "cgroups": [f"{node.cgroup}/*", f"{tenant}/*"],
            "when": [{"usage": f"{80 + number}%"}],
            "for": "1s",
            "action": "evict",
            "cooldown": "1h",
        }
        for number in range(3)
    ]
    daemon.configure(THRESHOLD, {"rules": rules, "housekeepingInterval": "100ms"})
    daemon.start()
    with churn(node, tenant):
        eventually(lambda: len(node.tree.children(tenant)) > 1000, "many cgroups")
        victim = node.spawn(full, hold(FULL_MIB))
        eventually(lambda: victim.poll() is not None, "the rule")
        hog = node.spawn(node.add_pod("hog"), hold(2 * node.memory_bytes // MIB))
        eventually(lambda: hog.poll() is not None, "the threshold")
        eventually(lambda: "not root's alone" in str(daemon.status()["problems"]), "that they are too many")
        status = after_passes(daemon, 10)

    assert [-signal.SIGKILL] * 2 == [victim.wait(10), hog.wait(10)]
    assert ["full", "hog"] == daemon.evicted()
    assert ["rule", "memory.available"] == [one["evictions"][0]["signal"] for one in daemon.evictions()]
    assert all(rule["matched"] <= 4 + 257 for rule in status["rules"])
