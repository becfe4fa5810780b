"""Shared memory and tmpfs that a victim leaves: others are spared while they are being removed, in bounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio.testing

from reactor.guard.node import Node
from reactor.guard.state import StateFile, restore
from reactor.kernel.small_file import replace
from reactor.model.decisions import ClaimKind
from reactor.model.pods import PodUsage
from reactor.model.settings import EvictionSettings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observed
from reactor.model.wakes import Wake, WakeKind

MIB = 1 << 20
WAKE = Wake(source="test", kind=WakeKind.MEMORY, at_ns=1)


@pytest.fixture
async def loop(make_loop, make_pod, observation):
    """A node below its 100 MiB, whose hog of 300 MiB was killed and has left 60 MiB in a tmpfs."""
    loop = make_loop()
    loop.have(make_pod("hog"), make_pod("calm"))
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=300 * MIB)
    loop.usages.stays = {"uid-hog"}
    loop.usages.shared = {"uid-hog": 60 * MIB}
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(90 * MIB)}
    loop.kills.reaped.set()
    loop.passes.make([WAKE])
    await trio.testing.wait_all_tasks_blocked()
    assert (["hog"], ["uid-hog"]) == (loop.kills.killed, loop.gone)
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=60 * MIB)
    return loop


def look(loop, seconds: float = 0.02) -> list[str]:
    """Make a pass some time later, and return everybody who was killed until then."""
    loop.now_seconds += seconds
    loop.passes.make([WAKE])
    return list(loop.kills.killed)


async def test_no_other_pod_is_killed_for_files_in_memory_that_are_still_to_be_removed(loop, observation):
    assert ["hog"] == look(loop)
    (flight,) = loop.known.state.in_flight
    assert (ClaimKind.FILES, 60 * MIB) == (flight.kind, flight.amount)

    loop.usages.shared["uid-hog"] = 0
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(150 * MIB)}
    assert ["hog"] == look(loop)
    assert () == loop.known.state.in_flight


async def test_files_in_memory_that_stay_spare_others_until_the_deadline_of_their_eviction(loop):
    assert ["hog"] == look(loop, 9.9)
    assert ["hog", "calm"] == look(loop, 0.2)


async def test_second_hog_is_killed_at_once_where_half_of_the_threshold_is_left(loop, observation):
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(50 * MIB)}
    assert ["hog"] == look(loop)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(50 * MIB - 1)}
    assert ["hog", "calm"] == look(loop)


async def test_pod_that_lives_again_is_not_killed_for_what_its_predecessor_left_but_once_it_grows(loop):
    loop.populated = {"uid-hog"}
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=68 * MIB)
    assert ["hog"] == look(loop)
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=69 * MIB)
    assert ["hog", "hog"] == look(loop)


async def test_page_cache_that_a_pod_leaves_beside_its_files_is_no_sign_that_it_lives_again(loop):
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=75 * MIB)
    loop.usages.cached["uid-hog"] = 15 * MIB
    assert ["hog"] == look(loop)
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=84 * MIB)
    assert 2 == len(look(loop))


async def test_few_pages_of_shared_memory_spare_no_pod(loop):
    loop.usages.shared["uid-hog"] = 64 * 1024 - 1
    assert ["hog", "calm"] == look(loop)


async def test_little_shared_memory_is_awaited_where_it_is_enough(loop, observation):
    loop.usages.shared["uid-hog"] = MIB // 2
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=MIB // 2)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(100 * MIB - MIB // 4)}
    assert ["hog"] == look(loop)


async def test_evicted_pod_whose_empty_cgroup_still_stands_is_not_killed_again_after_a_reload(
    loop, make_threshold
):
    loop.usages.shared = {}
    settings = EvictionSettings(thresholds=(make_threshold(100 * MIB),), unhelpful_eviction_pause_seconds=0.0)
    loop.passes = loop.passes_by(settings)
    assert ["hog", "calm"] == look(loop)


async def test_evicted_pod_that_left_files_in_memory_is_known_to_have_ended_after_a_restart(
    loop, tmp_path: Path
):
    file = StateFile(tmp_path / "state.json")
    replace(file.path, file.document(loop.known.state))
    assert 60 * MIB == json.loads(file.path.read_text())["state"]["claims"][0]["amount"]
    known = Node(observed=Observed(stale_seconds=0.0))

    assert restore(file, known) is None

    assert loop.known.state.claims == known.state.claims
    hog = loop.known.pods[0]
    assert () == known.eligible([hog], 0.0, lambda _: False)
