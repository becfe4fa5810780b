"""/proc: the machine's memory, its process ids, a process's own status. See proc(5).

The parsers take a file's bytes and raise KernelInterfaceError for what proc(5) does not allow.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from reactor.errors import KernelInterfaceError, ReactorError
from reactor.kernel.files import PAGE_BYTES, close_descriptor, parse_integer, read_file, read_value
from reactor.model.kills import ProcessMemory

PROC: Final = Path("/proc")
BOOT_ID: Final = PROC / "sys/kernel/random/boot_id"
_KIB: Final = 1024
_PF_EXITING: Final = 0x4  # include/linux/sched.h
_SCORE: Final = re.compile(rb"-?[0-9]{1,4}")

# The lines that are asked for end after some 800 bytes. A list of groups comes before them, of up to 65,536.
_READ_BYTES: Final = 16 << 10
_STATM_BYTES: Final = 256
_NAME: Final = b"Name:\t"
_ZOMBIE: Final = b"\nState:\tZ"
_MOST_THREADS: Final = 16
_NO_LONGER: Final = frozenset({errno.ENOENT, errno.ESRCH})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInfo:
    """What /proc/meminfo says of the whole machine. `available_bytes` is None before 3.14.

    `huge_pages_bytes` is what the pools of huge pages hold, of all sizes, used or not: part of the total, and
    of use only to those that ask for such pages. 0 before 4.15 and where the kernel has no such pools.
    """

    total_bytes: int
    free_bytes: int
    available_bytes: int | None
    huge_pages_bytes: int = 0

    @property
    def capacity_bytes(self) -> int:
        """Return what ordinary pages can have: the capacity that `memory.available` counts with."""
        return max(0, self.total_bytes - self.huge_pages_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInUse:
    """What /proc/meminfo says of the memory of processes and files, in bytes.

    `usage_bytes` is what the root's memory.stat has as anon and file: NR_ANON_MAPPED and NR_FILE_PAGES, the
    latter without swap cache, which the kernel charges to no cgroup as file.
    """

    usage_bytes: int
    inactive_file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """What /proc/PID/status says that reactor asks for. `capabilities` is the effective set, one bit each."""

    resident_bytes: int
    threads: int
    capabilities: int


def parse_meminfo(raw: bytes, interface: str = "/proc/meminfo") -> MemoryInfo:
    return MemoryInfo(
        total_bytes=_kib_line(raw, b"MemTotal:", interface),
        free_bytes=_kib_line(raw, b"MemFree:", interface),
        available_bytes=optional_kib_line(raw, b"MemAvailable:", interface),
        huge_pages_bytes=optional_kib_line(raw, b"Hugetlb:", interface) or 0,
    )


def parse_swap(raw: bytes, interface: str = "/proc/meminfo") -> tuple[int, int]:
    """Return how much swap the machine has, and how much of it is free, in bytes; 0 and 0 without any."""
    total_bytes = optional_kib_line(raw, b"SwapTotal:", interface) or 0
    return total_bytes, optional_kib_line(raw, b"SwapFree:", interface) or 0


def parse_memory_in_use(raw: bytes, interface: str = "/proc/meminfo") -> MemoryInUse:
    """Return what processes and files use.

    Cached is NR_FILE_PAGES without swap cache and Buffers (page cache of block devices): with Buffers it is
    all page cache.
    """
    return MemoryInUse(
        usage_bytes=sum(
            _kib_line(raw, label, interface) for label in (b"AnonPages:", b"Cached:", b"Buffers:")
        ),
        inactive_file_bytes=_kib_line(raw, b"Inactive(file):", interface),
    )


def parse_kernel_memory(raw: bytes, interface: str = "/proc/meminfo") -> int:
    """Return what the kernel itself holds and can't reclaim, in bytes: of the kinds that it shows.

    What is neither free nor used by processes and files is no measure of it: the free pages that each CPU
    keeps in lists, which MemFree is without, grow to an eighth of the memory since 6.7 (zoneinfo, high_max).
    Kernel stacks are a part of VmallocUsed, where they are vmalloc'ed and it is counted (5.3).
    """
    stacks_bytes, vmalloc_bytes, *others_bytes = (
        optional_kib_line(raw, label, interface) or 0
        for label in (b"KernelStack:", b"VmallocUsed:", b"PageTables:", b"SecPageTables:", b"Percpu:")
    )
    return _kib_line(raw, b"SUnreclaim:", interface) + max(stacks_bytes, vmalloc_bytes) + sum(others_bytes)


def parse_loadavg_tasks(raw: bytes, interface: str = "/proc/loadavg") -> int:
    """Return how many tasks exist, threads included: the total in `0.20 0.18 0.12 1/80 11206`.

    One read instead of a walk over /proc; the kubelet counts the same way.
    """
    fields = raw.split()
    if len(fields) != 5:
        raise KernelInterfaceError(interface, raw[:64], "five fields")
    return parse_integer(fields[3].partition(b"/")[2], interface)


def parse_status(raw: bytes, interface: str = "/proc/self/status") -> ProcessStatus:
    """Return a process's status. Kernel threads have no memory of their own: 0."""
    resident_bytes = _kib_line(raw, b"VmRSS:", interface) if b"\nVmRSS:" in raw else 0
    mask = _line(raw, b"CapEff:", interface)
    try:
        capabilities = int(mask, 16)
    except ValueError:
        raise KernelInterfaceError(interface, mask[:64], "a hexadecimal mask after 'CapEff:'") from None
    return ProcessStatus(
        resident_bytes=resident_bytes,
        threads=parse_integer(_line(raw, b"Threads:", interface), interface),
        capabilities=capabilities,
    )


