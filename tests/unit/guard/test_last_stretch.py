"""The last stretch before a crossing, by a clock that stands still but for the pauses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reactor.guard.last_stretch import LastStretch
from reactor.model.signals import Signal
from tests.support.builders import make_observation, make_threshold

MIB = 1 << 20
KIB = 1 << 10


class Node:
    """What is available, observation by observation; the last one lasts. `seconds` is the clock."""

    def __init__(self, *available: int) -> None:
        self._available: Iterator[int] = iter(available)
        self._last = 0
        self.seconds = 100.0
        self.reads = 0

    def memory(self) -> dict[Signal, object]:
        self.reads += 1
        self._last = next(self._available, self._last)
        return {Signal.MEMORY_AVAILABLE: make_observation(self._last)}

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def stretch(node: Node, *thresholds) -> LastStretch:
    return LastStretch(
        thresholds or (make_threshold(100 * MIB),),
        node.memory,
        clock_seconds=lambda: node.seconds,
        sleep=node.sleep,
    )


def test_memory_that_is_taken_is_read_until_it_crosses() -> None:
    node = Node(103 * MIB, 102 * MIB, 101 * MIB, 100 * MIB, 99 * MIB)

    assert stretch(node).watch(node.memory())

    assert 5 == node.reads


def test_memory_that_stands_still_is_left_alone_after_a_millisecond() -> None:
    node = Node(102 * MIB)

    assert not stretch(node).watch(node.memory())

    assert 0.001 <= node.seconds - 100.0 < 0.0012


def test_memory_that_is_taken_too_slowly_is_left_alone_after_five_milliseconds() -> None:
    node = Node(*(103 * MIB - KIB * step for step in range(1000)))

    assert not stretch(node).watch(node.memory())

    assert 0.005 <= node.seconds - 100.0 < 0.0052


@pytest.mark.parametrize(
    "available",
    [
        pytest.param(150 * MIB, id="far away"),
        pytest.param(110 * MIB, id="at the farther early level"),
        pytest.param(99 * MIB, id="crossed already"),
    ],
)
def test_nothing_is_read_where_no_crossing_is_imminent(available: int) -> None:
    node = Node(available)
    seen = node.memory()

    assert not stretch(node).watch(seen)

    assert 1 == node.reads


def test_usage_that_swings_about_the_early_level_is_left_alone_for_a_while() -> None:
    node = Node(102 * MIB)
    last_stretch = stretch(node)
    last_stretch.watch(node.memory())
    reads = node.reads

    node.seconds += 0.05
    last_stretch.watch(node.memory())
    assert reads + 1 == node.reads

    node.seconds += 0.1
    last_stretch.watch(node.memory())
    assert reads + 3 < node.reads


def test_a_soft_threshold_and_an_absurd_one_have_no_last_stretch() -> None:
    node = Node(102 * MIB)
    soft = make_threshold(100 * MIB, grace_period_seconds=30)
    absurd = make_threshold(make_observation(0).capacity)

    assert not stretch(node, soft, absurd).watch(node.memory())

    assert 1 == node.reads


def test_memory_that_can_not_be_read_any_more_is_left_alone() -> None:
    node = Node(102 * MIB)
    last_stretch = LastStretch(
        (make_threshold(100 * MIB),), dict, clock_seconds=lambda: node.seconds, sleep=node.sleep
    )

    assert not last_stretch.watch(node.memory())
