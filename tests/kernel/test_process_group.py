"""Processes of a pod that are killed together, on real cgroups: an agent with its tools and late forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from reactor.act import one_process
from reactor.act.kill_path import KillPath
from reactor.act.one_process import NoProcessError, OneProcess
from reactor.model.pod_lists import PodEntry, PodLists, ProcessVictim, ProcessVictimEntry, VictimUnit
from reactor.model.pods import Pod, QosClass, RuntimePod
from reactor.model.settings import Settings
from reactor.workloads.kubernetes_pods import KubernetesPods
from tests.support.processes import MIB
from tests.support.this_machine import open_descriptors
from tests.support.waiting import eventually
from tests.support.yard import Yard

# Takes `mib`, starts a child for each number behind it, with that many MiB, and prints their process ids.
AGENT = """
import mmap, os, signal, subprocess, sys
mib, *tools = map(int, sys.argv[1:])
memory = mmap.mmap(-1, (mib or 1) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, (mib or 1) << 20, 4096):
    memory[offset] = 1
children = [
    subprocess.Popen([sys.executable, "-S", "-c", CODE, str(tool)], stdout=subprocess.PIPE) for tool in tools
]
for child in children:
    child.stdout.readline()
def fork(*_):
    pid = os.fork()
    if pid:
        print(pid, flush=True)
signal.signal(signal.SIGUSR1, fork)
print(*(child.pid for child in children), flush=True)
while True:
    signal.pause()
"""
AGENT = f"CODE = {AGENT!r}\n{AGENT}"


@pytest.fixture
def kills(kill_path: KillPath) -> OneProcess:
    return kill_path.one_process


def session(yard: Yard, unit: VictimUnit, *never: str) -> Pod:
    victim = ProcessVictim(entry="unit session", never=never, unit=unit)
    return replace(yard.pod("session"), process_victim=victim)


def agent(yard: Yard, cgroup: str | None, *mib: int) -> tuple[subprocess.Popen[str], list[int]]:
    child = yard.spawn(cgroup or "", f"import sys\nsys.argv[1:] = {list(map(str, mib))}\n{AGENT}")
    assert child.stdout
    return child, [int(word) for word in child.stdout.readline().split()]


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except OSError:
        return False


def test_of_twenty_agents_in_one_scope_the_one_that_runs_away_dies_with_its_tools(
    yard: Yard, kills: OneProcess
) -> None:
    pod = session(yard, VictimUnit.TREE)
    others = [agent(yard, pod.cgroup, 2, 1) for _ in range(19)]
    first, tools = agent(yard, pod.cgroup, 12, 10, 10)
    before = open_descriptors()
    kills.prepare([pod])
    chosen = kills.kill_first(pod, None, wanted_bytes=MIB)
    assert -signal.SIGKILL == first.wait(60)
    eventually(lambda: not any(map(lives, tools)), "the tools' end")
    assert (first.pid, 3) == (chosen.process.pid, chosen.process.processes)
    assert chosen.process.held_bytes > 30 * MIB
    assert 3 == chosen.report().processes
    chosen.close()
    assert all(one.poll() is None for one, _ in others)
    assert all(lives(pid) for _, pids in others for pid in pids)
    kills.close()
    eventually(lambda: before == open_descriptors(), "no descriptor left once the memory is released")


def test_of_an_agent_whose_tool_runs_away_the_tool_alone_dies(yard: Yard, kills: OneProcess) -> None:
    pod = session(yard, VictimUnit.TREE)
    first, (tool, other) = agent(yard, pod.cgroup, 4, 40, 2)
    kills.kill_first(pod, None, wanted_bytes=MIB).close()
    eventually(lambda: not lives(tool), "the tool's end")
    assert first.poll() is None
    assert lives(other)


def test_a_child_whose_parent_has_gone_dies_with_the_rest_of_its_job(yard: Yard, kills: OneProcess) -> None:
    """A shell gives each job a process group; the job's first process forks one that outlives its parent."""
    pod = session(yard, VictimUnit.TREE)
    forks = (
        "import os, sys\nos.setpgid(0, 0)\n"
        "if os.fork() == 0:\n"
        "    if os.fork():\n        os._exit(0)\n"
        "    memory = bytearray(b'1' * (8 << 20))\n"
        "    print(os.getpid(), flush=True)\n"
        "    import signal\n    signal.pause()\n"
        "os.wait()\nmemory = bytearray(b'1' * (16 << 20))\nimport signal\nsignal.pause()\n"
    )
    job = yard.spawn(pod.cgroup or "", forks)
    assert job.stdout
    orphan = int(job.stdout.readline())
    neighbour, _ = agent(yard, pod.cgroup, 3)
    eventually(lambda: (job.poll() is None) and lives(orphan), "both")
    chosen = kills.kill_first(pod, None, wanted_bytes=MIB)
    assert -signal.SIGKILL == job.wait(60)
    eventually(lambda: not lives(orphan), "the orphan's end")
    assert 2 == chosen.process.processes
    chosen.close()
    assert neighbour.poll() is None


