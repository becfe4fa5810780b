"""What the API server lets the reactor do, by its authorizer and its audit log: what is needed, no more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import REACTOR_USER, Cluster, Pods, is_evicted
from deployed import NAMESPACE, manifests
from machine import wait_until
from own_pod import OwnPod
from reactor_daemon import HARD, Reactor, grant_rights

RBAC = "/apis/rbac.authorization.k8s.io/v1"

Right = tuple[str, str]  # a verb and a resource


def granted() -> set[Right]:
    """Return what deploy/ grants."""
    roles = [body for body in manifests() if body["kind"] in {"ClusterRole", "Role"}]
    return {
        (verb, resource)
        for role in roles
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def doctor(reactor: Reactor) -> dict[str, Any]:
    """Return what `reactor doctor` finds, by its name."""
    words = ["doctor", "--config", str(reactor.config_path), "--output", "json"]
    command = [sys.executable, "-P", "-m", "reactor", *words]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return {one["name"]: one for one in json.loads(answer.stdout)["features"]}


@pytest.fixture
def may_delete(cluster: Cluster) -> Iterator[None]:
    """Let the reactor delete pods, as deploy/kustomize/components/evicted-pod-ttl does."""
    name = "reactor-test-deletes"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}]
    cluster.api.create(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    group = RBAC.split("/")[2]
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": REACTOR_USER, "apiGroup": group}],
    }
    cluster.api.create(f"{RBAC}/clusterrolebindings", binding)
    yield
    cluster.api.delete(f"{RBAC}/clusterrolebindings/{name}")
    cluster.api.delete(f"{RBAC}/clusterroles/{name}")


def test_every_right_that_is_granted_is_used_and_none_is_missed(
    cluster: Cluster, pods: Pods, reactor: Reactor, own_pod: OwnPod
) -> None:
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{cluster.node.name}"
    cluster.api.delete(lease)  # another test's: it is to be made here
    reactor.environment = own_pod.environment
    before = len(cluster.plane.audited(REACTOR_USER))
    reactor.configure({"evictionHard": HARD}, {"kubernetes": {"leaseNamespace": NAMESPACE}})
    doctor(reactor)
    reactor.start()
    for name in ("first", "second"):  # the node's second event is counted up in the first one
        pods.create(name, ["grow", "600", "200"])
        pods.wait(name, is_evicted, "is evicted")
        wait_until(lambda: not cluster.node.taints(), "the pressure is over")
    reactor.stop()

    asked = [one for one in cluster.plane.audited(REACTOR_USER)[before:] if "objectRef" in one]
    refused = [one for one in asked if one["responseStatus"]["code"] in {401, 403}]
    assert refused == []
    used = {
        (one["verb"], "/".join(filter(None, (ref["resource"], ref.get("subresource")))))
        for one in asked
        if (ref := one["objectRef"]).get("apiGroup", "") != "authorization.k8s.io"  # doctor's, open to all
    }
    assert used == granted()


def test_what_it_asks_for_is_of_its_own_node_alone(cluster: Cluster, pods: Pods, guarded: Reactor) -> None:
    before = len(cluster.plane.audited(REACTOR_USER))
    guarded.stop()
    guarded.start()
    pods.create("hog", ["grow", "600", "200"])
    pods.wait("hog", is_evicted, "is evicted")
    guarded.stop()
    for one in cluster.plane.audited(REACTOR_USER)[before:]:
        if one["verb"] in {"list", "watch"}:
            field = {"pods": "spec.nodeName", "nodes": "metadata.name"}[one["objectRef"]["resource"]]
            assert f"fieldSelector={field}%3D{cluster.node.name}" in one["requestURI"]


def test_a_missing_rule_is_named_in_the_status_and_memory_is_defended_all_the_same(
    cluster: Cluster, pods: Pods, reactor: Reactor
) -> None:
    cluster.api.delete(f"{RBAC}/clusterrolebindings/reactor-test")
    reactor.configure({"evictionHard": HARD})
    reactor.start()
    pods.create("hog", ["grow", "600", "200"])
    wait_until(reactor.lines, "there is a decision")
    wait_until(lambda: len(reactor.evicted()) == 1, "the hog is evicted")
    problems = "\n".join(reactor.status()["problems"].values())
    assert 'missing rule: {apiGroups: [""], resources: ["pods"], verbs: ["list"]}' in problems
    assert not is_evicted(pods.get("hog"))
    assert "missing: get on nodes" in doctor(reactor)["RBAC rules"]["detail"]
    grant_rights(cluster)
    pods.wait("hog", is_evicted, "is told of once the rule is there", 90)


def test_a_node_name_that_the_cluster_does_not_know_is_named_and_memory_defended_all_the_same(
    cluster: Cluster, pods: Pods, reactor: Reactor
) -> None:
    """Of its pods nothing is told then: who goes is decided by what the cgroups tell."""
    reactor.configure({"evictionHard": HARD}, {"kubernetes": {"nodeName": "nowhere"}})
    reactor.start()
    assert doctor(reactor)["node object"]["detail"] == "there is no 'nowhere'"
    wait_until(lambda: "kubernetes node" in reactor.status()["problems"], "the name is found to be wrong")
    assert "no node 'nowhere'; accepted: " in reactor.status()["problems"]["kubernetes node"]
    pods.run("innocent", ["hold", "64"], requests={"memory": "128Mi"})
    pods.create("hog", ["grow", "600", "200"])
    wait_until(reactor.evictions, "somebody is evicted")
    assert reactor.evicted() == ["hog"]


def test_evicted_pods_are_deleted_after_their_time(pods: Pods, reactor: Reactor, may_delete: None) -> None:
    reactor.configure({"evictionHard": HARD}, {"kubernetes": {"evictedPodTTL": "4s"}})
    reactor.start()
    pods.run("innocent", ["hold", "16"], requests={"memory": "32Mi"})
    pods.create("hog", ["grow", "600", "200"])
    pods.wait("hog", is_evicted, "is evicted")
    wait_until(lambda: pods.names() == ["innocent"], "the evicted pod is deleted")


def test_doctor_finds_the_cluster_well_and_the_kubelets_eviction_off(
    cluster: Cluster, reactor: Reactor
) -> None:
    configuration = str(cluster.node.configuration_path())
    reactor.configure({"evictionHard": HARD}, {"kubernetes": {"kubelet": {"config": configuration}}})
    found = doctor(reactor)
    for name in ("API server", "RBAC rules", "node object", "sole eviction"):
        assert found[name]["available"], found[name]
    assert found["API server"]["detail"].startswith("v1.")
