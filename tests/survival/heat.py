"""One heat: a node that fills up, a guard in some condition, and the pod that dies first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Final

from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.files import KernelFile
from reactor.lab.virtual_node import VirtualNode
from tests.support.daemon import RunningDaemon, after_passes
from tests.support.waiting import eventually
from tests.survival.oracle import MIB, DrawnPod, draw, first_of

NODE_MIB: Final = 256
_THRESHOLD_MIB: Final = 40
_AHEAD_MIB: Final = 16  # the far early level of such a node
_DRAWN_MIB: Final = 170
_LAST_SECONDS: Final = 30.0
_BATCH_BYTES: Final = 512 << 10  # by which counters lag behind
_STARVED_US: Final = 1000  # of CPU in 100 ms, the least that there is
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


class Condition(StrEnum):
    """What is done to the guard before a pod grows."""

    RUNNING = "running"
    STARVED = "starved"
    STOPPED = "stopped"
    DEAD = "dead"


class Scores(StrEnum):
    """What the pods' processes have of their own: all the same, or what a kubelet gives them."""

    NONE = "none"
    KUBELET = "kubelet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What heats have in common: `is_ordered`, if the guard orders whom the OOM killer takes."""

    scores: Scores
    is_ordered: bool
    condition: Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Who died first and who was the policy's first then, None where that was not clear.

    `first_before` is who was first when the guard was last left alone.
    """

    died: tuple[str, ...]
    first: str | None
    first_before: str | None

    @property
    def is_clear(self) -> bool:
        """Return whether it can be said who died first and who should have."""
        return self.first is not None and len(self.died) == 1

    @property
    def is_right(self) -> bool:
        """Return whether the policy's first died first."""
        return self.died == (self.first,)

    @property
    def has_changed(self) -> bool:
        """Return whether another pod was the first when the guard could last do something."""
        return self.first != self.first_before


class _Pods:
    """The pods of a heat: their processes, and the kernel's counters of them."""

    def __init__(self, node: VirtualNode, drawn: tuple[DrawnPod, ...], scores: Scores) -> None:
        self.drawn = drawn
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._usages: dict[str, KernelFile] = {}
        self._grown_mib = drawn[-1].mib
        v2 = node.tree.version is CgroupVersion.V2
        name = "memory.current" if v2 else "memory.usage_in_bytes"
        for pod in drawn:
            request_bytes, priority = pod.request_mib * MIB, pod.priority or None
            cgroup = node.add_pod(pod.name, request_bytes=request_bytes, priority=priority)
            self._usages[pod.name] = KernelFile(node.tree.path(cgroup) / name)
            score = 0 if scores is Scores.NONE else pod.kubelet_score(NODE_MIB)
            self._processes[pod.name] = _started(node, cgroup, score, pod.mib)
        for process in self._processes.values():
            _answered(process)

    @property
    def grower(self) -> subprocess.Popen[bytes]:
        """Return the process that will grow."""
        return self._processes[self.drawn[-1].name]

    def grow(self, *, by_mib: int) -> None:
        """Have the last pod take so much more, and wait for that."""
        self.send(by_mib=by_mib)
        _answered(self.grower)

    def send(self, *, by_mib: int) -> None:
        """Have the last pod begin to take so much more."""
        self._grown_mib += by_mib
        assert self.grower.stdin is not None
        self.grower.stdin.write(f"{self._grown_mib}\n".encode())
        self.grower.stdin.flush()

    def used_bytes(self) -> dict[str, int]:
        """Read what each pod uses."""
        return {name: int(file.read()) for name, file in self._usages.items()}

    def died(self) -> tuple[str, ...]:
        """Return whose processes are dead."""
        return tuple(name for name, process in self._processes.items() if process.poll() is not None)

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