def parse_start_ticks(raw: bytes, interface: str = "/proc/self/stat") -> int:
    """Return when a process was started, in clock ticks since boot: with its id it names it for good."""
    return stat_fields(raw, (19,), interface)[0]


def stat_fields(raw: bytes, places: Sequence[int], interface: str) -> list[int]:
    """Return numbers of a /proc/PID/stat, by their places: 0 is the state's, which is none."""
    # The name comes in brackets and may hold anything, brackets and blanks included.
    fields = raw.rpartition(b")")[2].split()
    if len(fields) <= max(places):
        raise KernelInterfaceError(interface, raw[:64], f"{max(places) + 3} fields and more")
    return [parse_integer(fields[place], interface) for place in places]


def read_meminfo(proc: Path = PROC) -> MemoryInfo:
    """Return the machine's memory now. Raises OSError with the path."""
    path = proc / "meminfo"
    return parse_meminfo(read_file(path), str(path))


def read_kernel_memory(proc: Path = PROC) -> int:
    """Return what the kernel itself holds now, see `parse_kernel_memory`. Raises OSError with the path."""
    path = proc / "meminfo"
    return parse_kernel_memory(read_file(path), str(path))


def read_task_count(proc: Path = PROC) -> int:
    """Return how many tasks the machine has now, threads included."""
    path = f"{proc}/loadavg"
    return parse_loadavg_tasks(read_value(path), path)


def read_status(proc: Path = PROC, pid: int | None = None) -> ProcessStatus:
    """Return the status of a process, by default the caller's."""
    path = proc / ("self" if pid is None else str(pid)) / "status"
    return parse_status(read_file(path), str(path))


def read_oom_score_adj(pid: int, proc: Path = PROC) -> int:
    """Return a process's bias towards being killed for memory, -1000 to 1000."""
    path = f"{proc}/{pid}/oom_score_adj"  # with pathlib a listing of pods would take 8 % longer
    raw = read_value(path).strip()
    if not _SCORE.fullmatch(raw):
        raise KernelInterfaceError(path, raw[:64], "a number from -1000 to 1000")
    return int(raw)


def read_name(pid: int, proc: Path = PROC) -> str:
    """Return the name of a process's program, cut off at 15 bytes as the kernel has it."""
    return read_file(proc / str(pid) / "comm").rstrip(b"\n").decode("utf-8", "replace")


def read_start_ticks(proc: Path = PROC, pid: int | None = None) -> int:
    """Return when a process was started, by default the caller."""
    path = proc / ("self" if pid is None else str(pid)) / "stat"
    return parse_start_ticks(read_file(path), str(path))


