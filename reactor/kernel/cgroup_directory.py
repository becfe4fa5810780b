"""Cgroups as directories and their files: walked, opened, and parsed, whatever a tenant has made in them.

Every file is opened by openat(2) relative to the descriptor. A path has PATH_MAX (4,096) bytes, and a cgroup
as many levels of up to 255 bytes as its owner likes; a descriptor has no such limit. Once the cgroup is
removed its files are not found any more (ENOENT), whatever was made in its place: kernfs gives every
directory an inode number of its own, and none twice (since 5.5, when a generation became part of it).
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Final, Self

from reactor.errors import RefusedError
from reactor.kernel.files import (
    GONE,
    READ_BYTES,
    KernelFile,
    OwnedDescriptor,
    close_descriptor,
    parse_integer,
    with_path,
)

# v1 has no word for "unlimited": it shows the page counter's maximum, LONG_MAX rounded down to a page
# (9223372036854771712 with 4 KiB pages, less with larger ones). Nothing real comes near 4 EiB.
_UNLIMITED_FROM_BYTES: Final = 1 << 62
_PID_DIGITS: Final = 10

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_HELD: Final = 64  # directories that a walk keeps open at the most, to go breadth first
_CHILDLESS: Final = 2
_PROCESSES: Final = "cgroup.procs"
_RENAMED_TRIES: Final = 32  # a name may be another's again before it is opened
Refused = Callable[[str, OSError], None]


# Pure parsers of what the cgroup files, /proc/PID/cgroup and the mount table say of cgroups.


class CgroupVersion(StrEnum):
    """Which interface the memory controller has."""

    V1 = "v1"
    V2 = "v2"


def parse_limit(raw: bytes, interface: str) -> int | None:
    """Return a limit file's number, None where it says there is no limit: `max`, or v1's largest value.

    Raises KernelInterfaceError for anything else.
    """
    if raw.strip() == b"max":
        return None
    limit = parse_integer(raw, interface)
    return None if limit >= _UNLIMITED_FROM_BYTES else limit


def parse_processes(raw: bytes) -> list[int]:
    """Return the pids of a cgroup.procs, without the 0s that stand for other pid namespaces' processes.

    Raises KernelInterfaceError for a line that is no pid.
    """
    # As a whole it is checked in a tenth of the time, on the way to a kill.
    if raw.translate(None, b"0123456789\n") or len(max(raw.split(), key=len, default=b"")) > _PID_DIGITS:
        pids = [parse_integer(line, "cgroup.procs") for line in raw.splitlines() if line]
    else:
        pids = [int(word) for word in raw.split()]
    return [pid for pid in pids if pid] if 0 in pids else pids


def cgroup_components(cgroup: str) -> tuple[str, ...]:
    """Return the names that a cgroup's path consists of, none for the root "/".

    Raises RefusedError for a path that does not begin with "/" or is not in its normal form.
    """
    if cgroup == "/":
        return ()
    root, *parts = cgroup.split("/")
    if root or not parts or any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise RefusedError(f"cgroup {cgroup!r}: not a plain path such as /kubepods/pod-a")
    try:
        os.fsencode(cgroup)
    except UnicodeEncodeError:
        raise RefusedError(f"cgroup {cgroup!r}: not a name that a file can have") from None
    return tuple(parts)


class CgroupDirectory(OwnedDescriptor):
    """Owns a descriptor of a cgroup's directory; `cgroup` is its path as it was when it was opened."""

    __slots__ = ("_inode", "cgroup")

    def __init__(self, fd: int, cgroup: str) -> None:
        super().__init__(fd)
        self.cgroup = cgroup
        self._inode = 0

    @classmethod
    def open(cls, root: str, cgroup: str) -> Self:
        """Return a cgroup below the hierarchy mounted at `root`.

        Raises RefusedError for a path that is not plain or leads through a symlink, OSError with the path:
        FileNotFoundError where there is no such cgroup.
        """
        parts = cgroup_components(cgroup)
        fd = os.open(root, _DIRECTORY)
        for part in parts:
            above = fd
            try:
                fd = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
            except OSError as error:
                if error.errno in {errno.ENOTDIR, errno.ELOOP} and _is_symlink(part, above):
                    raise RefusedError(f"cgroup {cgroup!r}: leads through a symlink") from None
                raise with_path(error, f"{root}{cgroup}") from None
            finally:
                close_descriptor(above)
        return cls(fd, cgroup)

    @property
    def inode(self) -> int:
        """Return the number that this cgroup's directory has, and no other of its hierarchy ever."""
        self._inode = self._inode or os.fstat(self._fd).st_ino
        return self._inode

    @property
    def path(self) -> str:
        """Return a path to it, whatever its name is by now; for this process, and while it is open.

        It ends in ".", so that calls which follow no symbolic link reach the directory.
        """
        return f"/proc/self/fd/{self._fd}/."

    def exists(self) -> bool:
        """Return whether the cgroup still exists. Raises OSError where that is not known."""
        try:
            os.stat(_PROCESSES, dir_fd=self._fd, follow_symlinks=False)
        except OSError as error:
            if error.errno in GONE:
                return False
            raise
        return True

    def duplicate(self) -> CgroupDirectory:
        """Return the same cgroup by a descriptor of its own. Raises OSError."""
        return CgroupDirectory(os.dup(self._fd), self.cgroup)

    def child(self, name: str) -> CgroupDirectory:
        """Return the cgroup of that name directly below. Raises OSError."""
        fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._fd)
        return CgroupDirectory(fd, f"{self.cgroup.rstrip('/')}/{name}")

    def child_of_inode(self, inode: int, cgroup: str) -> CgroupDirectory | None:
        """Return the cgroup of that inode directly below, None where there is none; `cgroup` is its path.

        Raises OSError.
        """
        for _ in range(_RENAMED_TRIES):
            with os.scandir(self._fd) as entries:
                name = next((entry.name for entry in entries if entry.inode() == inode), None)
            if name is None:
                return None
            with suppress(FileNotFoundError):
                found = CgroupDirectory(os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._fd), cgroup)
                if found.inode == inode:
                    return found
                found.close()
        return None

    def kernel_file(self, name: str, path: str) -> KernelFile:
        """Return one of the cgroup's files, open; `path` is the directory's for errors. Raises OSError."""
        return KernelFile(f"{path}/{name}", directory_fd=self._fd)

    def parent(self) -> CgroupDirectory:
        """Return the cgroup directly above, the way back out of a nest of any depth. Raises OSError."""
        fd = os.open("..", _DIRECTORY, dir_fd=self._fd)
        return CgroupDirectory(fd, self.cgroup.rpartition("/")[0])

    def children_count(self) -> int:
        """Return how many cgroups are directly below, without a listing of them. Raises OSError."""
        return max(0, os.fstat(self._fd).st_nlink - _CHILDLESS)

    def children(self, spared: Collection[str] = ()) -> list[str]:
        """Return the names of the cgroups directly below but for `spared` paths, in the kernel's order.

        A directory's links are its name, its "." and the ".." of each directory in it (kernfs counts them in
        kernfs_refresh_inode()), so that of an innermost cgroup its forty files need not be listed. Raises
        OSError.
        """
        if os.fstat(self._fd).st_nlink == _CHILDLESS:
            return []
        with os.scandir(self._fd) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return [name for name in names if f"{self.cgroup}/{name}" not in spared] if spared else names

    def open_file(self, name: str, flags: int) -> int:
        """Return a descriptor of one of the cgroup's files, the caller's to close. Raises OSError."""
        return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._fd)

    def read(self, name: str, *, most_lines: int | None = None) -> bytes:
        """Return a file's whole content: lists of processes have no bound. Raises OSError.

        With `most_lines` only its first lines, where there are more; the kernel lists only what is read.
        """
        fd = self.open_file(name, os.O_RDONLY)
        try:
            chunks, lines = [], 0
            while chunk := os.read(fd, READ_BYTES):
                chunks.append(chunk)
                if most_lines is not None:
                    lines += chunk.count(b"\n")
                    if lines > most_lines:
                        content = b"".join(chunks)
                        return content[: content.rfind(b"\n") + 1]  # the last line may be cut
            return b"".join(chunks)
        finally:
            close_descriptor(fd)

    def write(self, name: str, content: bytes) -> None:
        """Write to a file in one call, as the kernel wants it. Raises OSError."""
        fd = self.open_file(name, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(fd, content)
        finally:
            close_descriptor(fd)

    def processes(self, most: int | None = None) -> list[int]:
        """Return the ids of the processes in this very cgroup, not of those below; none where it is gone.

        Where there are more than `most`, more of them are returned, and not all.

        The list is opened again each time: on v1 a descriptor that is read again shows it as it was at the
        first read (cgroup_pidlist_start(), kernel/cgroup/cgroup-v1.c). A threaded cgroup (v2) shows its
        processes in its domain. Raises OSError, and KernelInterfaceError for what is no list of ids.
        """
        try:
            raw = self.read(_PROCESSES, most_lines=most)
        except OSError as error:
            if error.errno in GONE or error.errno == errno.EOPNOTSUPP:
                return []
            raise
        return parse_processes(raw)


def fail(_: str, error: OSError) -> None:
    """Raise what a walk meets first: for one that has to be whole."""
    raise error


def walk(
    top: CgroupDirectory, refused: Refused, *, spared: Collection[str] = (), held: int = _HELD
) -> Generator[CgroupDirectory, None, None]:
    """Yield a cgroup and those below it, but for `spared` ones and what is below those.

    The cgroup itself comes before anything is listed, then the others breadth first, so that a few that hold
    processes are not found last behind thousands that hold none. Only `held` directories are kept open for
    that; below those the walk goes depth first, with one descriptor and its way back by "..". A cgroup that
    is gone is passed over; for one that can't be opened or listed `refused` is called with its path, and the
    walk goes on. Each yielded directory is closed when the caller asks for the next.
    """
    yield top
    waiting = deque([(top, _children(top, refused))])
    try:
        while waiting:
            above, names = waiting[0]
            for name in names:
                below = _child(above, name, refused, spared)
                if below is None:
                    continue
                is_kept = False
                try:
                    yield below
                    inner = _children(below, refused)
                    if inner and len(waiting) < held:
                        waiting.append((below, inner))
                        is_kept = True
                    elif inner:
                        yield from _walk_deep(below, inner, refused, spared)
                finally:
                    if not is_kept:
                        below.close()
            waiting.popleft()
            if above is not top:
                above.close()
    finally:
        for above, _ in waiting:
            if above is not top:
                above.close()


def _walk_deep(
    top: CgroupDirectory, names: Sequence[str], refused: Refused, spared: Collection[str]
) -> Iterator[CgroupDirectory]:
    """Yield what is below `top`, which has children of these names, depth first and without a recursion."""
    levels = [(top.inode, iter(names))]
    present = top
    try:
        while True:
            name = next(levels[-1][1], None)
            if name is None:
                levels.pop()
                if not levels:
                    return
                above = _above(present, levels[-1][0], refused) if len(levels) > 1 else top
                if above is None:
                    return
                present.close()
                present = above
                continue
            below = _child(present, name, refused, spared)
            if below is None:
                continue
            try:
                yield below
                inner = _children(below, refused)
                levels.append((below.inode, iter(inner)))
                present, left = below, present
            except BaseException:
                below.close()
                raise
            if left is not top:
                left.close()
    finally:
        if present is not top:
            present.close()


def _child(
    above: CgroupDirectory, name: str, refused: Refused, spared: Collection[str]
) -> CgroupDirectory | None:
    try:
        below = above.child(name)
    except OSError as error:
        _note(f"{above.cgroup.rstrip('/')}/{name}", error, refused)
        return None
    if spared and below.cgroup in spared:
        below.close()
        return None
    return below


def _children(directory: CgroupDirectory, refused: Refused) -> Sequence[str]:
    try:
        return directory.children()
    except OSError as error:
        _note(directory.cgroup, error, refused)
        return ()


def _above(directory: CgroupDirectory, inode: int, refused: Refused) -> CgroupDirectory | None:
    """Return the directory above, None where that can't be had; a cgroup is never moved to another parent."""
    try:
        above = directory.parent()
    except OSError as error:
        _note(directory.cgroup, error, refused)
        return None
    if above.inode == inode:
        return above
    above.close()
    _note(directory.cgroup, OSError(errno.ESTALE, os.strerror(errno.ESTALE)), refused)
    return None


def _note(cgroup: str, error: OSError, refused: Refused) -> None:
    if error.errno not in GONE:
        refused(cgroup, error)


def _is_symlink(name: str, directory_fd: int) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=directory_fd).st_mode)
    except OSError:
        return False