def run_heat(case: Case, random: Random, directory: Path, spin: list[str]) -> Outcome:
    """Run one heat; `spin` is the command of what keeps a CPU busy. Raises AssertionError, OSError."""
    drawn = draw(random, _DRAWN_MIB)
    tree = CgroupTree.discover()
    with ExitStack() as stack:
        node = stack.enter_context(VirtualNode(tree, NODE_MIB * MIB, f"reactor-survival-{os.getpid()}"))
        daemon = RunningDaemon(directory, node.cgroup)
        stack.callback(_end, daemon)
        pods = _Pods(node, drawn, case.scores)
        stack.callback(pods.close)
        daemon.configure(
            {
                "evictionHard": {"memory.available": f"{_THRESHOLD_MIB}Mi"},
                "evictionPressureTransitionPeriod": "0s",
            },
            {
                "housekeepingInterval": "500ms",
                "oomOrder": "policy" if case.is_ordered else "leave",
                # A quota holds for ordinary tasks alone.
                "realtime": {"fifoPriority": 0 if case.condition is Condition.STARVED else 50},
            },
        )
        if case.is_ordered or case.condition in {Condition.RUNNING, Condition.STARVED}:
            daemon.start()
            after_passes(daemon, 1)
        near_bytes = (NODE_MIB - _THRESHOLD_MIB - _AHEAD_MIB // 2) * MIB
        while node.usage_bytes() < near_bytes:
            pods.grow(by_mib=1)
        if case.is_ordered:
            eventually(lambda: daemon.status()["oom_order"]["first"], "the order is taken")
            time.sleep(0.3)  # of pods that are put behind the first, the last may not be written yet
        first_before = first_of(drawn, pods.used_bytes())
        stack.enter_context(_in_condition(case.condition, daemon, tree, spin))
        return _raced(pods, drawn, first_before)


def _raced(pods: _Pods, drawn: tuple[DrawnPod, ...], first_before: str | None) -> Outcome:
    """Have the last pod grow until a pod dies."""
    pods.send(by_mib=NODE_MIB)
    deadline = time.monotonic() + _LAST_SECONDS
    seen = pods.used_bytes()
    is_over = False
    while time.monotonic() < deadline:
        now = pods.used_bytes()
        died = pods.died()
        if died:
            return Outcome(died=died, first=first_of(drawn, seen), first_before=first_before)
        # No pod gives anything back but one that has been killed, which ends a moment later.
        is_over |= any(now[name] < seen[name] - _BATCH_BYTES for name in now)
        if not is_over:
            seen = {name: max(now[name], seen[name]) for name in now}
    return Outcome(died=(), first=None, first_before=first_before)


@contextmanager
def _in_condition(
    condition: Condition, daemon: RunningDaemon, tree: CgroupTree, spin: list[str]
) -> Iterator[None]:
    """Do to the guard what the condition says, and undo it in the end."""
    with ExitStack() as stack:
        if condition is Condition.STARVED:
            stack.enter_context(_starved(daemon, tree))
            for _ in range(os.cpu_count() or 1):
                spinner = subprocess.Popen(spin)
                stack.callback(spinner.wait)
                stack.callback(spinner.kill)
        elif daemon.process is not None and condition is Condition.STOPPED:
            daemon.signal(signal.SIGSTOP)
            stack.callback(daemon.signal, signal.SIGCONT)
        elif daemon.process is not None and condition is Condition.DEAD:
            daemon.kill()
        yield


@contextmanager
def _starved(daemon: RunningDaemon, tree: CgroupTree) -> Iterator[None]:
    """Leave the guard 1 % of a CPU."""
    assert daemon.process is not None
    assert tree.cpu_root is not None
    cgroup = f"/reactor-starved-{os.getpid()}"
    directory = tree.path(cgroup, "cpu")
    directory.mkdir()
    try:
        tree.set_cpu_quota(cgroup, _STARVED_US)
        (directory / "cgroup.procs").write_text(str(daemon.process.pid))
        try:
            yield
        finally:
            daemon.kill()
    finally:
        eventually(lambda: not (directory / "cgroup.procs").read_text(), "the guard is gone")
        directory.rmdir()


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
