"""What the tests of the sources need of this machine: a cgroup of their own and a process that fills it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

V1_ROOT = Path("/sys/fs/cgroup/memory")

needs_memcg_v1 = pytest.mark.skipif(
    os.geteuid() != 0 or not (V1_ROOT / "cgroup.event_control").exists(),
    reason="needs root and the memory controller on cgroup v1 (boot with systemd.unified_cgroup_hierarchy=0)",
)

_HOG = """
import mmap, os, sys
cgroup, *_ = sys.argv[1:]
open(cgroup + "/cgroup.procs", "w").write(str(os.getpid()))
memory = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
touched = 0
print("ready", flush=True)
for line in sys.stdin:
    wanted = int(line) << 20
    if wanted < touched:
        memory.madvise(mmap.MADV_DONTNEED, wanted, touched - wanted)
    for offset in range(touched, wanted, 4096):
        memory[offset] = 1
    touched = wanted
    print("done", flush=True)
"""


class Hog:
    """A process in the cgroup that holds as much anonymous memory as it is told to."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _HOG, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._answer()

    def hold_mib(self, mib: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{mib}\n".encode())
        self._process.stdin.flush()
        self._answer()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline()


@contextmanager
def hog(directory: Path) -> Iterator[Hog]:
    process = Hog(directory)
    try:
        yield process
    finally:
        process.end()


def remove_cgroup(directory: Path) -> None:
    """Remove a cgroup whose last process may still be on its way out."""
    deadline = time.monotonic() + 10
    while directory.exists():
        try:
            directory.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail where it doesn't for ten seconds."""
    with trio.fail_after(10):
        while True:
            if condition():
                return
            await trio.sleep(0.001)
