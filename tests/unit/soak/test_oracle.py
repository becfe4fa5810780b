"""The soak's oracle: who had to be killed, from counters over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.soak.falls import Growth, Need, Order, growths
from tests.soak.oracle import (
    IN_VAIN,
    MISSED_NS,
    NEEDLESS,
    PAUSE_NS,
    Counters,
    Episode,
    Judged,
    Kill,
    Life,
    Rules,
    Sample,
    Spec,
    acceptable,
    judge,
    place,
    soft_met_ns,
)

MIB = 1 << 20
MS = 1_000_000
RULES = Rules(capacity_bytes=100 * MIB, hard_bytes=20 * MIB)
HOG, SMALL, CRITICAL = 1, 2, 3


def sample(at_ms: float, pods: Mapping[int, float], beside_mib: float = 0.0) -> Sample:
    at_ns = int(at_ms * MS)
    counters = {instance: Counters(int(mib * MIB), 0) for instance, mib in pods.items()}
    used = sum(one.usage_bytes for one in counters.values()) + int(beside_mib * MIB)
    return Sample(began_ns=at_ns, ended_ns=at_ns + MS // 10, node=Counters(used, 0), pods=counters)


def life(instance: int, spec: Spec | None = None, born_ms: float = -1000.0, **more: int) -> Life:
    born_ns = int(born_ms * MS)
    return Life(instance=instance, name=f"pod-{instance}", spec=spec or Spec(), born_ns=born_ns, **more)


def episode(
    samples: Sequence[Sample],
    kills: Sequence[Kill] = (),
    *,
    lives: Sequence[Life] = (),
    rules: Sequence[Rules] = (RULES,),
    away: Sequence[tuple[int, int]] = (),
    crossed_ns: int | None = None,
) -> Episode:
    known = {HOG: life(HOG), SMALL: life(SMALL), CRITICAL: life(CRITICAL, Spec(is_critical=True))}
    return Episode(
        samples=samples,
        lives={**known, **{one.instance: one for one in lives}},
        kills=kills,
        rules=rules,
        away=away,
        crossed_ns=crossed_ns,
    )


def only(found: Episode) -> Judged:
    (judged,) = judge(found).kills
    return judged


def kill(instance: int, at_ms: float, gone_ms: float | None = None) -> Kill:
    gone_ns = None if gone_ms is None else int(gone_ms * MS)
    return Kill(instance=instance, at_ns=int(at_ms * MS), gone_ns=gone_ns)


CROSSED = [
    sample(0, {HOG: 70, SMALL: 5}),
    sample(1, {HOG: 77, SMALL: 5}),
    sample(2, {HOG: 78, SMALL: 5}),
    sample(3, {HOG: 78, SMALL: 5}),
    sample(10, {HOG: 0, SMALL: 5}),
]


@pytest.mark.parametrize("second_ms", [9, PAUSE_NS / MS + 2.4, PAUSE_NS / MS + 2.6])
def test_of_two_kills_for_what_may_not_be_evicted_the_second_is_wrong_within_the_pause(
    second_ms: float,
) -> None:
    late_ms = max(second_ms, 10)
    samples = [
        *(sample(at_ms, {HOG: 9, SMALL: 6, CRITICAL: 66}) for at_ms in (0, 1, 2)),
        *(sample(at_ms, {SMALL: 6, CRITICAL: 75}) for at_ms in (4, 5, 8, late_ms - 0.5, late_ms + 1)),
    ]
    found = episode(samples, [kill(HOG, 2.5, gone_ms=3), kill(SMALL, second_ms)])
    leak = replace(found, leaks=frozenset({CRITICAL}))

    assert [None, None] == [one.wrong for one in judge(found).kills]
    is_within = second_ms < PAUSE_NS / MS + 2.5
    assert [None, IN_VAIN if is_within else None] == [one.wrong for one in judge(leak).kills]


def test_no_kill_is_missed_while_what_grows_may_not_be_evicted() -> None:
    stays = [sample(at_ms, {HOG: 8, CRITICAL: 75}) for at_ms in range(0, 3000, 2)]
    assert judge(episode(stays)).missed
    assert not judge(replace(episode(stays), leaks=frozenset({CRITICAL}))).missed


@pytest.mark.parametrize(("apart_ms", "wrong"), [(0.9, [None, None]), (1.0, ["killed the wrong pod", None])])
def test_order_of_two_kills_is_not_known_within_a_beat_of_their_canaries(
    apart_ms: float, wrong: list[str | None]
) -> None:
    samples = [sample(at_ms, {HOG: 8, SMALL: 6}, beside_mib=76) for at_ms in (0, 1, 2, 2.5, 3, 3.5)]
    found = episode(samples, [kill(SMALL, 2.5), kill(HOG, 2.5 + apart_ms)])
    assert wrong == [one.wrong for one in judge(found).kills]


def test_whom_the_kernel_killed_the_daemon_did_not_choose() -> None:
    found = episode(CROSSED, [kill(SMALL, 3)])
    assert only(found).wrong == "killed the wrong pod"

    found = episode(CROSSED, [replace(kill(SMALL, 3), is_kernels=True)])
    assert only(found).wrong is None


def test_kill_whose_memory_was_back_before_its_death_showed_had_its_reason() -> None:
    at_ns = 3 * MS
    late = Kill(instance=HOG, at_ns=at_ns + 60 * MS)
    back = [*CROSSED, *(sample(at_ms, {HOG: 0, SMALL: 5}) for at_ms in range(11, 70))]
    assert only(episode(back, [late])).wrong == "killed without a crossing"
    assert only(episode(back, [replace(late, struck_ns=at_ns)])).wrong is None


def test_kill_before_any_crossing_has_no_reason_whenever_its_death_showed() -> None:
    calm = [sample(at_ms, {HOG: 70, SMALL: 5}) for at_ms in range(70)]
    struck = Kill(instance=HOG, at_ns=60 * MS, struck_ns=3 * MS)
    assert only(episode(calm, [struck])).wrong == "killed without a crossing"


def test_where_everything_takes_longer_a_crossing_is_missed_later() -> None:
    seconds = MISSED_NS / 1e9
    short = [sample(at_ms, {HOG: 90, SMALL: 5}) for at_ms in range(0, int(2500 * seconds), 2)]
    assert judge(episode(short)).missed
    assert not judge(replace(episode(short), slowness=3.0)).missed


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((Spec(priority=100, request_bytes=5 * MIB), 6), (Spec(request_bytes=50 * MIB), 40)),
        ((Spec(priority=-1), 1), (Spec(), 40)),
        ((Spec(request_bytes=10 * MIB), 40), (Spec(), 29)),
        ((Spec(priority=0, request_bytes=50 * MIB), 1), (Spec(priority=1, request_bytes=50 * MIB), 40)),
        ((Spec(request_bytes=41 * MIB), 40), (Spec(request_bytes=50 * MIB), 45)),
    ],
    ids=["above its request", "lower priority", "more above it", "lower priority within it", "nearer to it"],
)
def test_order_is_over_request_then_priority_then_usage_above_request(
    first: tuple[Spec, int], second: tuple[Spec, int]
) -> None:
    assert place(first[0], first[1] * MIB) < place(second[0], second[1] * MIB)


def test_usage_at_the_request_is_within_it() -> None:
    assert place(Spec(request_bytes=MIB), MIB)[0]
    assert not place(Spec(request_bytes=MIB), MIB + 1)[0]


@given(
    st.dictionaries(
        st.integers(1, 9),
        st.tuples(
            st.builds(
                Spec,
                priority=st.integers(-2, 2),
                request_bytes=st.integers(0, 9),
                is_critical=st.booleans(),
            ),
            st.lists(st.integers(0, 9), min_size=1, max_size=3),
        ),
        max_size=6,
    )
)
def test_any_pod_is_acceptable_where_any_may_be_killed_and_never_a_critical_one(
    present: dict[int, tuple[Spec, list[int]]],
) -> None:
    found = acceptable(present)

    assert all(not present[instance][0].is_critical for instance in found)
    assert bool(found) == any(not spec.is_critical for spec, _ in present.values())


def test_pods_at_rest_leave_one_acceptable_and_pods_that_pass_each_other_both() -> None:
    assert acceptable({HOG: (Spec(), [40, 40]), SMALL: (Spec(), [30, 30])}) == (HOG,)
    assert acceptable({HOG: (Spec(), [20, 40]), SMALL: (Spec(), [30, 30])}) == (HOG, SMALL)


def test_pod_that_came_meanwhile_may_be_chosen_and_need_not_be() -> None:
    present = {HOG: (Spec(), [40]), SMALL: (Spec(priority=-1), [1])}

    assert acceptable(present, frozenset({SMALL})) == (HOG, SMALL)
    assert acceptable(present) == (SMALL,)


def test_hog_killed_after_its_crossing_is_right() -> None:
    verdict = judge(episode(CROSSED, [kill(HOG, 2.5, 8)]))

    assert verdict.is_right
    assert verdict.crossings == 1
    assert verdict.kills[0].acceptable == (HOG,)
    assert verdict.kills[0].helped is True


def test_other_pod_killed_in_the_place_of_the_hog_is_wrong() -> None:
    assert only(episode(CROSSED, [kill(SMALL, 2.5)])).wrong == "killed the wrong pod"


def test_critical_pod_is_never_right() -> None:
    samples = [sample(at, {HOG: 10, CRITICAL: 75}) for at in range(4)]

    assert only(episode(samples, [kill(CRITICAL, 2.5)])).wrong == "killed a critical pod"


def test_kill_without_a_crossing_is_wrong() -> None:
    samples = [sample(at, {HOG: 70, SMALL: 5}) for at in range(4)]

    assert only(episode(samples, [kill(HOG, 2.5)])).wrong == "killed without a crossing"


def test_crossing_between_two_samples_is_seen_by_the_kernels_watermark() -> None:
    samples = [sample(at, {HOG: 70, SMALL: 5}) for at in range(4)]
    samples[3] = replace(samples[3], peak_bytes=81 * MIB)

    assert only(episode(samples, [kill(HOG, 2.5)])).wrong is None


def test_crossing_while_the_pods_of_a_sample_are_read_is_in_the_next_ones_watermark() -> None:
    samples = [sample(at, {HOG: 70, SMALL: 5}) for at in range(4)]
    samples[2] = replace(samples[2], ended_ns=samples[2].began_ns + 900_000)
    samples[3] = replace(samples[3], peak_bytes=81 * MIB)

    assert only(episode(samples, [kill(HOG, 2.5)])).wrong is None
    assert only(episode(samples, [kill(HOG, 1.9)])).wrong == "killed without a crossing"


def test_page_cache_that_has_just_come_may_have_counted_as_used() -> None:
    calm = [sample(at, {HOG: 70, SMALL: 5}) for at in range(4)]
    cached = Counters(usage_bytes=81 * MIB, inactive_file_bytes=6 * MIB)
    samples = [*calm[:2], replace(calm[2], node=cached), replace(calm[3], node=cached)]
    assert only(episode(samples, [kill(HOG, 2.5)])).wrong == "killed without a crossing"

    samples[2] = replace(samples[2], cached_before_bytes=0)
    judged = only(episode(samples, [kill(HOG, 2.5)]))
    assert (judged.wrong, judged.past_bytes) == (None, -5 * MIB)  # how far past is no upper bound
    samples[2] = replace(samples[2], cached_before_bytes=6 * MIB)
    assert only(episode(samples, [kill(HOG, 2.5)])).wrong == "killed without a crossing"


@pytest.mark.parametrize(("seen_ms", "is_unseen"), [(1.4, False), (2.5, True)])
def test_kill_before_the_crossing_is_not_called_wrong_if_its_death_was_seen_only_after_it(
    *, seen_ms: float, is_unseen: bool
) -> None:
    samples = [*(sample(at / 2, {HOG: 70, SMALL: 5}) for at in range(4)), *CROSSED[2:]]
    starved = replace(kill(HOG, 1.0), seen_ns=int(seen_ms * MS))
    judged = only(episode(samples, [starved]))
    assert (judged.wrong is None, judged.is_unseen) == (is_unseen, is_unseen)


@pytest.mark.parametrize(
    ("at_ms", "stopped_ms", "is_unseen"), [(60, (4, 58), True), (70, (4, 58), False), (60, (30, 58), False)]
)
def test_kill_of_a_daemon_that_was_stopped_with_it_in_hand_is_not_called_wrong(
    *, at_ms: float, stopped_ms: tuple[int, int], is_unseen: bool
) -> None:
    samples = [*CROSSED[:4], *(sample(at, {HOG: 50, SMALL: 5}) for at in range(4, 80))]
    away = [(stopped_ms[0] * MS, stopped_ms[1] * MS)]
    judged = only(episode(samples, [kill(HOG, at_ms)], away=away))
    assert (judged.wrong is None, judged.is_unseen) == (is_unseen, is_unseen)


@pytest.mark.parametrize(
    ("crossed_mib", "left_mib", "is_right"), [(78, 73, True), (78, 70, False), (73, 73, False)]
)
def test_minimum_reclaim_is_wanted_after_a_crossing_that_the_soak_itself_has_ended(
    *, crossed_mib: int, left_mib: int, is_right: bool
) -> None:
    rules = replace(RULES, minimum_reclaim_bytes=4 * MIB)
    samples = [
        *(sample(at, {HOG: 70, SMALL: 5}) for at in range(2)),
        *(sample(at, {HOG: crossed_mib, SMALL: 5}) for at in range(2, 4)),
        *(sample(at, {HOG: left_mib, SMALL: 5}) for at in range(4, 80)),
    ]
    assert (only(episode(samples, [kill(HOG, 60)], rules=[rules])).wrong is None) is is_right


def test_kill_that_was_not_seen_closely_is_not_called_wrong() -> None:
    samples = [sample(0, {HOG: 70, SMALL: 5}), sample(10, {HOG: 70, SMALL: 5})]

    judged = only(episode(samples, [kill(HOG, 5)]))

    assert (judged.wrong, judged.is_unseen) == (None, True)
    lost = [sample(at, {HOG: 70, SMALL: 5}) for at in range(50, 60)]
    assert only(episode(lost, [kill(HOG, 5)])).is_unseen


def test_kill_long_after_the_shortage_is_wrong() -> None:
    samples = [*CROSSED, *(sample(at, {HOG: 0, SMALL: 5}) for at in range(11, 60))]

    assert only(episode(samples, [kill(HOG, 50)])).wrong == "killed without a crossing"


def test_crossing_that_no_sample_shows_is_the_actors_word() -> None:
    samples = [sample(0, {HOG: 70, SMALL: 5}), sample(5, {HOG: 60, SMALL: 5})]

    assert only(episode(samples, [kill(HOG, 2)], crossed_ns=MS)).wrong is None


def test_second_kill_while_the_first_frees_is_wrong() -> None:
    verdict = judge(episode(CROSSED, [kill(HOG, 2.2, 8), kill(SMALL, 2.8)]))

    assert [one.wrong for one in verdict.kills] == [None, NEEDLESS]


def test_second_kill_for_files_that_are_still_to_be_removed_is_wrong() -> None:
    ended = life(HOG, processes_gone_ns=int(2.5 * MS))
    verdict = judge(episode(CROSSED, [kill(HOG, 2.2, 8), kill(SMALL, 2.8)], lives=[ended]))

    assert verdict.kills[1].wrong == "killed another for memory whose files were still to be removed"


@pytest.mark.parametrize(
    ("tmpfs_mib", "wrong"),
    [(0, None), (50, "killed another for memory whose files were still to be removed")],
)
def test_page_cache_that_a_victim_leaves_on_a_disk_is_not_waited_for(
    tmpfs_mib: int, wrong: str | None
) -> None:
    ended = life(HOG, processes_gone_ns=int(2.5 * MS))
    first = replace(kill(HOG, 2.2, 8), tmpfs_bytes=tmpfs_mib * MIB)

    assert judge(episode(CROSSED, [first, kill(SMALL, 2.8)], lives=[ended])).kills[1].wrong == wrong


def test_files_that_are_left_spare_no_pod_where_less_than_half_of_the_threshold_is_available() -> None:
    def wrong(used_mib: float) -> str | None:
        at_rest = [sample(at, {HOG: 40, SMALL: 5}, beside_mib=used_mib - 45) for at in range(1, 20)]
        samples = [sample(0, {HOG: 30, SMALL: 5}), *at_rest]
        ended = life(HOG, processes_gone_ns=5 * MS)
        return judge(episode(samples, [kill(HOG, 4), kill(SMALL, 12)], lives=[ended])).kills[1].wrong

    assert wrong(91) is None  # 9 MiB available, of a threshold of 20
    assert wrong(89) is not None


def test_less_than_a_mib_that_is_left_need_not_be_counted() -> None:
    def wrong(left_mib: float) -> str | None:
        samples = [
            sample(at, {HOG: left_mib if at > 4 else 30, SMALL: 5}, beside_mib=75.2 - left_mib)
            for at in range(20)
        ]
        ended = life(HOG, processes_gone_ns=5 * MS)
        return judge(episode(samples, [kill(HOG, 4), kill(SMALL, 12)], lives=[ended])).kills[1].wrong

    assert wrong(0.9) is None  # short by 0.2 MiB
    assert wrong(1.0) is not None


def test_second_kill_is_right_where_the_first_is_not_enough() -> None:
    samples = [sample(at, {HOG: 60, SMALL: 35}, beside_mib=50) for at in range(5)]
    verdict = judge(episode(samples, [kill(HOG, 2.2), kill(SMALL, 2.8)]))

    assert [one.wrong for one in verdict.kills] == [None, None]


def test_second_kill_is_right_for_the_minimum_reclaim_and_the_first_is_not() -> None:
    rules = Rules(capacity_bytes=100 * MIB, hard_bytes=20 * MIB, minimum_reclaim_bytes=10 * MIB)
    samples = [sample(at, {HOG: 6, SMALL: 5, 4: 71}) for at in range(4)]
    lives = [life(4, Spec(request_bytes=99 * MIB))]
    verdict = judge(episode(samples, [kill(HOG, 2.2, 2.3), kill(SMALL, 2.8)], lives=lives, rules=[rules]))

    assert [one.wrong for one in verdict.kills] == [None, None]
    less = [sample(at, {HOG: 4, SMALL: 5, 4: 70}) for at in range(4)]
    first = only(episode(less, [kill(HOG, 2.2)], lives=lives, rules=[rules]))
    assert first.wrong == "killed without a crossing"


def test_minimum_reclaim_that_an_earlier_crossing_left_is_a_reason_and_more_available_is_none() -> None:
    rules = replace(RULES, minimum_reclaim_bytes=4 * MIB)
    near = [sample(at, {HOG: 70, SMALL: 8}) for at in range(5)]  # 22 MiB available, of 20 and 24
    far = [sample(at, {HOG: 70, SMALL: 5}) for at in range(5)]
    left = replace(episode(near, [kill(HOG, 3)], rules=[rules]), unresolved=True)

    assert only(left).wrong is None
    assert only(replace(left, unresolved=False)).wrong == "killed without a crossing"
    assert only(replace(left, samples=far)).wrong == "killed without a crossing"
    assert only(replace(left, rules=[RULES])).wrong == "killed without a crossing"


def test_pod_made_again_under_its_name_is_not_killed_for_its_predecessor() -> None:
    again = 7
    samples = [
        *CROSSED[:3],
        sample(3, {SMALL: 5, again: 1}),
        *(sample(at, {SMALL: 5, again: 1}) for at in range(4, 40)),
    ]
    ended = life(HOG, ended_ns=int(2.5 * MS))
    lives = [ended, life(again, born_ms=2.9)]

    assert only(episode(samples, [kill(again, 30)], lives=lives)).wrong == "killed without a crossing"


def test_soft_threshold_is_a_reason_after_its_grace_period_and_not_before() -> None:
    rules = Rules(capacity_bytes=100 * MIB, hard_bytes=20 * MIB, soft_bytes=30 * MIB, soft_grace_ns=100 * MS)
    samples = [sample(at, {HOG: 70, SMALL: 5}) for at in range(5, 150)]
    samples = [sample(0, {HOG: 60, SMALL: 5}), *samples]

    late = only(episode(samples, [kill(HOG, 120)], rules=[rules]))
    assert (late.wrong, late.is_soft) == (None, True)
    assert only(episode(samples, [kill(HOG, 60)], rules=[rules])).wrong == "killed without a crossing"


def test_grace_period_does_not_restart_at_a_kill_that_was_not_enough() -> None:
    rules = replace(RULES, soft_bytes=25 * MIB, soft_grace_ns=50 * MS)
    samples = [
        sample(0, {HOG: 65, SMALL: 5, CRITICAL: 3}),
        *(sample(at, {HOG: 77, SMALL: 5, CRITICAL: 3}) for at in range(1, 20)),
        *(sample(at, {HOG: 0, SMALL: 5, CRITICAL: 3}, beside_mib=69) for at in range(20, 100)),
    ]
    first = kill(HOG, 19, gone_ms=20)

    def second(at_ms: float) -> Judged:
        return judge(episode(samples, [first, kill(SMALL, at_ms)], rules=[rules])).kills[1]

    assert second(60).wrong is None
    assert second(40).wrong is not None


def test_soft_threshold_that_was_met_before_may_not_have_ended_for_the_daemon() -> None:
    """It looks when it is woken: that enough was available for a moment is seen by the oracle alone."""
    rules = replace(RULES, soft_bytes=25 * MIB, soft_grace_ns=50 * MS)
    samples = [
        *(sample(at, {HOG: 72, SMALL: 5}) for at in range(20)),
        *(sample(at, {HOG: 69, SMALL: 5}) for at in range(20, 80)),
        *(sample(at, {HOG: 72, SMALL: 5}) for at in range(80, 120)),
    ]
    again = episode(samples, [kill(HOG, 82)], rules=[rules])
    assert only(again).wrong is None
    later = replace(again, samples=samples[20:])
    assert only(later).wrong is not None
    assert only(replace(later, soft_met_ns=soft_met_ns(replace(again, kills=())))).wrong is None
    assert soft_met_ns(episode(samples[20:80], rules=[rules])) is None


def test_victim_so_young_that_no_sample_has_it_is_not_called_wrong() -> None:
    judged = only(episode(CROSSED, [kill(9, 3)], lives=[life(9, born_ms=1.5)]))
    assert (None, True) == (judged.wrong, judged.is_unseen)


def test_either_of_two_configurations_may_be_in_force_at_a_reload() -> None:
    samples = [sample(at, {HOG: 70, SMALL: 5}) for at in range(4)]
    other = Rules(capacity_bytes=100 * MIB, hard_bytes=30 * MIB)

    assert only(episode(samples, [kill(HOG, 2.5)], rules=[RULES, other])).wrong is None


def test_crossing_without_an_answer_is_missed_unless_the_daemon_was_away() -> None:
    for_long_ms = 2 * MISSED_NS // MS
    samples = [sample(0, {HOG: 70, SMALL: 5})]
    samples += [sample(at, {HOG: 78, SMALL: 5}) for at in range(1, for_long_ms, 10)]

    assert judge(episode(samples)).missed == ("nobody was killed for 1.99 s",)
    assert judge(episode(samples, away=[(0, int(1.5 * MISSED_NS))])).missed == ()
    short = [one for one in samples if one.began_ns < MISSED_NS]
    assert judge(episode(short)).missed == ()


def test_shortage_that_only_critical_pods_could_end_is_not_missed() -> None:
    samples = [sample(at, {CRITICAL: 90}) for at in range(0, 2 * MISSED_NS // MS, 10)]
    lives = [life(HOG, ended_ns=0), life(SMALL, ended_ns=0)]

    assert judge(episode(samples, lives=lives)).missed == ()


@pytest.mark.parametrize(
    ("small", "beside", "helped"),
    [
        (16, 63, True),  # enough came back
        (20, 63, False),  # not enough, since 13 MiB of 30 went outside
        (30, 63, True),  # the other took as much
        (36, 53, True),  # or most of it
        (20, 66, False),
        (20, 54, True),
    ],
)
def test_kill_did_not_help_if_what_is_missing_went_outside(
    small: float, beside: float, *, helped: bool
) -> None:
    samples = [
        *(sample(at_ms, {HOG: 30, SMALL: 17}, beside_mib=50) for at_ms in range(4)),
        sample(10, {HOG: 0, SMALL: small}, beside_mib=beside),
    ]

    assert only(episode(samples, [kill(HOG, 2.5, 8)])).helped is helped


def test_kill_that_brings_nothing_back_did_not_help() -> None:
    samples = [*CROSSED[:4], sample(10, {SMALL: 5}, beside_mib=78)]

    assert only(episode(samples, [kill(HOG, 2.5, 8)])).helped is False


SOFT = replace(RULES, soft_bytes=30 * MIB, soft_grace_ns=2000 * MS)
FALLING = [sample(at_ms, {HOG: 60 + at_ms / 100, SMALL: 5}) for at_ms in range(0, 1200, 2)]


def going_on(until_ms: int, back_ms: int | None) -> list[Growth]:
    order = Order(after_seconds=0, kind="a", size_bytes=until_ms * MIB // 100, rate_bytes=10 * MIB)
    back = [] if back_ms is None else [Order(after_seconds=back_ms / 1000, kind="u")]
    return list(growths(HOG, [order, *back], 0))


@pytest.mark.parametrize(
    ("until_ms", "back_ms", "expected"),
    [
        (5000, None, Need.NEEDED),
        (1300, None, Need.SOONER),
        (1300, 2600, Need.SOONER),
        (1300, 2400, Need.IN_VAIN),
    ],
)
def test_eviction_in_time_is_right_before_its_grace_period_is_over_and_judged_by_what_would_have_been(
    until_ms: int, back_ms: int | None, expected: Need
) -> None:
    """The soft threshold is met from 500 to 2500 ms, the hard one would be crossed at 1500 ms."""
    found = replace(episode(FALLING, [kill(HOG, 1000)]), growths=going_on(until_ms, back_ms))
    judged = only(replace(found, rules=[replace(SOFT, in_time=True)]))
    assert (judged.wrong, judged.need) == (None, expected)
    assert only(replace(found, rules=[SOFT])).wrong == "killed without a crossing"


@pytest.mark.parametrize(("instance", "at_ms"), [(SMALL, 1000), (HOG, 400)])
def test_eviction_in_time_of_another_pod_or_before_the_soft_threshold_is_met_is_wrong(
    instance: int, at_ms: float
) -> None:
    found = replace(episode(FALLING, [kill(instance, at_ms)]), growths=going_on(5000, None))
    assert only(replace(found, rules=[replace(SOFT, in_time=True)])).wrong is not None


@pytest.mark.parametrize(("apart_ms", "wrong"), [(19, [None, None]), (20, ["killed the wrong pod", None])])
def test_which_of_two_that_were_asked_to_end_was_first_is_not_known_within_milliseconds(
    apart_ms: float, wrong: list[str | None]
) -> None:
    """One is not enough here."""
    samples = [sample(at_ms, {HOG: 8, SMALL: 6}, beside_mib=66) for at_ms in range(0, 1200, 2)]
    found = episode(
        samples, [kill(SMALL, 1000), kill(HOG, 1000 + apart_ms)], rules=[replace(SOFT, in_time=True)]
    )
    assert wrong == [one.wrong for one in judge(found).kills]


def test_eviction_at_the_end_of_the_grace_period_is_not_the_forecasts() -> None:
    samples = [sample(at_ms, {HOG: 66, SMALL: 5}) for at_ms in range(0, 2100, 2)]
    found = episode(samples, [kill(HOG, 2001)], rules=[replace(SOFT, in_time=True)])
    assert (only(found).wrong, only(found).need) == (None, None)


@pytest.mark.parametrize(
    ("hog_mib", "ends_ms", "rules", "expected"),
    [
        (40, 1300, replace(SOFT, in_time=True), None),
        (40, 1300, RULES, NEEDLESS),
        (46, 1300, replace(SOFT, in_time=True), NEEDLESS),
    ],
)
def test_hard_threshold_waits_for_nobody_who_was_asked_to_end_and_then_another_may_come_first(
    hog_mib: float, ends_ms: float, rules: Rules, expected: str | None
) -> None:
    """The hog is asked at 500 ms and holds its memory until 1300; the other crosses from 1000 ms on."""
    small = 81 - hog_mib
    samples = [
        *(sample(at_ms, {HOG: hog_mib, SMALL: min(small, 72 - hog_mib)}) for at_ms in range(0, 1000, 2)),
        *(sample(at_ms, {HOG: hog_mib, SMALL: small}) for at_ms in range(1000, 1300, 2)),
    ]
    asked = kill(HOG, 500, gone_ms=ends_ms)
    lives = [life(HOG, processes_gone_ns=int(ends_ms * MS))]
    found = episode(samples, [asked, kill(SMALL, 1004)], lives=lives, rules=[rules])
    found = replace(found, growths=going_on(5000, None))
    assert judge(found).kills[1].wrong == expected
