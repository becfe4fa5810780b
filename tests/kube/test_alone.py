"""The reactor on a node on which nobody tells it anything: API server and runtime are both gone."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import images
import pytest
from cluster import Cluster, Pods, is_evicted, is_running
from machine import wait_until
from reactor_daemon import HARD, Reactor


@pytest.fixture
def static_pod(cluster: Cluster) -> Iterator[str]:
    """Run a static pod of 300 MiB, which is more than anybody else takes; return its name on the node."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "static", "namespace": "default"},
        "spec": {
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": images.LOAD,
                    "imagePullPolicy": "Never",
                    "args": ["hold", "300"],
                }
            ],
        },
    }
    manifest = cluster.node.directory / "static-pods" / "static.json"
    manifest.write_text(json.dumps(body))
    name = f"static-{cluster.node.name}"
    path = f"/api/v1/namespaces/default/pods/{name}"
    wait_until(
        lambda: is_running(cluster.api.get(path)) if name in mirrors(cluster) else False, "it runs", 60
    )
    yield name
    manifest.unlink()
    wait_until(lambda: name not in mirrors(cluster), "the static pod is gone")


def mirrors(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.api.get("/api/v1/namespaces/default/pods")["items"]}


def test_the_runtime_is_in_the_status_with_where_its_images_lie(reactor: Reactor) -> None:
    reactor.configure({"evictionHard": HARD})
    reactor.start()
    wait_until(lambda: reactor.status()["runtime"], "the runtime has answered")
    status = reactor.status()
    assert status["runtime"].startswith("containerd 1.")
    assert "CRI v1, at /run/containerd/containerd.sock" in status["runtime"]
    wait_until(lambda: "imagefs" in {one["filesystem"] for one in reactor.status()["filesystems"]}, "imagefs")
    paths = {one["filesystem"]: one["path"] for one in reactor.status()["filesystems"]}
    assert paths["imagefs"].startswith("/var/lib/containerd/")


def test_without_runtime_and_api_server_from_the_start_the_right_pod_is_killed(
    cluster: Cluster, reactor: Reactor, pods: Pods, static_pod: str
) -> None:
    """The static pod is larger than the hog, the innocent within its request: only cgroups tell so."""
    pods.run("innocent", ["hold", "64"], requests={"memory": "128Mi"})
    pods.run("hog", ["grow", "600", "15"])
    reactor.configure({"evictionHard": HARD})
    with cluster.without(server=True, runtime=True):
        reactor.start()
        wait_until(reactor.evicted, "a pod is evicted")
        assert reactor.evicted() == ["hog"]
        problems = reactor.status()["problems"]
        assert "without their spec" in problems["specs"]
        assert "/run/containerd/containerd.sock" in problems["runtime"]

    pods.wait("hog", is_evicted, "is evicted", 120)
    assert pods.names(phase="Running") == ["innocent"]
    assert is_running(cluster.api.get(f"/api/v1/namespaces/default/pods/{static_pod}"))
    wait_until(lambda: not {"specs", "runtime"} & reactor.status()["problems"].keys(), "all is well")
    assert reactor.evicted() == ["hog"]


def test_what_was_told_before_a_restart_is_still_known_after_it(
    cluster: Cluster, reactor: Reactor, pods: Pods
) -> None:
    """By what the cgroups tell the two are alike; the spec alone tells whose priority is higher."""
    reactor.configure({"evictionHard": HARD})
    reactor.start()
    important = {"name": f"important-{pods.namespace}", "value": 1000}
    cluster.api.create(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"metadata": {"name": important["name"]}, "value": important["value"]},
    )
    pods.run("important", ["hold", "300"], priority_class=str(important["name"]))
    pods.run("hog", ["grow", "600", "15"])
    remembered = reactor.directory / "pods.json"

    def is_remembered() -> bool:
        if not remembered.exists():
            return False
        return b"hog" in base64.b64decode(json.loads(remembered.read_text())["specs"])

    wait_until(is_remembered, "the pods are remembered")
    reactor.stop()
    with cluster.without(server=True, runtime=True):
        reactor.start()
        wait_until(reactor.evicted, "a pod is evicted")
        assert reactor.evicted() == ["hog"]
        assert "specs" not in reactor.status()["problems"]
    pods.wait("hog", is_evicted, "is evicted", 120)
    assert pods.names(phase="Running") == ["important"]
