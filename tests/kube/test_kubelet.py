"""The kubelet's own API: its statistics and pods recorded; its list of pods in the API server's place."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from cluster import Cluster, Pods, is_evicted
from machine import wait_until
from node import MIB
from reactor_daemon import HARD, Reactor


def from_kubelet(cluster: Cluster) -> dict[str, Any]:
    """Return the section's keys by which the kubelet is asked; it signs for itself."""
    return {"kubernetes": {"pods": "kubelet", "kubelet": {"url": cluster.node.kubelet_url, "insecure": True}}}


def run(*words: str) -> str:
    """Run a command of the reactor's and return its output."""
    command = [sys.executable, "-P", "-m", "reactor", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_a_node_is_recorded_and_the_recording_replayed(
    cluster: Cluster, reactor: Reactor, pods: Pods
) -> None:
    pods.run("holder", ["hold", "64"], requests={"memory": "32Mi"})

    def used() -> int:
        found = [
            one for one in cluster.node.summary()["pods"] if one["podRef"]["namespace"] == pods.namespace
        ]
        return int(found[0].get("memory", {}).get("workingSetBytes", 0)) if found else 0

    wait_until(lambda: used() >= 64 * MIB, "the Summary API has seen the pod's memory")
    # No node has that much available: the holder would have to go.
    reactor.configure({"evictionHard": {"memory.available": "99%"}}, from_kubelet(cluster))
    recorded = reactor.directory / "node.json"
    run(
        "record",
        "--config",
        str(reactor.config_path),
        "--seconds",
        "3",
        "--interval-seconds",
        "1",
        str(recorded),
    )
    document = json.loads(recorded.read_text())
    assert document["steps"]  # one of a node on which nothing moves
    assert document["node"]["labels"]["kubernetes.io/hostname"] == document["node"]["name"]
    assert "holder" in [pod["metadata"]["name"] for pod in document["steps"][0]["pods"]]
    assert "env" not in recorded.read_text()
    lines = [json.loads(line) for line in run("simulate", "--output", "json", str(recorded)).splitlines()]
    assert [f"{pods.namespace}/holder"] == [one["pod"] for one in lines[0]["evicted"]]


def test_pods_may_come_from_the_kubelet(cluster: Cluster, reactor: Reactor, pods: Pods) -> None:
    reactor.configure({"evictionHard": HARD}, from_kubelet(cluster))
    reactor.start()
    pods.run("innocent", ["hold", "64"], requests={"memory": "128Mi"})
    pods.create("hog", ["grow", "700", "200"])
    pods.wait("hog", is_evicted, "is evicted")
    wait_until(lambda: pods.events("Evicted"), "there is an event")
    assert pods.names(phase="Running") == ["innocent"]
    assert 1 == len(pods.events("Evicted"))
