"""What the control plane is told of an eviction, by a real kubelet's and API server's own account."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from api import Object
from cluster import Cluster, Pods, is_evicted, is_running
from machine import wait_until
from reactor_daemon import Reactor, grant_rights

_HARD = {"evictionHard": {"memory.available": "128Mi"}}
_ALWAYS = {"restartPolicy": "Always"}


@pytest.fixture
def reactor(cluster: Cluster, tmp_path: Path) -> Iterator[Reactor]:
    """Return a daemon that has all the rights that deploy/ gives it; it is stopped after the test."""
    grant_rights(cluster)
    made = Reactor(cluster, tmp_path)
    yield made
    made.stop()
    made.keep_log()


def condition(pod: Object, kind: str) -> Object:
    """Return a pod's condition, an empty one where it has none."""
    found = [one for one in pod["status"].get("conditions", []) if one["type"] == kind]
    return found[0] if found else {}


def evicted_event(pods: Pods) -> Object:
    """Return the namespace's one event of an eviction."""
    [event] = pods.events("Evicted")
    return event


def test_an_evicted_pod_is_failed_with_upstreams_words_and_one_event(reactor: Reactor, pods: Pods) -> None:
    reactor.configure(_HARD)
    reactor.start()
    pods.run("innocent", ["hold", "64"], requests={"memory": "128Mi"})
    pods.create("hog", ["grow", "700", "200"])
    pod = pods.wait("hog", is_evicted, "is evicted")

    assert pod["status"]["message"].startswith("The node was low on resource: memory.")
    assert ("True", "TerminationByKubelet") == (
        condition(pod, "DisruptionTarget").get("status"),
        condition(pod, "DisruptionTarget").get("reason"),
    )
    wait_until(lambda: pods.events("Evicted"), "there is an event")
    event = evicted_event(pods)
    assert ("Warning", pod["status"]["message"]) == (event["type"], event["message"])
    assert "memory" == event["metadata"]["annotations"]["starved_resource"]
    assert "main" == event["metadata"]["annotations"]["offending_containers"]
    assert pods.names(phase="Running") == ["innocent"]
    print(f"RSS {reactor.rss_mib():.1f} MiB")
    assert reactor.rss_mib() < 80


def test_the_kubelet_does_not_start_it_again_and_the_status_stays(
    cluster: Cluster, reactor: Reactor, pods: Pods
) -> None:
    reactor.configure(_HARD)
    reactor.start()
    pods.create("hog", ["grow", "700", "200"], spec=_ALWAYS)
    pods.wait("hog", is_evicted, "is evicted")
    seen: dict[str, int] = {}
    deadline = time.monotonic() + 25  # two of the kubelet's own turns, and more than its first back-off
    while time.monotonic() < deadline:
        status = pods.get("hog")["status"]
        told = f"{status['phase']} {status.get('reason')}"
        seen[told] = seen.get(told, 0) + 1
        time.sleep(0.05)
    assert not is_running(pods.get("hog"))
    print(seen, reactor.log())
    assert seen["Failed Evicted"] > 0.8 * sum(seen.values())
    assert {"Failed Evicted", "Failed None"} >= set(seen)
    assert 1 == len(pods.events("Evicted"))


def test_with_the_server_away_the_pod_stays_down_and_is_told_of_when_it_is_back(
    cluster: Cluster, reactor: Reactor, pods: Pods
) -> None:
    reactor.configure(_HARD)
    reactor.start()
    later = {"command": ["sh", "-c", "sleep 5; exec /load grow 700 200"], "args": []}
    pods.run("hog", [], spec=_ALWAYS, container=later)
    cluster.plane.stop_server()
    try:
        wait_until(lambda: "hog" in reactor.evicted(), "the hog is evicted", 60)
        wait_until(
            lambda: "lived again" in reactor.log(), "the kubelet starts it again, and it is killed", 30
        )
        time.sleep(5)
        assert ["hog"] == reactor.evicted()
    finally:
        cluster.plane.start_server()
    pods.wait("hog", is_evicted, "is evicted")
    wait_until(lambda: pods.events("Evicted"), "there is an event")
    assert 1 == len(pods.events("Evicted"))
