from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import chain, repeat
from typing import Any

import pytest
import trio
import trio.testing

from reactor.errors import RefusedError
from reactor.model.decisions import PolicyState
from reactor.model.pod_lists import Preference
from reactor.model.pods import FilesystemUsage, PodUsage, Volume
from reactor.model.quantity import parse_quantity
from reactor.model.signals import LimitSignal, NodeCondition, Resource, Signal
from reactor.model.thresholds import Observation, ThresholdValue
from reactor.model.wakes import Wake, WakeKind
from reactor.observe import node

MIB = 1 << 20


def wake(kind: WakeKind = WakeKind.MEMORY) -> Wake:
    return Wake(source="test", kind=kind, at_ns=time.monotonic_ns())


async def test_hard_crossing_kills_the_right_pod_before_the_pass_returns(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("within", request_bytes=64 * MIB), make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}

    record = loop.passes.make([wake()])

    assert loop.kills.killed == ["hog"]
    assert record.attempts[0].outcome == "killed"
    times = record.times
    assert times.woke_ns <= times.started_ns <= times.observed_ns <= times.decided_ns
    assert times.decided_ns <= times.killed_ns <= times.done_ns
    assert record.decision.conditions == (NodeCondition.MEMORY_PRESSURE,)


async def test_no_pod_is_killed_or_even_read_while_there_is_memory(make_loop, make_pod):
    loop = make_loop()
    loop.have(make_pod("hog"))

    record = loop.passes.make([wake()])

    assert loop.kills.killed == []
    assert record.attempts == ()
    assert loop.usages.memory_reads == loop.usages.full_reads == 0


