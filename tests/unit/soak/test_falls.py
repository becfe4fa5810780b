"""Falls past a soft threshold: what is drawn, and whether an eviction in time was needed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.soak.falls import MIB, End, FallPlan, Growth, Need, Order, fall, growths, need

SECOND_NS = 1_000_000_000
SOFT, HARD, BEFORE = 40 * MIB, 24 * MIB, MIB


def drawn(seed: int = 1, count: int = 2000) -> list[FallPlan]:
    source = random.Random(seed)
    return [fall(source, "pod-1", SOFT, HARD, 4.0, BEFORE) for _ in range(count)]


def going(*orders: Order) -> list[Growth]:
    return list(growths(1, orders, 0))


def judged(grown: list[Growth], at_seconds: float, available_mib: float, until_seconds: float = 4) -> Need:
    return need(
        grown,
        int(at_seconds * SECOND_NS),
        int(available_mib * MIB),
        int(until_seconds * SECOND_NS),
        soft_bytes=SOFT,
        hard_bytes=HARD,
    )


RISE = Order(after_seconds=0.0, kind="a", size_bytes=20 * MIB, rate_bytes=8 * MIB)  # 2.5 s
BACK = Order(after_seconds=3.0, kind="u")


def test_same_seed_draws_the_same_falls() -> None:
    assert drawn() == drawn()
    assert drawn() != drawn(seed=2)


def test_falls_end_as_said_and_as_often_in_the_last_quarter_of_the_way_as_in_the_first() -> None:
    found = drawn()
    ends = Counter(one.end for one in found)
    assert ends[End.CROSSES] > ends[End.BACK_AND_FORTH] > ends[End.STAYS]
    assert 0.8 < ends[End.RETURNS] / ends[End.STAYS] < 1.25
    stopping = [one for one in found if one.end in {End.STAYS, End.RETURNS}]
    late = sum(one.share > 0.75 for one in stopping)
    early = sum(one.share < 0.25 for one in stopping)
    assert 0.7 < late / early < 1.4
    for one in found:
        assert (one.share >= 1) == (one.end is End.CROSSES)
        assert (one.orders[-1].kind == "u") == (one.end in {End.RETURNS, End.BACK_AND_FORTH})


def test_orders_take_what_the_plan_says() -> None:
    for one in drawn():
        grown = list(growths(1, one.orders, 0))
        most_bytes = max(sum(every.until(growth.ended_ns) for every in grown) for growth in grown)
        assert most_bytes - BEFORE == pytest.approx(one.share * (SOFT - HARD), abs=100)


def test_what_is_given_back_is_what_was_taken_last() -> None:
    grown = going(RISE, BACK)
    assert [one.size_bytes for one in grown] == [20 * MIB, -20 * MIB]
    for at_seconds, mib in ((0, 0), (1, 8), (2.5, 20), (2.9, 20), (3, 0), (9, 0)):
        assert mib * MIB == sum(one.until(int(at_seconds * SECOND_NS)) for one in grown)


@pytest.mark.parametrize(
    ("grown", "available_mib", "until_seconds", "expected"),
    [
        (going(RISE), 35, 4, Need.NEEDED),  # 12 MiB more are to come
        (going(RISE), 35, 1.5, Need.SOONER),  # the grace period is over before
        (going(RISE), 37, 4, Need.SOONER),
        (going(RISE, BACK), 37, 4, Need.IN_VAIN),
        (going(RISE, BACK), 35, 4, Need.NEEDED),  # it comes back, but too late
        (going(RISE, BACK), 37, 2.9, Need.SOONER),
        ([], 39, 4, Need.SOONER),
        ([], 41, 4, Need.IN_VAIN),
    ],
)
def test_eviction_is_judged_by_what_would_have_grown_on(
    grown: list[Growth], available_mib: float, until_seconds: float, expected: Need
) -> None:
    assert judged(grown, 1, available_mib, until_seconds) is expected