@pytest.mark.parametrize("unit", [VictimUnit.TREE, VictimUnit.LEAF])
def test_what_was_forked_since_the_choice_dies_too_and_what_belongs_to_others_does_not(
    yard: Yard, kills: OneProcess, unit: VictimUnit
) -> None:
    pod = session(yard, unit)
    below = yard.make(f"{pod.cgroup}/below")
    first, _ = agent(yard, below, 8, 6)
    calm, _ = agent(yard, pod.cgroup, 3)
    chosen = kills.choose(pod, None, wanted_bytes=MIB)
    late = [_forked(one) for one in (first, calm)]
    kills.kill(chosen)
    assert -signal.SIGKILL == first.wait(60)
    eventually(lambda: not lives(late[0]), "the end of what was forked since")
    assert 3 == chosen.report().processes
    chosen.close()
    assert lives(late[1])
    assert calm.poll() is None


def _forked(child: subprocess.Popen[str]) -> int:
    child.send_signal(signal.SIGUSR1)
    assert child.stdout
    return int(child.stdout.readline())


def test_a_cgroup_below_the_pod_dies_as_a_whole_and_its_neighbours_live(
    yard: Yard, kills: OneProcess
) -> None:
    pod = session(yard, VictimUnit.LEAF)
    first, second = (yard.make(f"{pod.cgroup}/{name}") for name in ("first", "second"))
    small, _ = agent(yard, first, 3, 1)
    large, tools = agent(yard, second, 8, 6)
    own, _ = agent(yard, pod.cgroup, 30)
    chosen = kills.kill_first(pod, None, wanted_bytes=MIB)
    assert -signal.SIGKILL == large.wait(60)
    eventually(lambda: not any(map(lives, tools)), "the tools' end")
    assert 2 == chosen.process.processes
    chosen.close()
    assert [None, None] == [small.poll(), own.poll()]


@pytest.mark.parametrize("unit", [VictimUnit.TREE, VictimUnit.LEAF])
def test_a_process_that_must_not_be_killed_spares_what_holds_it(
    yard: Yard, kills: OneProcess, unit: VictimUnit
) -> None:
    pod = session(yard, unit)
    below = yard.make(f"{pod.cgroup}/below")
    first, (tool,) = agent(yard, below, 8, 6)
    if not _is_allowed_to_protect(tool):
        pytest.skip("needs CAP_SYS_RESOURCE to set an oom_score_adj of -1000")
    with pytest.raises(NoProcessError, match="may be killed alone"):
        kills.kill_first(replace(pod, cgroup=pod.cgroup), None, wanted_bytes=100 * MIB)
    assert first.poll() is None
    assert lives(tool)


