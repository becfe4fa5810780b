"""What a directory tree takes on its filesystem, as `du` and `df -i` count, counted again and again.

Each inode counts once, however many names it has; its bytes are its blocks, so that holes take nothing;
symlinks are counted and not followed; what is mounted below is another filesystem's.

A directory's times show entries that came and went, but not files that grow. So a count stats every
directory, and the files again in those whose entries changed, whose files were written lately, or whose turn
it is: in a large tree each count takes its share of the others. A small tree is counted as a whole.

The tree is a tenant's: it may have a million directories in one, or one in another a hundred thousand deep,
and be renamed meanwhile. So directories are remembered up to a limit, near the top only, and what lies below
the others is counted into the last one that is (`descent`). A count can be left at any step; what cannot be
read is counted as such, and never in the way of the others.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from reactor.kernel.libc import getdents64
from reactor.model.pods import FilesystemUsage

CHUNK_BYTES: Final = 16 << 10
"""How much is read at a time: some 500 entries with names of a usual length, 60 with the longest."""
UNKNOWN: Final = 0  # DT_UNKNOWN: the filesystem keeps no types in its directories
DIRECTORY: Final = 4  # DT_DIR
_HEADER: Final = struct.Struct("=QqHB")  # d_ino, d_off, d_reclen, d_type
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DOTS: Final = (b".", b"..")
Entry = tuple[bytes, int, int]
"""A name, its type (`DIRECTORY`, `UNKNOWN` or another), and the offset after it."""

GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""What an entry answers that was removed, or replaced by something else, since it was listed."""

