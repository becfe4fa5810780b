"""A unit that is started again under its path, and the files in memory that its earlier run left."""

from dataclasses import replace

import pytest

from reactor.model.pods import PodUsage
from reactor.model.signals import Signal
from reactor.model.thresholds import Observation
from reactor.policy.left_files import left_bytes_by_uid

from .test_storm import CAPACITY, MIB, Node, pod_of


@pytest.fixture
def node():
    """Innocents of 40 MiB, and a writer that was killed and has left 260 MiB; 103 are available since."""
    node = Node(outside=28, writer=260, one=40, two=40, three=41)
    node.step()
    assert node.killed == []
    node.pods["writer"] += 4
    node.sticky["writer"] = 260
    node.step()
    assert ["writer"] == node.killed
    node.step()
    assert node.decision.thresholds_met == ()
    return node


def start_again(node, mib=5, number=2):
    """Have the writer run again, some time after the pause, until the threshold is crossed."""
    node.now += 30
    node.pods[f"writer#{number}"] = mib
    return node.step()


def left(node, *, seconds=0.0, unobserved=(), outside_mib=None):
    """Return what the earlier runs of the pods have left, in MiB."""
    outside_mib = node.outside if outside_mib is None else outside_mib
    taken_mib = outside_mib + sum(node.pods.values())
    seen = Observation(available=(CAPACITY - taken_mib) * MIB, capacity=CAPACITY * MIB)
    used = {
        name: PodUsage(memory_working_set_bytes=size * MIB)
        for name, size in node.pods.items()
        if name not in unobserved
    }
    pods = [pod_of(name) for name in node.pods]
    found = left_bytes_by_uid(node.state, Signal.MEMORY_AVAILABLE, seen, pods, used, node.now + seconds)
    return {uid: size // MIB for uid, size in found.items()}


def test_writer_that_is_started_again_goes_before_larger_ones_that_have_left_nothing(node):
    decision = start_again(node)

    assert ["writer", "writer#2"] == node.killed
    assert [265, 260] == [decision.ranking[0].usage // MIB, decision.ranking[0].left_bytes // MIB]
    assert [41, 0] == [decision.ranking[1].usage // MIB, decision.ranking[1].left_bytes]
    assert decision.evictions[0].message.endswith(
        "Pod writer#2 was using 265Mi, request is 0. "
        "Its earlier run left 260Mi of files in memory, which count as its own."
    )


def test_writer_that_is_started_again_and_again_costs_no_innocent(node):
    for number in range(2, 12):
        node.sticky[f"writer#{number}"] = 1
        node.outside -= 1  # other memory, so that there is something to write
        start_again(node, number=number)

    assert ["writer", *(f"writer#{number}" for number in range(2, 12))] == node.killed


def test_larger_one_goes_first_where_the_files_are_gone_or_were_none(node):
    node.outside = 28
    node.pods["four"] = 260
    start_again(node)
    assert ["writer", "four"] == node.killed


def test_a_leak_outside_the_pods_is_no_pods_that_had_no_files_in_memory():
    node = Node(outside=200, web=100, one=60, two=53)
    node.step()
    assert ["web"] == node.killed
    node.outside += 95
    node.pods["web#2"] = 5
    node.now += 30
    node.step()

    assert {} == left(node)
    assert ["web", "one"] == node.killed


def test_who_asked_for_it_or_is_of_higher_priority_goes_no_sooner_for_its_files(node, monkeypatch):
    def more_important(name):
        return replace(pod_of(name), priority=int(name.startswith("writer")))

    monkeypatch.setattr("tests.unit.policy.test_storm.pod_of", more_important)
    start_again(node)

    assert ["writer", "three"] == node.killed


def test_files_count_as_the_writers_own_for_ten_minutes_and_not_longer(node):
    node.pods["writer#2"] = 5

    assert {"writer#2": 260} == left(node, seconds=590)
    assert {} == left(node, seconds=601)


def test_no_more_is_left_than_is_used_outside_the_pods_and_little_is_nothing(node):
    node.pods["writer#2"] = 5

    assert {"writer#2": 72} == left(node, outside_mib=100)
    assert {"writer#2": 260} == left(node, outside_mib=300)
    assert {} == left(node, outside_mib=33)
    assert {} == left(node, outside_mib=20)


def test_nothing_is_known_to_be_left_while_a_pods_memory_is_unobserved(node):
    node.pods["writer#2"] = 5

    assert {} == left(node, unobserved={"one"})


def test_nothing_is_known_to_be_left_where_it_was_not_observed_at_the_kill(node):
    kills = tuple(replace(kill, before_bytes=None) for kill in node.state.hard_memory_kills)
    node.state = replace(node.state, hard_memory_kills=kills)
    node.pods["writer#2"] = 5

    assert {} == left(node)


def test_below_half_of_the_threshold_memory_comes_from_the_pods_that_hold_it(node):
    node.outside += 53
    start_again(node, mib=1)
    assert ["writer", "three"] == node.killed


def test_at_half_of_the_threshold_the_writer_goes_first_still(node):
    node.outside += 52
    start_again(node, mib=1)
    assert ["writer", "writer#2"] == node.killed


def test_pod_in_the_cgroup_that_it_was_killed_in_has_its_files_in_its_own_counters(node):
    node.pods["writer"] = 265
    node.outside -= 260

    assert {} == left(node)
