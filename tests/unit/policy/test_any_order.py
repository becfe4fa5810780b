"""What the policy promises holds after any order of passes and events."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from reactor.model.decisions import Claim, ClaimKind, Eviction, PolicyState, Snapshot
from reactor.model.kills import OomKill, OomScope, ProcessMemory
from reactor.model.pods import Pod, PodUsage
from reactor.model.rules import Firing, RuleAction
from reactor.model.settings import EvictionSettings
from reactor.model.signals import MEMORY_SIGNALS, Reclaim, Resource, RuleSignal, Signal
from reactor.model.thresholds import Observation, Threshold
from reactor.policy.claims import eligible
from reactor.policy.decide import after_reclaim, decide
from reactor.policy.events import (
    CrossingServed,
    Event,
    EvictionCalledOff,
    EvictionFailed,
    EvictionOrdered,
    FilesInMemoryObserved,
    KernelKilled,
    ObservationsUsed,
    PodEmptied,
    PodEnded,
    PodsInhabited,
    PodsListed,
    PodsStruck,
    ProcessesExited,
    ProcessKilled,
    ProcessOver,
    ReclaimEnded,
    Restarted,
    StruckPodsObserved,
    apply,
)
from tests.support.builders import make_pod
from tests.support.rules import firing_of
from tests.unit.policy import strategies as drawn

MIB: Final = 1 << 20
APPS: Final = "/apps"
# Few, so that what is drawn is about the same pod often.
PODS: Final = 3
UIDS: Final = st.sampled_from([f"uid-{number}" for number in range(PODS)])
NODE_PODS: Final = tuple(make_pod(str(number)) for number in range(PODS))
# A node of 100 MiB that is short of memory in every third pass or so: what is promised is tried by evictions.
CAPACITY: Final = 100 * MIB
AMOUNTS: Final = st.integers(0, 100).map(lambda mib: mib * MIB)
# As docs/policy.md has it: a victim that nothing comes back of is given up.
STUCK_SECONDS: Final = 1.0
STILL_SECONDS: Final = 0.25


def _threshold(grace_period_seconds: float) -> st.SearchStrategy[Threshold]:
    return st.builds(
        Threshold,
        signal=st.sampled_from([Signal.MEMORY_AVAILABLE] * 3 + [Signal.ALLOCATABLE_MEMORY_AVAILABLE]),
        value=st.integers(20, 60).map(lambda mib: drawn.amount(mib * MIB)),
        grace_period_seconds=st.just(grace_period_seconds),
        minimum_reclaim=st.none() | st.integers(0, 20).map(lambda mib: drawn.amount(mib * MIB)),
    )


settings_of_node = st.builds(
    lambda settings, hard, soft: dataclasses.replace(
        settings,
        thresholds=(
            hard,
            *soft,
            *(one for one in settings.thresholds if one.signal not in MEMORY_SIGNALS),
        ),
    ),
    drawn.settings,
    _threshold(0.0),
    st.lists(_threshold(5.0), max_size=1),
)
# By `map`: `builds` would draw the other fields of a named tuple, too, which takes most of the time.
memory = st.integers(0, 70).map(lambda mib: Observation(available=mib * MIB, capacity=CAPACITY))
pod_usages = st.tuples(st.integers(0, 40), st.sampled_from([None, None, None, 100])).map(
    lambda one: PodUsage(  # 50 bytes of the disk are a limit of some pods
        memory_working_set_bytes=one[0] * MIB, ephemeral_storage_bytes=one[1]
    )
)
used = st.fixed_dictionaries({f"uid-{number}": pod_usages for number in range(PODS)})
snapshots = st.builds(
    lambda snapshot, seen, pods: Snapshot(
        signals={**snapshot.signals, **dict.fromkeys(MEMORY_SIGNALS, seen)}, pods={**snapshot.pods, **pods}
    ),
    drawn.built(Snapshot, signals=st.dictionaries(st.sampled_from(Signal), drawn.plausible, max_size=2)),
    memory,
    used,
)
kills = st.builds(
    OomKill,
    source=st.just("test"),
    at_ns=st.just(1),
    scope=st.sampled_from(OomScope),
    pid=st.none() | st.integers(1, 2),
    victim_bytes=AMOUNTS,
)
processes = st.builds(
    ProcessMemory,
    pid=st.integers(1, 2),
    name=st.just("a"),
    anonymous_bytes=AMOUNTS,
    shared_bytes=AMOUNTS,
    swap_bytes=AMOUNTS,
)
by_uid = st.dictionaries(UIDS, AMOUNTS, max_size=3)
pods_of_node = st.sampled_from(NODE_PODS)

# Any but of an eviction, which follows from a pass.
events_of_claims = st.one_of(
    st.builds(ProcessKilled, pod=pods_of_node, process=processes),
    st.builds(ProcessOver, uid=UIDS),
    st.builds(EvictionCalledOff, uid=UIDS),
    st.builds(PodEnded, uid=UIDS, files_bytes=AMOUNTS, held_bytes=st.none() | AMOUNTS),
    st.builds(FilesInMemoryObserved, files_bytes=by_uid, own_bytes=by_uid),
    st.builds(KernelKilled, kill=kills, uid=st.none() | UIDS),
    by_uid.map(lambda held: PodsStruck(held_bytes=held, largest_bytes=held)),
    st.builds(StruckPodsObserved, held_bytes=by_uid),
    st.builds(ProcessesExited, pids=st.frozensets(st.integers(1, 2), max_size=1)),
    st.builds(Restarted),
)
other_events = st.one_of(
    st.builds(EvictionFailed, uid=UIDS, why=st.just("why")),
    st.builds(PodEmptied, uid=UIDS),
    st.builds(PodEmptied, uid=UIDS, was_found=st.booleans()),
    st.builds(PodsInhabited, uids=st.frozensets(UIDS)),
    st.builds(PodsListed, uids=st.frozensets(UIDS)),
    st.builds(ObservationsUsed, taken_at_seconds=st.just({Signal.NODEFS_AVAILABLE: 1.0})),
    st.builds(ReclaimEnded, kind=st.just(Reclaim.MEMORY)),
    st.builds(ReclaimEnded, kind=st.just(Reclaim.POD_MEMORY), began_seconds=st.just(1.0)),
    st.builds(ReclaimEnded, kind=st.just(Reclaim.RULE)),
    st.builds(CrossingServed, snapshot=snapshots, pods=st.just(())),
)
# A pass observes that, and may be made for a rule.
passes = st.tuples(snapshots, st.sampled_from([None, RuleAction.EVICT_WORST, RuleAction.EVICT]))
Pass = tuple[Snapshot, RuleAction | None]
# By kind, since a union would draw each kind of event as often as a pass.
STEP_KINDS: Final = [passes, passes, events_of_claims, other_events]
steps = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.02, 0.02, 0.2, 1.0, 9.5, 40.0]),
        st.sampled_from(STEP_KINDS).flatmap(lambda kind: kind),
    ),
    min_size=8,
    max_size=16,
)
node_pods = drawn.pods(least=1, most=PODS)


class Run:
    """Passes and events in the order drawn, on a node whose clock goes on between them.

    `ordered` are all evictions with their instants. Of the last pass: `snapshot`, and the `decided` state, in
    which its own evictions are not ordered yet.
    """

    def __init__(self, settings: EvictionSettings, pods: tuple[Pod, ...]) -> None:
        self.settings = settings
        self.pods = tuple(dataclasses.replace(pod, cgroup=f"{APPS}/{pod.name}") for pod in pods)
        self.state = PolicyState()
        self.now_seconds = 1000.0
        self.ordered: list[tuple[float, Eviction]] = []
        self.snapshot = Snapshot()
        self.decided = self.state

    def take(self, seconds: float, step: Event | Pass) -> Sequence[Eviction]:
        """Let so much time go by and take a step; return the evictions that it ordered."""
        self.now_seconds += seconds
        many = len(self.ordered)
        if isinstance(step, tuple):
            self._make_pass(*step)
        elif isinstance(step, CrossingServed):
            self._apply(dataclasses.replace(step, pods=self._eligible()))
        else:
            self._apply(step)
        return [one for _, one in self.ordered[many:]]

    def _make_pass(self, snapshot: Snapshot, action: RuleAction | None) -> None:
        """Decide, and order what was decided; a reclaim of the node's brings nothing."""
        pods = self._eligible()
        signals = {signal: seen.at(self.now_seconds) for signal, seen in snapshot.signals.items()}
        snapshot = Snapshot(signals=signals, pods=snapshot.pods)
        self.state, decision = decide(
            self.settings, self.state, snapshot, pods, self.now_seconds, self._firing(action)
        )
        if decision.reclaim:
            self.state, decision = after_reclaim(
                self.settings, self.state, decision, snapshot, snapshot, pods, self.now_seconds
            )
        self.snapshot, self.decided = snapshot, self.state
        for one in decision.evictions:
            self.ordered.append((self.now_seconds, one))
            self._apply(EvictionOrdered(eviction=one, snapshot=snapshot, pods=pods))

    def _firing(self, action: RuleAction | None) -> Firing | None:
        if action is None:
            return None
        cgroup = APPS if action is RuleAction.EVICT_WORST else f"{APPS}/pod-0"
        return dataclasses.replace(firing_of(cgroup, action=action), at_seconds=self.now_seconds)

    def _eligible(self) -> Sequence[Pod]:
        return eligible(self.state, self.pods, self.now_seconds)

    def _apply(self, event: Event) -> None:
        self.state = apply(self.settings, self.state, event, self.now_seconds)


