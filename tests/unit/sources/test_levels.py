import pytest

from reactor.sources.levels import describe_levels, needs_rearming

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
    assert cached.is_past(usage_bytes=90 * MIB, inactive_file_bytes=30 * MIB)
    assert not cached.is_past(usage_bytes=110 * MIB, inactive_file_bytes=60 * MIB)
    assert level(100).is_past(usage_bytes=100 * MIB, inactive_file_bytes=99 * MIB)
    assert not level(100).is_past(usage_bytes=100 * MIB - 1, inactive_file_bytes=0)


def test_levels_read_as_one_line(level) -> None:
    expected = "/node memory.available<100Mi at 412Mi, /pods memory.available<100Mi at 300Mi"
    assert expected == describe_levels([level(412), level(300, "/pods")])
