"""Passes over many pods: few are read before a kill, all after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from reactor.blackbox import Feed
from reactor.guard.bounded import FEW_PODS, BoundedPods, GivesWayError
from reactor.guard.pass_ import WakePasses
from reactor.model.decisions import Inputs, Measured, PolicyState, Snapshot
from reactor.model.kills import Slowdown, SlowReason
from reactor.model.pods import Pod, PodUsage
from reactor.model.signals import Signal
from reactor.model.wakes import Wake, WakeKind

MIB = 1 << 20
Make = Callable[..., Any]


def wake(kind: WakeKind = WakeKind.MEMORY) -> Wake:
    return Wake(source="test", kind=kind, at_ns=time.monotonic_ns())


def with_many(loop: Any, make_pod: Make, *pods: Pod) -> None:
    """Put these pods on the node among many that hold 1 MiB each."""
    small = [make_pod(f"small-{number}") for number in range(FEW_PODS)]
    loop.have(*small, *pods, working_set_bytes=MIB)


def hold(loop: Any, pod: Pod, held_bytes: int) -> None:
    loop.usages.seen[pod.uid] = PodUsage(memory_working_set_bytes=held_bytes, process_count=1)


def short_by_a_hog(make_loop: Make, make_pod: Make, observation: Make) -> Any:
    """Return a loop over many pods and a hog, on a node that is short of memory."""
    loop, hog = make_loop(), make_pod("hog")
    with_many(loop, make_pod, hog)
    hold(loop, hog, 300 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    return loop


async def test_only_the_hog_is_read_before_it_is_killed(make_loop, make_pod, observation):
    loop = short_by_a_hog(make_loop, make_pod, observation)
    read_before: list[tuple[list[str], int]] = []
    loop.kills.meanwhile = lambda: read_before.append(
        (list(loop.usages.one_by_one), loop.usages.memory_reads)
    )

    loop.passes.make([wake()])

    assert loop.kills.killed == ["hog"]
    assert read_before == [(["uid-hog"], 0)]


@pytest.mark.parametrize("kind", [WakeKind.MEMORY, WakeKind.HOUSEKEEPING])
async def test_while_no_threshold_is_met_the_pods_that_are_never_evicted_are_read_and_no_other(
    make_loop, make_pod, observation, kind
):
    loop, keeper = make_loop(), replace(make_pod("keeper"), critical_because="it is so")
    with_many(loop, make_pod, keeper)
    hold(loop, keeper, 200 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(300 * MIB)}

    record = loop.passes.make([wake(kind)])

    assert record.snapshot.pods == {keeper.uid: loop.usages.seen[keeper.uid]}
    assert loop.known.state.calm.kept_bytes == 200 * MIB
    assert loop.usages.memory_reads == loop.usages.bound_reads == 0


async def test_the_record_has_all_pods_and_says_which_were_read_after_the_kill(
    make_loop, make_pod, observation
):
    loop = short_by_a_hog(make_loop, make_pod, observation)

    record = loop.passes.make([wake()])

    ranking = record.decision.ranking
    assert [ranking[0].pod.name, *(place.usage for place in ranking[1:])] == ["hog", *[MIB] * FEW_PODS]
    assert {place.measured for place in ranking[1:]} == {Measured.AFTERWARDS}
    first, *others = record.document()["ranking"]
    assert "measured" not in first
    assert {place["measured"] for place in others} == {"afterwards"}
    assert len(record.snapshot.pods) == FEW_PODS + 1


async def test_a_pod_that_went_between_the_kill_and_its_reading_is_shown_by_its_bound(
    make_loop, make_pod, observation
):
    loop, hog, brief = make_loop(), make_pod("hog"), make_pod("brief")
    with_many(loop, make_pod, hog, brief)
    hold(loop, hog, 300 * MIB)
    hold(loop, brief, 2 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.kills.meanwhile = lambda: loop.usages.seen.pop(brief.uid, None)

    record = loop.passes.make([wake()])

    shown = next(one for one in record.document()["ranking"] if one["uid"] == brief.uid)
    assert (shown["usage"], shown["measured"]) == (2 * MIB, "bound")
    assert shown["because"].startswith("uses ≤ 2Mi, no request")


async def test_a_pod_that_grew_after_the_decision_does_not_come_before_the_victim(
    make_loop, make_pod, observation
):
    """What is read later counts as no more than what was charged at the decision."""
    loop, hog, other = make_loop(), make_pod("hog"), make_pod("other")
    with_many(loop, make_pod, hog, other)
    hold(loop, hog, 300 * MIB)
    hold(loop, other, 200 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.kills.meanwhile = lambda: hold(loop, other, 400 * MIB)

    record = loop.passes.make([wake()])

    assert [(place.pod.name, place.usage) for place in record.decision.ranking[:2]] == [
        ("hog", 300 * MIB),
        ("other", 200 * MIB),
    ]


async def test_the_kill_is_judged_by_what_all_pods_held(make_loop, make_pod, observation):
    loop = short_by_a_hog(make_loop, make_pod, observation)

    loop.passes.make([wake()])

    (kill,) = loop.known.state.hard_memory_kills
    assert kill.pods_bytes == FEW_PODS * MIB
    assert kill.outside_bytes == observation(0).capacity - (99 + 300 + FEW_PODS) * MIB


async def test_all_pods_are_read_at_housekeeping(make_loop, make_pod, observation):
    """What is not urgent is read as ever."""
    loop = short_by_a_hog(make_loop, make_pod, observation)

    record = loop.passes.make([wake(WakeKind.HOUSEKEEPING)])

    assert loop.kills.killed == ["hog"]
    assert loop.usages.bound_reads == 0
    assert {place.measured for place in record.decision.ranking} == {Measured.AT_DECISION}


async def test_no_pod_is_read_while_there_is_memory(make_loop, make_pod):
    loop = make_loop()
    with_many(loop, make_pod)
    loop.passes.make([wake()])
    assert (loop.usages.bound_reads, loop.usages.memory_reads, loop.usages.one_by_one) == (0, 0, [])


async def test_a_victim_that_is_awaited_is_read_alone(make_loop, make_pod, observation):
    loop = short_by_a_hog(make_loop, make_pod, observation)
    loop.passes.make([wake()])
    loop.now_seconds += 0.01
    reads = loop.usages.memory_reads

    loop.usages.one_by_one.clear()
    record = loop.passes.make([wake()])

    assert "in flight" in (record.decision.deferred_because or "")
    assert loop.usages.one_by_one == ["uid-hog"]
    assert loop.usages.memory_reads == reads


async def test_what_a_victim_has_freed_once_it_is_read_is_seen_on_the_node(make_loop, make_pod, observation):
    """Read after the node it would have been nowhere, and the next pod would have been evicted for it."""
    loop, hog, other = make_loop(), make_pod("hog"), make_pod("other")
    with_many(loop, make_pod, hog, other)
    hold(loop, hog, 300 * MIB)
    hold(loop, other, 50 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(60 * MIB)}
    loop.passes.make([wake()])
    loop.now_seconds += 0.01

    def free() -> None:
        hold(loop, hog, MIB)
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(359 * MIB)}

    loop.usages.meanwhile = free
    loop.passes.make([wake()])

    assert loop.kills.killed == ["hog"]


async def test_a_dry_run_records_the_whole_ranking(make_loop, make_pod, observation):
    loop, hog = make_loop(dry_run=True), make_pod("hog")
    with_many(loop, make_pod, hog)
    hold(loop, hog, 300 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    for _ in range(2):  # the second evicts no pod: it was reported
        loop.now_seconds += 1
        assert len(loop.passes.make([wake()]).decision.ranking) == FEW_PODS + 1


async def approach(loop: Any, observation: Make) -> None:
    """Make the pass of an early level: nothing is met, and the crossing is near."""
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(101 * MIB)}
    loop.passes.make([wake()])
    loop.now_seconds += 0.01
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.usages.one_by_one.clear()


@pytest.fixture
def make_bare_loop(make_loop: Make) -> Make:
    """Return a maker of loops in which no feature ahead of a crossing asks for all pods."""

    def make(**options: Any) -> Any:
        loop = make_loop(**options)
        loop.features = ()
        loop.passes = loop.passes_by(loop.known.settings)
        return loop

    return make


async def test_an_early_level_reads_the_charges_and_the_first_two(make_bare_loop, make_pod, observation):
    loop, hog, next_one = make_bare_loop(), make_pod("hog"), make_pod("next")
    with_many(loop, make_pod, hog, next_one)
    hold(loop, hog, 300 * MIB)
    hold(loop, next_one, 20 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(101 * MIB)}

    loop.passes.make([wake()])

    assert loop.kills.ready == ["hog", "next"]
    assert loop.usages.one_by_one == [hog.uid, next_one.uid]
    assert (loop.usages.bound_reads, loop.usages.memory_reads) == (1, 0)


async def test_the_nearer_early_level_reads_few_if_the_victim_is_the_same(
    make_bare_loop, make_pod, observation
):
    loop, hog = make_bare_loop(), make_pod("hog")
    with_many(loop, make_pod, hog)
    hold(loop, hog, 300 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(120 * MIB)}
    loop.passes.make([wake()])
    ready = loop.kills.ready
    loop.now_seconds += 0.01
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(102 * MIB)}

    loop.passes.make([wake()])

    assert (loop.usages.wide_reads, loop.usages.bound_reads, loop.usages.memory_reads) == (1, 1, 0)
    assert loop.kills.ready == ready != []


@pytest.mark.parametrize(
    ("seconds", "next_bytes", "ready"),
    [
        pytest.param(0.06, 250 * MIB, ["hog", "next"], id="a-while-later"),
        pytest.param(0.01, 350 * MIB, ["next", "hog"], id="another-victim"),
    ],
)
async def test_the_nearer_early_level_prepares_anew(
    make_bare_loop, make_pod, observation, seconds, next_bytes, ready
):
    loop, hog, other = make_bare_loop(), make_pod("hog"), make_pod("next")
    with_many(loop, make_pod, hog, other)
    hold(loop, hog, 300 * MIB)
    hold(loop, other, 250 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(120 * MIB)}
    loop.passes.make([wake()])
    loop.now_seconds += seconds
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(102 * MIB)}
    hold(loop, other, next_bytes)

    loop.passes.make([wake()])

    assert loop.usages.bound_reads == 2
    assert loop.kills.ready == ready


async def test_after_a_kill_the_next_victims_are_prepared_whatever_was_a_moment_ago(
    make_bare_loop, make_pod, observation
):
    loop, pods = make_bare_loop(), [make_pod(name) for name in ("hog", "next", "third")]
    with_many(loop, make_pod, *pods)
    for pod, held_bytes in zip(pods, (300, 200, 150), strict=True):
        hold(loop, pod, held_bytes * MIB)
    await approach(loop, observation)
    loop.passes.make([wake()])
    assert loop.kills.killed == ["hog"]
    seen = {pod.uid: loop.usages.seen[pod.uid] for pod in pods[1:]}
    with_many(loop, make_pod, *pods[1:])
    loop.usages.seen |= seen
    loop.passes.results.pod_ended(pods[0].uid)
    loop.now_seconds += 0.001
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(101 * MIB)}

    loop.passes.make([wake()])

    assert loop.kills.ready == ["next", "third"]


async def test_the_crossing_reads_the_charges_of_few_if_their_parents_bound_the_others(
    make_bare_loop, make_pod, observation
):
    loop, hog = make_bare_loop(), make_pod("hog")
    with_many(loop, make_pod, hog)
    hold(loop, hog, 300 * MIB)
    await approach(loop, observation)
    before = loop.usages.bound_reads

    loop.passes.make([wake()])

    assert loop.kills.killed == ["hog"]
    assert set(loop.usages.one_by_one) == {hog.uid}
    assert (loop.usages.wide_reads, loop.usages.bound_reads) == (1, before)


async def test_no_few_charges_are_read_first_where_the_others_hold_much_beside_the_largest(
    make_bare_loop, make_pod, observation
):
    loop, hog = make_bare_loop(), make_pod("hog")
    with_many(loop, make_pod, hog)
    for uid in loop.usages.seen:
        loop.usages.seen[uid] = PodUsage(memory_working_set_bytes=20 * MIB)
    hold(loop, hog, 60 * MIB)
    await approach(loop, observation)
    before = loop.usages.bound_reads

    record = loop.passes.make([wake()])

    assert loop.kills.killed == ["hog"]
    assert (loop.usages.wide_reads, loop.usages.bound_reads) == (0, before + 1)
    assert record.decision.ranking[0].usage == 60 * MIB


async def test_what_a_pod_holds_that_is_never_evicted_leaves_out_no_other(
    make_bare_loop, make_pod, observation
):
    loop, hog, keeper = make_bare_loop(), make_pod("hog"), replace(make_pod("keeper"), critical_because="so")
    with_many(loop, make_pod, hog, keeper)
    for number in range(FEW_PODS):
        loop.usages.seen[f"uid-small-{number}"] = PodUsage(memory_working_set_bytes=20 * MIB)
    hold(loop, hog, 60 * MIB)
    hold(loop, keeper, 900 * MIB)
    await approach(loop, observation)

    loop.passes.make([wake()])

    assert loop.kills.killed == ["hog"]
    assert loop.usages.wide_reads == 0


async def test_all_charges_are_read_if_a_pod_may_have_come_to_hold_more_than_the_largest(
    make_bare_loop, make_pod, observation
):
    """With wide bounds alone no pod is read in vain, nor are all of them."""
    loop, hog, late = make_bare_loop(), make_pod("hog"), make_pod("late")
    with_many(loop, make_pod, hog, late)
    hold(loop, hog, 60 * MIB)
    await approach(loop, observation)
    hold(loop, late, 80 * MIB)
    before = loop.usages.bound_reads
    read_before: list[tuple[list[str], int]] = []
    loop.kills.meanwhile = lambda: read_before.append(
        (list(loop.usages.one_by_one), loop.usages.memory_reads)
    )
    loop.usages.one_by_one.clear()

    loop.passes.make([wake()])

    assert loop.kills.killed == ["late"]
    assert (loop.usages.wide_reads, loop.usages.bound_reads) == (1, before + 1)
    assert read_before == [([hog.uid, late.uid], 0)]


async def test_no_charge_of_a_parent_is_a_bound_while_a_victim_dies(make_bare_loop, make_pod, observation):
    loop, hog = make_bare_loop(), make_pod("hog")
    with_many(loop, make_pod, hog)
    hold(loop, hog, 300 * MIB)
    await approach(loop, observation)
    loop.passes.make([wake()])
    loop.now_seconds += 0.01
    loop.passes.make([wake()])
    assert loop.usages.wide_reads == 1


async def test_after_an_eviction_the_charges_say_that_nothing_is_to_be_reclaimed_first(
    make_loop, make_pod, observation
):
    """What lies outside the pods can't be more than what is charged to none of them."""
    loop = make_loop(reclaims_memory=True)
    hog, second = make_pod("hog"), make_pod("second")
    with_many(loop, make_pod, hog, second)
    hold(loop, hog, 300 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: seen_by_pods(loop, observation)}
    loop.passes.make([wake()])
    loop.usages.seen.pop(hog.uid)
    loop.now_seconds += 1
    assert loop.passes.results.pod_ended(hog.uid)
    loop.now_seconds += 5
    hold(loop, second, 300 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: seen_by_pods(loop, observation)}
    loop.usages.one_by_one.clear()
    read_before: list[int] = []
    reads = loop.usages.memory_reads
    loop.kills.meanwhile = lambda: read_before.append(loop.usages.memory_reads - reads)

    loop.passes.make([wake()])

    assert loop.kills.killed == ["hog", "second"]
    assert read_before == [0]