@pytest.mark.slow
@examples(max_examples=max(200, examples().max_examples))
@given(settings=settings_of_node, pods=node_pods, steps=steps)
def test_no_event_makes_a_critical_pod_eligible(settings, pods, steps):
    run = Run(settings, pods)
    critical = {pod.uid for pod in pods if pod.critical_because is not None}
    for seconds, step in steps:
        run.take(seconds, step)
        for pod in eligible(run.state, run.pods, run.now_seconds):
            assert pod.uid not in critical or pod.critical_because is not None
    assert critical.isdisjoint(one.pod.uid for _, one in run.ordered)


@pytest.mark.slow
@examples(max_examples=max(200, examples().max_examples))
@given(settings=settings_of_node, pods=node_pods, steps=steps)
def test_no_claim_is_lost_before_its_deadline_but_by_the_step_that_ends_it(settings, pods, steps):
    run = Run(settings, pods)
    for seconds, step in steps:
        before = run.state
        run.take(seconds, step)
        awaited = {pod.uid for pod in pods} - before.ineligible.emptied
        for claim in before.claims:
            if run.now_seconds < claim.deadline_seconds and not _may_end(
                claim, step, awaited, run.now_seconds
            ):
                assert any(_is_same(claim, one) for one in run.state.claims), (claim, step)


