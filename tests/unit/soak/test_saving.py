"""What the soak of evictions in time draws, and how it tells those that were not needed apart."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.soak.saving import (
    Counted,
    Kind,
    Plan,
    Result,
    Verdict,
    grace_seconds,
    least_in_vain,
    plan,
    summary,
    table,
    verdict,
)

HARD_MIB = 2304
RATES = (1, 4, 16, 64, 256, 1024)
STOPS = (Kind.QUARTER, Kind.HALF, Kind.ANYWHERE)


def drawn(*kinds: Kind, count: int = 50) -> Iterator[Plan]:
    draw = random.Random(1)
    return (plan(kind, rate, draw, 0.4) for _ in range(count) for kind in kinds for rate in RATES)


def result(mode: str, planned: Plan, *, asked: bool = False, killed: bool = False) -> Result:
    return Result(
        mode=mode,
        plan=planned,
        is_known=False,
        asked=asked,
        saved=asked,
        killed=killed,
        took_ms=None,
        others_died=0,
        oom_kills=0,
    )


@pytest.mark.parametrize("kind", list(Kind))
def test_one_kind_crosses_the_hard_threshold_within_the_grace_period_and_no_other_does(kind: Kind) -> None:
    for one in drawn(kind):
        farthest = max(mib for _, mib in one.segments)
        assert (farthest > HARD_MIB) == (kind is Kind.CROSSES)
        assert one.left_ms < 1000 * grace_seconds(one.rate_mib)


def test_half_of_those_that_stop_keep_their_memory_and_the_others_give_it_back_in_time() -> None:
    kept = Counter[bool]()
    for one in drawn(*STOPS):
        kept[one.keeps] += 1
        way_mib = one.left_ms / 1000 * one.rate_mib
        assert (one.segments[-1][1] > HARD_MIB - way_mib) == one.keeps
        if not one.keeps:
            in_grace_seconds = one.share * way_mib / one.rate_mib + one.segments[3][0]
            assert in_grace_seconds < grace_seconds(one.rate_mib)
    assert min(kept.values()) > kept.total() / 3


@pytest.mark.parametrize(
    ("asked", "killed", "expected"),
    [
        (False, True, Verdict.NEEDED),
        (True, False, Verdict.SOONER),
        (True, True, Verdict.SOONER),  # it had not ended within its own grace period
        (False, False, Verdict.IN_VAIN),
    ],
)
def test_what_upstreams_way_did_with_the_plan_says_whether_an_eviction_in_time_was_needed(
    expected: Verdict, *, asked: bool, killed: bool
) -> None:
    control = result("upstream", next(drawn(Kind.HALF)), asked=asked, killed=killed)
    assert verdict(control) is expected


def test_the_share_in_vain_is_of_the_evictions_in_time_alone() -> None:
    crossing, stops = next(drawn(Kind.CROSSES)), next(drawn(Kind.BURST))
    results = [result("inTime", one, asked=True) for one in (crossing, crossing, stops, stops)]
    for one, found in zip(
        results, (Verdict.NEEDED, Verdict.NEEDED, Verdict.SOONER, Verdict.IN_VAIN), strict=True
    ):
        one.verdict = found
    others = [result("upstream", crossing, killed=True), result("inTime", stops)]

    figures = summary([*results, *others], Counted())
    assert {"episodes": 5, "evicted": 4, "needed": 2, "sooner": 1, "in vain": 1} == figures["all"]
    assert {"episodes": 3, "evicted": 2, "needed": 0, "sooner": 1, "in vain": 1} == figures["by_kind"][
        Kind.BURST
    ]
    assert "| all | 4 of 5 | 2 | 1 | 1 | 25.0 % |" in table(figures)
    assert "Evicted in time: 4; would not have crossed: 2;" in table(figures)


def test_of_those_that_no_guard_can_spare_one_in_sixteen_gives_its_memory_back() -> None:
    """Half cross, a tenth are of each other kind; every second of the needs is exactly half of the way."""
    draw = random.Random(1)
    plans = [
        plan(kind, rate, draw, draw.choice((0.5, draw.uniform(0.15, 0.5))))
        for _ in range(1000)
        for rate in RATES
        for kind in [Kind.CROSSES] * 4 + list(Kind)
    ]
    least = least_in_vain(plans)
    assert 0.55 < least["evicted"] / len(plans) < 0.59
    assert 0.055 < least["in vain"] / least["evicted"] < 0.07
