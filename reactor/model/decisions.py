"""What goes into one evaluation pass and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from reactor.model.pods import Pod, PodUsage
from reactor.model.rules import Firing
from reactor.model.signals import LimitSignal, NodeCondition, Reclaim, Resource, RuleSignal, Signal
from reactor.model.thresholds import Observation, Threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything observed for one pass. A signal or a pod (by uid) that is absent was not observed."""

    signals: Mapping[Signal, Observation] = field(default_factory=dict)
    pods: Mapping[str, PodUsage] = field(default_factory=dict)


class RankedPod(NamedTuple):
    """One place in the ranking, with the numbers that decided it.

    A tuple, since each pod has one on the way to a kill: making a frozen dataclass takes three times as long.

    `usage` and `request` are of the starved resource (usage None: the pod has no statistics, or, where
    `unreadable`, the number could not be read); `exceeds_request` is None there and for processes.
    `swap_bytes` is what the pod has in swap (None: not observed).
    `is_passed_over`: others go first because this pod holds too little to be worth it.
    `holds_nothing`: no file of a full filesystem is known to be removed with this pod, so it stays.
    """

    pod: Pod
    usage: int | None
    request: int
    exceeds_request: bool | None
    unreadable: bool = False
    is_passed_over: bool = False
    swap_bytes: int | None = None
    holds_nothing: bool = False

    @property
    def evictable(self) -> bool:
        """Return whether the pod may be evicted at all."""
        return self.pod.critical_because is None and not self.holds_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A pod to be evicted. `threshold` is None where the pod broke its own storage limit, or a rule says so.

    `message` and `annotations` are what upstream writes into the pod's status and its event.
    """

    pod: Pod
    signal: Signal | LimitSignal | RuleSignal
    resource: Resource
    grace_period_seconds: int
    message: str
    threshold: Threshold | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """An eviction that has been ordered and whose resource may not be back yet.

    Until `kill_at_seconds` the pod may still exit (a soft eviction's grace period); from
    `deadline_seconds` on nothing more is expected of it. `pod` is what it was where its files are awaited,
    which may outlive its cgroup, and the daemon that evicted it. `left_bytes` is the shared memory and tmpfs
    still charged to a pod that has ended (None: it has not), which is freed when the files are removed.
    `process_bytes` is what one process of it holds that is to end alone (None: the whole pod is).
    `threshold` is the one that it was ordered for (None: the pod's own limit, or a rule).
    """

    uid: str
    resource: Resource
    kill_at_seconds: float
    deadline_seconds: float
    pod: Pod | None = None
    left_bytes: int | None = None
    process_bytes: int | None = None
    threshold: Threshold | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OomVictim:
    """A process killed alone, by the kernel's OOM killer or here, that may still be giving back its memory.

    `pid` None: only the kill is known, neither the victim nor how much its end frees (`victim_bytes` None).
    `uid` is the victim's pod, None where it belongs to none or that is not known. If no more than the pod is
    known, `pod_bytes` is the least that it has held since, and `left_bytes` what of that may still come back.
    `first_bytes` and `most_bytes` are the memory seen available first since the kill, and the most, None
    before the first observation; `grew_at_seconds` is when that most, or that least, was seen. From
    `deadline_seconds` on nothing more is expected of it. `pod_key` names the pod of a process that was killed
    here, None: the kernel killed it.
    """

    pid: int | None
    victim_bytes: int | None
    uid: str | None = None
    grew_at_seconds: float
    deadline_seconds: float
    left_bytes: int | None = None
    first_bytes: int | None = None
    most_bytes: int | None = None
    pod_key: str | None = None
    pod_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKill:
    """A process of a pod that was to end alone: how much of memory it held, and the whole pod (None: not
    observed), by which it is judged whether that helps.
    """

    uid: str
    at_seconds: float
    held_bytes: int
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReclaim:
    """A reclaim of memory that belongs to no pod (`outside_bytes`), of which `wanted_bytes` were missing.

    Evictions for `signal` wait for it until `until_seconds` at the most, until it `is_over`, or until less
    is available than the `available_bytes` from before it.
    """

    signal: Signal
    began_seconds: float
    until_seconds: float
    available_bytes: int
    wanted_bytes: int
    outside_bytes: int
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftReclaim:
    """A reclaim from the pods' cgroups, of `wanted_bytes`, before the first eviction for a soft `threshold`.

    Evictions for soft memory thresholds wait for it until `until_seconds` at the most, or until it `is_over`.
    """

    threshold: Threshold
    began_seconds: float
    until_seconds: float
    wanted_bytes: int
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HardMemoryKill:
    """A kill for a hard memory threshold, with what it is judged by afterwards.

    `credited_bytes` is the victim's working set at the kill, `outside_bytes` what was used of the signal
    outside all pods and not left by earlier victims in their cgroups, `pods_bytes` what the pods held that
    were not being evicted; None: not observed. `kept` are the pods, by uid, that could not be evicted then:
    what they hold is outside. `left_bytes` is what stays charged to the victim's cgroup, once it has ended,
    for as long as the cgroup is there.
    `is_unhelpful` once what it was to bring back has turned out to be used outside the pods.
    """

    uid: str
    signal: Signal
    at_seconds: float
    credited_bytes: int | None = None
    outside_bytes: int | None = None
    pods_bytes: int | None = None
    left_bytes: int = 0
    is_unhelpful: bool = False
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskEviction:
    """An eviction for a full filesystem, with what it is judged by afterwards, in bytes or inodes.

    `pod_key` names the pod. `credited` is what of the filesystem its end was to free (None: not known),
    `available` and `missing` are what the filesystem showed, `others` what the other pods took of it.
    `is_unhelpful` once less than a quarter of it has come back.
    """

    uid: str
    pod_key: str
    signal: Signal
    at_seconds: float
    credited: int | None
    available: int
    missing: int
    others: int
    is_unhelpful: bool = False


class SlowReason(StrEnum):
    """Why evictions for a threshold are slowed down."""

    OUTSIDE_PODS = "outside-pods"
    UNHELPFUL = "unhelpful"
    RATE = "rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Evictions for a threshold on `signal` wait until `until_seconds`; `message` says why, in words.

    Those for soft thresholds wait as well, but not for a rate. `held_by` is the pod (`namespace/name`) that
    holds the most of those that can't be evicted, and `held_by_bytes` how much; None where none of them holds
    much.
    """

    signal: Signal
    reason: SlowReason
    since_seconds: float
    until_seconds: float
    message: str
    held_by: str | None = None
    held_by_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoVictim:
    """A threshold that is met though no pod can be evicted; `message` has the amounts and who holds them."""

    threshold: Threshold
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ineligible:
    """Pods that are not to be chosen at present, by uid; a restart begins anew with them.

    `emptied` have had no process since an eviction, or since `found_empty`, which says when. `failed` are
    those that could not be killed: until when each is spared, and why it could not.
    """

    emptied: frozenset[str] = frozenset()
    found_empty: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, tuple[float, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """What one pass leaves to the next; survives a restart. All instants are seconds on the pass's clock.

    Memory is being reclaimed by a rule until `rule_reclaim_until_seconds` at the most, None where it is not.
    `oom_struck_at_seconds` is when a pod's counter of OOM kills was last seen to have risen.
    """

    conditions: tuple[NodeCondition, ...] = ()
    condition_last_observed: Mapping[NodeCondition, float] = field(default_factory=dict)
    condition_since: Mapping[NodeCondition, float] = field(default_factory=dict)
    first_observed: Mapping[Threshold, float] = field(default_factory=dict)
    thresholds_met: tuple[Threshold, ...] = ()
    observed_at: Mapping[Signal, float | None] = field(default_factory=dict)
    in_flight: tuple[InFlight, ...] = ()
    evicted_at: tuple[float, ...] = ()
    oom_victims: tuple[OomVictim, ...] = ()
    memory_reclaim: MemoryReclaim | None = None
    soft_reclaim: SoftReclaim | None = None
    rule_reclaim_until_seconds: float | None = None
    hard_memory_kills: tuple[HardMemoryKill, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    process_kills: tuple[ProcessKill, ...] = ()
    oom_struck_at_seconds: float | None = None
    disk_evictions: tuple[DiskEviction, ...] = ()
    ineligible: Ineligible = field(default_factory=Ineligible)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one pass decided.

    Where `reclaim` is not empty, the caller runs it, observes again and asks `policy.after_reclaim` for the
    rest; `evictions` is empty until then. `deferred` are thresholds that come before `acted_on` and wait for
    something. `deferred_because` says why a threshold that is met evicts no pod
    in this pass. `absurd` names the observations that were set aside, and why. `memory_reclaim` is to be
    started now, and so is `soft_reclaim`; the state says when each is over (`is_over`). `slowdowns` are those
    in force, `unhelpful` the kills that have just turned out not to help. `rule` is the one that acts, None
    where thresholds decide; with `waits` it is to be asked again, because it may act later. `no_victim` is
    why the threshold acted on evicts no pod. With `again` it is of one observation only, to be made once more
    before anything is done.
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
    absurd: Mapping[Signal, str] = field(default_factory=dict)
    memory_reclaim: MemoryReclaim | None = None
    soft_reclaim: SoftReclaim | None = None
    slowdowns: tuple[Slowdown, ...] = ()
    unhelpful: tuple[HardMemoryKill | DiskEviction, ...] = ()
    rule: Firing | None = None
    waits: bool = False
    no_victim: NoVictim | None = None
    again: bool = False