async def test_the_levels_are_armed_again_before_the_others_are_read(make_loop, make_pod, observation):
    loop = short_by_a_hog(make_loop, make_pod, observation)
    armed_at: list[int] = []
    read = loop.usages.memory

    def memory(*between: Any) -> Any:
        armed_at.append(len(loop.armed))
        return read(*between)

    loop.usages.memory = memory
    before = len(loop.armed)

    loop.passes.make([wake()])

    assert armed_at == [before + 1]  # and they are read once


async def test_a_kill_is_judged_by_what_all_pods_held_even_if_memory_runs_out_meanwhile(
    make_loop, make_pod, observation
):
    """By another that is never evicted, perhaps: a kill that is not judged slows no other down."""
    loop = short_by_a_hog(make_loop, make_pod, observation)
    loop.kills.meanwhile = lambda: loop.node.memory_seen.update(
        {Signal.MEMORY_AVAILABLE: observation(60 * MIB)}
    )

    record = loop.passes.make([wake()])

    assert loop.kills.killed == ["hog"]
    assert len(record.decision.ranking) == len(loop.known.pods)
    assert None not in [kill.outside_bytes for kill in loop.known.state.hard_memory_kills]


async def test_what_prepares_for_a_crossing_gives_way_to_it(make_bare_loop, make_pod, observation):
    loop, hog, other = make_bare_loop(), make_pod("hog"), make_pod("other")
    with_many(loop, make_pod, hog, other)
    hold(loop, hog, 300 * MIB)
    await approach(loop, observation)
    ready = list(loop.kills.ready)
    assert ready[0] == "hog"
    hold(loop, other, 500 * MIB)
    crossed = [observation(101 * MIB), observation(99 * MIB)]
    loop.node.memory = lambda: {Signal.MEMORY_AVAILABLE: crossed.pop(0)}
    loop.passes.make([wake()])
    assert (loop.kills.ready, crossed) == (ready, [])
    del loop.node.memory
    await approach(loop, observation)
    assert loop.kills.ready[0] == "other"


