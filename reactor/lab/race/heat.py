"""One heat: allocators cross the level, and what became of them by the C programs' clocks alone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reactor.errors import RefusedError
from reactor.kernel.cgroup import MemoryCounters
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.files import read_file, write_file
from reactor.lab.crossing import LEVEL_BYTES
from reactor.lab.daemon_process import wait_until
from reactor.lab.hog import MIB
from reactor.lab.race.course import Course
from reactor.lab.race.enclosure import Enclosure, Sample
from reactor.lab.tool import Record
from reactor.lab.virtual_node import VirtualNode

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
            return counters.inactive_file_bytes()
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
