"""Memory runs out on a real node: the right pod goes, is announced once, and nobody else is touched."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest
from api import Object
from cluster import Cluster, Pods, is_evicted, is_running
from machine import wait_until
from reactor_daemon import HARD, Reactor

_KUBELETS_TURNS_SECONDS: Final = 25.0  # two of them, and more than its first back-off


@pytest.fixture
def priorities(cluster: Cluster) -> Iterator[None]:
    """Make the priority classes `high` and `low`."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, value in (("high", 1000), ("low", -1000)):
        cluster.api.create(path, {"metadata": {"name": name}, "value": value})
    yield
    for name in ("high", "low"):
        cluster.api.delete(f"{path}/{name}")


def test_the_hog_is_evicted_and_announced_and_no_other_pod_is_touched(
    cluster: Cluster, pods: Pods, guarded: Reactor
) -> None:
    memory = {"memory": "64Mi", "cpu": "10m"}
    pods.run("innocent", ["hold", "40"], requests={"memory": "64Mi"})
    pods.run("guaranteed", ["hold", "40"], requests=memory, limits=memory)
    pods.run("critical", ["hold", "80"], priority_class="system-node-critical")
    pods.create("hog", ["grow", "600", "200"], requests={"memory": "16Mi"})
    hog = pods.wait("hog", is_evicted, "is evicted")

    running = ["critical", "guaranteed", "innocent"]
    # A kubelet of 1.20 writes the status once more as it was; its next one is ours again.
    wait_until(lambda: pods.names(phase="Running") == running, "all others run, and the hog does not")
    assert guarded.evicted() == ["hog"]
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
    wait_until(lambda: not cluster.node.taints(), "the taint is gone")
    pods.run("late", ["hold", "40"])
    wait_until(lambda: pods.names(phase="Failed") == ["hog"], "the hog alone has failed")


def test_the_lower_priority_goes_first_and_the_higher_stays_if_that_is_enough(
    pods: Pods, guarded: Reactor, priorities: None
) -> None:
    pods.run("high", ["hold", "250"], priority_class="high")
    pods.create("low", ["grow", "400", "200"], priority_class="low")
    pods.wait("low", is_evicted, "is evicted")
    assert guarded.evicted() == ["low"]
    assert is_running(pods.get("high"))


def test_the_higher_priority_goes_where_no_lower_one_is_above_its_request(
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
    if not cluster.node.is_virtual:
        pytest.skip("the node is the machine itself; run with the cgroup driver cgroupfs")
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
    told: Counter[str] = Counter()
    deadline = time.monotonic() + _KUBELETS_TURNS_SECONDS
    while time.monotonic() < deadline:
        status = pods.get("hog")["status"]
        told[f"{status['phase']} {status.get('reason')}"] += 1
        time.sleep(0.05)
    assert not is_running(pods.get("hog"))
    # A kubelet of before 1.22 drops the reason at its turn; it is written again.
    assert {"Failed Evicted", "Failed None"} >= set(told)
    assert told["Failed Evicted"] > 0.8 * told.total(), told
    assert len(pods.events("Evicted")) == 1


def has_ended(pod: Object) -> bool:
    """Tell whether the kubelet has told how the pod's container ended."""
    return all("terminated" in status["state"] for status in pod["status"]["containerStatuses"])


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


def test_a_soft_threshold_met_for_less_than_its_grace_period_evicts_no_pod(
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
    wait_until(lambda: reactor.status()["conditions"][0]["in_force"], "the pressure is seen")
    pods.cluster.api.delete(f"{pods.path}/brief", grace_seconds=0)
    with pytest.raises(TimeoutError):
        wait_until(reactor.evictions, "somebody is evicted", 22)


def test_a_soft_eviction_is_told_at_once_and_the_pod_is_failed_when_it_has_ended(
    pods: Pods, reactor: Reactor
) -> None:
    reactor.configure(
        {
            "evictionHard": {"memory.available": "32Mi"},
            "evictionSoft": {"memory.available": "600Mi"},
            "evictionSoftGracePeriod": {"memory.available": "1s"},
            "evictionMaxPodGracePeriod": 20,
        }
    )
    pods.run("holder", ["hold", "300", "4"], spec={"terminationGracePeriodSeconds": 20})
    reactor.start()
    wait_until(lambda: pods.events("Evicted"), "there is an event")
    assert not is_evicted(pods.get("holder"))  # it has been asked to end, and takes four seconds
    pods.wait("holder", is_evicted, "is evicted")
    outcomes = [one["outcome"] for line in reactor.lines() for one in line.get("evictions", [])]
    assert outcomes == ["terminated"]
    assert len(pods.events("Evicted")) == 1
