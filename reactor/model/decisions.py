"""What goes into one evaluation pass and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from reactor.model.kills import HardMemoryKill, JudgedEviction, ProcessKill, Slowdown
from reactor.model.pods import Pod, PodUsage
from reactor.model.rules import Firing
from reactor.model.settings import EvictionSettings
from reactor.model.signals import LimitSignal, NodeCondition, Reclaim, Resource, RuleSignal, Signal
from reactor.model.thresholds import Observation, Threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """How long until the hard threshold of a memory signal is crossed, as estimated at `at_seconds`.

    It takes `seconds` at the present rate, `earliest_seconds` at the fastest and `latest_seconds` at the
    slowest that is likely. They are None if that is not foreseeable, and `because` says why it is not. It has
    been foreseeable without a gap for `held_seconds`.
    """

    at_seconds: float
    seconds: float | None = None
    earliest_seconds: float | None = None
    latest_seconds: float | None = None
    bytes_per_second: float | None = None
    because: str | None = None
    held_seconds: float = 0.0

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        rate = self.bytes_per_second
        return {
            "seconds": _rounded(self.seconds),
            "earliest_seconds": _rounded(self.earliest_seconds),
            "latest_seconds": _rounded(self.latest_seconds),
            "falls_by_bytes_per_second": None if rate is None else round(rate),
            "because": self.because,
            "held_seconds": round(self.held_seconds, 3),
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


class Snapshot(NamedTuple):
    """Everything observed for one pass. A signal or a pod (by uid) that is absent was not observed.

    `time_left` are the estimates of the moment; a signal that is absent has none. `bounds` are pods of which
    only the most that each can hold is known; see policy/bounds.py.
    """

    signals: Mapping[Signal, Observation] = MappingProxyType({})
    pods: Mapping[str, PodUsage] = MappingProxyType({})
    time_left: Mapping[Signal, TimeLeft] = MappingProxyType({})
    bounds: Mapping[str, int] = MappingProxyType({})


class Measured(StrEnum):
    """When a pod's usage was read: for the decision, afterwards, or not at all, so that it is a bound."""

    AT_DECISION = "at-decision"
    AFTERWARDS = "afterwards"
    BOUND = "bound"


class RankedPod(NamedTuple):
    """One place in the ranking, with the numbers that decided it.

    A tuple, since each pod has one on the way to a kill: making a frozen dataclass takes three times as long.

    `usage` and `request` are of the starved resource (usage None: the pod has no statistics, or, where
    `unreadable`, the number could not be read); `exceeds_request` is None there and for processes.
    `swap_bytes` is what the pod has in swap (None: not observed).
    `is_passed_over`: others are evicted first because this pod holds too little to be worth it.
    `holds_nothing`: no file of a full filesystem is known to go with it. `measured`: when it was read.
    """

    pod: Pod
    usage: int | None
    request: int
    exceeds_request: bool | None
    unreadable: bool = False
    is_passed_over: bool = False
    swap_bytes: int | None = None
    holds_nothing: bool = False
    measured: Measured = Measured.AT_DECISION

    @property
    def evictable(self) -> bool:
        return self.pod.critical_because is None and not self.holds_nothing


class Shortage(NamedTuple):
    """What the message of an eviction on the node's behalf is made of: signal, place and usage of the pod."""

    seen: Observation
    place: RankedPod
    used: PodUsage | None


class Eviction(NamedTuple):
    """A pod to be evicted. `threshold` is None where the pod broke its own storage limit, or a rule says so.

    `message` and `annotations` are what is written into the pod's status and its event. With a `shortage`
    they are empty: `policy.messages.eviction_message` forms them from it after the kill. `time_left` is why a
    soft one comes before its grace period is over, None if it does not.
    """

    pod: Pod
    signal: Signal | LimitSignal | RuleSignal
    resource: Resource
    grace_period_seconds: int
    message: str = ""
    threshold: Threshold | None = None
    annotations: Mapping[str, str] = MappingProxyType({})
    shortage: Shortage | None = None
    time_left: TimeLeft | None = None

    @property
    def is_of_one_process(self) -> bool:
        """Whether one process of the pod is killed; without a threshold it is the whole pod."""
        return self.threshold is not None and self.pod.loses_one_process(self.resource)


