"""The node says that it is under pressure: conditions, taints, and which pods it admits meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from cluster import Cluster, Pods, is_evicted, is_failed, is_running
from machine import wait_until
from reactor_daemon import HARD, Reactor

TAINT = "node.kubernetes.io/memory-pressure"
FOREIGN = "example.org/maintenance"


@pytest.fixture(params=["sole", "alongside"])
def role(request: pytest.FixtureRequest) -> str:
    """Return how the reactor stands to the kubelet."""
    return str(request.param)


@pytest.fixture
def foreign_taint(cluster: Cluster) -> Iterator[str]:
    """Put a taint of somebody else's on the node."""
    taint = {"key": FOREIGN, "effect": "PreferNoSchedule"}
    cluster.api.patch(f"/api/v1/nodes/{cluster.node.name}", {"spec": {"taints": [taint]}})
    yield FOREIGN
    cluster.node.calm()


def test_condition_and_taint_come_with_the_pressure_and_go_after_the_transition_period(
    cluster: Cluster, pods: Pods, reactor: Reactor, role: str, foreign_taint: str
) -> None:
    condition = {"sole": "MemoryPressure", "alongside": "reactor/MemoryPressure"}[role]
    reactor.configure(
        {"evictionHard": HARD, "evictionPressureTransitionPeriod": "8s"}, {"kubernetes": {"role": role}}
    )
    reactor.start()
    wait_until(lambda: cluster.node.conditions().get(condition) == "False", "the condition is there", 30)
    assert cluster.node.taints() == {foreign_taint}

    pods.create("hog", ["grow", "600", "200"])
    pods.wait("hog", is_evicted, "is evicted")
    wait_until(lambda: cluster.node.taints() == {TAINT, foreign_taint}, "the taint is there", 5)
    for _ in range(20):  # the kubelet says otherwise of its own condition every two seconds
        wait_until(lambda: cluster.node.conditions()[condition] == "True", "the condition stands", 5)
        assert cluster.node.taints() == {TAINT, foreign_taint}
        time.sleep(0.2)
    wait_until(lambda: TAINT not in cluster.node.taints(), "the taint is gone", 30)
    wait_until(lambda: cluster.node.conditions()[condition] == "False", "the condition is over", 30)
    assert cluster.node.taints() == {foreign_taint}


def test_under_memory_pressure_best_effort_pods_are_failed_and_others_admitted(
    cluster: Cluster, pods: Pods, reactor: Reactor
) -> None:
    reactor.configure({"evictionHard": HARD, "evictionPressureTransitionPeriod": "20s"})
    reactor.start()
    pods.create("hog", ["grow", "600", "200"])
    pods.wait("hog", is_evicted, "is evicted")

    pods.create("best-effort", ["hold", "20"])
    pods.create("burstable", ["hold", "20"], requests={"memory": "32Mi"})
    refused = pods.wait("best-effort", is_failed, "is refused")
    assert refused["status"]["reason"] == "Evicted"
    assert "MemoryPressure" in refused["status"]["message"]
    pods.wait("burstable", is_running, "runs")

    wait_until(lambda: TAINT not in cluster.node.taints(), "the pressure is over", 60)
    pods.run("late", ["hold", "20"])


def test_a_restart_keeps_the_pressure_until_its_time(cluster: Cluster, pods: Pods, reactor: Reactor) -> None:
    reactor.configure({"evictionHard": HARD, "evictionPressureTransitionPeriod": "15s"})
    reactor.start()
    pods.create("hog", ["grow", "600", "200"])
    pods.wait("hog", is_evicted, "is evicted")
    wait_until(lambda: TAINT in cluster.node.taints(), "the taint is there", 10)
    reactor.kill()
    reactor.start()
    assert TAINT in cluster.node.taints()
    wait_until(lambda: TAINT not in cluster.node.taints(), "the taint is gone", 60)
    assert len(pods.events("Evicted")) == 1
