"""Who guards the node when this daemon has ended: for a successor, what is set on the node stays.

    in a pod         its controller makes a successor: a DaemonSet that is there and selects this node, or the
                     kubelet by a static pod's file; a DaemonSet that is deleted makes none
    under systemd    the unit's job: a restart makes one; so does a machine that shuts down, at its next start
    elsewhere        a daemon that stands by

What is not known counts as a successor: conditions and taints of a node that nobody guards can be removed
(`reactor cluster clean`), while those that vanish in the middle of a rollout bring pods onto a node under
pressure. systemd is asked by its own client, which needs no bus.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from reactor.config.decode import decode
from reactor.config.scalars import Timestamp
from reactor.errors import ConfigError
from reactor.kube.client import MERGE_PATCH, ApiClient
from reactor.kube.documents import node_path
from reactor.kube.errors import ApiError, ConflictError, NotFoundError, UnreachableError
from reactor.kube.node import NodeObject, clean_status_patch, read_node, taints_patch
from reactor.kube.pods import OwnerReference
from reactor.model.settings import Role

POD_NAME: Final = "POD_NAME"
POD_NAMESPACE: Final = "POD_NAMESPACE"
_IN_A_POD: Final = "KUBERNETES_SERVICE_HOST"
_UNDER_SYSTEMD: Final = "INVOCATION_ID"
_SHUTDOWN: Final = "shutdown.target"
_RESTARTED_AFTER_SIGTERM: Final = frozenset({"always", "on-success"})

Systemctl = Callable[..., Awaitable[str]]

_PAGE: Final = "50"
_MOST_PAGES: Final = 1_000
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metadata:
    uid: str = ""
    deletion_timestamp: Timestamp | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _PodSpec:
    node_selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Template:
    spec: _PodSpec = field(default_factory=_PodSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DaemonSetSpec:
    template: _Template = field(default_factory=_Template)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    """Any object, as far as it is read; a list has `items`, a DaemonSet a `spec` of this kind."""

    metadata: _Metadata = field(default_factory=_Metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Objects:
    items: tuple[_Object, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _DaemonSet:
    metadata: _Metadata = field(default_factory=_Metadata)
    spec: _DaemonSetSpec = field(default_factory=_DaemonSetSpec)


async def systemctl(*arguments: str) -> str:
    """Return what systemctl prints. Raises OSError, or SubprocessError where it fails."""
    done = await trio.run_process(["systemctl", *arguments], capture_stdout=True, capture_stderr=True)
    return done.stdout.decode(errors="replace")


async def successor(
    client: ApiClient,
    node_name: str,
    *,
    stands_by: bool,
    environment: Mapping[str, str] = os.environ,
    own_cgroups: Path = Path("/proc/self/cgroup"),
    ask_systemd: Systemctl = systemctl,
) -> str | None:
    """Return who is to guard the node next, in words after which "is expected" fits; None: no one.

    `stands_by`: whether another daemon waits for this one's end.
    """
    try:
        if _IN_A_POD in environment or POD_NAME in environment:
            return await _in_a_pod(client, node_name, environment, stands_by=stands_by)
        unit = _unit(own_cgroups) if _UNDER_SYSTEMD in environment else None
        if unit is not None and not stands_by:
            return await _under_systemd(unit, ask_systemd)
    except (ApiError, ConfigError, OSError, subprocess.SubprocessError) as error:
        return f"a successor (whether there will be one is not known: {error})"
    return "the daemon that stands by" if stands_by else None


async def _in_a_pod(
    client: ApiClient, node_name: str, environment: Mapping[str, str], *, stands_by: bool
) -> str | None:
    name, namespace = environment.get(POD_NAME), environment.get(POD_NAMESPACE)
    if not name or not namespace:
        return (
            f"a successor (whether there will be one is not known: {POD_NAME}, {POD_NAMESPACE} are not set)"
        )
    found = await client.get(
        f"/api/v1/namespaces/{namespace}/pods",
        fieldSelector=f"spec.nodeName={node_name},metadata.name={name}",
    )
    pods = decode(found, _Objects, root="pods").items
    if not pods:
        return f"a successor (whether there will be one is not known: there is no pod {namespace}/{name})"
    owner = next((one for one in pods[0].metadata.owner_references if one.controller), None)
    if owner is None:
        return "the daemon that stands by" if stands_by else None
    expected = f"a pod of {owner.kind} {owner.name}"
    if owner.kind != "DaemonSet":
        return expected
    return expected if await _is_made_here(client, owner, namespace, node_name) else None


async def _is_made_here(client: ApiClient, owner: OwnerReference, namespace: str, node_name: str) -> bool:
    """Return whether a DaemonSet makes another pod on this node, as far as its node selector says."""
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{owner.name}"
    try:
        daemon_set = decode(await client.get(path), _DaemonSet, root="daemonset")
    except NotFoundError:
        return False
    if daemon_set.metadata.uid != owner.uid or daemon_set.metadata.deletion_timestamp is not None:
        return False
    node = decode(await client.get(node_path(node_name)), _Object, root="node")
    return daemon_set.spec.template.spec.node_selector.items() <= node.metadata.labels.items()


async def _under_systemd(unit: str, ask: Systemctl) -> str | None:
    jobs = jobs_of(await ask("list-jobs", "--no-legend", "--plain", "--full"))
    if _SHUTDOWN in jobs:
        return f"{unit} at the machine's next start"
    job = jobs.get(unit)
    if job is None:  # it was signalled by another than systemd
        policy = (await ask("show", "--property=Restart", "--value", unit)).strip()
        return f"{unit} (Restart={policy})" if policy in _RESTARTED_AFTER_SIGTERM else None
    return None if job == "stop" else f"{unit} (systemd's job: {job})"


def jobs_of(listed: str) -> dict[str, str]:
    """Return the type of each unit's job, from `systemctl list-jobs`: number, unit, type, state."""
    fields = (line.split() for line in listed.splitlines())
    return {words[1]: words[2] for words in fields if len(words) == 4 and words[0].isdigit()}


