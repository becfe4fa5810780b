from __future__ import annotations

import pytest

from reactor.kernel.cgroup import CgroupVersion
from reactor.kernel.mem_available import Watermarks
from reactor.model.settings import EvictionSettings, Settings
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.sources.levels import BRIM, FLOOR, MemoryLevels
from reactor.sources.processes import process_levels
from tests.support.builders import make_observation, make_threshold
from tests.support.this_machine import open_descriptors

MIB = 1 << 20


@pytest.fixture(name="observation")
def _observation():
    return make_observation


@pytest.fixture(name="make_threshold")
def _make_threshold():
    return make_threshold


@pytest.fixture
def tree(make_tree):
    tree = make_tree(CgroupVersion.V1)
    tree.add("/node", usage_bytes=113 * MIB)
    tree.add("/node/a", usage_bytes=30 * MIB)
    tree.add("/node/b", usage_bytes=70 * MIB)
    return tree


def levels(tree, *thresholds, parents=("/node",)):
    settings = Settings(
        eviction=EvictionSettings(thresholds=thresholds), node_cgroup="/node", pod_parents=parents
    )
    return MemoryLevels(tree.tree, settings)


def crossings(found):
    return [level for level in found if not level.is_early]


def test_level_is_capacity_less_threshold_plus_what_the_cache_holds(tree, make_threshold, observation):
    found = levels(tree, make_threshold(100 * MIB)).of({Signal.MEMORY_AVAILABLE: observation(400 * MIB)})

    (level,) = crossings(found)
    assert level.cgroup == "/node"
    assert level.level_bytes == (512 - 100 + 1) * MIB
    assert level.working_set_bytes == (512 - 100) * MIB


def test_usage_at_a_hard_level_is_held_open_before_anything_crosses_it(tree, make_threshold, observation):
    hard, soft = make_threshold(100 * MIB), make_threshold(100 * MIB, grace_period_seconds=9)
    before = open_descriptors()

    made = levels(tree, soft)
    made.of({Signal.MEMORY_AVAILABLE: observation(400 * MIB)})
    assert open_descriptors() == before
    made.close()

    made = levels(tree, hard)
    made.of({Signal.MEMORY_AVAILABLE: observation(400 * MIB)})
    at_rest = open_descriptors()
    assert at_rest > before
    assert made.usage_bytes("/node") == 113 * MIB
    assert open_descriptors() == at_rest
    made.close()
    assert open_descriptors() == before


def test_every_memory_threshold_has_its_level_and_no_other_signal_has(tree, make_threshold, observation):
    thresholds = [
        make_threshold(100 * MIB),
        make_threshold(200 * MIB, grace_period_seconds=9),
        make_threshold(9, Signal.PID_AVAILABLE),
    ]
    found = levels(tree, *thresholds).of({Signal.MEMORY_AVAILABLE: observation(400 * MIB)})

    assert [level.threshold for level in crossings(found)] == thresholds[:2]


def test_signal_that_is_unknown_or_absurd_has_no_level(tree, make_threshold, observation):
    found = levels(tree, make_threshold(100 * MIB))

    assert found.of({}) == []
    assert found.of({Signal.MEMORY_AVAILABLE: observation(600 * MIB)}) == []


def test_threshold_at_or_above_the_capacity_has_no_level(tree, make_threshold, observation):
    thresholds = [make_threshold(512 * MIB), make_threshold(600 * MIB), make_threshold(511 * MIB)]
    found = levels(tree, *thresholds).of({Signal.MEMORY_AVAILABLE: observation(400 * MIB)})

    assert [level.threshold for level in crossings(found)] == thresholds[2:]

    of_processes = [make_threshold(100, Signal.PID_AVAILABLE), make_threshold(99, Signal.PID_AVAILABLE)]
    counted = process_levels(observation(50, 100), of_processes, "/node")
    assert counted is not None
    assert counted.thresholds == (of_processes[1],)


def test_each_of_several_parents_gets_all_that_is_left_of_their_sum(tree, make_threshold, observation):
    allocatable = Signal.ALLOCATABLE_MEMORY_AVAILABLE
    maker = levels(tree, make_threshold(100 * MIB, allocatable), parents=("/node/a", "/node/b"))

    # 100 MiB used of 512: 312 more until no more than 100 are available.
    found = maker.of({allocatable: observation(413 * MIB)})

    assert {level.cgroup: level.level_bytes // MIB for level in crossings(found)} == {
        "/node/a": 30 + 313,
        "/node/b": 70 + 313,
    }
    maker.close()


def test_parent_that_is_not_there_has_no_level(tree, make_threshold, observation):
    allocatable = Signal.ALLOCATABLE_MEMORY_AVAILABLE
    maker = levels(tree, make_threshold(100 * MIB, allocatable), parents=("/node/a", "/node/none"))

    found = maker.of({allocatable: observation(400 * MIB)})

    assert [level.cgroup for level in crossings(found)] == ["/node/a"]
    maker.close()


def test_processes_have_a_level_for_each_threshold_on_them_and_for_no_other(make_threshold, observation):
    thresholds = [
        make_threshold(20, Signal.PID_AVAILABLE),
        make_threshold(100 * MIB),
        make_threshold(40, Signal.PID_AVAILABLE, grace_period_seconds=9),
    ]

    levels = process_levels(observation(90, 100), thresholds, "/node")

    assert ("/node", 100, 10) == (levels.cgroup, levels.limit, levels.used)
    assert [81, 61] == [levels.fire(threshold) for threshold in levels.thresholds]
    assert levels.margin == 50


