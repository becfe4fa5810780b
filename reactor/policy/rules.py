"""What a rule of the operator's does once it is due: whom it may hit, and for what it waits.

Whom a rule may hit follows from its cgroup: the pod that this is or lies in, or the pods below. The cgroup's
own processes make its pressure, so a tenant can turn a rule against itself alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reactor.model.decisions import Decision, Eviction, Hold, Inputs, PolicyState, RankedPod, Snapshot
from reactor.model.pods import Pod, working_set_bytes
from reactor.model.rules import EVICTING, MARKING, Firing, RankedBy, Rule, RuleAction
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Reclaim, Resource, RuleSignal, Signal
from reactor.policy.claims import candidates, is_memory_awaited
from reactor.policy.holds import rated, under_way, with_hold
from reactor.policy.messages import offending_annotations
from reactor.policy.rank import of_no_partition, rank, rank_by_amount
from reactor.policy.storm import memory_slowdowns
from reactor.policy.thresholds import is_hard_memory
from reactor.text import printable


def decide_firing(inputs: Inputs, decision: Decision, firing: Firing) -> tuple[PolicyState, Decision]:
    """Return what a rule that is due does: evict the first in the ranking of whom it may hit, or reclaim.

    `decision` is that of the thresholds, which have done nothing. An eviction waits while thresholds evict,
    while another one is under way, while evictions are slowed down, and for the rate that is configured. A
    reclaim waits for the first two, and for one that is under way.
    """
    rule, state, snapshot = firing.rule, inputs.state, inputs.snapshot
    decision = decision._replace(rule=firing)
    reason = next(rule_holds(inputs.settings, state, firing), None)
    if reason is not None:
        return state, _deferred(decision, reason)._replace(waits=True)
    if rule.action is RuleAction.RECLAIM:
        hold = rule_hold(rule, firing.at_seconds)
        return with_hold(state, hold), decision._replace(rule_reclaim=hold)
    if rule.action not in EVICTING:
        return state, decision
    ranking = _ranking(inputs, firing)
    decision = decision._replace(ranking=ranking)
    first = next((one for one in ranking if one.evictable and _may_go(rule, one, snapshot)), None)
    if first is None:
        return state, _deferred(decision, _nobody_because(firing, ranking))
    eviction = Eviction(
        pod=first.pod,
        signal=RuleSignal.RULE,
        resource=Resource.MEMORY,
        grace_period_seconds=0,
        message=_message(firing),
        annotations=offending_annotations(
            first, snapshot.pods.get(first.pod.uid), Resource.MEMORY, of_each=True
        ),
    )
    return state, decision._replace(evictions=(eviction,), deferred_because=None)


def _deferred(decision: Decision, reason: str) -> Decision:
    before = decision.deferred_because
    return decision._replace(deferred_because=reason if before is None else f"{before}; {reason}")


def is_at_or_below(cgroup: str | None, above: str) -> bool:
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


def _ranking(inputs: Inputs, firing: Firing) -> tuple[RankedPod, ...]:
    rule, settings, snapshot = firing.rule, inputs.settings, inputs.snapshot
    hit = hit_by(rule, firing.cgroup, candidates(inputs))
    pods = tuple(_of_its_partition(firing, pod) for pod in hit)
    if rule.by in {RankedBy.PGSCAN, RankedBy.GROWTH}:
        if rule.holders_go:  # of the same amount the one that holds the most: ties keep the order given
            pods = tuple(sorted(pods, key=lambda pod: -(working_set_bytes(snapshot.pods, pod.uid) or 0)))
        return rank_by_amount(pods, firing.amounts)
    signal = Signal.SWAP_AVAILABLE if rule.by is RankedBy.SWAP else Signal.MEMORY_AVAILABLE
    return rank(pods, snapshot.pods, signal, settings.layout, with_swap=settings.ranks_swap)


def _may_go(rule: Rule, place: RankedPod, snapshot: Snapshot) -> bool:
    """Return whether a rule may choose the pod: for the worst it has some of the amount.

    To end a pod that has none ends no stall: it stays even where all that have some are avoided. Where
    `holders_go` such a pod may go as well if it holds memory, and so before all that are avoided: what is
    stalled by a full swap scans nothing. Source: oomd_select_by_pgscan_rate in systemd's src/oom/oomd-util.c.
    """
    if rule.action is not RuleAction.EVICT_WORST:
        return True
    if place.usage is None:
        return False
    return place.usage > 0 or (rule.holders_go and bool(working_set_bytes(snapshot.pods, place.pod.uid)))


def _of_its_partition(firing: Firing, pod: Pod) -> Pod:
    """Return a pod of a partition as one that may go, if the rule is for that partition or below it."""
    tops = (firing.cgroup,) if firing.rule.below is None else firing.rule.below
    is_inside = pod.partition is not None and all(is_at_or_below(top, pod.partition) for top in tops)
    return of_no_partition(pod) if is_inside else pod


def _nobody_because(firing: Firing, ranking: Sequence[RankedPod]) -> str:
    if not ranking:
        where = "below" if firing.rule.action is RuleAction.EVICT_WORST else "at"
        return f"there is no pod {where} {printable(firing.cgroup)} that is not being evicted already"
    if not ranking[0].evictable:
        because = printable(ranking[0].pod.critical_because or "")
        return f"no pod there may be evicted: {ranking[0].pod.key} never is ({because})"
    what = f"{firing.rule.by} or memory" if firing.rule.holders_go else firing.rule.by
    return f"no pod there is known to have any {what}"


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


def rule_holds(settings: EvictionSettings, state: PolicyState, firing: Firing) -> Iterator[str]:
    """Yield why a rule that is due waits; one that only reports, or marks the Node, waits for nothing."""
    action = firing.rule.action
    if action is RuleAction.REPORT or action in MARKING:
        return
    yield from before_rules(state)
    if action in EVICTING:
        yield from (f"evictions are slowed down: {one.message}" for one in memory_slowdowns(state))
        yield from rated(settings, state, firing.at_seconds)
    elif (hold := under_way(state, Reclaim.RULE, firing.at_seconds)) is not None:
        yield hold.reason


def before_rules(state: PolicyState) -> Iterator[str]:
    """Yield what comes before all rules; a reclaim by one goes on until then."""
    if any(map(is_hard_memory, state.thresholds_met)):
        yield "a hard memory threshold is met: thresholds evict first"
    if is_memory_awaited(state):
        yield "in flight: the memory of an earlier victim is still being freed"


def rule_hold(rule: Rule, now_seconds: float) -> Hold:
    """Return the reclaim of memory by a rule, for which those of other rules wait."""
    return Hold(
        kind=Reclaim.RULE,
        reason="reclaim: the memory of another cgroup is being reclaimed by a rule",
        began_seconds=now_seconds,
        until_seconds=now_seconds + rule.reclaim_seconds,
    )
