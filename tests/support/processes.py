"""What runs in a pod: processes that wait, hold memory or write files."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MIB = 1 << 20
PAUSE = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
_HOLD = """
import mmap, signal, sys
size, ignores = int(sys.argv[1]) << 20, sys.argv[2] == "stubborn"
if ignores:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for offset in range(0, size, 4096):
    memory[offset] = 1
signal.pause()
"""
# The raw system call ends the calling thread alone.
_EXIT = {"x86_64": 60}
_LEADERLESS = """
import ctypes, mmap, os, signal, sys, threading
size = int(sys.argv[1]) << 20
def take():
    while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
        pass
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, size, 4096):
        memory[offset] = 1
    print("ready", flush=True)
    signal.sigwait([signal.SIGUSR1])
threading.Thread(target=take).start()
ctypes.CDLL(None).syscall(int(sys.argv[2]), 0)
"""
_WRITE = """
import os, sys
with open(sys.argv[1], "wb") as file:
    for _ in range(int(sys.argv[2])):
        file.write(bytes(1 << 20))
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
"""
# Active page cache: by page faults where the kernel has generations (MGLRU), by being read twice elsewhere.
_READ = """
import mmap, sys, time
with open(sys.argv[1], "rb", buffering=0) as file:
    with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        for _ in range(2):
            for offset in range(0, len(memory), 4096):
                memory[offset]
    for _ in range(4):
        file.seek(0)
        while file.read(1 << 20):
            pass
time.sleep(3600)
"""
_FILL = """
import os, signal, sys, time
directory, what, count, pause_seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
try:
    if what == "bytes":
        with open(os.path.join(directory, "file"), "wb", buffering=0) as file:
            file.truncate(count << 20)
            for _ in range(count):
                file.write(bytes(1 << 20))
                time.sleep(pause_seconds)
    else:
        for number in range(count):
            os.close(os.open(os.path.join(directory, str(number)), os.O_CREAT | os.O_WRONLY))
            time.sleep(pause_seconds if number % 100 == 0 else 0)
except OSError as error:
    print("full", error, file=sys.stderr)
print("written", flush=True)
signal.pause()
"""
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


def hold(mib: int, *, stubborn: bool = False) -> list[str]:
    """Return the command of a process that takes that much memory; a stubborn one ignores SIGTERM."""
    return [sys.executable, "-S", "-c", _HOLD, str(mib), "stubborn" if stubborn else "mild"]


def hold_leaderless(mib: int) -> list[str]:
    """Return the command of a process that takes that much memory after its main thread has exited."""
    return [sys.executable, "-S", "-c", _LEADERLESS, str(mib), str(_EXIT.get(platform.machine(), 93))]


def write_out(path: Path, *, mib: int) -> list[str]:
    """Return the command that writes a file to its disk, leaves none of it in memory, and ends."""
    return [sys.executable, "-S", "-c", _WRITE, str(path), str(mib)]


def read_often(path: Path) -> list[str]:
    """Return the command of a process that makes active page cache of a file, and stays."""
    return [sys.executable, "-S", "-c", _READ, str(path)]


def fill(directory: Path, *, mib: int = 0, files: int = 0, pause_seconds: float = 0.0) -> list[str]:
    """Return the command of a process that writes so much, and then stays.

    The file has its length before its bytes: xfs holds up to as much again for a file that is appended to.
    """
    what = ["bytes", str(mib)] if mib else ["files", str(files)]
    return [sys.executable, "-S", "-c", _FILL, str(directory), *what, str(pause_seconds)]


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

    def wait(self, seconds: float) -> int:
        """Return its exit status once it has ended, which another brings about."""
        return self._process.wait(seconds)

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


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return found + [below for child in found for below in descendants(child)]


def descendants_called(pid: int, name: str) -> list[int]:
    """Return those of a process's descendants that have this in their command line."""
    return [below for below in descendants(pid) if name.encode() in _command(below)]


def is_held(pid: int) -> bool:
    """Return whether this process has a pidfd of that one, by which it is told of its end."""
    for info in Path("/proc/self/fdinfo").iterdir():
        with suppress(OSError):  # closed meanwhile
            if f"\nPid:\t{pid}\n" in info.read_text():
                return True
    return False


def is_running(pid: int) -> bool:
    """Return whether a process is there that has not ended."""
    return bool(_command(pid))


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
