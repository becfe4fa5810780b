"""A graceful shutdown of the node, as logind announces it: what becomes of pods, what the server hears.

The bus is a real one, logind on it a double: the machine itself stays up.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from api import Object
from cluster import Cluster, Pods, is_failed
from machine import wait_until
from reactor_daemon import HARD, Reactor

from tests.support.logind import LogindInThread, logind_in_thread, private_bus

_GROUPS = {
    "evictionHard": HARD,
    "shutdownGracePeriodByPodPriority": [
        {"priority": 0, "shutdownGracePeriodSeconds": 20},
        {"priority": 2_000_000_000, "shutdownGracePeriodSeconds": 20},
    ],
}
_MESSAGE = "Pod was terminated in response to imminent node shutdown."
_CONDITION, _TAINT = "reactor/NodeShutdown", "reactor/node-shutdown"


@pytest.fixture
def logind(reactor: Reactor, tmp_path: Path) -> Iterator[LogindInThread]:
    """Return a logind, on the bus that the daemon finds, which waits for a minute without a drop-in."""
    with private_bus(tmp_path) as bus, logind_in_thread(bus, tmp_path / "drop-ins", 60) as double:
        reactor.environment["DBUS_SYSTEM_BUS_ADDRESS"] = bus.address
        yield double
        reactor.stop()


def _started(reactor: Reactor, logind: LogindInThread, role: str = "alongside") -> None:
    reactor.configure(_GROUPS, {"kubernetes": {"role": role}})
    reactor.start()
    wait_until(lambda: reactor.status()["shutdown"]["state"] == "waiting", "the lock is held", 30)


def _node_events(cluster: Cluster) -> list[str]:
    events = cluster.api.get("/api/v1/namespaces/default/events")["items"]
    return [one["message"] for one in events if one["reason"] == "Shutdown"]


def _said(pod: Object) -> tuple[str, str, str]:
    status = pod["status"]
    return status["phase"], status.get("reason", ""), status.get("message", "")


def test_pods_are_terminated_by_priority_and_reported_in_upstreams_words(
    cluster: Cluster, pods: Pods, reactor: Reactor, logind: LogindInThread
) -> None:
    pods.run("plain", ["hold", "8", "1"])
    pods.run("stubborn", ["hold", "8", "600"], spec={"terminationGracePeriodSeconds": 4})
    pods.run("critical", ["hold", "8", "1"], priority_class="system-node-critical")
    events_before = len(_node_events(cluster))
    _started(reactor, logind)
    wait_until(lambda: reactor.status()["pods"] >= 3, "the pods are known", 30)

    logind.begin_shutdown()
    wait_until(lambda: cluster.node.conditions().get(_CONDITION) == "True", "the condition is there", 20)
    wait_until(lambda: logind.locks() == 0, "the shutdown goes on", 60)

    for name in ("plain", "stubborn", "critical"):
        # A kubelet older than 1.22 drops the reason at its next turn, and it is written again.
        pod = pods.wait(name, lambda pod: _said(pod) == ("Failed", "Terminated", _MESSAGE), "says why")
        (disruption,) = (one for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget")
        assert ("True", "TerminationByKubelet", _MESSAGE) == (
            disruption["status"],
            disruption["reason"],
            disruption["message"],
        )
    assert [] == pods.events("Evicted")
    assert _TAINT in cluster.node.taints()
    assert "Shutdown manager detected shutdown event" in _node_events(cluster)[events_before:]
    groups = [line for line in reactor.lines() if line["kind"] == "shutdown" and line["phase"] == "group"]
    ended = [{one["pod"].rpartition("/")[2] for one in line["pods"]} for line in groups]
    assert [{"plain", "stubborn"}, {"critical"}] == ended
    begin, end = (
        datetime.fromisoformat(reactor.status()["shutdown"]["last"][key]) for key in ("startTime", "endTime")
    )
    assert begin < end


def test_no_pod_is_admitted_meanwhile_and_a_cancelled_shutdown_is_undone(
    cluster: Cluster, pods: Pods, reactor: Reactor, logind: LogindInThread
) -> None:
    pods.run("plain", ["hold", "8", "1"])
    _started(reactor, logind)
    wait_until(lambda: reactor.status()["pods"] >= 1, "the pod is known", 30)
    logind.begin_shutdown()
    wait_until(lambda: logind.locks() == 0, "the shutdown goes on", 60)
    wait_until(lambda: _TAINT in cluster.node.taints(), "the taint is there", 20)

    pods.create("late", ["hold", "8", "1"])
    late = pods.wait("late", is_failed, "is refused")
    assert ("Failed", "NodeShutdown") == _said(late)[:2]
    assert "Pod was rejected as the node is shutting down." in _said(late)[2]

    logind.cancel_shutdown()
    wait_until(lambda: _TAINT not in cluster.node.taints(), "the taint is gone", 20)
    wait_until(lambda: _CONDITION not in cluster.node.conditions(), "the condition is gone", 20)
    wait_until(
        lambda: "Shutdown manager detected shutdown cancellation" in _node_events(cluster), "the event", 20
    )
    wait_until(lambda: logind.locks() == 1, "the next one is held up", 20)
    pods.run("next", ["hold", "8", "1"])


def test_where_the_kubelet_ends_the_pods_itself_the_reactor_does_not(
    cluster: Cluster, pods: Pods, reactor: Reactor, logind: LogindInThread, tmp_path: Path
) -> None:
    kubelet = tmp_path / "kubelet.yaml"
    kubelet.write_text("kind: KubeletConfiguration\nshutdownGracePeriod: 30s\n")
    pods.run("plain", ["hold", "8", "1"])
    reactor.configure(_GROUPS, {"kubernetes": {"role": "alongside", "kubelet": {"config": str(kubelet)}}})
    reactor.start()
    wait_until(lambda: "node shutdown" in reactor.status()["problems"], "the problem is told", 30)
    assert "the kubelet ends the pods itself" in reactor.status()["problems"]["node shutdown"]
    assert 0 == logind.locks()
