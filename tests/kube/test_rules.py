"""Rules on a real node: conditions and taints, what their evictions report, the system partition."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import cgroups
import images
import pytest
from cluster import Cluster, Pods, is_evicted, is_running
from machine import wait_until
from node import MIB
from reactor_daemon import HARD, Reactor

from tests.support.rules import partition_rule

TAINT: Final = "node.kubernetes.io/memory-contention-pressure"
CONDITION: Final = "reactor/SystemMemoryContentionPressure"


def contention(cluster: Cluster, transition: str) -> dict[str, Any]:
    """Return a rule that shows the pods' memory as contended: above 40 % of their 640 MiB."""
    return {
        "name": "contention",
        "cgroups": [cluster.node.kubepods],
        "when": [{"usage": "40%"}],
        "for": "1s",
        "action": "taint",
        "taint": TAINT,
        "condition": CONDITION.removeprefix("reactor/"),
        "transitionPeriod": transition,
    }


def shows(cluster: Cluster) -> tuple[bool, bool]:
    """Return whether the node has the rule's taint, and its condition."""
    return TAINT in cluster.node.taints(), CONDITION in cluster.node.conditions()


@pytest.fixture(params=["sole", "alongside"])
def role(request: pytest.FixtureRequest) -> str:
    """Return how the reactor stands to the kubelet."""
    return str(request.param)


def test_a_rules_taint_and_condition_are_there_while_it_holds_and_gone_after_its_transition_period(
    cluster: Cluster, pods: Pods, reactor: Reactor, role: str
) -> None:
    rules = [contention(cluster, "10s")]
    reactor.configure({"evictionHard": HARD}, {"kubernetes": {"role": role}, "rules": rules})
    reactor.start()
    assert shows(cluster) == (False, False)

    pods.run("holder", ["hold", "320"])
    wait_until(lambda: shows(cluster) == (True, True), "the node shows the rule")
    node = cluster.node.state()
    (taint,) = [one for one in node["spec"]["taints"] if one["key"] == TAINT]
    assert taint["effect"] == "NoSchedule"
    (condition,) = [one for one in node["status"]["conditions"] if one["type"] == CONDITION]
    assert (condition["status"], condition["reason"]) == ("True", "ReactorRuleHolds")
    assert condition["message"] == "rule contention: usage of the limit >= 40 %"
    cluster.api.merge_patch(f"/api/v1/nodes/{cluster.node.name}", {"spec": {"taints": None}})
    wait_until(lambda: shows(cluster) == (True, True), "a taint that somebody removed is set again")

    reactor.kill()
    reactor.start()
    assert shows(cluster) == (True, True)  # a daemon that starts leaves what another has set
    assert is_running(pods.get("holder"))
    cluster.api.delete(f"{pods.path}/holder", grace_seconds=0)
    wait_until(lambda: shows(cluster) == (False, False), "the rule is over")
    annotations = cluster.node.state()["metadata"].get("annotations", {})
    assert "reactor/taints" not in annotations


def test_a_reload_without_the_rule_removes_what_it_has_set(
    cluster: Cluster, pods: Pods, reactor: Reactor
) -> None:
    thresholds = {"evictionHard": HARD}
    reactor.configure(thresholds, {"rules": [contention(cluster, "1h")]})
    reactor.start()
    pods.run("holder", ["hold", "320"])
    wait_until(lambda: shows(cluster) == (True, True), "the node shows the rule")
    reactor.configure(thresholds)
    reactor.reload()
    wait_until(lambda: shows(cluster) == (False, False), "what it showed is gone")
    assert is_running(pods.get("holder"))


