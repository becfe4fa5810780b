"""/proc/PID/status: what one process holds of memory, and its name. See proc_pid_status(5).

RssAnon and RssShmem are there since 4.5, VmSwap since 2.6.34. The counters are the kernel's own of the
process's memory, kept for each CPU and added up now and then: some 100 KiB may be missing for each CPU.

Who writes what: the name is the process's own (prctl(2), execve(2)); the kernel escapes a line's end and a
backslash in it, so that it is one line here whatever it is (proc_task_name()). All other lines are the
kernel's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from reactor.errors import KernelInterfaceError
from reactor.kernel.files import close_descriptor
from reactor.kernel.procfs import PROC, optional_kib_line
from reactor.model.processes import ProcessMemory

# The lines that are asked for end after some 800 bytes. A list of groups comes before them, of up to 65,536.
_READ_BYTES: Final = 16 << 10
_STATM_BYTES: Final = 256
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")


def read_process_memory(pid: int, proc: Path = PROC) -> ProcessMemory | None:
    """Return what a process holds, None where it has no memory: a kernel thread, or one that has exited.

    Raises OSError (ENOENT, ESRCH: it is gone) and KernelInterfaceError.
    """
    path = f"{proc}/{pid}/status"
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw = os.read(fd, _READ_BYTES)
        while b"\nVmSwap:" not in raw and (more := os.read(fd, _READ_BYTES)):
            raw += more
    finally:
        close_descriptor(fd)
    return parse_process_memory(raw, pid, path)


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
    if not first.startswith(b"Name:\t"):
        raise KernelInterfaceError(interface, first[:64], "a first line 'Name:'")
    if b"\nRssAnon:" not in raw:
        return None
    anonymous, shared, swap = (  # without swap the kernel may leave its line out
        optional_kib_line(raw, label, interface) or 0 for label in (b"RssAnon:", b"RssShmem:", b"VmSwap:")
    )
    return ProcessMemory(
        pid=pid,
        name=os.fsdecode(first.removeprefix(b"Name:\t")),
        anonymous_bytes=anonymous,
        shared_bytes=shared,
        swap_bytes=swap,
    )
