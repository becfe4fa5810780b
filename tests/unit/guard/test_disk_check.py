"""What the guard itself observes of a filesystem before a pod is evicted for it."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path

import pytest

from reactor.guard import filesystem_facts
from reactor.guard.filesystem_facts import DiskCheck
from reactor.model.settings import EvictionSettings, Settings
from reactor.model.signals import Filesystem, Layout, Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.policy.messages import eviction_message

WAKE = Wake(source="filesystems", kind=WakeKind.HOUSEKEEPING, at_ns=1)
CHECK = "check of nodefs"


def _settings(path: Path, layout: Layout = Layout.SINGLE) -> Settings:
    return Settings(
        eviction=EvictionSettings(layout=layout), filesystems={Filesystem.NODEFS: str(path)}, by_layout={}
    )


async def test_statvfs_is_asked_for_all_names_of_the_filesystem(make_threshold, observation, tmp_path):
    check = DiskCheck(_settings(tmp_path))
    capacity = os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    seen = await check.observe(make_threshold(capacity, Signal.IMAGEFS_AVAILABLE), observation(0, capacity))
    assert {one for one in Signal if one.partition(".")[0] in set(Filesystem)} >= seen.keys()
    assert {Signal.NODEFS_AVAILABLE, Signal.IMAGEFS_AVAILABLE} <= seen.keys()
    assert capacity == seen[Signal.IMAGEFS_AVAILABLE].capacity
    assert {} == check.problems


async def test_a_report_that_statvfs_does_not_bear_out_is_said_for_a_while(
    make_threshold, observation, tmp_path
):
    now = [100.0]
    check = DiskCheck(_settings(tmp_path), clock_seconds=lambda: now[0])
    threshold = make_threshold(4096, Signal.NODEFS_AVAILABLE)
    await check.observe(threshold, observation(0, 1 << 40))
    assert "statvfs(2) shows" in check.problems[CHECK]
    now[0] += 61
    assert {} == check.problems
    await check.observe(threshold, observation(0, 1 << 40))
    await check.observe(threshold, observation(1 << 60, 1 << 60))
    assert {} == check.problems


async def test_a_filesystem_that_can_not_be_read_shows_nothing(make_threshold, observation, tmp_path):
    check = DiskCheck(_settings(tmp_path / "none"))
    assert {} == await check.observe(make_threshold(1, Signal.NODEFS_AVAILABLE), observation(0, 1))
    assert "No such file or directory" in check.problems[CHECK]


async def test_a_filesystem_that_hangs_is_given_up_and_asked_once_alone(
    make_threshold, observation, tmp_path, monkeypatch
):
    hangs, asked = threading.Event(), []

    def hang(path: str):
        asked.append(path)
        hangs.wait(30)
        raise OSError("at last")

    monkeypatch.setattr(filesystem_facts, "read_space", hang)
    check = DiskCheck(_settings(tmp_path), timeout_seconds=0.05)
    threshold, reported = make_threshold(1, Signal.NODEFS_AVAILABLE), observation(0, 1)
    try:
        assert {} == await check.observe(threshold, reported)
        assert "no answer within 0.05 s" in check.problems[CHECK]
        assert {} == await check.observe(threshold, reported)
        assert 1 == len(asked)
    finally:
        hangs.set()


async def test_images_whose_place_only_the_runtime_knows_are_found_by_their_capacity(
    make_threshold, observation, tmp_path
):
    mounts = [one for one in filesystem_facts.read_mounts() if one.source.startswith("/dev/")]
    if not mounts:
        pytest.skip("no filesystem here lies on a device: run where one does")
    capacity = filesystem_facts.read_space(mounts[-1].mount_point).capacity_bytes
    check = DiskCheck(_settings(tmp_path, Layout.DEDICATED))
    threshold = make_threshold(1, Signal.IMAGEFS_AVAILABLE)
    seen = await check.observe(threshold, observation(0, capacity))
    assert seen == {} or seen[Signal.IMAGEFS_AVAILABLE].capacity == capacity
    assert {} == await check.observe(threshold, observation(0, 12345))
    assert "nothing can be seen of it" in check.problems["check of imagefs"]


@pytest.fixture
def short_disk(make_loop, make_pod, make_threshold, observation):
    """A loop whose nodefs is reported as short, and what its guard sees of it, as `own`."""
    loop = make_loop(make_threshold(100, Signal.NODEFS_AVAILABLE))
    loop.own = {}

    async def check(_threshold, _reported):
        return loop.own

    loop.passes.check_disk = check
    loop.known.settings = dataclasses.replace(loop.known.settings, rechecks_disks=True)
    loop.have(make_pod("writer"))

    async def act():
        loop.now_seconds += 20
        seen = {Signal.NODEFS_AVAILABLE: observation(0, 1000)}
        loop.known.observed.take(seen.keys(), seen, loop.now_seconds)
        asked = loop.passes.make([WAKE])
        assert asked.decision.reclaim

        async def observe() -> None:
            loop.known.observed.take(seen.keys(), seen, loop.now_seconds)

        return await loop.passes.reclaim(asked, observe)

    loop.act = act
    return loop


async def test_a_pod_is_evicted_only_if_the_guard_sees_the_disk_as_short_too(short_disk, observation):
    for own in ({}, {Signal.NODEFS_AVAILABLE: observation(100, 1000)}):
        short_disk.own = own
        assert (await short_disk.act()).attempts == ()
    short_disk.own = {Signal.NODEFS_AVAILABLE: observation(99, 1000)}
    record = await short_disk.act()
    assert ["writer"] == short_disk.kills.killed
    assert 99 == record.snapshot.signals[Signal.NODEFS_AVAILABLE].available
    assert "quantity: 100, available: 99." in eviction_message(record.attempts[0].eviction)[0]


async def test_without_a_report_that_is_fresh_no_pod_is_evicted(short_disk, observation):
    short_disk.own = {Signal.NODEFS_AVAILABLE: observation(99, 1000)}
    seen = {Signal.NODEFS_AVAILABLE: observation(0, 1000)}
    short_disk.known.observed.take(seen.keys(), seen, short_disk.now_seconds)
    asked = short_disk.passes.make([WAKE])
    short_disk.now_seconds += 3600

    async def observe() -> None:
        """Have nothing observed: the steward is gone."""

    assert (await short_disk.passes.reclaim(asked, observe)).attempts == ()
    assert [] == short_disk.kills.killed
