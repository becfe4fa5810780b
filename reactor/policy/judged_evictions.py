"""Evictions for a full filesystem, for process ids or swap: whether the last helped, and whether one can.

Where no kubelet removes a pod's files, emptyDirs and writable layers alone end with it. What a service has
written anywhere else stays when it is killed, and so do a hostPath's files and logs.

An eviction for a disk is judged once nothing of it is in flight any more. It has brought back what is
available more than before it, and what the other pods have taken since: a second hog is evicted at once. What
the pod that was evicted takes again counts against it: its files were not removed, or it was started again.
If less than a quarter of what was credited has come back, there is one eviction in each pause for the
filesystem; or of what was missing, if the pods held less: beside a log that fills the disk each frees its
little, but the first may free an image. The pause is long: files go seconds or minutes after their pod, and a
full filesystem ends no process, but each eviction in vain ends a pod.

Process ids are back as soon as their pod has ended, so the pause is a short one. What a dying pod still has
counts as back: else each process that comes outside the pods meanwhile would cost one more pod. The pause
also comes before each eviction if all pods that can be evicted have fewer processes than are missing: no
process ends because the ids are used up, while evicting pod after pod would end them all. So it is for swap.
Those of six pauses are judged together, too: what comes outside the pods bit by bit is made up for by each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from reactor.model.decisions import Eviction, Inputs, PolicyState
from reactor.model.kills import JudgedEviction, Slowdown, SlowReason
from reactor.model.pods import Pod
from reactor.model.quantity import amount_text
from reactor.model.settings import EvictionSettings
from reactor.model.signals import ON_DISK, RESOURCE, Layout, Signal, filesystems_of
from reactor.model.thresholds import Threshold
from reactor.policy.disks import freed
from reactor.policy.rank import usage
from reactor.policy.storm import is_explained

COUNTED: Final = {  # and what is said of those outside the pods, if the pods can't explain what is missing
    Signal.PID_AVAILABLE: "processes are outside the pods, and these have fewer than are",
    Signal.SWAP_AVAILABLE: "of swap are used outside the pods, and these have less there than is",
}
_JUDGED: Final = ON_DISK | {RESOURCE[signal] for signal in COUNTED}
_PAUSES: Final = 30  # of unhelpfulEvictionPause: five minutes where that is 10 s
_NO_HOLDER_SECONDS: Final = 300.0  # said anew whenever the filesystem is observed, unless it is fine


def with_judged_eviction(inputs: Inputs, eviction: Eviction) -> PolicyState:
    """Return the state after an eviction, with what it is judged by if that is done here."""
    settings, state, snapshot, _, now_seconds = inputs
    threshold, pod = eviction.threshold, eviction.pod
    seen = None if threshold is None else snapshot.signals.get(threshold.signal)
    if threshold is None or seen is None or RESOURCE[threshold.signal] not in _JUDGED:
        return state
    ordered = JudgedEviction(
        uid=pod.uid,
        pod_key=pod.key,
        signal=threshold.signal,
        at_seconds=now_seconds,
        credited=_counted(inputs, pod, threshold.signal),
        available=seen.available,
        missing=threshold.missing(seen),
        others=_taken(inputs, threshold.signal, but=pod.key),
    )
    pause = partial(unhelpful_pause_seconds, settings)
    kept = (one for one in state.judged_evictions if now_seconds - one.at_seconds < 6 * pause(one.signal))
    return state._replace(judged_evictions=(*kept, ordered))


def unhelpful_pause_seconds(settings: EvictionSettings, signal: Signal = Signal.NODEFS_AVAILABLE) -> float:
    """Return how far evictions for a signal are apart if they do not help; 0: not slowed down."""
    return (_PAUSES if RESOURCE[signal] in ON_DISK else 1) * settings.unhelpful_eviction_pause_seconds


def with_counted_slowdowns(inputs: Inputs) -> tuple[Inputs, tuple[JudgedEviction, ...]]:
    """Return the inputs with the slowdowns for process ids and swap, and what has turned out not to help.

    One stays while a pod is unobserved. A pod that is dying counts as what it still has.
    """
    found: tuple[JudgedEviction, ...] = ()
    for signal in COUNTED:
        inputs, in_vain = _with_counted_slowdown(inputs, signal)
        found += in_vain
    return inputs, found


def _with_counted_slowdown(inputs: Inputs, signal: Signal) -> tuple[Inputs, tuple[JudgedEviction, ...]]:
    settings, state, _, _, now_seconds = inputs
    pause_seconds, resource = settings.unhelpful_eviction_pause_seconds, RESOURCE[signal]
    met = next((one for one in state.thresholds_met if one.signal is signal), None)
    if met is None or pause_seconds <= 0:
        return _slowed(inputs, signal), ()
    is_pods = is_explained(inputs, met)
    if is_pods is not False:
        return with_unhelpful_slowdown(inputs, met) if is_pods else (inputs, ())
    began = (one.since_seconds for one in state.slowdowns if one.signal is signal)
    last = (one.at_seconds for one in reversed(state.judged_evictions) if one.signal is signal)
    until_seconds = pause_seconds + max(next(began, now_seconds), next(last, 0.0))
    seen = inputs.seen(met)
    outside = amount_text(seen.capacity - seen.available - _taken(inputs, signal), resource)
    message = (
        f"{met}: {outside} {COUNTED[signal]} missing: "
        f"evicting can't end this; one eviction in {pause_seconds:g} s"
    )
    return _slowed(inputs, signal, _Slow(SlowReason.OUTSIDE_PODS, until_seconds, message)), ()


def with_unhelpful_slowdown(
    inputs: Inputs, threshold: Threshold
) -> tuple[Inputs, tuple[JudgedEviction, ...]]:
    """Return the inputs slowed down if the last eviction did not help, and what just turned out not to.

    To be called if the threshold is met, and nothing that was evicted for it is in flight.
    """
    settings, state, _, _, now_seconds = inputs
    is_about = shares_filesystem(threshold.signal, settings.layout)
    judged = [one for one in state.judged_evictions if is_about(one.signal)]
    resource, pause_seconds = RESOURCE[threshold.signal], unhelpful_pause_seconds(settings, threshold.signal)
    if judged and now_seconds < (until_seconds := judged[-1].at_seconds + pause_seconds):
        last, (credited, came_back) = judged[-1], _result(inputs, threshold, judged)
        if 4 * came_back < credited:
            amounts = [amount_text(amount, resource) for amount in (credited, max(0, came_back))]
            message = (
                f"{threshold}: the last eviction, of {last.pod_key}, should have freed {amounts[0]}, but "
                f"{amounts[1]} came back: evicting does not help; one eviction in {pause_seconds:g} s"
            )
            inputs = _slowed(inputs, threshold.signal, _Slow(SlowReason.UNHELPFUL, until_seconds, message))
            marked = replace(last, is_unhelpful=True)
            evictions = tuple(marked if one is last else one for one in state.judged_evictions)
            state = inputs.state._replace(judged_evictions=evictions)
            return inputs.with_state(state), () if last.is_unhelpful else (last,)
    return _slowed(inputs, threshold.signal), ()


class _Slow(NamedTuple):
    """A slowdown that is to be in force until then."""

    reason: SlowReason
    until_seconds: float
    message: str


def _slowed(
    inputs: Inputs, signal: Signal, slow: _Slow | None = None, before: Iterable[Slowdown] | None = None
) -> Inputs:
    """Return the inputs with this slowdown, or none, in the place of others for the signal's filesystem.

    It may be in force since before: `before` are those that were until now (None: of these inputs).
    """
    state = inputs.state
    is_about = shares_filesystem(signal, inputs.settings.layout)
    slowdowns = tuple(one for one in state.slowdowns if not is_about(one.signal))
    if slow is not None:
        known = state.slowdowns if before is None else before
        same = (one.since_seconds for one in known if (one.signal, one.reason) == (signal, slow.reason))
        since_seconds = next(same, inputs.now_seconds)
        slowdowns = (*slowdowns, Slowdown(signal=signal, since_seconds=since_seconds, **slow._asdict()))
    return inputs if slowdowns == state.slowdowns else inputs.with_state(state._replace(slowdowns=slowdowns))


def slowed_for_disk(inputs: Inputs, threshold: Threshold) -> str | None:
    """Return why no pod is to be evicted for a filesystem's threshold yet, None where one may be."""
    is_about = shares_filesystem(threshold.signal, inputs.settings.layout)
    unhelpful = (one for one in inputs.state.slowdowns if one.reason is SlowReason.UNHELPFUL)
    return next((one.message for one in unhelpful if is_about(one.signal)), None)


