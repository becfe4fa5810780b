"""The order of eviction as whoever watches is shown it: the head, read without holding up the loop."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import trio

from reactor.guard.reports import EvictionOrder
from reactor.model.pods import PodUsage
from reactor.model.signals import Resource, Signal
from tests.support.builders import make_claim

MIB = 1 << 20


class Clock:
    """Goes on by `step_seconds` with every look at it."""

    def __init__(self, step_seconds: float = 0.0) -> None:
        self.seconds = 100.0
        self.step_seconds = step_seconds

    def __call__(self) -> float:
        self.seconds += self.step_seconds
        return self.seconds


@pytest.fixture
def crowd(make_view, make_pod):
    """A node of 100 pods of all kinds, in no order."""
    loop, view, _ = make_view()
    rng = random.Random(7)
    pods = [make_pod(f"p{n}", rng.choice([0, 50 * MIB]), rng.choice([0, 0, 10])) for n in range(100)]
    pods[20] = replace(pods[20], critical_because="static pod")
    loop.have(*pods)
    loop.usages.seen = {
        pod.uid: PodUsage(memory_working_set_bytes=rng.choice([10, 60, 60, 90]) * MIB, process_count=1)
        for pod in pods
    }
    loop.usages.seen[pods[50].uid] = PodUsage(unreadable=frozenset({Resource.MEMORY}))
    return loop, view


async def test_it_is_the_head_of_what_explain_shows(crowd):
    loop, view = crowd

    order = await EvictionOrder().first(view(), loop.usages, 40)

    everybody = [one["pod"] for one in (await view().explain(loop.usages))["ranking"]]
    assert [one["pod"] for one in order["first"]] == everybody[:40]
    assert everybody[-2:] == ["cgroup/p50", "cgroup/p20"]  # its number can't be read; never evicted
    assert [one["place"] for one in order["first"]] == list(range(1, 41))
    assert (order["pods"], order["signal"]) == (100, Signal.MEMORY_AVAILABLE)


async def test_all_of_a_short_list_ends_with_those_that_are_never_evicted(crowd):
    loop, view = crowd

    order = await EvictionOrder().first(view(), loop.usages, 200)

    assert len(order["first"]) == 100
    assert "static pod" in order["first"][-1]["because"]


async def test_pods_are_read_a_few_at_a_time_and_the_loop_goes_first_between_them(crowd, nursery):
    loop, view = crowd
    turns: list[str] = []
    loop.usages.meanwhile = lambda: turns.append("read")

    async def wakes() -> None:
        for _ in range(4):
            turns.append("loop")
            await trio.lowlevel.checkpoint()

    nursery.start_soon(wakes)
    await EvictionOrder().first(view(), loop.usages, 10)

    assert turns.count("read") == 4
    # Trio mixes the order of those that are ready, but none of them gets a second turn before all had one.
    assert "read read read" not in " ".join(turns)


async def test_a_look_serves_everybody_for_as_long_as_it_cost_much(crowd):
    loop, view = crowd
    reads: list[int] = []
    loop.usages.meanwhile = lambda: reads.append(1)
    clock = loop.known.clock_seconds = Clock(0.002)  # each of its four slices takes as long: 8 ms in all
    order = EvictionOrder()

    await order.first(view(), loop.usages, 10)
    clock.step_seconds = 0.0
    clock.seconds += 1.5
    shared = await order.first(view(), loop.usages, 10)
    assert len(reads) == 4
    assert shared["age_seconds"] == pytest.approx(1.5, abs=0.01)

    clock.seconds += 0.2
    assert (await order.first(view(), loop.usages, 10))["age_seconds"] == 0
    assert len(reads) == 8


async def test_more_places_than_the_last_look_kept_are_looked_for_at_once(crowd):
    loop, view = crowd
    loop.known.clock_seconds = Clock(0.01)
    order = EvictionOrder()

    await order.first(view(), loop.usages, 5)

    assert len((await order.first(view(), loop.usages, 30))["first"]) == 30


async def test_pods_that_are_gone_are_left_out_and_those_being_evicted_are_named(crowd):
    loop, view = crowd
    loop.usages.vanished = frozenset({"uid-p50"})
    loop.known.state = loop.known.state._replace(claims=(make_claim("uid-p1", deadline_seconds=9e9),))

    places = (await EvictionOrder().first(view(), loop.usages, 200))["first"]

    assert "cgroup/p50" not in [one["pod"] for one in places]
    assert [one["pod"] for one in places if one["being_evicted"]] == ["cgroup/p1"]


async def test_processes_are_counted_only_where_process_ids_are_short(crowd, make_threshold):
    loop, view = crowd
    await EvictionOrder().first(view(), loop.usages, 5)
    assert not loop.usages.processes_asked

    short = make_threshold(100, Signal.PID_AVAILABLE)
    loop.known.state = loop.known.state._replace(thresholds_met=(short,))
    order = await EvictionOrder().first(view(), loop.usages, 5)

    assert loop.usages.processes_asked
    assert order["resource"] == "pids"


async def test_top_reads_memory_afresh_and_leaves_the_passes_their_own(make_view, observation):
    loop, view, make_pass = make_view()
    make_pass()
    loop.now_seconds += 5
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(300 * MIB)}

    (memory,) = (await view().top(EvictionOrder(), loop.usages, loop.node.memory(), 5))["signals"]

    assert (memory["available"], memory["age_seconds"]) == (300 * MIB, 0)
    assert loop.known.observed.at(loop.now_seconds)[Signal.MEMORY_AVAILABLE].available == 400 * MIB
