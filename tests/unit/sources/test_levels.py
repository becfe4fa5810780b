from dataclasses import replace

import pytest

from reactor.sources.levels import BRIM, FLOOR, describe_levels, needs_rearming, with_room_for

MIB = 1 << 20


@pytest.mark.parametrize(
    ("wanted_mib", "fired", "anew"),
    [
        (1000, False, False),
        (1005, False, False),
        (1006, False, True),
        (999, False, False),
        (998, False, True),
        (1001, True, True),
        (1000, True, False),
        (999, True, False),
    ],
)
def test_a_level_is_followed_closely_downwards_and_loosely_upwards(
    wanted_mib: int, *, fired: bool, anew: bool
) -> None:
    assert anew is needs_rearming(1000 * MIB, wanted_mib * MIB, fired=fired)


def test_a_small_level_may_lag_by_one_mebibyte() -> None:
    assert not needs_rearming(10 * MIB, 11 * MIB, fired=False)
    assert needs_rearming(10 * MIB, 11 * MIB + 1, fired=False)


def test_a_working_set_decides_where_it_is_known_and_usage_where_it_is_not(level) -> None:
    cached = level(100, working_set_mib=60)
    assert cached.is_past(usage_bytes=90 * MIB + 1, inactive_file_bytes=30 * MIB)
    assert not cached.is_past(usage_bytes=90 * MIB, inactive_file_bytes=30 * MIB), "`available < threshold`"
    assert not cached.is_past(usage_bytes=110 * MIB, inactive_file_bytes=60 * MIB)
    assert level(100).is_past(usage_bytes=100 * MIB + 1, inactive_file_bytes=99 * MIB)
    assert not level(100).is_past(usage_bytes=100 * MIB, inactive_file_bytes=0)


def test_levels_read_as_one_line(level) -> None:
    expected = "/node memory.available<100Mi at 412Mi, /pods memory.available<100Mi at 300Mi"
    assert expected == describe_levels([level(412), level(300, "/pods")])


def test_early_levels_go_without_saying(level) -> None:
    assert "/node memory.available<100Mi at 412Mi" == describe_levels(
        [replace(level(380), place_ahead=1), level(412)]
    )


def test_where_there_is_little_room_what_is_early_goes_first_and_the_nearest_last(level) -> None:
    hard, soft = level(412), level(462)
    far, near = replace(level(380), place_ahead=1), replace(level(409), place_ahead=2)
    late = replace(level(459), place_ahead=2)
    assert [hard, far, near, soft] == with_room_for([hard, far, near, soft, late], 4)
    assert [hard, near, soft] == with_room_for([hard, far, near, soft, late], 3)
    assert [hard, soft] == with_room_for([hard, far, near, soft, late], 2)
    assert [] == with_room_for([], 4)


def test_where_there_is_little_room_the_lowest_floor_comes_before_what_is_nearest(level) -> None:
    hard, early = level(462), replace(level(459), place_ahead=2)
    floor, other = replace(level(412), place_ahead=FLOOR), replace(level(432), place_ahead=FLOOR)
    brim = replace(level(440), place_ahead=BRIM)
    assert [hard, floor] == with_room_for([hard, early, other, floor, brim], 2)
    assert [hard, early, floor] == with_room_for([hard, early, other, floor, brim], 3)
