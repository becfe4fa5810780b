"""The cluster's node controller beside the reactor: it sets pressure taints by the kubelet's conditions only.

It takes away a taint that no such condition stands for, whoever has set it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from cluster import REACTOR_USER, Cluster, Pods
from machine import wait_until
from reactor_daemon import PRESSED, Reactor

TAINT = "node.kubernetes.io/memory-pressure"
WATCHED_SECONDS = 25.0


@pytest.fixture(scope="module", autouse=True)
def controller(cluster: Cluster) -> Iterator[None]:
    """Run the node controller, and the kubelet at its usual pace: the other tests' is five times as fast."""
    if not cluster.plane.has_controllers:
        pytest.skip("no kube-controller-manager; tests/kube/build-kubernetes.sh builds it")
    cluster.node.restart_kubelet({"nodeStatusUpdateFrequency": "10s"})
    program = cluster.plane.start_controllers("nodelifecycle")
    yield
    program.stop()
    cluster.node.restart_kubelet()


def watched(cluster: Cluster, condition: str) -> Counter[tuple[bool, str]]:
    """Return how often the node was seen with the taint and the condition, over a while.

    As long on a slow machine: the bounds on what is written are for this span.
    """
    seen: Counter[tuple[bool, str]] = Counter()
    deadline = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < deadline:
        node = cluster.node.state()
        taints = {each["key"] for each in node["spec"].get("taints", [])}
        status = {each["type"]: each["status"] for each in node["status"]["conditions"]}
        seen[TAINT in taints, status[condition]] += 1
        time.sleep(0.05)
    return seen


def patches(cluster: Cluster) -> Counter[str]:
    """Return how often the reactor has written to the node, and to its status."""
    asked = cluster.plane.audited(REACTOR_USER)
    refs = [one["objectRef"] for one in asked if one["verb"] == "patch"]
    return Counter(one.get("subresource", "") for one in refs if one["resource"] == "nodes")


@pytest.mark.parametrize(
    ("role", "tainted_by", "condition", "most_taints"),
    [
        ("sole", "reactor", "MemoryPressure", 10),
        ("sole", "nodeController", "MemoryPressure", 0),
        ("alongside", "reactor", "reactor/MemoryPressure", 8),
    ],
)
def test_the_node_is_tainted_for_as_long_as_the_pressure_lasts_whatever_the_controller_does(
    cluster: Cluster,
    pods: Pods,
    reactor: Reactor,
    role: str,
    tainted_by: str,
    condition: str,
    most_taints: int,
) -> None:
    """Alone the condition holds it; beside a kubelet one more effect does, which the controller spares."""
    at_first = patches(cluster)
    reactor.configure(PRESSED, {"kubernetes": {"role": role, "taints": tainted_by}})
    reactor.start()
    pods.run("holder", ["hold", "256"])
    wait_until(lambda: cluster.node.conditions().get(condition) == "True", "the condition holds")
    wait_until(lambda: TAINT in cluster.node.taints(), "the taint is there")
    before = patches(cluster)
    seen = watched(cluster, condition)
    written = patches(cluster) - before
    print(f"{role}: (taint, condition) {dict(seen)}; {dict(written)} patches in {WATCHED_SECONDS:g} s")
    tainted = sum(count for (taint, _), count in seen.items() if taint)
    assert tainted > 0.9 * seen.total()
    assert written.total() < WATCHED_SECONDS
    assert (patches(cluster) - at_first)[""] <= most_taints
    kinds = {each["type"] for each in cluster.node.state()["status"]["conditions"]}
    assert (role == "alongside") == ("reactor/MemoryPressure" in kinds)

    pods.remove()
    wait_until(lambda: cluster.node.conditions()[condition] == "False", "the condition is over")
    wait_until(lambda: not cluster.node.taints(), "the taints are gone")
