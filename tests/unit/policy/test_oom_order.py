"""Who goes first where the kernel's OOM killer chooses, and how far behind the others stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reactor.policy.oom_order import (
    FIRST,
    first_of,
    is_contender,
    may_be_raised,
    most_of_others,
    score_by_request,
)
from tests.support.builders import make_pod

MIB = 1 << 20


def test_the_first_that_may_be_evicted_goes_first() -> None:
    critical = replace(make_pod("vital"), critical_because="priority 2000000000")
    assert first_of([critical, make_pod("hog"), make_pod("other")]) == make_pod("hog")
    assert first_of([critical]) is None


@pytest.mark.parametrize(("score", "may_be"), [(-1000, False), (-999, False), (-998, False), (-997, True)])
def test_what_is_protected_like_a_pause_container_keeps_its_score(score: int, may_be: bool) -> None:  # noqa: FBT001
    assert may_be_raised(score) is may_be


@pytest.mark.parametrize("used_mib", [0, 1, 100, 300, 500])
@pytest.mark.parametrize("room_mib", [0, 32, 200])
def test_no_other_pod_has_as_many_points_whatever_it_still_takes(used_mib: int, room_mib: int) -> None:
    limit_bytes = 512 * MIB
    pages = limit_bytes // 4096
    first_points = FIRST * pages // 1000  # of a process that holds nothing
    most = most_of_others(used_mib * MIB, room_mib * MIB, limit_bytes)
    other_points = (used_mib + room_mib) * MIB // 4096 + most * (pages // 1000)
    assert 0 <= most
    assert other_points < first_points or most == 0


def test_others_never_get_a_privilege() -> None:
    assert most_of_others(600 * MIB, 0, 512 * MIB) == 0
    assert most_of_others(600 * MIB, 0, 0) == 0


@pytest.mark.parametrize(("request_mib", "score"), [(0, 1000), (1, 998), (256, 500), (512, 0), (600, 0)])
def test_points_are_the_usage_above_the_request(request_mib: int, score: int) -> None:
    assert score_by_request(request_mib * MIB, 512 * MIB) == score


def test_request_counts_for_nothing_where_the_limit_is_not_known() -> None:
    assert score_by_request(MIB, 0) == 1000


@pytest.mark.parametrize(
    ("used_mib", "request_mib", "priority", "is_one"),
    [
        (171, 0, 0, True),
        (170, 0, 0, False),  # not with all that is left
        (271, 100, 0, True),
        (271, 200, 0, False),
        (500, 0, 10, False),  # its priority is higher
        (171, 0, -10, True),
    ],
)
def test_contender_is_who_may_overtake_the_first(
    used_mib: int,
    request_mib: int,
    priority: int,
    is_one: bool,  # noqa: FBT001
) -> None:
    pod = make_pod("other", request_mib * MIB, priority)
    assert is_contender(pod, used_mib * MIB, make_pod("hog"), 200 * MIB, 30 * MIB) is is_one
    critical = replace(pod, critical_because="user.oomd_omit")
    assert not is_contender(critical, used_mib * MIB, make_pod("hog"), 200 * MIB, 30 * MIB)
