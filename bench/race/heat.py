"""A course (pace, number of allocators, load, page cache) and one heat of it, by the C programs' clocks."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from bench.race.enclosure import Enclosure, Sample
from reactor.errors import RefusedError
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.cgroup_memory import MemoryCounters
from reactor.kernel.files import read_file, write_file
from reactor.testbed.allocator import MIB, Record
from reactor.testbed.crossing import LEVEL_BYTES
from reactor.testbed.daemon_process import wait_until
from reactor.testbed.virtual_node import VirtualNode

STEP: Final = "step"
# How an allocator reaches the level: at full speed from nothing, or from shortly before it at so many MiB/s.
PACES: Final = (STEP, "100", "1000", "max")
_RAMP_MIB: Final = {STEP: LEVEL_BYTES // MIB, "100": 20, "1000": 60, "max": 60}
_SEVERAL: Final = 4
_CACHE_BYTES: Final = 192 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One kind of heat.

    `pace` is one of PACES; several allocators are in one pod and share the pace. With `is_busy` every CPU
    has something else to do, with `has_cache` a pod of the node holds page cache, which is available memory.
    """

    pace: str
    allocators: int = 1
    is_busy: bool = False
    has_cache: bool = False

    @property
    def name(self) -> str:
        """Return what it is called in tables and on the command line, such as "step-busy"."""
        pace = self.pace if self.pace == STEP else f"ramp-{self.pace}"
        several = f"-{self.allocators}-allocators" if self.allocators > 1 else ""
        return f"{pace}{several}{'-busy' if self.is_busy else ''}{'-cache' if self.has_cache else ''}"

    @property
    def description(self) -> str:
        """Return what it is, in words."""
        paces = {
            STEP: "at full speed from an idle node",
            "max": "at full speed from shortly before the level",
        }
        pace = paces.get(self.pace, f"at {self.pace} MiB/s from shortly before the level")
        who = "one allocator" if self.allocators == 1 else f"{self.allocators} allocators in one pod"
        busy = ", every CPU busy" if self.is_busy else ""
        cache = f", {self.cache_bytes // MIB} MiB of page cache in the node" if self.has_cache else ""
        return f"{who} {pace}{busy}{cache}"

    @property
    def cache_bytes(self) -> int:
        """Return how much page cache there is to be."""
        return _CACHE_BYTES if self.has_cache else 0

    @property
    def rate_bytes(self) -> int:
        """Return how fast each allocator is to grow, in bytes a second; 0 is as fast as it goes."""
        return 0 if self.pace in {STEP, "max"} else int(self.pace) * MIB // self.allocators

    @property
    def prefill_bytes(self) -> int:
        """Return what each allocator takes beforehand."""
        return (LEVEL_BYTES - _RAMP_MIB[self.pace] * MIB) // self.allocators


DEFAULT: Final = (
    Course(pace=STEP),
    Course(pace="100"),
    Course(pace="1000"),
    Course(pace="max"),
    Course(pace=STEP, is_busy=True),
    Course(pace=STEP, allocators=_SEVERAL),
    Course(pace=STEP, has_cache=True),
)
FULL: Final = tuple(
    Course(pace=pace, allocators=allocators, is_busy=is_busy, has_cache=has_cache)
    for has_cache, is_busy, allocators, pace in product((False, True), (False, True), (1, _SEVERAL), PACES)
)


