"""No kill storm: evictions for hard memory thresholds are slowed down where they do not help.

kill_results.py judges the kills.

    outside-pods   less is held by all pods together than what is missing: evicting can't end the shortage
    unhelpful      half of what the last kills brought back, or all that is missing, went outside the pods, or
                   to pods that came since
    rate           as many as are allowed in a minute

The first two allow one kill in each pause, and meanwhile no eviction for a soft threshold of the signal. If
the pods have grown by a quarter of the threshold since the last kill, the second does not hold. Evictions in
time are judged likewise, and those for process ids in judged_evictions.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from reactor.model.decisions import Inputs, PolicyState
from reactor.model.kills import HardMemoryKill, Slowdown, SlowReason
from reactor.model.signals import MEMORY_SIGNALS, ON_DISK, RESOURCE, Signal
from reactor.model.thresholds import Threshold
from reactor.policy.kill_results import NodeAtThreshold, slowdown_by_rate, slowdown_in_vain, with_what_is_left
from reactor.policy.rank import counted
from reactor.policy.thresholds import is_judged

_CLEARLY_SHARE = 8  # of the threshold: the node and its pods are not read at one instant


def with_slowdowns(inputs: Inputs) -> tuple[Inputs, tuple[HardMemoryKill, ...]]:
    """Return the inputs with the slowdowns now in force, and the kills that turned out just now not to help.

    The state is as observed in this pass. A slowdown stays until its end where its threshold is not met for
    the moment, or where the memory of a pod is unobserved. Those for filesystems stay as they are.
    """
    state = inputs.state
    explained = {
        one: not one.is_hard or is_explained(inputs, one)
        for one in sorted(state.thresholds_met, key=lambda one: one.is_hard)  # which has the last word
        if is_judged(inputs.settings, one)
    }
    # The first kill of a calm node comes soonest: nothing but who holds its memory can slow that down.
    is_calm = not state.slowdowns and not (explained and state.hard_memory_kills)
    if is_calm and False not in explained.values():
        return inputs, ()
    used, pods, now_seconds = inputs.snapshot.pods, inputs.pods, inputs.now_seconds
    before = {(one.signal, one.reason is SlowReason.RATE): one for one in memory_slowdowns(state)}
    found: dict[tuple[Signal, bool], Slowdown | None] = {
        kind: one for kind, one in before.items() if now_seconds < one.until_seconds
    }
    kills = state.hard_memory_kills
    if explained and kills and (used or not pods):
        kills = with_what_is_left(kills, used, pods)
    for threshold, by_pods in explained.items():
        signal, node = threshold.signal, NodeAtThreshold.of(inputs, threshold)
        in_vain = (signal, False)
        found[in_vain], kills = slowdown_in_vain(node, kills, before.get(in_vain), is_explained=by_pods)
        found[signal, True] = slowdown_by_rate(node, kills)
    slowdowns = {kind: one for kind, one in found.items() if one is not None}
    if kills is state.hard_memory_kills and slowdowns == before:
        return inputs, ()
    pairs = zip(state.hard_memory_kills, kills, strict=True)
    unhelpful = tuple(new for old, new in pairs if new.is_unhelpful > old.is_unhelpful)
    others = (one for one in state.slowdowns if one.signal not in MEMORY_SIGNALS)
    state = state._replace(slowdowns=(*slowdowns.values(), *others), hard_memory_kills=kills)
    return inputs.with_state(state), unhelpful


def is_newly_slowed(before: PolicyState, state: PolicyState) -> bool:
    """Return whether evictions for memory are slowed down, by what was observed, that were not before."""
    already = state.slowdowns and {(one.signal, one.reason) for one in before.slowdowns}
    return any(
        one.reason is not SlowReason.RATE and (one.signal, one.reason) not in already
        for one in memory_slowdowns(state)
    )


def memory_slowdowns(state: PolicyState) -> tuple[Slowdown, ...]:
    """Return the slowdowns of evictions for memory: those for filesystems keep no pod from dying for it."""
    return state.slowdowns and tuple(one for one in state.slowdowns if one.signal in MEMORY_SIGNALS)


def slowed(state: PolicyState, threshold: Threshold, now_seconds: float) -> Iterator[str]:
    """Yield why no pod is to be killed for this threshold yet.

    A soft one would otherwise evict for what its hard one does not.
    """
    if RESOURCE[threshold.signal] in ON_DISK:
        return
    for one in state.slowdowns:
        is_about = threshold.is_hard or one.reason is not SlowReason.RATE
        if is_about and one.signal is threshold.signal and now_seconds < one.until_seconds:
            yield f"{one.reason}: {one.message}"


def is_explained(inputs: Inputs, threshold: Threshold) -> bool | None:
    """Return whether the pods that can be evicted hold as much as is missing; None where one is unobserved.

    Adds up no further than that: one hog is usually enough. If little is missing, nothing is added up.
    """
    seen = inputs.seen(threshold)
    wanted = int(threshold.value.of(seen.capacity))
    enough = wanted - seen.available - wanted // _CLEARLY_SHARE
    if enough <= 0:
        return True
    used, dying = inputs.snapshot.pods, inputs.state.dying(inputs.now_seconds)
    held_sum, is_known = 0, True
    for pod in inputs.pods:
        if pod.critical_because is not None and pod.uid not in dying:
            continue
        usage = used.get(pod.uid)
        held = usage and counted(usage, RESOURCE[threshold.signal])
        if held is None:
            is_known = is_known and pod.uid in dying
            continue
        held_sum += held
        if held_sum >= enough:
            return True
    return False if is_known else None
