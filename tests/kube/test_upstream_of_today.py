"""What newer servers have and 1.20 does not, as far as its authorizer, its Node and its events show it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import trio
from cluster import REACTOR_USER, Cluster
from reactor_daemon import HARD, Reactor
from test_rights import doctor

from reactor.cluster.node_events import NodeEvents
from reactor.kube.client import ApiClient
from reactor.kube.credentials import credentials_of

_EVENTS: Final = "/api/v1/namespaces/default/events"


def test_doctor_compares_what_the_node_object_leaves_with_what_is_kept_free(
    cluster: Cluster, reactor: Reactor
) -> None:
    """The scheduler goes by allocatable: the kubelet here reserves all but 640 MiB and evicts for nothing."""
    status = cluster.node.state()["status"]
    assert status["allocatable"]["memory"] != status["capacity"]["memory"]
    reactor.configure({"evictionHard": HARD}, {"kubernetes": {"role": "alongside"}})
    found = [one for name, one in doctor(reactor).items() if "allocatable" in json.dumps(one).lower()]
    assert found, "doctor says nothing of allocatable"
    command = [sys.executable, "-P", "-m", "reactor", "config", "check", str(reactor.config_path)]
    check = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert f"node {cluster.node.name}: memory: " in check.stdout + check.stderr
    assert " reserved, reactor keeps " in check.stdout + check.stderr


def test_pods_from_the_kubelet_need_the_right_that_a_server_of_this_version_has(
    cluster: Cluster, reactor: Reactor
) -> None:
    """Before 1.33 that is nodes/proxy, and no nodes/pods is asked for."""
    reactor.configure({"evictionHard": HARD}, {"kubernetes": {"pods": "kubelet"}})
    detail = doctor(reactor)["RBAC rules"]["detail"]
    assert "get on nodes/proxy" in detail
    assert "nodes/pods" not in detail


def test_a_storm_of_oom_kills_writes_a_bounded_number_of_events(cluster: Cluster, reactor: Reactor) -> None:
    before = len(cluster.plane.audited(REACTOR_USER))
    known = {one["metadata"]["uid"] for one in cluster.api.get(_EVENTS)["items"]}

    async def storm() -> None:
        client = ApiClient(credentials_of(str(cluster.reactor_kubeconfig())))
        events = NodeEvents(client, cluster.node.name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(events.run)
            for number in range(400):
                events.system_oom(f"victim-{number}", 1000 + number)
                await trio.sleep(0.05)
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        client.close()

    trio.run(storm)
    new = [one for one in cluster.api.get(_EVENTS)["items"] if one["metadata"]["uid"] not in known]
    assert {"SystemOOM"} == {one["reason"] for one in new}
    assert len(new) <= 10
    combined = [one for one in new if one["message"].startswith("(combined from similar events): ")]
    assert len(combined) == 1
    writes = [
        one
        for one in cluster.plane.audited(REACTOR_USER)[before:]
        if one["objectRef"]["resource"] == "events" and one["verb"] in {"create", "patch"}
    ]
    assert 10 <= len(writes) <= 26