def test_a_rules_eviction_has_annotations_from_which_vpa_learns_of_each_container(
    cluster: Cluster, pods: Pods, reactor: Reactor
) -> None:
    worst = {
        "name": "worst",
        "cgroups": [cluster.node.kubepods],
        "when": [{"usage": "50%"}],
        "for": "1s",
        "action": "evictWorst",
    }
    reactor.configure({"evictionHard": HARD}, {"rules": [worst]})
    reactor.start()
    pods.run("innocent", ["hold", "40"], requests={"memory": "64Mi"})
    load = {"image": images.LOAD, "imagePullPolicy": "Never", "args": ["hold", "200"]}
    containers = [{**load, "name": name} for name in ("main", "side")]
    pods.create("pair", [], spec={"containers": containers})
    evicted = pods.wait("pair", is_evicted, "is evicted")
    assert evicted["status"]["message"].startswith("Rule worst has held in ")
    assert "DisruptionTarget" in [one["type"] for one in evicted["status"]["conditions"]]
    assert is_running(pods.get("innocent"))
    (event,) = pods.events("Evicted")
    names, usages, resources = (
        event["metadata"]["annotations"][key].split(",")
        for key in ("offending_containers", "offending_containers_usage", "starved_resource")
    )
    assert sorted(names) == ["main", "side"]
    assert resources == ["memory", "memory"]
    assert len(usages) == 2


class SystemPod:
    """A pod of the partition `kubepods/system`, whose limit is 200 MiB: a process in cgroups of our own."""

    def __init__(self, cluster: Cluster) -> None:
        self.partition = f"{cluster.node.kubepods}/system"
        self.pod = f"{self.partition}/burstable/pod6fbc1f6a-0e1e-4f0a-9d0a-{os.urandom(6).hex()}"
        self.container = f"{self.pod}/{os.urandom(32).hex()}"
        cgroups.directory(self.container).mkdir(parents=True)
        cgroups.set_limit(self.partition, 200 * MIB)
        self.process: subprocess.Popen[bytes] | None = None

    def hold(self, mib: int) -> None:
        """Start its process, which takes so much and holds it."""
        script = f"import os, signal; kept = b'1' * ({mib} << 20); print('holds', flush=True); signal.pause()"
        enter = f'echo 0 > {cgroups.directory(self.container)}/cgroup.procs && exec {sys.executable} -c "$1"'
        self.process = subprocess.Popen(["sh", "-c", enter, "sh", script], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"holds\n"

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        path = cgroups.directory(self.container)
        for one in (path, *list(path.parents)[:3]):
            wait_until(lambda one=one: _is_removed(one), f"{one} is gone")


def _is_removed(path: Any) -> bool:
    with contextlib.suppress(FileNotFoundError):
        try:
            path.rmdir()
        except OSError:
            return False
    return not path.exists()


@pytest.fixture
def system_pod(cluster: Cluster) -> Iterator[Callable[[int], SystemPod]]:
    """Return what starts such a pod with so many MiB; the ones before have ended."""
    made: list[SystemPod] = []

    def start(mib: int) -> SystemPod:
        while made:
            made.pop().end()
        made.append(SystemPod(cluster))
        made[0].hold(mib)
        return made[0]

    yield start
    while made:
        made.pop().end()


def test_the_system_partition_is_guarded_by_its_own_limit_and_by_no_threshold_of_the_node(
    cluster: Cluster, pods: Pods, reactor: Reactor, system_pod: Callable[[int], SystemPod]
) -> None:
    partition = f"{cluster.node.kubepods}/system"
    reactor.configure({"evictionHard": HARD}, {"rules": [partition_rule(partition)]})
    reactor.start()
    within = system_pod(120)  # within its limit, and the largest without a request
    pods.run("innocent", ["hold", "40"], requests={"memory": "64Mi"})
    pods.create("hog", ["grow", "600", "200"], requests={"memory": "100Mi"})
    pods.wait("hog", is_evicted, "is evicted")
    assert reactor.evicted() == ["hog"]
    assert within.is_alive()
    assert not any("outside" in one for one in reactor.status()["problems"].values())

    pods.run("large", ["hold", "250"], requests={"memory": "64Mi"})
    near = system_pod(175)
    wait_until(lambda: not near.is_alive(), "the partition's pod is evicted")
    assert near.process is not None
    assert near.process.returncode == -signal.SIGKILL
    wait_until(lambda: len(reactor.evictions()) == 2, "the journal tells of both")
    line = reactor.evictions()[-1]
    assert (line["rule"]["name"], line["rule"]["cgroup"]) == ("system-partition", partition)
    assert all(is_running(pods.get(name)) for name in ("innocent", "large"))
