"""A scenario's steps through the real decision engine, under the scenario's own clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reactor.model.decisions import Decision, Inputs, PolicyState, Snapshot
from reactor.model.name_patterns import PodParent
from reactor.model.pods import Image, Pod, working_set_bytes
from reactor.model.rules import Acts, Measure, Metric, RankedBy, Rule, RuleAction
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Reclaim, Signal
from reactor.policy.admission import REASON, refusal
from reactor.policy.decide import after_reclaim, decide
from reactor.policy.events import EvictionOrdered, PodEnded, apply
from reactor.policy.images import images_to_collect, unused_images
from reactor.policy.messages import eviction_message
from reactor.policy.rules import decide_firing, hit_by
from reactor.policy.thresholds import elapsed_seconds
from reactor.rules.policy import RuleState, Sample, after_acting, due, observed, why_not
from reactor.simulate.scenario import Scenario, Step
from reactor.simulate.summary import Summary
from reactor.sources.levels import memory_level

Numbers = Mapping[str, Mapping[Metric, float]]

_SCANNED = Metric(Measure.PAGES_SCANNED)

_NOTIFIER_REFRESH_SECONDS = 10.0
_STATISTICS_ERROR = "the node's statistics can't be read; nothing was changed"

SnapshotOf = Callable[[Summary], Snapshot]


class RuleReplay:
    """How the rules stand between two steps."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self._selectors = {rule.name: tuple(map(PodParent, rule.cgroups)) for rule in rules}
        self._states: dict[str, dict[str, RuleState]] = {rule.name: {} for rule in rules}
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
            states = self._observe(rule, numbers, at_seconds)
            for cgroup in [cgroup for cgroup, one in states.items() if one.since_seconds is not None]:
                if rule.action is RuleAction.EVICT_WORST:
                    amounts = _amounts(rule, cgroup, snapshot, pods, numbers)
                    self._amounts_before.setdefault((rule.name, cgroup), amounts)
            firing = due(rule, states, self._acted.get(rule.name, {}), at_seconds)
            if firing is None:
                continue
            before = self._amounts_before.get((rule.name, firing.cgroup), {})
            now = _amounts(rule, firing.cgroup, snapshot, pods, numbers)
            amounts_since = {uid: int(amount - before.get(uid, 0.0)) for uid, amount in now.items()}
            firing = replace(firing, amounts=amounts_since)
            made = Decision(
                at_seconds=at_seconds,
                conditions=state.conditions,
                thresholds_met=state.thresholds_met,
                slowdowns=state.slowdowns,
            )
            inputs = Inputs(settings, state, snapshot, pods, at_seconds)
            decision = decide_firing(inputs, made, firing)[1]
            if not decision.waits:
                self._acted[rule.name] = after_acting(firing, self._acted.get(rule.name, {}))
                states.pop(firing.cgroup)
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
            states = self._states[rule.name]
            line: dict[str, Any] = {
                "name": rule.name,
                "action": str(rule.action),
                "acted": decision is not None and not decision.waits,
                "holdsIn": [cgroup for cgroup, one in states.items() if one.since_seconds is not None],
            }
            firing = None if decision is None else decision.rule
            if decision is None or firing is None:
                because = why_not(rule, states, self._acted.get(rule.name, {}), at_seconds)
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

    def _observe(self, rule: Rule, numbers: Numbers, at_seconds: float) -> dict[str, RuleState]:
        states = self._states[rule.name]
        for cgroup in [cgroup for cgroup in states if cgroup not in numbers]:
            del states[cgroup]
        for cgroup, values in numbers.items():
            if not any(one.is_parent(cgroup) for one in self._selectors[rule.name]):
                continue
            state = observed(
                rule,
                states.get(cgroup),
                values,
                at_seconds,
                self._counters.get(cgroup),
                longest_gap_seconds=math.inf,
            )
            if state is None:
                states.pop(cgroup, None)
            else:
                states[cgroup] = state
            if state is None or state.since_seconds is None:
                self._amounts_before.pop((rule.name, cgroup), None)
        return states