async def test_a_crossing_while_victims_are_prepared_is_attended_to_without_its_event(
    make_bare_loop, make_pod, observation
):
    """The kernel reports none while what crosses waits for a CPU, which the guard had taken."""
    loop, hog = make_bare_loop(), make_pod("hog")
    with_many(loop, make_pod, hog)
    hold(loop, hog, 300 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(101 * MIB)}
    prepare = loop.kills.prepare

    def prepared(pods: Any) -> None:
        prepare(pods)
        loop.now_seconds += 0.005
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}

    loop.kills.prepare = prepared
    no_levels: Any = SimpleNamespace(usage_bytes=None)  # there is none to read
    passes = WakePasses(loop.passes, no_levels, lambda _: None)

    passes.on_memory_wake((wake(),))

    assert loop.kills.killed == ["hog"]


async def test_a_rehearsal_of_a_crossing_reads_as_few_pods_and_changes_nothing(
    make_bare_loop, make_pod, observation
):
    loop, hog = make_bare_loop(), make_pod("hog")
    with_many(loop, make_pod, hog)
    hold(loop, hog, 300 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(101 * MIB)}
    loop.passes.make([wake()])
    ready, state = loop.kills.ready, loop.known.state
    reads = (loop.usages.wide_reads, loop.usages.bound_reads, loop.usages.memory_reads)
    loop.usages.one_by_one.clear()

    loop.passes.approach.prepare(again=True)

    wide, *others = reads
    assert [wide + 1, *others] == [
        loop.usages.wide_reads,
        loop.usages.bound_reads,
        loop.usages.memory_reads,
    ]
    assert "uid-hog" in loop.usages.one_by_one
    assert len(loop.usages.one_by_one) <= 8
    assert (ready, state) == (loop.kills.ready, loop.known.state)


