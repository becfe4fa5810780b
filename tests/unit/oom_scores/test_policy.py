"""Which pods are not to come before the first where the kernel's OOM killer chooses, and what that takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.model.pod_lists import Preference
from reactor.oom_scores.policy import (
    Processes,
    highest_score,
    overtakes_at_bytes,
    points_bytes,
    score_to_write,
    scores_behind,
)
from tests.support.builders import make_pod

MIB = 1 << 20
LIMIT = 500 * MIB  # two points are a MiB
STEP = LIMIT // 100


def overtakes_at_mib(pod, used_mib: int, first, first_mib: int, room_mib: int = 400) -> float:
    found = overtakes_at_bytes(
        pod, used_mib * MIB, first, first_mib * MIB, room_bytes=room_mib * MIB, limit_bytes=LIMIT
    )
    return found / MIB


@pytest.mark.parametrize(
    ("request_mib", "priority", "first_request_mib", "at_mib"),
    [
        (0, 0, 0, 200),  # as much
        (50, 0, 0, 250),  # as much above the request
        (50, 0, 100, 150),
        (50, -1, 0, 50),  # above its request: its priority is lower
        (50, 1, 0, 505),  # never: 100 MiB, all that is left, and a hundredth of the limit
        (50, 1, 300, 50),  # the first is within its request
        (50, 0, 300, -50),
    ],
)
def test_pod_comes_before_the_first_at_the_usage_by_which_the_policy_has_it_first(
    request_mib: int, priority: int, first_request_mib: int, at_mib: int
) -> None:
    pod = make_pod("other", request_mib * MIB, priority)
    assert at_mib == overtakes_at_mib(pod, 100, make_pod("hog", first_request_mib * MIB), 200)


def test_pod_that_can_not_grow_so_much_is_put_no_farther_behind_than_it_can_grow() -> None:
    assert 135 == overtakes_at_mib(make_pod("other"), 100, make_pod("hog"), 200, room_mib=30)


@pytest.mark.parametrize(("preference", "at_mib"), [(Preference.PREFER, 0), (Preference.AVOID, 505)])
def test_pod_that_the_operator_prefers_comes_before_the_first_and_one_to_be_avoided_never(
    preference: Preference, at_mib: int
) -> None:
    pod = replace(make_pod("other"), preference=preference)
    assert at_mib == overtakes_at_mib(pod, 100, make_pod("hog"), 200)


def test_at_that_usage_it_has_the_points_of_the_first() -> None:
    first_points = points_bytes(1000, 200 * MIB, LIMIT)
    score = highest_score(first_points, 250 * MIB, 0, LIMIT)
    assert 900 == score
    assert first_points == points_bytes(score, 250 * MIB, LIMIT)
    in_two = highest_score(first_points, 250 * MIB, 50 * MIB, LIMIT)
    assert first_points == points_bytes(in_two, 200 * MIB, LIMIT)


@pytest.mark.parametrize(
    ("own", "highest", "machine", "written"),
    [
        (1000, 500, LIMIT, 507),
        (1000, 508, LIMIT, 517),
        (1000, 985, LIMIT, 987),
        (1000, 991, LIMIT, 1000),  # no difference
        (1000, 988, LIMIT, 1000),
        (300, 500, LIMIT, 300),  # never higher than its own
        (0, 0, LIMIT, 0),
        (0, -500, LIMIT, None),  # never a privilege
        (-997, -500, LIMIT, -997),
        (5, -3, LIMIT, 5),
        (1000, 500, 2 * LIMIT, 757),  # half of the machine: half as much
        (1000, 500, 100 * LIMIT, 1000),  # a hundredth: it weighs nothing
        (1000, 500, 0, 507),
    ],
)
def test_what_is_written_is_not_above_its_own_nor_below_0_and_weighs_what_the_pods_differ_in(
    own: int, highest: int, machine: int, written: int | None
) -> None:
    assert written == score_to_write(own, highest, LIMIT, machine)


@given(
    own=st.integers(-1000, 1000),
    highest=st.integers(-2000, 2000),
    limit=st.integers(0, 1 << 40),
    machine=st.integers(0, 1 << 40),
)
def test_no_score_is_raised_and_none_written_is_below_0(
    own: int, highest: int, limit: int, machine: int
) -> None:
    written = score_to_write(own, highest, limit, machine)
    assert written is None or written == own or (0 <= written <= own - 10 and written % 10 == 7)
    assert written is None or written == own or written >= highest


def behind(*others: Processes, first: list[tuple[int, int]]) -> list[list[int]] | None:
    of_first = Processes(make_pod("hog"), 60 * MIB, first)
    return scores_behind(of_first, others, room_bytes=30 * MIB, limit_bytes=LIMIT, machine_bytes=LIMIT)


def test_scores_are_of_each_pods_processes_and_its_largest_counts() -> None:
    vital = Processes(make_pod("vital", priority=1), 200 * MIB, [(1000, 200 * MIB), (400, 0)])
    small = Processes(make_pod("small"), 0, [(0, 5 * MIB)])
    assert [[657, 400], [0]] == behind(vital, small, first=[(1000, 60 * MIB), (-1000, 300 * MIB)])


def test_where_one_pod_can_not_be_behind_or_the_first_is_never_killed_there_are_no_scores() -> None:
    vital = Processes(make_pod("vital", priority=1), 200 * MIB, [(500, 200 * MIB)])
    assert behind(vital, first=[(-900, 60 * MIB)]) is None
    assert behind(vital, first=[(-1000, 60 * MIB)]) is None
    assert behind(vital, first=[]) is None


mib = st.integers(0, 500)


@given(
    pods=st.lists(st.tuples(mib, st.integers(0, 300), st.integers(0, 1), st.integers(0, 1000)), min_size=3),
    grower=st.integers(0, 10),
    machine=st.sampled_from([LIMIT, 3 * LIMIT]),
)
def test_where_the_kernel_would_take_the_policys_first_it_does_so_with_the_order_too(
    pods: list[tuple[int, int, int, int]], grower: int, machine: int
) -> None:
    """One of the pods takes all that is left, and no guard is there to write other scores."""
    total = sum(used for used, *_ in pods) or 1
    used = [one[0] * 400 * MIB // total for one in pods]
    made = [make_pod(f"pod-{n}", request * MIB, priority) for n, (_, request, priority, _) in enumerate(pods)]
    own = [one[3] for one in pods]

    def ranked(amounts: list[int]) -> list[int]:
        def key(n: int) -> tuple[bool, int, int]:
            over = amounts[n] - pods[n][1] * MIB
            return (over <= 0, pods[n][2], -over)

        return sorted(range(len(pods)), key=key)

    first = ranked(used)[0]
    room = LIMIT - sum(used)
    written: list[int | None] = []
    for n, pod in enumerate(made):
        at = overtakes_at_bytes(pod, used[n], made[first], used[first], room_bytes=room, limit_bytes=LIMIT)
        highest = highest_score(points_bytes(own[first], used[first], LIMIT), at, 0, LIMIT)
        written.append(own[n] if n == first else score_to_write(own[n], highest, LIMIT, machine))
    scores = own if None in written else [score for score in written if score is not None]
    grown = [amount + (room if n == grower % len(pods) else 0) for n, amount in enumerate(used)]

    def points(scores: list[int]) -> list[int]:
        return [points_bytes(score, amount, LIMIT) for score, amount in zip(scores, grown, strict=True)]

    right = ranked(grown)[0]
    ordered, left = points(scores), points(own)
    is_left_right = all(left[right] > left[n] for n in range(len(pods)) if n != right)
    # A hundredth of the limit is no difference, and what is written ends in a certain digit.
    is_ordered_right = ordered[right] >= max(ordered) - 2 * STEP
    assert is_ordered_right or not is_left_right