async def test_second_pod_is_not_evicted_while_the_first_frees_its_memory(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("first"), make_pod("second"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.passes.make([wake()])

    loop.now_seconds += 0.01
    record = loop.passes.make([wake()])

    assert loop.kills.killed == ["first"]
    assert record.decision.deferred_because is not None


async def test_kill_that_took_long_leaves_what_it_brings_its_whole_time(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("first"), make_pod("second"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}

    def a_minute() -> None:
        loop.now_seconds += 60

    loop.kills.meanwhile = a_minute
    loop.passes.make([wake()])
    loop.now_seconds += 9
    loop.passes.make([wake()])
    assert loop.kills.killed == ["first"]

    loop.now_seconds += 2
    loop.passes.make([wake()])
    assert loop.kills.killed == ["first", "first"]


async def test_second_pod_is_not_evicted_for_what_the_first_gave_back_while_it_was_read(
    make_loop, make_pod, observation
):
    loop = make_loop()
    first, second = make_pod("first"), make_pod("second")
    loop.have(first, second)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.passes.make([wake()])

    def ends() -> None:
        loop.usages.vanished = frozenset({first.uid})
        loop.usages.seen = {second.uid: loop.usages.seen[second.uid]}
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(400 * MIB)}

    loop.usages.meanwhile = ends
    loop.now_seconds += 0.01
    loop.passes.make([wake()])

    assert loop.kills.killed == ["first"]


async def test_second_pod_is_evicted_once_the_first_is_gone_and_it_was_not_enough(
    make_loop, make_pod, observation
):
    loop = make_loop()
    loop.have(make_pod("first"), make_pod("second"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.passes.make([wake()])
    loop.kills.reaped.set()
    await trio.testing.wait_all_tasks_blocked()

    loop.now_seconds += 0.1
    loop.passes.make([wake()])

    assert loop.gone == ["uid-first"]
    assert loop.kills.killed == ["first", "second"]


async def test_emptied_pod_is_chosen_again_when_a_process_lives_in_it_again(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("first"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.kills.reaped.set()
    loop.passes.make([wake()])
    await trio.testing.wait_all_tasks_blocked()

    loop.now_seconds += 1
    loop.passes.make([wake()])
    assert loop.kills.killed == ["first"]

    loop.populated = {"uid-first"}
    loop.now_seconds += 1
    loop.passes.make([wake()])
    assert loop.kills.killed == ["first", "first"]


async def test_pods_that_were_read_before_the_crossing_are_read_again_where_it_came_while_they_were(
    make_loop, make_pod, observation, monkeypatch
):
    monkeypatch.setattr(node, "_LATE_NS", -1)  # the loop was held up
    loop = make_loop()
    loop.have(make_pod("calm", 5 * MIB), make_pod("hog", 24 * MIB, priority=1000))
    loop.usages.seen = {
        "uid-calm": PodUsage(memory_working_set_bytes=MIB),
        "uid-hog": PodUsage(memory_working_set_bytes=23 * MIB),
    }
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(100 * MIB)}

    def grows() -> tuple[()]:
        loop.usages.seen = {**loop.usages.seen, "uid-hog": PodUsage(memory_working_set_bytes=26 * MIB)}
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(97 * MIB)}
        return ()

    loop.oom_kills = grows  # what is asked for between the pods and the node
    loop.passes.make([wake()])

    assert ["hog"] == loop.kills.killed


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have only the loop's own clock say that reading took long: a starved machine's is another."""
    monkeypatch.setattr(node, "_LATE_NS", 10**15)


def slow_to_read(loop: Any, observation: Callable[[int], Observation], by_mib: int, seconds: float) -> None:
    """Have each reading of the node take so long; it shows a shortage once, and then what is left."""
    left_mib = chain((99,), repeat(by_mib))

    def memory() -> Mapping[Signal, Observation]:
        loop.now_seconds += seconds
        return {Signal.MEMORY_AVAILABLE: observation(next(left_mib) * MIB)}

    loop.node.memory = memory


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(("by_mib", "killed"), [(400, []), (98, ["hog"])])
async def test_no_pod_dies_for_what_the_node_was_short_of_before_the_guard_was_held_up(
    make_loop, make_pod, observation, by_mib, killed
):
    loop = make_loop()
    loop.have(make_pod("hog"))
    slow_to_read(loop, observation, by_mib, 0.03)

    record = loop.passes.make([wake()])

    assert loop.kills.killed == killed
    assert record.is_repeated
    assert record.snapshot.signals[Signal.MEMORY_AVAILABLE].available == by_mib * MIB


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(("by_mib", "killed"), [(400, []), (98, ["hog"])])
async def test_the_node_alone_is_read_again_before_a_kill_if_the_pods_took_long_to_read(
    make_loop, make_pod, observation, by_mib, killed
):
    """As 190 pods do for which others want the CPU; if it is as short as before nothing is decided anew."""
    loop = make_loop()
    loop.have(make_pod("hog"))
    slow_to_read(loop, observation, by_mib, 0.006)

    record = loop.passes.make([wake()])

    assert loop.kills.killed == killed
    assert record.is_repeated is not bool(killed)


async def test_page_cache_that_goes_after_a_wake_is_worth_a_pass_and_not_later(
    make_loop, make_pod, observation
):
    """The levels in the kernel lie higher by as much; only at the next wake would they be armed again."""
    loop = make_loop()
    loop.have(make_pod("hog"))
    kept = observation(200 * MIB)._replace(inactive_file_bytes=150 * MIB)
    fewer = observation(150 * MIB)._replace(inactive_file_bytes=100 * MIB)
    for later_seconds, is_worth in ((0.1, True), (2.6, False)):
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: kept}
        loop.passes.make([wake()])
        loop.now_seconds += later_seconds
        assert not loop.passes.is_worth_a_pass()
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: fewer}
        assert loop.passes.is_worth_a_pass() is is_worth


@pytest.mark.parametrize(
    ("left_mib", "cached_mib", "kind"),
    [(300, 150, WakeKind.MEMORY), (200, 150, WakeKind.HOUSEKEEPING)],
)
async def test_page_cache_that_lifts_no_level_or_that_no_wake_was_about_is_not_followed(
    make_loop, make_pod, observation, left_mib, cached_mib, kind
):
    loop = make_loop()
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {
        Signal.MEMORY_AVAILABLE: observation(left_mib * MIB)._replace(inactive_file_bytes=cached_mib * MIB)
    }
    loop.passes.make([wake(kind)])
    assert not loop.passes.observations.is_cache_doubted()


async def test_pod_without_a_process_spares_no_pod_and_is_chosen_again_once_it_has_one(
    make_loop, make_pod, observation
):
    loop = make_loop()
    loop.have(make_pod("starting"), make_pod("hog"), make_pod("calm"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.kills.empty = {"starting"}
    loop.kills.meanwhile = loop.pass_time

    record = loop.passes.make([wake()])
    (earlier,) = loop.passes.take_earlier()
    assert ["starting", "hog"] == loop.kills.killed
    assert [["starting"], ["hog"]] == [
        [attempt.eviction.pod.name for attempt in one.attempts] for one in (earlier, record)
    ]
    assert (earlier.id + 1, []) == (record.id, loop.passes.take_earlier())
    assert [None, True] == [one.document().get("repeated") for one in (earlier, record)]
    assert not loop.passes.is_unfinished

    loop.kills.empty.clear()
    loop.populated = {"uid-starting"}
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=0)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(20 * MIB)}
    loop.now_seconds += 0.001
    loop.passes.make([wake()])
    assert ["starting", "hog", "starting"] == loop.kills.killed


async def test_a_pod_without_a_process_is_gone_and_not_killed(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("starting"), make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.kills.empty = {"starting"}
    loop.passes.make([wake()])
    (record,) = loop.passes.take_earlier()
    (attempt,) = record.attempts
    assert ("gone", None, 0) == (attempt.outcome, attempt.killed_ns, attempt.processes)


async def test_a_pod_that_holds_nothing_and_has_no_process_is_not_prepared_nor_chosen(
    make_loop, make_pod, observation
):
    loop = make_loop()
    loop.have(replace(make_pod("idle"), preference=Preference.PREFER), make_pod("hog"))
    loop.usages.seen["uid-idle"] = PodUsage(memory_working_set_bytes=0)
    loop.populated = {"uid-hog"}
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(101 * MIB)}
    loop.passes.make([wake()])
    assert loop.passes.approach.is_near
    assert ["hog"] == loop.kills.ready
    loop.now_seconds += 0.001
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.passes.make([wake()])
    assert ["hog"] == loop.kills.killed


async def test_a_pod_that_holds_nothing_and_has_a_process_is_chosen_as_any_other(
    make_loop, make_pod, observation
):
    loop = make_loop()
    loop.have(replace(make_pod("idle"), preference=Preference.PREFER), make_pod("hog"))
    loop.usages.seen["uid-idle"] = PodUsage(memory_working_set_bytes=0)
    loop.populated = {"uid-hog", "uid-idle"}
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(101 * MIB)}
    loop.passes.make([wake()])
    assert "idle" in loop.kills.ready


async def test_pod_that_is_found_without_a_process_again_and_again_does_not_keep_the_loop_busy(
    make_loop, make_pod, observation
):
    loop = make_loop()
    loop.have(make_pod("flickers"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.kills.empty = loop.populated = {"flickers", "uid-flickers"}
    loop.kills.meanwhile = loop.pass_time
    found = []
    for _ in range(3):
        loop.now_seconds += 0.01
        loop.passes.make([wake()])
        found.append((len(loop.kills.killed), loop.passes.is_unfinished))
    assert [(2, False), (3, False), (4, False)] == found


async def test_pod_that_can_not_be_killed_is_passed_over_for_the_next(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("refused"), make_pod("next"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.kills.fails_with = RefusedError("outside the parents")
    failed = loop.passes.make([wake()])
    loop.kills.fails_with = None

    loop.now_seconds += 0.01
    record = loop.passes.make([wake()])

    assert failed.attempts[0].outcome == "failed"
    assert failed.attempts[0].problems == ("outside the parents",)
    assert loop.kills.killed == ["next"]
    assert "outside the parents" in record.decision.ranking[-1].pod.critical_because


async def test_no_pod_is_evicted_while_descriptors_lack_to_read_one_and_the_hog_is_once_it_was_read(
    make_loop, make_pod, observation
):
    """The one that is not read may be the hog."""
    loop = make_loop()
    loop.have(make_pod("hog"), make_pod("other"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.usages.meanwhile = lambda: loop.usages.unseen.add("hog")
    loop.passes.make([wake()])
    assert [] == loop.kills.killed
    assert loop.passes.is_powerless

    loop.usages.meanwhile = loop.usages.unseen.clear
    loop.now_seconds += 0.01
    loop.passes.make([wake()])
    assert ["hog"] == loop.kills.killed


async def test_memory_wake_does_not_look_at_processes_but_housekeeping_does(make_loop, observation):
    loop = make_loop()
    loop.node.processes_seen = {Signal.PID_AVAILABLE: observation(10, 100)}

    assert Signal.PID_AVAILABLE not in loop.passes.make([wake()]).snapshot.signals
    assert Signal.PID_AVAILABLE in loop.passes.make([wake(WakeKind.HOUSEKEEPING)]).snapshot.signals


async def test_disk_threshold_seen_earlier_is_listed_but_not_acted_on_again(
    make_loop, make_pod, make_threshold, observation
):
    threshold = make_threshold(100, Signal.NODEFS_AVAILABLE)
    loop = make_loop(threshold)
    loop.have(make_pod("first"), make_pod("second"))
    low = {Signal.NODEFS_AVAILABLE: observation(50, 1000)}
    loop.known.observed.take([Signal.NODEFS_AVAILABLE], low, loop.now_seconds)
    asked = loop.passes.make([wake(WakeKind.HOUSEKEEPING)])
    await loop.passes.reclaim(asked, trio.lowlevel.checkpoint)
    assert loop.kills.killed == ["first"]

    loop.now_seconds += 15  # the first eviction's deadline is over, and nothing has been observed since
    for kind in (WakeKind.MEMORY, WakeKind.HOUSEKEEPING):
        again = loop.passes.make([wake(kind)])
        assert again.decision.thresholds_met == (threshold,)
        assert (again.decision.reclaim, again.attempts) == ((), ())
    assert loop.kills.killed == ["first"]

    loop.known.observed.take([Signal.NODEFS_AVAILABLE], low, loop.now_seconds)
    assert loop.passes.make([wake(WakeKind.HOUSEKEEPING)]).decision.reclaim


async def test_unreadable_memory_is_no_pressure(make_loop, make_pod):
    loop = make_loop()
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {}

    record = loop.passes.make([wake()])

    assert record.decision.conditions == ()
    assert loop.kills.killed == []


async def test_dry_run_decides_and_kills_no_pod(make_loop, make_pod, observation):
    loop = make_loop(dry_run=True)
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}

    record = loop.passes.make([wake()])

    assert [one.pod.name for one in record.decision.evictions] == ["hog"]
    assert record.attempts[0].outcome == "dry-run"
    assert record.dry_run
    assert loop.kills.killed == []


async def test_a_dry_run_reports_one_shortage_once_and_awaits_nothing(make_loop, make_pod, observation):
    loop = make_loop(dry_run=True)
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}

    records = []
    for _ in range(5):
        records.append(loop.passes.make([wake()]))
        loop.now_seconds += 20.0
    assert [1, 0, 0, 0, 0] == [len(record.attempts) for record in records]
    assert all(record.decision.deferred_because is None for record in records)
    state = loop.known.state
    assert ((), (), ()) == (state.in_flight, state.evicted_at, state.hard_memory_kills)
    assert not loop.known.under_way.at("uid-hog", time.monotonic_ns())

    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(300 * MIB)}
    loop.passes.make([wake()])
    loop.now_seconds += 1.0
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    assert 1 == len(loop.passes.make([wake()]).attempts), "another shortage"


async def test_a_dry_run_keeps_its_victim_in_the_order_and_names_the_next_once_another_has_evicted_it(
    make_loop, make_pod, observation
):
    loop = make_loop(dry_run=True)
    hog, other = make_pod("hog"), make_pod("other")
    loop.have(hog, other)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    first = loop.passes.make([wake()])
    loop.now_seconds += 20.0
    again = loop.passes.make([wake()])
    assert [["hog"], []] == [[one.eviction.pod.name for one in each.attempts] for each in (first, again)]
    assert ["hog", "other"] == [place.pod.name for place in again.decision.ranking]

    loop.have(other)  # the kubelet has evicted the first, and memory is short all the same
    loop.now_seconds += 20.0
    assert ["other"] == [one.eviction.pod.name for one in loop.passes.make([wake()]).attempts]
    assert [] == loop.kills.killed


async def test_nothing_is_rehearsed_while_a_victim_is_awaited_and_it_is_again_afterwards(
    make_loop, make_pod, observation
):
    loop = make_loop()
    loop.have(make_pod("hog"), make_pod("other"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.passes.make([wake()])
    assert ["hog"] == loop.kills.killed
    before = loop.usages.memory_reads
    loop.passes.make([wake()])
    awaited = loop.usages.memory_reads - before
    loop.kills.reaped.set()
    await trio.testing.wait_all_tasks_blocked()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(110 * MIB)}
    before = loop.usages.memory_reads
    loop.passes.make([wake()])
    assert (1, 1) == (awaited, loop.usages.memory_reads - before)
    assert ["other"] == loop.kills.ready
    assert loop.passes.approach.is_near


async def test_levels_are_armed_again_after_each_pass_with_what_was_observed(make_loop, observation):
    loop = make_loop()
    loop.passes.make([wake()])
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(300 * MIB)}
    loop.passes.make([wake()])

    assert [seen[Signal.MEMORY_AVAILABLE].available for seen in loop.armed] == [400 * MIB, 300 * MIB]


def softly_evicted(loop, pod, seen):
    """Return the soft eviction of a pod that the loop orders where this much memory is left for 3 s."""
    loop.have(pod)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: seen}
    loop.passes.make([wake()])
    loop.now_seconds += 3
    (attempt,) = loop.passes.make([wake()]).attempts
    return attempt


async def test_soft_eviction_waits_in_the_background_and_a_hard_one_of_the_same_pod_overtakes_it(
    make_loop, make_pod, make_threshold, observation, autojump_clock
):
    loop = make_loop(
        make_threshold(100 * MIB),
        make_threshold(200 * MIB, grace_period_seconds=2),
        max_pod_grace_period_seconds=30,
    )
    soft = softly_evicted(loop, make_pod("hog"), observation(150 * MIB))
    await trio.testing.wait_all_tasks_blocked()
    assert loop.kills.terminated == [("hog", 30)]
    assert loop.kills.killed == []

    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(50 * MIB)}
    loop.now_seconds += 1
    hard = loop.passes.make([wake()])

    assert loop.kills.killed == ["hog"]
    assert hard.attempts[0].outcome == "killed"
    await soft.ended.wait()
    assert soft.outcome == "pre-empted"


async def test_a_soft_eviction_is_called_off_where_the_pressure_is_gone_when_its_grace_period_is_over(
    nursery, autojump_clock, make_loop, make_pod, make_threshold, observation
):
    loop = make_loop(make_threshold(200 * MIB, grace_period_seconds=2), max_pod_grace_period_seconds=30)
    soft = softly_evicted(loop, make_pod("hog"), observation(150 * MIB))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(250 * MIB)}
    await soft.ended.wait()
    assert ("called off", []) == (soft.outcome, loop.kills.killed)
    assert () == loop.known.state.in_flight


async def test_a_soft_eviction_that_fails_at_its_end_is_not_waited_for_and_its_pod_is_spared(
    make_loop, make_pod, make_threshold, observation, autojump_clock
) -> None:
    loop = make_loop(
        make_threshold(100 * MIB),
        make_threshold(200 * MIB, grace_period_seconds=2),
        max_pod_grace_period_seconds=30,
    )
    soft = softly_evicted(loop, make_pod("hog"), observation(150 * MIB))
    loop.kills.fails_with = RefusedError("cgroup /hog holds process 1, init")
    loop.now_seconds += 31
    await soft.ended.wait()
    assert ("failed", ()) == (soft.outcome, loop.known.state.claims)

    loop.kills.fails_with = None
    loop.have(make_pod("hog"), make_pod("other"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.passes.make([wake()])
    assert ["other"] == loop.kills.killed


async def test_a_soft_eviction_is_not_called_off_before_its_minimum_reclaim_is_there(
    nursery, autojump_clock, make_loop, make_pod, make_threshold, observation
):
    threshold = make_threshold(200 * MIB, grace_period_seconds=2)
    minimum = replace(threshold, minimum_reclaim=ThresholdValue(text="100Mi", amount=Fraction(100 * MIB)))
    loop = make_loop(minimum, max_pod_grace_period_seconds=30)
    soft = softly_evicted(loop, make_pod("hog"), observation(150 * MIB))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(250 * MIB)}
    loop.kills.reaped.set()
    await soft.ended.wait()
    assert ("killed", ["hog"]) == (soft.outcome, loop.kills.killed)


async def test_an_eviction_of_a_pod_whose_cgroup_is_another_by_now_says_gone(
    nursery, make_loop, make_pod, observation
):
    loop = make_loop()
    loop.have(make_pod("hog"))
    loop.kills.is_gone = True
    loop.kills.reaped.set()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(50 * MIB)}
    (attempt,) = loop.passes.make([wake()]).attempts
    await attempt.ended.wait()
    assert ("gone", 0, None) == (attempt.outcome, attempt.processes, attempt.killed_ns)


async def test_reload_to_a_dry_run_calls_off_the_soft_eviction_under_way_and_no_kill_follows(
    nursery, autojump_clock, make_loop, make_pod, make_threshold, observation
):
    loop = make_loop(make_threshold(200 * MIB, grace_period_seconds=2), max_pod_grace_period_seconds=30)
    soft = softly_evicted(loop, make_pod("hog"), observation(150 * MIB))
    await trio.testing.wait_all_tasks_blocked()

    loop.evictor.adopt(10.0, dry_run=True)

    await soft.ended.wait()
    assert soft.outcome == "called off"
    assert soft.problems
    await trio.sleep(60)  # of the autojump clock: twice the grace period
    assert (loop.kills.terminated, loop.kills.killed) == ([("hog", 30)], [])
    assert loop.known.state.in_flight == ()


async def test_reload_to_a_dry_run_takes_nothing_back_of_a_kill_that_is_done(
    nursery, autojump_clock, make_loop, make_pod, make_threshold, observation
):
    loop = make_loop(make_threshold(200 * MIB, grace_period_seconds=2), max_pod_grace_period_seconds=30)
    soft = softly_evicted(loop, make_pod("hog"), observation(150 * MIB))
    await trio.sleep(31)
    assert loop.kills.killed == ["hog"]

    loop.evictor.adopt(10.0, dry_run=True)

    loop.kills.reaped.set()
    await soft.ended.wait()
    assert soft.outcome == "killed"
    assert soft.freed_ns is not None


async def test_pid_crossing_ranks_by_processes(make_loop, make_pod, make_threshold, observation):
    loop = make_loop(make_threshold(10, Signal.PID_AVAILABLE))
    loop.have(make_pod("bomb"))
    loop.node.processes_seen = {Signal.PID_AVAILABLE: observation(5, 100)}

    record = loop.passes.make([wake(WakeKind.PROCESSES)])

    assert loop.usages.full_reads == 1
    assert record.resource is Resource.PIDS
    assert loop.kills.killed == ["bomb"]


async def test_node_reclaims_before_a_pod_is_evicted_for_disk(
    make_loop, make_pod, make_threshold, observation
):
    loop = make_loop(make_threshold(100, Signal.NODEFS_AVAILABLE))
    loop.have(make_pod("writer"))
    loop.known.observed.take(
        [Signal.NODEFS_AVAILABLE], {Signal.NODEFS_AVAILABLE: observation(50, 1000)}, loop.now_seconds
    )
    asked = loop.passes.make([wake(WakeKind.HOUSEKEEPING)])
    assert asked.decision.reclaim
    assert loop.kills.killed == []

    async def observe_more() -> None:
        loop.known.observed.take(
            [Signal.NODEFS_AVAILABLE], {Signal.NODEFS_AVAILABLE: observation(500, 1000)}, loop.now_seconds
        )

    assert (await loop.passes.reclaim(asked, observe_more)).attempts == ()


async def test_pod_is_evicted_for_disk_where_giving_back_was_not_enough(
    make_loop, make_pod, make_threshold, observation
):
    loop = make_loop(make_threshold(100, Signal.NODEFS_AVAILABLE))
    loop.have(make_pod("writer"))
    loop.known.observed.take(
        [Signal.NODEFS_AVAILABLE], {Signal.NODEFS_AVAILABLE: observation(50, 1000)}, loop.now_seconds
    )
    asked = loop.passes.make([wake(WakeKind.HOUSEKEEPING)])

    record = await loop.passes.reclaim(asked, trio.lowlevel.checkpoint)

    assert [attempt.eviction.pod.name for attempt in record.attempts] == ["writer"]
    assert loop.kills.killed == ["writer"]


async def test_pod_that_came_after_the_last_housekeeping_is_seen_at_the_crossing(
    make_loop, make_pod, observation
):
    loop = make_loop()
    hog = make_pod("newcomer")
    loop.have(hog)
    loop.passes.observations.set_pods(())
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}

    loop.passes.make([wake()])

    assert loop.usages.tracked == (hog,)
    assert loop.kills.killed == ["newcomer"]


async def test_pod_that_vanished_while_it_was_read_is_not_chosen_for_being_unknown(
    make_loop, make_pod, observation
):
    loop = make_loop()
    vanished, hog = make_pod("vanished"), make_pod("hog")
    loop.have(vanished, hog)
    loop.usages.vanished = frozenset({vanished.uid})
    loop.usages.seen = {hog.uid: PodUsage(memory_working_set_bytes=64 * MIB)}
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}

    loop.passes.make([wake()])

    assert loop.kills.killed == ["hog"]


async def test_a_pod_whose_pause_container_alone_is_still_counted_is_gone(
    make_loop, make_pod, make_threshold, observation, autojump_clock
):
    loop = make_loop(make_threshold(100, Signal.PID_AVAILABLE))
    loop.have(replace(make_pod("bomb"), spared_cgroups=("/pods/bomb/sandbox",)), make_pod("calm"))
    loop.usages.seen["uid-bomb"] = PodUsage(process_count=200)
    loop.node.processes_seen = {Signal.PID_AVAILABLE: observation(90, 300)}
    loop.kills.reaped.set()
    attempt = loop.passes.make([wake(WakeKind.PROCESSES)]).attempts[0]
    await trio.sleep(1)
    assert not attempt.ended.is_set()
    loop.usages.seen["uid-bomb"] = PodUsage(process_count=1)
    await attempt.ended.wait()
    assert loop.gone == ["uid-bomb"]


async def test_no_other_pod_is_evicted_for_processes_while_those_of_the_first_are_still_counted(
    make_loop, make_pod, make_threshold, observation, autojump_clock
):
    loop = make_loop(make_threshold(100, Signal.PID_AVAILABLE))
    loop.have(make_pod("bomb"), make_pod("calm"))
    loop.usages.seen["uid-bomb"] = PodUsage(process_count=200)
    loop.node.processes_seen = {Signal.PID_AVAILABLE: observation(90, 300)}
    loop.kills.reaped.set()
    attempt = loop.passes.make([wake(WakeKind.PROCESSES)]).attempts[0]
    await trio.sleep(1)

    # Killed and gone, but not yet reaped by whoever started them.
    loop.now_seconds += 1
    record = loop.passes.make([wake(WakeKind.PROCESSES)])
    assert loop.kills.killed == ["bomb"]
    assert record.decision.deferred_because is not None
    assert not attempt.ended.is_set()

    reads = loop.usages.full_reads
    loop.usages.seen["uid-bomb"] = PodUsage(process_count=0)
    await attempt.ended.wait()
    assert loop.gone == ["uid-bomb"]
    assert attempt.freed_ns is not None
    assert loop.usages.full_reads == reads


async def test_to_see_that_the_processes_of_one_pod_are_gone_no_other_pod_is_read(
    make_loop, make_pod, make_threshold, observation, autojump_clock
):
    loop = make_loop(make_threshold(100, Signal.PID_AVAILABLE))
    loop.have(make_pod("bomb"), make_pod("calm"))
    loop.usages.seen["uid-bomb"] = PodUsage(process_count=200)
    loop.node.processes_seen = {Signal.PID_AVAILABLE: observation(90, 300)}
    loop.kills.reaped.set()
    attempt = loop.passes.make([wake(WakeKind.PROCESSES)]).attempts[0]
    reads = loop.usages.full_reads
    await trio.sleep(1)
    assert not attempt.ended.is_set()
    assert loop.usages.processes_asked
    assert loop.usages.full_reads == reads


SWAP = Signal.SWAP_AVAILABLE


async def test_swap_is_not_read_where_no_threshold_is_for_it(make_loop, make_pod):
    loop = make_loop()
    loop.have(make_pod("hog"))
    for kind in WakeKind:
        loop.passes.make([wake(kind)])
    assert loop.node.swap_reads == 0


async def test_crossing_of_swap_kills_and_a_pass_for_memory_reads_none(
    make_loop, make_pod, make_threshold, observation
):
    loop = make_loop(make_threshold(100 * MIB), make_threshold(100 * MIB, signal=SWAP))
    loop.have(make_pod("resident"), make_pod("leak"))
    loop.usages.seen = {
        "uid-resident": PodUsage(memory_working_set_bytes=300 * MIB, swap_bytes=0),
        "uid-leak": PodUsage(memory_working_set_bytes=100 * MIB, swap_bytes=400 * MIB),
    }
    loop.node.swap_seen = {SWAP: observation(99 * MIB)}

    loop.passes.make([wake()])
    assert loop.node.swap_reads == 0
    assert loop.kills.killed == []

    record = loop.passes.make([wake(WakeKind.PROCESSES)])
    assert loop.kills.killed == ["leak"]
    assert record.document()["ranking"][0]["swap_bytes"] == 400 * MIB
    assert record.document()["threshold"]["signal"] == SWAP


async def test_what_pods_have_in_swap_is_noted_with_the_housekeeping_alone(make_loop, make_pod):
    loop = make_loop()
    loop.have(make_pod("hog"))
    loop.passes.make([wake(), wake(WakeKind.PROCESSES)])
    assert loop.usages.swap_notes == 0
    loop.passes.make([wake(WakeKind.HOUSEKEEPING)])
    assert loop.usages.swap_notes == 1


@pytest.fixture(params=["pid.available", "swap.available"])
def soft_attempt(request, make_loop, make_pod, make_threshold, observation, autojump_clock):
    """A loop with an eviction in its grace period for process ids or swap; what the node has left of it."""
    signal = Signal(request.param)
    soft = make_threshold(100, signal=signal, grace_period_seconds=30)
    loop = make_loop(soft, max_pod_grace_period_seconds=5)
    loop.have(make_pod("one"))

    def leave(amount: int) -> None:
        seen = {signal: observation(amount, capacity=1000)}
        loop.node.processes_seen = loop.node.swap_seen = seen

    leave(50)
    loop.known.state = PolicyState(first_observed={soft: loop.now_seconds - 30})
    (attempt,) = loop.passes.make([Wake(source="test", kind=WakeKind.PROCESSES, at_ns=1)]).attempts
    return loop, attempt, leave


@pytest.mark.parametrize(("left", "killed"), [(200, []), (50, ["one"])])
async def test_soft_eviction_for_process_ids_or_swap_is_confirmed_by_what_is_left_at_its_end(
    soft_attempt, left, killed, autojump_clock
):
    loop, attempt, leave = soft_attempt
    loop.kills.reaped.set()
    leave(left)
    await attempt.ended.wait()
    assert (loop.kills.killed, attempt.outcome) == (killed, "killed" if killed else "called off")


async def test_hard_memory_threshold_does_not_wait_for_a_pod_over_its_storage_limit(
    make_loop, make_pod, observation
):
    """A pass that evicts for such a limit acts on no threshold, as upstream; it is made once more at once."""
    loop = make_loop()
    volume = Volume(name="v", is_local=False, size_limit=parse_quantity("10"))
    filler = replace(make_pod("filler"), volumes=(volume,))
    loop.have(filler, make_pod("hog"))
    over = PodUsage(memory_working_set_bytes=MIB, volumes={"v": FilesystemUsage(used_bytes=99)})
    loop.usages.seen = {**loop.usages.seen, "uid-filler": over}

    loop.passes.make([wake()])
    assert not loop.passes.is_unfinished

    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(50 * MIB)}
    loop.kills.meanwhile = loop.pass_time
    loop.passes.make([wake()])
    assert ["filler", "hog"] == loop.kills.killed
    assert not loop.passes.is_unfinished


async def test_cpu_is_left_to_victims_before_the_pass_goes_on_once_however_many_there_are(
    make_loop, make_pod, observation, monkeypatch
):
    """A victim on the CPU of a real-time process dies once that waits; the last of 30 was 12 ms late."""
    loop = make_loop()
    volume = Volume(name="v", is_local=False, size_limit=parse_quantity("10"))
    loop.have(*(replace(make_pod(f"filler-{number}"), volumes=(volume,)) for number in range(12)))
    over = PodUsage(memory_working_set_bytes=MIB, volumes={"v": FilesystemUsage(used_bytes=99)})
    loop.usages.seen = dict.fromkeys(loop.usages.seen, over)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(50 * MIB)}
    steps: list[str] = []
    loop.kills.meanwhile = lambda: steps.append("kill")
    monkeypatch.setattr(time, "sleep", lambda _: steps.append("pause"))
    monkeypatch.setattr(loop.passes, "arm_memory", lambda _: steps.append("arm") or ())

    loop.passes.make([wake()])
    assert [*["kill"] * 12, "pause", "arm"] == steps[:14]

    del steps[:]
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(400 * MIB)}
    loop.passes.make([wake()])
    assert ["arm"] == steps


async def test_a_dry_run_decides_for_thresholds_after_it_has_reported_a_pod_over_its_storage_limit(
    make_loop, make_pod, make_threshold, observation
):
    """No pod goes in it that would have gone: what follows in a run that evicts would never be reported."""
    memory, processes = make_threshold(100 * MIB), make_threshold(100, Signal.PID_AVAILABLE)
    loop = make_loop(memory, processes, dry_run=True)
    volume = Volume(name="v", is_local=False, size_limit=parse_quantity("10"))
    pods = replace(make_pod("filler"), volumes=(volume,)), make_pod("hog")
    loop.have(*pods)
    over = PodUsage(
        memory_working_set_bytes=MIB, process_count=1, volumes={"v": FilesystemUsage(used_bytes=99)}
    )
    hog = PodUsage(memory_working_set_bytes=2 * MIB, process_count=50)
    loop.usages.seen = {"uid-filler": over, "uid-hog": hog}

    def reported() -> list[tuple[str, str]]:
        loop.now_seconds += 20.0
        attempts = loop.passes.make([wake(WakeKind.HOUSEKEEPING)]).attempts
        return [(one.eviction.pod.name, one.eviction.signal) for one in attempts]

    loop.node.processes_seen = {Signal.PID_AVAILABLE: observation(90, 300)}
    assert [("filler", LimitSignal.EMPTY_DIR)] == reported()
    assert [("hog", Signal.PID_AVAILABLE)] == reported()
    assert [] == reported()
    other = replace(pods[0], name="other", uid="uid-other")
    loop.have(*pods, other)
    loop.usages.seen = {"uid-filler": over, "uid-hog": hog, "uid-other": over}
    assert [("other", LimitSignal.EMPTY_DIR)] == reported()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(50 * MIB)}
    assert [("hog", Signal.MEMORY_AVAILABLE)] == reported()
    assert [] == loop.kills.killed


def is_being_evicted(loop, uid: str = "uid-hog") -> bool:
    return loop.known.under_way.at(uid, time.monotonic_ns())


async def test_pod_of_a_dry_run_is_not_being_evicted(make_loop, make_pod, observation):
    loop = make_loop(dry_run=True)
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(50 * MIB)}

    (attempt,) = loop.passes.make([wake()]).attempts

    assert "dry-run" == attempt.outcome
    assert not is_being_evicted(loop)


async def test_pod_whose_eviction_was_called_off_is_not_being_evicted(
    nursery, autojump_clock, make_loop, make_pod, make_threshold, observation
):
    loop = make_loop(make_threshold(200 * MIB, grace_period_seconds=2), max_pod_grace_period_seconds=30)
    soft = softly_evicted(loop, make_pod("hog"), observation(150 * MIB))
    assert is_being_evicted(loop)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(250 * MIB)}

    await soft.ended.wait()

    assert not is_being_evicted(loop)


async def test_pod_of_which_nothing_more_is_expected_is_not_being_evicted(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(50 * MIB)}
    loop.passes.make([wake()])
    loop.now_seconds += 1.0
    loop.passes.make([wake()])
    assert is_being_evicted(loop)
    loop.node.memory_seen = {}
    loop.now_seconds += 60.0

    loop.passes.make([wake()])

    assert () == loop.known.state.in_flight
    assert not is_being_evicted(loop)


async def test_memory_that_is_absurd_has_not_sunk(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("hog"))
    for before, now in ((150, -1), (-1, -200), (50, -1)):
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(before * MIB)}
        loop.passes.make([wake()])
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(now * MIB)}
        loop.now_seconds += 0.02
        assert not loop.passes.observations.shortage_has_grown()


class Falls:
    """Shows what a signal has available at one reading after the other, the last one again and again."""

    def __init__(self, signal: Signal, *seen: Observation) -> None:
        self._signal = signal
        self._seen = list(seen)

    def __call__(self) -> Mapping[Signal, Observation]:
        return {self._signal: self._seen.pop(0) if len(self._seen) > 1 else self._seen[0]}


def after_a_kill(loop: Any, make_pod: Callable[..., Any], observation: Callable[..., Any]) -> None:
    """Have a hog dying beside an innocent, the next one, and a pod that is never evicted."""
    keeper = replace(make_pod("keeper"), critical_because="it is so")
    loop.have(make_pod("innocent"), make_pod("hog"), make_pod("next"), keeper, working_set_bytes=MIB)
    for uid, held in (("uid-hog", 300), ("uid-next", 200)):
        loop.usages.seen[uid] = PodUsage(memory_working_set_bytes=held * MIB, process_count=held)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(99 * MIB)}
    loop.passes.make([wake()])
    assert loop.kills.killed == ["hog"]
    loop.now_seconds += 0.1
    loop.usages.seen["uid-hog"] = PodUsage(memory_working_set_bytes=MIB, process_count=1)


@pytest.mark.parametrize("kind", [WakeKind.MEMORY, WakeKind.HOUSEKEEPING])
async def test_if_the_node_is_short_only_when_it_is_read_again_its_pods_are_read_too(
    make_loop, make_pod, make_threshold, observation, kind
):
    """Of pods that were not read the first in the list was killed, as one that has no statistics."""
    reclaimed = ThresholdValue(text="50Mi", amount=Fraction(50 * MIB))
    loop = make_loop(replace(make_threshold(100 * MIB), minimum_reclaim=reclaimed))
    after_a_kill(loop, make_pod, observation)
    loop.node.memory = Falls(Signal.MEMORY_AVAILABLE, observation(160 * MIB), observation(120 * MIB))

    loop.passes.make([wake(kind)])

    assert loop.kills.killed == ["hog", "next"]


@pytest.mark.parametrize("readings", [(399, 399, 399), (399, 99, 399), (399, 99, 99)])
async def test_if_process_ids_run_out_between_two_readings_processes_are_counted(
    make_loop, make_pod, make_threshold, observation, readings
):
    """Also if the pods are read for memory by then."""
    loop = make_loop(make_threshold(100 * MIB), make_threshold(10, Signal.PID_AVAILABLE))
    after_a_kill(loop, make_pod, observation)
    loop.usages.memory = lambda *_: {
        uid: one._replace(process_count=None) for uid, one in loop.usages.seen.items()
    }
    seen = (observation(available * MIB) for available in readings)
    loop.node.memory = Falls(Signal.MEMORY_AVAILABLE, *seen)
    ids = (Observation(available=available, capacity=1000) for available in (100, 100, 5))
    loop.node.processes = Falls(Signal.PID_AVAILABLE, *ids)
    if readings[1] == 399:
        loop.node.processes()

    loop.passes.make([wake(WakeKind.HOUSEKEEPING)])

    assert loop.kills.killed == ["hog", "next"]
