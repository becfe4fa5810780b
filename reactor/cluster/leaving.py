"""Who guards the node when this daemon has ended: for a successor, what is set on the node stays.

    in a pod         its controller makes a successor: a DaemonSet that is there and selects this node, or the
                     kubelet by a static pod's file; a DaemonSet that is deleted makes none
    under systemd    the unit's job: a restart makes one; so does a machine that shuts down, at its next start
    elsewhere        a daemon that stands by

What can't be told counts as a successor: conditions and taints of a node that nobody guards can be removed
(`reactor cluster clean`), while those that vanish in the middle of a rollout bring pods onto a node under
pressure. systemd is asked by its own client, which needs no bus.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from reactor.config.decode import decode
from reactor.config.scalars import Timestamp
from reactor.errors import ConfigError
from reactor.kube.client import ApiClient
from reactor.kube.documents import node_path
from reactor.kube.errors import ApiError, NotFoundError
from reactor.kube.pods import OwnerReference

POD_NAME: Final = "POD_NAME"
POD_NAMESPACE: Final = "POD_NAMESPACE"
_IN_A_POD: Final = "KUBERNETES_SERVICE_HOST"
_UNDER_SYSTEMD: Final = "INVOCATION_ID"
_SHUTDOWN: Final = "shutdown.target"
_RESTARTED_AFTER_SIGTERM: Final = frozenset({"always", "on-success"})

Systemctl = Callable[..., Awaitable[str]]


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
    """Any object, as far as it is looked at; a list has `items`, a DaemonSet a `spec` of this kind."""

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

    `stands_by` tells whether another daemon waits for this one's end.
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
    told = f"a pod of {owner.kind} {owner.name}"
    if owner.kind != "DaemonSet":
        return told
    return told if await _is_made_here(client, owner, namespace, node_name) else None


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