async def test_in_the_last_stretch_all_charges_are_read_where_the_parents_leave_out_no_pod(
    make_bare_loop, make_pod, observation
):
    """The crossing will read them: the code for it is to be in the caches."""
    loop, hog, other = make_bare_loop(), make_pod("hog"), make_pod("other")
    with_many(loop, make_pod, hog, other)
    hold(loop, hog, 60 * MIB)
    for number in range(FEW_PODS):
        loop.usages.seen[f"uid-small-{number}"] = PodUsage(memory_working_set_bytes=20 * MIB)
    await approach(loop, observation)
    hold(loop, other, 80 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(101 * MIB)}
    before = loop.usages.bound_reads

    loop.passes.approach.prepare(again=True)

    assert (loop.usages.wide_reads, loop.usages.bound_reads) == (0, before + 1)
    assert loop.kills.ready[:2] == ["other", "hog"]


async def test_in_the_last_stretch_no_feature_has_all_pods_read(make_loop, make_pod, observation):
    """The crossing will not either: of a thousand pods that would keep others from a CPU for 25 ms."""
    loop, hog = make_loop(), make_pod("hog")
    with_many(loop, make_pod, hog)
    hold(loop, hog, 300 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(101 * MIB)}
    loop.passes.make([wake()])
    reads, ordered = loop.usages.memory_reads, list(loop.ordered)
    assert (reads, ordered) == (1, ["hog"])
    before = loop.usages.bound_reads

    loop.passes.approach.prepare(again=True)

    assert (loop.usages.memory_reads, loop.usages.bound_reads) == (reads, before + 1)
    assert loop.ordered == ordered
    assert loop.kills.ready[0] == "hog"


