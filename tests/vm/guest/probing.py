"""What the tests of the eBPF probes share: cgroups of their own, processes in them, records awaited."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from reactor.kernel.bpf.probes import MemoryProbe, TasksProbe
from reactor.kernel.bpf.records import Level, RecordKind, WatchRecord

ROOT: Final = Path("/sys/fs/cgroup")
PAGE: Final = mmap.PAGESIZE
MIB: Final = 1 << 20
PAGES: Final = MIB // PAGE

MARKS: Final = [
    pytest.mark.skipif(
        not (ROOT / "cgroup.controllers").exists(), reason="needs cgroup v2: run it on bookworm or trixie"
    ),
    # from Python 3.12 on; nothing of what the children do takes a lock
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


class Cgroup:
    """A cgroup of this test, and the processes that the test has put there."""

    def __init__(self, path: Path, made: list[Cgroup]) -> None:
        self.path = path
        self.pids: list[int] = []
        self._made = made
        path.mkdir()
        made.append(self)

    def child(self, name: str) -> Cgroup:
        (self.path / "cgroup.subtree_control").write_text("+memory +pids")
        return Cgroup(self.path / name, self._made)

    def run(self, work: Callable[[], object]) -> int:
        """Do `work` in a process of this cgroup; the process then waits to be killed."""
        self.pids.append(spawn(self.path, work))
        return self.pids[-1]

    def allocate(self, mib: int) -> int:
        return self.run(lambda: allocate(mib))

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def end(self) -> None:
        while self.pids:
            pid = self.pids.pop()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def remove(self) -> None:
        self.end()
        deadline = time.monotonic() + 30
        while self.path.exists():
            try:
                for child in self.path.glob("*/"):
                    child.rmdir()
                self.path.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def spawn(cgroup: Path, work: Callable[[], object]) -> int:
    """Return the pid of a process in the cgroup that does `work`, keeps its result and waits to be killed."""
    pid = os.fork()
    if pid == 0:
        try:
            (cgroup / "cgroup.procs").write_text("0")
            kept = work()
            while kept is not pid:
                signal.pause()
        finally:
            os._exit(1)
    return pid


def allocate(mib: int) -> mmap.mmap:
    memory = mmap.mmap(-1, mib * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for offset in range(0, mib * MIB, PAGE):
        memory[offset] = 1
    return memory


def level(fire_pages: int, *, step_pages: int = PAGES) -> Level:
    return Level(fire=fire_pages, rearm=fire_pages - 2 * PAGES, step=step_pages)


def told(
    probe: MemoryProbe | TasksProbe, watch_id: int, kind: RecordKind, *, seconds: float = 60
) -> list[WatchRecord]:
    """Return the records of a watch up to the first of this kind; fails where none comes."""
    found: list[WatchRecord] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        select.select([probe.fd], [], [], 0.2)
        found += [record for record in probe.take() if record.watch_id == watch_id]
        if any(record.kind is kind for record in found):
            return found
    raise AssertionError(f"no {kind.name} in {seconds} s, only {found}")


def silent(probe: MemoryProbe | TasksProbe, watch_id: int) -> bool:
    time.sleep(0.5)
    return not any(record.watch_id == watch_id for record in probe.take())
