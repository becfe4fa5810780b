"""Remedies for where reactor runs: as a unit of the node, in a container or a pod, or without systemd."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from reactor.kernel.features import Feature


class Place(StrEnum):
    """Where this runs."""

    NODE = "node"
    WITHOUT_SYSTEMD = "without systemd"
    CONTAINER = "container"
    POD = "pod"


NONE_IS_NEEDED: Final = "none is needed"
_NO_CGROUP: Final = f"{NONE_IS_NEEDED}: the steward has its rlimit, and only a unit of the node can have more"
_CGROUPS: Final = "start the container with --cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup"
_BY_PLACE: Final = {
    Place.NODE: {},
    Place.WITHOUT_SYSTEMD: {
        "capabilities": "run it as root, or grant it these capabilities",
        "realtime": "run it as root, or grant it CAP_SYS_NICE; with CONFIG_RT_GROUP_SCHED also a runtime",
        "steward's cgroup": _NO_CGROUP,
        "memory lock": "run it as root, or grant it CAP_IPC_LOCK",
    },
    Place.CONTAINER: {
        "capabilities": "start the container with what is missing: --cap-add, or --privileged",
        "realtime": "start the container with --cap-add SYS_NICE --ulimit rtprio=99",
        "steward's cgroup": _NO_CGROUP,
        "memory lock": "start the container with --cap-add IPC_LOCK",
        "cgroup memory controller": _CGROUPS,
        "freezer": _CGROUPS,
    },
    Place.POD: {
        "capabilities": "add what is missing to the container's securityContext.capabilities: "
        "deploy/kustomize/base/daemonset.yaml has all of them, each with what it is for",
        "realtime": "add SYS_NICE to the container's capabilities; with CONFIG_RT_GROUP_SCHED (cgroup v1) a "
        "pod has no realtime runtime: run reactor as a unit of the node, boot the node with rt_group_sched=0 "
        "(Linux 6.16), or write cpu.rt_runtime_us of the pod's cgroups; reactor.realtime.fifoPriority to 0 "
        "does without",
        "steward's cgroup": _NO_CGROUP,
        "memory lock": "add IPC_LOCK to the container's capabilities",
    },
}
_UNIT: Final = "give the unit the capability"
_GRANT: Final = {
    Place.WITHOUT_SYSTEMD: "grant it the capability",
    Place.CONTAINER: "start the container with --cap-add and the capability",
    Place.POD: "add the capability to the container's securityContext",
}
_BOOT: Final = "boot "


def this_place(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Place:
    """Return where this runs.

    The kubelet tells every container where the API server is; docker and podman leave a file, others the
    variable `container`. Source: systemd's detect_container.
    """
    if "KUBERNETES_SERVICE_HOST" in environment:
        return Place.POD
    files = (".dockerenv", "run/.containerenv", "run/systemd/container")
    if environment.get("container") or any((root / file).exists() for file in files):
        return Place.CONTAINER
    return Place.NODE if (root / "run/systemd/system").is_dir() else Place.WITHOUT_SYSTEMD


def fitting(feature: Feature, place: Place) -> Feature:
    """Return a feature whose remedy can be applied where this runs."""
    remedy = feature.remedy
    if not remedy or place is Place.NODE:
        return feature
    remedy = _BY_PLACE[place].get(feature.name) or remedy.replace(_UNIT, _GRANT[place])
    if place in {Place.CONTAINER, Place.POD} and remedy.startswith(_BOOT):
        remedy = f"on the node: {remedy}"
    return replace(feature, remedy=remedy)


def each_once(features: Iterable[Feature]) -> Mapping[str, tuple[str, ...]]:
    """Return each remedy with the names of the features that it is for."""
    found: dict[str, tuple[str, ...]] = {}
    for feature in features:
        if feature.remedy and not feature.available:
            found[feature.remedy] = (*found.get(feature.remedy, ()), feature.name)
    return found
