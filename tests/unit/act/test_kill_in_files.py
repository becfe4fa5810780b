"""The kill path on cgroups that are directories, whose processes are real: who dies, and who does not."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest
import trio

from reactor.act.kill_path import KillPath
from reactor.act.reap import Populated
from reactor.act.target import AT_ONCE
from reactor.errors import RefusedError
from reactor.kernel.cgroup import CgroupVersion
from reactor.kernel.cgroup_directory import CgroupDirectory
from reactor.model.pods import Pod
from tests.support.processes import PAUSE
from tests.support.this_machine import open_descriptors
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.unit.conftest import FakeTree, FakeTreeMaker

STUBBORN: Final = (
    "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(flush=True)\nsignal.pause()"
)
CONTROLLERS: Final = ("memory", "pids", "cpu", "freezer")


class Cgroups:
    """Cgroups below /pods; each lists those of its processes that live, once `settle` was called."""

    def __init__(self, fake: FakeTree) -> None:
        self.fake = fake
        self._living: dict[str, list[subprocess.Popen[bytes]]] = {}
        fake.add("/pods")

    def add(self, cgroup: str, processes: int = 0) -> list[subprocess.Popen[bytes]]:
        """Make a cgroup of so many processes."""
        self.fake.add(cgroup)
        return [self._enter(cgroup, subprocess.Popen(PAUSE)) for _ in range(processes)]

    def add_stubborn(self, cgroup: str) -> subprocess.Popen[bytes]:
        """Have a process that ignores SIGTERM in a cgroup."""
        process = subprocess.Popen([sys.executable, "-S", "-c", STUBBORN], stdout=subprocess.PIPE)
        assert process.stdout
        process.stdout.readline()
        return self._enter(cgroup, process)

    def settle(self) -> None:
        """Have the cgroups list nobody who has ended."""
        for cgroup, processes in self._living.items():
            living = [process.pid for process in processes if process.poll() is None]
            for controller in CONTROLLERS:
                self.fake.file(cgroup, "cgroup.procs", "".join(f"{pid}\n" for pid in living), controller)

    async def keep_settling(self) -> None:
        while True:
            self.settle()
            await trio.sleep(0.01)

    def end(self) -> None:
        for process in (one for processes in self._living.values() for one in processes):
            process.kill()
            process.communicate()

    def _enter(self, cgroup: str, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        self._living.setdefault(cgroup, []).append(process)
        self.settle()
        return process


def of(cgroup: str | None, **more: object) -> Pod:
    return Pod(name="pod", namespace="test", uid="1", cgroup=cgroup, **more)


def ends(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    return [process.wait(60) for process in processes]


@pytest.fixture
def cgroups(fake: FakeTree) -> Iterator[Cgroups]:
    made = Cgroups(fake)
    yield made
    made.end()


@pytest.fixture
def v2(make_tree: FakeTreeMaker) -> Iterator[Cgroups]:
    made = Cgroups(make_tree(CgroupVersion.V2))
    yield made
    made.end()


@pytest.fixture
def kills(cgroups: Cgroups) -> Iterator[KillPath]:
    with closing(KillPath(cgroups.fake.tree, ("/pods",))) as path:
        yield path


@pytest.mark.parametrize("prepared", [False, True])
def test_every_process_in_the_pod_is_killed_however_deep_and_none_beside_it(
    cgroups: Cgroups, kills: KillPath, *, prepared: bool
) -> None:
    victims = [*cgroups.add("/pods/pod", 1), *cgroups.add("/pods/pod/a", 2), *cgroups.add("/pods/pod/a/b", 1)]
    (beside,) = cgroups.add("/pods/other", 1)
    if prepared:
        kills.prepare([of("/pods/pod")])
    began_ns = time.monotonic_ns()
    report = kills.kill_now(of("/pods/pod"))
    assert [-signal.SIGKILL] * 4 == ends(victims)
    assert (4, False) == (report.processes, report.is_gone)
    assert began_ns <= report.killed_ns
    assert beside.poll() is None


def test_what_a_pod_spares_lives(cgroups: Cgroups, kills: KillPath) -> None:
    (pause,) = cgroups.add("/pods/pod/sandbox", 1)
    victims = cgroups.add("/pods/pod/container", 2)
    kills.kill_now(of("/pods/pod", spared_cgroups=("/pods/pod/sandbox",)))
    assert [-signal.SIGKILL] * 2 == ends(victims)
    assert pause.poll() is None


def test_where_there_is_cgroup_kill_the_pods_own_is_written_and_no_other(v2: Cgroups) -> None:
    for cgroup in ("/pods", "/pods/pod", "/pods/pod/a", "/pods/other"):
        v2.add(cgroup)
        v2.fake.file(cgroup, "cgroup.kill", "")
    with closing(KillPath(v2.fake.tree, ("/pods",))) as kills:
        kills.kill_now(of("/pods/pod"))
    written = {
        cgroup: v2.fake.read(cgroup, "cgroup.kill") for cgroup in ("/pods", "/pods/pod", "/pods/other")
    }
    assert {"/pods": "", "/pods/pod": "1", "/pods/other": ""} == written


def test_where_something_is_spared_cgroup_kill_of_all_the_others_is_written(v2: Cgroups) -> None:
    for cgroup in ("/pods/pod", "/pods/pod/sandbox", "/pods/pod/a", "/pods/pod/b"):
        v2.add(cgroup)
        v2.fake.file(cgroup, "cgroup.kill", "")
    with closing(KillPath(v2.fake.tree, ("/pods",))) as kills:
        kills.kill_now(of("/pods/pod", spared_cgroups=("/pods/pod/sandbox",)))
    written = [v2.fake.read(f"/pods/pod{name}", "cgroup.kill") for name in ("", "/sandbox", "/a", "/b")]
    assert ["", "", "1", "1"] == written


@pytest.mark.parametrize(
    "cgroup", [None, "/pods", "/elsewhere/pod", "/pods/../elsewhere/pod", "/podsand/pod"]
)
async def test_pod_that_is_not_inside_the_parents_is_refused_in_each_way_of_ending_it(
    cgroups: Cgroups, kills: KillPath, cgroup: str | None
) -> None:
    living = [
        *cgroups.add("/pods/pod", 1),
        *cgroups.add("/elsewhere/pod", 1),
        *cgroups.add("/podsand/pod", 1),
    ]
    kills.prepare([of(cgroup)])
    with pytest.raises(RefusedError):
        kills.kill_now(of(cgroup))
    with pytest.raises(RefusedError):
        await kills.terminate(of(cgroup), 0.0)
    with pytest.raises(RefusedError):
        await kills.reap(of(cgroup), 0.1)
    assert [None] * 3 == [process.poll() for process in living]


def test_a_pod_that_was_renamed_is_killed_and_what_has_its_name_by_now_lives(
    make_tree: FakeTreeMaker,
) -> None:
    fake = make_tree(CgroupVersion.V1)
    cgroups = Cgroups(fake)
    try:
        hog, innocent = (cgroups.add(f"/pods/{name}", 1)[0] for name in ("hog", "innocent"))
        pod = of("/pods/hog", cgroup_inode=fake.directory("/pods/hog").stat().st_ino)
        first, between, second = (fake.directory(f"/pods/{name}") for name in ("hog", "between", "innocent"))
        first.rename(between)
        second.rename(first)
        between.rename(second)
        with closing(KillPath(fake.tree, ("/pods",))) as kills:
            report = kills.kill_now(pod)
        assert -signal.SIGKILL == hog.wait(60)
        assert (1, False) == (report.processes, report.is_gone)
        assert innocent.poll() is None
    finally:
        cgroups.end()


async def test_cgroup_that_has_gone_or_is_anothers_by_now_is_a_kill_of_no_process(
    cgroups: Cgroups, kills: KillPath
) -> None:
    (successor,) = cgroups.add("/pods/pod", 1)
    inode = os.stat(cgroups.fake.directory("/pods/pod")).st_ino
    for pod in (of("/pods/gone"), of("/pods/pod", cgroup_inode=inode + 1)):
        kills.prepare([pod])
        report = kills.kill_now(pod)
        assert (True, 0) == (report.is_gone, report.processes)
        asked = await kills.terminate(pod, 0.0)
        assert asked is not None
        assert asked.is_gone
    assert successor.poll() is None


async def test_reap_waits_until_no_process_is_left(cgroups: Cgroups, kills: KillPath) -> None:
    victims = cgroups.add("/pods/pod", 3)
    report = kills.kill_now(of("/pods/pod"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cgroups.keep_settling)
        reaped = await kills.reap(of("/pods/pod"), 20)
        nursery.cancel_scope.cancel()
    assert reaped.freed_ns is not None
    assert reaped.freed_ns >= report.killed_ns
    assert [-signal.SIGKILL] * 3 == ends(victims)


async def test_reap_says_who_has_not_ended_by_its_deadline(cgroups: Cgroups, kills: KillPath) -> None:
    cgroups.add("/pods/pod", 2)
    kills.kill_now(of("/pods/pod"))
    # The listing stays as it was: processes that nothing reaps.
    reaped = await kills.reap(of("/pods/pod"), 0.3)
    assert reaped.freed_ns is None
    assert any("2 processes still listed 0.3 s after the kill" in problem for problem in reaped.problems)


async def test_who_obeys_is_not_killed_and_who_does_not_is_after_the_grace_period(
    cgroups: Cgroups, kills: KillPath
) -> None:
    (mild,) = cgroups.add("/pods/mild", 1)
    cgroups.add("/pods/pod")
    stubborn = cgroups.add_stubborn("/pods/pod")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cgroups.keep_settling)
        with trio.fail_after(90):
            assert None is await kills.terminate(of("/pods/mild"), 3600)
        report = await kills.terminate(of("/pods/pod"), 0.2)
        nursery.cancel_scope.cancel()
    assert report is not None
    assert 1 == report.processes
    assert [-signal.SIGTERM, -signal.SIGKILL] == ends([mild, stubborn])


async def test_who_is_not_wanted_any_more_at_the_end_of_the_grace_period_lives(
    cgroups: Cgroups, kills: KillPath
) -> None:
    cgroups.add("/pods/pod")
    stubborn = cgroups.add_stubborn("/pods/pod")
    assert None is await kills.terminate(of("/pods/pod"), 0.1, lambda: False)
    assert stubborn.poll() is None


async def test_kill_cuts_the_grace_period_of_the_same_pod_short(cgroups: Cgroups, kills: KillPath) -> None:
    cgroups.add("/pods/pod")
    stubborn = cgroups.add_stubborn("/pods/pod")
    outcome: list[object] = []

    async def terminate() -> None:
        outcome.append(await kills.terminate(of("/pods/pod"), 3600))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cgroups.keep_settling)
        nursery.start_soon(terminate)
        await trio.sleep(0.05)
        assert [] == outcome
        kills.kill_now(of("/pods/pod"))
        await until(lambda: outcome, "the end of the grace period")
        nursery.cancel_scope.cancel()
    assert [None] == outcome
    assert [-signal.SIGKILL] == ends([stubborn])


async def test_of_what_lies_behind_a_patterns_fence_only_what_it_matches_is_killed(
    cgroups: Cgroups, kills: KillPath
) -> None:
    (session,) = cgroups.add("/pods/user-1/session/shell", 1)
    (hog,) = cgroups.add("/pods/user-1/app/hog", 1)
    kills.guard(["/pods/user-*/app"])
    with pytest.raises(RefusedError, match=r"is not inside /pods/user-\*/app"):
        kills.kill_now(of("/pods/user-1/session/shell"))
    kills.kill_now(of("/pods/user-1/app/hog"))
    assert [-signal.SIGKILL] == ends([hog])
    assert session.poll() is None


async def test_parents_that_are_not_guarded_any_more_protect_their_pods(
    cgroups: Cgroups, kills: KillPath
) -> None:
    (process,) = cgroups.add("/pods/pod", 1)
    kills.prepare([of("/pods/pod")])
    kills.guard(["/others"])
    with pytest.raises(RefusedError, match="is not inside /others"):
        kills.kill_now(of("/pods/pod"))
    assert process.poll() is None


async def test_a_kill_leaves_no_descriptor(cgroups: Cgroups) -> None:
    before = open_descriptors()
    victims = cgroups.add("/pods/pod", 3)
    with closing(KillPath(cgroups.fake.tree, ("/pods",))) as kills:
        kills.prepare([of("/pods/pod")])
        kills.kill_now(of("/pods/pod"))
        ends(victims)
        cgroups.settle()
        await kills.reap(of("/pods/pod"), 20)
    await until(lambda: open_descriptors() <= before, "no descriptor more than before")


@pytest.mark.slow
async def test_a_pod_of_too_many_cgroups_for_one_go_is_not_said_to_be_empty_and_reap_ends_what_is_in_them(
    make_tree: FakeTreeMaker,
) -> None:
    cgroups = Cgroups(make_tree(CgroupVersion.V1))
    cgroups.add("/pods/pod")
    for number in range(300):
        cgroups.add(f"/pods/pod/{number}")
    with closing(KillPath(cgroups.fake.tree, ("/pods",))) as kills:
        report = kills.kill_now(of("/pods/pod"))
        assert (False, ()) == (report.is_empty, report.problems)
        victims = [one for number in (0, 150, 299) for one in cgroups.add(f"/pods/pod/{number}/late", 1)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cgroups.keep_settling)
            reaped = await kills.reap(of("/pods/pod"), 20)
            nursery.cancel_scope.cancel()
        assert (True, ()) == (reaped.freed_ns is not None, reaped.problems)
    assert [-signal.SIGKILL] * 3 == ends(victims)


def test_a_pod_is_empty_where_the_kernel_says_so_however_many_cgroups_are_in_it(v2: Cgroups) -> None:
    v2.add("/pods/pod/a")  # and no memory controller in the pod itself
    v2.add("/pods/pod/a/b", 1)  # which is not listed to find that out
    v2.fake.file("/pods/pod", "cgroup.events", "populated 0\nfrozen 0\n")
    assert Populated(v2.fake.tree)(of("/pods/pod")) is False
    v2.fake.file("/pods/pod", "cgroup.events", "populated 1\nfrozen 0\n")
    assert Populated(v2.fake.tree)(of("/pods/pod"))


def test_a_pod_beside_whose_sandbox_the_kernel_says_that_no_process_lives_is_empty(v2: Cgroups) -> None:
    pod = of("/pods/pod", spared_cgroups=("/pods/pod/pause",))
    v2.add("/pods/pod/pause", 1)
    v2.add("/pods/pod/main/inner", 1)
    v2.fake.file("/pods/pod/pause", "cgroup.events", "populated 1\nfrozen 0\n")
    v2.fake.file("/pods/pod/main", "cgroup.events", "populated 0\nfrozen 0\n")
    assert Populated(v2.fake.tree)(pod) is False
    v2.fake.file("/pods/pod/main", "cgroup.events", "populated 1\nfrozen 0\n")
    assert Populated(v2.fake.tree)(pod)


def test_of_a_pod_that_can_not_be_asked_for_its_processes_nothing_is_known(cgroups: Cgroups) -> None:
    cgroups.add("/pods/pod", 1)
    assert Populated(cgroups.fake.tree)(of("/pods/pod"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert Populated(cgroups.fake.tree)(of("/pods/pod")) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each cgroup is added whose processes are listed."""
    listed: list[str] = []
    list_in = CgroupDirectory.processes

    def processes(directory: CgroupDirectory, most: int | None = None) -> list[int]:
        listed.append(directory.cgroup)
        return list_in(directory, most)

    monkeypatch.setattr(CgroupDirectory, "processes", processes)
    return listed


