"""What a rule of the operator's does once it is due: whom it may hit, and for what it waits.

Whom a rule may hit follows from its cgroup: the pod that this is or lies in, or the pods below. The cgroup's
own processes make its pressure, so a tenant can turn a rule against itself alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from reactor.model.decisions import Decision, Eviction, PolicyState, RankedPod, Snapshot
from reactor.model.pods import Pod
from reactor.model.rules import EVICTING, Firing, RankedBy, Rule, RuleAction
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Reclaim, Resource, RuleSignal, Signal
from reactor.policy.claims import candidates, is_memory_awaited
from reactor.policy.holds import rated, under_way
from reactor.policy.rank import rank, rank_by_amount
from reactor.policy.storm import is_hard_memory, memory_slowdowns
from reactor.text import printable


def decide_firing(
    settings: EvictionSettings,
    state: PolicyState,
    firing: Firing,
    snapshot: Snapshot,
    pods: Sequence[Pod],
    amounts: Mapping[str, int],
) -> Decision:
    """Return what a rule that is due does: the ranking of whom it may hit, and the first of them.

    `amounts` are by uid what RankedBy.PGSCAN and GROWTH rank by. An eviction waits while thresholds evict,
    while another one is under way, while evictions are slowed down, and for the rate that is configured. A
    reclaim waits for the first two, and for one that is under way; the caller begins it.
    """
    decision = Decision(
        at_seconds=firing.at_seconds,
        conditions=state.conditions,
        thresholds_met=state.thresholds_met,
        slowdowns=state.slowdowns,
        rule=firing,
    )
    rule = firing.rule
    if rule.action is RuleAction.REPORT:
        return decision
    reason = waits_because(settings, state, firing)
    if reason is not None:
        return replace(decision, deferred_because=reason, waits=True)
    if rule.action is RuleAction.RECLAIM:
        return decision
    eligible = candidates(pods, state, None, firing.at_seconds)
    ranking = _ranking(settings, firing, snapshot, eligible, amounts)
    decision = replace(decision, ranking=ranking)
    is_for_the_worst = rule.action is RuleAction.EVICT_WORST
    first = next((one for one in ranking if one.evictable and (one.usage or not is_for_the_worst)), None)
    if first is None:
        return replace(decision, deferred_because=_nobody_because(firing, ranking))
    eviction = Eviction(
        pod=first.pod,
        signal=RuleSignal.RULE,
        resource=Resource.MEMORY,
        grace_period_seconds=0,
        message=_message(firing),
        annotations={"starved_resource": Resource.MEMORY},
    )
    return replace(decision, evictions=(eviction,))


def waits_because(settings: EvictionSettings, state: PolicyState, firing: Firing) -> str | None:
    """Return why a rule waits, None where it does not."""
    if firing.rule.action is RuleAction.REPORT:
        return None
    reason = _waits_for_memory(state)
    if reason is not None:
        return reason
    if firing.rule.action not in EVICTING:
        return _waits_for_a_reclaim(state, firing)
    slowdowns = memory_slowdowns(state)
    if slowdowns:
        return f"evictions are slowed down: {slowdowns[0].message}"
    return next(rated(settings, state, firing.at_seconds), None)


def _waits_for_memory(state: PolicyState) -> str | None:
    if any(is_hard_memory(threshold) for threshold in state.thresholds_met):
        return "a hard memory threshold is met: thresholds evict first"
    if is_memory_awaited(state):
        return "in flight: the memory of an earlier victim is still being freed"
    return None


def _waits_for_a_reclaim(state: PolicyState, firing: Firing) -> str | None:
    hold = under_way(state, Reclaim.RULE, firing.at_seconds)
    return None if hold is None else hold.reason


def may_reclaim(state: PolicyState) -> bool:
    """Return whether a reclaim by a rule may go on: no hard memory threshold is met, and no victim dies."""
    return _waits_for_memory(state) is None


def is_at_or_below(cgroup: str | None, above: str) -> bool:
    """Return whether a cgroup is another one or lies in it."""
    return cgroup is not None and (above in {"/", cgroup} or cgroup.startswith(f"{above}/"))


def hit_by(rule: Rule, cgroup: str, pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return the pods that a rule may hit for a cgroup: those below it; to evict it, the one that it is in.

    What is below the cgroup is hit by no rule that evicts the cgroup itself.
    """
    if rule.action is RuleAction.EVICT_WORST:
        tops = (cgroup,) if rule.below is None else rule.below
        return tuple(pod for pod in pods if any(is_at_or_below(pod.cgroup, top) for top in tops))
    return tuple(
        pod for pod in pods if pod.cgroup not in {None, "/"} and is_at_or_below(cgroup, pod.cgroup or "")
    )


def _ranking(
    settings: EvictionSettings,
    firing: Firing,
    snapshot: Snapshot,
    eligible: Sequence[Pod],
    amounts: Mapping[str, int],
) -> tuple[RankedPod, ...]:
    rule = firing.rule
    pods = hit_by(rule, firing.cgroup, eligible)
    if rule.by in {RankedBy.PGSCAN, RankedBy.GROWTH}:
        return rank_by_amount(pods, amounts)
    signal = Signal.SWAP_AVAILABLE if rule.by is RankedBy.SWAP else Signal.MEMORY_AVAILABLE
    return rank(pods, snapshot.pods, signal, settings.layout, with_swap=settings.ranks_swap)


def _nobody_because(firing: Firing, ranking: Sequence[RankedPod]) -> str:
    if not ranking:
        where = "below" if firing.rule.action is RuleAction.EVICT_WORST else "at"
        return f"there is no pod {where} {printable(firing.cgroup)} that is not being evicted already"
    if not ranking[0].evictable:
        because = printable(ranking[0].pod.critical_because or "")
        return f"no pod there may be evicted: {ranking[0].pod.key} never is ({because})"
    return f"no pod there is known to have any {firing.rule.by}"


def _message(firing: Firing) -> str:
    inputs = "; ".join(
        f"{one.condition}: {one.condition.amount_text(one.value)}, at least "
        f"{one.condition.amount_text(one.lowest)}"
        for one in firing.inputs
    )
    return (
        f"Rule {printable(firing.rule.name)} has held in {printable(firing.cgroup)} for "
        f"{firing.held_seconds:.1f} s: {inputs}. "
    )
