"""What changes the state between two passes. Each event says what it does to it; nothing else writes it.

The daemon, the simulator and the tests apply the same events. An event carries what was observed, and no
conclusion: what follows from it is the policy's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from reactor.model.decisions import ClaimKind, Eviction, Ineligible, PolicyState, Snapshot
from reactor.model.kills import OomKill, ProcessMemory
from reactor.model.pods import Pod
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Reclaim, Signal
from reactor.policy.claim_changes import (
    called_off,
    exited,
    found_in_pods,
    killed_process,
    landed,
    landed_process,
    record_eviction,
    record_oom_kill,
    record_process_eviction,
    with_files,
    with_held_by_pods,
)
from reactor.policy.decide import decide
from reactor.policy.holds import over
from reactor.policy.kill_results import with_left

FAILED_SECONDS: Final = 30.0
_LEFT_BYTES: Final = 64 << 10  # a shortage may be as small
_GROWN_BYTES: Final = 8 << 20


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
    snapshot: Snapshot
    pods: Sequence[Pod]
    held_bytes: int | None = None

    def after(self, settings: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        return record_eviction(
            settings,
            state,
            self.eviction,
            now_seconds,
            snapshot=self.snapshot,
            pods=self.pods,
            held_bytes=self.held_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEvictionOrdered:
    """One process of a pod was killed, or asked to end; the pod lives on."""

    eviction: Eviction
    process: ProcessMemory
    snapshot: Snapshot
    pods: Sequence[Pod]

    def after(self, settings: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        return record_process_eviction(
            settings, state, self.eviction, self.process, now_seconds, snapshot=self.snapshot, pods=self.pods
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKilled:
    """A process of a pod was killed at the end of its grace period."""

    pod: Pod
    process: ProcessMemory

    def after(self, settings: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        return killed_process(settings, state, self.pod, self.process, now_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOver:
    """Nothing more is done to a process of the pod, which lives on."""

    uid: str

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        return landed_process(state, self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionFailed:
    """A pod could not be killed."""

    uid: str
    why: str

    def after(self, _: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        """Return the state in which the pod is spared for a while."""
        failed = {**state.ineligible.failed, self.uid: (now_seconds + FAILED_SECONDS, self.why)}
        return replace(state, ineligible=replace(state.ineligible, failed=failed))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionCalledOff:
    """A pod is not killed after its grace period."""

    uid: str

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        return called_off(state, self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEmptied:
    """No process is left in an evicted pod; what it took may still be counted."""

    uid: str

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        """Return the state in which the pod is not chosen until a process lives in it again."""
        emptied = state.ineligible.emptied | {self.uid}
        return replace(state, ineligible=replace(state.ineligible, emptied=emptied))


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
        state = landed(state, self.uid, self.files_bytes if self.files_bytes >= _LEFT_BYTES else 0)
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

        Nothing is expected of a pod that lives again and has grown: it may have to go again. Until then a
        kill would free no more of it than the little that is its own.
        """
        return with_files(state, self._left_bytes)

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
        return record_oom_kill(settings, state, self.kill, self.uid, now_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsStruck:
    """The kernel has killed in these pods, and named no victim. By uid: what they hold without page cache.

    `largest_bytes` is the most that one process of each may hold.
    """

    held_bytes: Mapping[str, int]
    largest_bytes: Mapping[str, int]

    def after(self, settings: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        return found_in_pods(settings, state, self.held_bytes, now_seconds, self.largest_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StruckPodsObserved:
    """What pods hold now in which the kernel has killed, by uid (None: it could not be read)."""

    held_bytes: Mapping[str, int | None]

    def after(self, _: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        return with_held_by_pods(state, self.held_bytes, now_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesExited:
    """Killed processes have exited: their memory is back."""

    pids: frozenset[int]

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        return exited(state, self.pids)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFoundEmpty:
    """No process was in a pod when it was to be killed, or prepared for that."""

    uid: str

    def after(self, _: EvictionSettings, state: PolicyState, now_seconds: float) -> PolicyState:
        """Return the state in which the pod is not chosen until a process lives in it."""
        ineligible = replace(
            state.ineligible,
            emptied=state.ineligible.emptied | {self.uid},
            found_empty={**state.ineligible.found_empty, self.uid: now_seconds},
        )
        return replace(state, ineligible=ineligible)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsInhabited:
    """A process lives in these pods again."""

    uids: frozenset[str]

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        """Return the state in which they may be chosen."""
        emptied = state.ineligible.emptied - self.uids
        return replace(state, ineligible=replace(state.ineligible, emptied=emptied))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsListed:
    """The pods were listed anew."""

    uids: frozenset[str]

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        """Return the state without what is known of pods that are gone."""
        before = state.ineligible
        if before == Ineligible():
            return state
        ineligible = Ineligible(
            emptied=before.emptied & self.uids,
            found_empty={uid: at for uid, at in before.found_empty.items() if uid in self.uids},
            failed={uid: failure for uid, failure in before.failed.items() if uid in self.uids},
        )
        return replace(state, ineligible=ineligible)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationsUsed:
    """These observations have been decided over, by when each was made: no pod is evicted for them again."""

    taken_at_seconds: Mapping[Signal, float | None]

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        return replace(state, observed_at={**state.observed_at, **self.taken_at_seconds})


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

    A process id may be another's by now, and a rule's reclaim ended with the daemon.
    """

    def after(self, _: EvictionSettings, state: PolicyState, _now_seconds: float) -> PolicyState:
        """Return what holds of the saved state."""
        return replace(
            state,
            claims=tuple(one for one in state.claims if one.kind in {ClaimKind.POD, ClaimKind.FILES}),
            holds=tuple(one for one in state.holds if one.kind is not Reclaim.RULE),
            ineligible=Ineligible(
                emptied=frozenset(one.uid for one in state.claims if one.uid and one.kind is ClaimKind.FILES)
            ),
        )


def without_evictions(state: PolicyState) -> PolicyState:
    """Return the state of a dry run as a restart may have it: what was only thought of is not taken up."""
    return replace(state, claims=(), evicted_at=(), hard_memory_kills=(), disk_evictions=(), slowdowns=())
