"""The floor under every latency: a C program that waits for the same event and kills, and does nothing else.

Its times are taken by the allocator and the observer, as those of every contestant. A daemon's times on the
same machine in the same minutes, divided by these, say how much of them is the daemon's own.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reactor.errors import RefusedError
from reactor.kernel.bpf.objects import absent_because
from reactor.kernel.bpf.probes import MemoryProbe
from reactor.kernel.bpf.records import Level
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import write_file
from reactor.testbed.allocator import Record, compiled_tool, hog
from reactor.testbed.crossing import LEVEL_BYTES, Run, prepared_hog
from reactor.testbed.daemon_process import wait_until
from reactor.testbed.virtual_node import VirtualNode

_PAGE_BYTES: Final = 4096
_READY_SECONDS: Final = 60.0
_NEVER_AGAIN_PAGES: Final = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What the floor waits for.

    `mode` is one of floor.c's: memcg (v1), ring or events (v2), poll with its `interval_ms`.
    """

    mode: str
    interval_ms: int = 0


def preferred_wait(version: CgroupVersion) -> Wait:
    """Return the fastest event that this kernel has for a crossing."""
    if version is CgroupVersion.V1:
        return Wait(mode="memcg")
    return Wait(mode="ring" if absent_because("memory") is None else "events")


@contextmanager
def floor(
    node: VirtualNode, cgroup: str, wait: Wait, level_bytes: int, pids: Sequence[int], record: Record
) -> Iterator[None]:
    """Have the floor wait for the node's crossing, to kill what is in the pod: `pids`, on v1 no others.

    What it reports in `record`: word 0 that it waits, 1 the wake, 2 the kill, all in ns on CLOCK_MONOTONIC.
    Raises RefusedError where it doesn't start, BpfError and OSError of the event that it waits for.
    """
    with ExitStack() as stack:
        arguments, fds = stack.enter_context(_armed(node, wait, level_bytes))
        kill_file = node.tree.path(cgroup) / "cgroup.kill"  # v2, since 5.14
        target = [str(kill_file)] if kill_file.exists() else [str(pid) for pid in pids]
        command = [str(compiled_tool("floor", "bench")), wait.mode, str(record.path), *arguments, *target]
        process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=fds)
        )
        stack.callback(process.kill)
        if not wait_until(lambda: record.words()[0] > 0 or process.poll() is not None, _READY_SECONDS):
            raise RefusedError(f"the floor ({wait.mode}) is not ready after {_READY_SECONDS:g} s")
        if process.poll() is not None and process.stderr is not None:
            raise RefusedError(f"the floor ended: {process.stderr.read().decode(errors='replace').strip()}")
        yield


@contextmanager
def _armed(node: VirtualNode, wait: Wait, level_bytes: int) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """Arm what the kernel has to offer, and yield floor.c's arguments and the descriptors it inherits."""
    directory = node.tree.path(node.cgroup)
    if wait.mode == "ring":
        with MemoryProbe() as probe:
            pages = level_bytes // _PAGE_BYTES
            once = Level(fire=pages, rearm=pages, step=_NEVER_AGAIN_PAGES)
            probe.watch(probe.counters(directory).memory, 1, [once])
            yield [str(probe.fd)], (probe.fd,)
    elif wait.mode == "events":
        high = directory / "memory.high"
        write_file(high, str(level_bytes))
        try:
            yield [str(directory / "memory.events")], ()
        finally:
            write_file(high, "max")
    elif wait.mode == "memcg":
        yield [str(directory), str(level_bytes)], ()
    else:
        # A crossing is not in step with a poller: the first look is at any point of its round.
        phase_ms = random.randint(0, wait.interval_ms)  # noqa: S311
        yield [str(node.usage_path()), str(level_bytes), str(wait.interval_ms), str(phase_ms)], ()


class FloorCrossings:
    """Has hogs killed by the floor as `Crossings` has them evicted by a daemon, for the same figures."""

    def __init__(self, node: VirtualNode, tool: Path, directory: Path, wait: Wait | None = None) -> None:
        self._node = node
        self._tool = tool
        self._directory = directory
        self._wait = wait or preferred_wait(node.tree.version)

    def run(self, rate_bytes: int) -> Run:
        """Have one killed; of the stages there are the wake and the kill. Raises RefusedError."""
        cgroup, plan = prepared_hog(self._node, rate_bytes)
        with ExitStack() as stack, Record(self._directory, "floor") as record:

            def arm(pids: Sequence[int]) -> None:
                waiting = floor(self._node, cgroup, self._wait, LEVEL_BYTES, pids, record)
                stack.enter_context(waiting)

            with hog(self._node, cgroup, self._tool, self._directory, plan, armed=arm) as running:
                times = running.times()
            _, woke_ns, killed_ns, *_ = record.words()
        if None in (times.crossed_ns, times.dead_ns, times.back_ns):
            raise RefusedError(f"the floor ({self._wait.mode}) did not kill the hog: {times}")
        timing = {"woke_ns": woke_ns, "started_ns": woke_ns, "decided_ns": woke_ns, "killed_ns": killed_ns}
        return Run(times=times, timing=timing, woken_by=frozenset({self._wait.mode}))
