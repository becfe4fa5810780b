"""Whose turn it is: real directories, and a pace that counts."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.disks.walk_messages import Kind, Report
from reactor.disks.walker import Places
from tests.support.this_machine import open_descriptors
from tests.support.trees import make_deep, make_wide


class Looks:
    """Places, and what they report, by a clock of their own that each reading moves: their time is counted.

    Each look is so long after the one before that everything is counted, also where what its filesystem
    shows is the same: of one that others use, too, as much may have been freed meanwhile as was taken.
    """

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self._seconds = 0.0
        self.places = Places(self.reports.append, clock_seconds=self._read_clock)

    def _read_clock(self) -> float:
        self._seconds += 0.0001
        return self._seconds

    def due(self) -> None:
        self._seconds += 1000.0
        self.places.due()

    def counted(self) -> list[int]:
        return [report.place for report in self.reports if report.kind is Kind.COUNTED]


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """Return a chain of 2000 directories, which pytest itself is not able to remove."""
    yield make_deep(tmp_path / "deep", 2000)
    subprocess.run(["rm", "-rf", tmp_path / "deep"], check=True)


@pytest.fixture
def looks() -> Looks:
    return Looks()


def no_pace() -> float:
    return 0.0


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make every place named `endless` take for ever, a step at a time."""
    from reactor.disks.tree import TreeUsage  # noqa: PLC0415

    steps = TreeUsage.steps

    def patched(tree: TreeUsage) -> Iterator[None]:
        if tree.path.endswith("endless"):
            for _ in itertools.count():
                tree.directories += 1
                yield
        yield from steps(tree)

    monkeypatch.setattr(TreeUsage, "steps", patched)
    return iter(())


@pytest.mark.usefixtures("endless")
def test_pods_with_few_files_are_counted_whatever_endless_ones_do(looks: Looks, tmp_path: Path) -> None:
    for number in range(10):
        looks.places.add(number, number, str(make_wide(tmp_path / f"{number}endless", 0)))
    looks.places.add(10, 10, str(make_wide(tmp_path / "small", 20)))
    looks.due()
    turns = 0
    while looks.counted() != [10]:
        looks.places.turn(no_pace)
        turns += 1
    assert turns <= 11  # a slice of each


@pytest.mark.usefixtures("endless")
def test_look_is_over_for_those_that_are_counted_and_goes_on_for_the_others(
    looks: Looks, tmp_path: Path
) -> None:
    looks.places.add(1, 1, str(make_wide(tmp_path / "endless", 0)))
    looks.places.add(2, 2, str(make_wide(tmp_path / "small", 20)))
    for look in range(3):
        looks.due()
        while not looks.places.is_settled:
            looks.places.turn(no_pace)
        assert [2] * (look + 1) == looks.counted()
    assert not looks.places.is_idle
    looks.places.report_all_so_far()
    assert looks.reports[-1].kind is Kind.SO_FAR
    assert looks.reports[-1].directories > 1000
    looks.places.drop(1)
    assert looks.places.is_idle


@pytest.mark.usefixtures("endless")
def test_places_of_one_pod_share_its_turns(looks: Looks, tmp_path: Path) -> None:
    for number in range(20):
        looks.places.add(number, 1, str(make_wide(tmp_path / f"{number}endless", 0)))
    looks.places.add(20, 2, str(make_wide(tmp_path / "other-endless", 0)))
    looks.due()
    had = {1: 0, 2: 0}
    for _ in range(60):
        looks.places.turn(no_pace)
    for place in looks.places._places.values():
        had[place.pod] += place.tree.directories
    assert had[2] > had[1] / 3


def test_tree_of_two_thousand_levels_takes_no_more_steps_and_descriptors_than_it_has_directories(
    looks: Looks, deep: Path
) -> None:
    looks.places.add(1, 1, str(deep))
    looks.due()
    before = open_descriptors()
    steps = 0

    def pace() -> float:
        nonlocal steps
        steps += 1
        assert len(os.listdir("/proc/self/fd")) <= before + 3
        return 0.0

    while not looks.places.is_idle:
        looks.places.turn(pace)
    assert 2001 == looks.reports[-1].inodes
    assert steps < 3 * 2001


def test_one_pod_can_not_take_all_the_room_to_remember_directories(
    looks: Looks, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("reactor.disks.walker._DIRECTORIES_OF_A_POD", 10)
    looks.places.add(1, 1, str(make_wide(tmp_path / "wide", 100)))
    looks.places.add(2, 1, str(make_wide(tmp_path / "also", 100)))
    looks.due()
    while not looks.places.is_idle:
        looks.places.turn(no_pace)
    remembered = sum(place.tree._root.size() for place in looks.places._places.values())
    assert remembered <= 12  # and the two roots
    assert [101, 101] == [report.inodes for report in looks.reports if report.kind is Kind.COUNTED]