async def test_few_charges_that_settle_nothing_ask_for_those_of_all_and_not_to_read_all_pods(
    make_bare_loop, make_pod, observation
):
    """To read a thousand pods takes 25 ms. With evictions slowed down a few never settle a decision."""
    loop, hog = make_bare_loop(), make_pod("hog")
    with_many(loop, make_pod, hog)
    hold(loop, hog, 300 * MIB)
    await approach(loop, observation)
    slowdown = Slowdown(
        signal=Signal.MEMORY_AVAILABLE,
        reason=SlowReason.UNHELPFUL,
        since_seconds=loop.now_seconds - 1,
        until_seconds=loop.now_seconds + 10,
        message="slow",
    )
    loop.known.state = loop.known.state._replace(slowdowns=(slowdown,))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(101 * MIB)}

    loop.passes.approach.prepare(again=True)

    assert (loop.usages.wide_reads, loop.usages.memory_reads) == (1, 0)


async def test_reading_pods_gives_way_before_each(make_loop, make_pod, observation):
    loop = short_by_a_hog(make_loop, make_pod, observation)
    bounded = BoundedPods(loop.known.settings, loop.usages)
    known = bounded.observe()
    snapshot = Snapshot(signals=loop.node.memory_seen, pods={}, bounds=known.bounds)
    inputs = Inputs(loop.known.settings, PolicyState(), snapshot, loop.known.pods, loop.now_seconds)

    def give_way() -> None:
        raise GivesWayError

    with pytest.raises(GivesWayError):
        bounded.settle(inputs, known, between=give_way)
    assert loop.usages.one_by_one == []


