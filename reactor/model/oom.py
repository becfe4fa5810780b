"""The kernel's own OOM kills: what reactor is there to prevent, and what is none of its business."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OomScope(StrEnum):
    """Whose limit the kernel killed at.

    `NODE`: the guarded node ran out, or a cgroup that holds pods: the kernel was faster than reactor.
    `OWN_LIMIT`: a pod's or a container's own limit, at which the kernel is meant to kill.
    `ABOVE_NODE`: something above a virtual node ran out, which reactor does not guard.
    `UNKNOWN`: the kernel's counters, where there is nothing else, do not tell.
    """

    NODE = "node"
    OWN_LIMIT = "own-limit"
    ABOVE_NODE = "above-node"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class OomKill:
    """One kill, or `kills` of them that were only counted; what is not known of it is None.

    `at_ns` is on CLOCK_MONOTONIC: when the kernel killed, or when a count was seen to have risen. Cgroups are
    named by their path; a `limit_cgroup` of None is the machine's memory where `limit_bytes` is known.
    """

    source: str
    scope: OomScope
    at_ns: int
    kills: int = 1
    pid: int | None = None
    comm: str | None = None
    victim_bytes: int | None = None
    victim_cgroup: str | None = None
    limit_cgroup: str | None = None
    limit_bytes: int | None = None
    usage_bytes: int | None = None
