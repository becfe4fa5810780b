"""What victims have still to free: no other pod is evicted for it meanwhile.

The kubelet picks a second victim while the first is still freeing its memory (kubernetes/kubernetes#43166).
Here what a victim holds is credited to the node, until it is gone or its deadline has passed:

    POD              an evicted pod: what it is seen to hold
    ENDING_PROCESS   a process of a pod that was asked to end alone: what it held then
    FILES            shared memory and tmpfs that an evicted pod left, freed when the files are removed
    PROCESS          a process that was killed here alone: what of it has not come back
    KERNEL_KILL      the same of a victim of the kernel's OOM killer; it may be that only the kill is known
    STRUCK_POD       a pod whose cgroup counts a kill by the kernel of an unnamed process: what its largest
                     process may hold, for as long as the pod shrinks

What one owner is to free counts once, by whatever it is claimed: the larger counts, not the sum. Right
after an OOM kill nothing is available yet, although the victim alone may bring back all that is missing. If
only the kill is known, no pod is evicted while the node's available memory grows. If the pods' counters of
OOM kills rise again meanwhile, nothing is credited to these: what the kernel kills is taken again at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from reactor.model.decisions import Claim, ClaimKind, Inputs, PolicyState
from reactor.model.pods import Pod
from reactor.model.quantity import amount_text
from reactor.model.signals import FREED_TOGETHER, ON_DISK, RESOURCE, Resource
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.kill_results import hopeless
from reactor.policy.rank import of_no_partition, usage
from reactor.policy.thresholds import is_met

RATE_WINDOW_SECONDS: Final = 60.0
# A victim of which nothing is known is waited for as long as more comes back within this time. A process
# that waits for a CPU, or for its quota's next period, frees nothing for 100 ms and more.
STILL_SECONDS: Final = 0.25
# One that was killed here has no OOM reaper behind it: where the kernel can't end it (a filesystem that
# hangs), nothing comes back of it.
_STUCK_SECONDS: Final = 1.0
_EMPTY_SECONDS: Final = 0.02
GROWTH_BYTES: Final = 1 << 20  # what the cgroup of a pod keeps, such as kernel memory, is less
# Files in memory are freed when they are removed, which may be never. They keep other pods from being evicted
# only while at least the threshold divided by this is available.
_LEFT_SHARE: Final = 2
_PODS: Final = (ClaimKind.POD, ClaimKind.ENDING_PROCESS)
_PROCESSES: Final = (ClaimKind.PROCESS, ClaimKind.KERNEL_KILL)
_UNKNOWN: Final = "in flight: the kernel's OOM killer has killed a process whose memory is still being freed"


# What has come back.


def _seen(claim: Claim, available_bytes: int, now_seconds: float) -> Claim:
    """Return the claim of a killed process, with what has come back since that was first observed."""
    if claim.kind.is_eviction or is_struck(claim):
        return claim
    if claim.mark is None:
        return replace(claim, mark=available_bytes)
    if available_bytes <= claim.mark + GROWTH_BYTES:
        return claim
    return moved(claim, available_bytes, available_bytes - claim.mark, now_seconds)


def moved(claim: Claim, mark: int, by_bytes: int, now_seconds: float) -> Claim:
    return replace(claim, mark=mark, came_back=claim.came_back + by_bytes, progress_seconds=now_seconds)


def still_claimed(
    claims: Sequence[Claim], pods: Iterable[Pod], memory: Observation | None, now_seconds: float
) -> tuple[Claim, ...]:
    """Return the claims from which something is still expected, with what is available now recorded.

    A struck pod that has freed all is kept beside others that were killed alone: it was waited for.
    """
    if not claims:
        return ()
    present = {pod.uid for pod in pods}
    seen = claims if memory is None else [_seen(claim, memory.available, now_seconds) for claim in claims]
    kept: list[Claim] = []
    spent: list[Claim] = []
    for claim in seen:
        if _is_expected(claim, present, now_seconds):
            kept.append(claim)
        elif is_struck(claim):
            spent.append(replace(claim, amount=0))
    is_any_alone = spent and any(not claim.kind.is_eviction for claim in kept)
    return (*kept, *spent) if is_any_alone else tuple(kept)


def _is_expected(claim: Claim, present: Collection[str], now_seconds: float) -> bool:
    if now_seconds >= claim.deadline_seconds:
        return False
    still_seconds = now_seconds - claim.progress_seconds
    match claim.kind:
        case ClaimKind.FILES:
            return True
        case ClaimKind.POD | ClaimKind.ENDING_PROCESS:
            return claim.uid in present
        case ClaimKind.PROCESS:
            return still_seconds < _STUCK_SECONDS
        case ClaimKind.KERNEL_KILL:
            return claim.amount is not None or still_seconds < STILL_SECONDS
    return claim.left != 0 and still_seconds < STILL_SECONDS


# What is asked of the claims.


def is_dying(state: PolicyState) -> bool:
    """Return whether a pod that was evicted for memory, or a process of one, has not ended yet."""
    return any(claim.resource is Resource.MEMORY and claim.kind in _PODS for claim in state.claims)


def is_memory_awaited(state: PolicyState) -> bool:
    """Return whether a pod or a process is still freeing its memory."""
    return bool(state.killed_alone) or is_dying(state)


def are_unknown(state: PolicyState) -> bool:
    """Return whether a kill is waited for of which nothing is known, not even the pod."""
    return any(map(is_unknown, state.claims))


def struck_pods(state: PolicyState) -> tuple[str, ...]:
    """Return the pods, by uid, from which memory is expected since the kernel has killed in them."""
    return tuple(claim.uid for claim in state.claims if is_struck(claim) and claim.left and claim.uid)


def dying_bytes(state: PolicyState, uid: str) -> int:
    """Return what processes that were killed alone of a pod have still to free: it is not its own."""
    return sum(
        claim.left or 0 for claim in state.claims if claim.uid == uid and claim.kind is ClaimKind.PROCESS
    )


# Who may be chosen.
#
# The policy is asked about all pods but those that an eviction emptied or could not end. An evicted pod's
# cgroup may stay behind empty: it is left out until a process lives in it again. So is one that was found
# without a process, before its first one or between two. A pod whose kill failed is spared for a while, and
# the ranking says why. A pod that was evicted for a filesystem counts until its files are gone, also without
# a cgroup.


def eligible(state: PolicyState, pods: Sequence[Pod], now_seconds: float) -> Sequence[Pod]:
    """Return the pods to decide over, in their order; those that linger come last and are never chosen."""
    ineligible = state.ineligible
    if ineligible.emptied or ineligible.failed:
        failed = {uid: why for uid, (until, why) in ineligible.failed.items() if now_seconds < until}
        pods = tuple(_spared(pod, failed) for pod in pods if pod.uid not in ineligible.emptied)
    return with_lingering(state, pods, now_seconds)


def _spared(pod: Pod, failed: Mapping[str, str]) -> Pod:
    why = failed.get(pod.uid)
    if why is None or of_no_partition(pod).critical_because is not None:
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

    It is not if the same was found a moment ago: to choose again at once would go on for ever.
    """
    before_seconds = state.ineligible.found_empty.get(uid)
    return before_seconds is None or now_seconds - before_seconds >= _EMPTY_SECONDS


