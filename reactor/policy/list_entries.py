"""What else the entries of the operator's lists say: which name no pod, and pods of a Kubernetes node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self

from reactor.model.name_patterns import REGEX, is_pattern, matcher
from reactor.model.pod_lists import PodEntry, PodLists, ProcessVictim
from reactor.policy.lists import Named, is_placed, victim_of
from reactor.text import nearest_name

_NEVER_LIST: Final = "reactor.pods.never"
_LIKENESS, _TYPING_ERROR = 0.6, 0.8


class ExactNames:
    """The entries of the lists that name one pod, without a pattern."""

    def __init__(self, lists: PodLists) -> None:
        self._entries = [
            (f"reactor.pods.{key}[{index}]", name, entry, entry.is_trusting or key == "prefer")
            for key, entries in (("never", lists.never), ("avoid", lists.avoid), ("prefer", lists.prefer))
            for index, entry in enumerate(entries)
            if (name := entry.cgroup or entry.unit) is not None and not is_pattern_entry(entry)
        ]

    @classmethod
    def of(cls, lists: PodLists) -> Self | None:
        """Return them, None if there is none."""
        names = cls(lists)
        return names if names._entries else None

    def problems(self, pods: Sequence[Named]) -> Iterator[tuple[str, str]]:
        """Yield which names are no pod's, and what was probably meant."""
        for path, name, untrusted in self.unmatched(pods):
            if untrusted is not None:
                yield path, f"{name}: root did not choose the name of {untrusted}: it protects no pod"
                continue
            known = {one.cgroup if name.startswith("/") else one.unit for one in pods} - {""}
            is_never = path.startswith(_NEVER_LIST)
            meant = nearest_name(name, known, likeness=_LIKENESS if is_never else _TYPING_ERROR)
            # Lists of what to avoid or prefer are written for many machines, of which each has some.
            if meant is not None or is_never:
                question = "" if meant is None else f" (did you mean {meant}?)"
                yield path, f"{name} matches no pod now{question}"

    def unmatched(self, pods: Sequence[Named]) -> Iterator[tuple[str, str, str | None]]:
        """Yield the place, the name, and a cgroup of this name that does not count (or None).

        An entry that protects counts by names that root chose.
        """
        for path, name, entry, counts_by_any in self._entries:
            placed = [pod for pod in pods if is_placed(entry, pod)]
            if not any(counts_by_any or pod.is_trusted for pod in placed):
                yield path, name, placed[0].cgroup if placed else None


def is_pattern_entry(entry: PodEntry) -> bool:
    """Return whether an entry names pods by a pattern, a glob or a regular expression."""
    return any(
        text.startswith(REGEX) or is_pattern(text) for text in (entry.unit, entry.cgroup) if text is not None
    )


def namespaced_victim(lists: PodLists, namespace: str, labels: Mapping[str, str]) -> ProcessVictim | None:
    """Return what the first of `processVictims` that matches a pod in Kubernetes says, None if none does.

    The namespace decides, which is the operator's to give. Labels are the tenant's to write: within an
    allowed namespace they choose among its own pods, and nowhere else do they say anything.
    """
    for one in lists.process_victims:
        allowed, wanted = one.pods.namespace, one.pods.labels
        if allowed is None or not matcher(allowed)(namespace):
            continue
        if all(labels.get(key) == value for key, value in wanted):
            return victim_of(one)
    return None