def test_processes_that_are_not_observed_or_absurd_have_no_levels(make_threshold, observation):
    thresholds = [make_threshold(20, Signal.PID_AVAILABLE)]

    assert process_levels(None, thresholds, "/") is None
    assert process_levels(observation(101, 100), thresholds, "/") is None


@pytest.mark.parametrize(("available", "margin"), [(100, 60), (40, 0), (10, 0)])
def test_margin_of_processes_is_to_the_nearest_threshold(make_threshold, observation, available, margin):
    thresholds = [make_threshold(20, Signal.PID_AVAILABLE), make_threshold(40, Signal.PID_AVAILABLE)]

    assert process_levels(observation(available, 100), thresholds, "/").margin == margin
    assert process_levels(observation(available, 100), [], "/").margin is None


def test_a_hard_threshold_has_early_levels_ahead_of_it_and_a_soft_one_has_none(
    tree, make_threshold, observation
):
    hard, soft = make_threshold(100 * MIB), make_threshold(200 * MIB, grace_period_seconds=9)
    found = levels(tree, hard, soft).of({Signal.MEMORY_AVAILABLE: observation(400 * MIB)})

    early = [level for level in found if level.is_early]
    assert [level.threshold for level in early] == [hard, hard]
    assert [level.level_bytes // MIB for level in early] == [412 + 1 - 32, 412 + 1 - 3]
    assert [level.working_set_bytes // MIB for level in early] == [412 - 32, 412 - 3]
    assert len({level.key for level in found}) == len(found)


def test_a_small_node_is_warned_in_proportion(tree, make_threshold, observation):
    memory = {Signal.MEMORY_AVAILABLE: observation(60 * MIB, capacity=64 * MIB)}
    found = levels(tree, make_threshold(10 * MIB)).of(memory)

    assert [level.level_bytes / MIB for level in found] == [55, 55 - 4, 55 - 0.5]


@pytest.mark.parametrize(
    ("inactive_mib", "crossing_mib", "rungs_mib"),
    [
        (1, 413, {}),
        (50, 462, {FLOOR: 412}),
        (90, 502, {FLOOR: 412, BRIM: 480}),
        (100, 480, {FLOOR: 412}),
        (360, 480, {FLOOR: 412}),
    ],
)
def test_level_lies_where_usage_can_reach_it_and_is_observed_again_below(
    tree, make_threshold, observation, inactive_mib, crossing_mib, rungs_mib
):
    seen = observation(400 * MIB)._replace(inactive_file_bytes=inactive_mib * MIB)
    found = levels(tree, make_threshold(100 * MIB)).of({Signal.MEMORY_AVAILABLE: seen})

    assert [level.level_bytes for level in crossings(found)] == [crossing_mib * MIB]
    rungs = [level for level in found if level.place_ahead in {FLOOR, BRIM}]
    assert {level.place_ahead: level.level_bytes for level in rungs} == {
        place: mib * MIB for place, mib in rungs_mib.items()
    }
    assert all(level.is_early and level.working_set_bytes is None for level in rungs)


def test_soft_threshold_lies_within_reach_and_is_not_observed_again(tree, make_threshold, observation):
    seen = observation(400 * MIB)._replace(inactive_file_bytes=360 * MIB)
    (level,) = levels(tree, make_threshold(20 * MIB, grace_period_seconds=9)).of(
        {Signal.MEMORY_AVAILABLE: seen}
    )
    assert level.level_bytes == 502 * MIB


def test_machine_on_v2_is_watched_by_its_working_set_which_no_cache_lifts(
    make_tree, make_threshold, observation
):
    settings = Settings(eviction=EvictionSettings(thresholds=(make_threshold(100 * MIB),)), pod_parents=())
    seen = {Signal.MEMORY_AVAILABLE: observation(400 * MIB)._replace(inactive_file_bytes=90 * MIB)}
    places = {
        version: {level.place_ahead for level in MemoryLevels(make_tree(version).tree, settings).of(seen)}
        for version in CgroupVersion
    }
    assert places[CgroupVersion.V1] - places[CgroupVersion.V2] == {FLOOR, BRIM}


def test_level_where_memory_counts_as_mem_available_says_by_which_watermarks(tree, make_threshold):
    """It is one of usage still, and lies below capacity less threshold where the kernel holds much."""
    watermarks = Watermarks(low_bytes=MIB, reserved_bytes=2 * MIB)
    settings = Settings(
        eviction=EvictionSettings(thresholds=(make_threshold(100 * MIB),)), node_cgroup="/node"
    )
    seen = Observation(available=200 * MIB, capacity=512 * MIB, inactive_file_bytes=-30 * MIB)
    found = MemoryLevels(tree.tree, settings, lambda: watermarks).of({Signal.MEMORY_AVAILABLE: seen})
    (level,) = crossings(found)
    assert level.level_bytes == (512 - 100 - 30) * MIB
    assert (level.watermarks, level.capacity_bytes) == (watermarks, 512 * MIB)
    assert not any(one.place_ahead in {FLOOR, BRIM} for one in found)
