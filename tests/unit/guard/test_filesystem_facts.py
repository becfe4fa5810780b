"""What the guard makes of the filesystems that the steward observes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing

from reactor.guard.filesystem_facts import FilesystemFacts
from reactor.guard.outbox import RecordQueue
from reactor.guard.steward_link import StewardLink
from reactor.link.requests import Space
from reactor.model.settings import EvictionSettings, Settings
from reactor.model.signals import Filesystem, Layout, Signal
from reactor.model.thresholds import Observed
from reactor.model.wakes import SourceHealth
from reactor.sources.wakes import Wakes

SETTINGS = Settings(by_layout={Layout.SPLIT: EvictionSettings()})


class Told:
    """What is told of the filesystems, and what comes of it."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.observed, self.wakes = Observed(stale_seconds=35.0), Wakes()
        self.board = self.wakes.board
        self.layouts: list[Layout] = []
        self.now_seconds = 1000.0
        self.link = StewardLink(RecordQueue("now/1"), {}, settings, lambda _: None)
        self.filesystems = FilesystemFacts(
            self.link,
            settings,
            self.observed,
            self.wakes,
            timeout_seconds=5.0,
            on_layout=self.layouts.append,
            on_filling=lambda: None,
            clock_seconds=lambda: self.now_seconds,
        )


def space(**changed) -> Space:
    seen = Space(order=1, filesystems=(Filesystem.NODEFS, Filesystem.IMAGEFS), at_ns=0)
    return replace(seen, **changed)


def test_what_is_seen_in_one_place_is_known_of_each_filesystem_there_with_its_age():
    told = Told()
    told.filesystems.space(space(available_bytes=5, capacity_bytes=9, inodes_free=1, inodes=2))

    seen = told.observed._latest
    assert {signal: (one.available, one.capacity) for signal, one in seen.items()} == {
        Signal.NODEFS_AVAILABLE: (5, 9),
        Signal.NODEFS_INODES_FREE: (1, 2),
        Signal.IMAGEFS_AVAILABLE: (5, 9),
        Signal.IMAGEFS_INODES_FREE: (1, 2),
    }
    assert all(one.taken_at_seconds < 1000.0 for one in seen.values())


def test_what_is_not_seen_any_more_is_unknown():
    told = Told()
    told.filesystems.space(space(available_bytes=5, capacity_bytes=9))
    told.filesystems.space(space(filesystems=(Filesystem.NODEFS,)))

    assert [Signal.IMAGEFS_AVAILABLE] == list(told.observed._latest)


async def test_wakes_without_end_are_a_few_passes_a_second_and_the_last_is_not_forgotten(
    nursery, autojump_clock
):
    told = Told()
    await nursery.start(told.filesystems.run)
    with trio.move_on_after(1.0):
        while True:
            told.filesystems.wake()
            await trio.sleep(0.005)
    await trio.sleep(1.0)

    assert 5 <= told.board.state("filesystems").wakes <= 12
    assert [wake.source for wake in await told.wakes.wait()] == ["filesystems"]


async def test_without_an_answer_the_source_has_failed_and_says_so():
    told = Told()
    told.now_seconds += 31.0
    await told.filesystems.refresh()

    assert told.board.state("filesystems").health is SourceHealth.FAILED
    assert "does not answer" in told.filesystems.problems["filesystems"]


async def test_a_steward_that_starts_is_no_source_that_failed_until_it_should_have_started():
    told = Told()
    await told.filesystems.refresh()
    assert told.board.state("filesystems").health is SourceHealth.OFF
    assert "it starts" in told.filesystems.problems["filesystems"]

    told.now_seconds += 30.0
    await told.filesystems.refresh()
    assert told.board.state("filesystems").health is SourceHealth.FAILED


async def test_a_steward_that_has_answered_and_does_not_any_more_is_a_source_that_failed(monkeypatch):
    told = Told()
    answers = iter((True, False))

    async def observe(_timeout_seconds: float) -> bool:
        return next(answers)

    monkeypatch.setattr(told.link, "observe", observe)
    await told.filesystems.refresh()
    assert (told.board.state("filesystems").health, told.filesystems.problems) == (SourceHealth.ARMED, {})
    await told.filesystems.refresh()
    assert told.board.state("filesystems").health is SourceHealth.FAILED


async def test_a_steward_that_came_too_late_is_asked_again_before_the_next_housekeeping(
    nursery, autojump_clock, monkeypatch
):
    told = Told()
    answers = iter((True, False, False, True))
    asked_at = []

    async def observe(_timeout_seconds: float) -> bool:
        asked_at.append(trio.current_time())
        return next(answers)

    monkeypatch.setattr(told.link, "observe", observe)
    await nursery.start(told.filesystems.run)
    await told.filesystems.refresh()
    await trio.sleep(60.0)
    await told.filesystems.refresh()
    (wake,) = await told.wakes.wait()

    assert ("filesystems", SourceHealth.ARMED) == (wake.source, told.board.state("filesystems").health)
    assert [asked - asked_at[0] for asked in asked_at] == pytest.approx([0.0, 60.0, 65.0, 70.0])
    await trio.sleep(600.0)
    assert len(asked_at) == 4


@pytest.mark.parametrize(
    ("layout", "is_adopted"), [(Layout.SPLIT, True), (Layout.DEDICATED, False), (Layout.SINGLE, False)]
)
def test_layout_is_adopted_where_there_are_settings_for_it_and_it_is_another(layout, is_adopted):
    told = Told()
    told.filesystems.adopt_layout(layout)

    assert told.layouts == ([layout] if is_adopted else [])
