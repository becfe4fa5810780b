#!/usr/bin/env python3
"""Measure what an API server sees of many nodes: reactor's own clients and a real server; and of one kubelet.

usage: .venv/bin/python tests/kube/load.py [--nodes N] [--pods N] [--idle SECONDS] [--output FILE]     (root)

Each simulated node has all of a node's parts at the API server (reactor.kube, reactor.cluster), with
connections of its own: the watches of its pods and of its Node, its conditions and taints, its events and its
Lease.

- start: all nodes begin at once, as after a power failure, or as a rollout without any pause would have them.
- idle: nothing happens.
- pressure: each node is short of memory at the same instant: conditions, taints, an event.
- outage: the server is stopped, and started again after --outage seconds.
- kubelet: a real kubelet without pods, alone, for as long as idle.

Counts are from the server's audit log and its metrics; no time of this machine is in them but for the
durations, which say how busy it was. Watches, of which the server tells when they end, are not counted: each
node has two, each begun anew every four to eight minutes. Exit status 0, 3 where the server was lost.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
from cluster import LOGS, REACTOR_USER, programs
from control_plane import AUDIT_OF_NODES, ControlPlane
from deployed import NAMESPACE
from machine import LostError, Machine
from node import Node
from reactor_daemon import grant_rights

from reactor.cluster.node_events import NodeEvents
from reactor.cluster.node_status import NodeLease, NodeStatus
from reactor.kube.client import ApiClient
from reactor.kube.credentials import credentials_of
from reactor.kube.node import condition_type
from reactor.kube.pods import PodStore
from reactor.kube.watch import Watch
from reactor.model.settings import KubernetesSettings, Role
from reactor.model.signals import NodeCondition, Resource
from tests.support.json_lines import json_lines

_CONNECTIONS: Final = 4  # of a node
_SETTLE_SECONDS: Final = 600.0
_QUIET_SECONDS: Final = 5.0
MEMORY: Final = condition_type(NodeCondition.MEMORY_PRESSURE, Role.ALONGSIDE)
_RESOURCES: Final = ("pods", "nodes", "events", "leases")


class SimulatedNode:
    """All that a node of reactor's asks the API server."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.name = name
        self.client = client = ApiClient(credentials_of(str(plane.kubeconfig(REACTOR_USER))))
        self.store = PodStore(node_name=name)
        self.events = NodeEvents(client, name)
        self.status = NodeStatus(client, name, Role.ALONGSIDE, on_uid=self.store.node_is)
        self.watches = (
            Watch(client, "/api/v1/pods", {"fieldSelector": f"spec.nodeName={name}"}, self.store),
            Watch(client, "/api/v1/nodes", {"fieldSelector": f"metadata.name={name}"}, self.status),
        )
        self.lease = NodeLease(
            client,
            NAMESPACE,
            name,
            self._is_alive,
            node_uid=lambda: self.status.uid,
            lease_seconds=KubernetesSettings().lease_seconds,
        )
        self.status.want(())

    async def run(self) -> None:
        """Take part until cancelled."""
        async with trio.open_nursery() as nursery:
            for part in (*self.watches, self.status, self.events, self.lease):
                nursery.start_soon(part.run)

    def press(self) -> None:
        """Have the node short of memory."""
        self.status.want({NodeCondition.MEMORY_PRESSURE})
        self.events.threshold_met(Resource.MEMORY)

    @property
    def is_well(self) -> bool:
        """Return whether all is followed, written, and no part has a problem."""
        return all(watch.synced.is_set() and watch.problem is None for watch in self.watches) and not (
            self.status.problem or self.events.problem or self.lease.problem
        )

    async def _is_alive(self) -> bool:
        await trio.lowlevel.checkpoint()
        return True


