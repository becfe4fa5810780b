"""/proc/PID/status: what one process holds of memory, and its name. See proc_pid_status(5).

RssAnon and RssShmem are there since 4.5, VmSwap since 2.6.34. The counters are the kernel's own of the
process's memory, kept for each CPU and added up now and then: some 100 KiB may be missing for each CPU.

The file shows the main thread. Where that has exited and others live on, it is a zombie without memory; the
memory is all threads' own, and each of the others shows it in /proc/PID/task/TID/status. The kernel's OOM
killer goes through the threads likewise (find_lock_task_mm(), mm/oom_kill.c).

Who writes what: the name is the process's own (prctl(2), execve(2)); the kernel escapes a line's end and a
backslash in it, so that it is one line here whatever it is (proc_task_name()). All other lines are the
kernel's.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from reactor.errors import KernelInterfaceError, ReactorError
from reactor.kernel.files import close_descriptor, read_file
from reactor.kernel.procfs import PROC, optional_kib_line, parse_is_exiting
from reactor.model.kills import ProcessMemory

# The lines that are asked for end after some 800 bytes. A list of groups comes before them, of up to 65,536.
_READ_BYTES: Final = 16 << 10
_STATM_BYTES: Final = 256
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_NAME: Final = b"Name:\t"
_ZOMBIE: Final = b"\nState:\tZ"
_MOST_THREADS: Final = 16
_NO_LONGER: Final = frozenset({errno.ENOENT, errno.ESRCH})


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
    return int(fields[1]) * _PAGE_BYTES


def parse_process_memory(raw: bytes, pid: int, interface: str = "/proc/PID/status") -> ProcessMemory | None:
    """Return what a status file says, see `read_process_memory`. Raises KernelInterfaceError."""
    first, _, _ = raw.partition(b"\n")
    if not first.startswith(_NAME):
        raise KernelInterfaceError(interface, first[:64], "a first line 'Name:'")
    if b"\nRssAnon:" not in raw:
        return None
    anonymous, shared, swap = (  # without swap the kernel may leave its line out
        optional_kib_line(raw, label, interface) or 0 for label in (b"RssAnon:", b"RssShmem:", b"VmSwap:")
    )
    return ProcessMemory(
        pid=pid,
        name=_name(raw),
        anonymous_bytes=anonymous,
        shared_bytes=shared,
        swap_bytes=swap,
    )


def _name(raw: bytes) -> str:
    return os.fsdecode(raw.partition(b"\n")[0].removeprefix(_NAME))