def _is_same(claim: Claim, other: Claim) -> bool:
    """Return whether two claims are of one victim; an eviction's may become that of what the pod left."""
    if claim.kind.is_eviction:
        return other.kind.is_eviction and other.uid == claim.uid
    return (other.kind, other.uid, other.pid) == (claim.kind, claim.uid, claim.pid)


def _may_end(  # noqa: PLR0911 - a case for each kind of step
    claim: Claim, step: Event | Pass, awaited: Collection[str], now_seconds: float
) -> bool:
    """Return whether a step may end a claim whose deadline has not passed; `awaited` are pods that exist."""
    match step:
        case EvictionCalledOff(uid=uid) | PodEnded(uid=uid):
            return claim.kind.is_eviction and claim.uid == uid
        case ProcessOver(uid=uid):
            return claim.kind is ClaimKind.ENDING_PROCESS and claim.uid == uid
        case ProcessKilled(pod=pod, process=process):
            is_its = claim.kind is ClaimKind.ENDING_PROCESS and claim.uid == pod.uid
            return is_its or claim.pid == process.pid
        case FilesInMemoryObserved():
            return claim.kind is ClaimKind.FILES
        case ProcessesExited(pids=pids):
            return claim.pid in pids
        case PodsStruck():  # whose kill was unknown is known now; of those that go on rising none is awaited
            is_unknown = claim.kind is ClaimKind.KERNEL_KILL and claim.pid is None
            return is_unknown or claim.kind is ClaimKind.STRUCK_POD
        case Restarted():
            return claim.kind not in {ClaimKind.POD, ClaimKind.FILES}
        case tuple() | CrossingServed():
            return not _is_awaited(claim, awaited, now_seconds)
    return False