_READY_SECONDS: Final = 60.0
_BACK_SLACK_BYTES: Final = 4 * MIB
_SPARE_BYTES: Final = 8 * MIB  # below the node's limit, so that the kernel's OOM killer has no part in it
_POD: Final = "allocators"
_CACHE_POD: Final = "cache"
# Without the cpu controller: on v1 it would refuse real-time priority to the thread that reports the kill.
_CONTROLLERS: Final = ("memory", "freezer", "pids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """One heat's instants, in ns on CLOCK_MONOTONIC; None is what did not happen in time.

    `crossed_ns` is before the page that crossed the level was touched; `dead_ns` is when the first of the
    allocators was told to die; `back_ns` when the node's usage was what it was before, or with several
    allocators when half of what one of them held had come back. `samples` are the node's usage.
    """

    crossed_ns: int | None
    dead_ns: int | None
    back_ns: int | None
    level_bytes: int
    peak_bytes: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The allocators of a heat in their pod before they begin; the level is of usage, page cache included."""

    cgroup: str
    pids: tuple[int, ...]
    level_bytes: int


Arm = Callable[[Ready], AbstractContextManager[object]]


class Track:
    """Where heats are run: a virtual node with its enclosure."""

    def __init__(self, node: VirtualNode, enclosure: Enclosure, tool: Path, directory: Path) -> None:
        self.node = node
        self.enclosure = enclosure
        self.tool = tool
        self.directory = directory

    def heat(self, course: Course, arm: Arm, pause_ms: int, timeout_seconds: float) -> Finish:
        """Have the level crossed and return what became of it.

        The allocators wait for `pause_ms` after what they take beforehand, so that a poller is met at any
        point of its round. Raises RefusedError where they don't start.
        """
        with ExitStack() as stack:
            self._fill_cache(course, stack)
            before_bytes = self.node.usage_bytes()
            level_bytes = LEVEL_BYTES + self._inactive_file_bytes()
            deaths = stack.enter_context(Record(self.directory, "deaths"))
            records = [
                stack.enter_context(Record(self.directory, f"allocator-{number}"))
                for number in range(course.allocators)
            ]
            back_bytes = before_bytes + _BACK_SLACK_BYTES
            if course.allocators > 1:
                back_bytes = level_bytes - LEVEL_BYTES // course.allocators // 2
            cgroup = self.node.add_pod(_POD)
            stack.callback(self.node.remove_pod, cgroup)
            observer = stack.enter_context(self._observer(deaths, back_bytes, timeout_seconds))
            pids = tuple(
                self._allocator(cgroup, course, record, deaths, level_bytes, pause_ms) for record in records
            )
            self._reset_watermark()
            stack.enter_context(arm(Ready(cgroup=cgroup, pids=pids, level_bytes=level_bytes)))
            began_ns = time.monotonic_ns()
            for record in records:
                record.go()
            observer.wait(timeout_seconds + _READY_SECONDS)
            return self._finish(deaths, records, level_bytes, began_ns)

    def _finish(self, deaths: Record, records: Sequence[Record], level_bytes: int, began_ns: int) -> Finish:
        _, _, dead_ns, back_ns, *_ = deaths.words()
        words = [record.words() for record in records]
        samples = tuple(self.enclosure.samples(began_ns))
        peak_bytes = max(
            self._watermark_bytes(), *(word[5] for word in words), *(used for _, used in samples), 0
        )
        return Finish(
            crossed_ns=crossed_ns(words, dead_ns) if peak_bytes >= level_bytes else None,
            dead_ns=dead_ns or None,
            back_ns=back_ns or None,
            level_bytes=level_bytes,
            peak_bytes=peak_bytes,
            samples=samples,
        )

    def _allocator(
        self, cgroup: str, course: Course, record: Record, deaths: Record, level_bytes: int, pause_ms: int
    ) -> int:
        room_bytes = self.node.memory_bytes - self.node.usage_bytes() - _SPARE_BYTES
        amounts = (level_bytes, course.prefill_bytes, room_bytes // course.allocators, course.rate_bytes)
        command = [str(self.tool), "allocate", str(record.path), str(self.node.usage_path())]
        command += [*map(str, amounts), str(deaths.path), str(pause_ms)]
        with self.enclosure.births():
            return self.node.spawn(cgroup, command, controllers=_CONTROLLERS).pid

    @contextmanager
    def _observer(
        self, deaths: Record, back_bytes: int, timeout_seconds: float
    ) -> Iterator[subprocess.Popen[bytes]]:
        command = [str(self.tool), "await", str(deaths.path), str(self.node.usage_path())]
        command += [str(back_bytes), str(int(timeout_seconds * 1000))]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as observer:
            try:
                if not wait_until(lambda: deaths.words()[0] > 0, _READY_SECONDS):
                    raise RefusedError("the observer of the allocators did not start")
                yield observer
            finally:
                observer.kill()

    def _fill_cache(self, course: Course, stack: ExitStack) -> None:
        """Have a pod of the node read a file, where the course has page cache; it is dropped afterwards."""
        if not course.has_cache:
            return
        path = self.directory / "cached"
        if not path.exists():
            path.write_bytes(bytes(course.cache_bytes))
        drop_cache(path)  # the next reader is charged for it
        stack.callback(drop_cache, path)
        cgroup = self.node.add_pod(_CACHE_POD)
        stack.callback(self.node.remove_pod, cgroup)
        read = ["/bin/sh", "-c", 'exec cat "$1" >/dev/null', "sh", str(path)]
        self.node.spawn(cgroup, read, controllers=_CONTROLLERS).wait(_READY_SECONDS)
        self.node.spawn(cgroup, [str(self.tool), "idle"], controllers=_CONTROLLERS)

    def _inactive_file_bytes(self) -> int:
        counters = MemoryCounters(self.node.tree, self.node.cgroup)
        try:
            return counters.available_cache_bytes()
        finally:
            counters.close()

    def _reset_watermark(self) -> None:
        if self.node.tree.version is CgroupVersion.V1:
            write_file(self._watermark_path(), "0")

    def _watermark_bytes(self) -> int:
        """Return the kernel's own record of the most that was used; 0 on v2, where it can't be reset."""
        return int(read_file(self._watermark_path())) if self.node.tree.version is CgroupVersion.V1 else 0

    def _watermark_path(self) -> Path:
        return self.node.tree.path(self.node.cgroup) / "memory.max_usage_in_bytes"


def crossed_ns(words: Sequence[Sequence[int]], dead_ns: int) -> int | None:
    """Return when the level was crossed, by the allocators' records; None where no record can tell.

    By the one that saw the usage least far past the level: another may have stood between its clock and its
    crossing, waiting for a CPU. Where none had the time to say so, killed at the very page that crossed, the
    last instant before a page and before the kill stands; so latencies are overstated, never understated.
    """
    saw = [(word[2], word[1]) for word in words if word[2] and (not dead_ns or word[1] <= dead_ns)]
    if saw:
        return min(saw)[1]
    return max((word[1] for word in words if word[1] and (not dead_ns or word[1] <= dead_ns)), default=None)


def drop_cache(path: Path) -> None:
    """Have the kernel forget a file's pages: the next reader is charged for them."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
