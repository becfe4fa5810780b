"""The cluster itself: a pod runs, is charged to the virtual node, and leaves nothing behind."""

from __future__ import annotations

from cgroups import limit_bytes, usage_bytes
from cluster import Cluster, Pods, is_running
from machine import wait_until
from node import MIB, NO_EVICTION, NODE_BYTES, PODS_BYTES


def test_a_pod_runs_and_its_memory_is_charged_to_the_virtual_node(cluster: Cluster, pods: Pods) -> None:
    pods.run("holder", ["hold", "64"])
    assert usage_bytes(pods.cgroup("holder")) >= 64 * MIB
    assert usage_bytes(cluster.node.kubepods) >= 64 * MIB


def test_the_pods_may_use_what_the_node_has_and_no_more(cluster: Cluster) -> None:
    if cluster.node.is_virtual:
        assert limit_bytes(cluster.node.cgroup) == NODE_BYTES
    assert limit_bytes(cluster.node.kubepods) == PODS_BYTES


def test_the_kubelet_does_not_evict_by_itself(cluster: Cluster, pods: Pods) -> None:
    in_force = cluster.node.kubelet_configuration()
    assert in_force["evictionHard"] == NO_EVICTION
    assert not in_force.get("evictionSoft")
    assert cluster.node.conditions()["MemoryPressure"] == "False"
    assert cluster.node.state()["spec"].get("taints", []) == []


def test_the_summary_tells_what_a_pod_uses(cluster: Cluster, pods: Pods) -> None:
    pods.run("holder", ["hold", "64"])

    def reported() -> int:
        for each in cluster.node.summary()["pods"]:
            if each["podRef"]["namespace"] == pods.namespace:
                return int(each.get("memory", {}).get("workingSetBytes", 0))
        return 0

    wait_until(lambda: reported() >= 64 * MIB, "the Summary API has seen the pod's memory")


def test_the_programs_can_be_restarted_and_the_pod_lives_on(cluster: Cluster, pods: Pods) -> None:
    before = pods.run("idler", ["idle"])["status"]["containerStatuses"][0]
    cluster.plane.restart_server()
    cluster.node.restart_containerd()
    cluster.node.restart_kubelet()
    after = pods.wait("idler", is_running, "runs")["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
    assert cluster.lost() is None
