"""What becomes of an eviction with a grace period, while its pod ends and afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from reactor.guard.evictor import Evictor
from reactor.guard.node import Node
from reactor.link.documents import Outcome
from reactor.model.decisions import Eviction
from reactor.model.pod_lists import ProcessVictim
from reactor.model.pods import Pod
from reactor.model.signals import Resource, Signal
from reactor.model.thresholds import Observed
from reactor.policy.events import EndingObserved, Event
from tests.support.builders import make_threshold
from tests.unit.guard.conftest import FakeKills, Nothing
from tests.unit.guard.test_process_victims import TAB, FakeProcesses

_SOFT = Eviction(
    pod=Pod(name="hog", namespace="shop", uid="u", cgroup="/kubepods/podu"),
    signal=Signal.NODEFS_AVAILABLE,
    resource=Resource.EPHEMERAL_STORAGE,
    grace_period_seconds=5,
    message="The node was low on resource: ephemeral-storage.",
)


class Seen(Node):
    """Notes how long pods took to end, and whether they were killed."""

    def __init__(self) -> None:
        super().__init__(observed=Observed(stale_seconds=35.0))
        self.endings: list[tuple[str, float, bool]] = []

    def apply(self, event: Event) -> None:
        super().apply(event)
        if isinstance(event, EndingObserved):
            self.endings.append((event.pod.name, event.seconds, event.was_cut))


class StillCounted(Nothing):
    """Pods that have ended are counted for ever."""

    times = 0

    def pod_ended(self, uid: str) -> bool:
        self.times += 1
        return not uid


def made(
    kills: FakeKills, nursery: trio.Nursery, loop: Nothing | None = None, known: Node | None = None
) -> Evictor:
    known = known or Node(observed=Observed(stale_seconds=35.0))
    return Evictor(kills, nursery, known, lambda: loop or Nothing(), deadline_seconds=10.0)


@pytest.mark.parametrize("outcome", ["terminated", "killed"])
async def test_a_pod_has_stopped_when_its_processes_have_ended_or_are_killed_not_when_its_files_are_gone(
    nursery, autojump_clock, outcome: str
) -> None:
    kills = FakeKills()
    kills.ends_by_itself = outcome == "terminated"
    evictor = made(kills, nursery, StillCounted())
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
    kills = FakeKills()
    kills.ends_by_itself = ends == "terminated"
    kills.reaped.set()
    known = Seen()
    evictor = made(kills, nursery, known=known)
    attempt = evictor.begin(_SOFT)
    await trio.sleep(2)
    if ends == "pre-empted":
        evictor.begin(_SOFT._replace(grace_period_seconds=0))
    await attempt.ended.wait()
    assert known.endings == [("hog", 2.0 if ends == "pre-empted" else 5.0, was_cut)]


async def test_no_ending_is_reported_of_a_pod_that_lives_on(nursery, autojump_clock) -> None:
    class NotWanted(Nothing):
        def is_wanted(self, eviction: Eviction) -> bool:
            return not eviction

    known = Seen()
    attempt = made(FakeKills(), nursery, NotWanted(), known).begin(_SOFT)
    await attempt.ended.wait()
    assert (attempt.outcome, known.endings) == (Outcome.CALLED_OFF, [])


async def test_a_pod_that_has_ended_has_its_files_counted_a_few_times_a_second(
    nursery, autojump_clock
) -> None:
    kills, counted = FakeKills(), StillCounted()
    kills.reaped.set()
    attempt = made(kills, nursery, counted).begin(_SOFT._replace(grace_period_seconds=0))
    await attempt.ended.wait()
    assert 40 <= counted.times <= 51


async def test_what_comes_before_a_soft_eviction_is_waited_for_within_its_grace_period(
    nursery, autojump_clock
) -> None:
    class Hooked(Nothing):
        async def before_soft(self, _: Eviction) -> tuple[str, ...]:
            await trio.sleep(2)
            return ("/run/hook: not done within 2 s",)

    kills = FakeKills()
    evictor = made(kills, nursery, Hooked())
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

    class Hooked(Nothing):
        async def before_soft(self, eviction: Eviction) -> tuple[str, ...]:
            asked.append(eviction.pod.name)
            await trio.sleep_forever()
            raise AssertionError("slept for ever")

    evictor = made(kills, nursery, Hooked())
    soft = evictor.begin(_SOFT)
    await trio.sleep(1)
    hard = evictor.begin(_SOFT._replace(grace_period_seconds=0))
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

    class NotWanted(Nothing):
        def is_wanted(self, eviction: Eviction) -> bool:
            return not eviction

    kills, processes = FakeKills(), FakeProcesses()
    kills.one_process = processes
    kills.reaped.set()
    processes.chosen = TAB if is_chosen else None
    evictor = Evictor(
        kills,
        nursery,
        Node(observed=Observed(stale_seconds=35.0)),
        NotWanted,
        deadline_seconds=10.0,
        is_always_killed=True,
    )
    pod = replace(_SOFT.pod, process_victim=ProcessVictim(entry="namespace shop"))
    soft = _SOFT._replace(
        pod=pod,
        signal=Signal.MEMORY_AVAILABLE,
        resource=Resource.MEMORY,
        threshold=make_threshold(1 << 20),
    )
    attempt = evictor.begin(soft)
    await attempt.ended.wait()
    assert (attempt.outcome, processes.killed) == (outcome, [])
    assert kills.killed == ([] if is_chosen else ["hog"])
