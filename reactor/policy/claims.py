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
OOM kills rise again meanwhile, nothing is credited to these: what the kernel kills is taken again at once,
and a pod has to be evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from reactor.model.decisions import Claim, ClaimKind, Eviction, PolicyState, ProcessKill, Snapshot
from reactor.model.kills import OomKill, OomScope, ProcessMemory
from reactor.model.pods import Pod, PodUsage
from reactor.model.quantity import amount_text
from reactor.model.settings import EvictionSettings
from reactor.model.signals import FREED_TOGETHER, ON_DISK, RESOURCE, Layout, Resource
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.disk_evictions import with_disk_eviction
from reactor.policy.rank import usage
from reactor.policy.storm import hopeless, with_kill, with_process_kill
from reactor.policy.thresholds import is_met

RATE_WINDOW_SECONDS: Final = 60.0
# A victim of which nothing is known is waited for as long as more comes back within this time. A process
# that waits for a CPU, or for its quota's next period, frees nothing for 100 ms and more.
STILL_SECONDS: Final = 0.25
# One that was killed here has no OOM reaper behind it: where the kernel can't end it (a filesystem that
# hangs), nothing comes back of it.
_STUCK_SECONDS: Final = 1.0
# A fork bomb at the node's limit loses a process every few milliseconds.
_RISING_SECONDS: Final = 1.0
_EMPTY_SECONDS: Final = 0.02
_GROWTH_BYTES: Final = 1 << 20  # what the cgroup of a pod keeps, such as kernel memory, is less
# Files in memory are freed when they are removed, which may be never. They keep other pods from being evicted
# only while at least the threshold divided by this is available.
_LEFT_SHARE: Final = 2
_PODS: Final = (ClaimKind.POD, ClaimKind.ENDING_PROCESS)
_PROCESSES: Final = (ClaimKind.PROCESS, ClaimKind.KERNEL_KILL)
_UNKNOWN: Final = "in flight: the kernel's OOM killer has killed a process whose memory is still being freed"


# What is claimed.


def record_eviction(
    settings: EvictionSettings,
    state: PolicyState,
    eviction: Eviction,
    now_seconds: float,
    *,
    snapshot: Snapshot | None = None,
    pods: Sequence[Pod] = (),
    held_bytes: int | None = None,
) -> PolicyState:
    """Return the state after an eviction was ordered: it is claimed, and counted against the rate.

    `snapshot` and `pods` are what it was decided on, by which it is judged afterwards, and `held_bytes` what
    the pod held when it was killed (None: not observed).
    """
    seen = snapshot or Snapshot()
    state = with_kill(settings, state, eviction, seen, pods, now_seconds, held_bytes)
    state = with_disk_eviction(settings, state, eviction, seen, pods, now_seconds)
    state = replace(state, evicted_at=_counted(state, now_seconds))
    return _ordered(settings, state, eviction, now_seconds)


def record_process_eviction(
    settings: EvictionSettings,
    state: PolicyState,
    eviction: Eviction,
    process: ProcessMemory,
    now_seconds: float,
    *,
    snapshot: Snapshot,
    pods: Sequence[Pod],
) -> PolicyState:
    """Return the state after the eviction of one process was ordered; the pod it was in lives on.

    If it is killed at once, what it held is claimed as that of a victim of the kernel's is. With a grace
    period it is so from its end on; until then it is the process that is to end.
    """
    used = snapshot.pods.get(eviction.pod.uid)
    state = with_process_kill(settings, state, eviction, snapshot, pods, now_seconds, process.resident_bytes)
    kill = ProcessKill(
        uid=eviction.pod.uid,
        at_seconds=now_seconds,
        held_bytes=process.resident_bytes,
        used_bytes=None if used is None else used.memory_working_set_bytes,
    )
    recent = (one for one in state.process_kills if now_seconds - one.at_seconds < RATE_WINDOW_SECONDS)
    state = replace(state, process_kills=(*recent, kill), evicted_at=_counted(state, now_seconds))
    if eviction.grace_period_seconds <= 0:
        return killed_process(settings, state, eviction.pod, process, now_seconds)
    return _ordered(settings, state, eviction, now_seconds, process.resident_bytes)


def _counted(state: PolicyState, now_seconds: float) -> tuple[float, ...]:
    recent = (at for at in state.evicted_at if now_seconds - at < RATE_WINDOW_SECONDS)
    return (*recent, now_seconds)


def _ordered(
    settings: EvictionSettings,
    state: PolicyState,
    eviction: Eviction,
    now_seconds: float,
    process_bytes: int | None = None,
) -> PolicyState:
    """Return the state with the claim of a pod that is to end, or of one process of it that holds so much."""
    is_whole = process_bytes is None
    kill_at_seconds = now_seconds + eviction.grace_period_seconds
    ordered = Claim(
        kind=ClaimKind.POD if is_whole else ClaimKind.ENDING_PROCESS,
        uid=eviction.pod.uid,
        resource=eviction.resource,
        kill_at_seconds=kill_at_seconds,
        deadline_seconds=kill_at_seconds + settings.in_flight_deadline_seconds,
        amount=process_bytes,
        pod=eviction.pod if is_whole and eviction.resource in ON_DISK else None,
        threshold=eviction.threshold,
    )
    others = called_off(state, eviction.pod.uid).claims
    return replace(state, claims=(*others, ordered))


