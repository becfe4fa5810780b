"""Where contestants run: they can neither see nor signal anything but the allocators of the race.

Namespaces of processes and mounts of their own, made by enclosure.c: /proc shows what was started in here,
/run is empty, and /proc/meminfo is the virtual node, brought up to date every millisecond, with its swap if
that has a limit. So a daemon that was written for a whole machine guards the node, with nothing else in its
reach.
/proc/pressure is as outside.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

from reactor.errors import RefusedError
from reactor.kernel import libc
from reactor.testbed.allocator import Record, compiled_tool
from reactor.testbed.daemon_process import wait_until
from reactor.testbed.virtual_node import VirtualNode

PAIR: Final = struct.Struct("=qq")
_SAMPLES: Final = 1 << 14  # 16 s at one a millisecond: longer than the slowest poller sleeps
_TMPFS: Final = "/dev/shm"  # noqa: S108 - a directory of our own is made in it
_READY_SECONDS: Final = 60.0

Sample = tuple[int, int]  # ns on CLOCK_MONOTONIC, bytes used


class Enclosure:
    """A context manager: what runs inside ends with it."""

    def __init__(self, node: VirtualNode, directory: Path) -> None:
        self._node = node
        self._directory = Path(tempfile.mkdtemp(prefix="enclosure-", dir=directory))
        self._tool = str(compiled_tool("enclosure", "bench.race"))
        self._owned = ExitStack()
        self._first_pid = 0
        self._in_memory = Path()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._record = stack.enter_context(Record(self._directory, "enclosure"))
            self._samples = stack.enter_context(zeroed(self._directory / "samples", _SAMPLES))
            shared = tempfile.TemporaryDirectory(prefix="reactor-race-", dir=_TMPFS)
            self._in_memory = Path(stack.enter_context(shared))
            self._first_pid = self._hold(stack)
            own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, own)
            inner = os.open(f"/proc/{self._first_pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, inner)
            self._namespaces = (own, inner)
            self._owned = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    @property
    def in_memory(self) -> Path:
        """Return a directory on a tmpfs, where no write waits for a disk; it ends with the enclosure."""
        return self._in_memory

    @property
    def meminfo(self) -> Path:
        """Return the file that /proc/meminfo shows inside."""
        return self._in_memory / "meminfo"

    @contextmanager
    def births(self) -> Iterator[None]:
        """Have what this thread starts in the body be born inside. The PIDs that we get are still ours."""
        own, inner = self._namespaces
        libc.enter_namespace(inner)
        try:
            yield
        finally:
            libc.enter_namespace(own)

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a contestant: inside, and with the mounts of inside. The caller ends it."""
        with log.open("wb") as output, self.births():
            return subprocess.Popen(
                [self._tool, "enter", str(self._first_pid), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                # cgroup.procs has 0 for who is outside, and a peer that signals 0 hits its process group.
                start_new_session=True,
            )

    def samples(self, since_ns: int) -> list[Sample]:
        """Return the node's usage as it was since then, at most the last 16 s, oldest first."""
        count = self._record.words()[1]
        places = [place % _SAMPLES for place in range(max(0, count - _SAMPLES + 1), count)]
        found = [PAIR.unpack_from(self._samples, place * PAIR.size) for place in places]
        return [(at_ns, used) for at_ns, used in found if at_ns >= since_ns]

    def _hold(self, stack: ExitStack) -> int:
        directory = self._node.tree.path(self._node.cgroup)
        amounts = [str(directory), str(self._node.memory_bytes), str(self._directory / "samples")]
        amounts.append(str(self.meminfo))
        process = stack.enter_context(
            subprocess.Popen(
                [self._tool, "hold", str(self._record.path), *amounts],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        stack.callback(process.kill)

        def ended() -> bool:
            return process.poll() is not None

        ready = wait_until(lambda: self._record.words()[0] > 0 or ended(), _READY_SECONDS)
        if not ready or ended() or process.stdout is None or process.stderr is None:
            process.kill()
            _, problem = process.communicate()
            raise RefusedError(
                f"no enclosure for the contestants: {problem.decode(errors='replace').strip()}"
            )
        return int(process.stdout.readline())


@contextmanager
def zeroed(path: Path, pairs: int) -> Iterator[mmap.mmap]:
    """Map a file for so many pairs of 64-bit words, its pages charged to us and not to the node."""
    path.write_bytes(bytes(PAIR.size * pairs))
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        memory = mmap.mmap(fd, PAIR.size * pairs)
    finally:
        os.close(fd)
    with memory:
        yield memory