def candidates(inputs: Inputs, threshold: Threshold | None = None) -> tuple[Pod, ...]:
    """Return the pods that may be chosen: those that are not being evicted already.

    A hard threshold may also choose a pod in the grace period of a soft one: it is killed at once.
    """
    claims, now_seconds = inputs.state.claims, inputs.now_seconds
    if not claims:
        return tuple(inputs.pods)
    may_be_hurried = threshold is not None and threshold.is_hard
    taken = {
        claim.uid
        for claim in claims
        if claim.kind.is_eviction and not (may_be_hurried and claim.is_in_grace(now_seconds))
    }
    return tuple(pod for pod in inputs.pods if pod.uid not in taken)


def awaited(inputs: Inputs, threshold: Threshold) -> str | None:
    """Return which victims free what a threshold is short of, in words; None if that is not enough.

    An unknown amount is waited for. A hard threshold waits for no grace period and no pod that is `hopeless`.
    """
    state = inputs.state
    if not state.claims:
        return None
    resource, seen = RESOURCE[threshold.signal], inputs.seen(threshold)
    given_up = hopeless(inputs, threshold)
    claims = [
        claim
        for claim in state.claims
        if _is_on(claim, resource)
        if not (threshold.is_hard and claim.is_in_grace(inputs.now_seconds))
        if claim.uid not in given_up or claim.kind not in _PODS
    ]
    if not claims:
        return _swap_awaited(state, resource)
    named = [_pod_of(claim, inputs.pods) for claim in claims]
    found = [(claim, _left(inputs, claim, pod, threshold)) for claim, pod in zip(claims, named, strict=True)]
    if any(left is None for _, left in found):
        return _UNKNOWN
    amount, in_files = credited(found)
    if in_files and seen.available + amount >= threshold.value.of(seen.capacity) / _LEFT_SHARE:
        amount += in_files
    if not amount and resource in ON_DISK:
        # Files go some time after their pod, when they are removed: how much that frees is not known yet.
        return f"in flight: how much the eviction of {_names(claims, named)} frees is not known yet"
    after = seen._replace(available=min(seen.available + amount, seen.capacity))
    # A threshold that has been met lasts until its minimum reclaim is there too; so does the wait.
    if is_met(threshold, after, with_minimum_reclaim=True):
        return _swap_awaited(state, resource)
    return f"in flight: {amount_text(amount, resource)} still to be freed by {_names(claims, named)}"