def _amounts(
    rule: Rule, cgroup: str, snapshot: Snapshot, pods: Sequence[Pod], numbers: Numbers
) -> dict[str, float]:
    """Return by uid what a rule ranks the pods below a cgroup by; what is not known is absent."""
    if rule.by not in {RankedBy.PGSCAN, RankedBy.GROWTH}:
        return {}
    found: dict[str, float] = {}
    for pod in hit_by(rule, cgroup, pods):
        amount = (
            numbers.get(pod.cgroup or "", {}).get(_SCANNED)
            if rule.by is RankedBy.PGSCAN
            else working_set_bytes(snapshot.pods, pod.uid)
        )
        if amount is not None:
            found[pod.uid] = float(amount)
    return found


@dataclass(slots=True)
class _Node:
    """What the node is like between two steps."""

    pods: tuple[Pod, ...]
    images: tuple[Image, ...]
    state: PolicyState = field(default_factory=PolicyState)
    snapshot: Snapshot = field(default_factory=Snapshot)
    memory_levels: dict[str, int] = field(default_factory=dict)
    memory_levels_at_seconds: float | None = None
    numbers: Numbers = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One step and what it came to. `snapshot` None could not be read; nothing was changed then.

    `by_rules` is what rules that were due decided, `rules` how all of them stand, None where there are none.
    """

    step: Step
    snapshot: Snapshot | None
    decision: Decision
    images_removed: Sequence[Image] = ()
    memory_levels: Mapping[str, int]
    by_rules: tuple[Decision, ...] = ()
    rules: Sequence[Mapping[str, Any]] | None = None


def replay(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield what each step decided, as the objects of `--output json`."""
    return map(line_of, passes(scenario, scenario.settings, Summary.snapshot))


def passes(
    scenario: Scenario,
    settings: EvictionSettings,
    snapshot_of: SnapshotOf,
    rules: Sequence[Rule] | None = None,
) -> Iterator[Pass]:
    """Yield each step's pass under `settings` and `rules`, the scenario's own or others."""
    steps = zip(scenario.steps, scenario.numbers, strict=True)
    return passes_over(
        steps,
        settings,
        snapshot_of,
        scenario.rules if rules is None else rules,
        pods=scenario.pods,
        images=scenario.images,
    )


def passes_over(
    steps: Iterable[tuple[Step, Numbers | None]],
    settings: EvictionSettings,
    snapshot_of: SnapshotOf,
    rules: Sequence[Rule],
    *,
    pods: tuple[Pod, ...] = (),
    images: tuple[Image, ...] = (),
) -> Iterator[Pass]:
    """Yield the pass of each step as it comes, with what rules observe in it."""
    node = _Node(pods=pods, images=images)
    by_rules = RuleReplay(rules)
    for step, numbers in steps:
        if numbers is not None:
            node.numbers = numbers
        if step.pods is not None:
            node.pods = step.pods
        if step.summary is not None:
            node.snapshot = snapshot_of(step.summary)
        if step.stats_error:
            node.state, decision = decide(settings, node.state, None, node.pods, step.at)
            made = Pass(step=step, snapshot=None, decision=decision, memory_levels=node.memory_levels)
        else:
            made = _pass(settings, node, step, snapshot_of)
        if by_rules.rules:
            made = _with_rules(settings, node, made, by_rules)
        _apply_evictions(settings, node, made)
        yield made


def _apply_evictions(settings: EvictionSettings, node: _Node, made: Pass) -> None:
    """Have the state know of the evictions of a pass; a recording has no time in which they could go on."""
    for decision in (made.decision, *made.by_rules):
        for one in decision.evictions:
            for event in (
                EvictionOrdered(eviction=one, snapshot=node.snapshot, pods=node.pods),
                PodEnded(uid=one.pod.uid),
            ):
                node.state = apply(settings, node.state, event, made.step.at)


def _with_rules(settings: EvictionSettings, node: _Node, made: Pass, by_rules: RuleReplay) -> Pass:
    """Return a pass with what the rules make of its step; of one that could not be read they make nothing."""
    if made.snapshot is None:
        return replace(made, rules=())
    at_seconds = made.step.at
    decisions = by_rules.take(settings, node.state, made.snapshot, node.pods, node.numbers, at_seconds)
    return replace(made, by_rules=decisions, rules=tuple(by_rules.lines(decisions, at_seconds)))


