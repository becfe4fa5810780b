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

from collections.abc import Callable, Sequence
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


class Entry:
    """An entry, its patterns compiled."""

    def __init__(self, entry: PodEntry) -> None:
        self._unit = None if entry.unit is None else matcher(entry.unit)
        self._cgroup = None if entry.cgroup is None else _path_matcher(entry.cgroup)
        self._process = None if entry.process is None else matcher(entry.process)
        self._is_trusting = entry.is_trusting
        self.text = entry_text(entry)

    def protects(self, pod: Named) -> bool:
        """Return whether the entry matches, by names that its pod could not give to itself.

        A process that is not known yet counts as the one that is meant: to protect a pod for one listing more
        is the smaller mistake.
        """
        if not (pod.is_trusted or self._is_trusting) or not self.is_placed(pod):
            return False
        return pod.process is None or self._process is None or self._process(pod.process)

    def matches(self, pod: Named) -> bool:
        """Return whether the entry matches by any names."""
        if not self.is_placed(pod):
            return False
        return self._process is None or (pod.process is not None and self._process(pod.process))

    def is_placed(self, pod: Named) -> bool:
        """Return whether the names of the pod's cgroup match, whoever chose them."""
        if self._unit is not None and not self._unit(pod.unit):
            return False
        return self._cgroup is None or self._cgroup(pod.cgroup)


class Lists:
    """The lists, compiled: what they say of a pod takes microseconds."""

    def __init__(self, lists: PodLists) -> None:
        self._built_in = [matcher(unit) for unit in lists.built_in_never]
        self._never = [Entry(entry) for entry in lists.never]
        self._avoid = [Entry(entry) for entry in lists.avoid]
        self._prefer = [Entry(entry) for entry in lists.prefer]
        self._priorities = [(Entry(entry), priority) for entry, priority in lists.priorities]
        self._process_victims = [
            (Entry(one.pods), victim_of(one)) for one in lists.process_victims if one.pods.namespace is None
        ]

    def of(self, pod: Named) -> Listed:
        """Return all that they say of a pod."""
        priority = next((number for entry, number in self._priorities if entry.protects(pod)), None)
        victim = next((one for entry, one in self._process_victims if entry.protects(pod)), None)
        preference = Preference.NONE
        if _first(self._avoid, pod) is not None:
            preference = Preference.AVOID
        elif any(entry.matches(pod) for entry in self._prefer):
            preference = Preference.PREFER
        return Listed(self.never_because(pod), preference, priority, victim)

    def never_because(self, pod: Named) -> str | None:
        """Return why a pod is never evicted, None where it may be."""
        unit = pod.unit
        if pod.is_trusted and any(is_one(unit) for is_one in self._built_in):
            return f"{unit} is in the built-in never list"
        entry = _first(self._never, pod)
        return None if entry is None else f"pods.never: {entry.text}"


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


def _first(entries: Sequence[Entry], pod: Named) -> Entry | None:
    return next((entry for entry in entries if entry.protects(pod)), None)


def _path_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a predicate, whether a path matches: a regular expression as a whole, a glob by components."""
    if pattern.startswith(REGEX):
        return matcher(pattern)
    components = [matcher(part) for part in pattern.split("/")]

    def matches(path: str) -> bool:
        parts = path.split("/")
        return len(parts) == len(components) and all(
            is_one(part) for is_one, part in zip(components, parts, strict=True)
        )

    return matches
