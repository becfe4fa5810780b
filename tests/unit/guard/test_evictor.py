"""What becomes of an eviction with a grace period, while its pod ends and afterwards."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import trio

from reactor.act.kill_path import KillPath
from reactor.guard.build import evictor_of
from reactor.guard.evictor import Evictor
from reactor.guard.kubernetes import KubernetesNode
from reactor.guard.loop import Loop
from reactor.guard.node import Node
from reactor.guard.steward_link import StewardLink
from reactor.link.documents import Outcome
from reactor.model.decisions import Eviction
from reactor.model.pod_lists import ProcessVictim
from reactor.model.pods import Pod
from reactor.model.settings import Settings
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Observed
from tests.support.builders import make_threshold
from tests.unit.guard.conftest import FakeKills
from tests.unit.guard.test_process_victims import TAB, FakeProcesses

_SOFT = Eviction(
    pod=Pod(name="hog", namespace="shop", uid="u", cgroup="/kubepods/podu"),
    signal=Signal.NODEFS_AVAILABLE,
    resource=Resource.EPHEMERAL_STORAGE,
    grace_period_seconds=5,
    message="The node was low on resource: ephemeral-storage.",
)


@pytest.mark.parametrize("outcome", ["terminated", "killed"])
async def test_a_pod_has_stopped_when_its_processes_have_ended_or_are_killed_not_when_its_files_are_gone(
    nursery, autojump_clock, outcome: str
) -> None:
    kills = FakeKills()
    kills.ends_by_itself = outcome == "terminated"
    evictor = Evictor(kills, nursery, lambda _: False, deadline_seconds=10.0)
    began = trio.current_time()
    attempt = evictor.begin(_SOFT)
    await attempt.stopped.wait()
    assert (5.0, outcome) == (trio.current_time() - began, attempt.outcome)
    assert not attempt.ended.is_set()
    await attempt.ended.wait()
    assert trio.current_time() - began >= 15.0


@pytest.mark.parametrize(("ends", "was_cut"), [("terminated", False), ("killed", True), ("pre-empted", True)])
async def test_how_long_a_pod_took_to_end_is_reported(
    nursery, autojump_clock, ends: str, *, was_cut: bool
) -> None:
    seen: list[tuple[str, float, bool]] = []

    def on_ending(pod: Pod, seconds: float, was_cut: bool) -> None:  # noqa: FBT001 - as it is called
        seen.append((pod.name, seconds, was_cut))

    kills = FakeKills()
    kills.ends_by_itself = ends == "terminated"
    kills.reaped.set()
    evictor = Evictor(kills, nursery, lambda _: True, deadline_seconds=10.0, on_ending=on_ending)
    attempt = evictor.begin(_SOFT)
    await trio.sleep(2)
    if ends == "pre-empted":
        evictor.begin(replace(_SOFT, grace_period_seconds=0))
    await attempt.ended.wait()
    assert seen == [("hog", 2.0 if ends == "pre-empted" else 5.0, was_cut)]


async def test_no_ending_is_reported_of_a_pod_that_lives_on(nursery, autojump_clock) -> None:
    seen: list[object] = []
    kills = FakeKills()
    evictor = Evictor(
        kills,
        nursery,
        lambda _: True,
        deadline_seconds=10.0,
        confirm=lambda _: False,
        on_ending=lambda *one: seen.append(one),
    )
    attempt = evictor.begin(_SOFT)
    await attempt.ended.wait()
    assert (attempt.outcome, seen) == (Outcome.CALLED_OFF, [])


async def test_a_pod_that_has_ended_has_its_files_counted_a_few_times_a_second(
    nursery, autojump_clock
) -> None:
    asked: list[float] = []

    def is_gone(_: str) -> bool:
        asked.append(trio.current_time())
        return False

    kills = FakeKills()
    kills.reaped.set()
    attempt = Evictor(kills, nursery, is_gone, deadline_seconds=10.0).begin(
        replace(_SOFT, grace_period_seconds=0)
    )
    await attempt.ended.wait()
    assert 40 <= len(asked) <= 51


async def test_what_comes_before_a_soft_eviction_is_waited_for_within_its_grace_period(
    nursery, autojump_clock
) -> None:
    kills = FakeKills()

    async def before_soft(_: Eviction) -> tuple[str, ...]:
        await trio.sleep(2)
        return ("/run/hook: not done within 2 s",)

    evictor = Evictor(kills, nursery, lambda _: True, deadline_seconds=10.0, before_soft=before_soft)
    began = trio.current_time()
    attempt = evictor.begin(_SOFT)
    await attempt.stopped.wait()
    assert [("hog", 3.0)] == kills.terminated
    assert trio.current_time() - began == 5.0
    assert attempt.problems == ("/run/hook: not done within 2 s",)


async def test_a_hard_eviction_waits_for_no_hook(nursery, autojump_clock) -> None:
    """Neither for one of its own, nor for that of the soft eviction that it takes over from."""
    kills = FakeKills()
    kills.reaped.set()
    asked: list[str] = []

    async def before_soft(eviction: Eviction) -> tuple[str, ...]:
        asked.append(eviction.pod.name)
        await trio.sleep_forever()
        raise AssertionError("slept for ever")

    evictor = Evictor(kills, nursery, lambda _: True, deadline_seconds=10.0, before_soft=before_soft)
    soft = evictor.begin(_SOFT)
    await trio.sleep(1)
    hard = evictor.begin(replace(_SOFT, grace_period_seconds=0))
    assert (["hog"], Outcome.KILLED) == (kills.killed, hard.outcome)
    await soft.ended.wait()
    assert (Outcome.PRE_EMPTED, []) == (soft.outcome, kills.terminated)
    assert asked == ["hog"]


@pytest.mark.parametrize(
    ("is_chosen", "outcome"), [(True, Outcome.CALLED_OFF), (False, Outcome.KILLED)], ids=["process", "pod"]
)
async def test_in_a_cluster_a_process_lives_on_where_no_pressure_is_left_and_a_pod_is_killed(
    nursery, autojump_clock, *, is_chosen: bool, outcome: Outcome
) -> None:
    """What the API server knows of as evicted ends; of a process it knows nothing."""
    kills, processes = FakeKills(), FakeProcesses()
    kills.reaped.set()
    processes.chosen = TAB if is_chosen else None
    loop = SimpleNamespace(
        settings=Settings(),
        pod_ended=lambda _: True,
        process_over=lambda _: None,
        passes=SimpleNamespace(
            results=SimpleNamespace(confirm=lambda _: False, measure_result=lambda _: None)
        ),
    )
    evictor = evictor_of(
        Settings(),
        known=Node(observed=Observed(stale_seconds=35.0)),
        kills=cast(KillPath, SimpleNamespace(one_process=processes)),
        cluster=cast(KubernetesNode, SimpleNamespace(kills=kills)),
        steward=cast(StewardLink, None),
        jobs=nursery,
        loop=lambda: cast(Loop, loop),
    )
    pod = replace(_SOFT.pod, process_victim=ProcessVictim(entry="namespace shop"))
    soft = replace(
        _SOFT,
        pod=pod,
        signal=Signal.MEMORY_AVAILABLE,
        resource=Resource.MEMORY,
        threshold=make_threshold(1 << 20),
    )
    attempt = evictor.begin(soft)
    await attempt.ended.wait()
    assert (attempt.outcome, processes.killed) == (outcome, [])
    assert kills.killed == ([] if is_chosen else ["hog"])
