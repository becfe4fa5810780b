"""The OOM killer's order over pods that do what they can to keep something of it."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress

import pytest

from reactor.kernel.procfs import read_oom_score_adj
from reactor.lab.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.processes import MIB, hog, hold
from tests.support.trials import Trial
from tests.support.waiting import eventually

pytestmark = pytest.mark.suite("storms")

# Holds memory, and starts a hundred processes a second, each of which outlives its parent's next few.
_FORKER = """
import os, time
kept = b"1" * (100 << 20)
while True:
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.5)
        os._exit(0)
    os.wait()
    time.sleep(0.01)
"""


def scores_in(node: VirtualNode, cgroup: str) -> set[int]:
    """Return the scores of a pod's processes."""
    found = set()
    for pid in node.tree.processes(cgroup):
        with suppress(OSError):
            found.add(read_oom_score_adj(pid))
    return found


@pytest.mark.parametrize("ends_by", ["recovery", "crash"])
def test_no_process_of_a_pod_that_forks_all_the_time_keeps_what_was_written(
    node: VirtualNode, daemon: RunningDaemon, trial: Trial, ends_by: str
) -> None:
    trial.must_live([node.spawn(node.add_pod("within", request_bytes=300 * MIB), hold(200))])
    forker = node.add_pod("forker")
    trial.must_live([node.spawn(forker, [sys.executable, "-S", "-c", _FORKER])])
    eventually(lambda: node.usage_bytes() > 300 * MIB, "the pods have what they want")
    with hog(node.tree.path(node.add_pod("filler", request_bytes=300 * MIB))) as filler:
        daemon.configure(
            {"evictionHard": {"memory.available": "64Mi"}, "evictionPressureTransitionPeriod": "0s"},
            {"housekeepingInterval": "200ms", "oomOrder": "policy"},
        )
        daemon.start()
        for mib in range(4, 256, 4):
            if node.usage_bytes() > (512 - 64 - 24) * MIB:
                break
            filler.hold_mib(mib)
        eventually(lambda: 1000 in scores_in(node, forker), "the forker is raised")
        if ends_by == "crash":
            daemon.signal(signal.SIGKILL)
            assert daemon.process is not None
            daemon.process.wait()
        filler.hold_mib(4)
        if ends_by == "crash":
            daemon.start()
        eventually(lambda: daemon.status()["oom_order"]["first"] is None, "the order is given back")
        after_passes(daemon, 3)
        eventually(lambda: scores_in(node, forker) == {0}, "no process has anything of it")
        after_passes(daemon, 3)
        assert {0} == scores_in(node, forker)
