from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import cast

import pytest
import trio

from reactor.act import processes
from reactor.act.one_process import hold_first
from reactor.act.processes import SignalSweep
from reactor.act.target import Target
from reactor.errors import RefusedError
from reactor.kernel.cgroup_directory import CgroupDirectory
from reactor.kernel.files import Reserve
from reactor.kernel.procfs import PROC
from reactor.model.kills import ProcessMemory
from reactor.model.pod_lists import ProcessVictim, VictimUnit
from reactor.model.pods import Pod


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "100"]) as child:
        yield child
        child.kill()


async def test_waiting_returns_when_the_processes_have_ended(sleeper: subprocess.Popen[bytes]) -> None:
    held = processes.open_pidfds([sleeper.pid]).pidfds
    async with trio.open_nursery() as nursery:
        nursery.start_soon(processes.wait_exited, held.values())
        await trio.testing.wait_all_tasks_blocked()
        sleeper.kill()
    assert -signal.SIGKILL == sleeper.wait(0)
    processes.close_all(held.values())


def test_a_process_that_is_gone_has_no_pidfd_and_the_others_have(sleeper: subprocess.Popen[bytes]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    opened = processes.open_pidfds([gone.pid, sleeper.pid])
    processes.close_all(opened.pidfds.values())
    assert ([sleeper.pid], 2, {}) == (list(opened.pidfds), opened.tried, opened.refused)


def test_a_descriptor_that_can_not_be_closed_keeps_no_other_open() -> None:
    first, second = os.pipe()
    os.close(first)
    processes.close_all([first, second])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(second)


def test_a_tree_of_more_processes_than_there_are_descriptors_keeps_none_of_them_open(tmp_path: Path) -> None:
    children = [subprocess.Popen(["sleep", "100"]) for _ in range(8)]
    pids = [child.pid for child in children]
    tree = [
        ProcessMemory(pid=pid, name="x", anonymous_bytes=1, shared_bytes=0, swap_bytes=0, parent_pid=pids[0])
        for pid in pids
    ]
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    target = Target("/pod", CgroupDirectory.open(str(tmp_path), "/pod"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = sorted(os.listdir("/proc/self/fd"))
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (next(fd for fd in count() if str(fd) not in before) + 2, hard)
    )
    try:
        with pytest.raises(OSError, match="Too many open files"):
            hold_first(
                Pod(
                    name="pod",
                    namespace="",
                    uid="pod",
                    process_victim=ProcessVictim(entry="x", unit=VictimUnit.TREE),
                ),
                target,
                tree,
                wanted_bytes=None,
                reserved=(),
                proc=PROC,
            )
        assert before == sorted(os.listdir("/proc/self/fd"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        target.close()
        for child in children:
            child.kill()
            child.wait()


def test_the_reserve_is_there_when_every_other_descriptor_is_taken() -> None:
    reserve = Reserve()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.pidfd_open(os.getpid()))
        with pytest.raises(OSError, match="Too many open files"):
            os.pidfd_open(os.getpid())
        with reserve.lent():
            os.close(os.pidfd_open(os.getpid()))
        assert reserve.fill()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        processes.close_all(taken)
        reserve.close()


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    children = [subprocess.Popen(["sleep", "100"]) for _ in range(3)]
    yield children
    for child in children:
        child.kill()
        child.wait()


class Listed:
    """A cgroup without others in it that shows one listing after another, and then the last one for good."""

    cgroup = "/pod"

    def __init__(self, *listings: list[int]) -> None:
        self._listings = list(listings)
        self.looks = 0

    def processes(self) -> list[int]:
        self.looks += 1
        return self._listings.pop(0) if len(self._listings) > 1 else self._listings[0]

    def children(self) -> Sequence[str]:
        return ()


def fired(
    listed: Listed, number: signal.Signals = signal.SIGKILL, ready: Mapping[int, int] | None = None
) -> tuple[int, list[int]]:
    sweep = SignalSweep(cast("CgroupDirectory", listed), number, ready=dict(ready or {}))
    while sweep.fire():
        pass
    processes.close_all(sweep.held.values())
    assert [] == sweep.problems
    return sweep.sent, list(sweep.held)


def test_a_process_that_has_left_the_cgroup_before_the_signal_is_spared(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    first, second, third = (child.pid for child in sleepers)
    assert (1, [first]) == fired(Listed([first, second, third], [first], [first]))
    assert -signal.SIGKILL == sleepers[0].wait(60)
    assert [None, None] == [child.poll() for child in sleepers[1:]]


def test_a_process_that_is_born_during_a_round_is_signalled_in_the_next(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    pids = [child.pid for child in sleepers]
    assert (3, pids) == fired(Listed(pids[:1], pids[:1], pids))


def test_a_process_that_moves_to_another_cgroup_under_way_is_signalled_in_the_next_round(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    pid = sleepers[0].pid
    assert (1, [pid]) == fired(Listed([pid], [], [pid]))


def test_a_process_that_is_held_ready_is_signalled_without_a_second_look(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    pid = sleepers[0].pid
    listed = Listed([pid])
    sweep = SignalSweep(cast("CgroupDirectory", listed), signal.SIGKILL, ready={pid: os.pidfd_open(pid)})
    assert sweep.fire()
    assert (1, 1, [pid]) == (listed.looks, sweep.sent, list(sweep.held))
    processes.close_all(sweep.held.values())
    assert -signal.SIGKILL == sleepers[0].wait(60)


def test_a_process_that_is_held_ready_and_has_left_the_cgroup_is_not_signalled(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    inside, left, _ = (child.pid for child in sleepers)
    ready = {pid: os.pidfd_open(pid) for pid in (inside, left)}
    assert (1, [inside]) == fired(Listed([inside]), ready=ready)
    assert sleepers[1].poll() is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ready[left])


def test_who_has_the_id_of_one_that_was_held_ready_is_signalled_by_a_pidfd_of_its_own(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    gone, present, _ = sleepers
    gone_fd = os.pidfd_open(gone.pid)
    gone.kill()
    gone.wait()
    assert (1, [present.pid]) == fired(Listed([present.pid]), ready={present.pid: gone_fd})
    assert -signal.SIGKILL == present.wait(60)


def test_a_process_that_is_gone_is_passed_over() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert (0, []) == fired(Listed([child.pid]))


def test_a_process_that_is_never_meant_is_refused_and_none_with_it_is_signalled(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    listed = Listed([sleepers[0].pid, os.getpid()])
    ready = {sleepers[0].pid: os.pidfd_open(sleepers[0].pid)}
    sweep = SignalSweep(cast("CgroupDirectory", listed), signal.SIGTERM, ready=ready, never=[os.getpid()])
    with pytest.raises(RefusedError, match="reactor"):
        sweep.fire()
    assert (0, None) == (sweep.sent, sleepers[0].poll())


def test_a_round_finds_who_lives_in_the_cgroups_below_but_for_spared_ones(
    tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    for name, child in zip(("", "one/inner", "pause"), sleepers, strict=True):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "cgroup.procs").write_text(f"{child.pid}\n")
    with CgroupDirectory.open(str(tmp_path), "/") as top:
        sweep = SignalSweep(top, signal.SIGKILL, spared=["/pause"])
        while sweep.fire():
            pass
    processes.close_all(sweep.held.values())
    assert [-signal.SIGKILL] * 2 == [child.wait(60) for child in sleepers[:2]]
    assert sleepers[2].poll() is None


def test_a_directory_that_can_not_be_listed_is_a_problem_and_the_others_are_signalled(
    tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    (tmp_path / "a" / "cgroup.procs").mkdir(parents=True)  # a read gives EISDIR
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "cgroup.procs").write_text("no number\n")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "cgroup.procs").write_text(f"{sleepers[0].pid}\n")
    with CgroupDirectory.open(str(tmp_path), "/") as top:
        sweep = SignalSweep(top, signal.SIGKILL)
        sweep.fire()
        sweep.fire()
    processes.close_all(sweep.held.values())
    assert 1 == sweep.sent
    assert 2 == len(sweep.problems)
    assert "'/a' not listed: Is a directory" in sweep.problems
    assert -signal.SIGKILL == sleepers[0].wait(60)


def test_the_cgroups_own_processes_are_signalled_before_anything_below_it_is_listed(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    sweeps: list[SignalSweep] = []
    sent_before_listing: list[int] = []

    class Wide(Listed):
        def children(self) -> Sequence[str]:
            sent_before_listing.append(sweeps[0].sent)
            return ()

    sweeps.append(SignalSweep(cast("CgroupDirectory", Wide([sleepers[0].pid])), signal.SIGKILL))
    sweeps[0].fire()
    processes.close_all(sweeps[0].held.values())
    assert [1] == sent_before_listing


@pytest.mark.parametrize("most_cgroups", [1, 2, 3])
def test_a_round_that_is_cut_says_so_and_one_in_pieces_finds_the_rest(
    tmp_path: Path, sleepers: list[subprocess.Popen[bytes]], most_cgroups: int
) -> None:
    for name, child in zip(("", "one", "one/inner"), sleepers, strict=True):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "cgroup.procs").write_text(f"{child.pid}\n")
    with CgroupDirectory.open(str(tmp_path), "/") as top:
        sweep = SignalSweep(top, signal.SIGKILL)
        assert sweep.fire(most_cgroups)
        assert (most_cgroups, True) == (sweep.sent, sweep.is_cut)
        assert 3 // most_cgroups == len(list(sweep.steps(most_cgroups)))
        assert (3, most_cgroups < 3, False) == (sweep.sent, sweep.found_new_process, sweep.is_cut)
        assert not sweep.fire(4)
        assert not sweep.is_cut
    processes.close_all(sweep.held.values())
    assert [-signal.SIGKILL] * 3 == [child.wait(60) for child in sleepers]
