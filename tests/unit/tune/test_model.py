import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.config.settings import settings_from_text
from reactor.errors import RefusedError
from reactor.tune.history import Crossing, History
from reactor.tune.latency import freeing_of
from reactor.tune.measured import Growth, Measured
from reactor.tune.model import (
    Assume,
    Assumptions,
    Pace,
    Terms,
    Verdict,
    amount,
    case,
    covered_rate_bytes,
    duration,
    milliseconds,
    pace_of,
    quantity,
    rate,
    recommend,
    soft_for,
    threshold_bytes,
    verdict,
)
from tests.unit.tune.crossings import make_crossing

MIB = 1 << 20
BYTES = st.integers(min_value=0, max_value=1 << 44)
CAPACITIES = st.integers(min_value=MIB, max_value=1 << 44)
RATES = st.floats(min_value=0, max_value=1e12)
SECONDS = st.floats(min_value=0, max_value=1e3)
SOFT = (
    "evictionSoft: {memory.available: 2Gi}\n"
    "evictionSoftGracePeriod: {memory.available: 30s}\n"
    "evictionMaxPodGracePeriod: 30\n"
)
ENOUGH = f"evictionHard: {{memory.available: 1500Mi}}\n{SOFT}"


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


def test_too_little_is_reported_and_nothing_recommended(measured: Measured) -> None:
    for lacking in ({"reactions": measured.reactions[:3]}, {"growths": ()}):
        with pytest.raises(RefusedError):
            recommend(dataclasses.replace(measured, **lacking), History(), Assumptions())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size_mib", "text"),
    [
        (0, "0 MiB"),
        (0.4123, "0.41 MiB"),
        (0.0012, "0.0012 MiB"),
        (12.34, "12.3 MiB"),
        (100, "100 MiB"),
        (999, "999 MiB"),
        (1536, "1.5 GiB"),
    ],
)
def test_an_amount_has_three_digits(size_mib: float, text: str) -> None:
    assert text == amount(size_mib * MIB)
    assert f"{text}/s" == rate(size_mib * MIB)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00041, "0.41 ms"), (0.25, "250 ms"), (12, "12 s"), (210, "3.5 min")]
)
def test_a_time_is_in_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert text == duration(seconds)


def test_a_column_of_times_is_in_milliseconds() -> None:
    assert ["0.5", "1500"] == [milliseconds(0.0005), milliseconds(1.5)]


def test_a_threshold_is_written_in_whole_mi_rounded_up() -> None:
    assert ["0Mi", "1Mi", "2Mi"] == [quantity(0), quantity(1), quantity(MIB + 1)]


def crossings(*rates_bytes: float) -> tuple[Crossing, ...]:
    return tuple(make_crossing(rate_bytes) for rate_bytes in rates_bytes)


def on(measured: Measured, text: str, history: History | None = None) -> Verdict:
    history = history or History()
    return verdict(settings_from_text(text, "x"), recommend(measured, history, Assumptions()), history)


def test_a_configuration_that_is_enough_misses_nothing_and_says_what_it_covers(measured: Measured) -> None:
    found = on(measured, ENOUGH)
    assert () == found.misses
    assert any("one allocator with huge pages (3.91 GiB/s)" in line for line in found.covers)
    assert any("with polling alone (every 10 s): 13" in line for line in found.covers)


def test_a_threshold_that_is_too_low_misses_each_allocator_that_is_too_fast(measured: Measured) -> None:
    misses = on(measured, f"evictionHard: {{memory.available: 300Mi}}\n{SOFT}").misses
    assert any(line.startswith("one allocator with huge pages: takes") for line in misses)
    assert not any(line.startswith("one allocator at full speed") for line in misses)


def test_a_threshold_below_the_reserve_is_reported(measured: Measured) -> None:
    for value, is_told in (("100Mi", False), ("50Mi", True)):
        found = on(measured, f"evictionHard: {{memory.available: {value}}}")
        assert is_told is any("below the reserve of 100 MiB" in line for line in found.misses)
        assert () == found.covers


@pytest.mark.parametrize(
    ("text", "missed"),
    [
        ("evictionHard: {nodefs.available: 5%}", "no hard threshold for memory.available"),
        ("evictionHard: {memory.available: 1500Mi}", "no soft threshold for memory.available"),
        (f"{ENOUGH}reactor: {{dryRun: true}}", "dryRun is on"),
        (ENOUGH.replace("2Gi", "1Gi"), "memory.available<1Gi is not above the hard threshold"),
        (ENOUGH.replace("1500Mi", "2040Mi"), "leaves 8 MiB above the hard threshold"),
        (ENOUGH.replace("PodGracePeriod: 30", "PodGracePeriod: 0"), "are killed at once"),
    ],
)
def test_each_gap_is_reported(measured: Measured, text: str, missed: str) -> None:
    assert any(missed in line for line in on(measured, text).misses), on(measured, text).misses


def test_what_the_history_knows_is_held_against_it(measured: Measured) -> None:
    history = History(
        decisions=9,
        crossings=crossings(1.0 * MIB, 900_000.0 * MIB),
        spells_seconds=(5.0, 45.0),
        terminated_seconds=(40.0,),
        missed=2,
    )
    misses = " ".join(on(measured, ENOUGH, history).misses)
    for part in (
        "memory grew faster than that 1 times of the 2",
        "1 of 2 shortages that ended without an eviction",
        "pods took up to 40 s to exit, and are given 30 s",
        "has killed 2 processes",
    ):
        assert part in misses
