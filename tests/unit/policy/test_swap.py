from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from reactor.model.decisions import PolicyState, Snapshot
from reactor.model.pods import Pod, PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Layout, NodeCondition, Resource, Signal
from reactor.model.thresholds import Observation, ThresholdValue
from reactor.policy.decide import decide
from reactor.policy.events import EvictionOrdered, apply
from reactor.policy.messages import eviction_message
from reactor.policy.rank import rank
from tests.support.builders import make_pod, make_threshold

MIB = 1 << 20
SWAP = Signal.SWAP_AVAILABLE
HARD = make_threshold(100 * MIB, signal=SWAP)
SETTINGS = EvictionSettings(thresholds=(HARD,))
PODS = tuple(make_pod(name) for name in ("resident", "swapper", "leak"))
USED = {
    "uid-resident": PodUsage(memory_working_set_bytes=300 * MIB, swap_bytes=0),
    "uid-swapper": PodUsage(memory_working_set_bytes=50 * MIB, swap_bytes=200 * MIB),
    "uid-leak": PodUsage(memory_working_set_bytes=100 * MIB, swap_bytes=400 * MIB),
}


def left(mib: int, capacity_mib: int = 1024, signal: Signal = SWAP) -> Snapshot:
    seen = Observation(available=mib * MIB, capacity=capacity_mib * MIB, inactive_file_bytes=0)
    return Snapshot(signals={signal: seen}, pods=USED)


def order(signal: Signal, *, with_swap: bool = False, pods: tuple[Pod, ...] = PODS) -> list[str]:
    return [place.pod.name for place in rank(pods, USED, signal, Layout.SINGLE, with_swap=with_swap)]


def test_short_swap_evicts_the_pod_with_most_in_swap_and_is_memory_pressure() -> None:
    _, decision = decide(SETTINGS, PolicyState(), left(99), PODS, 0.0)
    (eviction,) = decision.evictions
    assert ("leak", Resource.SWAP, 0) == (eviction.pod.name, eviction.resource, eviction.grace_period_seconds)
    assert (NodeCondition.MEMORY_PRESSURE,) == decision.conditions
    message = "The node was low on resource: swap. Threshold quantity: 104857600, available: 99Mi. "
    assert eviction_message(eviction)[0].startswith(message)


@pytest.mark.parametrize("snapshot", [left(100), Snapshot(pods=USED), left(0, 0), left(50, 100)])
def test_enough_swap_none_or_a_threshold_at_its_capacity_evicts_nobody(snapshot: Snapshot) -> None:
    _, decision = decide(SETTINGS, PolicyState(), snapshot, PODS, 0.0)
    assert () == decision.evictions == decision.conditions


def test_soft_threshold_on_swap_waits_for_its_grace_period_and_its_minimum_reclaim() -> None:
    reclaim = ThresholdValue(text="50Mi", amount=Fraction(50 * MIB))
    soft = replace(make_threshold(100 * MIB, signal=SWAP, grace_period_seconds=60), minimum_reclaim=reclaim)
    settings = EvictionSettings(thresholds=(soft,), max_pod_grace_period_seconds=7)
    state, decision = decide(settings, PolicyState(), left(99), PODS, 0.0)
    assert () == decision.evictions
    state, decision = decide(settings, state, left(99), PODS, 60.0)
    assert [("leak", 7)] == [(one.pod.name, one.grace_period_seconds) for one in decision.evictions]
    _, decision = decide(settings, state, left(149), PODS, 61.0)
    assert (soft,) == decision.thresholds_met
    _, decision = decide(settings, state, left(150), PODS, 61.0)
    assert () == decision.thresholds_met


def test_pod_that_has_nothing_in_swap_goes_last_whatever_its_priority() -> None:
    pods = (make_pod("resident", priority=-5), make_pod("swapper", priority=9), make_pod("leak"))
    assert ["leak", "swapper", "resident"] == order(SWAP, pods=pods)


def test_ranking_for_memory_counts_swap_only_where_asked_for() -> None:
    assert ["resident", "leak", "swapper"] == order(Signal.MEMORY_AVAILABLE)
    assert ["leak", "resident", "swapper"] == order(Signal.MEMORY_AVAILABLE, with_swap=True)


def test_hog_whose_pages_are_in_swap_is_still_the_first_where_swap_counts() -> None:
    memory = make_threshold(100 * MIB)
    for ranks_swap, victim in ((False, "resident"), (True, "leak")):
        settings = EvictionSettings(thresholds=(memory,), ranks_swap=ranks_swap)
        seen = left(99, 512, Signal.MEMORY_AVAILABLE)
        _, decision = decide(settings, PolicyState(), seen, PODS, 0.0)
        assert [victim] == [one.pod.name for one in decision.evictions]
        assert 400 * MIB == next(one for one in decision.ranking if one.pod.name == "leak").swap_bytes


def test_pod_without_a_figure_for_swap_counts_by_its_memory() -> None:
    used = {
        "uid-a": PodUsage(memory_working_set_bytes=5),
        "uid-b": PodUsage(memory_working_set_bytes=3, swap_bytes=1),
    }
    pods = (make_pod("b"), make_pod("a"), make_pod("new"))
    ranking = rank(pods, used, Signal.MEMORY_AVAILABLE, Layout.SINGLE, with_swap=True)
    assert [("new", None), ("a", 5), ("b", 4)] == [(one.pod.name, one.usage) for one in ranking]


@pytest.mark.parametrize(
    ("first", "second", "available_mib", "victims"),
    [
        (SWAP, Signal.MEMORY_AVAILABLE, 250, []),
        # It has 100 MiB of memory to give; its 400 MiB in swap are none of it.
        (SWAP, Signal.MEMORY_AVAILABLE, 150, ["resident"]),
        (Signal.MEMORY_AVAILABLE, SWAP, 0, []),
    ],
)
def test_pod_that_dies_for_one_frees_the_other_and_is_credited_with_what_it_has_of_it(
    first: Signal, second: Signal, available_mib: int, victims: list[str]
) -> None:
    settings = EvictionSettings(
        thresholds=tuple(make_threshold(300 * MIB, signal=one) for one in (first, second)), ranks_swap=True
    )
    state, decision = decide(settings, PolicyState(), left(99, 1024, first), PODS, 0.0)
    (eviction,) = decision.evictions
    assert "leak" == eviction.pod.name
    state = apply(settings, state, EvictionOrdered(eviction=eviction), 0.0)
    state, decision = decide(settings, state, left(available_mib, 1024, second), PODS, 1.0)
    assert victims == [one.pod.name for one in decision.evictions]
