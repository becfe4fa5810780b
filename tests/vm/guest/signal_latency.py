"""From the crossing to SIGKILL by a warrant and by a C program that waits for the event, in turns.

Both times are from the kernel's record of the crossing: to where the program sent the signal, and to where
the C program had written cgroup.kill. Charged after the crossing is by how much the pod's memory.peak (since
5.19) is above what was charged at the crossing. Run as root in a machine with cgroup v2:

    python signal_latency.py --crossings 100 --cgroups 330 --busy
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from probing import MIB, PAGE, PAGES, ROOT, Cgroup
from warranting import Node

from reactor.kernel.bpf.probes import MemoryProbe
from reactor.kernel.bpf.records import Level, RecordKind
from reactor.kernel.bpf.warrants import WarrantProbe
from reactor.testbed.allocator import Record, compiled_tool
from reactor.testbed.crossing import busy_cpus, summary

_BEFORE_MIB: Final = 16  # that the allocator takes before it crosses
_TAKES_MIB: Final = 96
_SECONDS: Final = 120.0
_NEVER_AGAIN: Final = 1 << 40
_PAUSE_SECONDS: Final = 0.2


class Crossing(NamedTuple):
    """From the crossing to the signal, and what was charged meanwhile."""

    signal_us: float
    charged_kib: float


class Before(NamedTuple):
    """What the node and the victim are charged with before the allocator begins."""

    node_pages: int
    victim_pages: int


class Course:
    """A node with an allocator in one of its pods, who begins anew for each crossing."""

    def __init__(self, node: Node, directory: Path) -> None:
        self._node = node
        self._directory = directory
        self._allocator = compiled_tool()
        self._floor = compiled_tool("floor", "bench")

    def by_the_kernel(self) -> Crossing:
        """Have a warrant served."""
        with self._allocating() as (before, allocated):
            fire = before.node_pages + _BEFORE_MIB * PAGES
            self._node.arm(replace(self._node.terms(0), level=fire))
            allocated.go()
            result = self._node.served()
            assert result.crossed_ns is not None
            assert result.signalled_ns is not None
            time.sleep(_PAUSE_SECONDS)
            charged = self._charged(before, result.value_pages)
            return Crossing((result.signalled_ns - result.crossed_ns) / 1000, charged)

    def by_the_floor(self, probe: MemoryProbe, watch_id: int) -> Crossing:
        """Have the C program wait for the crossing and kill."""
        with self._allocating() as (before, allocated), Record(self._directory, "floor") as record:
            fire = before.node_pages + _BEFORE_MIB * PAGES
            counter = probe.counters(self._node.cgroup.path).memory
            probe.watch(counter, watch_id, [Level(fire=fire, rearm=fire, step=_NEVER_AGAIN)])
            kill = self._node.victim.path / "cgroup.kill"
            command = [self._floor, "ring", record.path, str(probe.fd), kill]
            with subprocess.Popen(command, pass_fds=(probe.fd,), stdin=subprocess.DEVNULL) as process:
                wait_for(lambda: record.words()[0] > 0)
                allocated.go()
                process.wait(_SECONDS)
            killed_ns = record.words()[2]
            (crossed,) = (one for one in probe.take() if one.kind is RecordKind.CROSSING)
            probe.unwatch(counter)
            time.sleep(_PAUSE_SECONDS)
            return Crossing((killed_ns - crossed.at_ns) / 1000, self._charged(before, crossed.value))

    @contextmanager
    def _allocating(self) -> Iterator[tuple[Before, Record]]:
        """Yield what is charged, and the record of an allocator that waits."""
        victim = self._node.victim = self._node.cgroup.child(f"victim-{time.monotonic_ns()}")
        counter = self._node.counter(victim)
        self._node.probe.place(counter, 1)
        with Record(self._directory, "allocated") as allocated:
            record = str(allocated.path)
            command = [str(self._allocator), "fill", record, str(_TAKES_MIB * MIB), "small"]
            victim.run(lambda: os.execv(command[0], command))  # noqa: S606 - it was compiled here
            wait_for(lambda: "allocator" in comm(victim.pids[0]))
            time.sleep(_PAUSE_SECONDS)
            try:
                node_pages = pages(self._node.cgroup.path / "memory.current")
                yield Before(node_pages, pages(victim.path / "memory.current")), allocated
            finally:
                self._node.probe.displace(counter)
                victim.remove()

    def _charged(self, before: Before, at_crossing: int) -> float:
        """Return what the victim was charged after the crossing, in KiB; nobody else is charged."""
        others = before.node_pages - before.victim_pages
        peak = pages(self._node.victim.path / "memory.peak")
        return max(0, others + peak - at_crossing) * PAGE / 1024


def pages(file: Path) -> int:
    return int(file.read_text()) // PAGE


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def told(name: str, crossings: Sequence[Crossing]) -> str:
    """Return a row: signal and charged, p50 / p99 / max."""
    signal = summary([one.signal_us for one in crossings])
    charged = summary([one.charged_kib for one in crossings])
    spreads = (
        " / ".join(f"{found[key]:,.0f}" for key in ("p50", "p99", "max")) for found in (signal, charged)
    )
    return f"| {name} | {' | '.join(spreads)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--crossings", type=int, default=100, help="of each (100)")
    parser.add_argument("--cgroups", type=int, default=0, help="more below the node, as of other pods (0)")
    parser.add_argument("--busy", action="store_true", help="every CPU has something else to do")
    asked = parser.parse_args()
    made: list[Cgroup] = []
    kernel: list[Crossing] = []
    floor: list[Crossing] = []
    try:
        with (
            tempfile.TemporaryDirectory() as directory,
            WarrantProbe() as warrants,
            MemoryProbe() as probe,
            busy_cpus(compiled_tool()) if asked.busy else nullcontext(),
        ):
            node = Node(warrants, Cgroup(ROOT / f"reactor-latency-{os.getpid()}", made))
            for number in range(asked.cgroups):
                node.other.child(f"c{number}")
            course = Course(node, Path(directory))
            for number in range(asked.crossings):
                kernel.append(course.by_the_kernel())
                floor.append(course.by_the_floor(probe, number + 1))
    finally:
        for cgroup in reversed(made):
            cgroup.remove()
    busy = "busy" if asked.busy else "idle"
    print(f"{os.uname().release}, {busy}, {asked.cgroups + 3} cgroups, {asked.crossings} crossings each")
    print("| | signal after, us, p50 / p99 / max | charged after the crossing, KiB, p50 / p99 / max |")
    print("|---|---|---|")
    print(told("in the kernel", kernel))
    print(told("C program", floor))


if __name__ == "__main__":
    main()
