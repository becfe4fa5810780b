"""One process of a pod in the place of the pod: what a pass orders, notes and records."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from reactor.act.one_process import Chosen, NoProcessError
from reactor.act.reap import KillReport, ReapReport
from reactor.guard.pass_ import WakePasses
from reactor.guard.record import PassRecord, attempt_document, why_ranked
from reactor.guard.recorder import Tally
from reactor.guard.state import StateFile, restore
from reactor.link.documents import what_was_done
from reactor.model.kills import ProcessMemory
from reactor.model.pod_lists import ProcessVictim
from reactor.model.pods import Pod
from reactor.model.signals import Resource, Signal
from reactor.model.wakes import Wake, WakeKind

MIB = 1 << 20
TAB = ProcessMemory(pid=2**22 + 1, name="tab\x1b[2J", anonymous_bytes=40 * MIB, shared_bytes=0, swap_bytes=0)


class FakeProcesses:
    """Kills the process that it is told to choose, and says that it has exited when `exited` is set."""

    def __init__(self) -> None:
        self.chosen: ProcessMemory | None = TAB
        self.why_none = "no process of it may be killed alone"
        self.asked: list[tuple[str, int | None]] = []
        self.prepared: list[list[str]] = []
        self.killed: list[int] = []
        self.gave_way: list[bool] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.terminated: list[int] = []
        self.is_there = True
        self.exited = trio.Event()
        self.counted_shared: list[bool] = []
        self.wanted: list[int | None] = []

    def prepare(self, pods, gives_way: Callable[[], bool] = bool) -> None:
        self.gave_way = [gives_way()]
        self.meanwhile()
        self.gave_way.append(gives_way())
        self.prepared.append([pod.name for pod in pods])

    def choose(
        self,
        pod: Pod,
        used_bytes: int | None,
        *,
        counts_shared: bool = True,
        wanted_bytes: int | None = None,
    ) -> Chosen:
        self.wanted.append(wanted_bytes)
        self.asked.append((pod.name, used_bytes))
        self.counted_shared.append(counts_shared)
        if self.chosen is None:
            raise NoProcessError(self.why_none)
        return Chosen(self.chosen, pod, {})

    def kill_first(
        self,
        pod: Pod,
        used_bytes: int | None,
        *,
        counts_shared: bool = True,
        wanted_bytes: int | None = None,
    ) -> Chosen:
        chosen = self.choose(pod, used_bytes, counts_shared=counts_shared, wanted_bytes=wanted_bytes)
        self.kill(chosen)
        return chosen

    def kill(self, chosen: Chosen) -> None:
        if not self.is_there:
            raise NoProcessError(f"process {chosen.process.pid} is not in its pod any more")
        self.killed.append(chosen.process.pid)
        chosen.killed_ns = time.monotonic_ns()

    async def terminate(
        self, chosen: Chosen, grace_period_seconds: float, still_wanted: Callable[[], bool] = lambda: True
    ) -> KillReport | None:
        self.terminated.append(chosen.process.pid)
        ended = await self.reap(chosen, grace_period_seconds)
        if ended.freed_ns is not None or not still_wanted():
            return None
        self.kill(chosen)
        return chosen.report()

    async def reap(self, chosen: Chosen, deadline_seconds: float = 10.0) -> ReapReport:
        with trio.move_on_after(deadline_seconds):
            await self.exited.wait()
            return ReapReport(freed_ns=time.monotonic_ns())
        late = f"process {chosen.process.pid} has not exited {deadline_seconds:g} s after SIGKILL"
        return ReapReport(freed_ns=None, problems=(late,))


def wake() -> Wake:
    return Wake(source="test", kind=WakeKind.MEMORY, at_ns=time.monotonic_ns())


@pytest.fixture
def processes() -> FakeProcesses:
    return FakeProcesses()


@pytest.fixture
def make(make_loop, make_pod, observation, processes):
    """Return a maker of loops with a pod of which one process is killed, and one of which all are."""

    def maker(*thresholds, **options):
        loop = make_loop(*thresholds, one_process=processes, **options)
        session = replace(make_pod("session"), process_victim=ProcessVictim(entry="unit session"))
        loop.have(session, make_pod("other", request_bytes=64 * MIB))
        loop.populated = {"uid-session", "uid-other"}
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(80 * MIB)}
        return loop

    return maker


def document(record: PassRecord) -> dict:
    return record.document()["evictions"][0]


async def test_one_process_is_killed_and_the_pod_lives_on(make, processes):
    loop = make()

    record = loop.passes.make([wake()])

    assert ([TAB.pid], []) == (processes.killed, loop.kills.killed)
    assert [("session", 50 * MIB)] == processes.asked
    assert record.times.killed_ns is not None
    told = document(record)
    assert ("process-killed", True, 40 * MIB) == (told["outcome"], told["pod_lives"], told["credited_bytes"])
    assert {"pid": TAB.pid, "name": "tab\\x1b[2J", "bytes": 40 * MIB} == told["process"]
    assert () == loop.known.state.in_flight
    assert not loop.known.under_way.at("uid-session", time.monotonic_ns())


async def test_its_memory_is_waited_for_and_then_the_next_goes(make, processes):
    loop = make()
    loop.known.victims.exited = lambda _: frozenset()  # it is there
    loop.passes.make([wake()])
    loop.now_seconds += 0.01

    record = loop.passes.make([wake()])

    assert "40Mi still to be freed by process" in record.decision.deferred_because
    loop.known.victims.exited = lambda victims: {victim.pid for victim in victims}
    loop.now_seconds += 0.01
    loop.passes.make([wake()])
    assert 2 == len(processes.killed)


async def test_what_is_dying_of_the_pod_is_not_its_own_any_more(make, processes):
    loop = make()
    loop.known.victims.exited = lambda _: frozenset()
    processes.chosen = replace(TAB, anonymous_bytes=15 * MIB)  # not enough
    loop.passes.make([wake()])
    loop.now_seconds += 0.01
    loop.passes.make([wake()])
    assert [("session", 50 * MIB), ("session", 35 * MIB)] == processes.asked


async def test_after_three_without_effect_the_whole_pod_goes_and_says_why(make, processes):
    loop = make()
    outcomes = []
    for _ in range(4):
        loop.now_seconds += 0.01
        outcomes.append(loop.passes.make([wake()]).attempts[0])
    assert ["process-killed"] * 3 + ["killed"] == [one.outcome for one in outcomes]
    assert ["session"] == loop.kills.killed
    told = attempt_document(outcomes[-1])
    assert (None, False) == (told["process"], told["pod_lives"])
    assert "holds as much as before" in told["whole_because"]


async def test_after_a_kill_that_brought_nothing_back_shared_memory_does_not_count(make, processes):
    loop = make()
    loop.passes.make([wake()])
    processes.exited.set()
    await trio.testing.wait_all_tasks_blocked()
    loop.known.state = loop.known.state._replace(claims=())
    loop.now_seconds += 1
    loop.passes.make([wake()])
    assert [True, False] == processes.counted_shared


@pytest.mark.parametrize("error", [NoProcessError("many small ones"), OSError(24, "Too many open files")])
async def test_where_no_process_is_chosen_the_whole_pod_goes_and_says_why(make, processes, error):
    loop = make()

    def fail(pod, used_bytes, *, counts_shared, wanted_bytes):
        raise error

    processes.choose = fail
    record = loop.passes.make([wake()])
    assert ["session"] == loop.kills.killed
    assert str(error) == document(record)["whole_because"]
    assert ["uid-session"] == [flight.uid for flight in loop.known.state.in_flight]


async def test_pods_without_the_rule_are_evicted_as_ever(make, make_pod, processes):
    loop = make()
    loop.have(make_pod("session"))
    record = loop.passes.make([wake()])
    assert (["session"], []) == (loop.kills.killed, processes.asked)
    assert (None, None, False) == tuple(
        document(record)[key] for key in ("process", "whole_because", "pod_lives")
    )


async def test_a_soft_eviction_asks_first_and_kills_at_the_end(
    make, make_threshold, processes, autojump_clock, observation
):
    loop = make(make_threshold(100 * MIB, grace_period_seconds=0.001), max_pod_grace_period_seconds=5)
    loop.passes.make([wake()])
    loop.now_seconds += 1
    (attempt,) = loop.passes.make([wake()]).attempts
    assert ("ordered", TAB) == (attempt.outcome, attempt.process)
    assert [40 * MIB] == [claim.amount for claim in loop.known.state.in_flight]
    await trio.sleep(4)
    assert ([TAB.pid], []) == (processes.terminated, processes.killed)
    loop.now_seconds += 4.5
    await trio.sleep(1.5)
    assert [TAB.pid] == processes.killed
    assert "process-killed" == attempt.outcome
    assert () == loop.known.state.in_flight
    assert [TAB.pid] == [claim.pid for claim in loop.known.state.killed_alone]
    processes.exited.set()
    await attempt.ended.wait()
    assert attempt.freed_ns is not None
    assert [] == loop.kills.killed


async def test_a_soft_eviction_is_over_where_the_process_ends_by_itself(
    make, make_threshold, processes, autojump_clock
):
    loop = make(make_threshold(100 * MIB, grace_period_seconds=0.001), max_pod_grace_period_seconds=5)
    loop.passes.make([wake()])
    loop.now_seconds += 1
    (attempt,) = loop.passes.make([wake()]).attempts
    processes.exited.set()
    await attempt.ended.wait()
    assert ("process-terminated", []) == (attempt.outcome, processes.killed)
    assert attempt_document(attempt)["pod_lives"]
    assert () == loop.known.state.in_flight


@pytest.mark.parametrize("is_back", [True, False])
async def test_at_the_end_of_its_grace_period_it_is_asked_again_whether_to_kill(
    make, make_threshold, processes, autojump_clock, observation, *, is_back
):
    loop = make(make_threshold(100 * MIB, grace_period_seconds=0.001), max_pod_grace_period_seconds=5)
    loop.passes.make([wake()])
    loop.now_seconds += 1
    (attempt,) = loop.passes.make([wake()]).attempts
    if is_back:
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(300 * MIB)}
    else:
        processes.is_there = False  # it has left the pod
    await attempt.ended.wait()
    assert ("called off" if is_back else "failed") == attempt.outcome
    assert [] == processes.killed
    assert () == loop.known.state.in_flight


async def test_a_hard_eviction_overtakes_the_soft_one_of_a_process(
    make, make_threshold, processes, autojump_clock, observation
):
    soft, hard = make_threshold(100 * MIB, grace_period_seconds=0.001), make_threshold(70 * MIB)
    loop = make(soft, hard, max_pod_grace_period_seconds=5)
    loop.passes.make([wake()])
    loop.now_seconds += 1
    (first,) = loop.passes.make([wake()]).attempts
    await trio.sleep(0.1)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(60 * MIB)}
    loop.now_seconds += 0.1
    (second,) = loop.passes.make([wake()]).attempts
    await first.ended.wait()
    assert ("pre-empted", "process-killed") == (first.outcome, second.outcome)
    assert [TAB.pid] == processes.killed
    assert () == loop.known.state.in_flight
    assert [TAB.pid] == [claim.pid for claim in loop.known.state.killed_alone]


async def test_a_dry_run_names_the_process_and_kills_none(make, processes):
    loop = make(dry_run=True)
    record = loop.passes.make([wake()])
    told = document(record)
    assert ("dry-run", TAB.pid) == (told["outcome"], told["process"]["pid"])
    assert ([], []) == (processes.killed, loop.kills.killed)


async def test_one_that_does_not_exit_is_a_problem_of_the_record(make, processes, autojump_clock):
    loop = make()
    (attempt,) = loop.passes.make([wake()]).attempts
    await attempt.ended.wait()
    assert attempt.freed_ns is None
    assert "has not exited 10 s after SIGKILL" in attempt.problems[0]


async def test_near_a_crossing_the_choice_is_prepared_and_renewed(make, processes, observation):
    loop = make()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(110 * MIB)}
    loop.passes.make([wake()])
    assert ["session", "other"] == processes.prepared[-1]
    assert not loop.passes.approach.is_due(loop.now_seconds + 0.4)
    assert loop.passes.approach.is_due(loop.now_seconds + 0.6)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(400 * MIB)}
    loop.passes.make([wake()])
    assert [] == processes.prepared[-1]
    assert not loop.passes.approach.is_due(loop.now_seconds + 60)


async def test_what_prepares_the_choice_gives_way_to_a_crossing_which_no_event_has_to_report(
    make, processes, observation
):
    loop = make()
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(110 * MIB)}

    def cross() -> None:
        loop.now_seconds += 0.005
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(90 * MIB)}

    processes.meanwhile = cross
    # Usage is at the level by then, which the last stretch leaves to the pass that has seen it.
    levels = SimpleNamespace(usage_bytes=lambda _: None)
    passes = WakePasses(loop.passes, levels, lambda _: None)

    passes.on_memory_wake((wake(),))

    assert [False, True] == processes.gave_way
    assert [TAB.pid] == processes.killed


async def test_a_restart_resumes_no_eviction_of_a_process_but_knows_of_them(
    make, make_threshold, processes, autojump_clock, tmp_path
):
    loop = make(make_threshold(100 * MIB, grace_period_seconds=0.001), max_pod_grace_period_seconds=5)
    loop.passes.make([wake()])
    loop.now_seconds += 1
    loop.passes.make([wake()])
    file = StateFile(tmp_path / "state.json")
    assert file.save(loop.known.state)
    assert [40 * MIB] == [claim.amount for claim in file.load().in_flight]
    kills = loop.known.state.process_kills
    assert restore(file, loop.known) is None
    assert () == loop.known.state.in_flight
    assert (
        ["uid-session"] == [one.uid for one in kills] == [one.uid for one in loop.known.state.process_kills]
    )


async def test_ranking_and_status_say_that_it_is_one_process(make):
    loop = make()
    record = loop.passes.make([wake()])
    place = record.decision.ranking[0]
    assert "one process of it is killed, not the pod" in why_ranked(place, Resource.MEMORY)
    assert "one process" not in why_ranked(place, Resource.PIDS)
    done = what_was_done(record.document())
    assert done.startswith(f"process-killed tab\\x1b[2J (process {TAB.pid}, 40Mi) of cgroup/session after ")


async def test_it_is_counted_apart_from_evicted_pods(make, processes):
    loop = make()
    tally = Tally()
    record = loop.passes.make([wake()])
    tally.observe_attempt(record.attempts[0])
    assert [("memory.available", "process-killed", 1)] == tally.document()["process_evictions"]
    assert [] == tally.document()["evictions"]