def killed_process(
    settings: EvictionSettings, state: PolicyState, pod: Pod, process: ProcessMemory, now_seconds: float
) -> PolicyState:
    """Return the state after a process of a pod was killed: that is what is claimed, and not the pod."""
    claim = Claim(
        kind=ClaimKind.PROCESS,
        uid=pod.uid,
        amount=process.resident_bytes,
        progress_seconds=now_seconds,
        deadline_seconds=now_seconds + settings.in_flight_deadline_seconds,
        pid=process.pid,
        pod=pod,
    )
    others = exited(landed_process(state, pod.uid), {process.pid}).claims
    return replace(state, claims=(*others, claim))


def record_oom_kill(
    settings: EvictionSettings, state: PolicyState, kill: OomKill, uid: str | None, now_seconds: float
) -> PolicyState:
    """Return the state after the kernel has killed; `uid` is the victim's pod.

    A kill at a pod's own limit brings the node nothing that it could not have had before, and every
    tenant can cause one: it is not waited for. Nor is a second kill of which nothing is known while a first
    is waited for: the kernel may go on killing, and that must not put off an eviction for ever.
    """
    if kill.scope is OomScope.OWN_LIMIT:
        return state
    if kill.pid is None and (are_unknown(state) or _has_risen(state, now_seconds)):
        return state  # the counters of the pods show whether it was another kill
    if kill.pid is not None and any(claim.pid == kill.pid for claim in state.claims):
        return state
    claim = Claim(
        kind=ClaimKind.KERNEL_KILL,
        uid=uid,
        amount=None if kill.pid is None else kill.victim_bytes,
        progress_seconds=now_seconds,
        deadline_seconds=now_seconds + settings.in_flight_deadline_seconds,
        pid=kill.pid,
    )
    return replace(state, claims=(*state.claims, claim))


def found_in_pods(
    settings: EvictionSettings,
    state: PolicyState,
    held_bytes: Mapping[str, int],
    now_seconds: float,
    largest_bytes: Mapping[str, int] | None = None,
) -> PolicyState:
    """Return the state once the pods are known in which the kernel has killed, with what they hold, by uid.

    They take the place of the kills of which nothing was known. `largest_bytes` is the most that one process
    of each may hold (absent: all that the pod does). What a pod holds that is being evicted for memory is
    claimed already.
    If there were kills in pods a moment ago, or one is still waited for, the kernel goes on killing, and no
    such pod is waited for.
    """
    known = tuple(claim for claim in state.claims if not _is_unknown(claim))
    is_rising = _has_risen(state, now_seconds) or any(_is_struck(claim) and claim.left for claim in known)
    deadline_seconds = min(
        (claim.deadline_seconds for claim in state.killed_alone),
        default=now_seconds + settings.in_flight_deadline_seconds,
    )
    state = replace(state, claims=known, oom_struck_at_seconds=now_seconds)
    if is_rising:
        return replace(state, claims=tuple(claim for claim in known if not _is_struck(claim)))
    passed_over = {claim.uid for claim in known if claim.resource is Resource.MEMORY}
    most_bytes = {**held_bytes, **(largest_bytes or {})}
    found = tuple(
        Claim(
            kind=ClaimKind.STRUCK_POD,
            uid=uid,
            amount=min(pod_bytes, most_bytes[uid]) if pod_bytes >= _GROWTH_BYTES else 0,
            mark=pod_bytes,
            progress_seconds=now_seconds,
            deadline_seconds=deadline_seconds,
        )
        for uid, pod_bytes in held_bytes.items()
        if uid not in passed_over
    )
    return replace(state, claims=(*known, *found))


# What has come back.


def _kept(state: PolicyState, is_kept: Callable[[Claim], bool]) -> PolicyState:
    return replace(state, claims=tuple(filter(is_kept, state.claims)))


def called_off(state: PolicyState, uid: str) -> PolicyState:
    """Return the state with nothing expected of a pod's eviction."""
    return _kept(state, lambda one: one.uid != uid or not one.kind.is_eviction)


def landed_process(state: PolicyState, uid: str) -> PolicyState:
    """Return the state with no process of the pod in its grace period any more."""
    return _kept(state, lambda one: one.uid != uid or one.kind is not ClaimKind.ENDING_PROCESS)


def landed(state: PolicyState, uid: str, files_bytes: int) -> PolicyState:
    """Return the state after an evicted pod has ended: what is expected of it are its files in memory."""
    found = []
    for claim in state.claims:
        if claim.uid != uid or not claim.kind.is_eviction:
            found.append(claim)
        elif files_bytes and claim.resource is Resource.MEMORY:
            found.append(replace(claim, kind=ClaimKind.FILES, amount=files_bytes))
    return replace(state, claims=tuple(found))


