"""The soak's arithmetic: slopes and percentiles."""

from __future__ import annotations

import pytest
from soak.figures import percentile
from soak.slope import slope


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
