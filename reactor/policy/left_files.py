"""Files in memory that a unit's earlier run has left: they count as what the unit uses when it runs again.

A pod's cgroup holds the tmpfs and shared memory that its containers wrote, also while one of them restarts.
A unit that is evicted and started again has another cgroup by the same path, and what it left is charged to
no pod. It would cross the threshold again while it is still small, and others that hold more would be evicted
in its place, one at each of its restarts.

Evicting it brings back little of all that. So it goes before the others only while there is half of the
threshold; below, memory has to come from the pods that hold it, before the kernel takes it from any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reactor.model.decisions import HardMemoryKill, PolicyState
from reactor.model.pods import Pod, PodUsage
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.outside import memory_outside_pods, noise_bytes

# Files in memory are freed when they are removed, which may be never. They keep other pods from being evicted
# only while at least the threshold divided by this is available.
LEFT_SHARE = 2
_LEFT_SECONDS = 600.0  # after that, what is outside the pods may as well be anyone's


def charged_bytes_by_uid(
    state: PolicyState,
    threshold: Threshold,
    seen: Observation,
    pods: Sequence[Pod],
    used: Mapping[str, PodUsage],
    now_seconds: float,
) -> Mapping[str, int]:
    """Return what is added to the pods' usage where one is to be evicted for this threshold, by uid."""
    if not state.hard_memory_kills or seen.available < threshold.value.of(seen.capacity) / LEFT_SHARE:
        return {}
    return left_bytes_by_uid(state, threshold.signal, seen, pods, used, now_seconds)


def left_bytes_by_uid(
    state: PolicyState,
    signal: Signal,
    seen: Observation,
    pods: Sequence[Pod],
    used: Mapping[str, PodUsage],
    now_seconds: float,
) -> Mapping[str, int]:
    """Return how much of the memory outside the pods each pod's earlier run has left, by uid.

    It is no more than the killed run had in shared memory and tmpfs, and no more than what is used outside
    the pods beyond what was used there before it. A pod that has left nothing is absent; so is each where
    the memory of any pod was not observed.
    """
    left = last_kills(state, signal, now_seconds)
    heirs = [(pod, left[pod.cgroup]) for pod in pods if pod.cgroup in left] if left else []
    heirs = [(pod, kill) for pod, kill in heirs if pod.uid != kill.uid]
    if not heirs:
        return {}
    dying = [flight.uid for flight in state.in_flight if now_seconds >= flight.kill_at_seconds]
    outside_bytes = memory_outside_pods(seen, pods, used, gone=dying)
    if outside_bytes is None:
        return {}
    found = {pod.uid: _still_left(kill, outside_bytes) for pod, kill in heirs}
    return {uid: left_bytes for uid, left_bytes in found.items() if left_bytes >= noise_bytes(seen.capacity)}


def last_kills(state: PolicyState, signal: Signal, now_seconds: float) -> Mapping[str | None, HardMemoryKill]:
    """Return the last kill in each cgroup whose pod had shared memory or tmpfs, by cgroup."""
    return {
        kill.cgroup: kill
        for kill in state.hard_memory_kills
        if kill.shared_bytes and kill.signal is signal and now_seconds - kill.at_seconds < _LEFT_SECONDS
    }


def _still_left(kill: HardMemoryKill, outside_bytes: int) -> int:
    before_bytes = outside_bytes if kill.before_bytes is None else kill.before_bytes
    return min(kill.shared_bytes, max(0, outside_bytes - before_bytes))
