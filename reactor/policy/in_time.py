"""Soft memory evictions that come before their grace period is over, because the hard threshold would.

With `softEviction: inTime` such a soft threshold is due: the first in the ranking is asked to end with the
time that is left. The later it is asked, the more often a fall has stopped by itself by then. So it is asked
once no more is left than it needs to end, and upstream's grace period holds until then. What it needs:

    known       the longest of the last endings of the same work
    not known   half of the time between the thresholds: as long as the soft one has been met
    at most     what it is allowed: its termination grace period, capped as upstream caps it

A further one within the pause after an eviction (holds.py) comes sooner likewise: at once.

Only a forecast counts that has held for a moment, and whose slowest likely rate crosses within the grace
period. A tenant writes how long its pods take to end, and their names: with either it has its own pods asked
sooner or later, within the same cap, and the crossing kills at once as ever.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from reactor.model.decisions import Inputs, PolicyState, TimeLeft, Wait
from reactor.model.pods import Pod
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Signal
from reactor.model.thresholds import Threshold
from reactor.policy.holds import is_soft_memory, soft_pause_end

_FRESH_SECONDS: Final = 1.0
# Found by tests/soak/in_time.py. What is needed has no margin: it is compared with the earliest crossing,
# which is a tenth too early for a steady fall.
_REACTION_SECONDS: Final = 0.1  # a pass and a signal; a sample is taken when it is due
_HELD_SHARE: Final = 0.2  # of the time left but the last moments, for which the forecast has to have held
_LAST_SECONDS: Final = 0.4
_HELD_SECONDS: Final = 1.5
_ENDINGS: Final = 4
_MOST_SECONDS: Final = 86_400.0
_WORKS: Final = 128
_CUT: Final = 2.0  # what was killed before it had ended needs so many times as long, as far as is known
# A pod of a Deployment is NAME-HASH-SUFFIX, one of a DaemonSet or a Job NAME-SUFFIX, in letters of its own.
_GENERATED: Final = re.compile(r"(?:-[bcdfghjklmnpqrstvwxz2456789]{6,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$")


def due_in_time(
    settings: EvictionSettings, state: PolicyState, time_left: Mapping[Signal, TimeLeft], now_seconds: float
) -> dict[Threshold, TimeLeft]:
    """Return the soft thresholds due before their grace period or a pause is over, with the time left.

    Only asked with `soft_in_time`. Of those in `state.waits` the pod that ranks first is known to need less.
    """
    waiting = {
        one.threshold
        for one in state.waits
        if one.at_seconds <= now_seconds < one.until_seconds
        and spare_seconds(one.needed_seconds, time_left.get(one.threshold.signal)) > 0
    }
    pause_end = soft_pause_end(settings, state)
    return {
        threshold: left
        for threshold, since in state.first_observed.items()
        if is_soft_memory(threshold)
        and (left := time_left.get(threshold.signal)) is not None
        and _is_due(settings, left, max(since + threshold.grace_period_seconds, pause_end), now_seconds)
        and threshold not in waiting
    }


def _is_due(settings: EvictionSettings, left: TimeLeft, end_seconds: float, now_seconds: float) -> bool:
    can_end = settings.max_pod_grace_period_seconds != 0  # else sooner would be no gentler
    if not can_end or left.latest_seconds is None or left.earliest_seconds is None:
        return False
    age_seconds = now_seconds - left.at_seconds
    wanted_seconds = min(_HELD_SECONDS, _HELD_SHARE * (left.earliest_seconds - _LAST_SECONDS))
    is_in_time = max(0.0, left.latest_seconds - age_seconds) < end_seconds - now_seconds
    return left.held_seconds >= wanted_seconds and is_in_time and 0 <= age_seconds <= _FRESH_SECONDS


def spare_seconds(needed_seconds: float, left: TimeLeft | None) -> float:
    """Return how much more time is left, at the least, than is needed."""
    return (0.0 if left is None else left.earliest_seconds or 0.0) - needed_seconds


def wait_in_time(inputs: Inputs, threshold: Threshold, pod: Pod, left: TimeLeft) -> Wait | None:
    """Return why a pod is not asked to end yet though a threshold is due; None if it is asked now."""
    state, now_seconds = inputs.state, inputs.now_seconds
    passed_seconds = now_seconds - state.first_observed.get(threshold, now_seconds)
    needed_seconds = needed(inputs.settings, state.endings, pod, passed_seconds)
    spare = spare_seconds(needed_seconds, left)
    if spare <= 0 or passed_seconds >= threshold.grace_period_seconds:
        return None
    # By then another may rank first, and what is needed may have grown as fast as what is left shrinks.
    return Wait(
        threshold=threshold,
        uid=pod.uid,
        needed_seconds=needed_seconds,
        at_seconds=now_seconds,
        until_seconds=now_seconds + min(_FRESH_SECONDS, spare / 2),
    )


def allowed_seconds(settings: EvictionSettings, pod: Pod) -> int:
    """Return how long a pod may take to end in a soft eviction."""
    most, own = settings.max_pod_grace_period_seconds, pod.termination_grace_period_seconds
    return own if most < 0 else min(most, own)


def grace_period_seconds(settings: EvictionSettings, pod: Pod, left: TimeLeft | None) -> int:
    """Return how long it is given: with `left` no more than that, since the crossing kills it at once."""
    allowed = allowed_seconds(settings, pod)
    return allowed if left is None else min(allowed, max(1, math.ceil(left.latest_seconds or 0.0)))


def needed(
    settings: EvictionSettings, endings: Mapping[str, tuple[float, ...]], pod: Pod, passed_seconds: float
) -> float:
    """Return with how much time left a pod is asked to end; the soft threshold has been met for so long."""
    last = endings.get(work_of(pod), (passed_seconds,))
    return min(max(last), allowed_seconds(settings, pod)) + _REACTION_SECONDS


def work_of(pod: Pod) -> str:
    """Return what all pods are called by that do the same: without the parts of names that are generated."""
    if "@" in pod.name:  # instances of a unit
        name, _, instance = pod.name.partition("@")
        return f"{pod.namespace}/{name}@{''.join(instance.rpartition('.')[1:]) if '.' in instance else ''}"
    return f"{pod.namespace}/{_GENERATED.sub('', pod.name)}"


def with_ending(
    endings: Mapping[str, tuple[float, ...]], pod: Pod, seconds: float, *, was_cut: bool
) -> Mapping[str, tuple[float, ...]]:
    """Return the endings with one more, of the works that ended last; `was_cut`: it was killed before.

    One that was killed no later than its work is known to end says nothing of what it needs.
    """
    work = work_of(pod)
    last = endings.get(work, ())
    if not was_cut or seconds > max(last, default=-math.inf):
        last = (*last, min(_CUT * seconds if was_cut else seconds, _MOST_SECONDS))[-_ENDINGS:]
    kept = [(key, value) for key, value in endings.items() if key != work]
    return dict([*kept[-(_WORKS - 1) :], (work, last)])
