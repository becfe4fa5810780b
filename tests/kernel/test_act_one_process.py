"""One process of a pod is chosen and killed, and no other; on v1 and on v2."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from reactor.act import one_process
from reactor.act.kill_path import KillPath
from reactor.act.one_process import NoProcessError, OneProcess, hold_first
from reactor.act.protect import Untouchable
from reactor.act.reap import MemoryRelease
from reactor.act.target import Target
from reactor.errors import RefusedError
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.procfs import PROC
from reactor.model.pod_lists import ProcessVictim, VictimUnit
from reactor.model.pods import Pod
from tests.support.processes import MIB
from tests.support.this_machine import open_descriptors
from tests.support.waiting import eventually
from tests.support.yard import FORK_STORM, Yard, home

HOLD = """
import ctypes, mmap, signal
memory = mmap.mmap(-1, {mib} << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, {mib} << 20, 4096):
    memory[offset] = 1
{more}
print("ready", flush=True)
while True:
    signal.pause()
"""
PID_MAX = 4 << 20  # no process has so high an id
NAMED = "open('/proc/self/comm', 'w').write({name!r})"


@pytest.fixture
def kills(kill_path: KillPath) -> OneProcess:
    return kill_path.one_process


def session(yard: Yard, *never: str, name: str = "session") -> Pod:
    return replace(yard.pod(name), process_victim=ProcessVictim(entry="unit session", never=never))


def holding(
    yard: Yard, cgroup: str | None, mib: int, *, name: str = "", more: str = ""
) -> subprocess.Popen[str]:
    lines = [more] if more else []
    if name:
        lines.append(NAMED.format(name=name))
    child = yard.spawn(cgroup or "", HOLD.format(mib=mib, more="\n".join(lines)))
    assert child.stdout
    assert child.stdout.readline()
    return child


def move(yard: Yard, child: subprocess.Popen[str], cgroup: str) -> None:
    for directory in yard.directories(cgroup):
        (directory / "cgroup.procs").write_text(str(child.pid))


@pytest.mark.parametrize("is_prepared", [False, True], ids=["found-at-once", "prepared"])
def test_the_largest_is_killed_and_no_other(yard: Yard, kills: OneProcess, *, is_prepared: bool) -> None:
    pod = session(yard)
    small = [holding(yard, pod.cgroup, 4) for _ in range(2)]
    large = holding(yard, pod.cgroup, 20)
    if is_prepared:
        kills.prepare([pod])
    chosen = kills.kill_first(pod, 40 * MIB)
    assert -signal.SIGKILL == large.wait(60)
    assert large.pid == chosen.process.pid
    assert chosen.process.held_bytes > 20 * MIB
    assert chosen.killed_ns is not None
    chosen.close()
    assert [None, None] == [one.poll() for one in small]


def test_one_that_came_and_one_that_grew_since_it_was_prepared_count(yard: Yard, kills: OneProcess) -> None:
    pod = session(yard)
    children = [holding(yard, pod.cgroup, 4) for _ in range(2)]
    kills.prepare([pod])
    late = holding(yard, pod.cgroup, 20)
    kills.kill_first(pod, 40 * MIB).close()
    assert -signal.SIGKILL == late.wait(60)
    assert [None, None] == [one.poll() for one in children]


def test_processes_in_cgroups_below_count_and_those_in_spared_ones_do_not(
    yard: Yard, kills: OneProcess
) -> None:
    pod = session(yard)
    below, pause = yard.make(f"{pod.cgroup}/below"), yard.make(f"{pod.cgroup}/pause")
    spared, large, small = (
        holding(yard, cgroup, mib) for cgroup, mib in ((pause, 30), (below, 20), (pod.cgroup, 5))
    )
    kills.kill_first(replace(pod, spared_cgroups=(pause,)), 60 * MIB).close()
    assert -signal.SIGKILL == large.wait(60)
    assert [None, None] == [spared.poll(), small.poll()]


def test_one_that_was_chosen_is_killed_however_many_its_tenant_has_forked_since(
    yard: Yard, kills: OneProcess
) -> None:
    pod = session(yard)
    large = holding(yard, pod.cgroup, 20)
    chosen = kills.choose(pod, 40 * MIB)
    crowd = (
        "import os, signal\nfor _ in range(300):\n    if not os.fork():\n        signal.pause()\n"
        "print('ready', flush=True)\nsignal.pause()\n"
    )
    forks = yard.spawn(pod.cgroup or "", crowd)
    assert forks.stdout
    assert forks.stdout.readline()
    kills.kill(chosen)
    assert -signal.SIGKILL == large.wait(60)
    chosen.close()
    assert forks.poll() is None


def test_names_on_the_list_and_those_of_sessions_and_shells_are_spared(yard: Yard, kills: OneProcess) -> None:
    pod = session(yard, "edit*")
    spared = [
        holding(yard, pod.cgroup, mib, name=name) for mib, name in ((30, "editor"), (28, "gnome-shell"))
    ]
    tab = holding(yard, pod.cgroup, 20)
    kills.kill_first(pod, 90 * MIB).close()
    assert -signal.SIGKILL == tab.wait(60)
    assert [None, None] == [one.poll() for one in spared]
    with pytest.raises(NoProcessError, match="may be killed alone"):
        kills.choose(pod, 58 * MIB)


def test_a_name_taken_after_it_was_prepared_counts(yard: Yard, kills: OneProcess) -> None:
    pod = session(yard)
    more = "import sys\nprint('first', flush=True)\nsys.stdin.readline()\n" + NAMED.format(name="bash")
    renamed = holding(yard, pod.cgroup, 20, more=more)
    other = holding(yard, pod.cgroup, 10)
    kills.prepare([pod])
    assert renamed.stdin
    assert renamed.stdout
    renamed.stdin.write("\n")
    renamed.stdin.flush()
    assert renamed.stdout.readline()
    chosen = kills.choose(pod, 30 * MIB)
    assert other.pid == chosen.process.pid
    chosen.close()


def test_the_unkillable_is_spared(yard: Yard, tmp_path: Path) -> None:
    pod = session(yard)
    children = [holding(yard, pod.cgroup, mib) for mib in (20, 10)]
    # As /proc has them: to set -1000 takes CAP_SYS_RESOURCE.
    for child, score in zip(children, ("-1000", "-999"), strict=True):
        process = tmp_path / str(child.pid)
        process.mkdir()
        (process / "status").write_bytes(Path(f"/proc/{child.pid}/status").read_bytes())
        (process / "oom_score_adj").write_text(f"{score}\n")
    release, untouchable = MemoryRelease(), Untouchable(yard.tree)
    kills = OneProcess(lambda pod: Target.of(yard.tree, pod), untouchable, release, proc=tmp_path)
    kills.kill_first(pod, 30 * MIB).close()
    assert -signal.SIGKILL == children[1].wait(60)
    assert children[0].poll() is None
    kills.close()
    untouchable.close()
    release.close()


def test_a_pod_that_holds_reactor_is_refused(yard: Yard, kills: OneProcess) -> None:
    pod = session(yard)
    holding(yard, pod.cgroup, 20)
    before = home(yard)
    (yard.directories(pod.cgroup or "")[0] / "cgroup.procs").write_text(str(os.getpid()))
    try:
        with pytest.raises(RefusedError, match="reactor"):
            kills.kill_first(pod, 30 * MIB)
    finally:
        before.write_text(str(os.getpid()))


def test_one_that_left_the_pod_is_not_killed(yard: Yard, kills: OneProcess) -> None:
    pod, elsewhere = session(yard), yard.make(f"{yard.parent}/elsewhere")
    leaves, stays = (holding(yard, pod.cgroup, mib) for mib in (20, 10))
    kills.prepare([pod])
    chosen = kills.choose(pod, 30 * MIB)
    assert leaves.pid == chosen.process.pid
    kills.prepare([pod])
    move(yard, leaves, elsewhere)
    with pytest.raises(NoProcessError, match="not in its pod any more"):  # at the end of a grace period
        kills.kill(chosen)
    chosen.close()
    kills.kill_first(pod, 30 * MIB).close()
    assert -signal.SIGKILL == stays.wait(60)
    assert leaves.poll() is None


def test_one_of_another_pod_that_has_the_id_of_one_that_was_prepared_is_not_killed(
    yard: Yard, kills: OneProcess
) -> None:
    pod = session(yard)
    ends, stays = (holding(yard, pod.cgroup, mib) for mib in (20, 10))
    kills.prepare([pod])
    ends.kill()
    ends.wait()
    chosen = kills.kill_first(pod, 30 * MIB)
    assert stays.pid == chosen.process.pid
    chosen.close()


@pytest.mark.parametrize("unit", VictimUnit)
def test_an_innocent_that_has_the_id_of_one_that_was_read_before_is_not_killed(
    yard: Yard, kills: OneProcess, unit: VictimUnit
) -> None:
    """It has the name of the other, too, and is in the same pod.

    The kernel gives an id again when it likes. So the other is shown under the innocent's id from the start.
    """
    pod = replace(yard.pod("session"), process_victim=ProcessVictim(entry="unit session", unit=unit))
    cgroups = [yard.make(f"{pod.cgroup}/{name}") for name in ("ends", "stays")]
    ends, stays = (holding(yard, cgroup, mib) for cgroup, mib in zip(cgroups, (20, 10), strict=True))
    ended, stayed = one_process._read_those([ends.pid, stays.pid], PROC)
    ends.kill()
    ends.wait()
    innocent = holding(yard, cgroups[0], 1)
    assert ended.name == one_process._read_those([innocent.pid], PROC)[0].name
    with closing(kills.opened(pod)) as target:
        chosen = hold_first(pod, target, [replace(ended, pid=innocent.pid), stayed], None, (), PROC)
    assert [stays.pid] == list(chosen.pidfds)
    chosen.close()


def test_where_the_cgroup_was_made_anew_no_process_is_killed(yard: Yard, kills: OneProcess) -> None:
    pod = session(yard)
    inode = yard.directories(pod.cgroup or "")[0].stat().st_ino
    known = replace(pod, cgroup_inode=inode)
    kills.prepare([known])
    for directory in yard.directories(pod.cgroup or ""):
        directory.rmdir()
    yard.make(pod.cgroup or "")
    successor = holding(yard, pod.cgroup, 20)
    with pytest.raises(NoProcessError):
        kills.kill_first(known, 30 * MIB)
    assert successor.poll() is None


def test_a_small_share_of_the_pod_is_not_killed_alone(yard: Yard, kills: OneProcess) -> None:
    pod = session(yard)
    child = holding(yard, pod.cgroup, 5)
    with pytest.raises(NoProcessError, match="less than 10 %"):
        kills.kill_first(pod, 300 * MIB)
    assert child.poll() is None


def test_what_is_dying_of_the_pod_makes_the_next_no_smaller(yard: Yard, kills: OneProcess) -> None:
    if yard.tree.freezer_root is None or yard.tree.version is CgroupVersion.V2:
        pytest.skip("needs the freezer of v1, which keeps a process from its SIGKILL")
    pod = session(yard)
    below = yard.make(f"{pod.cgroup}/below")
    stuck, other = holding(yard, below, 60), holding(yard, pod.cgroup, 4)
    state = next(one for one in (d / "freezer.state" for d in yard.directories(below)) if one.exists())
    state.write_text("FROZEN")
    eventually(lambda: state.read_text() == "FROZEN\n", "frozen")
    kills.kill_first(pod, 70 * MIB).close()
    kills.kill_first(pod, 10 * MIB).close()
    assert -signal.SIGKILL == other.wait(60)
    assert stuck.poll() is None


def test_too_many_processes_are_not_chosen_among(
    yard: Yard, kills: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_process, "_MOST_PROCESSES", 2)
    pod = session(yard)
    children = [yard.spawn(pod.cgroup or "") for _ in range(3)]
    kills.prepare([pod])
    with pytest.raises(NoProcessError, match="more than 2 processes"):
        kills.kill_first(pod, None)
    assert [None] * 3 == [one.poll() for one in children]


def test_thousands_that_have_ended_since_they_were_read_end_the_choice_soon(
    yard: Yard, kills: OneProcess
) -> None:
    pod = session(yard)
    child = holding(yard, pod.cgroup, 1)
    (seen,) = one_process._read_those([child.pid], kills.proc)
    ended = [replace(seen, pid=PID_MAX + number, shared_bytes=MIB) for number in range(3000)]
    with closing(kills.opened(pod)) as target, pytest.raises(NoProcessError):
        one_process.hold_first(pod, target, ended, wanted_bytes=None, reserved=(), proc=kills.proc)
    assert child.poll() is None


RENAMES = """
import itertools, threading
def rename():
    with open("/proc/self/comm", "r+b", buffering=0) as comm:
        for name in itertools.cycle((b"one", b"other")):
            comm.write(name)
