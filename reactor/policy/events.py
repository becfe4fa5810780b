"""What changes the state between two passes. Each event says what it does to it; nothing else writes it.

The daemon, the simulator and the tests apply the same events. An event carries what was observed, and no
conclusion: what follows from it is the policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from reactor.model.decisions import Claim, ClaimKind, Eviction, Ineligible, Inputs, PolicyState, Snapshot
from reactor.model.kills import OomKill, OomScope, ProcessKill, ProcessMemory
from reactor.model.pods import Pod, working_set_bytes
from reactor.model.settings import EvictionSettings
from reactor.model.signals import ON_DISK, Reclaim, Resource, Signal
from reactor.policy.claims import GROWTH_BYTES, RATE_WINDOW_SECONDS, are_unknown, is_struck, is_unknown, moved
from reactor.policy.decide import decide
from reactor.policy.holds import over
from reactor.policy.in_time import with_ending
from reactor.policy.judged_evictions import with_judged_eviction
from reactor.policy.kill_results import with_kill, with_left

FAILED_SECONDS: Final = 30.0
_LEFT_BYTES: Final = 64 << 10  # a shortage may be as small
_GROWN_BYTES: Final = 8 << 20
# A fork bomb at the node's limit loses a process every few milliseconds.
_RISING_SECONDS: Final = 1.0


class Event(Protocol):
    """Something that happened, or was observed, between two decisions."""

    def after(self, settings: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        """Return the state after it."""


def apply(settings: EvictionSettings, state: PolicyState, event: Event, now_seconds: float) -> PolicyState:
    """Return the state after an event: beside `decide` the only way in which it changes."""
    return event.after(settings, state, now_seconds)


# Evictions.


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionOrdered:
    """A pod was killed, or asked to end. `snapshot` and `pods` are what was decided on.

    `held_bytes` is what the pod held when it was killed (None: not observed).
    """

    eviction: Eviction
    snapshot: Snapshot = field(default_factory=Snapshot)
    pods: Sequence[Pod] = ()
    held_bytes: int | None = None

    def after(self, settings: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        """Return the state in which it is claimed, and counted against the rate.

        It is judged afterwards by what it was decided on.
        """
        eviction = self.eviction
        inputs = Inputs(settings, state, self.snapshot, self.pods, now_seconds)
        inputs = inputs.with_state(with_kill(inputs, eviction, self.held_bytes))
        state = with_judged_eviction(inputs, eviction)
        state = state._replace(evicted_at=_counted(state, now_seconds))
        return _ordered(settings, state, eviction, now_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEvictionOrdered:
    """One process of a pod was killed, or asked to end; the pod lives on."""

    eviction: Eviction
    process: ProcessMemory
    snapshot: Snapshot
    pods: Sequence[Pod]

    def after(self, settings: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        """Return the state in which the process is claimed, and counted against the rate.

        If it is killed at once, what it held is claimed as that of a victim of the kernel's is. With a grace
        period it is so from its end on; until then it is the process that is to end.
        """
        eviction, process = self.eviction, self.process
        held_bytes = process.resident_bytes
        inputs = Inputs(settings, state, self.snapshot, self.pods, now_seconds)
        state = with_kill(inputs, eviction, process_bytes=held_bytes)
        kill = ProcessKill(
            uid=eviction.pod.uid,
            at_seconds=now_seconds,
            held_bytes=held_bytes,
            used_bytes=working_set_bytes(self.snapshot.pods, eviction.pod.uid),
        )
        recent = (one for one in state.process_kills if now_seconds - one.at_seconds < RATE_WINDOW_SECONDS)
        state = state._replace(process_kills=(*recent, kill), evicted_at=_counted(state, now_seconds))
        if eviction.grace_period_seconds <= 0:
            killed = ProcessKilled(pod=eviction.pod, process=process)
            return killed.after(settings, state, now_seconds)
        return _ordered(settings, state, eviction, now_seconds, held_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKilled:
    """A process of a pod was killed at the end of its grace period."""

    pod: Pod
    process: ProcessMemory

    def after(self, settings: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        """Return the state in which the process is claimed, and not the pod."""
        claim = Claim(
            kind=ClaimKind.PROCESS,
            uid=self.pod.uid,
            amount=self.process.resident_bytes,
            progress_seconds=now_seconds,
            deadline_seconds=now_seconds + settings.in_flight_deadline_seconds,
            pid=self.process.pid,
            pod=self.pod,
        )
        others = _kept(
            ProcessOver(uid=self.pod.uid).after(settings, state, now_seconds),
            lambda one: one.pid != self.process.pid,
        ).claims
        return state._replace(claims=(*others, claim))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOver:
    """Nothing more is done to a process of the pod, which lives on."""

    uid: str

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        return _kept(state, lambda one: one.uid != self.uid or one.kind is not ClaimKind.ENDING_PROCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingObserved:
    """A pod, or a process of it, that was asked to end has done so after so long.

    `was_cut`: it was killed before it had.
    """

    pod: Pod
    seconds: float
    was_cut: bool = False

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        """Return the state in which that is known of the pod's work."""
        endings = with_ending(state.endings, self.pod, self.seconds, was_cut=self.was_cut)
        return state._replace(endings=endings)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionFailed:
    """A pod could not be killed."""

    uid: str
    why: str

    def after(self, _: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        """Return the state in which the pod is spared for a while."""
        failed = {**state.ineligible.failed, self.uid: (now_seconds + FAILED_SECONDS, self.why)}
        return state._replace(ineligible=state.ineligible._replace(failed=failed))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionCalledOff:
    """A pod is not killed after its grace period."""

    uid: str

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        return _not_evicted(state, self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEmptied:
    """No process is left in an evicted pod; what it took may still be counted.

    With `was_found` there was none when the pod was to be killed, or prepared for that.
    """

    uid: str
    was_found: bool = False

    def after(self, _: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        """Return the state in which the pod is not chosen until a process lives in it again."""
        emptied, found_empty = state.ineligible.emptied | {self.uid}, state.ineligible.found_empty
        if self.was_found:
            found_empty = {**found_empty, self.uid: now_seconds}
        return state._replace(ineligible=state.ineligible._replace(emptied=emptied, found_empty=found_empty))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnded:
    """An evicted pod has ended, and nothing of it is counted but its files in memory.

    `files_bytes` are these files, `held_bytes` is what stays charged to its cgroup (None: that is gone).
    """

    uid: str
    files_bytes: int = 0
    held_bytes: int | None = None

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        """Return the state with nothing expected of the pod but its files in memory."""
        files_bytes = self.files_bytes if self.files_bytes >= _LEFT_BYTES else 0
        found = []
        for claim in state.claims:
            if claim.uid != self.uid or not claim.kind.is_eviction:
                found.append(claim)
            elif files_bytes and claim.resource is Resource.MEMORY:
                found.append(replace(claim, kind=ClaimKind.FILES, amount=files_bytes))
        state = state._replace(claims=tuple(found))
        return state if self.held_bytes is None else with_left(state, self.uid, self.held_bytes)


# What is seen of claims and of pods.


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesInMemoryObserved:
    """What pods that have ended hold, by uid: files in memory, and `own_bytes` besides page cache.

    A pod that is absent holds nothing.
    """

    files_bytes: Mapping[str, int]
    own_bytes: Mapping[str, int]

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        """Return the state with what is left of the files.

        Nothing is expected of a pod that lives again and has grown: until then a kill frees little of it.
        """
        found = []
        for claim in state.claims:
            if claim.kind is not ClaimKind.FILES:
                found.append(claim)
            elif amount := self._left_bytes(claim.uid or "", claim.amount or 0):
                found.append(replace(claim, amount=amount))
        return state._replace(claims=tuple(found))

    def _left_bytes(self, uid: str, before_bytes: int) -> int:
        files_bytes = self.files_bytes.get(uid, 0)
        has_grown = self.own_bytes.get(uid, 0) > before_bytes + _GROWN_BYTES
        return 0 if files_bytes < _LEFT_BYTES or has_grown else min(files_bytes, before_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossingServed:
    """The kernel has killed at a crossing by a decision that it was given: `snapshot` is what was so at it.

    The victim is dying, or gone, and its memory coming back: the node was short of it all the same.
    """

    snapshot: Snapshot
    pods: Sequence[Pod]

    def after(self, settings: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        """Return the state as observed at the crossing; no reclaim comes before what was carried out."""
        settings = replace(settings, reclaims_memory=False)
        return decide(settings, state, self.snapshot, self.pods, now_seconds)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelKilled:
    """The kernel's OOM killer has killed; `uid` is the victim's pod (None: it has none, or is not known)."""

    kill: OomKill
    uid: str | None

    def after(self, settings: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        """Return the state in which the victim's memory is awaited.

        A kill at a pod's own limit brings the node nothing that it could not have had before, and every
        tenant can cause one: it is not waited for. Nor is a second kill of which nothing is known while a
        first is waited for: the kernel may go on killing, and that must not put off an eviction for ever.
        """
        kill = self.kill
        if kill.scope is OomScope.OWN_LIMIT:
            return state
        if kill.pid is None and (are_unknown(state) or _has_risen(state, now_seconds)):
            return state  # the counters of the pods show whether it was another kill
        if kill.pid is not None and any(claim.pid == kill.pid for claim in state.claims):
            return state
        claim = Claim(
            kind=ClaimKind.KERNEL_KILL,
            uid=self.uid,
            amount=None if kill.pid is None else kill.victim_bytes,
            progress_seconds=now_seconds,
            deadline_seconds=now_seconds + settings.in_flight_deadline_seconds,
            pid=kill.pid,
        )
        return state._replace(claims=(*state.claims, claim))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsStruck:
    """The kernel has killed in these pods, and named no victim. By uid: what they hold without page cache.

    `largest_bytes` is the most that one process of each may hold (absent: all that the pod does).
    """

    held_bytes: Mapping[str, int]
    largest_bytes: Mapping[str, int] = field(default_factory=dict)

    def after(self, settings: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        """Return the state in which they take the place of the kills of which nothing was known.

        What a pod holds that is being evicted for memory is claimed already.
        If there were kills in pods a moment ago, or one is still waited for, no such pod is waited for.
        """
        known = tuple(claim for claim in state.claims if not is_unknown(claim))
        is_rising = _has_risen(state, now_seconds) or any(is_struck(claim) and claim.left for claim in known)
        deadline_seconds = min(
            (claim.deadline_seconds for claim in state.killed_alone),
            default=now_seconds + settings.in_flight_deadline_seconds,
        )
        state = state._replace(claims=known, oom_struck_at_seconds=now_seconds)
        if is_rising:
            return state._replace(claims=tuple(claim for claim in known if not is_struck(claim)))
        passed_over = {claim.uid for claim in known if claim.resource is Resource.MEMORY}
        most_bytes = {**self.held_bytes, **self.largest_bytes}
        found = tuple(
            Claim(
                kind=ClaimKind.STRUCK_POD,
                uid=uid,
                amount=min(pod_bytes, most_bytes[uid]) if pod_bytes >= GROWTH_BYTES else 0,
                mark=pod_bytes,
                progress_seconds=now_seconds,
                deadline_seconds=deadline_seconds,
            )
            for uid, pod_bytes in self.held_bytes.items()
            if uid not in passed_over
        )
        return state._replace(claims=(*known, *found))


@dataclass(frozen=True, slots=True, kw_only=True)
class StruckPodsObserved:
    """What pods hold now in which the kernel has killed, by uid (None: it could not be read)."""

    held_bytes: Mapping[str, int | None]

    def after(self, _: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        """Return the state with that; what a pod has taken again is no memory that a victim frees."""
        claims = (
            _holding(claim, self.held_bytes.get(claim.uid or ""), now_seconds) for claim in state.claims
        )
        return state._replace(claims=tuple(claims))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesExited:
    """Killed processes have exited: their memory is back."""

    pids: frozenset[int]

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        return _kept(state, lambda one: one.pid not in self.pids)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsInhabited:
    """A process lives in these pods again."""

    uids: frozenset[str]

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        """Return the state in which they may be chosen."""
        emptied = state.ineligible.emptied - self.uids
        return state._replace(ineligible=state.ineligible._replace(emptied=emptied))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsListed:
    """The pods were listed anew."""

    uids: frozenset[str]

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        """Return the state without what is known of pods that are gone."""
        before = state.ineligible
        ineligible = Ineligible(
            emptied=before.emptied & self.uids,
            found_empty={uid: at for uid, at in before.found_empty.items() if uid in self.uids},
            failed={uid: failure for uid, failure in before.failed.items() if uid in self.uids},
        )
        return state._replace(ineligible=ineligible)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationsUsed:
    """These observations have been decided over, by when each was made: no pod is evicted for them again."""

    taken_at_seconds: Mapping[Signal, float | None]

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        return state._replace(observed_at={**state.observed_at, **self.taken_at_seconds})


# Reclaims of memory.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimEnded:
    """A reclaim of memory is over: the last of its kind, if it began then (None: whenever)."""

    kind: Reclaim
    began_seconds: float | None = None

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        return over(state, self.kind, self.began_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """The daemon was started again during the same boot.

    A process id may be another's by now, and reclaims ended with the daemon.
    """

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        return state._replace(
            claims=tuple(one for one in state.claims if one.kind in {ClaimKind.POD, ClaimKind.FILES}),
            holds=tuple(replace(one, is_over=True) for one in state.holds if one.kind is not Reclaim.RULE),
            ineligible=Ineligible(
                emptied=frozenset(one.uid for one in state.claims if one.uid and one.kind is ClaimKind.FILES)
            ),
        )


# Claims.


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
    others = _not_evicted(state, eviction.pod.uid).claims
    return state._replace(claims=(*others, ordered))


def _not_evicted(state: PolicyState, uid: str) -> PolicyState:
    return _kept(state, lambda one: one.uid != uid or not one.kind.is_eviction)


def _kept(state: PolicyState, is_kept: Callable[[Claim], bool]) -> PolicyState:
    return state._replace(claims=tuple(filter(is_kept, state.claims)))


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


def without_evictions(state: PolicyState) -> PolicyState:
    """Return the state of a dry run as a restart may have it: what was only thought of is not taken up."""
    return state._replace(claims=(), evicted_at=(), hard_memory_kills=(), judged_evictions=(), slowdowns=())
