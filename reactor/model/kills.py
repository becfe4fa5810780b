"""Kills by the kernel itself: of its OOM killer, and under a warrant; and a process as a record names it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from reactor.model.signals import Signal


class OomScope(StrEnum):
    """Whose limit the kernel killed at.

    `NODE`: the guarded node ran out, or a cgroup that holds pods: the kernel was faster than reactor.
    `OWN_LIMIT`: a pod's or a container's own limit, at which the kernel is meant to kill.
    `ABOVE_NODE`: something above a virtual node ran out, which reactor does not guard.
    `UNKNOWN`: the kernel's counters, where there is nothing else, do not show it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """What a process holds, in bytes, and what it calls itself: `name` is its own choice.

    What it has mapped of files is left out: the kernel takes that back without it. The last three say to whom
    it belongs, as the reader's process ids; 0: not known. `processes` is above 1 where these are the sums of
    several that go together, of which it is the first.
    """

    pid: int
    name: str
    anonymous_bytes: int
    shared_bytes: int
    swap_bytes: int
    processes: int = 1
    parent_pid: int = 0
    group_pid: int = 0
    session_pid: int = 0

    @property
    def resident_bytes(self) -> int:
        """Return what of it is in memory: as much as its end may bring back there."""
        return self.anonymous_bytes + self.shared_bytes

    @property
    def held_bytes(self) -> int:
        """Return all that it holds, in memory and in swap: what it is chosen by."""
        return self.resident_bytes + self.swap_bytes


class WarrantEnd(StrEnum):
    """How a warrant came to its end.

    `SERVED`: the kernel killed at the crossing. `REFUSED`: it claimed the warrant, and its signal was
    refused. `WITHDRAWN`: a pass took it back. `RENEWED`: the next one took its place. `EXPIRED`: the
    crossing came after its time. `OTHER_CROSSED`: the charge that crossed was not the victim's, or the pass
    came while the kernel still counted. `SHRANK`: the victim held less than it had to. `OTHER_GREW`: another
    pod outgrew its bound. `CACHE_GREW`: page cache did, and the crossing may be a reader's. `OUTSIDE_GREW`:
    memory that no pod holds did, which may be reclaimed first. `NEW_CGROUP`: it may be of the pod that ranks
    first. `REMOVED`: the victim's cgroup, or the watched one, was. `UNKNOWN`: the reason could not be read.
    """

    SERVED = "served"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    RENEWED = "renewed"
    EXPIRED = "expired"
    OTHER_CROSSED = "other-pod-crossed"
    SHRANK = "victim-shrank"
    OTHER_GREW = "other-pod-grew"
    CACHE_GREW = "page-cache-grew"
    OUTSIDE_GREW = "outside-grew"
    NEW_CGROUP = "new-cgroup"
    REMOVED = "cgroup-removed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKill:
    """A process of a pod that was to end alone: how much of memory it held, and the whole pod (None: not
    observed), by which it is judged whether that helps.
    """

    uid: str
    at_seconds: float
    held_bytes: int
    used_bytes: int | None = None


class HardMemoryKill(NamedTuple):
    """A kill for a hard memory threshold, or an eviction in time, with what it is judged by afterwards.

    `credited_bytes` is the victim's working set at the kill, `outside_bytes` what was used of the signal
    outside all pods and not left by earlier victims in their cgroups, `pods_bytes` what the pods held that
    were not being evicted; None: not observed. `kept` are the pods, by uid, that could not be evicted then:
    what they hold is outside. `left_bytes` is what stays charged to the victim's cgroup, once it has ended,
    for as long as the cgroup is there.
    `is_unhelpful` once what it was to bring back has turned out to be used outside the pods.
    `newest_inode` is the largest of the pods' cgroups (0: not known), `next_place` that of the pod which came
    next in the ranking. `bystanders`: of so many in a row others took what the kill before had brought back.
    """

    uid: str
    signal: Signal
    at_seconds: float
    credited_bytes: int | None = None
    outside_bytes: int | None = None
    pods_bytes: int | None = None
    left_bytes: int = 0
    is_unhelpful: bool = False
    kept: tuple[str, ...] = ()
    newest_inode: int = 0
    next_place: tuple[int, ...] = ()
    bystanders: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedEviction:
    """An eviction for a filesystem or process ids, with what it is judged by: bytes, inodes or processes.

    `pod_key` names the pod. `credited` is what its end was to free (None: not known), `available` and
    `missing` are what was observed, `others` what the other pods took of it.
    `is_unhelpful` once less than a quarter of it has come back.
    """

    uid: str
    pod_key: str
    signal: Signal
    at_seconds: float
    credited: int | None
    available: int
    missing: int
    others: int
    is_unhelpful: bool = False


class SlowReason(StrEnum):
    """Why evictions for a threshold are slowed down."""

    OUTSIDE_PODS = "outside-pods"
    UNHELPFUL = "unhelpful"
    RATE = "rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Evictions for a threshold on `signal` wait until `until_seconds`; `message` says why, in words.

    Those for soft thresholds wait as well, but not for a rate. `held_by` is the pod (`namespace/name`) that
    holds the most of those that can't be evicted, and `held_by_bytes` how much; None where none of them holds
    much. `is_left`: nothing has been lost but what victims have left in their cgroups.
    """

    signal: Signal
    reason: SlowReason
    since_seconds: float
    until_seconds: float
    message: str
    held_by: str | None = None
    held_by_bytes: int | None = None
    is_left: bool = False
