"""Evictions for a full filesystem: what is decided after a reclaim of the node, and whether the last helped.

Where no kubelet removes a pod's files, only some of them end with the pod: emptyDirs and writable layers.
What a service has written anywhere else stays when it is killed, and so do a hostPath's files and logs.

An eviction is judged once nothing of it is in flight any more. It has brought back what is available more
than before it, and what the other pods have taken since: a second hog is evicted at once. What the pod that
was evicted takes again counts against it: its files were not removed, or it was started again. If less than a
quarter of what was credited has come back, or of what was missing if nothing was credited, there is one
eviction in each pause for the filesystem. The pause is long: files go seconds or minutes after their pod, and
a full filesystem ends no process, but each eviction in vain ends a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from reactor.model.decisions import Decision, Eviction, PolicyState, Snapshot
from reactor.model.kills import DiskEviction, Slowdown, SlowReason
from reactor.model.pods import Pod, PodUsage
from reactor.model.quantity import amount_text
from reactor.model.settings import EvictionSettings
from reactor.model.signals import ON_DISK, RESOURCE, Layout, Signal
from reactor.model.thresholds import Threshold
from reactor.policy.decide import evict, kept_because
from reactor.policy.holds import is_hopeless
from reactor.policy.rank import freed, usage
from reactor.policy.storm import shares_filesystem
from reactor.policy.thresholds import absurdities, thresholds_met

_PAUSES: Final = 30  # of unhelpfulEvictionPause: five minutes where that is 10 s
_NO_HOLDER_SECONDS: Final = 300.0  # said anew whenever the filesystem is observed, unless it is fine


def with_disk_eviction(
    settings: EvictionSettings,
    state: PolicyState,
    eviction: Eviction,
    snapshot: Snapshot,
    pods: Sequence[Pod],
    now_seconds: float,
) -> PolicyState:
    """Return the state after an eviction, with what it is judged by if it was for a filesystem."""
    threshold = eviction.threshold
    if threshold is None or RESOURCE[threshold.signal] not in ON_DISK:
        return state
    seen = snapshot.signals.get(threshold.signal)
    if seen is None:
        return state
    pod, used, layout = eviction.pod, snapshot.pods, settings.layout
    count = freed if settings.evicts_holders_only else usage
    ordered = DiskEviction(
        uid=pod.uid,
        pod_key=pod.key,
        signal=threshold.signal,
        at_seconds=now_seconds,
        credited=count(pod, used.get(pod.uid), threshold.signal, layout),
        available=seen.available,
        missing=threshold.missing(seen),
        others=_taken(pods, used, threshold.signal, layout, but=pod.key),
    )
    pause_seconds = disk_pause_seconds(settings)
    kept = (one for one in state.disk_evictions if now_seconds - one.at_seconds < pause_seconds)
    return replace(state, disk_evictions=(*kept, ordered))


def disk_pause_seconds(settings: EvictionSettings) -> float:
    """Return how far evictions for a filesystem are apart if they do not help; 0: not slowed down."""
    return _PAUSES * settings.unhelpful_eviction_pause_seconds


def with_disk_slowdown(
    settings: EvictionSettings,
    state: PolicyState,
    threshold: Threshold,
    snapshot: Snapshot,
    pods: Sequence[Pod],
    now_seconds: float,
) -> tuple[PolicyState, tuple[DiskEviction, ...]]:
    """Return the state with the slowdown for a filesystem, and what has just turned out not to help.

    To be called if the threshold is met, and nothing that was evicted for it is in flight.
    """
    is_about = shares_filesystem(threshold.signal, settings.layout)
    last = next((one for one in reversed(state.disk_evictions) if is_about(one.signal)), None)
    until_seconds = 0.0 if last is None else last.at_seconds + disk_pause_seconds(settings)
    others = tuple(one for one in state.slowdowns if not is_about(one.signal))
    if last is not None and now_seconds < until_seconds:
        came_back = _came_back(last, snapshot, pods, settings.layout)
        credited = last.credited or last.missing
        if 4 * came_back < credited:
            resource = RESOURCE[threshold.signal]
            amounts = [amount_text(amount, resource) for amount in (credited, max(0, came_back))]
            message = (
                f"{threshold}: the last eviction, of {last.pod_key}, should have freed {amounts[0]}, but "
                f"{amounts[1]} came back: evicting does not help; one eviction in "
                f"{disk_pause_seconds(settings):g} s"
            )
            slowdown = _slowdown(
                state.slowdowns, threshold.signal, SlowReason.UNHELPFUL, now_seconds, until_seconds, message
            )
            marked = replace(last, is_unhelpful=True)
            evictions = tuple(marked if one is last else one for one in state.disk_evictions)
            state = replace(state, slowdowns=(*others, slowdown), disk_evictions=evictions)
            return state, () if last.is_unhelpful else (last,)
    return replace(state, slowdowns=others), ()


def slowed_for_disk(state: PolicyState, threshold: Threshold, layout: Layout) -> str | None:
    """Return why no pod is to be evicted for a filesystem's threshold yet, None where one may be."""
    is_about = shares_filesystem(threshold.signal, layout)
    unhelpful = (one for one in state.slowdowns if one.reason is SlowReason.UNHELPFUL)
    return next((one.message for one in unhelpful if is_about(one.signal)), None)