class Meter:
    """What the server has seen since the last reading."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._audited = 0
        self._before = self._numbers()

    def read(self, user: str, seconds: float) -> dict[str, Any]:
        """Return the requests of this user and what they have cost the server."""
        lines = json_lines(self._plane.audit_log())
        fresh, self._audited = lines[self._audited :], len(lines)
        # A watch is told of when it ends, but for one that is refused.
        asked = [
            line
            for line in fresh
            if line["user"].get("username") == user and (line["verb"] != "watch" or _is_refused(line))
        ]
        numbers = self._numbers()
        grown = {name: round(value - self._before.get(name, 0.0), 2) for name, value in numbers.items()}
        if grown["cpu_seconds"] < 0:  # another process of the server's
            grown = numbers
        self._before = numbers
        verbs = Counter(f"{line['verb']} {_resource(line)}" for line in asked)
        per_second = Counter(_instant(line) for line in asked)
        refused = Counter(str(line["responseStatus"].get("code")) for line in asked if _is_refused(line))
        return {
            "seconds": round(seconds, 1),
            "requests": len(asked),
            "by": dict(verbs.most_common()),
            "most_in_a_second": max(per_second.values(), default=0),
            "refused": dict(refused),
            "server": {name: value for name, value in sorted(grown.items()) if value},
        }

    def _numbers(self) -> dict[str, float]:
        """Return the server's own counters that say what requests have cost."""
        found: dict[str, float] = defaultdict(float)
        for line in self._plane.api.request("GET", "/metrics").splitlines():
            name, _, value = line.rpartition(" ")
            if name == "process_cpu_seconds_total":
                found["cpu_seconds"] += float(value)
            elif name.startswith("etcd_request_duration_seconds_count"):
                kind = next(
                    (one for one in _RESOURCES if f'type="*core.{one[:-1].title()}"' in name), "others"
                )
                operation = name.partition('operation="')[2].partition('"')[0]
                found[f"etcd {operation} {kind}"] += float(value)
            elif name.startswith("apiserver_flowcontrol_rejected_requests_total"):
                found["rejected by priority and fairness"] += float(value)
        return dict(found)


def _resource(line: dict[str, Any]) -> str:
    about = line.get("objectRef", {})
    return "/".join(filter(None, (about.get("resource", line["requestURI"]), about.get("subresource"))))


def _is_refused(line: dict[str, Any]) -> bool:
    return int(line["responseStatus"].get("code", 0)) >= 400