def credited(found: Iterable[tuple[Claim, int | None]]) -> tuple[int, int]:
    """Return how much is credited to the node for claims of which so much is left (None: nothing is known).

    The second number is how much more the files are that are left in memory. One owner counts once, by the
    larger: its processes that were killed alone, or all of it.
    """
    processes, whole, files = dict[str, int](), dict[str, int](), dict[str, int]()
    for claim, known in found:
        owner, left = claim.uid or f"process {claim.pid}", known or 0
        if claim.kind in _PROCESSES:
            processes[owner] = processes.get(owner, 0) + left
        elif claim.kind is ClaimKind.FILES:
            files[owner] = files.get(owner, 0) + left
        else:
            whole[owner] = max(whole.get(owner, 0), left)
    certain = {owner: max(left, processes.get(owner, 0)) for owner, left in (processes | whole).items()}
    in_files = [max(0, left - certain.get(owner, 0)) for owner, left in files.items()]
    return sum(certain.values()), sum(in_files)


def _left(inputs: Inputs, claim: Claim, pod: Pod | None, threshold: Threshold) -> int | None:
    """Return how much is left of a claim: of a pod what it is seen to hold, 0 if that could not be read."""
    if claim.kind is not ClaimKind.POD:
        return claim.left
    if pod is None:
        return 0
    return usage(pod, inputs.snapshot.pods.get(pod.uid), threshold.signal, inputs.settings.layout) or 0


def _pod_of(claim: Claim, pods: Iterable[Pod]) -> Pod | None:
    """Return the pod that is to end, as it is now; as it was if it is not listed any more."""
    if claim.kind in _PODS:
        for pod in pods:  # a plain loop: a pass asks this for each pod that is being evicted
            if pod.uid == claim.uid:
                return pod
    return claim.pod


def _is_on(claim: Claim, resource: Resource) -> bool:
    """Return whether a claim is on a resource: a pod that ends has memory and swap, if evicted for either."""
    if claim.resource is resource:
        return True
    return {claim.resource, resource} <= FREED_TOGETHER and claim.kind.is_eviction


def _names(claims: Sequence[Claim], pods: Sequence[Pod | None]) -> str:
    """Return, in words, the victims that free what is claimed: processes first."""
    found = sorted(zip(claims, pods, strict=True), key=lambda one: one[0].kind.is_eviction)
    return ", ".join(_name(claim, pod) for claim, pod in found)


def _swap_awaited(state: PolicyState, resource: Resource) -> str | None:
    """Return whose swap is waited for: that of processes which were killed here alone of their pod."""
    if resource is not Resource.SWAP:
        return None
    names = [_name(claim, claim.pod) for claim in state.claims if claim.kind is ClaimKind.PROCESS]
    return f"in flight: how much swap the end of {', '.join(names)} frees is not known yet" if names else None


def _name(claim: Claim, pod: Pod | None) -> str:
    key = claim.uid if pod is None else pod.key
    match claim.kind:
        case ClaimKind.POD | ClaimKind.ENDING_PROCESS:
            return f"{key}"
        case ClaimKind.FILES:
            return f"{claim.uid} (its files in memory are not removed yet)"
        case ClaimKind.PROCESS:
            return f"process {claim.pid} of {key}"
    whose = f"pod {claim.uid}" if claim.pid is None else f"process {claim.pid}"
    return f"{whose} (killed by the kernel's OOM killer)"


def is_unknown(claim: Claim) -> bool:
    return claim.kind is ClaimKind.KERNEL_KILL and claim.pid is None


def is_struck(claim: Claim) -> bool:
    return claim.kind is ClaimKind.STRUCK_POD
