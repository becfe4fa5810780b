"""The node says that it is under pressure: conditions, taints, and which pods it admits meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from api import Object
from cluster import Cluster, Pods, is_evicted, is_failed, is_running
from deployed import NAMESPACE
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
    set_taints(cluster, FOREIGN)
    yield FOREIGN
    cluster.node.calm()


def set_taints(cluster: Cluster, *keys: str) -> None:
    """Replace the node's taints, as a controller does."""
    effects = {TAINT: "NoSchedule", FOREIGN: "PreferNoSchedule"}
    taints = [{"key": key, "effect": effects[key]} for key in keys]
    cluster.api.merge_patch(f"/api/v1/nodes/{cluster.node.name}", {"spec": {"taints": taints}})


def test_condition_and_taint_come_with_the_pressure_and_go_after_the_transition_period(
    cluster: Cluster, pods: Pods, reactor: Reactor, role: str, foreign_taint: str
) -> None:
    condition = {"sole": "MemoryPressure", "alongside": "reactor/MemoryPressure"}[role]
    reactor.configure(
        {"evictionHard": HARD, "evictionPressureTransitionPeriod": "8s"}, {"kubernetes": {"role": role}}
    )
    reactor.start()
    wait_until(lambda: cluster.node.conditions().get(condition) == "False", "the condition is there")
    assert cluster.node.taints() == {foreign_taint}

    pods.create("hog", ["grow", "600", "200"])
    pods.wait("hog", is_evicted, "is evicted")
    wait_until(lambda: cluster.node.taints() == {TAINT, foreign_taint}, "the taint is there", 5)
    set_taints(cluster, foreign_taint)
    wait_until(lambda: cluster.node.taints() == {TAINT, foreign_taint}, "the taint is set again", 10)
    for _ in range(20):  # the kubelet says otherwise of its own condition every two seconds
        wait_until(lambda: cluster.node.conditions()[condition] == "True", "the condition stands", 5)
        assert cluster.node.taints() == {TAINT, foreign_taint}
        time.sleep(0.2)
    wait_until(lambda: TAINT not in cluster.node.taints(), "the taint is gone")
    wait_until(lambda: cluster.node.conditions()[condition] == "False", "the condition is over")
    assert cluster.node.taints() == {foreign_taint}
    assert "reactor/taints" not in cluster.node.state()["metadata"].get("annotations", {})


def test_a_taint_that_was_there_before_stays(cluster: Cluster, pods: Pods, reactor: Reactor) -> None:
    set_taints(cluster, TAINT)
    reactor.configure({"evictionHard": HARD}, {"kubernetes": {"role": "alongside"}})
    reactor.start()
    pods.create("hog", ["grow", "600", "200"])
    condition = "reactor/MemoryPressure"
    wait_until(lambda: cluster.node.conditions().get(condition) == "True", "the condition holds")
    wait_until(lambda: cluster.node.conditions()[condition] == "False", "the condition is over")
    assert cluster.node.taints() == {TAINT}


def test_under_memory_pressure_best_effort_pods_are_failed_and_others_admitted(
    cluster: Cluster, pods: Pods, reactor: Reactor
) -> None:
    reactor.configure({"evictionHard": HARD, "evictionPressureTransitionPeriod": "20s"})
    reactor.start()
    pods.create("hog", ["grow", "600", "200"])
    pods.wait("hog", is_evicted, "is evicted")

    pods.create("best-effort", ["hold", "20"])
    pods.create("burstable", ["hold", "20"], requests={"memory": "32Mi"})
    pods.create("tolerant", ["hold", "20"], spec={"tolerations": [{"key": TAINT, "operator": "Exists"}]})
    refused = pods.wait("best-effort", is_failed, "is refused")
    assert refused["status"]["reason"] == "Evicted"
    assert refused["status"]["message"].startswith("Pod")
    assert "The node had condition: [MemoryPressure]." in refused["status"]["message"]
    pods.wait("burstable", is_running, "runs")
    pods.wait("tolerant", is_running, "runs")

    wait_until(lambda: TAINT not in cluster.node.taints(), "the pressure is over")
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
    wait_until(lambda: TAINT not in cluster.node.taints(), "the taint is gone")
    assert len(pods.events("Evicted")) == 1


def test_the_node_has_an_event_of_the_threshold(cluster: Cluster, pods: Pods, guarded: Reactor) -> None:
    def told() -> list[Object]:
        events = cluster.api.get("/api/v1/namespaces/default/events")["items"]
        return [one for one in events if one["reason"] == "EvictionThresholdMet"]

    before = {event["metadata"]["uid"]: event.get("count", 1) for event in told()}

    def told_now() -> list[Object]:
        return [one for one in told() if before.get(one["metadata"]["uid"]) != one.get("count", 1)]

    pods.create("hog", ["grow", "600", "200"])
    pods.wait("hog", is_evicted, "is evicted")
    wait_until(told_now, "there is an event, or one more of it")
    event = told_now()[-1]
    assert ("Node", cluster.node.name) == (event["involvedObject"]["kind"], event["involvedObject"]["name"])
    assert event["message"] == "Attempting to reclaim memory"


def test_a_lease_of_the_node_is_renewed_for_as_long_as_it_is_guarded(
    cluster: Cluster, reactor: Reactor
) -> None:
    reactor.configure(
        {"evictionHard": HARD}, {"kubernetes": {"leaseNamespace": NAMESPACE, "leaseDuration": "40s"}}
    )
    reactor.start()
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{cluster.node.name}"

    def renewed() -> str:
        found = cluster.api.find(path)
        return "" if found is None else str(found["spec"]["renewTime"])

    before = renewed()
    wait_until(lambda: renewed() > before, "there is a lease, or it is renewed")
    first = renewed()
    wait_until(lambda: renewed() > first, "the lease is renewed")
    lease = cluster.api.get(path)
    assert lease["spec"]["holderIdentity"] == cluster.node.name
    owners = [one["uid"] for one in lease["metadata"].get("ownerReferences", [])]
    assert owners in (
        [],
        [cluster.node.state()["metadata"]["uid"]],
    )  # it may be made before the node is known
