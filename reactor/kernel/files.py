"""Kernel files: one number or word each, read fresh; OSErrors carry the path even where a read fails late.

A descriptor held open on a kernfs or procfs file gives new content with every `pread` at offset 0, without
a path walk. Once its cgroup is removed the read gives ENODEV.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self, TypeVar

from reactor.errors import KernelInterfaceError

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# The kernel hands out these files in one piece while it fits: memory.stat is 1-2 KiB, meminfo 1.5 KiB.
READ_BYTES: Final = 16 << 10
# What the files of a removed cgroup answer: there is no such path, or what was open has lost its cgroup.
GONE: Final = frozenset({errno.ENOENT, errno.ENODEV})
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_VALUE_BYTES: Final = 256
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_INTEGER_DIGITS: Final = 20  # 2**64 has 20; also bounds what int() is given
_DESCRIPTORS_PER_POD: Final = 8  # its counters, one more where swap is counted; its main process
# What the daemon needs besides: sockets, eventfds, the node's counters, the journal, a worker's reads.
_DESCRIPTORS_BESIDES: Final = 256
_Result = TypeVar("_Result")


class OwnedDescriptor:
    """A descriptor that is closed with its owner, and -1 from then on: a number may be another's soon."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int = -1) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """Return the descriptor, -1 once it is closed."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor; a second time is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_descriptor(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class KernelFile(OwnedDescriptor):
    """One kernel file, held open and read again with each `read`.

    Raises OSError with the path: ENOENT at construction, ENODEV on read once its cgroup is gone.
    """

    __slots__ = ("path",)

    def __init__(self, path: Path | str, *, directory_fd: int | None = None) -> None:
        """Open it; with `directory_fd` the file of that name in that directory, whatever `path` leads to."""
        super().__init__()  # __del__ must find a descriptor even where open fails
        self.path = os.fspath(path)
        if directory_fd is None:
            self._fd = os.open(path, _FLAGS)
            return
        try:
            self._fd = os.open(os.path.basename(self.path), _FLAGS, dir_fd=directory_fd)
        except OSError as error:
            raise with_path(error, self.path) from None

    def read(self, most_bytes: int = READ_BYTES) -> bytes:
        """Return the file's present content, up to so much of it."""
        try:
            return os.pread(self._fd, most_bytes, 0)
        except OSError as error:
            raise with_path(error, self.path) from None


class LastingFile(KernelFile):
    """A kernel file by its path, opened at the first reading, and again if its cgroup was made anew."""

    def __init__(self, path: Path | str) -> None:
        self._fd, self.path = -1, os.fspath(path)

    def read(self, most_bytes: int = READ_BYTES) -> bytes:
        """Return the file's present content, as KernelFile; ENOENT while there is none."""
        if self._fd >= 0:
            try:
                return super().read(most_bytes)
            except OSError as error:
                self.close()
                if error.errno != errno.ENODEV:
                    raise
        super().__init__(self.path)
        return super().read(most_bytes)


def room_for(pods: int) -> int:
    """Return of how many pods files may be held open, once the soft limit is as high as they need.

    The hard limit is raised too where that is allowed (CAP_SYS_RESOURCE).
    """
    needed = pods * _DESCRIPTORS_PER_POD + _DESCRIPTORS_BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for raised in ((max(needed, soft), max(needed, hard)), (hard, hard)):
        if needed <= soft:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, raised)
        except (OSError, ValueError):
            continue
        soft = raised[0]
    return max(0, soft - _DESCRIPTORS_BESIDES) // _DESCRIPTORS_PER_POD


def close_descriptor(fd: int) -> None:
    """Close a descriptor. What close(2) answers changes nothing: it is gone in any case."""
    try:  # noqa: SIM105 - on the way to a kill, where suppress() takes three times as long
        os.close(fd)
    except OSError:
        pass


class Reserve:
    """Descriptors kept open for nothing, so that there are some when a kill needs them.

    A process that has used up its own must still be able to kill: to list a cgroup, to freeze it, and to
    hold a few pidfds at a time.
    """

    _SIZE: Final = 8

    def __init__(self) -> None:
        self._fds: list[int] = []
        self.fill()

    def fill(self) -> bool:
        """Take descriptors again; return whether there were enough."""
        with suppress(OSError):
            if not self._fds:
                self._fds.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
            while len(self._fds) < self._SIZE:
                self._fds.append(os.dup(self._fds[0]))
        return len(self._fds) == self._SIZE

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let the body have them."""
        self.close()
        try:
            yield
        finally:
            self.fill()

    def close(self) -> None:
        """Give them up; harmless when repeated."""
        while self._fds:
            close_descriptor(self._fds.pop())

    def __del__(self) -> None:
        self.close()


def try_lock(fd: int) -> bool:
    """Lock an open file, until it is closed; return False where it is locked by another opening. flock(2)."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def drain(fd: int) -> bool:
    """Read the events that a descriptor has, which must not block; return whether there were any."""
    with suppress(BlockingIOError):
        return len(os.read(fd, 4096)) > 0
    return False


