"""Memory over time: what is kept, for how long, and what curves are made of it."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from reactor.blackbox.series import (
    MOST_VALUES,
    Sample,
    Series,
    growth_per_second,
    largest_changes,
    thinned,
)
from tests.support.processes import MIB


def _sample(at_seconds: float, available: int = 100, pods: Mapping[str, int] | None = None) -> Sample:
    return Sample(at_seconds=at_seconds, available_bytes=available, capacity_bytes=1000, pods=pods or {})


def test_value_holds_until_the_next_one() -> None:
    series = Series(60)
    for sample in (_sample(0, pods={"a": 5, "b": 1}), _sample(10), _sample(20, pods={"a": 9}), _sample(21)):
        series.take(sample)
    assert series.curves(5, 21) == {"a": [(5, 5), (10, 5), (20, 9), (21, 9)], "b": [(5, 1), (21, 1)]}


def test_pod_that_was_too_small_to_be_recorded_begins_with_nothing() -> None:
    series = Series(60)
    for sample in (_sample(0, pods={"a": 5}), _sample(10), _sample(11, pods={"new": 9})):
        series.take(sample)
    assert [(10, 0), (11, 9)] == series.curves(5, 11)["new"]


def test_first_sample_of_all_is_no_growth() -> None:
    series = Series(60)
    series.take(_sample(10, pods={"a": 5}))
    series.take(_sample(11, pods={"a": 6}))
    assert {"a": [(10, 5), (11, 6)]} == series.curves(0, 11)


def test_what_is_older_than_the_span_is_forgotten_but_for_the_value_that_holds() -> None:
    series = Series(60)
    for at_seconds in range(200):
        series.take(_sample(at_seconds, pods={"a": 7} if at_seconds == 0 else {}))
    assert len(series) == 61
    assert {"a": [(150, 7), (199, 7)]} == series.curves(150, 199)


def test_values_are_bounded_however_many_pods_come_and_go() -> None:
    """The oldest samples go first, and what still holds of them stays."""
    series = Series(3600.0, 10.0)
    series.take(_sample(0, pods={"old": 7}))
    came: dict[str, int] = {}
    for at_seconds in range(1, 3000):
        gone, came = came, {f"{at_seconds}-{number}": 5 for number in range(32)}
        series.take(_sample(at_seconds, pods={**dict.fromkeys(gone, 0), **came}))
    assert sum(len(one.pods) for one in series) <= MOST_VALUES + 2 * 10 * 32
    assert len(series) > 50
    last = series.last
    assert last is not None
    assert [(2900, 7), (last.at_seconds, 7)] == series.curves(2900, last.at_seconds)["old"]


def test_pod_that_is_gone_is_forgotten_with_its_last_sample() -> None:
    series = Series(60)
    series.take(_sample(0, pods={"a": 7}))
    series.take(_sample(1, pods={"a": 0}))
    for at_seconds in range(2, 100):
        series.take(_sample(at_seconds))
    assert {} == series.curves(50, 100)


def test_of_a_period_the_lowest_is_kept_and_no_change_is_lost() -> None:
    series = Series(3600, 10)
    for at_seconds, available, pods in (
        (0, 90, {"a": 1}),
        (3, 20, {"a": 8}),
        (9, 50, {"b": 2}),
        (10, 60, {}),
    ):
        series.take(_sample(at_seconds, available, pods))
    assert [20, 60] == [one.available_bytes for one in series]
    assert [{"a": 8, "b": 2}, {}] == [one.pods for one in series]


def test_largest_changes_come_first_and_small_ones_not_at_all() -> None:
    before, found = {"a": 10, "b": 10, "c": 10}, {"a": 12, "b": 40, "c": 0, "d": 7}
    assert ["b", "c", "d"] == largest_changes(before, found, 5)
    assert ["b"] == largest_changes(before, found, 5, 1)


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 1 << 40)), min_size=1, max_size=300),
    st.integers(4, 40),
)
def test_thinned_curve_keeps_its_ends_and_extremes(points: list[tuple[float, int]], most: int) -> None:
    curve = sorted(points, key=lambda one: one[0])
    found = thinned(curve, most)
    assert len(found) <= max(most, 4)
    assert found == [one for one in curve if one in found][: len(found)] or len(set(curve)) < len(curve)
    assert (curve[0], curve[-1]) == (found[0], found[-1])
    values = [value for _, value in curve]
    assert {min(values), max(values)} <= {value for _, value in found}


def test_growth_is_the_fastest_over_half_a_second() -> None:
    curve = [(0.0, 0), (9.0, 10 * MIB), (9.25, 60 * MIB), (9.75, 110 * MIB), (10.0, 110 * MIB)]
    assert round(100 * MIB / 0.75) == growth_per_second(curve, 10.0)
    assert growth_per_second([(0.0, 5), (10.0, 1)], 10.0) == 0