threading.Thread(target=rename, daemon=True).start()
"""


def test_a_hog_that_takes_another_name_all_the_time_has_no_other_chosen(
    yard: Yard, kills: OneProcess
) -> None:
    pod = session(yard)
    holding(yard, pod.cgroup, 20)
    hog = holding(yard, pod.cgroup, 40, more=RENAMES)
    for _ in range(30):
        chosen = kills.choose(pod, 60 * MIB)
        chosen.close()
        assert hog.pid == chosen.process.pid


def test_a_hog_in_the_last_of_many_cgroups_is_found(yard: Yard, kills: OneProcess) -> None:
    pod = session(yard)
    last = [yard.make(f"{pod.cgroup}/app-{number}.scope") for number in range(70)][-1]
    innocent, hog = holding(yard, pod.cgroup, 20), holding(yard, last, 40)
    names = [entry.name for entry in os.scandir(yard.directories(pod.cgroup or "")[0]) if entry.is_dir()]
    move(yard, hog, f"{pod.cgroup}/{names[-1]}")
    kills.kill_first(pod, 60 * MIB).close()
    assert -signal.SIGKILL == hog.wait(60)
    assert innocent.poll() is None


def test_of_one_with_too_many_cgroups_no_process_is_chosen(
    yard: Yard, kills: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in those that are not listed may hold the most: then the whole pod goes."""
    monkeypatch.setattr(one_process, "_MOST_CGROUPS", 2)
    pod = session(yard)
    for name in ("first", "second"):
        yard.make(f"{pod.cgroup}/{name}")
    holding(yard, pod.cgroup, 20)
    with pytest.raises(NoProcessError, match="more than 2 cgroups"):
        kills.choose(pod, 20 * MIB)