def _is_allowed_to_protect(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write("-1000")
    except PermissionError:
        return False
    return True


def test_a_spared_name_in_a_cgroup_spares_it_and_a_small_rest_is_not_worth_it(
    yard: Yard, kills: OneProcess
) -> None:
    pod = session(yard, VictimUnit.LEAF, "python*", os.path.basename(sys.executable))
    first, _ = agent(yard, yard.make(f"{pod.cgroup}/below"), 8)
    with pytest.raises(NoProcessError, match="no cgroup of it may be killed alone"):
        kills.kill_first(pod, None, wanted_bytes=MIB)
    tree = replace(pod, process_victim=ProcessVictim(entry="unit session", unit=VictimUnit.TREE))
    with pytest.raises(NoProcessError, match="less than 10 %"):
        kills.kill_first(tree, 1000 * MIB, wanted_bytes=MIB)
    assert first.poll() is None


@pytest.mark.trio
async def test_a_tree_that_ends_when_it_is_asked_is_not_killed(yard: Yard, kills: OneProcess) -> None:
    pod = session(yard, VictimUnit.TREE)
    first, tools = agent(yard, pod.cgroup, 8, 6)
    chosen = kills.choose(pod, None)
    assert await kills.terminate(chosen, 30) is None
    assert -signal.SIGTERM == first.wait(60)
    assert not any(map(lives, tools))
    chosen.close()


# So many agents with so many tools each. One that is asked to takes so many MiB; all wait then.
SESSION = """
import mmap, os, signal, sys
agents, tools, mib = map(int, sys.argv[1:])
def grow(*_):
    global memory
    memory = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, mib << 20, 4096):
        memory[offset] = 1
    os.write(1, b"grown\\n")
signal.signal(signal.SIGUSR1, grow)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for number in range(agents):
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        for _ in range(tools):
            if os.fork() == 0:
                signal.pause()
        os.write(write_end, b"%d\\n" % os.getpid())
        while True:
            signal.pause()
    os.write(1, os.read(read_end, 32))
    os.close(read_end), os.close(write_end)
open("/proc/self/comm", "w").write("bash")
os.write(1, b"done\\n")
while True:
    signal.pause()
"""


def test_of_two_thousand_processes_of_one_scope_an_agent_dies_and_the_session_lives(
    yard: Yard, kills: OneProcess
) -> None:
    """omarchy#9799: 2,104 processes in one scope."""
    pod = session(yard, VictimUnit.TREE)
    child = yard.spawn(pod.cgroup or "", f"import sys\nsys.argv[1:] = ['20', '104', '200']\n{SESSION}")
    assert child.stdout
    agents = [int(line) for line in iter(child.stdout.readline, "done\n")]
    assert len(agents) == 20
    assert len(processes(yard, pod)) == 1 + 20 * 105
    os.kill(agents[7], signal.SIGUSR1)
    assert child.stdout.readline() == "grown\n"
    before = open_descriptors()
    used_bytes = usage_bytes(yard, pod)
    for _ in range(5):  # each goes on where the CPU time of the one before was over
        kills.prepare([pod])
    chosen = kills.kill_first(pod, used_bytes, wanted_bytes=MIB)
    assert chosen.process.pid == agents[7]
    assert chosen.process.processes == 105
    assert 200 * MIB < chosen.process.held_bytes <= used_bytes
    eventually(lambda: len(processes(yard, pod)) == 1 + 19 * 105, "the agent's end, with its tools")
    chosen.close()

    def all_closed() -> bool:
        kills.prepare([])  # forgets those that have exited, which is later than that they are listed no more
        return before == open_descriptors()

    eventually(all_closed, "no descriptor left")
    assert child.poll() is None
    assert all(map(lives, [pid for pid in agents if pid != agents[7]]))


def test_many_small_processes_go_as_a_whole_and_too_many_do(
    yard: Yard, kills: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = session(yard, VictimUnit.TREE)
    child = yard.spawn(pod.cgroup or "", f"import sys\nsys.argv[1:] = ['60', '9', '1']\n{SESSION}")
    assert child.stdout
    assert len(list(iter(child.stdout.readline, "done\n"))) == 60
    with pytest.raises(NoProcessError, match="less than 10 %"):
        kills.kill_first(pod, 1 << 30, wanted_bytes=MIB)
    monkeypatch.setattr(one_process, "_MOST_CPU_NS", -1)
    with pytest.raises(NoProcessError, match="in time"):
        kills.kill_first(pod, 1 << 30)
    monkeypatch.setattr(one_process, "_MOST_PROCESSES", 600)
    with pytest.raises(NoProcessError, match="more than 600 processes"):
        kills.kill_first(pod, 1 << 30)
    assert child.poll() is None


def usage_bytes(yard: Yard, pod: Pod) -> int:
    directory = yard.tree.path(pod.cgroup or "")
    names = ("memory.current", "memory.usage_in_bytes")
    files = [directory / name for name in names if (directory / name).exists()]
    return int(files[0].read_text()) if files else 1 << 30  # no memory controller in this hierarchy


def processes(yard: Yard, pod: Pod) -> list[int]:
    return [int(line) for line in (yard.tree.path(pod.cgroup or "") / "cgroup.procs").read_text().split()]


UID = "0e4a3c0a-1111-4222-8333-0123456789ab"
SANDBOX, APP, SIDECAR = "a" * 64, "b" * 64, "c" * 64
# The first process of a container, in a process id namespace of its own, as runtimes start it.
FIRST = """
import os, sys
os.execvp("unshare", ["unshare", "-fp", *{shell!r}, sys.executable, "-S", "-c", *{rest!r}])
"""
SHELL = ("sh", "-c", '"$@"; true', "sh")


def container_of(yard: Yard, cgroup: str, *mib: int, shell: tuple[str, ...] = ()) -> None:
    """Start `unshare` in a cgroup, whose child is the container's first process; return when all runs."""
    child = yard.spawn(cgroup, FIRST.format(shell=shell, rest=(AGENT, *map(str, mib))))
    assert child.stdout
    child.stdout.readline()


def of_kubernetes(yard: Yard, unit: VictimUnit) -> tuple[Pod, dict[str, list[int]]]:
    """Return a pod as the kubelet and a runtime make it, listed by its spec, and its containers' processes.

    One container is started by a shell, and has a tool that is large; the other is one process.
    """
    pod = yard.make(f"{yard.make(f'{yard.parent}/burstable')}/pod{UID}")
    pause, app, sidecar = (yard.make(f"{pod}/{one}") for one in (SANDBOX, APP, SIDECAR))
    yard.spawn(pause, "open('/proc/self/comm', 'w').write('pause')\nimport signal\nsignal.pause()")
    container_of(yard, app, 2, 30, shell=SHELL)
    container_of(yard, sidecar, 12)
    victims = (ProcessVictimEntry(pods=PodEntry(namespace="agents-*", labels=(("app", "a"),)), unit=unit),)
    spec = Pod(name="agent", namespace="agents-1", uid=UID, qos_class=QosClass.BURSTABLE, labels={"app": "a"})
    listing = KubernetesPods(
        yard.tree,
        Settings(pod_parents=(yard.parent,), pod_lists=PodLists(process_victims=victims)),
        specs=lambda: {UID: spec},
        runtime=lambda: {
            UID: RuntimePod(name="agent", namespace="agents-1", sandboxes=(SANDBOX,), containers={})
        },
    )
    eventually(lambda: len(yard.tree.processes(pause)) == 1, "the sandbox")
    (found,) = listing.refresh()
    if (yard.tree.memory_root / pause[1:] / "memory.stat").exists():  # else nobody knows how small it is
        assert found.spared_cgroups == (pause,)
    found = replace(found, spared_cgroups=(pause,))
    return found, {one: yard.tree.processes(f"{pod}/{one}") for one in (SANDBOX, APP, SIDECAR)}


def test_of_a_kubernetes_pod_the_largest_process_dies_and_no_containers_first_one(
    yard: Yard, kills: OneProcess
) -> None:
    pod, processes = of_kubernetes(yard, VictimUnit.PROCESS)
    chosen = kills.kill_first(pod, None, wanted_bytes=MIB)
    assert chosen.process.pid == processes[APP][-1]
    eventually(lambda: not lives(chosen.process.pid), "the tool's end")
    chosen.close()
    left = [pid for pids in processes.values() for pid in pids if pid != chosen.process.pid]
    assert len(left) == 6
    assert all(map(lives, left))


def test_a_containers_first_process_dies_where_it_holds_the_most_and_the_others_live(
    yard: Yard, kills: OneProcess
) -> None:
    pod, processes = of_kubernetes(yard, VictimUnit.PROCESS)
    os.kill(processes[APP][-1], signal.SIGKILL)
    eventually(lambda: not lives(processes[APP][-1]), "the tool's end")
    chosen = kills.kill_first(pod, None, wanted_bytes=MIB)
    assert chosen.process.pid == processes[SIDECAR][-1]
    eventually(lambda: not any(map(lives, processes[SIDECAR])), "the container's end")
    chosen.close()
    assert all(map(lives, [*processes[SANDBOX], *processes[APP][:-1]]))


def test_of_a_kubernetes_pod_the_leaf_is_a_container_whatever_shell_it_was_started_by(
    yard: Yard, kills: OneProcess
) -> None:
    pod, processes = of_kubernetes(yard, VictimUnit.LEAF)
    chosen = kills.kill_first(pod, None, wanted_bytes=MIB)
    eventually(lambda: not any(map(lives, processes[APP])), "the container's end")
    chosen.close()
    assert all(map(lives, [*processes[SANDBOX], *processes[SIDECAR]]))


def test_the_sandbox_of_a_kubernetes_pod_is_never_chosen_though_it_is_not_known_as_one(
    yard: Yard, kills: OneProcess
) -> None:
    pod, processes = of_kubernetes(yard, VictimUnit.LEAF)
    for pid in (*processes[APP], *processes[SIDECAR]):
        with suppress(ProcessLookupError):  # a container's others end with its first process
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(map(lives, (*processes[APP], *processes[SIDECAR]))), "the containers' end")
    for unit in VictimUnit:
        assert pod.process_victim is not None
        alone = replace(pod, spared_cgroups=(), process_victim=replace(pod.process_victim, unit=unit))
        with pytest.raises(NoProcessError):
            kills.kill_first(alone, None, wanted_bytes=MIB)
    assert all(map(lives, processes[SANDBOX]))