def with_no_holder(
    inputs: Inputs, threshold: Threshold, before: Sequence[Slowdown]
) -> tuple[PolicyState, str]:
    """Return the state in which no pod is known to hold what evicting would free, and that in words.

    It replaces another slowdown for the filesystem. `before` are those that were in force until now.
    """
    message = (
        f"{threshold}: no pod that may be evicted is known to have files there that are removed with it: "
        "evicting can't end this, and no pod is evicted for it"
    )
    slow = _Slow(SlowReason.OUTSIDE_PODS, inputs.now_seconds + _NO_HOLDER_SECONDS, message)
    return _slowed(inputs, threshold.signal, slow, before).state, message


def _result(inputs: Inputs, threshold: Threshold, judged: Sequence[JudgedEviction]) -> tuple[int, int]:
    """Return what the last eviction should have freed, and what it has: available, or taken by others since.

    It is that of several if what is outside the pods has taken most of it, and more than pods.
    """
    last = judged[-1]
    # A pod that has taken process ids again is the first to go again: no other has to be spared.
    taken = _taken(inputs, last.signal, but=last.pod_key if RESOURCE[last.signal] in ON_DISK else "")
    available = inputs.seen(threshold).available
    held, credited = last.credited or 0, 0
    expected = held if held and held + last.others >= last.missing else last.missing
    found = expected, available - last.available + max(0, taken - last.others)
    for one in reversed(judged):
        grown, credited = taken - one.others + credited, credited + (one.credited or 0)
        came_back = available - one.available + grown
        if 4 * came_back < credited and credited - came_back > grown:
            found = credited, came_back
    return found