def _unit(own_cgroups: Path) -> str | None:
    """Return the service in whose cgroup this process is. Raises OSError."""
    for line in own_cgroups.read_text(encoding="utf-8", errors="replace").splitlines():
        for name in reversed(line.split("/")):
            if name.endswith(".service"):
                return name
    return None


# What a reactor that is gone has left on nodes: its taints, its annotation, its conditions.
#
# They stay when a daemon ends, for its successor. Where there will be none they are removed by this: by the
# daemon itself if it knows (leaving.py), else by `reactor cluster clean`, for one node or for all.


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What was removed from a node. `problem` is why something was not, None where nothing is left."""

    node: str
    taints: int = 0
    conditions: int = 0
    problem: str | None = None

    def __str__(self) -> str:
        """Return it as one line."""
        done = f"removed {self.taints} taints, {self.conditions} conditions"
        if not self.taints and not self.conditions:
            done = "nothing to remove" if self.problem is None else "nothing removed"
        return f"{self.node}: {done}" + ("" if self.problem is None else f"; {self.problem}")


async def clean(client: ApiClient, nodes: Sequence[str] | None) -> AsyncIterator[Cleaned]:
    """Clean these nodes, or all there are (None); yield each in its turn once those of its page are done.

    Those of a page are cleaned at once, as far as the client asks at once: 5,000 nodes one after the other
    take longer than the Job may. Raises ApiError where the nodes can't be listed.
    """
    if nodes is not None:
        for cleaned in await _cleaned(client, nodes):
            yield cleaned
        return
    going_on = ""
    for _ in range(_MOST_PAGES):
        query = {"limit": _PAGE} | ({"continue": going_on} if going_on else {})
        answer = await client.get("/api/v1/nodes", **query)
        for cleaned in await _cleaned(client, _names(answer)):
            yield cleaned
        going_on = (answer.get("metadata") or {}).get("continue") or ""
        if not going_on:
            return
    raise UnreachableError("GET /api/v1/nodes", "the list of nodes has no end")


async def _cleaned(client: ApiClient, names: Sequence[str]) -> Sequence[Cleaned]:
    """Clean these nodes, and return what was done in their order."""
    found: dict[str, Cleaned] = {}

    async def one(name: str) -> None:
        found[name] = await clean_node(client, name)

    async with trio.open_nursery() as nursery:
        for name in dict.fromkeys(names):
            nursery.start_soon(one, name)
    return [found[name] for name in names]


async def clean_node(client: ApiClient, name: str, begun: Callable[[], None] = lambda: None) -> Cleaned:
    """Clean a node; why something is left stands in what is returned.

    `begun` is called once the node is known, before each attempt to write. Taints go first: pods stay away
    from a node for them, while conditions are only shown.
    """
    path, taints, conditions = node_path(name), 0, 0
    for attempts_left in range(_ATTEMPTS - 1, -1, -1):
        try:
            node = read_node(await client.get(path))
            begun()
            patch = taints_patch(node, (), Role.ALONGSIDE, time.time())
            if patch is not None:
                await client.patch(path, patch, MERGE_PATCH)
                taints += _own_taints(node)
            status = clean_status_patch(node)
            if status is not None:
                await client.patch(f"{path}/status", status)
                conditions += len(status["status"]["conditions"])
            return Cleaned(node=name, taints=taints, conditions=conditions)
        except ConflictError as error:  # another client wrote in between
            if not attempts_left:
                return Cleaned(node=name, taints=taints, conditions=conditions, problem=str(error))
        except (ApiError, ConfigError) as error:
            return Cleaned(node=name, taints=taints, conditions=conditions, problem=str(error))
    raise AssertionError("the last attempt returns")


def _own_taints(node: NodeObject) -> int:
    return sum(taint.id in node.own_taints for taint in node.taints)


def _names(answer: Any) -> list[str]:
    try:
        return [str(item["metadata"]["name"]) for item in answer["items"]]
    except (TypeError, KeyError) as error:
        raise UnreachableError(
            "GET /api/v1/nodes", f"got {answer!r:.80}; accepted: a list of nodes"
        ) from error
