"""System calls that Python's os module lacks, through cffi.

Every call raises OSError with its errno and the name of what was refused, and lets other threads run while
the kernel works. What os and signal have (eventfd, pidfd_open, pidfd_send_signal, sched_setscheduler) is
used from there.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from reactor.kernel import _libc_ffi

MCL_CURRENT: Final = 1
MCL_FUTURE: Final = 2
# Lock a page when it is first touched instead of populating every mapping at once (4.4+). Without it
# MCL_FUTURE would make each thread's 8 MiB stack resident.
MCL_ONFAULT: Final = 4

# How openat2 resolves a path (linux/openat2.h); each is a refusal: EXDEV, ELOOP, EXDEV.
RESOLVE_NO_XDEV: Final = 0x01
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08

PROCESS_MRELEASE_REAP_KILL: Final = 1  # linux/mman.h

# Numbers from 424 on are the same on every architecture; bpf(2) and perf_event_open(2) are older.
_SYS_OPENAT2: Final = 437
_SYS_PROCESS_MRELEASE: Final = 448
_SYS_QUOTACTL_FD: Final = 443
_SYS_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273, "s390x": 282}
_PR_SET_PDEATHSIG: Final = 1
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION: Final = 0x20080522  # _LINUX_CAPABILITY_VERSION_3: two words of 32 bits
_SYS_BPF: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_SYS_PERF_EVENT_OPEN: Final = {
    "x86_64": 298,
    "aarch64": 241,
    "riscv64": 241,
    "ppc64le": 319,
    "s390x": 331,
}
_PERF_FLAG_FD_CLOEXEC: Final = 8
_BPF_MAP_CREATE: Final = 0
_AT_FDCWD: Final = -100
_IN_MEMORY: Final = frozenset({0x01021994, 0x858458F6})  # tmpfs, ramfs: linux/magic.h

_ffi: Final[Any] = _libc_ffi.ffi
_libc: Final[Any] = _ffi.dlopen(None)
_new_unset: Final[Any] = _ffi.new_allocator(should_clear_after_alloc=False)


def mlockall(flags: int) -> None:
    """Keep the process's pages in memory: `flags` of MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT.

    Raises OSError: EPERM without CAP_IPC_LOCK, ENOMEM past RLIMIT_MEMLOCK. See mlock(2).
    """
    _check(_libc.mlockall(flags), "mlockall")


def munlockall() -> None:
    """Let the process's pages be swapped and dropped again."""
    _check(_libc.munlockall(), "munlockall")


def release_free_memory() -> None:
    """Return what malloc keeps of what was freed, while it is not locked; with glibc only."""
    try:
        _libc.malloc_trim(0)
    except AttributeError:
        return


def enter_namespace(fd: int) -> None:
    """Enter the namespace that is open as `fd`; for one of processes: have the children be born there.

    For this thread alone. Raises OSError: EPERM without CAP_SYS_ADMIN. os.setns is of Python 3.12. See
    setns(2).
    """
    _check(_libc.setns(fd, 0), "setns")


def lies_in_memory(path: str | bytes) -> bool:
    """Return whether a file lies on a filesystem with nothing but memory behind it: tmpfs, ramfs.

    What is written there waits for no disk. Raises OSError with the path. See statfs(2).
    """
    found = _ffi.new("uint32_t[64]")  # 120 bytes at the most, of which the type is the first
    _check(_libc.statfs(os.fsencode(path), found), os.fsdecode(path))
    return found[0] in _IN_MEMORY


