"""Which pods the policy is asked about: all but those that an eviction emptied or could not end.

An evicted pod's cgroup may stay behind empty: it is left out until a process lives in it again. So is one
that was found without a process, before its first one or between two. A pod whose kill failed is spared for
a while, and the ranking says why. A pod that was evicted for a filesystem counts until its files are gone,
also without a cgroup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from reactor.model.decisions import PolicyState
from reactor.model.pods import Pod

_EMPTY_SECONDS: Final = 0.02


def eligible(state: PolicyState, pods: Sequence[Pod], now_seconds: float) -> Sequence[Pod]:
    """Return the pods to decide over, in their order; those that linger come last and are never chosen."""
    ineligible = state.ineligible
    if ineligible.emptied or ineligible.failed:
        failed = {uid: why for uid, (until, why) in ineligible.failed.items() if now_seconds < until}
        pods = tuple(_spared(pod, failed) for pod in pods if pod.uid not in ineligible.emptied)
    return with_lingering(state, pods, now_seconds)


def _spared(pod: Pod, failed: Mapping[str, str]) -> Pod:
    why = failed.get(pod.uid)
    if why is None or pod.critical_because is not None:
        return pod
    return replace(pod, critical_because=f"could not be ended: {why}", could_not_be_ended=True)


def lingering(state: PolicyState, now_seconds: float) -> dict[str, Pod]:
    """Return by uid the pods that were evicted for a filesystem and whose files may still be there.

    A killed pod's memory comes back by itself; its files go when the kubelet or its unit removes them.
    """
    return {
        claim.pod.uid: claim.pod
        for claim in state.in_flight
        if claim.pod is not None and now_seconds < claim.deadline_seconds
    }


def with_lingering(state: PolicyState, pods: Sequence[Pod], now_seconds: float) -> Sequence[Pod]:
    """Return the pods, and those that linger and are not among them."""
    held = lingering(state, now_seconds) if state.claims else {}
    if not held:
        return pods
    uids = {pod.uid for pod in pods}
    return (*pods, *(pod for uid, pod in held.items() if uid not in uids))


def is_newly_empty(state: PolicyState, uid: str, now_seconds: float) -> bool:
    """Return whether it is news that there is no process in this pod.

    It is not if the same was found a moment ago: then processes come and go there, and to choose again at
    once would go on for ever.
    """
    before_seconds = state.ineligible.found_empty.get(uid)
    return before_seconds is None or now_seconds - before_seconds >= _EMPTY_SECONDS
