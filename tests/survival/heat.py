"""One heat: a node that fills up, a guard in some condition, and the pods that die for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Final

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import KernelFile
from reactor.testbed.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.survival.oracle import MIB, DrawnPod, draw, innocents_among

NODE_MIB: Final = 256
_BESIDE_MIB: Final = 64  # what there is for what lies beside the node
_THRESHOLD_MIB: Final = 40
_AHEAD_MIB: Final = 16  # the far early level of such a node
_DRAWN_MIB: Final = 160
_LAST_SECONDS: Final = 30.0
_BATCH_BYTES: Final = 512 << 10  # by which counters lag behind
_HOG: Final = "hog"
_HOLD: Final = """
import mmap, os, sys
score, mib = int(sys.argv[1]), int(sys.argv[2])
with open("/proc/self/oom_score_adj", "w") as file:
    file.write(str(score))
memory = mmap.mmap(-1, 512 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
page, touched = b"1" * (256 << 10), 0
def hold(wanted):
    global touched
    while touched < wanted:
        memory[touched : touched + len(page)] = page
        touched += len(page)
hold(mib << 20)
os.write(1, b"ready\\n")
while line := os.read(0, 64):
    hold(int(line) << 20)
    os.write(1, b"done\\n")
"""


class Hog(StrEnum):
    """What fills the node: one of the pods that were there, or a process that comes."""

    POD = "a pod that was there"
    NEWCOMER = "a pod that came later"
    NEVER = "a pod that is never evicted"
    OUTSIDE = "a process outside the pods"
    BESIDE = "a process beside the node"

    @property
    def is_victim(self) -> bool:
        """Return whether the policy may choose it."""
        return self in {Hog.POD, Hog.NEWCOMER}


class Condition(StrEnum):
    """What is done to the guard before the node fills up."""

    RUNNING = "running"
    RESTARTED = "restarted"
    STOPPED = "stopped"
    DEAD = "dead"


class Scores(StrEnum):
    """What the pods' processes have of their own: all the same, or what a kubelet gives them."""

    NONE = "none"
    KUBELET = "kubelet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What heats have in common: `is_ordered`, if the guard orders whom the OOM killer takes."""

    hog: Hog
    scores: Scores
    is_ordered: bool
    condition: Condition

    @property
    def needs_guard(self) -> bool:
        """Return whether a guard makes a difference."""
        return self.is_ordered or self.condition in {Condition.RUNNING, Condition.RESTARTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Who died until what filled the node did: innocents, those of them by the guard, and all pods.

    A pod is innocent if neither it filled the node nor the policy had it first when it died.
    """

    innocents: int
    by_guard: int
    died: int
    is_over: bool


class _Pods:
    """The pods of a heat, and what fills the node: their processes, and the kernel's counters of them."""

    def __init__(self, node: VirtualNode, parent: str, drawn: tuple[DrawnPod, ...], scores: Scores) -> None:
        self._node = node
        self._parent = parent
        self._scores = scores
        self.drawn = drawn
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._usages: dict[str, KernelFile] = {}
        self._grown_mib = drawn[-1].mib
        for pod in drawn:
            self._add(pod)
        for process in self._processes.values():
            _answered(process)

    def _add(self, pod: DrawnPod) -> None:
        request_bytes, priority = pod.request_mib * MIB, pod.priority or None
        cgroup = self._node.add_pod(
            f"{self._parent}{pod.name}", request_bytes=request_bytes, priority=priority
        )
        self.add_process(self._node, cgroup, pod.name, self._score(pod), pod.mib)

    def _score(self, pod: DrawnPod) -> int:
        return 0 if self._scores is Scores.NONE else pod.kubelet_score(NODE_MIB)

    def add_process(self, node: VirtualNode, cgroup: str, name: str, score: int = 0, mib: int = 0) -> None:
        """Start a process in a cgroup that holds so much; its answer is still to be read."""
        v2 = node.tree.version is CgroupVersion.V2
        file = "memory.current" if v2 else "memory.usage_in_bytes"
        self._usages[name] = KernelFile(node.tree.path(cgroup) / file)
        self._processes[name] = _started(node, cgroup, score, mib)

    def add_newcomer(self) -> None:
        """Start a pod that requests nothing."""
        pod = DrawnPod(name=_HOG, mib=0, request_mib=0, priority=0)
        self.drawn = (*self.drawn, pod)
        self._add(pod)

    def grow(self) -> None:
        """Have the last pod take a MiB more, and wait for that."""
        self._grown_mib += 1
        self.fill(self.drawn[-1].name, self._grown_mib)
        _answered(self._processes[self.drawn[-1].name])

    def fill(self, name: str, mib: int) -> None:
        """Have a process begin to take so much."""
        stdin = self._processes[name].stdin
        assert stdin is not None
        stdin.write(f"{mib}\n".encode())
        stdin.flush()

    def wait_ready(self, name: str) -> None:
        """Wait until a process that was added has begun."""
        _answered(self._processes[name])

    def used_bytes(self) -> dict[str, int]:
        """Read what each one uses."""
        return {name: int(file.read()) for name, file in self._usages.items()}

    def died(self) -> set[str]:
        """Return whose processes are dead."""
        return {name for name, process in self._processes.items() if process.poll() is not None}

    def close(self) -> None:
        """End what still runs, and close every descriptor."""
        for file in self._usages.values():
            file.close()
        for process in self._processes.values():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def run_heat(case: Case, random: Random, directory: Path) -> Outcome:
    """Run one heat. Raises AssertionError, OSError."""
    drawn = draw(random, _DRAWN_MIB)
    tree = CgroupTree.discover()
    name = f"reactor-survival-{os.getpid()}"
    with ExitStack() as stack:
        above = stack.enter_context(VirtualNode(tree, (NODE_MIB + _BESIDE_MIB) * MIB, name))
        node = stack.enter_context(VirtualNode(tree, NODE_MIB * MIB, f"{name}/node"))
        parent = node.add_pod("pods")
        daemon = RunningDaemon(directory, node.cgroup)
        daemon.be_the_machine(NODE_MIB)
        stack.callback(_end, daemon)
        pods = _Pods(node, "pods/", drawn, case.scores)
        stack.callback(pods.close)
        daemon.configure(
            {
                "evictionHard": {"memory.available": f"{_THRESHOLD_MIB}Mi"},
                "evictionPressureTransitionPeriod": "0s",
            },
            {
                "housekeepingInterval": "200ms",
                "oomOrder": "policy" if case.is_ordered else "leave",
                "pods": {"parents": [parent], "never": [_HOG] if case.hog is Hog.NEVER else []},
            },
        )
        if case.needs_guard:
            daemon.start()
            after_passes(daemon, 1)
        near_bytes = (NODE_MIB - _THRESHOLD_MIB - _AHEAD_MIB // 2) * MIB
        while node.usage_bytes() < near_bytes:
            pods.grow()
        if case.needs_guard:
            after_passes(daemon, 4)  # what is to be written is written
        _put_in_condition(case.condition, daemon, stack)
        hog = _hog(case.hog, pods, node, above)
        pods.fill(hog, NODE_MIB + _BESIDE_MIB)
        evicted: Callable[[], list[str]] = daemon.evicted if case.needs_guard else list
        return _raced(case.hog, pods, hog, evicted)


def _hog(kind: Hog, pods: _Pods, node: VirtualNode, above: VirtualNode) -> str:
    """Return the name of what will fill the node, which is there and holds next to nothing of its own."""
    if kind is Hog.POD:
        return pods.drawn[-1].name
    if kind is Hog.NEWCOMER:
        pods.add_newcomer()
    elif kind is Hog.NEVER:
        pods.add_process(node, node.add_pod(f"pods/{_HOG}"), _HOG)
    elif kind is Hog.OUTSIDE:
        pods.add_process(node, node.add_pod("system"), _HOG)
    else:
        pods.add_process(above, above.add_pod("beside"), _HOG)
    pods.wait_ready(_HOG)
    return _HOG


def _raced(kind: Hog, pods: _Pods, hog: str, evicted: Callable[[], list[str]]) -> Outcome:
    """Wait until what fills the node has died; return who died until then."""
    deadline = time.monotonic() + _LAST_SECONDS
    living = {pod.name: pod for pod in pods.drawn}
    innocents: set[str] = set()
    dead: set[str] = set()
    seen = pods.used_bytes()
    is_over = False
    while hog not in dead and time.monotonic() < deadline:
        now = pods.used_bytes()
        died = pods.died() - dead
        if died:
            dead |= died
            victims = died & living.keys()
            if kind.is_victim:
                innocents |= innocents_among(victims, living.values(), seen) - {hog}
            else:
                innocents |= victims
            for name in victims:
                del living[name]
            seen, is_over = now, False
            continue
        # No pod gives anything back but one that has been killed, which ends a moment later.
        is_over |= any(now[name] < seen[name] - _BATCH_BYTES for name in now if name not in dead)
        if not is_over:
            seen = {name: max(now[name], seen[name]) for name in now}
    time.sleep(0.1)  # the last line of the journal may be on its way
    by_guard = innocents & set(evicted())
    return Outcome(
        innocents=len(innocents),
        by_guard=len(by_guard),
        died=len(dead - {hog}),
        is_over=hog in dead,
    )


def _put_in_condition(condition: Condition, daemon: RunningDaemon, stack: ExitStack) -> None:
    """Do to the guard what the condition says."""
    if daemon.process is None or condition is Condition.RUNNING:
        return
    if condition is Condition.STOPPED:
        daemon.signal(signal.SIGSTOP)
        stack.callback(daemon.signal, signal.SIGCONT)
        return
    daemon.kill()
    if condition is Condition.RESTARTED:
        daemon.spawn()


def _end(daemon: RunningDaemon) -> None:
    if daemon.process is not None and daemon.process.poll() is None:
        daemon.kill()


def _started(node: VirtualNode, cgroup: str, score: int, mib: int) -> subprocess.Popen[bytes]:
    """Start a process in a pod that holds memory, and more as it is told."""
    paths = [str(node.tree.path(cgroup, controller) / "cgroup.procs") for controller in ("memory", "cpu")]
    enter = 'for path in "$1" "$2"; do echo $$ > "$path" || exit 125; done; shift 2; exec "$@"'
    hold = [sys.executable, "-S", "-c", _HOLD, str(score), str(mib)]
    return subprocess.Popen(
        ["/bin/sh", "-c", enter, "sh", *paths, *hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _answered(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline(), "a pod's process has ended before the heat"