def _instant(line: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(line["requestReceivedTimestamp"]).replace(microsecond=0)


def populate(plane: ControlPlane, names: Sequence[str], pods: int) -> None:
    """Make the Nodes, and on each so many pods."""
    container = {
        "name": "app",
        "image": "registry.example/app:1",
        "env": [{"name": f"SETTING_{number}", "value": "x" * 40} for number in range(20)],
        "resources": {"requests": {"memory": "64Mi", "cpu": "10m"}, "limits": {"memory": "128Mi"}},
    }
    for name in names:
        plane.api.create("/api/v1/nodes", {"metadata": {"name": name}})
        for number in range(pods):
            plane.api.create(
                "/api/v1/namespaces/default/pods",
                {
                    "metadata": {"name": f"app-{name}-{number}", "labels": {"app": "a"}},
                    "spec": {"nodeName": name, "containers": [container]},
                },
            )


def shown_by(plane: ControlPlane, status: str) -> int:
    """Return of how many nodes the server has a Lease, and the condition of memory with this status."""
    leases = plane.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")["items"]
    renewed = {one["metadata"]["name"] for one in leases}
    wanted = (MEMORY, status)
    return sum(
        node["metadata"]["name"] in renewed
        and wanted in {(one["type"], one["status"]) for one in node["status"].get("conditions", [])}
        for node in plane.api.get("/api/v1/nodes", resourceVersion="0")["items"]
    )


async def shown(plane: ControlPlane, nodes: Sequence[SimulatedNode], status: str) -> None:
    """Wait until the server has of each node a Lease, and the condition of memory with this status."""
    with trio.fail_after(_SETTLE_SECONDS):
        while await trio.to_thread.run_sync(shown_by, plane, status) < len(nodes):  # noqa: ASYNC110
            await trio.sleep(1)
    await settled(nodes)


async def settled(nodes: Sequence[SimulatedNode]) -> None:
    """Wait until no part of any node has a problem."""
    with trio.fail_after(_SETTLE_SECONDS):
        while not all(node.is_well for node in nodes):  # noqa: ASYNC110 - of hundreds of parts
            await trio.sleep(0.1)


async def simulate(plane: ControlPlane, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the server has seen in each of the phases."""
    names = [f"load-{number:05}" for number in range(arguments.nodes)]
    await trio.to_thread.run_sync(populate, plane, names, arguments.pods)
    nodes = [SimulatedNode(plane, name) for name in names]
    meter, found = Meter(plane), {}
    meter.read(REACTOR_USER, 0.0)

    async def phase(name: str, work: Callable[[], Awaitable[None]]) -> None:
        began = trio.current_time()
        await work()
        seconds = trio.current_time() - began
        found[name] = await trio.to_thread.run_sync(meter.read, REACTOR_USER, seconds)
        print(f"{name}: {json.dumps(found[name])}", flush=True)

    async def pressed() -> None:
        for node in nodes:
            node.press()
        await shown(plane, nodes, "True")
        await trio.sleep(_QUIET_SECONDS)

    async def gone() -> None:
        await trio.to_thread.run_sync(plane.stop_server)
        await trio.sleep(arguments.outage)
        await trio.to_thread.run_sync(plane.start_server)
        await settled(nodes)
        await trio.sleep(_QUIET_SECONDS)

    async def begin() -> None:
        for node in nodes:
            nursery.start_soon(node.run)
        await shown(plane, nodes, "False")
        await trio.sleep(_QUIET_SECONDS)

    async with trio.open_nursery() as nursery:
        await phase("start", begin)
        await phase("idle", partial(trio.sleep, arguments.idle))
        await phase("pressure", pressed)
        await phase("outage", gone)
        nursery.cancel_scope.cancel()
    for node in nodes:
        node.client.close()
    return found


async def beside(machine: Machine, plane: ControlPlane, directory: Path, seconds: float) -> dict[str, Any]:
    """Return what the server sees of one kubelet without pods, from when it is ready on."""
    node = Node(machine, plane, directory)
    await trio.to_thread.run_sync(node.start)
    await trio.sleep(30)
    meter, user = Meter(plane), f"system:node:{node.name}"
    meter.read(user, 0.0)
    await trio.sleep(seconds)
    found = await trio.to_thread.run_sync(meter.read, user, seconds)
    print(f"kubelet: {json.dumps(found)}", flush=True)
    return found


def main() -> int:
    """Measure all phases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=200, help="simulated nodes (200)")
    parser.add_argument("--pods", type=int, default=10, help="pods of each (10)")
    parser.add_argument("--idle", type=float, default=300.0, help="seconds without any event (300)")
    parser.add_argument("--outage", type=float, default=45.0, help="for how long the server is gone (45)")
    parser.add_argument("--without-kubelet", action="store_true", help="measure no kubelet")
    parser.add_argument("--output", type=Path, help="a file for the figures, as JSON")
    arguments = parser.parse_args()
    files = _CONNECTIONS * arguments.nodes + 256
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(files, 1024), most), most))
    try:
        with Machine(LOGS) as machine:
            directory = programs()
            name = machine.state.name.replace("_", "-")
            users = [(REACTOR_USER, []), (f"system:node:{name}", ["system:nodes"])]
            plane = ControlPlane(machine, directory, users, audit=AUDIT_OF_NODES)
            plane.start()
            grant_rights(plane)
            found = trio.run(simulate, plane, arguments)
            if not arguments.without_kubelet:
                found["kubelet"] = trio.run(beside, machine, plane, directory, arguments.idle)
    except LostError as error:
        print(f"load: LOST: {error}", file=sys.stderr)
        return 3
    if arguments.output is not None:
        described = {"nodes": arguments.nodes, "pods": arguments.pods, **found}
        arguments.output.write_text(json.dumps(described, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