def lasting_name(proc: Path = PROC, pid: int | None = None) -> str:
    """Return `PID:START`, which names a process, by default the caller, and never a later one."""
    return f"{os.getpid() if pid is None else pid}:{read_start_ticks(proc, pid)}"


def lives(name: str, proc: Path = PROC) -> bool:
    """Return whether the process of a `lasting_name` is still there; what is no such name is of none."""
    pid, _, _ = name.partition(":")
    try:
        return pid.isdecimal() and lasting_name(proc, int(pid)) == name
    except (OSError, KernelInterfaceError):
        return False


def parse_is_exiting(raw: bytes, interface: str = "/proc/self/stat") -> bool:
    """Return whether a process's main thread is exiting: PF_EXITING among its flags."""
    return bool(stat_fields(raw, (6,), interface)[0] & _PF_EXITING)


def is_exiting(pid: int, proc: Path = PROC) -> bool:
    """Return whether a process is exiting, or gone; False where that is not known."""
    path = proc / str(pid) / "stat"
    try:
        return parse_is_exiting(read_file(path), str(path))
    except OSError as error:
        return error.errno in _NO_LONGER
    except KernelInterfaceError:
        return False


def _line(raw: bytes, label: bytes, interface: str) -> bytes:
    """Return what follows a label in its line; a last line without its end counts as cut off."""
    start = 0 if raw.startswith(label) else raw.find(b"\n" + label) + 1
    end = raw.find(b"\n", start)
    if end < 0 or not raw.startswith(label, start):
        raise KernelInterfaceError(interface, raw[:64], f"a line {label.decode()!r}")
    return raw[start + len(label) : end].strip(b" \t")


def optional_kib_line(raw: bytes, label: bytes, interface: str) -> int | None:
    """Return the bytes in a line `LABEL NUMBER kB`, None without it. Raises KernelInterfaceError."""
    return _kib_line(raw, label, interface) if b"\n" + label in raw else None


def _kib_line(raw: bytes, label: bytes, interface: str) -> int:
    value = _line(raw, label, interface)
    if not value.endswith(b" kB"):
        raise KernelInterfaceError(interface, value[:64], f"a number of kB after {label.decode()!r}")
    return parse_integer(value[:-3], interface) * _KIB


# /proc/PID/status: what one process holds of memory, and its name. See proc_pid_status(5).
#
# RssAnon and RssShmem are there since 4.5, VmSwap since 2.6.34. The counters are the kernel's own of the
# process's memory, kept for each CPU and added up now and then: some 100 KiB may be missing for each CPU.
#
# The file shows the main thread. Where that has exited and others live on, it is a zombie without memory; the
# memory is all threads' own, and each of the others shows it in /proc/PID/task/TID/status. The kernel's OOM
# killer goes through the threads likewise (find_lock_task_mm(), mm/oom_kill.c).
#
# Who writes what: the name is the process's own (prctl(2), execve(2)); the kernel escapes a line's end and a
# backslash in it, so that it is one line here whatever it is (proc_task_name()). All other lines are the
# kernel's.


class MemoryUnknownError(ReactorError):
    """What a process holds can't be had, though it lives."""


def read_process_memory(pid: int, proc: Path = PROC) -> ProcessMemory | None:
    """Return what a process holds, None where it has no memory: a kernel thread, or one that has exited.

    Raises OSError (ENOENT, ESRCH: it is gone), KernelInterfaceError, and MemoryUnknownError where its main
    thread has exited and no other can be read.
    """
    path = f"{proc}/{pid}/status"
    raw = _status(path)
    found = parse_process_memory(raw, pid, path)
    if found is None and _ZOMBIE in raw:
        shown = _of_threads(f"{proc}/{pid}/task", pid)
        return None if shown is None else replace(shown, name=_name(raw))
    return found


