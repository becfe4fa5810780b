"""How claims come about and go: what each event (events.py) does to them. Their kinds: claims.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from reactor.model.decisions import Claim, ClaimKind, Eviction, PolicyState, Snapshot
from reactor.model.kills import OomKill, OomScope, ProcessKill, ProcessMemory
from reactor.model.pods import Pod
from reactor.model.settings import EvictionSettings
from reactor.model.signals import ON_DISK, Resource
from reactor.policy.claims import (
    GROWTH_BYTES,
    RATE_WINDOW_SECONDS,
    are_unknown,
    is_struck,
    is_unknown,
    moved,
)
from reactor.policy.disk_evictions import with_disk_eviction
from reactor.policy.kill_results import with_kill, with_process_kill

# A fork bomb at the node's limit loses a process every few milliseconds.
_RISING_SECONDS: Final = 1.0


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
    known = tuple(claim for claim in state.claims if not is_unknown(claim))
    is_rising = _has_risen(state, now_seconds) or any(is_struck(claim) and claim.left for claim in known)
    deadline_seconds = min(
        (claim.deadline_seconds for claim in state.killed_alone),
        default=now_seconds + settings.in_flight_deadline_seconds,
    )
    state = replace(state, claims=known, oom_struck_at_seconds=now_seconds)
    if is_rising:
        return replace(state, claims=tuple(claim for claim in known if not is_struck(claim)))
    passed_over = {claim.uid for claim in known if claim.resource is Resource.MEMORY}
    most_bytes = {**held_bytes, **(largest_bytes or {})}
    found = tuple(
        Claim(
            kind=ClaimKind.STRUCK_POD,
            uid=uid,
            amount=min(pod_bytes, most_bytes[uid]) if pod_bytes >= GROWTH_BYTES else 0,
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
    if held_bytes is None or not is_struck(claim):
        return claim
    if held_bytes < GROWTH_BYTES:
        return replace(claim, amount=0)
    if held_bytes >= before_bytes - GROWTH_BYTES:
        return claim
    return moved(claim, held_bytes, before_bytes - held_bytes, now_seconds)


def _has_risen(state: PolicyState, now_seconds: float) -> bool:
    """Return whether the pods' counters of OOM kills have risen a moment ago."""
    at_seconds = state.oom_struck_at_seconds
    return at_seconds is not None and now_seconds - at_seconds < _RISING_SECONDS