def with_no_holder(
    settings: EvictionSettings,
    state: PolicyState,
    before: Sequence[Slowdown],
    threshold: Threshold,
    now_seconds: float,
) -> tuple[PolicyState, str]:
    """Return the state in which no pod is known to hold what evicting would free, and that in words.

    It replaces another slowdown for the filesystem. `before` are those that were in force until now.
    """
    message = (
        f"{threshold}: no pod that may be evicted is known to have files there that are removed with it: "
        "evicting can't end this, and no pod is evicted for it"
    )
    until_seconds = now_seconds + _NO_HOLDER_SECONDS
    slowdown = _slowdown(
        before, threshold.signal, SlowReason.OUTSIDE_PODS, now_seconds, until_seconds, message
    )
    is_about = shares_filesystem(threshold.signal, settings.layout)
    others = (one for one in state.slowdowns if not is_about(one.signal))
    return replace(state, slowdowns=(*others, slowdown)), message


def _slowdown(
    before: Sequence[Slowdown],
    signal: Signal,
    reason: SlowReason,
    now_seconds: float,
    until_seconds: float,
    message: str,
) -> Slowdown:
    """Return a slowdown, which may be in force since before."""
    since = (one.since_seconds for one in before if (one.signal, one.reason) == (signal, reason))
    return Slowdown(
        signal=signal,
        reason=reason,
        since_seconds=next(since, now_seconds),
        until_seconds=until_seconds,
        message=message,
    )


def _came_back(last: DiskEviction, snapshot: Snapshot, pods: Sequence[Pod], layout: Layout) -> int:
    """Return what is available more than before the eviction, and what other pods have taken since."""
    others = _taken(pods, snapshot.pods, last.signal, layout, but=last.pod_key)
    available = snapshot.signals[last.signal].available if last.signal in snapshot.signals else last.available
    return available - last.available + max(0, others - last.others)


def _taken(
    pods: Iterable[Pod], used: Mapping[str, PodUsage], signal: Signal, layout: Layout, *, but: str
) -> int:
    return sum(usage(pod, used.get(pod.uid), signal, layout) or 0 for pod in pods if pod.key != but)


def after_reclaim(
    settings: EvictionSettings,
    state: PolicyState,
    decision: Decision,
    before: Snapshot,
    after: Snapshot | None,
    pods: Sequence[Pod],
    now_seconds: float | None = None,
) -> tuple[PolicyState, Decision]:
    """Return the state and the decision once the node has reclaimed what it could: it is decided again.

    `after` is what was observed then, at `now_seconds` (None: it could not be read, and at once). If no
    threshold that counts is met any more, no pod is evicted (see `is_enough`). What is in flight by now, the
    rate and whether the last eviction helped are asked as for any eviction. `before` is what pods are ranked
    by. Source: reclaimNodeLevelResources.
    """
    threshold = decision.acted_on
    if threshold is None:
        raise ValueError("the decision acted on no threshold; accepted: one that asked for a reclaim")
    is_over = settings.rechecks_disks and threshold not in state.thresholds_met
    if is_over or is_enough(settings, decision, after):
        return state, decision
    now_seconds = decision.at_seconds if now_seconds is None else now_seconds
    decision = replace(decision, at_seconds=now_seconds)
    now = before if after is None else Snapshot(signals=after.signals, pods=before.pods)
    seen = now.signals.get(threshold.signal) or before.signals[threshold.signal]
    reason = kept_because(settings, state, threshold, seen, pods, before.pods, now_seconds)
    if reason is not None:
        return state, replace(decision, deferred_because=f"{threshold}: {reason}", slowdowns=state.slowdowns)
    known = state
    state, unhelpful = with_disk_slowdown(settings, state, threshold, now, pods, now_seconds)
    if not is_hopeless(state, pods):
        reason = slowed_for_disk(state, threshold, settings.layout)
    if reason is None:
        decision = evict(settings, state, decision, threshold, before, pods)
        if settings.evicts_holders_only and not decision.evictions:
            state, reason = with_no_holder(settings, state, known.slowdowns, threshold, now_seconds)
    return state, replace(decision, deferred_because=reason, slowdowns=state.slowdowns, unhelpful=unhelpful)


def is_enough(settings: EvictionSettings, decision: Decision, after: Snapshot | None) -> bool:
    """Return whether a reclaim spares every pod, by what was observed after it (None: it could not be read).

    Upstream evicts while any threshold is met, grace periods ignored and minimum reclaims added. It never
    reclaims a disk while a memory threshold is due; here that may wait, and then counts for nothing. If the
    caller rechecks the filesystem, that alone counts.
    """
    if after is None:
        return settings.rechecks_disks
    absurd = absurdities(after.signals)
    observations = {signal: seen for signal, seen in after.signals.items() if signal not in absurd}
    met = thresholds_met(settings.thresholds, observations, with_minimum_reclaim=True)
    if settings.rechecks_disks:
        return decision.acted_on not in met
    return all(threshold in decision.deferred for threshold in met)