OWN_FAULTS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What says nothing of a tree, and all the more of the process that counts it."""

_DEEPEST: Final = 250_000  # levels: 4 MiB
_CHUNKS_KEPT: Final = 16  # of the innermost directories, so that going up need not read again

_BLOCK_BYTES: Final = 512
_LARGE_INODES: Final = 5000
_LATELY_NS: Final = 60 * 10**9
_LONGEST_WAIT_COUNTS: Final = 16
_LINKS_REMEMBERED: Final = 20_000
_LINKS_IN_ROOM: Final = 4  # of files with several names, in the room of one directory
_LONGEST_REMEMBERED: Final = 512  # bytes of a path below the tree's root: those below are counted by descent

Pace = Callable[[], None]


# All directories below one, in constant memory, however many there are and however deep they are nested.
#
# A walk that comes back to a directory needs to know which one it is and how far it had come in it: its
# inode and an offset, 16 bytes a level. It goes up by `..`, and goes on there only where the inode is the
# one that it came from: a directory that is moved meanwhile would lead it anywhere. One descriptor is open
# at a time, beside that of the directory in which the walk began.
class Descent:
    """Goes through a directory and all below it, each before what lies below it.

    `enter` is called with each directory's descriptor and returns its inode number, None where it is not to
    be gone through. `descends` is called with the directory and each of its entries, and returns whether
    that is a directory to go into. `failed` is given what went wrong; what is not there any more is no error.
    """

    def __init__(
        self,
        *,
        enter: Callable[[int], int | None],
        descends: Callable[[int, Entry], bool],
        failed: Callable[[OSError], None],
    ) -> None:
        self._enter = enter
        self._descends = descends
        self._failed = failed
        # Of each directory from the first one down to the present one; chunks of the innermost ones only.
        self._inodes = array("Q")
        self._offsets = array("q")
        self._chunks: deque[list[Entry]] = deque(maxlen=_CHUNKS_KEPT)

    def pause(self) -> None:
        """Let go of what would only have to be read again."""
        self._chunks.clear()

    def steps(self, base_fd: int, name: bytes) -> Iterator[None]:
        """Go, step by step, through the directory `name` in another. Raises OSError for our own faults only.

        Where a directory was moved away while the walk was below it the walk ends, which `failed` is given.
        """
        fd = self._down(base_fd, name)
        try:
            while fd >= 0:
                yield
                chunk = self._chunk(fd)
                if not chunk:
                    above = self._up(fd)
                    os.close(fd)
                    fd = above
                    continue
                below = self._next_directory(fd, chunk)
                deeper = -1 if below is None else self._down(fd, below)
                if deeper >= 0:
                    os.close(fd)
                    fd = deeper
        finally:
            if fd >= 0:
                os.close(fd)

    def _chunk(self, fd: int) -> list[Entry]:
        """Return the entries of the present directory that come next, the first one last; none at its end."""
        if self._chunks and self._chunks[-1]:
            return self._chunks[-1]
        try:
            entries = read_entries(fd, self._offsets[-1])
        except OSError as error:
            self._note(error)
            return []
        entries.reverse()
        if self._chunks:
            self._chunks.pop()
        self._chunks.append(entries)
        return entries

    def _next_directory(self, fd: int, chunk: list[Entry]) -> bytes | None:
        """Take entries off a chunk up to the next directory to go into; None where it has no other one."""
        while chunk:
            entry = chunk.pop()
            self._offsets[-1] = entry[2]
            if self._descends(fd, entry):
                return entry[0]
        return None

    def _down(self, fd: int, name: bytes) -> int:
        """Return the descriptor of a directory that is gone into, -1 where it is not."""
        try:
            below = open_directory(name, fd)
        except OSError as error:
            self._note(error)
            return -1
        try:
            inode = self._enter(below)
            if inode is not None and len(self._inodes) >= _DEEPEST:
                self._failed(OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)))
                inode = None
        except BaseException:
            os.close(below)
            raise
        if inode is None:
            os.close(below)
            return -1
        self._inodes.append(inode)
        self._offsets.append(0)
        self._chunks.append([])
        return below

    def _up(self, fd: int) -> int:
        """Return the descriptor of the directory above, -1 where the walk ends."""
        self._inodes.pop()
        self._offsets.pop()
        if self._chunks:
            self._chunks.pop()
        if not self._inodes:
            return -1
        try:
            above = open_directory(b"..", fd)
        except OSError as error:
            self._note(error)
            return -1
        if os.fstat(above).st_ino == self._inodes[-1]:
            return above
        os.close(above)
        self._failed(OSError(errno.ESTALE, os.strerror(errno.ESTALE)))
        return -1

    def _note(self, error: OSError) -> None:
        """Pass an error on; raise it where it is a fault of ours."""
        if error.errno in OWN_FAULTS:
            raise error
        if error.errno not in GONE:
            self._failed(error)


class DirectoryBudget:
    """How many directories may be remembered: each takes about 500 bytes.

    One that is a share of another (`share`) takes of both.
    """

    def __init__(self, limit: int, whole: DirectoryBudget | None = None) -> None:
        self._left = limit
        self._whole = whole

    def share(self, limit: int) -> DirectoryBudget:
        return DirectoryBudget(limit, self)

    def take(self, count: int = 1) -> bool:
        """Take room for so many directories; return False, and take nothing, where there is none left."""
        if self._left < count or (self._whole is not None and not self._whole.take(count)):
            return False
        self._left -= count
        return True

    def give(self, count: int) -> None:
        """Return the room of so many directories to the budget."""
        self._left += count
        if self._whole is not None:
            self._whole.give(count)


@dataclass(slots=True)
class _Counted:
    """What lies in one directory, itself included, or in all below it that is not remembered.

    `links` holds inode number and bytes, in turn, of files with several names, `link_room` what they take of
    the budget. `unreadable` is how many entries could not be read, `error_number` why the last of them.
    """

    used_bytes: float = 0.0
    inodes: float = 0.0
    links: array[int] = field(default_factory=lambda: array("Q"))
    link_room: int = 0
    newest_ns: int = 0
    unreadable: int = 0
    error_number: int = 0


class _Directory:
    """A directory that is remembered, with what it held when it was last counted."""

    __slots__ = ("children", "counted", "pause", "times", "wait")

    def __init__(self) -> None:
        self.children: dict[bytes, _Directory] = {}
        self.counted = _Counted()
        self.times: tuple[int, int, int] = (0, 0, 0)
        self.wait = 0
        self.pause = 1

    def size(self) -> int:
        """Return the room that is taken from here on."""
        found, pending = 0, [self]
        while pending:
            directory = pending.pop()
            found += 1 + directory.counted.link_room
            pending.extend(directory.children.values())
        return found


class TreeUsage:
    """Counts one tree.

    `usage` is what is known: the last whole count's, or as far as the first has come. `so_far` is how far the
    count under way has come, a lower bound, and `directories` how many directories it has been through.
    `unreadable` is how many entries the last whole count could not read, `error_number` why the last of them.
    """

    def __init__(self, path: str, budget: DirectoryBudget) -> None:
        self.path = path
        self.complete = False
        self.directories = 0
        self.unreadable = 0
        self.error_number = 0
        self._whole: FilesystemUsage | None = None
        self._used_bytes = 0.0
        self._inodes = 0.0
        self._counting: _Counted | None = None
        self._descent: Descent | None = None
        self._budget = budget
        self._root: _Directory | None = None
        self._device = 0
        self._links_left = _LINKS_REMEMBERED
        self._spread = 0

    @property
    def usage(self) -> FilesystemUsage | None:
        """Return the last whole count's usage, or the first one's so far; None where none has begun."""
        if self._whole is None and self.directories == 0:
            return None
        return self._whole or self.so_far

    @property
    def so_far(self) -> FilesystemUsage:
        """Return what the count under way has found, which may be a part."""
        counting = self._counting or _Counted()
        return FilesystemUsage(
            used_bytes=int(self._used_bytes + counting.used_bytes),
            inodes_used=int(self._inodes + counting.inodes),
        )

    def count(self, pace: Pace) -> None:
        """Count the tree; `pace` is called at each step, may sleep, and may raise to give up.

        Raises OSError where the tree's own directory can't be read. What vanishes meanwhile is not counted.
        """
        for _ in self.steps():
            pace()

    def steps(self) -> Iterator[None]:
        """Count the tree step by step, each of some milliseconds. Raises OSError as `count`.

        Between two steps at most two descriptors are open. Closing the iterator gives the count up.
        """
        with ExitStack() as stack:
            root_fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, root_fd)
            self._device = os.fstat(root_fd).st_dev
            if self._root is None:
                self._root = _Directory()
                self._budget.take()
            yield from self._count_tree(root_fd, self._root)

    def pause(self) -> None:
        """Let go of what the count under way would only have to read again: it is not continued at once."""
        if self._descent is not None:
            self._descent.pause()

    def forget(self) -> None:
        """Return the room of what is remembered to the budget."""
        if self._root is not None:
            self._budget.give(self._root.size())
            self._root = None

    def _count_tree(self, root_fd: int, root: _Directory) -> Iterator[None]:
        self._used_bytes = self._inodes = 0.0
        self.directories = 0
        unreadable = error_number = 0
        seen_links: set[int] = set()
        whole = not self.complete or (
            self._whole is not None and (self._whole.inodes_used or 0) < _LARGE_INODES
        )
        self._links_left = _LINKS_REMEMBERED
        pending = [(b"", root)]
        while pending:
            yield
            relative, directory = pending.pop()
            if not (yield from self._refresh(root_fd, relative, directory, whole=whole)):
                continue
            counted = directory.counted
            self._used_bytes += counted.used_bytes
            self._inodes += counted.inodes
            for inode, inode_bytes in _pairs(counted.links):
                if inode not in seen_links:
                    seen_links.add(inode)
                    self._used_bytes += inode_bytes
                    self._inodes += 1
            self._links_left -= len(counted.links) // 2
            unreadable += counted.unreadable
            error_number = counted.error_number or error_number
            pending.extend((_join(relative, name), child) for name, child in directory.children.items())
        self._whole = FilesystemUsage(used_bytes=round(self._used_bytes), inodes_used=round(self._inodes))
        self.unreadable, self.error_number = unreadable, error_number
        self.complete = True

    def _refresh(
        self, root_fd: int, relative: bytes, directory: _Directory, *, whole: bool
    ) -> Generator[None, None, bool]:
        """Count a directory if that is due; the result is False if it is gone or another's."""
        self.directories += 1
        try:
            found = _stat(root_fd, relative)
        except OSError as error:
            if not relative or error.errno in OWN_FAULTS:
                raise
            if error.errno in GONE:
                return False
            self._remember(directory, _Counted(unreadable=1, error_number=error.errno or 0), {})
            return True
        if found.st_dev != self._device or not stat.S_ISDIR(found.st_mode):
            return False
        times = (found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        if not whole and times == directory.times and directory.wait > 0:
            directory.wait -= 1
            return True
        return (yield from self._count_directory(root_fd, relative, directory, times))

    def _count_directory(
        self, root_fd: int, relative: bytes, directory: _Directory, times: tuple[int, int, int]
    ) -> Generator[None, None, bool]:
        began_ns = time.time_ns()
        counted = _Counted(newest_ns=max(times[:2]))
        children: dict[bytes, _Directory] = {}
        is_there = False
        self._counting = counted
        try:
            is_there = yield from self._count(root_fd, relative, directory, counted, children)
        finally:
            self._counting = None
            if not is_there:  # gone, or the count was given up
                new = (child for name, child in children.items() if name not in directory.children)
                self._budget.give(counted.link_room + sum(child.size() for child in new))
        if is_there:
            self._remember(directory, counted, children)
            directory.times = times
            directory.pause, directory.wait = self._next_turn(
                directory.pause, lately=counted.newest_ns > began_ns - _LATELY_NS
            )
        return is_there

    def _remember(self, directory: _Directory, counted: _Counted, children: dict[bytes, _Directory]) -> None:
        gone = (child for name, child in directory.children.items() if name not in children)
        self._budget.give(directory.counted.link_room + sum(child.size() for child in gone))
        directory.counted, directory.children = counted, children

    def _count(
        self,
        root_fd: int,
        relative: bytes,
        directory: _Directory,
        counted: _Counted,
        children: dict[bytes, _Directory],
    ) -> Generator[None, None, bool]:
        """Count a directory, the files in it, and what lies below it and is not remembered.

        Those below it that are remembered come into `children`. The result is False where the directory is
        gone or another filesystem's.
        """
        try:
            fd = open_directory(relative or b".", root_fd)
        except OSError as error:
            if not relative:
                raise
            self._note(error, counted)
            return error.errno not in GONE
        try:
            if self._enter(fd, counted) is None:
                return False
            offset = 0
            while entries := self._entries(fd, offset, counted):
                offset = entries[-1][2]
                for entry in entries:
                    if not self._is_directory(fd, entry, counted):
                        continue
                    name = entry[0]
                    child = directory.children.get(name)
                    if child is None and self._may_remember(relative, name):
                        child = _Directory()
                    if child is None:
                        yield from self._descend(fd, name, counted)
                    else:
                        children[name] = child
                yield
        finally:
            os.close(fd)
        return True

    def _descend(self, fd: int, name: bytes, counted: _Counted) -> Iterator[None]:
        """Count a directory that is not remembered, and all below it."""

        def enter(below_fd: int) -> int | None:
            self.directories += 1
            return self._enter(below_fd, counted)

        self._descent = Descent(
            enter=enter,
            descends=lambda below_fd, entry: self._is_directory(below_fd, entry, counted),
            failed=lambda error: self._note(error, counted),
        )
        try:
            yield from self._descent.steps(fd, name)
        finally:
            self._descent = None

    def _enter(self, fd: int, counted: _Counted) -> int | None:
        """Count a directory itself, and return its inode number; None where it is another filesystem's."""
        own = os.fstat(fd)
        if own.st_dev != self._device:
            return None
        counted.used_bytes += own.st_blocks * _BLOCK_BYTES
        counted.inodes += 1
        return own.st_ino

    def _entries(self, fd: int, offset: int, counted: _Counted) -> list[Entry]:
        try:
            return read_entries(fd, offset)
        except OSError as error:
            self._note(error, counted)
            return []

    def _note(self, error: OSError, counted: _Counted) -> None:
        """Count what can't be read; what was removed since it was listed is no error, and ours are raised."""
        if error.errno in OWN_FAULTS:
            raise error
        if error.errno not in GONE:
            counted.unreadable += 1
            counted.error_number = error.errno or 0

    def _may_remember(self, relative: bytes, name: bytes) -> bool:
        return len(relative) + len(name) < _LONGEST_REMEMBERED and self._budget.take()

    def _is_directory(self, fd: int, entry: Entry, counted: _Counted) -> bool:
        """Return whether an entry is a directory; count it where it is not."""
        name, kind, _ = entry
        if kind == DIRECTORY:
            return True
        try:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            self._note(error, counted)
            return False
        if kind == UNKNOWN and stat.S_ISDIR(found.st_mode):
            return True
        self._count_file(found, counted)
        return False

    def _count_file(self, found: os.stat_result, counted: _Counted) -> None:
        if found.st_dev != self._device:
            return  # a file that is mounted there
        used_bytes = found.st_blocks * _BLOCK_BYTES
        counted.newest_ns = max(counted.newest_ns, found.st_mtime_ns, found.st_ctime_ns)
        if found.st_nlink <= 1:
            counted.used_bytes += used_bytes
            counted.inodes += 1
        elif self._may_remember_link(counted):
            counted.links.append(found.st_ino)
            counted.links.append(used_bytes)
        else:  # too many to remember: each name has its share, right where all of them lie in the tree
            counted.used_bytes += used_bytes / found.st_nlink
            counted.inodes += 1 / found.st_nlink

    def _may_remember_link(self, counted: _Counted) -> bool:
        remembered = len(counted.links) // 2
        if self._links_left <= remembered:
            return False
        if remembered < counted.link_room * _LINKS_IN_ROOM:
            return True
        if not self._budget.take():
            return False
        counted.link_room += 1
        return True

    def _next_turn(self, pause: int, *, lately: bool) -> tuple[int, int]:
        """Return how many counts a directory's turns are apart, and after how many the next one is.

        Directories that came at one time would have their turns at one time as well: they are spread when
        their files stop growing.
        """
        if lately:
            return 1, 0
        if pause == _LONGEST_WAIT_COUNTS:
            return pause, pause - 1
        longer = min(2 * pause, _LONGEST_WAIT_COUNTS)
        self._spread = (self._spread + 1) % longer
        return longer, self._spread


def _pairs(links: array[int]) -> Iterator[tuple[int, int]]:
    return zip(links[::2], links[1::2], strict=True)


def _join(relative: bytes, name: bytes) -> bytes:
    return relative + b"/" + name if relative else name


def _stat(root_fd: int, relative: bytes) -> os.stat_result:
    """Return a directory's stat; symlinks are not followed at its end. Raises OSError."""
    if not relative:
        return os.fstat(root_fd)
    return os.stat(relative, dir_fd=root_fd, follow_symlinks=False)


# Directories are read in pieces, with no descriptor held meanwhile.
#
# os.scandir has no way to go on from a place in a directory, so a walk that is nested deeper than a process
# may have descriptors would have to keep whole lists of names. getdents64(2) gives with each entry the offset
# after it, from which lseek(2) goes on, also through another descriptor.
#
# Names are bytes, as the kernel has them. Sources: getdents64(2), readdir(3), linux/fs/readdir.c.


def open_directory(name: bytes | str, at_fd: int | None = None) -> int:
    """Return a descriptor of a directory, for the caller to close; a symbolic link is none.

    Nothing else is opened by it: no pipe, no device. Raises OSError (ENOTDIR, ELOOP, ENOENT, EACCES).
    """
    return os.open(name, _OPEN, dir_fd=at_fd)


def read_entries(fd: int, offset: int) -> list[Entry]:
    """Return the next entries from an offset on, 0 for a descriptor just opened; an empty list at the end.

    Neither `.` nor `..` is among them. Raises OSError.
    """
    if offset:
        os.lseek(fd, offset, os.SEEK_SET)
    while True:
        raw = getdents64(fd, CHUNK_BYTES)
        if not raw:
            return []
        found = _parsed(raw)
        if found:  # else there were only the two
            return found


def _parsed(raw: bytes) -> list[Entry]:
    """Return the entries of what getdents64 gave."""
    found: list[Entry] = []
    at, end = 0, len(raw)
    unpack, size = _HEADER.unpack_from, _HEADER.size
    while at < end:
        _, offset, length, kind = unpack(raw, at)
        name = raw[at + size : raw.index(0, at + size)]
        if name not in _DOTS:
            found.append((name, kind, offset))
        at += length
    return found
