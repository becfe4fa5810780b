import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.errors import RefusedError
from reactor.tune.cases import Assume, Pace, Terms, case, pace_of
from reactor.tune.history import Crossing, History
from reactor.tune.latency import freeing_of
from reactor.tune.measured import Growth, Measured
from reactor.tune.model import Assumptions, covered_rate_bytes, recommend, soft_for, threshold_bytes

MIB = 1 << 20
BYTES = st.integers(min_value=0, max_value=1 << 44)
CAPACITIES = st.integers(min_value=MIB, max_value=1 << 44)
RATES = st.floats(min_value=0, max_value=1e12)
SECONDS = st.floats(min_value=0, max_value=1e3)


def a_crossing(**known: object) -> Crossing:
    return Crossing(
        time="2026-11-21T03:04:05Z",
        threshold="memory.available<100Mi",
        is_hard=True,
        evicted=1,
        wanted_bytes=100 * MIB,
        available_bytes=99 * MIB,
        **known,  # type: ignore[arg-type]
    )


def with_rates(*rates_bytes: float) -> History:
    return History(crossings=tuple(a_crossing(rate_bytes=rate_bytes) for rate_bytes in rates_bytes))


def needed_bytes(rate_bytes: float, seconds: float, reserve_bytes: int) -> int:
    terms = Terms(reaction_seconds=seconds, freeing_seconds=0, reserve_bytes=reserve_bytes)
    return case(Assume.ONE, "one", Pace(sustained_bytes=rate_bytes), terms).needed_bytes


@given(RATES, RATES, SECONDS, BYTES)
def test_a_faster_allocator_never_needs_less(one: float, other: float, seconds: float, reserve: int) -> None:
    slower, faster = sorted((one, other))
    assert needed_bytes(slower, seconds, reserve) <= needed_bytes(faster, seconds, reserve)


@given(RATES, SECONDS, SECONDS, BYTES)
def test_a_slower_answer_never_needs_less(rate: float, one: float, other: float, reserve: int) -> None:
    sooner, later = sorted((one, other))
    assert needed_bytes(rate, sooner, reserve) <= needed_bytes(rate, later, reserve)


RUNS = st.lists(
    st.builds(
        Growth,
        allocators=st.integers(1, 4),
        size_bytes=st.integers(1, 1 << 30),
        huge_pages=st.just(False),  # noqa: FBT003 - a strategy
        rate_bytes=st.floats(1e3, 1e11),
        freed_seconds=st.just(0.1),
    ),
    min_size=1,
    max_size=6,
)


@given(RUNS, SECONDS, SECONDS)
def test_an_allocator_never_takes_less_in_a_longer_time(runs: list[Growth], one: float, other: float) -> None:
    pace = pace_of(runs)
    shorter, longer = sorted((one, other))
    assert pace.taken_bytes(shorter) <= pace.taken_bytes(longer) * (1 + 1e-9)


@given(RUNS, SECONDS, st.floats(1, 100), st.integers(0, 5))
def test_an_allocator_never_takes_less_when_a_run_was_faster(
    runs: list[Growth], seconds: float, factor: float, which: int
) -> None:
    which %= len(runs)
    faster = dataclasses.replace(runs[which], rate_bytes=runs[which].rate_bytes * factor)
    quicker = pace_of([*runs[:which], faster, *runs[which + 1 :]])
    assert pace_of(runs).taken_bytes(seconds) <= quicker.taken_bytes(seconds) * (1 + 1e-9)


def test_a_burst_counts_as_long_as_it_was_measured_and_then_the_longest_run_does() -> None:
    def run(size: int, rate: float) -> Growth:
        return Growth(allocators=1, size_bytes=size, huge_pages=False, rate_bytes=rate, freed_seconds=0.1)

    pace = pace_of([run(100, 1000.0), run(1000, 500.0), run(1000, 200.0)])
    assert [50, 100, 150, 1050] == [round(pace.taken_bytes(at)) for at in (0.05, 0.1, 0.2, 2)]


@given(BYTES, BYTES, BYTES, CAPACITIES)
def test_a_threshold_grows_with_what_is_needed(one: int, other: int, reserve: int, capacity: int) -> None:
    less, more = sorted((one, other))
    thresholds = [threshold_bytes(n, reserve_bytes=reserve, capacity_bytes=capacity) for n in (less, more)]
    assert thresholds == sorted(thresholds)


@given(BYTES, BYTES, CAPACITIES)
def test_a_threshold_is_neither_below_the_reserve_nor_above_the_capacity(
    needed: int, reserve: int, capacity: int
) -> None:
    found = threshold_bytes(needed, reserve_bytes=reserve, capacity_bytes=capacity)
    assert min(reserve, capacity) <= found <= capacity


@given(st.integers(min_value=0, max_value=1 << 40), st.floats(min_value=1e-3, max_value=1e3), BYTES)
def test_what_a_threshold_covers_needs_no_more_than_the_threshold(
    threshold: int, seconds: float, reserve: int
) -> None:
    covered = covered_rate_bytes(threshold, seconds, reserve)
    assert covered == 0 or needed_bytes(covered, seconds, reserve) <= threshold + 1


