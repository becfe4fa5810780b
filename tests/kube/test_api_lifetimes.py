"""Evictions that outlive the daemon, their pods' grace periods, and evicted pods' own end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import REACTOR_USER, Cluster, Pods, is_evicted
from machine import wait_until
from reactor_daemon import Reactor, grant_rights

_HARD = {"evictionHard": {"memory.available": "128Mi"}}
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def reactor(cluster: Cluster, tmp_path: Path) -> Iterator[Reactor]:
    """Return a daemon that has all the rights that deploy/ gives it; it is stopped after the test."""
    grant_rights(cluster)
    made = Reactor(cluster, tmp_path)
    yield made
    made.stop()
    made.keep_log()


def test_an_eviction_that_nobody_was_told_of_outlives_a_crash(
    cluster: Cluster, reactor: Reactor, pods: Pods
) -> None:
    reactor.configure(_HARD)
    reactor.start()
    later = {"command": ["sh", "-c", "sleep 5; exec /load grow 700 200"], "args": []}
    pods.run("hog", [], spec={"restartPolicy": "Always"}, container=later)
    cluster.plane.stop_server()
    try:
        wait_until(lambda: "hog" in reactor.evicted(), "the hog is evicted", 60)
        untold = reactor.directory / "announcements.json"
        wait_until(lambda: untold.exists() and "hog" in untold.read_text(), "it is written down")
        reactor.kill()
        time.sleep(3)  # the kubelet has it to itself
        reactor.start()
    finally:
        cluster.plane.start_server()
    pod = pods.wait("hog", is_evicted, "is told of by the next run")
    assert pod["status"]["message"].startswith("The node was low on resource: memory.")
    wait_until(lambda: pods.events("Evicted"), "there is an event")
    time.sleep(2)
    assert 1 == len(pods.events("Evicted"))


def test_a_soft_eviction_leaves_the_pod_its_time_and_is_told_at_its_end(reactor: Reactor, pods: Pods) -> None:
    soft = {
        "evictionHard": {"memory.available": "32Mi"},
        "evictionSoft": {"memory.available": "600Mi"},
        "evictionSoftGracePeriod": {"memory.available": "1s"},
        "evictionMaxPodGracePeriod": 20,
    }
    reactor.configure(soft)
    pods.run("holder", ["hold", "300", "4"], spec={"terminationGracePeriodSeconds": 20})
    reactor.start()
    wait_until(lambda: pods.events("Evicted"), "there is an event")
    assert not is_evicted(pods.get("holder"))  # it has been asked to end, and takes four seconds
    pods.wait("holder", is_evicted, "is evicted")
    outcomes = [one["outcome"] for line in reactor.lines() for one in line.get("evictions", [])]
    assert ["terminated"] == outcomes
    assert 1 == len(pods.events("Evicted"))


def test_evicted_pods_are_deleted_after_their_time(cluster: Cluster, reactor: Reactor, pods: Pods) -> None:
    name = "reactor-test-deletes"
    role = {
        "metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}],
    }
    cluster.api.create(f"{_RBAC}/clusterroles", role)
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": REACTOR_USER, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    cluster.api.create(f"{_RBAC}/clusterrolebindings", binding)
    try:
        reactor.configure(_HARD, {"kubernetes": {"evictedPodTTL": "4s"}})
        reactor.start()
        pods.run("innocent", ["hold", "16"], requests={"memory": "32Mi"})
        pods.create("hog", ["grow", "700", "200"])
        pods.wait("hog", is_evicted, "is evicted")
        wait_until(lambda: pods.names() == ["innocent"], "the evicted pod is deleted", 30)
    finally:
        cluster.api.delete(f"{_RBAC}/clusterrolebindings/{name}")
        cluster.api.delete(f"{_RBAC}/clusterroles/{name}")


def test_doctor_finds_the_cluster_well_and_the_kubelets_eviction_off(
    cluster: Cluster, reactor: Reactor
) -> None:
    configuration = str(cluster.node.configuration_path())
    reactor.configure(_HARD, {"kubernetes": {"kubelet": {"config": configuration}}})
    words = ["doctor", "--config", str(reactor.config_path), "--output", "json"]
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "reactor", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = {one["name"]: one for one in json.loads(answer.stdout)["features"]}
    for name in ("API server", "RBAC rules", "node object", "sole eviction"):
        assert found[name]["available"], found[name]
    assert "v1.20.2" in found["API server"]["detail"]