def _is_awaited(claim: Claim, awaited: Collection[str], now_seconds: float) -> bool:
    """Return whether a pass goes on waiting for a claim, by what the claim shows."""
    still_seconds = now_seconds - claim.progress_seconds
    match claim.kind:
        case ClaimKind.POD | ClaimKind.ENDING_PROCESS:
            return claim.uid in awaited
        case ClaimKind.FILES:
            return True
        case ClaimKind.PROCESS:
            return still_seconds < STUCK_SECONDS
        case ClaimKind.KERNEL_KILL:
            return claim.amount is not None or still_seconds < STILL_SECONDS
    return claim.left != 0 and still_seconds < STILL_SECONDS


@pytest.mark.slow
@examples(max_examples=max(200, examples().max_examples))
@given(settings=settings_of_node, pods=node_pods, steps=steps)
def test_no_order_of_events_and_passes_evicts_more_than_is_allowed(settings, pods, steps):
    run = Run(settings, pods)
    for seconds, step in steps:
        now_seconds = run.now_seconds + seconds
        waited = {one.uid for one in run.state.in_flight if now_seconds < one.deadline_seconds}
        in_grace = {one.uid for one in run.state.in_flight if one.is_in_grace(now_seconds)}
        ordered = run.take(seconds, step)
        assert len({one.pod.uid for one in ordered}) == len(ordered)
        assert sum(_is_for_the_node(one) for one in ordered) <= 1
        for one in ordered:
            is_hard = one.threshold is not None and one.threshold.is_hard
            assert one.pod.uid not in waited - (in_grace if is_hard else set())
        recent = [at for at, _ in run.ordered if run.now_seconds - at < 60.0]
        most = settings.evictions_per_minute
        assert most is None or not ordered or all(map(_is_exempt, ordered)) or len(recent) <= most


def _is_for_the_node(one: Eviction) -> bool:
    """Return whether a threshold or a rule is the reason, and not the pod's own limit."""
    return one.threshold is not None or one.signal is RuleSignal.RULE


def _is_exempt(one: Eviction) -> bool:
    """Return whether no rate holds: without an eviction for a hard memory threshold the kernel would kill."""
    return one.threshold is not None and one.threshold.is_hard and one.signal in MEMORY_SIGNALS


@pytest.mark.slow
@given(settings=settings_of_node, pods=node_pods, steps=steps)
def test_no_order_of_events_and_passes_evicts_for_what_earlier_victims_still_free(settings, pods, steps):
    run = Run(settings, pods)
    for seconds, step in steps:
        for one in run.take(seconds, step):
            if one.threshold is None or one.resource is not Resource.MEMORY:
                continue
            seen = run.snapshot.signals[one.threshold.signal]
            wanted = one.threshold.value.of(seen.capacity)
            if one.threshold.minimum_reclaim is not None:
                wanted += one.threshold.minimum_reclaim.of(seen.capacity)
            assert min(seen.capacity, seen.available + _still_to_come(run, one.threshold)) < wanted


def _still_to_come(run: Run, threshold: Threshold) -> int:
    """Return how much of memory the victims before a pass have still to free; of one owner the larger."""
    whole: dict[str, int] = {}
    alone: dict[str, int] = {}
    for claim in run.decided.claims:
        owner = claim.uid or f"process {claim.pid}"
        if claim.kind in {ClaimKind.PROCESS, ClaimKind.KERNEL_KILL}:
            alone[owner] = alone.get(owner, 0) + (claim.left or 0)
        elif claim.kind is ClaimKind.POD and claim.resource is Resource.MEMORY:
            used = run.snapshot.pods.get(claim.uid or "")
            if used is not None and not (threshold.is_hard and claim.is_in_grace(run.now_seconds)):
                whole[owner] = used.memory_working_set_bytes or 0
    return sum(max(whole.get(owner, 0), alone.get(owner, 0)) for owner in whole | alone)