class ClaimKind(StrEnum):
    """Whose resource is awaited; see policy/claims.py."""

    POD = "pod"
    ENDING_PROCESS = "ending-process"
    FILES = "files"
    PROCESS = "process"
    KERNEL_KILL = "kernel-kill"
    STRUCK_POD = "struck-pod"

    @property
    def is_eviction(self) -> bool:
        """Return whether it is an eviction under way, or files that it left; else a process killed alone."""
        return self in _EVICTIONS


_EVICTIONS: Final = (ClaimKind.POD, ClaimKind.ENDING_PROCESS, ClaimKind.FILES)  # found by identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a victim has still to free: no other pod is evicted for it until then.

    `uid` is the pod's whose it is, None: no pod's, or not known. The victim held `amount` (None: not known,
    of a pod what it is seen to hold), of which `came_back`. `mark` is by what that is seen: the most memory
    available since a process was killed, or the least that a struck pod has held; it moved last at
    `progress_seconds`. Until `kill_at_seconds` the victim may still end by itself (a soft eviction's grace
    period; None: it was killed). From `deadline_seconds` on nothing more is expected of it. `pid` is of the
    process that was killed, None: not known. `pod` is what the pod was, if its files are awaited, which may
    outlive its cgroup and the daemon, or if a process of it was killed here. `threshold` is the one that an
    eviction was ordered for (None: the pod's own limit, or a rule).
    """

    kind: ClaimKind
    uid: str | None = None
    resource: Resource = Resource.MEMORY
    deadline_seconds: float
    kill_at_seconds: float | None = None
    amount: int | None = None
    came_back: int = 0
    mark: int | None = None
    progress_seconds: float = 0.0
    pid: int | None = None
    pod: Pod | None = None
    threshold: Threshold | None = None

    @property
    def left(self) -> int | None:
        """Return how much is still to come back, None where that is not known."""
        return None if self.amount is None else max(0, self.amount - self.came_back)

    def is_in_grace(self, now_seconds: float) -> bool:
        return self.kill_at_seconds is not None and now_seconds < self.kill_at_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A reclaim of memory for which evictions wait; see policy/holds.py.

    They do until `until_seconds` at the most, until it `is_over`, or until less is available than
    `void_below_bytes` (None: whatever is available). `reason` says so. It is to reclaim `wanted_bytes` for
    `threshold` (None: for a rule); `outside_bytes` is how much belongs to no pod (None: it is the pods').
    """

    kind: Reclaim
    reason: str
    began_seconds: float
    until_seconds: float
    threshold: Threshold | None = None
    wanted_bytes: int = 0
    outside_bytes: int | None = None
    void_below_bytes: int | None = None
    is_over: bool = False

    @property
    def signal(self) -> Signal:
        return Signal.MEMORY_AVAILABLE if self.threshold is None else self.threshold.signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A soft threshold that would come too late, and why it is not acted on yet (policy/in_time.py).

    The pod that ranks first is asked to end once no more than `needed_seconds` are left: so it was found at
    `at_seconds`, and is asked again at `until_seconds`.
    """

    threshold: Threshold
    uid: str
    needed_seconds: float
    at_seconds: float
    until_seconds: float


class Ineligible(NamedTuple):
    """Pods that are not to be chosen at present, by uid; a restart begins anew with them.

    `emptied` have had no process since an eviction, or since `found_empty`, which says when. `failed` are
    those that could not be killed: until when each is spared, and why it could not.
    """

    emptied: frozenset[str] = frozenset()
    found_empty: Mapping[str, float] = MappingProxyType({})
    failed: Mapping[str, tuple[float, str]] = MappingProxyType({})


class Calm(NamedTuple):
    """What was observed, and what the pods held together that are never evicted."""

    signals: Mapping[Signal, Observation] = MappingProxyType({})
    kept_bytes: int = 0


class PolicyState(NamedTuple):
    """What one pass leaves to the next; survives a restart. All instants are seconds on the pass's clock.

    `calm` is of the last pass with no memory threshold met whose kills are judged. `holds` are the last
    reclaims of memory, one of each kind. `oom_struck_at_seconds` is when a pod's counter of OOM kills last
    rose. `endings` is how long the last pods took to end that were asked to, in seconds by their work;
    `waits` are the soft evictions in time that wait (both: policy/in_time.py).
    """

    conditions: tuple[NodeCondition, ...] = ()
    condition_last_observed: Mapping[NodeCondition, float] = MappingProxyType({})
    condition_since: Mapping[NodeCondition, float] = MappingProxyType({})
    first_observed: Mapping[Threshold, float] = MappingProxyType({})
    calm: Calm = Calm()
    thresholds_met: tuple[Threshold, ...] = ()
    observed_at: Mapping[Signal, float | None] = MappingProxyType({})
    claims: tuple[Claim, ...] = ()
    evicted_at: tuple[float, ...] = ()
    holds: tuple[Hold, ...] = ()
    hard_memory_kills: tuple[HardMemoryKill, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    process_kills: tuple[ProcessKill, ...] = ()
    oom_struck_at_seconds: float | None = None
    judged_evictions: tuple[JudgedEviction, ...] = ()
    ineligible: Ineligible = Ineligible()
    endings: Mapping[str, tuple[float, ...]] = MappingProxyType({})
    waits: tuple[Wait, ...] = ()

    @property
    def in_flight(self) -> tuple[Claim, ...]:
        """Return the claims of evictions: pods and processes that are to end, files that they have left."""
        return self.claims and tuple(claim for claim in self.claims if claim.kind.is_eviction)

    @property
    def killed_alone(self) -> tuple[Claim, ...]:
        """Return the claims of processes that were killed alone, by the kernel's OOM killer or here."""
        return self.claims and tuple(claim for claim in self.claims if not claim.kind.is_eviction)

    def dying(self, now_seconds: float) -> frozenset[str]:
        """Return the pods, by uid, that were evicted and are not in their grace period."""
        if not self.claims:
            return frozenset()
        return frozenset(
            claim.uid
            for claim in self.claims
            if claim.kind.is_eviction and claim.uid is not None and not claim.is_in_grace(now_seconds)
        )


class Inputs(NamedTuple):
    """What a decision is made from; `pods` are those that it is asked about.

    A tuple: each step of a pass that changes the state makes another, on the way to a kill.
    """

    settings: EvictionSettings
    state: PolicyState
    snapshot: Snapshot
    pods: Sequence[Pod]
    now_seconds: float

    def with_state(self, state: PolicyState) -> Inputs:
        """Return the inputs with the state that a step leaves; `_replace` would take three times as long."""
        return Inputs(self.settings, state, self.snapshot, self.pods, self.now_seconds)

    def seen(self, threshold: Threshold) -> Observation:
        """Return what was observed of a threshold's signal, which was observed."""
        return self.snapshot.signals[threshold.signal]


class Decision(NamedTuple):
    """What one pass decided.

    Where `reclaim` is not empty, the caller runs it, observes again and asks `policy.after_reclaim` for the
    rest; `evictions` is empty until then. `deferred` are thresholds that come before `acted_on` and wait.
    `deferred_because` says why one that is met evicts no pod now. `absurd` names the observations that
    were set aside, and why. The reclaims are to be started now; the state says when each is over (`is_over`).
    `slowdowns` are those in force, `unhelpful` the kills that have just turned out not to help. `rule` is the
    one that was asked, None if a threshold or a limit comes first; with `waits` it is to be asked again.
    `no_victim` is why the threshold acted on evicts no pod. With `again` it is to be made once more first.
    """

    at_seconds: float
    conditions: tuple[NodeCondition, ...] = ()
    thresholds_met: tuple[Threshold, ...] = ()
    acted_on: Threshold | None = None
    reclaim: tuple[Reclaim, ...] = ()
    ranking: tuple[RankedPod, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    deferred_because: str | None = None
    deferred: tuple[Threshold, ...] = ()
    absurd: Mapping[Signal, str] = MappingProxyType({})
    memory_reclaim: Hold | None = None
    soft_reclaim: Hold | None = None
    rule_reclaim: Hold | None = None
    slowdowns: tuple[Slowdown, ...] = ()
    unhelpful: tuple[HardMemoryKill | JudgedEviction, ...] = ()
    rule: Firing | None = None
    waits: bool = False
    no_victim: str | None = None
    again: bool = False
