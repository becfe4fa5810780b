"""A pass waits for what the kernel's OOM killer has killed, and only as long as that is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from reactor.guard.termination import Victims
from reactor.model.decisions import Claim, ClaimKind
from reactor.model.kills import OomKill, OomScope
from reactor.model.pods import PodUsage
from reactor.model.signals import Resource, Signal
from reactor.model.wakes import Wake, WakeKind
from reactor.policy.claims import STILL_SECONDS
from tests.support.builders import make_claim
from tests.support.this_machine import open_descriptors

MIB = 1 << 20
WAKE = Wake(source="ebpf-oom", kind=WakeKind.MEMORY, at_ns=1)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


def kill_of(pid: int | None) -> OomKill:
    return OomKill(
        source="ebpf-oom",
        scope=OomScope.NODE,
        at_ns=1,
        pid=pid,
        victim_bytes=None if pid is None else 250 * MIB,
        victim_cgroup="/node/hog/app",
    )


def dying(pid: int | None) -> Claim:
    return make_claim(kind=ClaimKind.KERNEL_KILL, pid=pid, amount=1)


async def test_woken_by_the_kernels_own_kill_a_pass_kills_no_other_pod(
    make_loop, make_pod, observation, victim
):
    loop = make_loop()
    loop.have(make_pod("hog"), make_pod("one"), make_pod("two"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(0)}

    loop.passes.observations.oom_killed(kill_of(victim.pid))
    for _ in range(3):
        record = loop.passes.make([WAKE])
        loop.now_seconds += 0.02

    assert loop.kills.killed == []
    assert f"process {victim.pid}" in record.decision.deferred_because
    assert [one.uid for one in loop.known.state.claims] == ["uid-hog"]


async def test_kill_that_the_pass_itself_finds_is_waited_for(make_loop, make_pod, observation, victim):
    loop = make_loop()
    loop.have(make_pod("hog"), make_pod("one"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(0)}
    untold = [kill_of(victim.pid)]
    loop.oom_kills = lambda: [untold.pop()] if untold else ()

    loop.passes.make([WAKE])

    assert loop.kills.killed == []


async def test_memory_is_read_again_where_a_victim_has_exited_since(make_loop, make_pod, observation, victim):
    loop = make_loop()
    loop.have(make_pod("hog"), make_pod("one"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(0)}
    loop.passes.observations.oom_killed(kill_of(victim.pid))

    def exits() -> None:
        victim.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
        loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(250 * MIB)}

    loop.usages.meanwhile = exits
    loop.passes.make([WAKE])

    assert loop.kills.killed == []
    assert loop.known.state.claims == ()


async def test_pod_is_evicted_once_the_victim_is_gone_and_it_was_not_enough(
    make_loop, make_pod, observation, victim
):
    loop = make_loop()
    loop.have(make_pod("one"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(0)}
    loop.passes.observations.oom_killed(kill_of(victim.pid))
    loop.passes.make([WAKE])
    victim.kill()
    victim.wait()

    loop.now_seconds += 0.02
    loop.passes.make([WAKE])

    assert loop.kills.killed == ["one"]


async def test_kill_that_is_found_while_there_is_memory_does_not_look_fresh_at_a_later_crossing(
    make_loop, make_pod, observation
):
    loop = make_loop()
    loop.have(make_pod("one"))
    untold = [kill_of(None)]
    loop.oom_kills = lambda: [untold.pop()] if untold else ()

    loop.passes.make([WAKE])
    loop.now_seconds += 2 * STILL_SECONDS
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(0)}
    loop.passes.make([WAKE])

    assert loop.kills.killed == ["one"]


def counted_kill() -> OomKill:
    return replace(kill_of(None), victim_cgroup=None)


def hold(loop, name: str, mib: int) -> None:
    loop.usages.seen[f"uid-{name}"] = PodUsage(memory_working_set_bytes=mib * MIB)


async def test_hog_is_evicted_at_once_where_the_pod_that_the_kernel_killed_in_holds_nothing_any_more(
    make_loop, make_pod, observation
):
    loop = make_loop()
    loop.have(make_pod("struck"), make_pod("hog"), working_set_bytes=200 * MIB)
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(0)}
    untold = [counted_kill()]
    loop.oom_kills = lambda: [untold.pop()] if untold else ()

    loop.passes.make([WAKE])  # the kernel has counted the OOM, not yet the kill
    assert loop.kills.killed == []
    loop.oom_struck = ("uid-struck",)
    loop.now_seconds += 0.02
    loop.passes.make([WAKE])  # it is giving back
    assert loop.kills.killed == []
    hold(loop, "struck", 0)
    loop.now_seconds += 0.02
    loop.passes.make([WAKE])

    assert loop.kills.killed == ["hog"]


async def test_page_cache_that_a_victim_leaves_is_not_waited_for(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("struck"), make_pod("hog"), working_set_bytes=200 * MIB)
    hold(loop, "struck", 150)
    loop.usages.cached["uid-struck"] = 150 * MIB
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(0)}
    loop.passes.observations.oom_killed(counted_kill())
    loop.oom_struck = ("uid-struck",)

    loop.passes.make([WAKE])

    assert loop.kills.killed == ["hog"]


async def test_pod_that_can_not_be_read_is_waited_for_as_a_victim_of_which_nothing_is_known(
    make_loop, make_pod, observation
):
    loop = make_loop()
    loop.have(make_pod("struck"), make_pod("hog"))
    loop.usages.seen["uid-struck"] = PodUsage(unreadable=frozenset({Resource.MEMORY}))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(0)}
    loop.passes.observations.oom_killed(counted_kill())
    loop.oom_struck = ("uid-struck",)

    loop.passes.make([WAKE])
    assert loop.kills.killed == []
    loop.now_seconds += STILL_SECONDS
    loop.passes.make([WAKE])

    assert loop.kills.killed != []


async def test_pod_that_is_gone_is_not_waited_for(make_loop, make_pod, observation):
    loop = make_loop()
    loop.have(make_pod("hog"))
    loop.node.memory_seen = {Signal.MEMORY_AVAILABLE: observation(0)}
    loop.passes.observations.oom_killed(counted_kill())
    loop.oom_struck = ("uid-gone",)

    loop.passes.make([WAKE])

    assert loop.kills.killed == ["hog"]


async def test_counters_of_pods_are_taken_with_the_housekeeping_and_not_at_a_crossing(make_loop):
    loop = make_loop()
    loop.passes.make([WAKE])
    assert loop.recounts == 0
    loop.passes.make([WAKE, replace(WAKE, kind=WakeKind.HOUSEKEEPING)])
    loop.passes.make([])
    assert loop.recounts == 2


def test_process_that_never_was_has_exited() -> None:
    victims = Victims()
    victims.hold(2**22 + 1)  # above the kernel's greatest process id
    assert victims.exited([dying(2**22 + 1), dying(None)]) == {2**22 + 1}


def test_victim_that_no_descriptor_can_be_had_of_has_not_exited(monkeypatch, victim) -> None:
    def refuse(_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    victims = Victims()
    victims.hold(victim.pid)
    assert victims.exited([dying(victim.pid)]) == frozenset()
    victims.close()


def test_descriptors_are_let_go_of_with_their_victims(victim) -> None:
    before = open_descriptors()
    victims = Victims()
    victims.hold(victim.pid)
    victims.hold(victim.pid)
    assert victims.exited([dying(victim.pid)]) == frozenset()
    assert victims.exited([]) == frozenset()
    assert open_descriptors() == before
    victims.close()


async def test_status_reports_what_is_waited_for(make_view, victim) -> None:
    loop, view, _ = make_view()
    loop.passes.observations.oom_killed(kill_of(victim.pid))
    (told,) = view().status()["oom_victims"]
    assert (told["pid"], told["victim_bytes"], told["credited_bytes"]) == (victim.pid, 250 * MIB, 250 * MIB)
    assert told["given_up_in_seconds"] == 10.0
    loop.known.victims.close()
