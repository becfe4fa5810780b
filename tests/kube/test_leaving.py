"""What a daemon that ends leaves on the node: all of it for a successor, nothing where there will be none."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from cluster import REACTOR_USER, Cluster, Pods
from machine import wait_until
from own_pod import OwnPod
from reactor_daemon import PRESSED, Reactor, grant_rights

TAINT = "node.kubernetes.io/memory-pressure"
CONDITION = "reactor/MemoryPressure"
GRACE_SECONDS = 10.0  # terminationGracePeriodSeconds of the manifests, TimeoutStopSec of the unit


@pytest.fixture
def pressed(cluster: Cluster, pods: Pods, reactor: Reactor) -> Callable[[], None]:
    """Return what starts the daemon on a node under pressure, and waits until the node says so."""

    def start() -> None:
        reactor.configure(PRESSED, {"kubernetes": {"role": "alongside"}})
        reactor.start()
        pods.run("holder", ["hold", "256"])
        wait_until(lambda: cluster.node.conditions().get(CONDITION) == "True", "the condition holds")
        wait_until(lambda: cluster.node.taints() == {TAINT}, "the taint is there")

    return start


def left(cluster: Cluster) -> list[object]:
    """Return what is the reactor's on the node, each taint with the instant at which it was set."""
    node = cluster.node.state()
    taints = [each for each in node["spec"].get("taints", []) if each["key"] == TAINT]
    annotated = [one for one in node["metadata"].get("annotations", {}) if one.startswith("reactor/")]
    conditions = {one["type"]: one["status"] for one in node["status"]["conditions"] if "/" in one["type"]}
    return [*taints, *annotated, *conditions.items()]


def stopped_in_seconds(reactor: Reactor) -> float:
    """End the daemon by SIGTERM and return how long that took."""
    began = time.monotonic()
    assert reactor.stop() == 0
    return time.monotonic() - began


def test_a_daemon_that_nobody_starts_again_leaves_nothing_on_the_node(
    cluster: Cluster, reactor: Reactor, pressed: Callable[[], None]
) -> None:
    pressed()
    assert stopped_in_seconds(reactor) < GRACE_SECONDS
    assert left(cluster) == []
    assert "removed 2 taints, 3 conditions: no successor is expected" in reactor.log()


def test_a_pod_of_a_daemon_set_that_stays_leaves_everything_and_the_next_finds_it(
    cluster: Cluster, reactor: Reactor, pressed: Callable[[], None], own_pod: OwnPod
) -> None:
    reactor.environment = own_pod.environment
    pressed()
    before = left(cluster)
    assert stopped_in_seconds(reactor) < GRACE_SECONDS
    assert left(cluster) == before
    assert "conditions and taints stay: a pod of DaemonSet reactor is expected" in reactor.log()
    reactor.start()
    wait_until(lambda: reactor.status()["kubernetes"]["watches"].get("node"), "the node is watched")
    assert left(cluster) == before


@pytest.mark.parametrize(
    "end",
    [
        OwnPod.delete_daemon_set,
        OwnPod.delete_daemon_set_after_its_pods,
        lambda own_pod: own_pod.select(reactor="nowhere"),
    ],
    ids=["deleted", "deleted after its pods", "selects the node no more"],
)
def test_a_pod_of_a_daemon_set_that_makes_no_other_leaves_nothing(
    cluster: Cluster,
    reactor: Reactor,
    pressed: Callable[[], None],
    own_pod: OwnPod,
    end: Callable[[OwnPod], None],
) -> None:
    reactor.environment = own_pod.environment
    pressed()
    end(own_pod)
    assert stopped_in_seconds(reactor) < GRACE_SECONDS
    assert left(cluster) == []


def test_a_daemon_that_stands_by_finds_everything_as_it_was(
    cluster: Cluster, reactor: Reactor, pressed: Callable[[], None]
) -> None:
    pressed()
    before = left(cluster)
    first = reactor.program
    assert first is not None
    following = Reactor(cluster, reactor.directory)
    following.config_path = reactor.config_path
    following.stand_by()
    wait_until(lambda: "standing by" in following.log(), "the next one stands by")
    try:
        assert first.stop() == 0
        wait_until(lambda: "the other daemon has ended: taking over" in following.log(), "it takes over")
        following.wait_guards()
        wait_until(lambda: following.status()["kubernetes"]["watches"].get("node"), "the node is watched")
        assert left(cluster) == before
    finally:
        following.stop()
    assert left(cluster) == []


def test_without_the_api_server_the_daemon_ends_in_time_and_says_what_stays(
    cluster: Cluster, reactor: Reactor, pressed: Callable[[], None]
) -> None:
    pressed()
    before = left(cluster)
    with cluster.without(server=True):
        assert stopped_in_seconds(reactor) < GRACE_SECONDS
    assert "no successor is expected, but something stays" in reactor.log()
    assert left(cluster) == before


def test_where_the_rights_are_gone_already_everything_stays_and_that_is_said(
    cluster: Cluster, reactor: Reactor, pressed: Callable[[], None], own_pod: OwnPod
) -> None:
    """As after `kubectl delete -k`, which deletes the rights together with the DaemonSet."""
    reactor.environment = own_pod.environment
    pressed()
    before = left(cluster)
    own_pod.delete_daemon_set()
    cluster.api.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/reactor-test")
    wait_until(lambda: not may_list_pods(cluster), "the server refuses it")
    try:
        assert stopped_in_seconds(reactor) < GRACE_SECONDS
    finally:
        grant_rights(cluster)
    assert left(cluster) == before
    assert "whether there will be one is not known" in reactor.log()


def may_list_pods(cluster: Cluster) -> bool:
    """Return whether the reactor may, by the server's authorizer."""
    attributes = {"resource": "pods", "verb": "list"}
    review = {"spec": {"user": REACTOR_USER, "resourceAttributes": attributes}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(cluster.api.create(path, review)["status"]["allowed"])