def spawn(
    command: Sequence[str], environment: Mapping[str, str], *, stdin_fd: int, inherited_fds: Sequence[int]
) -> int:
    """Start a program by its path and return its process id; its standard output is /dev/null.

    The caller waits until the child has its own image, for which the child needs a CPU, and the filesystem to
    answer. subprocess and os.posix_spawn hold the interpreter's lock meanwhile; here other threads run.
    Raises OSError. See posix_spawn(3).
    """
    actions = _ffi.new("uint64_t[64]")  # 80 bytes with glibc and musl
    pid = _ffi.new("int *")
    argv, envp = _strings(command), _strings([f"{name}={value}" for name, value in environment.items()])
    _check_number(_libc.posix_spawn_file_actions_init(actions), command[0])
    try:
        _check_number(_libc.posix_spawn_file_actions_adddup2(actions, stdin_fd, 0), command[0])
        nowhere = (1, b"/dev/null", os.O_WRONLY, 0)
        _check_number(_libc.posix_spawn_file_actions_addopen(actions, *nowhere), command[0])
        for fd in inherited_fds:  # to itself: that takes close-on-exec away
            _check_number(_libc.posix_spawn_file_actions_adddup2(actions, fd, fd), command[0])
        error = _libc.posix_spawn(pid, os.fsencode(command[0]), actions, _ffi.NULL, argv[0], envp[0])
        _check_number(error, command[0])
    finally:
        _libc.posix_spawn_file_actions_destroy(actions)
    return int(pid[0])


def _strings(texts: Sequence[str]) -> tuple[Any, list[Any]]:
    """Return an array of C strings with its end, and what has to live as long as it."""
    kept = [_ffi.new("char[]", os.fsencode(text)) for text in texts]
    return _ffi.new("char *[]", [*kept, _ffi.NULL]), kept


def openat2(path: str | bytes, flags: int, resolve: int, *, dir_fd: int = _AT_FDCWD) -> int:
    """Return a descriptor of what a path leads to, resolved as `resolve` allows, for the caller to close.

    `resolve` is of RESOLVE_*: no mount is crossed (NO_XDEV), no symlink followed anywhere in the path
    (NO_SYMLINKS, which includes NO_MAGICLINKS), `dir_fd` never left (BENEATH). Raises OSError with the path:
    EXDEV and ELOOP where the path would, ENOSYS before 5.6, EAGAIN where a rename raced with `..`. See
    openat2(2).
    """
    name = os.fsencode(path)
    if b"\0" in name:  # C would open what is before it
        raise OSError(errno.EINVAL, "a NUL in the path", os.fsdecode(name))
    how = _ffi.new("uint64_t[3]", [flags | os.O_CLOEXEC, 0, resolve])
    result: int = _libc.syscall(
        _SYS_OPENAT2,
        _ffi.cast("int", dir_fd),
        _ffi.new("char[]", name),
        how,
        _ffi.cast("size_t", _ffi.sizeof(how)),
    )
    _check(result, os.fsdecode(name))
    return result


def process_mrelease(pidfd: int, flags: int = 0) -> None:
    """Free the memory of a process that has been killed, in the caller's context, and return when it is free.

    Blocks for as long as the freeing takes: call it from a worker thread. Raises OSError: ESRCH where the
    process is gone or is already exiting, EINVAL where it has not been killed or the kernel lacks a flag,
    ENOSYS before 5.15, EPERM. See mm/oom_kill.c.
    """
    result = _libc.syscall(_SYS_PROCESS_MRELEASE, _ffi.cast("int", pidfd), _ffi.cast("unsigned int", flags))
    _check(result, f"process_mrelease(pidfd {pidfd})")


def quotactl_fd(fd: int, command: int, identity: int, size: int) -> bytes:
    """Return the `size` bytes that a quota command gives for an id on the filesystem of a descriptor.

    Raises OSError: ESRCH where quotas of that type are off, ENOENT where the id has none, ENOSYS before
    5.14 and where the kernel has no quotas at all. See quotactl(2).
    """
    answer = _ffi.new("char[]", size)
    result = _libc.syscall(
        _SYS_QUOTACTL_FD,
        _ffi.cast("int", fd),
        _ffi.cast("unsigned int", command),
        _ffi.cast("unsigned int", identity),
        answer,
    )
    _check(result, f"quotactl_fd(fd {fd}, id {identity})")
    return bytes(_ffi.buffer(answer))


def set_io_priority(priority: int) -> None:
    """Give the calling thread's reads and writes a priority: a class shifted by 13 and a level in it.

    Only some I/O schedulers (bfq, mq-deadline) go by it. Raises OSError; ENOSYS on an architecture that is
    not known here. See ioprio_set(2).
    """
    number = _SYS_IOPRIO_SET.get(os.uname().machine, -1)
    this_thread = (_ffi.cast("int", 1), _ffi.cast("int", 0))  # IOPRIO_WHO_PROCESS
    _check(_libc.syscall(number, *this_thread, _ffi.cast("int", priority)), f"ioprio_set({priority})")


