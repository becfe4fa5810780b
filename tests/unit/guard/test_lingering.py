"""Evictions for a filesystem's sake, on a node of plain values and a real directory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from reactor.model.decisions import Eviction, Snapshot
from reactor.model.pods import StorageKind, StoragePlace, Volume
from reactor.model.signals import Resource, Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.policy.events import EvictionOrdered
from tests.support.counted import Counted

WAKE = Wake(source="filesystems", kind=WakeKind.HOUSEKEEPING, at_ns=1)
KIB = 1 << 10


def eviction_of(pod):
    return Eviction(
        pod=pod,
        signal=Signal.NODEFS_AVAILABLE,
        resource=Resource.EPHEMERAL_STORAGE,
        grace_period_seconds=0,
        message="",
    )


@pytest.fixture
def writer(make_pod, tmp_path: Path):
    """A pod with 400 KiB in a volume."""
    (tmp_path / "file").write_bytes(b"x" * 400 * KIB)
    place = StoragePlace(kind=StorageKind.VOLUME, name="scratch", path=str(tmp_path))
    return dataclasses.replace(make_pod("writer"), volumes=(Volume(name="scratch"),), storage=(place,))


@pytest.fixture
def disk(make_loop, make_threshold, make_pod, observation, writer):
    loop = make_loop(make_threshold(100 * KIB, Signal.NODEFS_AVAILABLE))
    loop.storage = Counted(loop.known.storage)

    def short(available_kib: int) -> None:
        loop.now_seconds += 1
        loop.storage.look(loop.known.with_lingering(loop.known.pods))
        seen = {Signal.NODEFS_AVAILABLE: observation(available_kib * KIB, 1000 * KIB)}
        loop.known.observed.take([Signal.NODEFS_AVAILABLE], seen, loop.now_seconds)

    async def evict(available_kib: int) -> list[str]:
        short(available_kib)
        asked = loop.passes.make([WAKE])
        if asked.decision.reclaim:

            async def observe() -> None:
                short(available_kib)

            await loop.passes.reclaim(asked, observe)
        return list(loop.kills.killed)

    loop.evict = evict
    loop.have(make_pod("innocent"), writer)
    return loop


async def test_pod_that_takes_most_goes_first_and_one_without_storage_takes_nothing(disk):
    assert await disk.evict(50) == ["writer"]


async def test_what_it_still_takes_is_credited_also_when_its_cgroup_is_gone(disk, make_pod):
    await disk.evict(50)
    disk.have(make_pod("innocent"))
    assert await disk.evict(50) == ["writer"]
    assert await disk.evict(40) == ["writer"]
    assert "uid-writer" in disk.known.lingering


async def test_pod_whose_files_are_gone_is_waited_for_no_longer(disk, make_pod, tmp_path: Path):
    await disk.evict(50)
    assert not disk.passes.results.pod_ended("uid-writer")
    disk.have(make_pod("innocent"))
    (tmp_path / "file").unlink()
    disk.storage.look(list(disk.known.lingering.values()))
    assert disk.passes.results.pod_ended("uid-writer")
    assert "uid-writer" not in disk.known.lingering
    assert await disk.evict(50) == ["writer", "innocent"]


async def test_what_was_seen_before_its_files_were_gone_kills_no_other_pod(
    disk, make_pod, observation, tmp_path: Path
):
    await disk.evict(50)
    disk.have(make_pod("innocent"))
    seen = {Signal.NODEFS_AVAILABLE: observation(50 * KIB, 1000 * KIB)}
    disk.known.observed.take([Signal.NODEFS_AVAILABLE], seen, disk.now_seconds + 1)
    disk.now_seconds += 2
    (tmp_path / "file").unlink()
    disk.storage.look(list(disk.known.lingering.values()))
    assert disk.passes.results.pod_ended("uid-writer")
    assert not disk.passes.make([WAKE]).decision.reclaim
    assert disk.kills.killed == ["writer"]
    assert await disk.evict(50) == ["writer", "innocent"]


async def test_what_was_seen_before_its_files_were_gone_and_is_reported_after_kills_no_other_pod(
    disk, make_pod, observation, tmp_path: Path
):
    await disk.evict(50)
    disk.have(make_pod("innocent"))
    disk.now_seconds += 2
    (tmp_path / "file").unlink()
    disk.storage.look(list(disk.known.lingering.values()))
    assert disk.passes.results.pod_ended("uid-writer")
    late = {Signal.NODEFS_AVAILABLE: observation(50 * KIB, 1000 * KIB)}
    disk.known.observed.take([Signal.NODEFS_AVAILABLE], late, disk.now_seconds - 0.5)
    assert not disk.passes.make([WAKE]).decision.reclaim
    disk.passes.make([WAKE])
    disk.known.observed.take([Signal.NODEFS_AVAILABLE], late, disk.now_seconds - 0.4)
    assert not disk.passes.make([WAKE]).decision.reclaim
    assert disk.kills.killed == ["writer"]


async def test_pod_whose_files_are_being_removed_is_waited_for_although_their_names_are_gone(
    disk, make_pod, tmp_path: Path
):
    await disk.evict(50)
    disk.have(make_pod("innocent"))
    disk.known.storage.hold("uid-writer")
    (tmp_path / "file").unlink()
    disk.storage.look(list(disk.known.lingering.values()))
    assert not disk.passes.results.pod_ended("uid-writer")
    assert disk.passes.make([WAKE]).decision.acted_on is None
    disk.known.storage.release("uid-writer")
    disk.storage.look(list(disk.known.lingering.values()))
    assert disk.passes.results.pod_ended("uid-writer")


async def test_pod_whose_files_stay_is_waited_for_until_the_deadline_only(disk, make_pod):
    await disk.evict(50)
    disk.have(make_pod("innocent"))
    disk.now_seconds += 11
    assert await disk.evict(50) == ["writer", "innocent"]


async def test_credit_that_is_not_enough_spares_no_pod(disk, make_pod, tmp_path: Path):
    await disk.evict(50)
    disk.have(make_pod("innocent"))
    (tmp_path / "file").write_bytes(b"x" * 20 * KIB)
    assert await disk.evict(50) == ["writer", "innocent"]


async def test_pods_that_take_nothing_known_go_one_at_a_deadline_and_none_goes_twice(disk, make_pod):
    disk.have(make_pod("a"), make_pod("b"))
    assert await disk.evict(50) == ["a"]
    assert await disk.evict(50) == ["a"]
    assert not disk.passes.results.pod_ended("uid-a")
    disk.now_seconds += 11
    assert await disk.evict(50) == ["a", "b"]
    assert not disk.passes.results.pod_ended("uid-b")
    disk.now_seconds += 11
    assert await disk.evict(50) == ["a", "b"]


async def test_pod_that_takes_nothing_known_spares_the_others_for_as_long(
    make_loop, make_threshold, make_pod, observation
):
    loop = make_loop(make_threshold(100, Signal.PID_AVAILABLE))
    loop.have(make_pod("one"))
    loop.known.apply(EvictionOrdered(eviction=eviction_of(make_pod("one")), snapshot=Snapshot(), pods=()))
    assert not loop.known.is_freed("uid-one")
    assert loop.known.is_freed("uid-other")
