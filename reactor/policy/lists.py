"""What the operator's lists say of a pod, by what it is called.

Who chose a name decides what it counts for. The name of a unit in /system.slice is root's; below a cgroup
that was given to a user, or that is a unit's own, its owner makes cgroups and calls them what he likes, and
every process chooses its own name. So

    never, avoid, priorities,  by names that root chose; by others if the entry `is_trusting`. The name of
    processVictims             a process alone is never enough
    prefer                     by any name: who calls itself so harms itself alone

The lists are read when a pod is listed, not at a crossing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from reactor.model.name_patterns import REGEX, matcher
from reactor.model.pod_lists import (
    SPARED_BESIDE_CONTAINERS,
    SPARED_PROCESSES,
    PodEntry,
    PodLists,
    Preference,
    ProcessVictim,
    ProcessVictimEntry,
)


class Named(NamedTuple):
    """What a pod is called: `is_trusted` says whether root chose the cgroup's name.

    `process` is the name of its main process, empty where there is none, None where it is not known (yet).
    """

    cgroup: str
    is_trusted: bool
    process: str | None = None

    @property
    def unit(self) -> str:
        return self.cgroup.rpartition("/")[2]


class Listed(NamedTuple):
    """What the lists say of a pod: why it is never evicted (None: it may be), its preference and priority.

    `process_victim`: one of its processes is killed, not the whole pod.
    """

    never_because: str | None = None
    preference: Preference = Preference.NONE
    priority: int | None = None
    process_victim: ProcessVictim | None = None


def protects(entry: PodEntry, pod: Named) -> bool:
    """Return whether an entry matches, by names that its pod could not give to itself.

    A process that is not known yet counts as the one that is meant: to protect a pod for one listing more
    is the smaller mistake.
    """
    if not (pod.is_trusted or entry.is_trusting) or not is_placed(entry, pod):
        return False
    return pod.process is None or entry.process is None or matcher(entry.process)(pod.process)


def matches(entry: PodEntry, pod: Named) -> bool:
    """Return whether an entry matches by any names."""
    if not is_placed(entry, pod):
        return False
    return entry.process is None or (pod.process is not None and matcher(entry.process)(pod.process))


def is_placed(entry: PodEntry, pod: Named) -> bool:
    """Return whether the names of the pod's cgroup match, whoever chose them."""
    if entry.unit is not None and not matcher(entry.unit)(pod.unit):
        return False
    return entry.cgroup is None or _is_path(entry.cgroup, pod.cgroup)


@dataclass(frozen=True, slots=True)
class Lists:
    """What the lists say of a pod; that takes microseconds."""

    lists: PodLists

    def of(self, pod: Named) -> Listed:
        """Return all that they say of a pod."""
        lists = self.lists
        victims = (one for one in lists.process_victims if one.pods.namespace is None)
        preference = Preference.NONE
        if _first(lists.avoid, pod) is not None:
            preference = Preference.AVOID
        elif any(matches(entry, pod) for entry in lists.prefer):
            preference = Preference.PREFER
        return Listed(
            self.never_because(pod),
            preference,
            next((number for entry, number in lists.priorities if protects(entry, pod)), None),
            next((victim_of(one) for one in victims if protects(one.pods, pod)), None),
        )

    def never_because(self, pod: Named) -> str | None:
        """Return why a pod is never evicted, None where it may be."""
        unit, built_in = pod.unit, self.lists.built_in_never if pod.is_trusted else ()
        if unit in built_in or any("*" in one and fnmatchcase(unit, one) for one in built_in):
            return f"{unit} is in the built-in never list"
        entry = _first(self.lists.never, pod)
        return None if entry is None else f"pods.never: {entry_text(entry)}"


def victim_of(one: ProcessVictimEntry) -> ProcessVictim:
    """Return what an entry says of each pod that it is about."""
    spared = SPARED_PROCESSES if one.pods.namespace is None else SPARED_BESIDE_CONTAINERS
    return ProcessVictim(entry=entry_text(one.pods), never=one.never, built_in_never=spared, unit=one.unit)


def entry_text(entry: PodEntry) -> str:
    """Return what an entry goes by, in words."""
    named = (
        ("unit", entry.unit),
        ("cgroup", entry.cgroup),
        ("process", entry.process),
        ("namespace", entry.namespace),
        *(("label", f"{key}={value}") for key, value in entry.labels),
    )
    return ", ".join(f"{what} {pattern}" for what, pattern in named if pattern is not None)


def _first(entries: Sequence[PodEntry], pod: Named) -> PodEntry | None:
    return next((entry for entry in entries if protects(entry, pod)), None)


def _is_path(pattern: str, path: str) -> bool:
    """Return whether a path matches: a regular expression as a whole, a glob by components."""
    if pattern.startswith(REGEX):
        return matcher(pattern)(path)
    wanted, parts = pattern.split("/"), path.split("/")
    return len(parts) == len(wanted) and all(
        matcher(one)(part) for one, part in zip(wanted, parts, strict=True)
    )