def _pass(settings: EvictionSettings, node: _Node, step: Step, snapshot_of: SnapshotOf) -> Pass:
    _renew_memory_levels(settings, node, step.at)
    removed = list(
        images_to_collect(
            node.images,
            settings.image_gc,
            node.snapshot.signals.get(Signal.IMAGEFS_AVAILABLE),
            step.at,
            watched_since_seconds=0.0,
        )
    )
    _remove(node, removed)
    node.state, decision = decide(settings, node.state, node.snapshot, node.pods, step.at)
    if decision.reclaim:
        freed, after = _reclaim(settings, node, step, decision, snapshot_of)
        removed += freed
        node.state, decision = after_reclaim(settings, node.state, decision, node.snapshot, after, node.pods)
    return Pass(
        step=step,
        snapshot=node.snapshot,
        decision=decision,
        images_removed=removed,
        memory_levels=node.memory_levels,
    )


def _reclaim(
    settings: EvictionSettings, node: _Node, step: Step, decision: Decision, snapshot_of: SnapshotOf
) -> tuple[list[Image], Snapshot]:
    """Return the images removed and what the node shows after its reclaims; a failed one frees nothing."""
    freed: list[Image] = []
    after = node.snapshot
    for kind in decision.reclaim:
        if kind in step.reclaim_error:
            continue
        if kind is Reclaim.IMAGES:
            freed += unused_images(node.images, settings.image_gc, step.at)
            _remove(node, freed)
        if kind in step.after_reclaim:
            after = snapshot_of(step.after_reclaim[kind])
    return freed, after


def _remove(node: _Node, images: list[Image]) -> None:
    node.images = tuple(image for image in node.images if image not in images)


def _renew_memory_levels(settings: EvictionSettings, node: _Node, now_seconds: float) -> None:
    """Put the kernel's thresholds where they would be now. Source: synchronize, notifierRefreshInterval."""
    last = node.memory_levels_at_seconds
    if not settings.kernel_memcg_notification:
        return
    if last is not None and elapsed_seconds(last, now_seconds) <= _NOTIFIER_REFRESH_SECONDS:
        return
    node.memory_levels_at_seconds = now_seconds
    for threshold in settings.thresholds:
        observation = node.snapshot.signals.get(threshold.signal)
        if threshold.signal not in MEMORY_SIGNALS or observation is None or observation.absurdity:
            continue
        level = memory_level(threshold, observation)
        if level is not None:
            node.memory_levels[str(threshold)] = level


def line_of(made: Pass) -> dict[str, Any]:
    """Return what a step decided as an object of `--output json`."""
    step, decision = made.step, made.decision
    evictions = [*decision.evictions, *(one for by_rule in made.by_rules for one in by_rule.evictions)]
    line = {
        "at": float(step.at),
        "conditions": [str(condition) for condition in decision.conditions],
        "thresholdsMet": [str(threshold) for threshold in decision.thresholds_met],
        "reclaimed": [str(kind) for kind in decision.reclaim],
        "evicted": [
            {
                "pod": eviction.pod.key,
                "uid": eviction.pod.uid,
                "signal": str(eviction.signal),
                "gracePeriodSeconds": eviction.grace_period_seconds,
                "reason": REASON,
                "message": eviction_message(eviction)[0],
            }
            for eviction in evictions
        ],
        "ranking": [place.pod.key for place in decision.ranking],
        "imagesRemoved": [image.id for image in made.images_removed],
        "admit": {pod.key: _admission(pod, decision) for pod in step.admit},
        "memcgThresholdsBytes": dict(made.memory_levels),
        "error": _STATISTICS_ERROR if made.snapshot is None else None,
    }
    return line if made.rules is None else {**line, "rules": list(made.rules)}


def _admission(pod: Pod, decision: Decision) -> dict[str, Any]:
    refused = refusal(pod, decision.conditions)
    reason, message = refused or (None, None)
    return {"admitted": refused is None, "reason": reason, "message": message}
