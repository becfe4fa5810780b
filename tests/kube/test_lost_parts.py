"""Something that an eviction leans on goes away in the middle of it: the kill doesn't wait for it."""

from __future__ import annotations

import time
from pathlib import Path

import cgroups
import pytest
from api import Object
from cgroups import usage_bytes
from cluster import Cluster, Pods, is_evicted, is_running
from machine import wait_until
from node import MIB
from reactor_daemon import Reactor

LEVEL_BYTES = 512 * MIB


@pytest.fixture
def trigger(tmp_path: Path) -> Path:
    """Return the file for which `waiting_hog` waits."""
    return tmp_path / "trigger" / "go"


def run_waiting_hog(pods: Pods, trigger: Path, **spec: object) -> str:
    """Start a pod that takes 600 MiB once the trigger exists; return its cgroup."""
    trigger.parent.mkdir()
    trigger.parent.chmod(0o755)
    mount = {"name": "trigger", "mountPath": "/trigger"}
    volume = {"name": "trigger", "hostPath": {"path": str(trigger.parent)}}
    pods.run(
        "hog",
        ["wait", "/trigger/go", "600", "200"],
        container={"volumeMounts": [mount]},
        spec={"volumes": [volume], **spec},
    )
    return pods.cgroup("hog")


def is_ended(cgroup: str) -> bool:
    """Tell whether the pod has given its memory back."""
    try:
        return usage_bytes(cgroup) < 16 * MIB
    except FileNotFoundError:
        return True


def only_event(pods: Pods) -> Object:
    """Wait for the pod's event and return it; there is no second one."""
    wait_until(lambda: pods.events("Evicted"), "the event is there")
    (event,) = pods.events("Evicted")
    return event


def test_with_the_api_server_down_the_hog_is_ended_and_the_cluster_told_when_it_is_back(
    cluster: Cluster, pods: Pods, guarded: Reactor, trigger: Path
) -> None:
    memory = {"memory": "64Mi", "cpu": "10m"}
    pods.run("innocent", ["hold", "40"], requests={"memory": "64Mi"})
    pods.run("guaranteed", ["hold", "40"], requests=memory, limits=memory)
    pods.run("critical", ["hold", "60"], priority_class="system-node-critical")
    cgroup = run_waiting_hog(pods, trigger, restartPolicy="Always")
    survivors = [pods.cgroup(name) for name in ("innocent", "guaranteed", "critical")]
    with cluster.without(server=True):
        trigger.touch()
        wait_until(lambda: usage_bytes(cgroup) > 100 * MIB, "the hog grows", 20, pause=0.01)
        wait_until(lambda: is_ended(cgroup), "the hog's memory is back")
        assert all(usage_bytes(survivor) > 39 * MIB for survivor in survivors)
        # The kubelet, which knows of nothing, starts it again.
        wait_until(lambda: "lived again" in guarded.log(), "what comes back is killed")
        with pytest.raises(TimeoutError):
            wait_until(lambda: usage_bytes(cgroup) > 300 * MIB, "the hog has come back", 10)
    told = pods.wait("hog", is_evicted, "is evicted")
    wait_until(lambda: not is_running(pods.get("hog")), "its container has ended")
    assert only_event(pods)["message"] == told["status"]["message"]
    # The kubelet may have sent its own status once more, with the hog running, before it saw the eviction.
    others = ["critical", "guaranteed", "innocent"]
    wait_until(lambda: pods.names(phase="Running") == others, "the others alone are running")
    assert guarded.evicted() == ["hog"]


def test_a_reactor_that_is_killed_before_it_could_tell_has_its_successor_tell(
    cluster: Cluster, pods: Pods, guarded: Reactor, trigger: Path
) -> None:
    cgroup = run_waiting_hog(pods, trigger, restartPolicy="Always")
    with cluster.without(server=True):
        trigger.touch()
        wait_until(lambda: usage_bytes(cgroup) > 100 * MIB, "the hog grows", 20, pause=0.01)
        wait_until(guarded.evictions, "the hog is ended")
        untold = guarded.directory / "announcements.json"
        wait_until(lambda: untold.exists() and '"hog"' in untold.read_text(), "it is written down")
        guarded.kill()
        time.sleep(3)  # the kubelet has it to itself
        guarded.start()
    told = pods.wait("hog", is_evicted, "is evicted")
    assert only_event(pods)["message"] == told["status"]["message"]
    pods.run("late", ["hold", "40"])


def test_a_reactor_that_is_restarted_during_a_grace_period_sees_it_through(
    pods: Pods, reactor: Reactor
) -> None:
    reactor.configure(
        {
            "evictionSoft": {"memory.available": "400Mi"},
            "evictionSoftGracePeriod": {"memory.available": "1s"},
            "evictionMaxPodGracePeriod": 30,
        }
    )
    reactor.start()
    pods.create("hog", ["hold", "450", "6"], spec={"terminationGracePeriodSeconds": 30})
    wait_until(lambda: reactor.status()["in_flight"], "the eviction is under way")
    assert reactor.stop() == 0
    reactor.start()
    pods.wait("hog", is_evicted, "is evicted")
    only_event(pods)


def test_without_the_runtime_the_hog_is_ended_and_its_sandbox_taken_down_afterwards(
    cluster: Cluster, pods: Pods, guarded: Reactor, trigger: Path
) -> None:
    cgroup = run_waiting_hog(pods, trigger)
    with cluster.without(runtime=True):
        trigger.touch()
        wait_until(lambda: usage_bytes(cgroup) > 100 * MIB, "the hog grows", 20, pause=0.01)
        wait_until(lambda: is_ended(cgroup), "the hog's memory is back")
    pods.wait("hog", is_evicted, "is evicted")
    only_event(pods)
    wait_until(lambda: not populated(cgroup), "the pod's sandbox has ended")


def populated(cgroup: str) -> list[str]:
    """Return the containers of a pod, its sandbox too, in which somebody lives."""
    path = cgroups.directory(cgroup)
    return [each.parent.name for each in path.glob("*/cgroup.procs") if each.read_text()]


def test_an_expired_token_is_named_and_costs_no_defence(
    cluster: Cluster, pods: Pods, reactor: Reactor
) -> None:
    kubeconfig = reactor.directory / "kubeconfig"
    text = cluster.reactor_kubeconfig().read_text()
    kubeconfig.write_text(text.replace("token: ", "token: x"))
    reactor.configure(
        {"evictionHard": {"memory.available": "128Mi"}}, {"kubernetes": {"kubeconfig": str(kubeconfig)}}
    )
    reactor.start()
    pods.create("hog", ["grow", "600", "200"])
    wait_until(reactor.evictions, "the hog is ended")
    assert "401" in str(reactor.status()["problems"]) or "nauthorized" in str(reactor.status()["problems"])
    kubeconfig.write_text(text)
    pods.wait("hog", is_evicted, "is evicted")
