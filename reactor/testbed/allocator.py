"""The allocator and other C programs, each compiled at its first use, and a pod's hog that is one.

A measurement must not depend on the daemon's report, nor on the pauses of an interpreter: a program that
allocates or observes is C with its own clock readings. The source is shipped; a compiler is needed once for
each version.
"""

from __future__ import annotations

import atexit
import hashlib
import mmap
import os
import shutil
import stat
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from reactor.errors import RefusedError
from reactor.kernel.cgroup_directory import CgroupVersion
from reactor.kernel.files import read_file, write_file
from reactor.testbed.daemon_process import wait_until
from reactor.testbed.virtual_node import VirtualNode

_WORDS: Final = 8
_SHARED: Final = Path("/tmp")  # noqa: S108 - sticky and root's: no other user exchanges what is ours there
_LAST_NS, _GO = 3, 6


def compiled_tool(name: str = "allocator", package: str = "reactor.testbed") -> Path:
    """Return the path of the package's program, compiled from NAME.c by `make bpf`, or else here.

    Its name has the source's hash and the machine's kind, so that none of another source is used. Raises
    RefusedError where there is no compiler or the compilation fails.
    """
    files = resources.files(package)
    source = files.joinpath(f"{name}.c").read_bytes()
    named = f"{name}-{hashlib.sha256(source).hexdigest()[:16]}"
    built = Path(str(files)) / "compiled" / f"{named}-{os.uname().machine}"
    if os.access(built, os.X_OK):
        return built
    tool = _cache_directory() / named
    if not tool.exists():
        _compile(source, tool)
    return tool


class Record:
    """The eight 64-bit words through which the tool reports; they outlive its death.

    A file that we have touched first, so that its page is charged to us and not to a pod. `directory` is to
    outlive the process that reports there.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / name
        self.path.write_bytes(bytes(8 * _WORDS))
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._memory = mmap.mmap(fd, 8 * _WORDS)
        finally:
            os.close(fd)

    def words(self) -> tuple[int, ...]:
        """Return the words as they are now; zero is what has not happened."""
        return struct.unpack(f"={_WORDS}q", self._memory[:])

    def go(self) -> None:
        """Let the allocator that reports here begin."""
        self._memory[8 * _GO : 8 * _GO + 8] = struct.pack("=q", 1)

    def is_done(self) -> bool:
        """Return whether what was to begin has cleared that again."""
        return self.words()[_GO] == 0

    def is_filled(self) -> bool:
        """Return whether an allocator that fills has taken all that it was to."""
        return self.words()[_LAST_NS] > 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._memory.close()  # the file stays: a process may be about to open it


def _cache_directory() -> Path:
    """Return a directory that only we can write: what is in it will be executed.

    Where the user's cache is none, as for root with a user's HOME, it is one of this process's alone, and
    ends with it.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(os.path.realpath(home)) / "reactor"
    try:
        if _is_ours(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_ours(directory):
                return directory
    except OSError:
        pass
    return _own_directory()


def _is_ours(directory: Path, *, may_be_sticky: bool = False) -> bool:
    """Return whether no other user can change or exchange a directory, or what there is yet of its path.

    The owner of one above it can rename what lies there, whoever that belongs to. In a sticky one (/tmp) only
    a file's own user can. Raises OSError.
    """
    for one in (directory, *directory.parents):
        try:
            status = one.lstat()
        except FileNotFoundError:
            continue
        is_sticky = status.st_mode & stat.S_ISVTX and (may_be_sticky or one != directory)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in {0, os.geteuid()}:
            return False
        if status.st_mode & 0o022 and not is_sticky:
            return False
    return True


@cache
def _own_directory() -> Path:
    above = Path(os.path.realpath(tempfile.gettempdir()))
    if not _is_ours(above, may_be_sticky=True):
        above = _SHARED
    directory = Path(tempfile.mkdtemp(prefix="reactor-lab-", dir=above))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _compile(source: bytes, tool: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RefusedError("no C compiler; install one (Debian: apt-get install gcc libc6-dev)")
    # Beside its place and then renamed: two first uses at the same time both end with a whole file.
    unfinished = tool.with_name(f"{tool.name}.{os.getpid()}")
    command = [compiler, "-O2", "-Wall", "-pthread", "-x", "c", "-o", str(unfinished), "-"]
    done = subprocess.run(command, input=source, capture_output=True, check=False)
    if done.returncode:
        raise RefusedError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")
    unfinished.rename(tool)


MIB: Final = 1 << 20
# Back is back to what the node used before, give or take what the kernel keeps in per-CPU batches.
_BACK_SLACK_BYTES: Final = 4 * MIB
OBSERVER_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HogPlan:
    """What a hog is to do: take `prefill_bytes` at once, then go on at `rate_bytes` a second (0: full speed).

    It grows past `level_bytes` of the node's usage, up to the node's limit if it may.
    """

    level_bytes: int
    prefill_bytes: int = 0
    rate_bytes: int = 0
    with_canary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HogTimes:
    """Instants in ns on CLOCK_MONOTONIC, by the C program; None is what did not happen.

    `crossed_ns` is before the page that crossed the level was touched, so that no latency is understated.
    `dead_ns` is when the canary, a process beside the hog with nothing to tear down, had died of the same
    kill; `back_ns` when the hog had ended and the node's usage was what it was before.
    `peak_bytes` is the most that the node used: the kernel's own watermark where there is one.
    """

    started_ns: int
    crossed_ns: int | None
    dead_ns: int | None
    ended_ns: int | None
    back_ns: int | None
    peak_bytes: int
    before_bytes: int
    back_bytes: int


class Hog:
    """A hog at work in its pod, with a canary beside it and an observer on both."""

    def __init__(
        self,
        node: VirtualNode,
        cgroup: str,
        processes: tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]],
        records: tuple[Record, Record],
        before_bytes: int,
        level_bytes: int,
    ) -> None:
        self._node = node
        self._cgroup = cgroup
        self.process, self._observer = processes
        self._allocated, self._observed = records
        self._before_bytes = before_bytes
        self._level_bytes = level_bytes

    def times(self) -> HogTimes:
        """Wait for the observer and return what was measured."""
        self._observer.wait(2 * OBSERVER_SECONDS)
        started_ns, crossed_ns, crossed_usage, _, _, max_usage, *_ = self._allocated.words()
        _, ended_ns, dead_ns, back_ns, back_bytes, *_ = self._observed.words()
        peak_bytes = max(max_usage, self._watermark_bytes())
        # Killed at the very page that crossed, it had no time to say so: the instant before it stands.
        crossed = crossed_usage or peak_bytes >= self._level_bytes
        return HogTimes(
            started_ns=started_ns,
            crossed_ns=crossed_ns if crossed and crossed_ns else None,
            dead_ns=dead_ns or None,
            ended_ns=ended_ns or None,
            back_ns=back_ns or None,
            peak_bytes=peak_bytes,
            before_bytes=self._before_bytes,
            back_bytes=back_bytes,
        )

    def _watermark_bytes(self) -> int:
        """Return the kernel's own record of the most that the node used; 0 where there is none.

        That of v2 can't be reset before 6.12, so it is the pod's, which is as new as the pod.
        """
        if path := _watermark_path(self._node):
            return int(read_file(path))
        peak = self._node.tree.path(self._cgroup) / "memory.peak"  # since 5.19
        return self._before_bytes + int(read_file(peak)) if peak.exists() else 0


