"""What the operator's lists say of a pod, by what it is called.

Who chose a name decides what it counts for. The name of a unit in /system.slice is root's; below a cgroup
that was given to a user, or that is a unit's own, its owner makes cgroups and calls them what he likes, and
every process chooses its own name. So

    never, avoid, priorities,  by names that root chose; by others only where the rule `is_trusting`. The name
    processVictims             of a process alone is never enough
    prefer                     by any name: who calls itself so harms itself alone

The lists are read when a pod is listed, not at a crossing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from reactor.model.name_patterns import REGEX, matcher
from reactor.model.pod_lists import PodLists, PodRule, Preference, ProcessVictim

_SIGNS: Final = frozenset("*?[")


class Named(NamedTuple):
    """What a pod is called: `is_trusted` says whether root chose the cgroup's name.

    `process` is the name of its main process, empty where there is none, None where it is not known (yet).
    """

    cgroup: str
    is_trusted: bool
    process: str | None = None

    @property
    def unit(self) -> str:
        """Return the name of the pod's cgroup."""
        return self.cgroup.rpartition("/")[2]


class Listed(NamedTuple):
    """What the lists say of a pod: why it is never evicted (None: it may be), its preference and priority.

    `process_victim`: one of its processes is killed, not the whole pod.
    """

    never_because: str | None = None
    preference: Preference = Preference.NONE
    priority: int | None = None
    process_victim: ProcessVictim | None = None


class _Rule:
    """A rule, its patterns compiled."""

    def __init__(self, rule: PodRule) -> None:
        self._unit = None if rule.unit is None else matcher(rule.unit)
        self._cgroup = None if rule.cgroup is None else _path_matcher(rule.cgroup)
        self._process = None if rule.process is None else matcher(rule.process)
        self._is_trusting = rule.is_trusting
        self.text = rule_text(rule)

    def protects(self, pod: Named) -> bool:
        """Return whether the rule matches, by names that its pod could not give to itself.

        A process that is not known yet counts as the one that is meant: to protect a pod for one listing more
        is the smaller mistake.
        """
        if not (pod.is_trusted or self._is_trusting) or not self.is_placed(pod):
            return False
        return pod.process is None or self._process is None or self._process(pod.process)

    def matches(self, pod: Named) -> bool:
        """Return whether the rule matches by any names."""
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
        self._built_in = frozenset(lists.built_in_never)
        self._built_in_patterns = [matcher(one) for one in lists.built_in_never if "*" in one]
        self._never = [_Rule(rule) for rule in lists.never]
        self._avoid = [_Rule(rule) for rule in lists.avoid]
        self._prefer = [_Rule(rule) for rule in lists.prefer]
        self._priorities = [(_Rule(rule), priority) for rule, priority in lists.priorities]
        self._process_victims = [(_Rule(one.pods), one.never) for one in lists.process_victims]

    def of(self, pod: Named) -> Listed:
        """Return what the lists say of a pod."""
        return Listed(
            self.never_because(pod), self._preference(pod), self._priority(pod), self._process_victim(pod)
        )

    def never_because(self, pod: Named) -> str | None:
        """Return why a pod is never evicted, None where it may be."""
        if pod.is_trusted and self._is_built_in(pod.unit):
            return f"{pod.unit} is in the built-in never list"
        rule = _first(self._never, pod)
        return None if rule is None else f"never list: {rule.text}"

    def _is_built_in(self, unit: str) -> bool:
        return unit in self._built_in or any(matches(unit) for matches in self._built_in_patterns)

    def _preference(self, pod: Named) -> Preference:
        if _first(self._avoid, pod) is not None:
            return Preference.AVOID
        return Preference.PREFER if any(rule.matches(pod) for rule in self._prefer) else Preference.NONE

    def _priority(self, pod: Named) -> int | None:
        return next((priority for rule, priority in self._priorities if rule.protects(pod)), None)

    def _process_victim(self, pod: Named) -> ProcessVictim | None:
        found = (one for one in self._process_victims if one[0].protects(pod))
        rule, never = next(found, (None, ()))
        return None if rule is None else ProcessVictim(rule=rule.text, never=never)


class ExactNames:
    """The rules of a list of pods that name one pod, without a pattern: each is to match something."""

    def __init__(self, lists: PodLists) -> None:
        self._rules = [
            (f"reactor.pods.{key}[{index}]", name, _Rule(rule), rule.is_trusting or key == "prefer")
            for key, rules in (("never", lists.never), ("avoid", lists.avoid), ("prefer", lists.prefer))
            for index, rule in enumerate(rules)
            if (name := rule.cgroup or rule.unit) is not None and not is_pattern_rule(rule)
        ]

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._rules)

    def unmatched(self, pods: Sequence[Named]) -> Iterator[tuple[str, str, str | None]]:
        """Yield the place, the name, and a cgroup that has this name without counting for the rule (or None).

        A rule that protects counts by names that root chose.
        """
        for path, name, rule, counts_by_any in self._rules:
            placed = [pod for pod in pods if rule.is_placed(pod)]
            if not any(counts_by_any or pod.is_trusted for pod in placed):
                yield path, name, placed[0].cgroup if placed else None


def is_pattern_rule(rule: PodRule) -> bool:
    """Return whether a rule names pods by a pattern, a glob or a regular expression."""
    return any(
        text.startswith(REGEX) or not _SIGNS.isdisjoint(text)
        for text in (rule.unit, rule.cgroup)
        if text is not None
    )


def rule_text(rule: PodRule) -> str:
    """Return what a rule goes by, in words."""
    return ", ".join(
        f"{what} {pattern}"
        for what, pattern in (("unit", rule.unit), ("cgroup", rule.cgroup), ("process", rule.process))
        if pattern is not None
    )


def matches_by_any_name(rule: PodRule, pod: Named) -> bool:
    """Return whether a rule matches a pod, also by names that count for nothing without `trusting`."""
    return _Rule(rule).matches(pod)


def _first(rules: Sequence[_Rule], pod: Named) -> _Rule | None:
    return next((rule for rule in rules if rule.protects(pod)), None)


def _path_matcher(pattern: str) -> Callable[[str], bool]:
    """Return what tells whether a path matches: a regular expression as a whole, a glob by components."""
    if pattern.startswith(REGEX):
        return matcher(pattern)
    components = [matcher(part) for part in pattern.split("/")]

    def matches(path: str) -> bool:
        parts = path.split("/")
        return len(parts) == len(components) and all(
            is_one(part) for is_one, part in zip(components, parts, strict=True)
        )

    return matches