def with_files(state: PolicyState, left_bytes: Callable[[str, int], int]) -> PolicyState:
    """Return the state with what is left of files in memory, by their pod's uid and what was left before."""
    found = []
    for claim in state.claims:
        if claim.kind is not ClaimKind.FILES:
            found.append(claim)
        elif amount := left_bytes(claim.uid or "", claim.amount or 0):
            found.append(replace(claim, amount=amount))
    return replace(state, claims=tuple(found))


def exited(state: PolicyState, pids: Collection[int]) -> PolicyState:
    """Return the state after processes that were killed have exited: their memory is back."""
    return _kept(state, lambda one: one.pid not in pids)


def with_held_by_pods(
    state: PolicyState, held_bytes: Mapping[str, int | None], now_seconds: float
) -> PolicyState:
    """Return the state with what the struck pods hold now, by uid; None: it could not be read.

    What a pod has taken again is no memory that a victim frees.
    """
    claims = (_holding(claim, held_bytes.get(claim.uid or ""), now_seconds) for claim in state.claims)
    return replace(state, claims=tuple(claims))


def _holding(claim: Claim, held_bytes: int | None, now_seconds: float) -> Claim:
    before_bytes = claim.mark or 0
    if held_bytes is None or not _is_struck(claim):
        return claim
    if held_bytes < _GROWTH_BYTES:
        return replace(claim, amount=0)
    if held_bytes >= before_bytes - _GROWTH_BYTES:
        return claim
    return _moved(claim, held_bytes, before_bytes - held_bytes, now_seconds)


def _seen(claim: Claim, available_bytes: int, now_seconds: float) -> Claim:
    """Return the claim of a killed process, with what has come back since that was first observed."""
    if claim.kind.is_eviction or _is_struck(claim):
        return claim
    if claim.mark is None:
        return replace(claim, mark=available_bytes)
    if available_bytes <= claim.mark + _GROWTH_BYTES:
        return claim
    return _moved(claim, available_bytes, available_bytes - claim.mark, now_seconds)


def _moved(claim: Claim, mark: int, by_bytes: int, now_seconds: float) -> Claim:
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
        elif _is_struck(claim):
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
    return any(map(_is_unknown, state.claims))


def struck_pods(state: PolicyState) -> tuple[str, ...]:
    """Return the pods, by uid, from which memory is expected since the kernel has killed in them."""
    return tuple(claim.uid for claim in state.claims if _is_struck(claim) and claim.left and claim.uid)


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


def candidates(
    pods: Iterable[Pod], state: PolicyState, threshold: Threshold | None, now_seconds: float
) -> tuple[Pod, ...]:
    """Return the pods that may be chosen: those that are not being evicted already.

    A hard threshold may also choose a pod in the grace period of a soft one: it is killed at once.
    """
    if not state.claims:
        return tuple(pods)
    may_be_hurried = threshold is not None and threshold.is_hard
    taken = {
        claim.uid
        for claim in state.claims
        if claim.kind.is_eviction and not (may_be_hurried and claim.is_in_grace(now_seconds))
    }
    return tuple(pod for pod in pods if pod.uid not in taken)


def awaited(
    settings: EvictionSettings,
    state: PolicyState,
    threshold: Threshold,
    seen: Observation,
    pods: Sequence[Pod],
    used: Mapping[str, PodUsage],
    now_seconds: float,
) -> str | None:
    """Return which victims free what a threshold is short of, in words; None if that is not enough.

    `used` is the pods' present usage, by uid. If an unknown amount comes back, it is waited for. A hard
    threshold waits for no grace period, and for no pod that is `hopeless`.
    """
    if not state.claims:
        return None
    resource = RESOURCE[threshold.signal]
    given_up = hopeless(state, threshold, seen, pods, used, now_seconds)
    claims = [
        claim
        for claim in state.claims
        if _is_on(claim, resource)
        if not (threshold.is_hard and claim.is_in_grace(now_seconds))
        if claim.uid not in given_up or claim.kind not in _PODS
    ]
    if not claims:
        return _swap_awaited(state, resource)
    named = [_pod_of(claim, pods) for claim in claims]
    found = [
        (claim, _left(claim, pod, threshold, settings.layout, used))
        for claim, pod in zip(claims, named, strict=True)
    ]
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


def _left(
    claim: Claim, pod: Pod | None, threshold: Threshold, layout: Layout, used: Mapping[str, PodUsage]
) -> int | None:
    """Return how much is left of a claim: of a pod what it is seen to hold, 0 if that could not be read."""
    if claim.kind is not ClaimKind.POD:
        return claim.left
    return 0 if pod is None else usage(pod, used.get(pod.uid), threshold.signal, layout) or 0


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


def _has_risen(state: PolicyState, now_seconds: float) -> bool:
    """Return whether the pods' counters of OOM kills have risen a moment ago."""
    at_seconds = state.oom_struck_at_seconds
    return at_seconds is not None and now_seconds - at_seconds < _RISING_SECONDS


def _is_unknown(claim: Claim) -> bool:
    return claim.kind is ClaimKind.KERNEL_KILL and claim.pid is None


def _is_struck(claim: Claim) -> bool:
    return claim.kind is ClaimKind.STRUCK_POD
