"""Node-level reclaim within a pass, on a node of plain values."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
import trio

from reactor.errors import RefusedError
from reactor.model.pods import PodUsage
from reactor.model.signals import Filesystem, Reclaim, Signal
from reactor.model.thresholds import ThresholdValue
from reactor.model.wakes import Wake, WakeKind

WAKE = Wake(source="filesystems", kind=WakeKind.HOUSEKEEPING, at_ns=1)


class Disk:
    """A loop whose nodefs has `available` of 1000, with a threshold of 100 and a minimum reclaim of 50."""

    def __init__(self, loop, observation, kinds) -> None:
        self.loop = loop
        self.available = 60
        self._observation = observation
        self._kinds = kinds

    async def observe(self) -> None:
        await trio.lowlevel.checkpoint()
        seen = {Signal.NODEFS_AVAILABLE: self._observation(self.available, 1000)}
        self.loop.known.observed.take([Signal.NODEFS_AVAILABLE], seen, self.loop.now_seconds)

    def frees(self, amount: int):
        def free() -> None:
            self.available += amount

        return free

    async def reclaim(self):
        await self.observe()
        asked = self.loop.passes.make([WAKE])
        assert self._kinds == asked.decision.reclaim
        self.loop.now_seconds += 1
        return await self.loop.passes.reclaim(asked, self.observe)


@pytest.fixture
def make_disk(make_loop, make_pod, make_threshold, observation):
    def make(**kwargs):
        value = ThresholdValue(text="50", amount=Fraction(50))
        threshold = dataclasses.replace(make_threshold(100, Signal.NODEFS_AVAILABLE), minimum_reclaim=value)
        loop = make_loop(threshold, commands_for={Filesystem.NODEFS}, **kwargs)
        loop.have(make_pod("writer"))
        return Disk(loop, observation, (Reclaim.COMMANDS, Reclaim.CONTAINERS, Reclaim.IMAGES))

    return make


async def test_what_was_freed_is_measured_against_what_was_wanted(make_disk, make_reclaim):
    disk = make_disk()
    disk.loop.reclaims[Reclaim.COMMANDS] = make_reclaim(disk.frees(200))
    record = await disk.reclaim()
    (given,) = record.reclaimed
    assert (given.wanted, given.freed, given.did) == (90, 200, ("vacuumed",))
    assert record.attempts == ()
    assert disk.loop.known.reclaimed == record.reclaimed
    assert record.document()["reclaimed"][0]["freed"] == 200


async def test_what_suffices_spares_the_rest(make_disk, make_reclaim):
    disk = make_disk()
    commands, images = make_reclaim(disk.frees(90)), make_reclaim(disk.frees(500))
    disk.loop.reclaims.update({Reclaim.COMMANDS: commands, Reclaim.IMAGES: images})
    await disk.reclaim()
    assert [tuple(Filesystem)] == commands.asked  # in a single layout they are one filesystem
    assert [] == images.asked


async def test_what_does_not_suffice_is_followed_by_the_rest_and_then_by_an_eviction(make_disk, make_reclaim):
    disk = make_disk()
    commands, images = make_reclaim(disk.frees(89)), make_reclaim()
    disk.loop.reclaims.update({Reclaim.COMMANDS: commands, Reclaim.IMAGES: images})
    record = await disk.reclaim()
    assert [89, 0] == [given.freed for given in record.reclaimed]
    assert ["writer"] == disk.loop.kills.killed


async def test_reclaim_that_fails_is_reported_and_the_pod_goes(make_disk, make_reclaim):
    disk = make_disk()

    def refuse() -> None:
        raise RefusedError("the runtime does not answer")

    disk.loop.reclaims[Reclaim.IMAGES] = make_reclaim(refuse)
    record = await disk.reclaim()
    assert [("the runtime does not answer",)] == [given.problems for given in record.reclaimed]
    assert ["writer"] == disk.loop.kills.killed


async def test_nothing_to_reclaim_is_no_reclaim_and_keeps_the_last_one(make_disk, make_reclaim):
    disk = make_disk()
    record = await disk.reclaim()
    assert ((), ()) == (record.reclaimed, disk.loop.known.reclaimed)
    assert ["writer"] == disk.loop.kills.killed


async def test_dry_run_gives_nothing_back(make_disk, make_reclaim):
    disk = make_disk(dry_run=True)
    commands = disk.loop.reclaims[Reclaim.COMMANDS] = make_reclaim(disk.frees(500))
    record = await disk.reclaim()
    assert [] == commands.asked
    assert ["dry-run"] == [attempt.outcome for attempt in record.attempts]


async def test_what_was_seen_after_a_reclaim_is_acted_on_once(make_disk, make_reclaim):
    disk = make_disk()
    commands = disk.loop.reclaims[Reclaim.COMMANDS] = make_reclaim(disk.frees(10))
    await disk.reclaim()
    assert ["writer"] == disk.loop.kills.killed
    assert not disk.loop.passes.make([WAKE]).decision.reclaim  # nothing newer was seen
    await disk.observe()
    disk.loop.now_seconds += 11
    await disk.observe()
    assert disk.loop.passes.make([WAKE]).decision.reclaim
    assert len(commands.asked) == 1


async def test_what_comes_back_only_after_a_while_is_waited_for_and_spares_everybody(
    make_disk, make_reclaim, autojump_clock
):
    disk = make_disk()
    disk.loop.reclaims[Reclaim.COMMANDS] = make_reclaim()
    glances = []

    async def glance() -> None:
        glances.append(disk.available)
        disk.available += 0 if len(glances) < 2 else 30
        await disk.observe()

    await disk.observe()
    asked = disk.loop.passes.make([WAKE])
    disk.loop.now_seconds += 1
    record = await disk.loop.passes.reclaim(asked, disk.observe, glance)
    assert record.attempts == ()
    assert record.reclaimed[0].freed >= record.reclaimed[0].wanted == 90
    assert len(glances) == 4


async def test_what_does_not_come_back_is_not_waited_for(make_disk, make_reclaim, autojump_clock):
    disk = make_disk()
    disk.loop.reclaims[Reclaim.COMMANDS] = make_reclaim()
    began_seconds = trio.current_time()
    record = await disk.reclaim()
    assert trio.current_time() - began_seconds < 0.5
    assert ["writer"] == [attempt.eviction.pod.name for attempt in record.attempts]


async def test_what_suffices_for_the_disk_is_enough_while_memory_waits_for_something_else(
    make_disk, make_reclaim, make_threshold, observation
):
    """A leak outside the pods keeps memory short, and its evictions are slowed down."""
    disk = make_disk(unhelpful_eviction_pause_seconds=60.0)
    memory = make_threshold(100)
    loop = disk.loop
    loop.node.memory_seen = {memory.signal: observation(50, 1000)}
    loop.usages.seen = {"uid-writer": PodUsage(memory_working_set_bytes=0)}
    settings = loop.known.settings
    loop.known.settings = dataclasses.replace(settings, thresholds=(memory, *settings.thresholds))
    loop.passes._node_reclaimer.settings = loop.known.settings
    commands = loop.reclaims[Reclaim.COMMANDS] = make_reclaim(disk.frees(500))
    images = loop.reclaims[Reclaim.IMAGES] = make_reclaim()
    record = await disk.reclaim()
    assert (len(commands.asked), images.asked, record.attempts) == (1, [], ())
