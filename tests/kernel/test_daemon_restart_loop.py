"""A unit that is started again each time that it is evicted."""

from __future__ import annotations

import signal

from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon
from tests.support.processes import hold
from tests.support.waiting import eventually

HARD = {"evictionHard": {"memory.available": "64Mi"}}


def _loops(daemon: RunningDaemon) -> list[str]:
    return [what for what in daemon.status()["problems"] if what.startswith("restart loop")]


def test_a_pod_that_is_evicted_again_and_again_is_one_problem_and_evicted_all_the_same(
    node: VirtualNode, daemon: RunningDaemon
) -> None:
    pod = node.add_pod("always")
    daemon.configure(HARD, {"restartLoop": {"evictions": 3, "within": "10m"}})
    daemon.start()
    for times in range(1, 5):
        assert -signal.SIGKILL == node.spawn(pod, hold(220)).wait(60)
        eventually(lambda: not daemon.status()["in_flight"], "the memory is back")
        assert (["restart loop cgroup/always"] if times >= 3 else []) == _loops(daemon)
    assert "evicted 4 times in 10 min" in daemon.status()["problems"]["restart loop cgroup/always"]

    daemon.stop()
    daemon.start()
    eventually(lambda: bool(_loops(daemon)), "the loop is remembered over a restart")
