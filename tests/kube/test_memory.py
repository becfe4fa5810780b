"""Memory runs out on a real node: the right pod goes, is announced once, and nobody else is touched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api import Object
from cluster import Cluster, Pods, is_evicted, is_running
from machine import wait_until
from reactor_daemon import HARD, Reactor


@pytest.fixture
def priorities(cluster: Cluster) -> Iterator[None]:
    """Make the priority classes `high` and `low`."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, value in (("high", 1000), ("low", -1000)):
        cluster.api.create(path, {"metadata": {"name": name}, "value": value})
    yield
    for name in ("high", "low"):
        cluster.api.delete(f"{path}/{name}")


def test_the_hog_is_evicted_and_announced_and_nobody_else_is_touched(
    cluster: Cluster, pods: Pods, guarded: Reactor
) -> None:
    memory = {"memory": "64Mi", "cpu": "10m"}
    pods.run("innocent", ["hold", "40"], requests={"memory": "64Mi"})
    pods.run("guaranteed", ["hold", "40"], requests=memory, limits=memory)
    pods.run("critical", ["hold", "80"], priority_class="system-node-critical")
    pods.create("hog", ["grow", "600", "200"], requests={"memory": "16Mi"})
    hog = pods.wait("hog", is_evicted, "is evicted")

    assert guarded.evicted() == ["hog"]
    assert pods.names(phase="Running") == ["critical", "guaranteed", "innocent"]
    message = hog["status"]["message"]
    assert message.startswith("The node was low on resource: memory. ")
    assert "Container main was using" in message
    assert "request is 16Mi, has larger consumption of memory. " in message
    (target,) = [each for each in hog["status"]["conditions"] if each["type"] == "DisruptionTarget"]
    assert (target["status"], target["reason"]) == ("True", "TerminationByKubelet")
    (event,) = pods.events("Evicted")
    assert event["message"] == message
    assert event["type"] == "Warning"
    annotations = event["metadata"]["annotations"]
    assert annotations["starved_resource"] == "memory"
    assert annotations["offending_containers"] == "main"
    assert annotations["offending_containers_usage"]
    assert "forbidden" not in guarded.log()
    assert guarded.rss_mib() < 80


def test_new_pods_are_admitted_when_the_pressure_is_over(
    cluster: Cluster, pods: Pods, guarded: Reactor
) -> None:
    pods.create("hog", ["grow", "600", "200"])
    pods.wait("hog", is_evicted, "is evicted")
    wait_until(lambda: not cluster.node.taints(), "the taint is gone", 60)
    pods.run("late", ["hold", "40"])
    assert pods.names(phase="Failed") == ["hog"]


def test_the_lower_priority_goes_first_and_the_higher_stays_if_that_is_enough(
    pods: Pods, guarded: Reactor, priorities: None
) -> None:
    pods.run("high", ["hold", "250"], priority_class="high")
    pods.create("low", ["grow", "400", "200"], priority_class="low")
    pods.wait("low", is_evicted, "is evicted")
    assert guarded.evicted() == ["low"]
    assert is_running(pods.get("high"))


def test_the_higher_priority_goes_where_nobody_lower_is_above_its_request(
    pods: Pods, guarded: Reactor, priorities: None
) -> None:
    pods.run("low", ["hold", "40"], priority_class="low", requests={"memory": "100Mi"})
    pods.create("high", ["grow", "600", "200"], priority_class="high")
    pods.wait("high", is_evicted, "is evicted")
    assert guarded.evicted() == ["high"]
    assert is_running(pods.get("low"))


def test_what_the_pods_may_use_counts_before_what_the_node_has(pods: Pods, guarded: Reactor) -> None:
    pods.create("hog", ["grow", "600", "200"])
    pods.wait("hog", is_evicted, "is evicted")
    assert guarded.evicted() == ["hog"]
    (decision,) = guarded.evictions()
    assert decision["threshold"]["threshold"] == "allocatableMemory.available<128Mi"


def test_what_lies_outside_the_pods_counts_on_the_node(
    cluster: Cluster, pods: Pods, guarded: Reactor
) -> None:
    holder = cluster.node.start_outside_pods("holder", ["hold", "250"])
    try:
        pods.create("hog", ["grow", "600", "100"])
        pods.wait("hog", is_evicted, "is evicted")
    finally:
        holder.stop()
    assert guarded.evicted() == ["hog"]
    (decision,) = guarded.evictions()
    assert decision["threshold"]["threshold"] == "memory.available<128Mi"


def test_a_pod_that_wants_to_be_restarted_is_not_resurrected_by_the_kubelet(
    pods: Pods, guarded: Reactor
) -> None:
    pods.create("hog", ["grow", "600", "200"], spec={"restartPolicy": "Always"})
    pods.wait("hog", is_evicted, "is evicted")
    wait_until(lambda: not is_running(pods.get("hog")), "its container is not running", 30)
    with pytest.raises(TimeoutError):  # for several of the kubelet's turns
        wait_until(lambda: lives_again(pods.get("hog")), "it lives again", 12)
    assert is_evicted(pods.get("hog"))
    assert len(pods.events("Evicted")) == 1


def has_ended(pod: Object) -> bool:
    """Tell whether the kubelet has told how the pod's container ended."""
    return all("terminated" in status["state"] for status in pod["status"]["containerStatuses"])


def lives_again(pod: Object) -> bool:
    """Tell whether a pod that was evicted is being treated as one that goes on."""
    return is_running(pod) or pod["status"]["phase"] != "Failed"


def test_a_soft_threshold_evicts_after_its_grace_period_and_the_pod_gets_its_own(
    pods: Pods, reactor: Reactor
) -> None:
    reactor.configure(
        {
            "evictionHard": HARD,
            "evictionSoft": {"memory.available": "300Mi"},
            "evictionSoftGracePeriod": {"memory.available": "3s"},
            "evictionMaxPodGracePeriod": 10,
        }
    )
    reactor.start()
    pods.create("hog", ["hold", "480", "1"], spec={"terminationGracePeriodSeconds": 8})
    pods.wait("hog", is_evicted, "is evicted")
    assert reactor.evicted() == ["hog"]
    (decision,) = reactor.evictions()
    assert decision["threshold"]["threshold"] == "memory.available<300Mi"
    wait_until(
        lambda: (
            [line["outcome"] for line in reactor.lines() if line["kind"] == "outcome"]
            or decision["evictions"][0]["outcome"] != "ordered"
        ),
        "the outcome is known",
        30,
    )
    ended = pods.wait("hog", has_ended, "has its container's end in its status")
    (status,) = ended["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 0  # it was asked, and ended by itself


def test_a_soft_threshold_met_for_less_than_its_grace_period_evicts_nobody(
    pods: Pods, reactor: Reactor
) -> None:
    reactor.configure(
        {
            "evictionHard": HARD,
            "evictionSoft": {"memory.available": "300Mi"},
            "evictionSoftGracePeriod": {"memory.available": "20s"},
        }
    )
    reactor.start()
    pods.create("brief", ["hold", "480"])
    wait_until(lambda: reactor.status()["conditions"][0]["in_force"], "the pressure is seen", 20)
    pods.cluster.api.delete(f"{pods.path}/brief", grace_seconds=0)
    with pytest.raises(TimeoutError):
        wait_until(reactor.evictions, "somebody is evicted", 22)