@given(RATES, SECONDS, SECONDS, BYTES)
def test_an_allocator_that_is_the_victim_needs_no_more(
    rate: float, reaction: float, freeing: float, reserve: int
) -> None:
    terms = Terms(reaction_seconds=reaction, freeing_seconds=freeing, reserve_bytes=reserve)
    found = case(Assume.ONE, "one", Pace(sustained_bytes=rate), terms)
    assert found.alone_bytes <= found.needed_bytes


@given(CAPACITIES, st.floats(min_value=0, max_value=1), st.lists(RATES, max_size=8))
def test_soft_is_above_hard_and_within_the_node(capacity: int, share: float, rates: list[float]) -> None:
    hard = int(capacity * share)
    found = soft_for(hard, capacity, with_rates(*rates))
    assert hard <= found.threshold_bytes <= capacity
    assert found.served <= found.known


def test_the_hard_threshold_is_the_allocator_times_reaction_and_freeing_plus_reserve(
    measured: Measured,
) -> None:
    found = recommend(measured, History(), Assumptions())
    assert "one allocator at full speed" == found.chosen.name
    seconds = found.terms.reaction_seconds + found.terms.freeing_seconds
    assert found.chosen.needed_bytes == pytest.approx(1000 * MIB * seconds + 100 * MIB, abs=1)
    assert 0 <= found.hard_bytes - found.chosen.needed_bytes < 10 * MIB
    assert found.is_enough
    assert found.terms.reaction_seconds >= 1.9e-3


def test_what_is_assumed_of_the_allocator_decides(measured: Measured) -> None:
    history = with_rates(300.0 * MIB, 20.0 * MIB)
    thresholds = {
        assume: recommend(measured, history, Assumptions(assume=assume)).hard_bytes for assume in Assume
    }
    assert thresholds[Assume.SEEN] < thresholds[Assume.ONE] < thresholds[Assume.ALL] < thresholds[Assume.HUGE]


def test_one_allocator_is_the_history_where_that_was_faster(measured: Measured) -> None:
    found = recommend(measured, with_rates(3000.0 * MIB), Assumptions())
    assert Assume.SEEN is found.chosen.kind


def test_huge_pages_count_where_everybody_is_given_them(measured: Measured) -> None:
    for_all = dataclasses.replace(measured, node=dataclasses.replace(measured.node, huge_pages="always"))
    assert Assume.HUGE is recommend(for_all, History(), Assumptions()).chosen.kind
    assert Assume.ONE is recommend(measured, History(), Assumptions()).chosen.kind


def test_an_assumption_of_which_nothing_is_known_is_refused(measured: Measured) -> None:
    with pytest.raises(RefusedError, match="--assume seen: the history has no rate"):
        recommend(measured, History(), Assumptions(assume=Assume.SEEN))


def test_more_than_half_of_the_node_is_not_recommended_but_said(measured: Measured) -> None:
    found = recommend(measured, History(), Assumptions(victim_bytes=500 * 1024 * MIB))
    assert (4096 * MIB, False) == (found.hard_bytes, found.is_enough)
    assert found.covered_rate_bytes < 1000 * MIB


def test_a_slow_kill_in_service_counts_as_much_as_one_that_was_measured(measured: Measured) -> None:
    quick = recommend(measured, History(crossings=(a_crossing(killed_seconds=1e-4),)), Assumptions())
    slow = recommend(measured, History(crossings=(a_crossing(killed_seconds=0.5),)), Assumptions())
    assert quick.terms.reaction_seconds < 0.1
    assert slow.terms.reaction_seconds > 0.5
    assert "history" in slow.reaction_why


def test_the_largest_pod_that_is_known_is_the_victim(measured: Measured) -> None:
    history = History(largest_pod_bytes=2048 * MIB)
    assert 2048 * MIB == recommend(measured, history, Assumptions()).victim_bytes
    assert 400 * MIB == recommend(measured, History(), Assumptions()).victim_bytes
    assert MIB == recommend(measured, history, Assumptions(victim_bytes=MIB)).victim_bytes


def test_a_larger_victim_takes_longer_and_a_slow_one_raises_the_bound(measured: Measured) -> None:
    freeing = freeing_of(measured, History())
    assert freeing.bound_seconds(64 * MIB) < freeing.bound_seconds(768 * MIB)
    assert freeing.usual_seconds(400 * MIB) == pytest.approx(0.04, rel=0.3)
    slow = a_crossing(freed_seconds=2.0, victim_bytes=400 * MIB)
    assert freeing_of(measured, History(crossings=(slow,))).bound_seconds(400 * MIB) >= 2.0


def test_too_little_is_told_and_nothing_recommended(measured: Measured) -> None:
    for lacking in ({"reactions": measured.reactions[:3]}, {"growths": ()}):
        with pytest.raises(RefusedError):
            recommend(dataclasses.replace(measured, **lacking), History(), Assumptions())  # type: ignore[arg-type]
