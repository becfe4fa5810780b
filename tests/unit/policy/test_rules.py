from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.decisions import Claim, ClaimKind, Decision, Ineligible, Inputs, PolicyState, Snapshot
from reactor.model.kills import Slowdown, SlowReason
from reactor.model.pod_lists import Preference
from reactor.model.pods import Container, ContainerUsage, FilesystemUsage, Pod, PodUsage
from reactor.model.quantity import parse_quantity
from reactor.model.rules import (
    Firing,
    RankedBy,
    RuleAction,
)
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Threshold
from reactor.policy.claims import eligible
from reactor.policy.decide import after_reclaim, decide
from reactor.policy.messages import eviction_message
from reactor.policy.rules import before_rules, decide_firing, hit_by, rule_hold, rule_holds
from tests.support.builders import make_observation, make_pod, make_threshold
from tests.support.processes import MIB
from tests.support.rules import firing_of, make_rule

SETTINGS = EvictionSettings(evictions_per_minute=2)
PODS = tuple(replace(make_pod(name), cgroup=f"/apps/{name}") for name in ("small", "hog"))
SLOWED = Slowdown(
    signal=Signal.MEMORY_AVAILABLE,
    reason=SlowReason.UNHELPFUL,
    since_seconds=0.0,
    until_seconds=99.0,
    message="they did not help",
)
USED = {
    "uid-small": PodUsage(memory_working_set_bytes=10 * MIB, swap_bytes=90 * MIB),
    "uid-hog": PodUsage(memory_working_set_bytes=80 * MIB, swap_bytes=0),
}


def decided(
    firing: Firing,
    *,
    pods: tuple[Pod, ...] = PODS,
    state: PolicyState | None = None,
    amounts: Mapping[str, int] | None = None,
) -> Decision:
    firing = replace(firing, amounts=amounts or {})
    return fired(firing, state or PolicyState(), Snapshot(pods=USED), pods)[1]


def fired(
    firing: Firing,
    state: PolicyState,
    snapshot: Snapshot,
    pods: tuple[Pod, ...],
    settings: EvictionSettings = SETTINGS,
) -> tuple[PolicyState, Decision]:
    made = Decision(at_seconds=12.0, thresholds_met=state.thresholds_met)
    return decide_firing(Inputs(settings, state, snapshot, pods, 12.0), made, firing)


def victims(decision: Decision) -> list[str]:
    return [one.pod.name for one in decision.evictions]


@pytest.mark.parametrize(
    ("by", "amounts", "victim"),
    [
        (RankedBy.MEMORY, {}, ["hog"]),
        (RankedBy.SWAP, {}, ["small"]),
        (RankedBy.GROWTH, {"uid-small": 5, "uid-hog": -3}, ["small"]),
        (RankedBy.GROWTH, {"uid-small": 0, "uid-hog": -3}, []),
        (RankedBy.PGSCAN, {"uid-small": 5, "uid-hog": 6}, ["hog"]),
        (RankedBy.PGSCAN, {"uid-small": 5}, ["small"]),
        (RankedBy.PGSCAN, {"uid-small": 0, "uid-hog": 0}, []),
        (RankedBy.GROWTH, {}, []),
    ],
)
def test_the_worst_below_is_who_has_most_of_what_the_rule_names(
    by: RankedBy, amounts: dict[str, int], victim: list[str]
) -> None:
    decision = decided(firing_of(by=by), amounts=amounts)
    assert victim == victims(decision)
    assert (decision.deferred_because is None) == bool(victim)
    assert not decision.waits


AVOIDED = tuple(replace(pod, preference=Preference.AVOID) if pod.name == "hog" else pod for pod in PODS)


@pytest.mark.parametrize(
    ("holders_go", "amounts", "victim"),
    [
        # As in systemd's TEST-55-OOMD: the avoided one reads its files again and again, the other one's
        # memory is in swap, which is full, and nothing of it is left to be scanned.
        (True, {"uid-small": 0, "uid-hog": 900}, ["small"]),
        (False, {"uid-small": 0, "uid-hog": 900}, ["hog"]),
        (True, {"uid-small": 1, "uid-hog": 900}, ["small"]),
        (True, {"uid-hog": 900}, ["hog"]),
        (True, {"uid-small": 0, "uid-hog": 0}, ["small"]),
        (True, {}, []),
    ],
)
def test_an_avoided_pod_goes_after_all_that_a_rule_counts_as_candidates(
    *, holders_go: bool, amounts: dict[str, int], victim: list[str]
) -> None:
    firing = firing_of(by=RankedBy.PGSCAN, holders_go=holders_go)
    decision = decided(firing, pods=AVOIDED, amounts=amounts)
    assert victim == victims(decision)
    because = None if victim else "no pod there is known to have any pgscan or memory"
    assert because == decision.deferred_because


