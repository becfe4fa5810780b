"""The last stretch before a crossing, by a clock that looks, pauses and rehearsals move."""

from __future__ import annotations

import pytest

from reactor.guard.approach import LastStretch
from reactor.model.signals import Signal
from reactor.sources.levels import MemoryLevel
from tests.support.builders import make_threshold

MIB = 1 << 20
KIB = 1 << 10
LEVEL_BYTES = 400 * MIB - 1  # 400 MiB are past it
LOOK_SECONDS = 2.0**-17
FIRST_LOOKS = 40  # without a pause
SHORT, LONG = 0.00005, 0.00025


class Node:
    """The node's usage, reading by reading; the last one lasts. `seconds` is the clock."""

    def __init__(self, *usage_bytes: int) -> None:
        self._usage_bytes = list(usage_bytes)
        self.seconds = 100.0
        self.reads = 0
        self.rehearsals = 0
        self.pauses: list[float] = []

    def usage_bytes(self, cgroup: str) -> int | None:
        if cgroup != "/node":
            return None
        self.reads += 1
        self.seconds += LOOK_SECONDS
        return self._usage_bytes[min(self.reads, len(self._usage_bytes)) - 1]

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.pauses.append(seconds)

    def prepare(self, *, again: bool) -> None:
        self.rehearsals += again
        self.seconds += 0.0001


def level(level_bytes: int = LEVEL_BYTES, cgroup: str = "/node") -> MemoryLevel:
    return MemoryLevel(
        signal=Signal.MEMORY_AVAILABLE,
        cgroup=cgroup,
        level_bytes=level_bytes,
        threshold=make_threshold(100 * MIB),
    )


def stretch(node: Node) -> LastStretch:
    return LastStretch(node, node, clock_seconds=lambda: node.seconds, sleep=node.sleep)


def test_usage_that_grows_is_read_until_it_is_at_the_level() -> None:
    node = Node(397 * MIB, 398 * MIB, 399 * MIB, 400 * MIB)

    assert level() == stretch(node).watch([level()])

    assert 4 == node.reads


def test_usage_at_a_level_is_not_past_it() -> None:
    """A pass would find the threshold not met, and nothing would watch what comes next."""
    node = Node(397 * MIB, 400 * MIB, 400 * MIB, 400 * MIB + 4 * KIB)

    assert level(400 * MIB) == stretch(node).watch([level(400 * MIB)])

    assert 4 == node.reads


def test_a_level_that_is_as_near_as_usage_has_just_grown_is_read_for_without_a_pause() -> None:
    node = Node(397 * MIB, 399 * MIB, *[399 * MIB] * 20, 400 * MIB)

    assert level() == stretch(node).watch([level()])

    assert (23, 0, []) == (node.reads, node.rehearsals, node.pauses)


def test_at_first_usage_is_read_without_a_pause_for_a_moment() -> None:
    """The early level was crossed a moment ago: an allocator at full speed may be there at once."""
    node = Node(*[397 * MIB] * (FIRST_LOOKS - 1), 400 * MIB)

    assert level() == stretch(node).watch([level()])

    assert (FIRST_LOOKS, 0, []) == (node.reads, node.rehearsals, node.pauses)


def test_an_allocator_on_the_same_cpu_which_grows_in_pauses_alone_is_seen_after_a_short_one() -> None:
    node = Node(*[397 * MIB] * FIRST_LOOKS, *[399 * MIB] * (FIRST_LOOKS + 4), 400 * MIB)

    assert level() == stretch(node).watch([level()])

    assert [LONG, *[SHORT] * 4] == node.pauses
    assert 0 == node.rehearsals


def test_after_little_growth_pauses_are_long_again() -> None:
    node = Node(397 * MIB, *[399 * MIB] * (FIRST_LOOKS + 2), 399 * MIB + KIB, 400 * MIB)

    assert level() == stretch(node).watch([level()])

    assert [SHORT, SHORT, LONG] == node.pauses


def test_such_a_level_that_is_not_crossed_after_all_is_waited_for_as_any_other() -> None:
    node = Node(397 * MIB, 399 * MIB)

    assert stretch(node).watch([level()]) is None

    assert node.rehearsals > 5
    assert 0.012 <= node.seconds - 100.0 < 0.0128


