"""What becomes of warrants: decisions that the kernel carries out itself at a crossing."""

from __future__ import annotations

from enum import StrEnum


class WarrantEnd(StrEnum):
    """How a warrant came to its end.

    `SERVED`: the kernel killed at the crossing. `REFUSED`: it claimed the warrant, and its signal was
    refused. `WITHDRAWN`: a pass took it back. `RENEWED`: the next one took its place. `EXPIRED`: the
    crossing came after its time. `OTHER_CROSSED`: the charge that crossed was not the victim's, or the pass
    came while the kernel still counted. `SHRANK`: the victim held less than it had to. `OTHER_GREW`: another
    pod outgrew its bound. `CACHE_GREW`: page cache did, and the crossing may be a reader's. `OUTSIDE_GREW`:
    memory that no pod holds did, which may be reclaimed first. `NEW_CGROUP`: a cgroup was made, which may be
    a pod that goes first. `REMOVED`: the victim's cgroup, or the one that is watched, was removed.
    `UNKNOWN`: the reason could not be read.
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
