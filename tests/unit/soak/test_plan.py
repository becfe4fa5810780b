"""What the soak draws: the same from the same seed, and with lulls what warrants need."""

from __future__ import annotations

from tests.soak.oracle import Rules
from tests.soak.plan import MIB, CrossingPlan, Draw

RULES = Rules(capacity_bytes=128 * MIB, hard_bytes=32 * MIB)
NAMES = ["first", "pod-1", "pod-2", "pod-3", "pod-4"]


def drawn(*, has_lulls: bool, seed: int = 1, count: int = 200) -> list[CrossingPlan]:
    draw = Draw(seed, lull_seconds=0.5 if has_lulls else 0.0)
    return [draw.crossing(NAMES, RULES, may_crash=True, first="first") for _ in range(count)]


def test_same_seed_draws_the_same_crossings() -> None:
    assert drawn(has_lulls=True) == drawn(has_lulls=True)
    assert drawn(has_lulls=True) != drawn(has_lulls=True, seed=2)


def test_without_lulls_nobody_rests_and_no_process_has_company() -> None:
    plans = drawn(has_lulls=False)
    assert all(plan.lull is None for plan in plans)
    assert "p" not in {hog.kind for plan in plans for hog in plan.hogs}


def test_with_lulls_the_first_in_the_ranking_is_mostly_who_grows_and_never_twice() -> None:
    plans = drawn(has_lulls=True)
    assert sum("first" in {hog.name for hog in plan.hogs} for plan in plans) > len(plans) / 2
    assert all(len({hog.name for hog in plan.hogs}) == len(plan.hogs) for plan in plans)
    assert {"a", "p", "s", "t"} == {hog.kind for plan in plans for hog in plan.hogs}


def test_company_of_a_lull_grows_shrinks_and_reads_and_is_nobody_who_crosses() -> None:
    plans = drawn(has_lulls=True)
    kinds = set()
    for plan in plans:
        company = () if plan.lull is None else plan.lull.company
        kinds |= {one.kind for one in company}
        assert not {one.name for one in company} & {hog.name for hog in plan.hogs}
    assert {"a", "f", "u"} == kinds