def crowd(cgroups: Cgroups, name: str = "/pods/pod") -> Pod:
    """Return a pod with so many cgroups that they are listed in five pieces."""
    for number in range(4 * AT_ONCE):
        cgroups.add(f"{name}/{number}")
    cgroups.add(name)
    return of(name)


def test_of_a_pod_with_very_many_cgroups_a_few_are_listed_at_a_time(
    cgroups: Cgroups, listed: list[str]
) -> None:
    """Each pass asks it of each pod that was evicted: of 8,000 cgroups on v1 that took 250 ms."""
    pod, is_populated, fds = crowd(cgroups), Populated(cgroups.fake.tree), open_descriptors()

    assert [None] * 4 == [is_populated(pod) for _ in range(4)]
    assert len(listed) == len(set(listed)) == 4 * AT_ONCE
    assert is_populated(pod) is False
    cgroups.add(listed[4 * AT_ONCE - 1], 1)
    assert [None, None, None, True] == [is_populated(pod) for _ in range(4)]
    assert fds == open_descriptors()


def test_once_more_is_charged_to_such_a_pod_all_of_it_is_listed(cgroups: Cgroups, listed: list[str]) -> None:
    """A hog behind thousands of cgroups is found by the pass that it wakes."""
    pod, is_populated = crowd(cgroups), Populated(cgroups.fake.tree)
    for seen_mib, count in ((300, AT_ONCE), (100, AT_ONCE), (101, AT_ONCE), (103, 4 * AT_ONCE + 1)):
        listed.clear()
        cgroups.fake.add(pod.cgroup or "", usage_bytes=seen_mib << 20)
        is_populated(pod)
        assert count == len(listed)
    last = listed[-1]
    assert is_populated(pod) is None
    cgroups.add(last, 1)
    cgroups.fake.add(pod.cgroup or "", usage_bytes=106 << 20)
    assert is_populated(pod)


def test_of_a_pod_that_is_gone_no_cgroup_is_held_open_for_that(cgroups: Cgroups) -> None:
    """Neither is of more pods than of a few."""
    fds, is_populated = open_descriptors(), Populated(cgroups.fake.tree)
    for name in ("a", "b"):
        assert is_populated(crowd(cgroups, f"/pods/{name}")) is None
        shutil.rmtree(cgroups.fake.tree.path(f"/pods/{name}"))
    assert open_descriptors() <= fds + 3
