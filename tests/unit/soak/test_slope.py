"""The soak's arithmetic: slopes and percentiles."""

from __future__ import annotations

import pytest

from tests.soak.figures import Figures, percentile
from tests.soak.guarded import Measured
from tests.soak.slope import slope


def test_slope_of_a_line_is_its_rise_in_an_hour() -> None:
    found = slope([(float(at), 10 + at / 60) for at in range(0, 600, 10)])

    assert found.per_hour == pytest.approx(60)
    assert found.moved == pytest.approx(7.5)


def test_constant_series_is_flat_and_one_outlier_does_not_change_that() -> None:
    series = [(float(at), 50.0) for at in range(40)]
    series[35] = (35.0, 900.0)

    found = slope(series)

    assert found.is_flat(0)
    assert found.per_hour > 0


def test_what_is_taken_for_a_while_and_returned_is_no_rise_and_what_is_kept_is() -> None:
    taken = [(float(at), 44.0 if at % 10 > 2 else 40.0) for at in range(40)]
    kept = [(at, value + (2.0 if at >= 25 else 0.0)) for at, value in taken]

    assert slope(taken).is_flat(0)
    assert not slope(kept).is_flat(1)


def test_series_that_rises_by_more_than_the_tolerance_is_not_flat_and_one_that_falls_is() -> None:
    rising = slope([(float(at), float(at)) for at in range(40)])

    assert rising.is_flat(30)
    assert not rising.is_flat(29)
    assert slope([(float(at), -float(at)) for at in range(40)]).is_flat(0)


def test_single_value_has_no_slope_and_an_empty_series_is_refused() -> None:
    assert slope([(1.0, 5.0)]).per_hour == 0
    with pytest.raises(ValueError, match="empty series"):
        slope([])


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50.0), (0.99, 99.0), (0.999, 100.0), (1.0, 100.0), (0.0, 1.0)]
)
def test_percentile_is_the_smallest_value_that_the_share_does_not_exceed(
    share: float, expected: float
) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], share) == expected


def test_percentile_of_nothing_is_nothing() -> None:
    assert percentile([], 0.5) is None


def measured(at: float, generation: int, rss_kib: int, kills: int = 0) -> Measured:
    return Measured(
        at_seconds=at, generation=generation, kills=kills, descriptors=40, threads=11, rss_kib=rss_kib
    )


def test_slopes_are_those_of_the_longest_life_without_its_start() -> None:
    short = [measured(float(at), 1, 10_000 * at) for at in range(50)]
    start = [measured(50.0 + at, 2, 1000 * at) for at in range(60)]
    flat = [measured(110.0 + at, 2, 60_000) for at in range(100)]

    slopes = Figures(measured=[*short, *start, *flat]).slopes()

    assert slopes["rss_kib"].moved == 0
    assert slopes["descriptors"].is_flat(0)


def test_nothing_is_said_of_a_life_that_is_too_short() -> None:
    assert Figures(measured=[measured(float(at), 1, at) for at in range(100)]).slopes() == {}


def test_run_is_good_with_crossings_and_nothing_wrong_and_not_with_a_daemon_that_grows() -> None:
    flat = [measured(float(at), 1, 40_000) for at in range(200)]
    growing = [measured(float(at), 1, 40_000 + 100 * at) for at in range(200)]

    assert Figures(crossings=1, measured=flat).is_good()
    assert not Figures(crossings=1, measured=growing).is_good()
    assert not Figures(measured=flat).is_good()
    assert not Figures(crossings=1, missed=1).is_good()


@pytest.mark.parametrize("kills_a_minute", [25, 250])
def test_memory_that_grows_with_the_first_kills_and_then_stays_is_no_growth_and_a_leak_is(
    kills_a_minute: int,
) -> None:
    """In 17 minutes, by what full histories and the interpreter's table of names take."""
    kills = [minute * kills_a_minute for minute in range(17)]
    filling = [
        measured(60.0 * at, 1, 34_000 + 4 * min(one, 200) + 800 * (one > 100), one)
        for at, one in enumerate(kills)
    ]
    leaking = [measured(60.0 * at, 1, 34_000 + 4 * one, one) for at, one in enumerate(kills)]

    assert Figures(crossings=1, measured=filling).is_good()
    assert not Figures(crossings=1, measured=leaking).is_good()


def test_half_of_a_life_with_few_kills_is_judged_by_half_of_the_tolerance() -> None:
    life = [measured(60.0 * at, 1, 34_000, 25 * at) for at in range(18)]
    many = [measured(60.0 * at, 1, 34_000, 300 * at) for at in range(18)]

    assert Figures(measured=life).tolerance("rss_kib") == 512
    assert Figures(measured=many).tolerance("rss_kib") == 1024 * 3 / 4
    assert Figures(measured=life).tolerance("descriptors") == 2