def test_victims_are_prepared_again_once_usage_has_grown() -> None:
    growth = (397 * MIB + KIB * step for step in range(9))
    node = Node(*[397 * MIB] * (FIRST_LOOKS - 1), *growth, 397 * MIB + 8 * KIB, 400 * MIB)

    assert level() == stretch(node).watch([level()])

    assert 4 == node.rehearsals


def test_while_usage_stands_still_they_are_seldom_prepared_again_so_that_it_can_grow() -> None:
    node = Node(*[397 * MIB] * (FIRST_LOOKS + 25), 400 * MIB)

    assert level() == stretch(node).watch([level()])

    assert 5 == node.rehearsals


def test_of_several_levels_that_which_is_crossed_first_is_found() -> None:
    """The pods' cgroup may grow while other memory of the node is freed."""

    class Two(Node):
        def usage_bytes(self, cgroup: str) -> int | None:
            seen = super().usage_bytes("/node")
            return seen if cgroup == "/node" or self.reads < 9 else 400 * MIB

    pods = level(cgroup="/node/pods")

    assert pods == stretch(Two(398 * MIB)).watch([level(), level(450 * MIB, "/gone"), pods])


def test_of_several_levels_the_nearest_is_waited_for() -> None:
    node = Node(397 * MIB, 397 * MIB, 397 * MIB, 400 * MIB)

    found = stretch(node).watch([level(450 * MIB), level(), level(cgroup="/gone")])

    assert level() == found


def test_a_level_that_is_past_hides_no_level_that_is_ahead() -> None:
    node = Node(397 * MIB, 397 * MIB, 398 * MIB, 399 * MIB, 400 * MIB)

    found = stretch(node).watch([level(390 * MIB), level()])

    assert level() == found


def test_usage_that_stands_still_is_left_alone_after_twelve_milliseconds() -> None:
    node = Node(398 * MIB)

    assert stretch(node).watch([level()]) is None

    assert 0.012 <= node.seconds - 100.0 < 0.0125
    assert node.rehearsals > 5


def test_usage_that_grows_too_slowly_is_left_alone_after_thirty_milliseconds() -> None:
    node = Node(*(397 * MIB + KIB * step for step in range(1000)))

    assert stretch(node).watch([level()]) is None

    assert 0.03 <= node.seconds - 100.0 < 0.0305


@pytest.mark.parametrize(
    "usage_bytes",
    [
        pytest.param(300 * MIB, id="far away"),
        pytest.param(390 * MIB, id="at the farther early level"),
        pytest.param(LEVEL_BYTES + 1, id="crossed already"),
    ],
)
def test_no_crossing_is_waited_for_that_is_not_imminent(usage_bytes: int) -> None:
    node = Node(usage_bytes, LEVEL_BYTES + 1)

    assert stretch(node).watch([level()]) is None

    assert (1, []) == (node.reads, node.pauses)


def test_usage_that_swings_about_the_early_level_is_left_alone_for_a_while() -> None:
    node = Node(398 * MIB)
    last_stretch = stretch(node)
    last_stretch.watch([level()])
    reads = node.reads

    node.seconds += 0.05
    last_stretch.watch([level()])
    assert reads == node.reads

    node.seconds += 0.1
    last_stretch.watch([level()])
    assert reads + 2 < node.reads


def test_the_longer_it_was_waited_for_the_longer_it_is_left_alone() -> None:
    node = Node(*(397 * MIB + KIB * step for step in range(1000)))
    last_stretch = stretch(node)
    last_stretch.watch([level()])
    reads = node.reads

    node.seconds += 0.29
    last_stretch.watch([level()])
    assert reads == node.reads

    node.seconds += 0.02
    last_stretch.watch([level()])
    assert reads < node.reads


def test_a_cgroup_that_vanishes_meanwhile_is_left_alone() -> None:
    class Vanishing(Node):
        def usage_bytes(self, cgroup: str) -> int | None:
            seen = super().usage_bytes(cgroup)
            return seen if self.reads < 2 else None

    node = Vanishing(398 * MIB)

    assert stretch(node).watch([level()]) is None

    assert 2 == node.reads


def test_without_a_level_there_is_nothing_to_wait_for() -> None:
    assert stretch(Node(398 * MIB)).watch([]) is None
