import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reactor.tune.latency import FEWEST, tail_of

LATENCIES = st.lists(st.floats(min_value=0, max_value=1e3), min_size=FEWEST, max_size=60)


@given(LATENCIES)
@settings(max_examples=50, deadline=None)
def test_the_bound_is_never_below_the_largest_and_the_same_each_time(values: list[float]) -> None:
    found = tail_of(values)
    assert found.bound >= found.max == max(values)
    assert found == tail_of(list(reversed(values)))


@given(LATENCIES, st.floats(min_value=1, max_value=100))
@settings(max_examples=50, deadline=None)
def test_slower_by_a_factor_has_a_bound_higher_by_it(values: list[float], factor: float) -> None:
    scaled = tail_of([value * factor for value in values])
    assert scaled.bound == pytest.approx(tail_of(values).bound * factor)


@pytest.mark.parametrize(
    ("quantile", "draw", "at_least"),
    [
        (-math.log(0.001), lambda chance: chance.expovariate(1), 40),
        (math.exp(3.0902), lambda chance: math.exp(chance.gauss(0, 1)), 34),
    ],
)
def test_sixty_samples_bound_the_true_quantile_in_most_trials(
    quantile: float, draw: object, at_least: int
) -> None:
    chance = random.Random(1)
    trials = [tail_of([draw(chance) for _ in range(60)]).bound for _ in range(40)]  # type: ignore[operator]
    assert sum(bound >= quantile for bound in trials) >= at_least


def test_small_samples_keep_their_digits() -> None:
    found = tail_of([0.000123, 0.000234, 0.000345, 0.000456, 0.000567])
    assert (0.000345, 0.000567, 0.000567) == (found.p50, found.p99, found.max)


def test_equal_samples_are_their_own_bound() -> None:
    assert 2.5 == tail_of([2.5] * 20).bound


def test_too_few_samples_have_no_bound() -> None:
    with pytest.raises(ValueError, match="a bound needs 5"):
        tail_of([1.0] * (FEWEST - 1))
    with pytest.raises(ValueError, match="negative"):
        tail_of([-1.0] * FEWEST)


def test_how_little_a_largest_of_sixty_shows_is_said() -> None:
    assert 94 == round(100 * tail_of([1.0] * 60).max_is_below_probability)
    assert 5 == round(100 * tail_of([1.0] * 3000).max_is_below_probability)