def test_of_pods_of_which_nothing_was_scanned_the_one_with_the_most_memory_goes() -> None:
    nothing = dict.fromkeys(USED, 0)
    holders = firing_of(by=RankedBy.PGSCAN, holders_go=True)
    assert ["hog"] == victims(decided(holders, amounts=nothing))
    assert ["small"] == victims(decided(holders, amounts={**nothing, "uid-small": 1}))
    assert ["cold"] == victims(decided(holders, pods=(_placed("cold"), *PODS), amounts={"uid-cold": 1}))
    assert [] == victims(decided(holders, pods=(_placed("cold"),), amounts={"uid-cold": 0}))


def _placed(name: str, preference: Preference = Preference.NONE, priority: int = 0) -> Pod:
    return replace(make_pod(name), cgroup=f"/apps/{name}", preference=preference, priority=priority)


def _some(by: RankedBy, *, held: bool, amount: int | None, memory: int | None) -> bool:
    """Return whether a pod has some of what a rule ranks by; with `held` one that holds memory has, too."""
    if by is RankedBy.MEMORY:
        return bool(memory)
    return amount is not None and (amount > 0 or (held and bool(memory)))


@pytest.mark.parametrize(
    ("by", "holders_go"), [*((by, False) for by in RankedBy), (RankedBy.PGSCAN, True)], ids=str
)
@given(
    drawn=st.lists(
        st.tuples(
            st.sampled_from(Preference),
            st.integers(0, 1),  # the priority
            st.sampled_from([None, -1, 0, 2]),  # the amount
            st.sampled_from([None, 0, 5]),  # the memory
            st.sampled_from([None, None, None, "never"]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_an_avoided_pod_never_goes_while_a_candidate_is_there_that_is_not_avoided(
    *,
    by: RankedBy,
    holders_go: bool,
    drawn: list[tuple[Preference, int, int | None, int | None, str | None]],
) -> None:
    pods, used, amounts, candidates = [], {}, {}, {}
    for number, (preference, priority, amount, memory, critical) in enumerate(drawn):
        pod = replace(_placed(str(number), preference, priority), critical_because=critical)
        pods.append(pod)
        in_swap = None if amount is None else max(0, amount)
        used[pod.uid] = PodUsage(memory_working_set_bytes=memory, swap_bytes=in_swap)
        if amount is not None:
            amounts[pod.uid] = amount
        if critical is None and _some(by, held=holders_go, amount=amount, memory=memory):
            candidates[pod.uid] = pod
    firing = replace(firing_of(by=by, holders_go=holders_go), amounts=amounts)
    _, decision = fired(firing, PolicyState(), Snapshot(pods=used), tuple(pods))
    assert bool(candidates) == bool(decision.evictions)
    for eviction in decision.evictions:
        assert eviction.pod.uid in candidates
        assert eviction.pod.preference == min(pod.preference for pod in candidates.values())


def test_the_message_of_an_eviction_has_the_rule_and_its_inputs() -> None:
    (eviction,) = decided(firing_of()).evictions
    assert (None, 0, "rule") == (eviction.threshold, eviction.grace_period_seconds, eviction.signal)
    assert (
        "Rule thrash has held in /apps for 12.0 s: pressure memory full avg10 >= 60 %: 71.23 %, at least "
        "60 %. " == eviction_message(eviction)[0]
    )


def learned_by_vpa(annotations: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return containers and bytes that VPA's observer takes from an Evicted event (parseEvictionEvent)."""
    names, usages, resources = (
        annotations[key].split(",") if key in annotations else []
        for key in ("offending_containers", "offending_containers_usage", "starved_resource")
    )
    if not len(names) == len(usages) == len(resources):
        return []
    return [
        (name, parse_quantity(usage).value)
        for name, usage, resource in zip(names, usages, resources, strict=True)
        if resource == "memory" and usage
    ]


@pytest.mark.parametrize(
    ("containers", "usages", "resources", "learned"),
    [
        ("test-container", "1024Ki", "memory", [("test-container", MIB)]),
        (
            "test-container,other-container",
            "1024Ki,2048Ki",
            "memory,memory",
            [("test-container", MIB), ("other-container", 2 * MIB)],
        ),
        ("test-container,other-container", "1024Ki,2048Ki", "memory,evictable", [("test-container", MIB)]),
        ("test-container,other-container", "1024Ki,2048Ki", "memory", []),
    ],
)
def test_vpa_learns_from_lists_of_one_length_alone(
    containers: str, usages: str, resources: str, learned: list[tuple[str, int]]
) -> None:
    """Upstream's table (TestParseEvictionEvent): what the next test goes by."""
    annotations = {
        "offending_containers": containers,
        "offending_containers_usage": usages,
        "starved_resource": resources,
    }
    assert learned == learned_by_vpa(annotations)


@pytest.mark.parametrize("names", [(), ("app",), ("app", "log"), ("app", "log", "proxy")])
def test_vpa_learns_from_a_rules_eviction_whatever_number_of_containers_the_pod_has(
    names: tuple[str, ...],
) -> None:
    request = {Resource.MEMORY: parse_quantity("1Mi")}
    containers = tuple(Container(name=name, requests=request) for name in ("modest", *names))
    pods = tuple(replace(pod, containers=containers) for pod in PODS)
    used = tuple(ContainerUsage(name=name, memory_working_set_bytes=80 * MIB) for name in names)
    within = ContainerUsage(name="modest", memory_working_set_bytes=MIB)
    hog = USED["uid-hog"]._replace(containers=(within, *used))
    snapshot = Snapshot(pods={**USED, "uid-hog": hog})
    (eviction,) = fired(firing_of(), PolicyState(), snapshot, pods)[1].evictions
    assert [(name, 80 * MIB) for name in names] == learned_by_vpa(eviction.annotations)
    assert {"memory"} == set(eviction.annotations["starved_resource"].split(","))


@pytest.mark.parametrize(
    ("cgroup", "victim"),
    [
        ("/apps/system", ["agent"]),  # which has less than the hog outside
        ("/apps/system/burstable", ["agent"]),
        ("/apps", ["hog"]),
        ("/", ["hog"]),
    ],
)
def test_a_pod_of_a_partition_goes_for_a_rule_of_the_partition_alone(cgroup: str, victim: list[str]) -> None:
    because = "in the system partition (kubepods/system), which has a limit of its own"
    agent = replace(
        make_pod("agent"),
        cgroup="/apps/system/burstable/agent",
        partition="/apps/system",
        critical_because=because,
    )
    spared = replace(
        make_pod("node-critical"), cgroup="/apps/system/burstable/b", critical_because="priority 2000001000"
    )
    used = {
        **USED,
        "uid-agent": PodUsage(memory_working_set_bytes=20 * MIB),
        "uid-node-critical": PodUsage(memory_working_set_bytes=500 * MIB),
    }
    found = fired(firing_of(cgroup), PolicyState(), Snapshot(pods=used), (*PODS, agent, spared))[1]
    assert victim == victims(found)


OF_PARTITION = replace(
    make_pod("agent"), cgroup="/apps/system/a", partition="/apps/system", critical_because="in it"
)


def decided_for(signal: Signal, pod: Pod, state: PolicyState | None = None) -> Decision:
    """Return the decision for a threshold that is met, where the pod is the only one and uses the most."""
    used = PodUsage(
        memory_working_set_bytes=90 * MIB,
        process_count=90,
        swap_bytes=90 * MIB,
        containers=(ContainerUsage(name="c", logs=FilesystemUsage(used_bytes=90 * MIB, inodes_used=90)),),
    )
    snapshot = Snapshot(signals={signal: make_observation(1)}, pods={pod.uid: used})
    settings = EvictionSettings(thresholds=(replace(make_threshold(50), signal=signal),))
    state, decision = decide(settings, state or PolicyState(), snapshot, (pod,), 1.0)
    if decision.reclaim:
        _, decision = after_reclaim(settings, state, decision, snapshot, snapshot, (pod,))
    return decision


@pytest.mark.parametrize("signal", [Signal.MEMORY_AVAILABLE, Signal.SWAP_AVAILABLE])
def test_a_threshold_for_memory_never_evicts_a_pod_of_a_partition(signal: Signal) -> None:
    """Not even where it alone could help: the node's threshold is not for what the partition may use."""
    decision = decided_for(signal, OF_PARTITION)
    assert ((), True) == (decision.evictions, decision.no_victim is not None)


@pytest.mark.parametrize(
    "signal",
    [Signal.NODEFS_AVAILABLE, Signal.NODEFS_INODES_FREE, Signal.IMAGEFS_AVAILABLE, Signal.PID_AVAILABLE],
)
def test_a_pod_of_a_partition_goes_for_what_the_partition_shares_with_the_node(signal: Signal) -> None:
    """A partition limits memory alone: else others would go for the disk that its pods fill."""
    assert ["agent"] == [one.pod.name for one in decided_for(signal, OF_PARTITION).evictions]
    assert () == decided_for(signal, replace(OF_PARTITION, partition=None)).evictions
    (kept,) = eligible(
        PolicyState(ineligible=Ineligible(failed={OF_PARTITION.uid: (2.0, "EPERM")})), [OF_PARTITION], 1.0
    )
    assert kept.could_not_be_ended
    assert () == decided_for(signal, kept).evictions


def test_a_report_evicts_nobody_and_ranks_nobody() -> None:
    decision = decided(firing_of(action=RuleAction.REPORT))
    assert ((), (), None) == (decision.evictions, decision.ranking, decision.deferred_because)
    assert decision.rule is not None


@pytest.mark.parametrize(
    ("cgroup", "action", "hit"),
    [
        ("/apps/hog", RuleAction.EVICT, ["hog"]),
        ("/apps/hog/app/part", RuleAction.EVICT, ["hog"]),
        ("/apps/hogs", RuleAction.EVICT, []),
        ("/apps", RuleAction.EVICT, []),
        ("/", RuleAction.EVICT, []),
        ("/apps/hog", RuleAction.EVICT_WORST, ["hog"]),
        ("/apps/hog/app", RuleAction.EVICT_WORST, []),
        ("/apps", RuleAction.EVICT_WORST, ["small", "hog"]),
        ("/", RuleAction.EVICT_WORST, ["small", "hog"]),
        ("/app", RuleAction.EVICT_WORST, []),
    ],
)
def test_a_rule_hits_the_pod_of_its_cgroup_or_those_below_and_no_others(
    cgroup: str, action: RuleAction, hit: list[str]
) -> None:
    unplaced = replace(make_pod("unplaced"), cgroup=None)
    assert hit == [pod.name for pod in hit_by(make_rule(action=action), cgroup, (*PODS, unplaced))]
    decision = decided(firing_of(cgroup, action=action))
    assert hit[-1:] == victims(decision)
    assert ("there is no pod" in (decision.deferred_because or "")) == (not hit)


@given(
    st.lists(
        st.tuples(st.sampled_from(["/apps/a", "/apps/a/b", "/apps/c", "/other", "/apps"]), st.booleans()),
        max_size=6,
    ),
    st.sampled_from(["/", "/apps", "/apps/a", "/apps/a/b/x", "/other/x"]),
    st.sampled_from([RuleAction.EVICT, RuleAction.EVICT_WORST]),
    st.sampled_from(RankedBy),
)
def test_no_critical_pod_and_none_beside_the_cgroup_is_ever_evicted(
    placed: list[tuple[str, bool]], cgroup: str, action: RuleAction, by: RankedBy
) -> None:
    pods = tuple(
        replace(make_pod(str(number)), cgroup=where, critical_because="marked" if is_critical else None)
        for number, (where, is_critical) in enumerate(placed)
    )
    used = {pod.uid: PodUsage(memory_working_set_bytes=MIB, swap_bytes=MIB) for pod in pods}
    firing = replace(firing_of(cgroup, action=action, by=by), amounts={pod.uid: 7 for pod in pods})
    _, decision = fired(firing, PolicyState(), Snapshot(pods=used), pods)
    for eviction in decision.evictions:
        where = str(eviction.pod.cgroup)
        assert eviction.pod.critical_because is None
        inner, outer = (cgroup, where) if action is RuleAction.EVICT else (where, cgroup)
        assert outer in {"/", inner} or inner.startswith(f"{outer}/")


def test_where_all_are_critical_the_reason_says_so_and_the_avoided_go_last() -> None:
    critical = tuple(replace(pod, critical_because="pods.never: unit hog") for pod in PODS)
    assert "never is (pods.never: unit hog)" in str(decided(firing_of(), pods=critical).deferred_because)
    avoided = tuple(replace(pod, preference=Preference.AVOID) if pod.name == "hog" else pod for pod in PODS)
    assert ["small"] == victims(decided(firing_of(), pods=avoided))


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (PolicyState(thresholds_met=(make_threshold(100 * MIB),)), "thresholds evict first"),
        (
            PolicyState(claims=(Claim(kind=ClaimKind.POD, uid="x", deadline_seconds=99),)),
            "in flight",
        ),
        (
            PolicyState(claims=(Claim(kind=ClaimKind.KERNEL_KILL, pid=1, amount=1, deadline_seconds=99.0),)),
            "in flight",
        ),
        (
            PolicyState(slowdowns=(SLOWED,)),
            "slowed down: they did not help",
        ),
        (PolicyState(evicted_at=(1.0, 2.0)), "rate: 2 evictions"),
    ],
)
def test_a_rule_waits_where_thresholds_evict_or_evictions_are_braked(state: PolicyState, reason: str) -> None:
    assert [] == list(rule_holds(SETTINGS, state, firing_of(action=RuleAction.REPORT)))
    reclaim_waits = decided(firing_of(action=RuleAction.RECLAIM), state=state).waits
    assert ("rate" not in reason and "slowed" not in reason) == reclaim_waits == any(before_rules(state))
    decision = decided(firing_of(), state=state)
    assert () == decision.evictions
    assert decision.waits
    assert reason in str(decision.deferred_because)


def test_a_reclaim_ends_no_pod_and_waits_for_no_rate_of_evictions() -> None:
    reclaim = firing_of(action=RuleAction.RECLAIM)
    settings = replace(SETTINGS, evictions_per_minute=1)
    state = PolicyState(evicted_at=(11.0,), slowdowns=(SLOWED,))
    after, decision = fired(reclaim, state, Snapshot(pods=USED), PODS, settings)
    assert (decision.rule_reclaim,) == after.holds
    assert ((), (), False, None) == (
        decision.evictions,
        decision.ranking,
        decision.waits,
        decision.deferred_because,
    )


@pytest.mark.parametrize(
    ("until_seconds", "waiting"), [(None, []), (12.0, []), (12.1, [True])], ids=["none", "over", "runs"]
)
def test_a_reclaim_waits_for_one_that_is_under_way(until_seconds: float | None, waiting: list[bool]) -> None:
    state = PolicyState(
        holds=()
        if until_seconds is None
        else (replace(rule_hold(make_rule(), 0.0), until_seconds=until_seconds),)
    )
    assert bool(waiting) is decided(firing_of(action=RuleAction.RECLAIM), state=state).waits
    assert not decided(firing_of(), state=state).waits


def test_a_soft_threshold_that_is_met_stops_no_rule() -> None:
    soft = make_threshold(100 * MIB, grace_period_seconds=60)
    assert ["hog"] == victims(decided(firing_of(), state=PolicyState(thresholds_met=(soft,))))


# A rule in the pass of everything else


def passed(
    firing: Firing, available_mib: int, *thresholds: Threshold, state: PolicyState | None = None
) -> Decision:
    """Make a pass for a rule over a node that has so much available."""
    settings = replace(SETTINGS, thresholds=thresholds)
    seen = {Signal.MEMORY_AVAILABLE: make_observation(available_mib * MIB)}
    return decide(settings, state or PolicyState(), Snapshot(signals=seen, pods=USED), PODS, 12.0, firing)[1]


def test_in_a_pass_a_rule_comes_after_the_thresholds_and_not_with_them() -> None:
    hard, soft = make_threshold(100 * MIB), make_threshold(200 * MIB, grace_period_seconds=60)
    evicting = passed(firing_of(), 50, hard, soft)
    assert (["hog"], None, hard) == (victims(evicting), evicting.rule, evicting.acted_on)
    in_grace = passed(firing_of(), 150, hard, soft)
    assert (["hog"], firing_of(), None) == (victims(in_grace), in_grace.rule, in_grace.acted_on)


def test_a_rule_acts_in_a_pass_in_which_a_threshold_waits_or_finds_no_victim() -> None:
    soft = make_threshold(200 * MIB, grace_period_seconds=10)
    due = PolicyState(first_observed={soft: 0.0})
    waiting = due._replace(evicted_at=(11.0, 11.5))
    report = firing_of(action=RuleAction.REPORT)
    rate = f"{soft}: rate: 2 evictions in the last minute, as many as are allowed"
    assert rate == passed(report, 150, soft, state=waiting).deferred_because
    assert f"{rate}; {rate.removeprefix(f'{soft}: ')}" == (
        passed(firing_of(), 150, soft, state=waiting).deferred_because
    )
    settings = replace(SETTINGS, thresholds=(soft,))
    kept = replace(PODS[0], critical_because="static pod")
    seen = {Signal.MEMORY_AVAILABLE: make_observation(150 * MIB)}
    _, decision = decide(settings, due, Snapshot(signals=seen, pods=USED), (kept,), 12.0, report)
    assert (report, None, None) == (decision.rule, decision.acted_on, decision.no_victim)
