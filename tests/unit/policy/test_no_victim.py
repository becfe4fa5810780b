"""A threshold is met and no pod can be evicted: that is found, with who holds how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from reactor.model.decisions import Claim, ClaimKind, Decision, PolicyState, Snapshot
from reactor.model.kills import Slowdown, SlowReason
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Resource, Signal
from reactor.policy.decide import decide
from tests.support.builders import make_observation, make_pod, make_threshold
from tests.support.processes import MIB

HARD = make_threshold(100 * MIB)
DATABASE = replace(make_pod("database"), critical_because="pods.never: unit database.service")
AGENT = replace(make_pod("agent"), critical_because="could not be ended: refused")


def decided(
    *pods: Pod,
    held_mib: int = 200,
    state: PolicyState | None = None,
    used: Mapping[str, PodUsage] = MappingProxyType({}),
    **more: object,
) -> Decision:
    """Return what is decided with 40 MiB of 512 MiB left, where each pod holds so much, or as `used` says."""
    settings = EvictionSettings(thresholds=(HARD,), **more)
    snapshot = Snapshot(
        signals={Signal.MEMORY_AVAILABLE: make_observation(40 * MIB)},
        pods={**{pod.uid: PodUsage(memory_working_set_bytes=held_mib * MIB) for pod in pods}, **used},
    )
    return decide(settings, state or PolicyState(), snapshot, pods, 1000.0)[1]


def test_who_holds_the_memory_is_named_with_why_each_is_spared() -> None:
    found = decided(DATABASE, AGENT).no_victim
    assert found is not None
    assert (
        f"{HARD} is met (40Mi of 512Mi available), and no pod can be evicted; held: "
        "200Mi by cgroup/database (pods.never: unit database.service), "
        "200Mi by cgroup/agent (could not be ended: refused); 72Mi are used outside the pods"
    ) == found


def test_where_one_can_be_evicted_nothing_is_found() -> None:
    decision = decided(DATABASE, make_pod("hog"))
    assert None is decision.no_victim
    assert ["hog"] == [one.pod.name for one in decision.evictions]


UNREAD = PodUsage(unreadable=frozenset({Resource.MEMORY}))


def test_of_pods_none_of_which_could_be_read_no_victim_is_guessed() -> None:
    """As where the guard has no descriptor left: one after the other would die for what none may hold."""
    decision = decided(make_pod("a"), make_pod("b"), DATABASE, used={"uid-a": UNREAD, "uid-b": UNREAD})
    assert () == decision.evictions
    assert decision.no_victim is not None
    assert decision.no_victim.endswith(
        "no pod can be evicted; the usage of the candidates could not be read: to choose one would be a "
        "guess; held: 200Mi by cgroup/database (pods.never: unit database.service)"
    )


@pytest.mark.parametrize("other", [DATABASE, None], ids=["beside one that is never evicted", "alone"])
def test_the_only_pod_that_may_be_evicted_is_though_it_could_not_be_read(other: Pod | None) -> None:
    pods = [make_pod("a"), *([other] if other else [])]
    decision = decided(*pods, used={"uid-a": UNREAD})
    assert ["a"] == [one.pod.name for one in decision.evictions]


def test_one_that_could_be_read_is_evicted_before_those_that_could_not() -> None:
    decision = decided(make_pod("a"), make_pod("b"), make_pod("c"), used={"uid-a": UNREAD, "uid-b": UNREAD})
    assert ["c"] == [one.pod.name for one in decision.evictions]


def test_a_node_without_a_pod_is_said_to_have_none() -> None:
    found = decided().no_victim
    assert found is not None
    assert "there is no pod; 472Mi are used outside the pods" in found


def test_pods_that_hold_nothing_are_named_all_the_same() -> None:
    found = decided(DATABASE, held_mib=0).no_victim
    assert found is not None
    assert "cgroup/database: pods.never: unit database.service; 472Mi are used outside" in found


def test_no_more_than_three_holders_are_named() -> None:
    pods = [replace(make_pod(f"pod-{number}"), critical_because="never") for number in range(5)]
    found = decided(*pods, held_mib=90).no_victim
    assert found is not None
    assert found.count("90Mi by") == 3
    assert " and 2 more" in found


def test_a_signal_that_is_no_memory_has_no_memory_outside_the_pods() -> None:
    pids = make_threshold(100, Signal.PID_AVAILABLE)
    snapshot = Snapshot(
        signals={Signal.PID_AVAILABLE: make_observation(50, 1000)},
        pods={DATABASE.uid: PodUsage(process_count=900)},
    )
    settings = EvictionSettings(thresholds=(pids,))
    _, decision = decide(settings, PolicyState(), snapshot, (DATABASE,), 1000.0)
    assert decision.no_victim is not None
    assert decision.no_victim.endswith("900 by cgroup/database (pods.never: unit database.service)")


def test_what_an_eviction_is_still_to_free_is_awaited_and_not_called_hopeless() -> None:
    flight = Claim(kind=ClaimKind.POD, uid=AGENT.uid, kill_at_seconds=990.0, deadline_seconds=1010.0)
    decision = decided(DATABASE, AGENT, state=PolicyState(claims=(flight,)))
    assert None is decision.no_victim
    assert decision.deferred_because is not None
    # Once it can't be enough, nothing is deferred, and still one is under way.
    decision = decided(DATABASE, AGENT, state=PolicyState(claims=(flight,)), held_mib=1)
    assert (None, ()) == (decision.no_victim, decision.evictions)


@pytest.mark.parametrize("pods", [(DATABASE,), (DATABASE, make_pod("hog"))])
def test_a_slowdown_is_no_reason_where_there_is_no_pod_to_evict(pods: tuple[Pod, ...]) -> None:
    slowdown = Slowdown(
        signal=Signal.MEMORY_AVAILABLE,
        reason=SlowReason.OUTSIDE_PODS,
        since_seconds=999.0,
        until_seconds=1300.0,
        message="slow",
    )
    state = PolicyState(slowdowns=(slowdown,), first_observed={HARD: 999.0})
    decision = decided(*pods, held_mib=10, state=state, unhelpful_eviction_pause_seconds=300.0)
    is_alone = len(pods) == 1
    assert is_alone == (decision.no_victim is not None)
    assert is_alone == (decision.deferred_because is None)