def read_own(path: Path | str, most_bytes: int) -> bytes:
    """Return what a small file of our own holds, or one byte more than `most_bytes` of it.

    Raises OSError, also for what another user has or may write: that may say anything.
    """
    fd = os.open(path, _FLAGS | os.O_NONBLOCK)  # a FIFO is not waited for
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            got = f"got uid {found.st_uid}, mode {stat.filemode(found.st_mode)}"
            accepted = f"a file of uid {os.geteuid()} that nobody else can write"
            raise OSError(errno.EPERM, f"{got}; accepted: {accepted}", str(path))
        return file.read(most_bytes + 1)


def with_path(error: OSError, path: str) -> OSError:
    return OSError(error.errno, error.strerror, path)


def read_file(path: Path | str) -> bytes:
    """Return a kernel file's whole content. Raises OSError with the path.

    Follows no symlink in the last component. Reads on until the end: lists of processes have no bound.
    """
    return _opened(path, _FLAGS, lambda fd: b"".join(iter(lambda: os.read(fd, READ_BYTES), b"")))


def read_value(path: Path | str, most_bytes: int = _VALUE_BYTES) -> bytes:
    """Return the content of a kernel file that holds one number or word, by one read.

    The kernel hands such a file out in one piece: `read_file` would ask once more for its end. Raises OSError
    with the path.
    """
    return _opened(path, _FLAGS, lambda fd: os.read(fd, most_bytes))


def write_file(path: Path | str, text: str) -> None:
    """Write `text` to a kernel file in one call, as the kernel wants it. Raises OSError with the path."""
    flags = os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    _opened(path, flags, lambda fd: os.write(fd, text.encode()))


def _opened(path: Path | str, flags: int, call: Callable[[int], _Result]) -> _Result:
    """Return what a call gives with the file's descriptor, which is closed. Raises OSError with the path."""
    name = os.fspath(path)
    fd = os.open(name, flags)
    try:
        return call(fd)
    except OSError as error:
        raise with_path(error, name) from None
    finally:
        os.close(fd)


def parse_integer(raw: bytes, interface: str) -> int:
    """Return the one non-negative number that a kernel file holds.

    Raises KernelInterfaceError for anything else: empty, signed, several words, more than 20 digits.
    """
    word = raw.strip(b" \n\0")
    # isdigit is ASCII only for bytes; int() alone would take "_", signs and surrounding white space.
    if not word.isdigit() or len(word) > _INTEGER_DIGITS:
        raise KernelInterfaceError(interface, _shown(raw), "a whole number")
    return int(word)


def parse_field(raw: bytes, key: bytes, interface: str) -> int:
    """Return the number in the line `KEY NUMBER` of a flat keyed file such as memory.stat.

    Raises KernelInterfaceError where the line is missing, cut off before its end, or not a number.
    """
    _, label, rest = (b"\n" + raw).partition(b"\n" + key + b" ")
    if not label:
        raise KernelInterfaceError(interface, _shown(raw), f"a line {key.decode()!r}")
    word, end, _ = rest.partition(b"\n")
    if not end or not word.isdigit() or len(word) > _INTEGER_DIGITS:
        raise KernelInterfaceError(interface, _shown(rest), f"a whole number after {key.decode()!r}")
    return int(word)


def unescape_mount(field: bytes) -> bytes:
    r"""Return a field of a mount table without its escapes: `\040` and the like (see proc_pid_mounts(5))."""
    head, *tail = field.split(b"\\")
    out = [head]
    for part in tail:
        octal = part[:3]
        if len(octal) == 3 and not octal.strip(b"01234567") and octal < b"400":
            out += [bytes([int(octal, 8)]), part[3:]]
        else:
            out += [b"\\", part]
    return b"".join(out)


def _shown(raw: bytes) -> bytes:
    return raw if len(raw) <= 64 else raw[:64] + b"..."
