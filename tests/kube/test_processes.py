"""Process ids run out: the pod that has most of them goes."""

from __future__ import annotations

from cluster import Pods, is_evicted, is_running
from machine import wait_until
from reactor_daemon import Reactor

FORKED = 1200


def test_the_pod_with_the_most_processes_is_evicted_and_the_others_stay(pods: Pods, reactor: Reactor) -> None:
    reactor.configure({"evictionHard": {"pid.available": "1"}})
    reactor.start()
    (left,) = [each["available"] for each in reactor.status()["signals"] if each["signal"] == "pid.available"]
    reactor.configure({"evictionHard": {"pid.available": str(left - FORKED // 2)}})
    reactor.reload()
    wait_until(lambda: str(left - FORKED // 2) in str(reactor.status()["signals"]), "the new threshold")

    pods.run("few", ["fork", "20"])
    pods.create("many", ["fork", str(FORKED)])
    evicted = pods.wait("many", is_evicted, "is evicted")
    assert evicted["status"]["message"].startswith("The node was low on resource: pids.")
    # It forks as it starts: on a quick machine before anybody has told its name.
    assert reactor.evicted() in (["many"], [f"pod{evicted['metadata']['uid']}"])
    assert is_running(pods.get("few"))
    assert len(pods.events("Evicted")) == 1
