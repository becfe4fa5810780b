"""Remedies for a reactor that runs in a pod, where there is no unit to give anything to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from reactor.kernel.features import Feature

_REMEDIES: Final = {
    "capabilities": "add what is missing to the container's securityContext.capabilities: "
    "deploy/kustomize/base/daemonset.yaml has all of them, each with what it is for",
    "realtime": "add SYS_NICE to the container's capabilities; with CONFIG_RT_GROUP_SCHED no pod gets "
    "realtime runtime (cpu.rt_runtime_us is 0 in its cgroup): set reactor.realtime.fifoPriority to 0, or run "
    "reactor as a unit of the node",
    "steward's cgroup": "none is needed: the steward has its rlimit, and only a unit of the node can have "
    "more",
    "memory lock": "add IPC_LOCK to the container's capabilities",
}
_UNIT: Final = "give the unit the capability"


def is_in_a_pod(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this runs in a pod: the kubelet tells every container where the API server is."""
    return "KUBERNETES_SERVICE_HOST" in environment


def with_remedy_in_a_pod(feature: Feature) -> Feature:
    """Return a feature whose remedy can be applied to a pod."""
    remedy = feature.remedy.replace(_UNIT, "add the capability to the container's securityContext")
    if remedy and feature.name in _REMEDIES:
        remedy = _REMEDIES[feature.name]
    return replace(feature, remedy=remedy)
