"""The shadow beside a real kubelet: what the journal has of its evictions, and what `reactor shadow` says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest
from api import Object
from cluster import Cluster, Pods, is_evicted, is_failed, is_running
from machine import wait_until
from reactor_daemon import HARD, Reactor

_OFF: Final = {
    "nodefs.available": "0%",
    "nodefs.inodesFree": "0%",
    "imagefs.available": "0%",
    "pid.available": "0%",
}
_ALONGSIDE: Final = {"dryRun": True, "kubernetes": {"role": "alongside"}}


@pytest.fixture
def evicting_kubelet(cluster: Cluster, reactor: Reactor) -> Iterator[Reactor]:
    """Return the daemon beside a kubelet that evicts by the same threshold, also at the pods' limit.

    That kubelet ends first: it can hold its condition for longer than the node is waited for to be calm.
    """
    cluster.node.restart_kubelet({"evictionHard": {**_OFF, **HARD}, "evictionPressureTransitionPeriod": "1s"})
    yield reactor
    cluster.node.restart_kubelet()


def lines(reactor: Reactor, kind: str) -> list[dict[str, Any]]:
    return [line for line in reactor.lines() if line["kind"] == kind]


def is_pressed(reactor: Reactor) -> bool:
    shown = [(one["condition"], one["status"]) for one in lines(reactor, "node-condition")]
    return ("MemoryPressure", "True") in shown


def shadow(reactor: Reactor) -> Object:
    """Return what `reactor shadow` says of the journal."""
    command = [sys.executable, "-m", "reactor", "shadow", "--journal", str(reactor.journal_path)]
    done = subprocess.run(
        [*command, "--output", "json"], capture_output=True, text=True, check=True, timeout=60
    )
    said: Object = json.loads(done.stdout)
    return said


def verdicts(reactor: Reactor) -> dict[str, int]:
    return {name: count for name, count in shadow(reactor)["total"]["verdicts"].items() if count}


def test_a_dry_run_chose_the_pod_that_the_real_kubelet_evicted_and_sooner(
    cluster: Cluster, evicting_kubelet: Reactor, pods: Pods
) -> None:
    reactor = evicting_kubelet
    reactor.configure({"evictionHard": HARD}, _ALONGSIDE)
    reactor.start()
    pods.run("innocent", ["hold", "64"], requests={"memory": "128Mi"})
    hog = pods.create("hog", ["grow", "480", "200"])
    pods.wait("hog", is_evicted, "is evicted by the kubelet", 90)
    wait_until(lambda: lines(reactor, "pod-evicted"), "the journal has the kubelet's eviction")

    (evicted,) = lines(reactor, "pod-evicted")
    assert (evicted["pod"], evicted["uid"]) == (f"{pods.namespace}/hog", hog["metadata"]["uid"])
    assert evicted["message"].startswith("The node was low on resource: memory.")
    assert evicted["evicted_at"] is None  # a kubelet has DisruptionTarget since 1.26
    wait_until(lambda: is_pressed(reactor), "the journal has the kubelet's condition")
    (node, *_) = lines(reactor, "node")
    assert (node["node"], node["role"], node["dry_run"]) == (cluster.node.name, "alongside", True)
    found = verdicts(reactor)
    found.pop("not-ready-alone", None)  # on a busy machine the kubelet that starts anew takes its time
    assert found == {"same": 1}
    said = shadow(reactor)["total"]
    assert said["sooner_seconds"]["p50"] > 0
    assert (said["kubelet_evictions"], said["decided"]) == (1, 1)
    assert is_running(pods.get("innocent"))


def test_an_oom_kill_among_real_pods_is_one_that_the_dry_run_would_have_prevented(
    reactor: Reactor, pods: Pods
) -> None:
    reactor.configure({"evictionHard": HARD}, _ALONGSIDE)
    reactor.start()
    pods.create("hog", ["grow", "700", "100"])
    pods.wait("hog", is_failed, "is killed by the kernel", 90)
    wait_until(lambda: lines(reactor, "oom-kill"), "the journal has the kernel's kill")

    assert lines(reactor, "pod-evicted") == []
    assert verdicts(reactor) == {"oom-kill-after": 1}
    assert shadow(reactor)["total"]["oom_kills_prevented"] == 1


def test_what_reactor_in_force_evicts_itself_is_no_eviction_of_the_kubelets(
    reactor: Reactor, pods: Pods
) -> None:
    reactor.configure({"evictionHard": HARD}, {"kubernetes": {"role": "alongside"}})
    reactor.start()
    pods.create("hog", ["grow", "700", "100"])
    pods.wait("hog", is_evicted, "is evicted by the reactor")
    assert reactor.evicted() == ["hog"]
    assert lines(reactor, "pod-evicted") == []
    assert verdicts(reactor) == {"evicted": 1}
