"""The operator's rules over a scenario's steps: the same decision, by the numbers that were recorded.

Each step is one observation. What it repeats of the step before was observed in between, too: a condition
goes on holding over a recording's pause, and begins to in the step that shows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reactor.model.decisions import Decision, PolicyState, Snapshot
from reactor.model.pod_parents import PodParent
from reactor.model.pods import Pod
from reactor.model.rules import Acts, Measure, Metric, RankedBy, Rule, RuleAction
from reactor.model.settings import EvictionSettings
from reactor.policy.rules import decide_firing, hit_by
from reactor.rules.policy import Sample, Standing, after_acting, due, observed, why_not

Numbers = Mapping[str, Mapping[Metric, float]]

_SCANNED = Metric(Measure.PAGES_SCANNED)


class RuleReplay:
    """How the rules stand between two steps."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self._selectors = {rule.name: tuple(map(PodParent, rule.cgroups)) for rule in rules}
        self._standings: dict[str, dict[str, Standing]] = {rule.name: {} for rule in rules}
        self._acted: dict[str, Acts] = {}
        self._amounts_before: dict[tuple[str, str], Mapping[str, float]] = {}
        self._counters: dict[str, dict[Metric, Sample]] = {}

    def take(
        self,
        settings: EvictionSettings,
        state: PolicyState,
        snapshot: Snapshot,
        pods: Sequence[Pod],
        numbers: Numbers,
        at_seconds: float,
    ) -> tuple[Decision, ...]:
        """Return what each rule that is due decides in a step; one that waits is asked again in the next."""
        decisions = []
        for rule in self.rules:
            standings = self._observe(rule, numbers, at_seconds)
            for cgroup in [cgroup for cgroup, one in standings.items() if one.since_seconds is not None]:
                if rule.action is RuleAction.EVICT_WORST:
                    amounts = _amounts(rule, cgroup, snapshot, pods, numbers)
                    self._amounts_before.setdefault((rule.name, cgroup), amounts)
            firing = due(rule, standings, self._acted.get(rule.name, {}), at_seconds)
            if firing is None:
                continue
            before = self._amounts_before.get((rule.name, firing.cgroup), {})
            now = _amounts(rule, firing.cgroup, snapshot, pods, numbers)
            amounts_since = {uid: int(amount - before.get(uid, 0.0)) for uid, amount in now.items()}
            decision = decide_firing(settings, state, firing, snapshot, pods, amounts_since)
            if not decision.waits:
                self._acted[rule.name] = after_acting(firing, self._acted.get(rule.name, {}))
                standings.pop(firing.cgroup)
                self._amounts_before.pop((rule.name, firing.cgroup), None)
            decisions.append(decision)
        self._counters = {
            cgroup: {
                metric: Sample(at_seconds, value) for metric, value in values.items() if metric.is_counter
            }
            for cgroup, values in numbers.items()
        }
        return tuple(decisions)

    def lines(self, decisions: Sequence[Decision], at_seconds: float) -> Iterator[dict[str, Any]]:
        """Yield, for each rule, what it did in a step or why it did nothing, as plain JSON values."""
        for rule in self.rules:
            decision = next((one for one in decisions if one.rule and one.rule.rule.name == rule.name), None)
            standings = self._standings[rule.name]
            line: dict[str, Any] = {
                "name": rule.name,
                "action": str(rule.action),
                "acted": decision is not None and not decision.waits,
                "holdsIn": [cgroup for cgroup, one in standings.items() if one.since_seconds is not None],
            }
            firing = None if decision is None else decision.rule
            if decision is None or firing is None:
                because = why_not(rule, standings, self._acted.get(rule.name, {}), at_seconds)
                yield {**line, "because": because}
                continue
            yield {
                **line,
                "because": decision.deferred_because,
                "cgroup": firing.cgroup,
                "heldSeconds": round(firing.held_seconds, 3),
                "unhelpful": firing.unhelpful,
                "inputs": [one.document() for one in firing.inputs],
                "evicted": [eviction.pod.key for eviction in decision.evictions],
                "ranking": [place.pod.key for place in decision.ranking],
            }

    def _observe(self, rule: Rule, numbers: Numbers, at_seconds: float) -> dict[str, Standing]:
        standings = self._standings[rule.name]
        for cgroup in [cgroup for cgroup in standings if cgroup not in numbers]:
            del standings[cgroup]
        for cgroup, values in numbers.items():
            if not any(one.is_parent(cgroup) for one in self._selectors[rule.name]):
                continue
            standing = observed(
                rule,
                standings.get(cgroup),
                values,
                at_seconds,
                self._counters.get(cgroup),
                longest_gap_seconds=math.inf,
            )
            if standing is None:
                standings.pop(cgroup, None)
            else:
                standings[cgroup] = standing
            if standing is None or standing.since_seconds is None:
                self._amounts_before.pop((rule.name, cgroup), None)
        return standings


def _amounts(
    rule: Rule, cgroup: str, snapshot: Snapshot, pods: Sequence[Pod], numbers: Numbers
) -> dict[str, float]:
    """Return by uid what a rule ranks the pods below a cgroup by; what is not known is absent."""
    if rule.by not in {RankedBy.PGSCAN, RankedBy.GROWTH}:
        return {}
    found: dict[str, float] = {}
    for pod in hit_by(rule, cgroup, pods):
        used = snapshot.pods.get(pod.uid)
        amount = (
            numbers.get(pod.cgroup or "", {}).get(_SCANNED)
            if rule.by is RankedBy.PGSCAN
            else (None if used is None else used.memory_working_set_bytes)
        )
        if amount is not None:
            found[pod.uid] = float(amount)
    return found