def test_too_many_cgroups_in_one_directory_are_not_listed(
    yard: Yard, kills: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_process, "_MOST_IN_ONE", 2)
    pod = session(yard)
    child = holding(yard, pod.cgroup, 5)
    for number in range(3):
        yard.pod(f"session/{number}")
    with pytest.raises(NoProcessError, match="more than 2 cgroups in one directory"):
        kills.kill_first(pod, None)
    assert child.poll() is None


def test_a_look_that_takes_too_long_is_given_up(
    yard: Yard, kills: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_process, "_MOST_CPU_NS", -1)
    pod = session(yard)
    holding(yard, pod.cgroup, 5)
    with pytest.raises(NoProcessError, match="in time"):
        kills.kill_first(pod, None)


def test_few_processes_are_waited_for_as_long_as_many_on_a_slow_machine(
    yard: Yard, kills: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock is 5 ms of CPU later: an emulated machine takes as long for a few dozen."""
    clock = count(step=5_000_000)
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(clock))
    pod = session(yard)
    small, *_, large = (holding(yard, pod.cgroup, mib) for mib in (5, 5, 5, 30))
    kills.kill_first(pod, None)
    assert -signal.SIGKILL == large.wait(60)
    assert small.poll() is None


FORKED = """
import os
for _ in range(19):
    if not os.fork():
        break
"""


def test_what_is_prepared_gives_way_and_is_read_on_with_by_the_choice(
    yard: Yard, kills: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_process, "_FEW", 4)
    pod = session(yard)
    shell = holding(yard, pod.cgroup, 1, more=FORKED)
    eventually(lambda: len(yard.tree.processes(pod.cgroup or "")) == 20)
    large = holding(yard, pod.cgroup, 30)
    asked: list[str] = []

    def gives_way() -> bool:
        asked.append("crossed?")
        return True

    kills.prepare([pod], gives_way)
    kills.prepare([pod], gives_way)

    assert len(asked) == 2
    kills.kill_first(pod, None).close()
    assert -signal.SIGKILL == large.wait(60)
    assert shell.poll() is None


@pytest.mark.parametrize("is_stale", [False, True], ids=["just-read", "to-be-read-again"])
def test_those_that_one_observation_has_no_time_for_are_read_by_the_next_ones(
    yard: Yard, kills: OneProcess, monkeypatch: pytest.MonkeyPatch, *, is_stale: bool
) -> None:
    """Each look at the clock is 10 ms of CPU later: there is time to read 12 of 21 processes."""
    pod = session(yard)
    shell = holding(yard, pod.cgroup, 1, more=FORKED)
    eventually(lambda: len(yard.tree.processes(pod.cgroup or "")) == 20)
    large = holding(yard, pod.cgroup, 30)
    clock = count(step=10_000_000)
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(clock))
    with pytest.raises(NoProcessError, match="in time"):
        kills.kill_first(pod, None)
    for _ in range(2):
        kills.prepare([pod])
    if is_stale:
        monkeypatch.setattr(one_process, "_STALE_SECONDS", 0.0)
        monkeypatch.setattr(one_process, "_SELDOM", 0)
    kills.kill_first(pod, None).close()
    assert -signal.SIGKILL == large.wait(60)
    assert shell.poll() is None


def test_one_that_was_killed_and_does_not_exit_is_not_killed_again_and_then_the_pod_is(
    yard: Yard, kills: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    if yard.tree.freezer_root is None or yard.tree.version is CgroupVersion.V2:
        pytest.skip("needs the freezer of v1, which keeps a process from its SIGKILL")
    pod = session(yard)
    stuck = holding(yard, pod.cgroup, 20)
    state = next(
        d / "freezer.state" for d in yard.directories(pod.cgroup or "") if (d / "freezer.state").exists()
    )
    state.write_text("FROZEN")
    eventually(lambda: state.read_text() == "FROZEN\n", "frozen")
    kills.kill_first(pod, 20 * MIB).close()
    assert stuck.poll() is None
    with pytest.raises(NoProcessError, match="may be killed alone"):
        kills.kill_first(pod, 20 * MIB)
    monkeypatch.setattr(one_process, "_STUCK_SECONDS", 0.0)
    with pytest.raises(NoProcessError, match="has not exited"):
        kills.kill_first(pod, 20 * MIB)


async def test_a_fork_storm_loses_one_process_at_a_time_or_none(
    yard: Yard, bounded, kills: OneProcess
) -> None:
    pod, innocent = session(yard), yard.spawn(yard.make(f"{yard.parent}/innocent"))
    bounded(pod.cgroup or "")
    storm = yard.spawn(pod.cgroup or "", FORK_STORM)
    directory = yard.directories(pod.cgroup or "")[0]
    eventually(lambda: len((directory / "cgroup.procs").read_text().split()) > 300, "a storm")
    kills.prepare([pod])
    with pytest.raises(NoProcessError):
        kills.kill_first(pod, 400 * MIB)
    assert [None, None] == [innocent.poll(), storm.poll()]


async def test_no_descriptor_is_left_open(yard: Yard, kill_path: KillPath) -> None:
    pod = session(yard)
    kills = kill_path.one_process
    children = [holding(yard, pod.cgroup, mib) for mib in (20, 10, 5)]
    kills.prepare([])
    before = open_descriptors()
    kills.prepare([pod])
    for child in children[:2]:
        chosen = kills.kill_first(pod, 35 * MIB)
        assert -signal.SIGKILL == child.wait(60)
        assert (await kills.reap(chosen, 5.0)).freed_ns is not None
        chosen.close()
    with pytest.raises(NoProcessError):
        kills.choose(pod, 500 * MIB)
    kills.prepare([pod])
    kills.prepare(())
    eventually(lambda: before == open_descriptors(), "all closed again")


async def test_asked_to_end_it_ends_and_is_waited_for(yard: Yard, kills: OneProcess) -> None:
    pod = session(yard)
    child = holding(yard, pod.cgroup, 20)
    chosen = kills.choose(pod, 20 * MIB)
    assert None is await kills.terminate(chosen, 5.0)
    assert -signal.SIGTERM == child.wait(60)
    assert None is await kills.terminate(chosen, 5.0)
    chosen.close()


async def test_one_that_has_left_its_pod_meanwhile_is_not_asked_to_end(yard: Yard, kills: OneProcess) -> None:
    pod, other = session(yard), session(yard, name="other")
    child = holding(yard, pod.cgroup, 20)
    chosen = kills.choose(pod, 20 * MIB)
    move(yard, child, other.cgroup or "")
    os.kill(child.pid, signal.SIGSTOP)  # so that SIGTERM would stay pending
    with pytest.raises(NoProcessError, match=f"process {child.pid} is not in its pod any more"):
        await kills.terminate(chosen, 0.05)
    none = f"ShdPnd:\t{0:016x}"
    eventually(lambda: none in Path(f"/proc/{child.pid}/status").read_text(), "no signal")
    chosen.close()


async def test_one_that_outlives_its_grace_period_is_killed_if_that_is_still_wanted(
    yard: Yard, kills: OneProcess
) -> None:
    pod = session(yard)
    child = holding(yard, pod.cgroup, 20)
    chosen = kills.choose(pod, 20 * MIB)
    os.kill(child.pid, signal.SIGSTOP)  # so that SIGTERM stays pending
    eventually(lambda: ") T " in Path(f"/proc/{child.pid}/stat").read_text(), "stopped")
    assert None is await kills.terminate(chosen, 0.05, lambda: False)
    late = await kills.reap(chosen, 0.05)
    assert None is late.freed_ns
    assert (f"process {child.pid} has not exited 0.05 s after SIGKILL",) == late.problems
    report = await kills.terminate(chosen, 0.05)
    assert report is not None
    assert (1, chosen.killed_ns) == (report.processes, report.killed_ns)
    assert -signal.SIGKILL == child.wait(60)
    assert (await kills.reap(chosen, 5.0)).freed_ns is not None
    chosen.close()