def _taken(inputs: Inputs, signal: Signal, *, but: str = "") -> int:
    """Return what the pods have that can be evicted: what others have is outside the pods."""
    pods = (pod for pod in inputs.pods if pod.key != but and pod.critical_because is None)
    return sum(_counted(inputs, pod, signal) or 0 for pod in pods)


def _counted(inputs: Inputs, pod: Pod, signal: Signal) -> int | None:
    settings, used = inputs.settings, inputs.snapshot.pods.get(pod.uid)
    count = freed if settings.evicts_holders_only and RESOURCE[signal] in ON_DISK else usage
    return count(pod, used, signal, settings.layout)


def without_past_slowdowns(inputs: Inputs) -> Inputs:
    """Return the inputs without the slowdowns for filesystems that are over, or above their thresholds."""
    settings, state, _, _, now_seconds = inputs
    met = [threshold.signal for threshold in state.thresholds_met]
    kept = tuple(
        one
        for one in state.slowdowns
        if RESOURCE[one.signal] not in ON_DISK
        or (now_seconds < one.until_seconds and any(map(shares_filesystem(one.signal, settings.layout), met)))
    )
    return inputs if kept == state.slowdowns else inputs.with_state(state._replace(slowdowns=kept))


def shares_filesystem(signal: Signal, layout: Layout) -> Callable[[Signal], bool]:
    """Return a predicate: whether another signal is about the same resource of the same filesystem."""
    place, resource = filesystems_of(signal, layout), RESOURCE[signal]
    return lambda other: filesystems_of(other, layout) == place and RESOURCE[other] is resource
