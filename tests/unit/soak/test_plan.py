"""What the soak draws: the same from the same seed, and with lulls what warrants need."""

from __future__ import annotations

from reactor.policy.in_time import work_of
from tests.soak.oracle import Rules
from tests.soak.plan import MANIFESTED, MIB, CrossingPlan, Draw
from tests.support.builders import make_pod

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


def test_leaks_are_of_what_may_not_be_evicted_alone_and_stay_below_the_limit() -> None:
    draw = Draw(1)
    plans = [plan for _ in range(500) if (plan := draw.leak(["outside-0", "kept-1"], RULES)) is not None]

    assert 50 < len(plans) < 200
    assert {"outside-0", "kept-1"} == {hog.name for plan in plans for hog in plan.hogs}
    assert all(plan.is_leak and not plan.disturbed for plan in plans)
    assert all(0 < hog.past_bytes < RULES.hard_bytes - 8 * MIB for plan in plans for hog in plan.hogs)
    assert not any(one.is_leak for one in drawn(has_lulls=False))


def test_with_lulls_nothing_leaks_and_no_disk_is_full() -> None:
    draw = Draw(1, lull_seconds=0.5)
    assert not any(draw.leak(["kept-1"], RULES) for _ in range(500))
    assert not any(draw.is_disk_full() for _ in range(500))
    other = Draw(1)
    assert any(other.pod(MIB).name.startswith("kept") for _ in range(500))
    assert not any(draw.pod(MIB).name.startswith("kept") for _ in range(500))


def test_pod_that_may_not_be_evicted_comes_again_as_one() -> None:
    for name in ("kept-7", "outside-0"):
        assert Draw(1).pod(MIB, name=name).spec.is_critical


def test_pod_that_comes_soon_after_an_eviction_may_be_evicted() -> None:
    draw = Draw(1)
    assert not any(draw.pod(MIB, may_be_kept=False).spec.is_critical for _ in range(500))
    assert any(draw.pod(MIB).spec.is_critical for _ in range(500))


def test_what_may_not_be_evicted_is_small_before_it_leaks() -> None:
    draw = Draw(1)
    kept = [pod for _ in range(100) for pod in draw.pods(RULES) if pod.spec.is_critical]
    assert kept
    assert all(pod.size_bytes <= MIB // 2 for pod in kept)


def test_in_time_most_is_falls_past_a_soft_threshold_far_from_the_hard_one() -> None:
    draw = Draw(1, in_time=True)
    rules = [draw.other_rules(RULES) for _ in range(100)]
    assert all(one.in_time and one.soft_bytes is not None for one in rules)
    assert min((one.soft_bytes or 0) - one.hard_bytes for one in rules) >= 12 * MIB
    plans = [plan for one in rules if (plan := draw.fall(NAMES, one, first="first")) is not None]
    assert 70 < len(plans) < 100
    falls = [plan.fall for plan in plans if plan.fall is not None]
    assert len(falls) == len(plans)
    assert len(falls) / 2 < sum(one.name == "first" for one in falls) < len(falls)
    assert len({pod.save_seconds for pod in draw.pods(draw.rules())}) > 1


def test_pod_that_comes_again_needs_as_long_to_end() -> None:
    draw = Draw(1, in_time=True)
    names = [*(f"again-{number}" for number in range(20)), *MANIFESTED]
    first = [draw.pod(MIB, name=name).save_seconds for name in names]
    assert first == [draw.pod(MIB, name=name).save_seconds for name in names]
    assert len(set(first)) > 10


def test_pods_of_one_work_are_named_as_those_of_a_deployment_and_need_about_as_long_to_end() -> None:
    draw = Draw(1, in_time=True)
    works: dict[str, list[float]] = {}
    for _ in range(200):
        plan = draw.pod(MIB, may_be_kept=False)
        works.setdefault(work_of(make_pod(plan.name)), []).append(plan.save_seconds)
    assert 20 < len(works) <= 24
    assert all(min(times) >= 0.8 * max(times) for times in works.values())


def test_otherwise_no_pod_saves_and_nothing_falls() -> None:
    draw = Draw(1)
    rules = [draw.other_rules(RULES) for _ in range(100)]
    assert not any(one.in_time or draw.fall(NAMES, one, first="first") for one in rules)
    assert not any(pod.save_seconds for pod in draw.pods(RULES))