def getdents64(fd: int, size: int) -> bytes:
    """Return the next entries of a directory as the kernel packs them, at most `size` bytes; b"" at its end.

    Raises OSError: ENOENT where the directory has been removed. Needs glibc 2.30. See getdents64(2).
    """
    entries = _new_unset("char[]", size)
    result: int = _libc.getdents64(fd, entries, size)  # not by syscall(): what is variadic takes 30 us more
    _check(result, f"getdents64(fd {fd})")
    return bytes(_ffi.buffer(entries, result))


def signal_at_parents_death(signal_number: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends, however it ends.

    Raises OSError. See PR_SET_PDEATHSIG in prctl(2).
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def set_no_new_privileges() -> None:
    """Have no program that this process starts gain rights by its file. Raises OSError. See prctl(2)."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def drop_bounding_capability(number: int) -> None:
    """Remove a capability from what this thread and its children can ever have.

    Raises OSError: EPERM without CAP_SETPCAP, EINVAL for a capability that the kernel does not know.
    """
    _check(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), f"prctl(PR_CAPBSET_DROP, {number})")


def set_capabilities(mask: int) -> None:
    """Have this thread's permitted and effective capabilities be those of a mask; no others are inherited.

    Raises OSError: EPERM for one that it does not have. See capset(2).
    """
    _libc.prctl(
        _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0
    )  # EINVAL where there are none (before 4.3)
    header = _ffi.new("uint32_t[2]", [_CAPABILITY_VERSION, 0])
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = _ffi.new("uint32_t[6]", [low, low, 0, high, high, 0])
    _check(_libc.capset(header, data), "capset")


def bpf(command: int, attributes: bytes) -> int:
    """Return the result of the bpf system call: for most commands a descriptor, for the caller to close.

    `attributes` is the packed union bpf_attr. Raises OSError: ENOSYS where the kernel or this architecture
    has none, EPERM without CAP_BPF.
    """
    number = _SYS_BPF.get(os.uname().machine, -1)
    packed = _ffi.new("char[]", attributes)
    result: int = _libc.syscall(
        number, _ffi.cast("int", command), packed, _ffi.cast("unsigned int", len(attributes))
    )
    _check(result, f"bpf(command {command})")
    return result


def make_map() -> int:
    """Return the descriptor of an eBPF map of one number, for the caller to close. Raises OSError."""
    # An array of one element: map_type, key_size, value_size, max_entries (union bpf_attr).
    return bpf(
        _BPF_MAP_CREATE,
        b"".join(number.to_bytes(4, sys.byteorder) for number in (2, 4, 4, 1)).ljust(72, b"\0"),
    )


def perf_event_open(attributes: bytes, cpu: int) -> int:
    """Return the descriptor of a perf event of all processes on a CPU, for the caller to close.

    `attributes` is the packed struct perf_event_attr. Raises OSError: EACCES without CAP_PERFMON, ENOENT or
    EINVAL for an event that this kernel does not have. See perf_event_open(2).
    """
    number = _SYS_PERF_EVENT_OPEN.get(os.uname().machine, -1)
    arguments = (("int", -1), ("int", cpu), ("int", -1), ("unsigned long", _PERF_FLAG_FD_CLOEXEC))
    result: int = _libc.syscall(
        number, _ffi.new("char[]", attributes), *(_ffi.cast(kind, value) for kind, value in arguments)
    )
    _check(result, "perf_event_open")
    return result


class CText:
    """A string that C can read at `address` for as long as this object lives."""

    __slots__ = ("_text", "address")

    def __init__(self, text: str) -> None:
        self._text = _ffi.new("char[]", text.encode())
        self.address = int(_ffi.cast("uintptr_t", self._text))


def _check(result: int, what: str) -> None:
    if result < 0:
        number = _ffi.errno
        raise OSError(number, os.strerror(number), what)


def _check_number(number: int, what: str) -> None:
    """Raise OSError where a call has returned an error's number."""
    if number:
        raise OSError(number, os.strerror(number), what)