def seen_by_pods(loop: Any, observation: Make) -> Any:
    """Return 99 MiB available, as observed of a node on which nothing lies outside the pods."""
    held_bytes = sum(used.memory_working_set_bytes for used in loop.usages.seen.values())
    return observation(99 * MIB)._replace(capacity=99 * MIB + held_bytes, inactive_file_bytes=0)


async def test_the_black_box_has_no_pod_read_before_a_crossing(make_loop, make_pod, observation):
    """What stands ahead of a crossing, and needs no more than who goes first, costs it nothing."""
    loop, hog = make_loop(), make_pod("hog")
    loop.features = (Feed(),)
    loop.passes = loop.passes_by(loop.known.settings)
    with_many(loop, make_pod, hog)
    hold(loop, hog, 300 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(101 * MIB)}

    loop.passes.make([wake()])

    assert loop.kills.ready[0] == "hog"
    assert loop.usages.memory_reads == 0


async def test_no_pod_is_read_at_an_early_level_for_what_all_of_them_could_not_end(
    make_loop, make_pod, observation
):
    """With nothing left evicting could not end the shortage; the crossing itself evicts the first."""
    loop, hog = make_loop(unhelpful_eviction_pause_seconds=30.0), make_pod("hog")
    loop.features = ()
    loop.passes = loop.passes_by(loop.known.settings)
    with_many(loop, make_pod, hog)
    hold(loop, hog, 30 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(101 * MIB)}

    loop.passes.make([wake()])

    assert loop.kills.ready[0] == "hog"
    assert loop.usages.memory_reads == 0