@contextmanager
def hog(
    node: VirtualNode,
    cgroup: str,
    tool: Path,
    directory: Path,
    plan: HogPlan,
    *,
    armed: Callable[[Sequence[int]], object] = lambda _: None,
) -> Iterator[Hog]:
    """Start a hog in the pod, which is as new as the hog, and end it if it still runs.

    `armed` is called with the PIDs of the hog and its canary before the hog begins. Raises RefusedError
    where the canary and the observer don't start.
    """
    before_bytes = node.usage_bytes()
    total_bytes = max(node.memory_bytes - before_bytes - 8 * MIB, MIB)
    usage = str(node.usage_path())
    _reset_watermark(node)
    with ExitStack() as stack:
        allocated = stack.enter_context(Record(directory, "allocated"))
        observed = stack.enter_context(Record(directory, "observed"))
        amounts = [
            str(amount) for amount in (plan.level_bytes, plan.prefill_bytes, total_bytes, plan.rate_bytes)
        ]
        process = node.spawn(cgroup, [str(tool), "allocate", str(allocated.path), usage, *amounts])
        watched = [process.pid]
        if plan.with_canary:
            # Not in the pod's cpu cgroup: there real-time priority would be refused (cpu.rt_runtime_us is 0).
            canary = node.spawn(cgroup, [str(tool), "canary"], controllers=("memory", "freezer", "pids"))
            watched.append(canary.pid)
        back = str(before_bytes + _BACK_SLACK_BYTES)
        deadline = str(int(OBSERVER_SECONDS * 1000))
        observer = subprocess.Popen(
            [str(tool), "observe", str(observed.path), usage, back, deadline, *map(str, watched)],
            stdin=subprocess.DEVNULL,
        )
        try:
            if not wait_until(
                lambda: observed.words()[0] > 0 and set(watched) <= set(node.tree.processes(cgroup)),
                OBSERVER_SECONDS,
            ):
                raise RefusedError(f"the hog's company in {cgroup} did not start")
            armed(watched)
            allocated.go()
            yield Hog(
                node, cgroup, (process, observer), (allocated, observed), before_bytes, plan.level_bytes
            )
        finally:
            for child in (observer, process):
                child.kill()
                child.wait()


def _reset_watermark(node: VirtualNode) -> None:
    if path := _watermark_path(node):
        write_file(path, "0")


def _watermark_path(node: VirtualNode) -> Path | None:
    if node.tree.version is CgroupVersion.V2:
        return None
    return node.tree.path(node.cgroup) / "memory.max_usage_in_bytes"