def _of_threads(tasks: str, pid: int) -> ProcessMemory | None:
    """Return what the first thread shows that is not exiting, None where there is none. Raises as above.

    Only a thread that is exiting has let go of its memory: the flag is set before (do_exit()).
    """
    try:
        with os.scandir(tasks) as entries:
            threads = [entry.name for entry in islice(entries, _MOST_THREADS + 1)]
        for number in threads[:_MOST_THREADS]:
            path = f"{tasks}/{number}"
            if number == str(pid):
                continue
            try:
                found = parse_process_memory(_status(f"{path}/status"), pid, path)
                if found is not None:
                    return found
                stat = f"{path}/stat"
                if not parse_is_exiting(read_file(stat), stat):
                    raise MemoryUnknownError(_unknown(pid, f"thread {number} shows no memory"))
            except OSError as error:
                if error.errno not in _NO_LONGER:
                    raise
    except (OSError, KernelInterfaceError) as error:
        if isinstance(error, OSError) and error.errno in _NO_LONGER:
            return None
        raise MemoryUnknownError(_unknown(pid, str(error))) from None
    if len(threads) > _MOST_THREADS:
        raise MemoryUnknownError(_unknown(pid, f"the first {_MOST_THREADS} threads are exiting"))
    return None


def _unknown(pid: int, why: str) -> str:
    return f"what process {pid} holds is not known: its main thread has exited, and {why}"


def _status(path: str) -> bytes:
    """Return a status file up to the line on swap. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw = os.read(fd, _READ_BYTES)
        while b"\nVmSwap:" not in raw and (more := os.read(fd, _READ_BYTES)):
            raw += more
    finally:
        close_descriptor(fd)
    return raw


def read_resident_bytes(pid: int, proc: Path = PROC) -> int:
    """Return what of a process's memory is resident, by /proc/PID/statm: 0 if it has none any more.

    Raises OSError (ENOENT, ESRCH: it is gone) and KernelInterfaceError.
    """
    path = f"{proc}/{pid}/statm"
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw = os.read(fd, _STATM_BYTES)
    finally:
        close_descriptor(fd)
    fields = raw.split()
    if len(fields) < 2 or not fields[1].isdigit():
        raise KernelInterfaceError(path, raw[:64], "a second field of pages")
    return int(fields[1]) * PAGE_BYTES


def parse_process_memory(raw: bytes, pid: int, interface: str = "/proc/PID/status") -> ProcessMemory | None:
    """Return what a status file says, see `read_process_memory`. Raises KernelInterfaceError."""
    first, _, _ = raw.partition(b"\n")
    if not first.startswith(_NAME):
        raise KernelInterfaceError(interface, first[:64], "a first line 'Name:'")
    if b"\nRssAnon:" not in raw:
        return None
    return ProcessMemory(
        pid=pid,
        name=_name(raw),
        anonymous_bytes=_held_bytes(raw, b"\nRssAnon:", interface),
        shared_bytes=_held_bytes(raw, b"\nRssShmem:", interface),
        swap_bytes=_held_bytes(raw, b"\nVmSwap:", interface),
        parent_pid=_pid_line(raw, b"\nPPid:"),
        group_pid=_pid_line(raw, b"\nNSpgid:"),
        session_pid=_pid_line(raw, b"\nNSsid:"),
    )


def _held_bytes(raw: bytes, label: bytes, interface: str) -> int:
    """Return the bytes behind a label, 0 without it: without swap the kernel may leave that line out.

    A session may have thousands of processes, which are read between a crossing and the kill.
    """
    begin = raw.find(label)
    if begin < 0:
        return 0
    begin += len(label)
    number = raw[begin : raw.find(b" kB\n", begin)].strip()
    if number.isdigit():
        return int(number) * _KIB
    return optional_kib_line(raw, label[1:], interface) or 0  # which says what is wrong with it


def _pid_line(raw: bytes, label: bytes) -> int:
    """Return the first process id behind a label, as the reader of /proc has it; 0 where there is none."""
    begin = raw.find(label)
    if begin < 0:
        return 0
    number = raw[begin + len(label) : raw.find(b"\n", begin + 1)].split(None, 1)[:1]
    return int(number[0]) if number and number[0].isdigit() else 0


def _name(raw: bytes) -> str:
    return os.fsdecode(raw.partition(b"\n")[0].removeprefix(_NAME))
