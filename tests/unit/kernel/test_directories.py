from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from reactor.kernel.directories import CachedListing


class Listed:
    """A directory listed through `CachedListing`; `times` counts how often it was read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.times = 0
        self.cached = CachedListing[list[str]]()

    def names(self) -> list[str]:
        return self.cached.get(self._find)

    def _find(self) -> list[str]:
        self.times += 1
        self.cached.watch(str(self.directory))
        return sorted(os.listdir(self.directory)) if self.directory.exists() else []


@pytest.fixture
def listed(tmp_path: Path) -> Listed:
    (tmp_path / "parent").mkdir()
    return Listed(tmp_path / "parent")


def test_a_listing_is_made_once_while_nothing_changes(listed: Listed) -> None:
    (listed.directory / "a").mkdir()
    assert [["a"]] * 3 == [listed.names() for _ in range(3)]
    assert 1 == listed.times


def test_who_comes_and_who_goes_is_seen_at_the_next_look(listed: Listed) -> None:
    assert [] == listed.names()
    (listed.directory / "a").mkdir()
    assert ["a"] == listed.names()
    (listed.directory / "b").mkdir()
    (listed.directory / "a").rmdir()
    assert ["b"] == listed.names()


def test_a_recreated_directory_is_listed_again(listed: Listed) -> None:
    assert [] == listed.names()
    listed.directory.rmdir()
    listed.directory.mkdir()
    (listed.directory / "a").mkdir()
    assert ["a"] == listed.names()
    (listed.directory / "b").mkdir()
    assert ["a", "b"] == listed.names()


def test_a_directory_that_comes_late_is_seen_with_all_that_is_above_it(tmp_path: Path) -> None:
    listed = Listed(tmp_path / "one" / "two")
    assert [[], []] == [listed.names(), listed.names()]
    assert 1 == listed.times
    (tmp_path / "one").mkdir()
    assert [] == listed.names()
    (tmp_path / "one" / "two" / "a").mkdir(parents=True)
    assert ["a"] == listed.names()


def test_what_could_not_be_read_is_tried_again_each_time(listed: Listed) -> None:
    def find() -> list[str]:
        listed.times += 1
        listed.cached.invalidate()
        return []

    for _ in range(3):
        listed.cached.get(find)
    assert 3 == listed.times


def test_without_inotify_every_look_is_a_listing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))  # not one more can be opened
    try:
        listed = Listed(tmp_path)
        listed.cached.get(lambda: listed.cached.watch(str(tmp_path)) or [])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ["a"] == listed.names()
