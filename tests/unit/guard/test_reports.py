from __future__ import annotations

import json
from dataclasses import replace

import pytest
import trio

from reactor.guard.reports import PODS_AT_ONCE, memory_held
from reactor.model.pod_lists import ProcessVictim
from reactor.model.pods import PodUsage
from reactor.model.signals import Signal
from reactor.model.wakes import SourceHealth, SourceState, Wake, WakeKind
from reactor.policy.events import PodEmptied
from tests.support.builders import make_claim

MIB = 1 << 20
WAKE = Wake(source="memcg-eventfd", kind=WakeKind.MEMORY, at_ns=1)


async def test_status_shows_each_threshold_with_its_margin(make_view):
    _, view, make_pass = make_view()
    make_pass()

    document = view().status()

    (memory,) = document["signals"]
    assert (memory["available"], memory["capacity"], memory["unit"]) == (400 * MIB, 512 * MIB, "bytes")
    assert [one["kind"] for one in memory["thresholds"]] == ["hard", "soft"]
    assert [one["margin"] for one in memory["thresholds"]] == [300 * MIB, 200 * MIB]
    assert document["problems"] == {"journal": "full"}
    assert json.loads(json.dumps(document)) == document


async def test_soft_threshold_reports_for_how_long_it_has_been_below(make_view, observation):
    loop, view, make_pass = make_view()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(150 * MIB)}
    make_pass()
    loop.now_seconds += 12

    hard, soft = view().status()["signals"][0]["thresholds"]

    assert (hard["below_for_seconds"], hard["met"]) == (None, False)
    assert (soft["below_for_seconds"], soft["met"]) == (12, False)


async def test_condition_tells_since_when(make_view, observation):
    loop, view, make_pass = make_view()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(50 * MIB)}
    make_pass()
    loop.now_seconds += 7

    conditions = {one["condition"]: one for one in view().status()["conditions"]}

    assert conditions["MemoryPressure"]["in_force"]
    assert conditions["MemoryPressure"]["for_seconds"] == 7
    assert conditions["DiskPressure"]["since"] is None


async def test_unread_signal_is_unknown_and_not_zero(make_view):
    loop, view, make_pass = make_view()
    loop.node.memory_seen = {}
    make_pass()

    (memory,) = view().status()["signals"]

    assert (memory["available"], memory["capacity"]) == (None, None)
    assert [one["margin"] for one in memory["thresholds"]] == [None, None]


@pytest.mark.parametrize(
    ("memcg", "expected"),
    [(SourceHealth.ARMED, "memcg-eventfd"), (SourceHealth.FAILED, "ticker")],
)
async def test_source_of_a_signal_is_the_first_that_is_armed(make_view, memcg, expected):
    _, view, make_pass = make_view(
        SourceState(name="ticker", health=SourceHealth.ARMED),
        SourceState(name="memcg-eventfd", health=memcg),
    )
    make_pass()

    assert view().status()["signals"][0]["source"]["name"] == expected


async def test_explain_ranks_all_and_reads_them_again(make_view, make_pod):
    loop, view, _ = make_view()
    loop.have(make_pod("first"), make_pod("second", request_bytes=64 * MIB))
    loop.usages.seen = {
        "uid-first": PodUsage(memory_working_set_bytes=1),
        "uid-second": PodUsage(memory_working_set_bytes=2),
    }

    document = await view().explain(loop.usages)

    assert [one["pod"] for one in document["ranking"]] == ["cgroup/first", "cgroup/second"]
    assert "within its request of 64Mi" in document["ranking"][1]["because"]
    assert document["pods"] == 2


async def test_where_one_process_is_killed_status_and_explain_say_so(make_view, make_pod):
    loop, view, _ = make_view()
    session = replace(make_pod("session"), process_victim=ProcessVictim(entry="unit session"))
    loop.have(session, make_pod("other", request_bytes=64 * MIB))

    ranking = (await view().explain(loop.usages))["ranking"]

    assert [("cgroup/session", "process"), ("cgroup/other", "pod")] == [
        (one["pod"], one["victim"]) for one in ranking
    ]
    assert "one process of it is killed, not the pod" in ranking[0]["because"]
    assert {"pods": 1} == view().status()["process_victims"]


async def test_explain_does_not_list_pods_that_are_being_evicted_or_were(make_view, make_pod):
    loop, view, _ = make_view()
    pods = [make_pod(name) for name in ("ended", "ending", "next")]
    loop.have(*pods)
    loop.usages.seen = {pod.uid: PodUsage(memory_working_set_bytes=9) for pod in pods}
    known = view().known
    known.apply(PodEmptied(uid="uid-ended"))
    known.state = known.state._replace(claims=(make_claim("uid-ending"),))

    document = await view().explain(loop.usages)

    assert [(one["place"], one["pod"]) for one in document["ranking"]] == [(1, "cgroup/next")]


async def test_how_much_pods_hold_is_read_of_a_few_at_a_time_and_others_go_first_in_between(
    make_view, make_pod, observation
):
    loop, _, _ = make_view()
    pods = [make_pod(f"p{number}") for number in range(3 * PODS_AT_ONCE)]
    loop.have(*pods)
    loop.usages.seen = {pod.uid: PodUsage(memory_working_set_bytes=MIB) for pod in pods}
    order = []
    read = loop.usages.of
    loop.usages.of = lambda uids: order.append(len(uids)) or read(uids)

    async def another() -> None:
        for _ in range(3):
            order.append("another")
            await trio.lowlevel.checkpoint()

    held = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(another)
        held = await memory_held(observation(50 * MIB), pods, loop.usages)

    assert [PODS_AT_ONCE] * 3 == [one for one in order if one != "another"]
    assert "another" in order[1:-1]
    assert len(held["cgroups"]) == len(pods)
