"""What a real API server and kubelet make of the node's conditions and taints, and of pods that arrive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Pods, is_evicted
from machine import wait_until
from reactor_daemon import Reactor, grant_rights

_TAINT = "node.kubernetes.io/memory-pressure"
_PRESSED = {
    "evictionSoft": {"memory.available": "600Mi"},  # met by any pod; for longer than the test takes
    "evictionSoftGracePeriod": {"memory.available": "1h"},
    "evictionHard": {"memory.available": "64Mi"},
}


@pytest.fixture
def reactor(cluster: Cluster, tmp_path: Path) -> Iterator[Reactor]:
    """Return a daemon that has all the rights that deploy/ gives it; it is stopped after the test."""
    grant_rights(cluster)
    made = Reactor(cluster, tmp_path)
    yield made
    made.stop()
    made.keep_log()


def conditions(cluster: Cluster) -> dict[str, str]:
    """Return the node's conditions by type."""
    return {one["type"]: one["status"] for one in cluster.node.state()["status"]["conditions"]}


def taints(cluster: Cluster) -> list[str]:
    """Return the keys of the node's taints."""
    return [taint["key"] for taint in cluster.node.state()["spec"].get("taints", [])]


def set_taints(cluster: Cluster, *keys: str) -> None:
    """Replace the node's taints, as a controller does."""
    body = {"spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in keys] or None}}
    path = f"/api/v1/nodes/{cluster.node.name}"
    cluster.api.request("PATCH", path, body, "application/merge-patch+json")


@pytest.mark.parametrize(
    ("role", "kind"), [("alongside", "reactor/MemoryPressure"), ("sole", "MemoryPressure")]
)
def test_pressure_shows_on_the_node_and_clears_after_the_transition_period(
    cluster: Cluster, reactor: Reactor, pods: Pods, role: str, kind: str
) -> None:
    reactor.configure(_PRESSED, {"kubernetes": {"role": role}})
    reactor.start()
    wait_until(lambda: conditions(cluster).get(kind) == "False", "the condition is there")
    set_taints(cluster, "example.com/mine")
    pods.run("holder", ["hold", "256"])
    wait_until(lambda: conditions(cluster)[kind] == "True", "the condition holds")
    wait_until(lambda: _TAINT in taints(cluster), "the taint is there")

    seen = set()
    deadline = time.monotonic() + 8  # the kubelet sends its status every two seconds
    while time.monotonic() < deadline:
        seen.add(conditions(cluster)[kind])
        time.sleep(0.05)
    assert "True" in seen
    assert conditions(cluster)[kind] == "True" or seen == {"True", "False"}
    set_taints(cluster, "example.com/mine")
    wait_until(lambda: _TAINT in taints(cluster), "the taint is set again")

    pods.remove()
    wait_until(lambda: conditions(cluster)[kind] == "False", "the condition is over")
    wait_until(lambda: taints(cluster) == ["example.com/mine"], "only our taint is gone")
    set_taints(cluster)
    annotations = cluster.node.state()["metadata"]["annotations"]
    assert "reactor/taints" not in annotations


def test_a_taint_that_was_there_before_stays(cluster: Cluster, reactor: Reactor, pods: Pods) -> None:
    set_taints(cluster, _TAINT)
    reactor.configure(_PRESSED, {"kubernetes": {"role": "alongside"}})
    reactor.start()
    pods.run("holder", ["hold", "256"])
    wait_until(lambda: conditions(cluster).get("reactor/MemoryPressure") == "True", "the condition holds")
    pods.remove()
    wait_until(lambda: conditions(cluster)["reactor/MemoryPressure"] == "False", "the condition is over")
    assert taints(cluster) == [_TAINT]
    set_taints(cluster)


def test_a_best_effort_pod_that_arrives_under_pressure_is_failed_as_by_admission(
    cluster: Cluster, reactor: Reactor, pods: Pods
) -> None:
    reactor.configure(_PRESSED)
    reactor.start()
    pods.run("holder", ["hold", "256"], requests={"memory": "300Mi"})
    wait_until(lambda: conditions(cluster)["MemoryPressure"] == "True", "the condition holds")
    pods.create("late", ["hold", "16"])
    pod = pods.wait("late", is_evicted, "is refused")
    assert pod["status"]["message"].startswith("Pod")
    assert "The node had condition: [MemoryPressure]." in pod["status"]["message"]
    tolerations: dict[str, Any] = {"tolerations": [{"key": _TAINT, "operator": "Exists"}]}
    pods.run("tolerant", ["hold", "16"], spec=tolerations)
    pods.run("burstable", ["hold", "16"], requests={"memory": "16Mi"})
    assert not is_evicted(pods.get("burstable"))
    assert not is_evicted(pods.get("tolerant"))


def test_the_node_has_an_event_of_the_threshold(cluster: Cluster, reactor: Reactor, pods: Pods) -> None:
    reactor.configure({"evictionHard": {"memory.available": "128Mi"}})
    reactor.start()
    pods.create("hog", ["grow", "700", "200"])
    pods.wait("hog", is_evicted, "is evicted")

    def told() -> list[Any]:
        events = cluster.api.get("/api/v1/namespaces/default/events")["items"]
        return [one for one in events if one["reason"] == "EvictionThresholdMet"]

    wait_until(told, "there is an event")
    event = told()[-1]
    assert ("Node", cluster.node.name) == (event["involvedObject"]["kind"], event["involvedObject"]["name"])
    assert "Attempting to reclaim memory" == event["message"]


def test_a_missing_rule_is_named_in_the_status_and_memory_is_defended_all_the_same(
    cluster: Cluster, reactor: Reactor, pods: Pods
) -> None:
    cluster.api.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/reactor-test")
    reactor.configure({"evictionHard": {"memory.available": "128Mi"}})
    reactor.start()
    pods.create("hog", ["grow", "700", "200"])
    wait_until(reactor.lines, "there is a decision")
    wait_until(lambda: len(reactor.evicted()) == 1, "the hog is evicted")
    problems = "\n".join(reactor.status()["problems"].values())
    assert 'missing rule: {apiGroups: [""], resources: ["pods"], verbs: ["list"]}' in problems
    assert not is_evicted(pods.get("hog"))
    grant_rights(cluster)
    pods.wait("hog", is_evicted, "is told of once the rule is there", 90)
