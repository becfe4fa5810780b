"""What a directory tree takes on its filesystem, as `du` and `df -i` count, looked at again and again.

Each inode counts once, however many names it has; its bytes are its blocks, so that holes take nothing;
symlinks are counted and not followed; what is mounted below is another filesystem's.

A directory's times tell of entries that came and went, but not of files that grow. So a look stats every
directory, and the files again in those whose entries changed, whose files were written lately, or whose turn
it is: in a large tree each look takes its share of the rest. A small tree is looked at as a whole.
Directories are remembered up to a limit; what lies below the others is counted into the last one that is.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from reactor.model.pods import FilesystemUsage

_BLOCK_BYTES: Final = 512
_LARGE_INODES: Final = 5000
_LATELY_NS: Final = 60 * 10**9
_LONGEST_WAIT_LOOKS: Final = 16
_LINKS_REMEMBERED: Final = 20_000
_STEP: Final = 2048  # characters of a path that are opened in one go: PATH_MAX is 4096
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})

Pace = Callable[[], None]


class DirectoryBudget:
    """How many directories may be remembered, by all trees together: each takes about 500 bytes."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def take(self) -> bool:
        """Take room for one directory; return False where there is none left."""
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def give(self, count: int) -> None:
        """Give back the room of so many directories."""
        self._left += count


@dataclass(slots=True)
class _Counted:
    """What lies in one directory, itself included, or in all below it that is not remembered.

    `links` holds inode number and bytes, in turn, of files with several names.
    """

    used_bytes: float = 0.0
    inodes: float = 0.0
    links: array[int] = field(default_factory=lambda: array("Q"))
    newest_ns: int = 0
    directories: list[str] = field(default_factory=list)


class _Directory:
    """A directory that is remembered, with what it held when it was last looked through."""

    __slots__ = ("children", "counted", "looks", "pause", "wait")

    def __init__(self) -> None:
        self.children: dict[str, _Directory] = {}
        self.counted = _Counted()
        self.looks: tuple[int, int, int] = (0, 0, 0)
        self.wait = 0
        self.pause = 1

    def size(self) -> int:
        """Return how many directories are remembered from here on."""
        found, rest = 0, [self]
        while rest:
            found += 1
            rest.extend(rest.pop().children.values())
        return found


class TreeUsage:
    """Counts one tree. `usage` is what is known: the last whole look's, or as far as the first has come."""

    def __init__(self, path: str, budget: DirectoryBudget) -> None:
        self.path = path
        self.usage: FilesystemUsage | None = None
        self.complete = False
        self._budget = budget
        self._root: _Directory | None = None
        self._device = 0
        self._links_left = _LINKS_REMEMBERED
        self._spread = 0

    def look(self, pace: Pace) -> None:
        """Look at the tree; `pace` is called between directories, may sleep, and may raise to give up.

        Raises OSError where the tree's own directory can't be read. What vanishes meanwhile is not counted.
        """
        root_fd = os.open(self.path, _OPEN & ~os.O_NOFOLLOW)
        try:
            self._device = os.fstat(root_fd).st_dev
            if self._root is None:
                self._root = _Directory()
                self._budget.take()
            self._look(root_fd, self._root, pace)
        finally:
            os.close(root_fd)

    def forget(self) -> None:
        """Give back the room of what is remembered."""
        if self._root is not None:
            self._budget.give(self._root.size())
            self._root = None

    def _look(self, root_fd: int, root: _Directory, pace: Pace) -> None:
        used_bytes = inodes = 0.0
        seen_links: set[int] = set()
        whole = not self.complete or (
            self.usage is not None and (self.usage.inodes_used or 0) < _LARGE_INODES
        )
        self._links_left = _LINKS_REMEMBERED
        rest = [("", root)]
        while rest:
            pace()
            relative, directory = rest.pop()
            if not self._refresh(root_fd, relative, directory, pace, whole=whole):
                continue
            counted = directory.counted
            used_bytes += counted.used_bytes
            inodes += counted.inodes
            for inode, inode_bytes in _pairs(counted.links):
                if inode not in seen_links:
                    seen_links.add(inode)
                    used_bytes += inode_bytes
                    inodes += 1
            self._links_left -= len(counted.links) // 2
            rest.extend((_join(relative, name), child) for name, child in directory.children.items())
            if not self.complete:
                self.usage = FilesystemUsage(used_bytes=round(used_bytes), inodes_used=round(inodes))
        self.usage = FilesystemUsage(used_bytes=round(used_bytes), inodes_used=round(inodes))
        self.complete = True

    def _refresh(
        self, root_fd: int, relative: str, directory: _Directory, pace: Pace, *, whole: bool
    ) -> bool:
        """Look through a directory where that is due; return False where it is gone or another's."""
        try:
            found = _stat(root_fd, relative)
        except OSError as error:
            if error.errno in _GONE and relative:
                return False
            raise
        if found.st_dev != self._device or not stat.S_ISDIR(found.st_mode):
            return False
        looks = (found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        if not whole and looks == directory.looks and directory.wait > 0:
            directory.wait -= 1
            return True
        return self._look_through(root_fd, relative, directory, looks, pace)

    def _look_through(
        self,
        root_fd: int,
        relative: str,
        directory: _Directory,
        looks: tuple[int, int, int],
        pace: Pace,
    ) -> bool:
        began_ns = time.time_ns()
        counted = _Counted(newest_ns=max(looks[:2]))
        if not self._count(root_fd, relative, counted):
            return False
        known, children, rest = directory.children, {}, []
        for name in counted.directories:
            if name in known:
                children[name] = known[name]
            elif self._budget.take():
                children[name] = _Directory()
            else:
                rest.append(_join(relative, name))
        while rest:  # not remembered, so counted here
            pace()
            below = rest.pop()
            before = len(counted.directories)
            self._count(root_fd, below, counted)
            rest.extend(_join(below, name) for name in counted.directories[before:])
        counted.directories = []
        self._budget.give(sum(child.size() for name, child in known.items() if name not in children))
        directory.pause, directory.wait = self._next_turn(
            directory.pause, lately=counted.newest_ns > began_ns - _LATELY_NS
        )
        directory.children, directory.counted, directory.looks = children, counted, looks
        return True

    def _next_turn(self, pause: int, *, lately: bool) -> tuple[int, int]:
        """Return how many looks a directory's turns are apart, and after how many the next one is.

        Directories that came at one time would have their turns at one time as well: they are spread when
        they come to rest.
        """
        if lately:
            return 1, 0
        if pause == _LONGEST_WAIT_LOOKS:
            return pause, pause - 1
        longer = min(2 * pause, _LONGEST_WAIT_LOOKS)
        self._spread = (self._spread + 1) % longer
        return longer, self._spread

    def _count(self, root_fd: int, relative: str, counted: _Counted) -> bool:
        """Count a directory and the files in it; return False where it is gone or another filesystem's."""
        try:
            fd = _open(root_fd, relative)
        except OSError as error:
            if error.errno in _GONE and relative:
                return False
            raise
        try:
            own = os.fstat(fd)
            if own.st_dev != self._device:
                return False
            counted.used_bytes += own.st_blocks * _BLOCK_BYTES
            counted.inodes += 1
            with os.scandir(fd) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        counted.directories.append(entry.name)
                    else:
                        self._count_file(entry, counted)
        finally:
            os.close(fd)
        return True

    def _count_file(self, entry: os.DirEntry[str], counted: _Counted) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return  # removed since it was listed
        if found.st_dev != self._device:
            return  # a file that is mounted there
        used_bytes = found.st_blocks * _BLOCK_BYTES
        counted.newest_ns = max(counted.newest_ns, found.st_mtime_ns, found.st_ctime_ns)
        if found.st_nlink == 1:
            counted.used_bytes += used_bytes
            counted.inodes += 1
        elif self._links_left > len(counted.links) // 2:
            counted.links.append(found.st_ino)
            counted.links.append(used_bytes)
        else:  # too many to remember: each name has its share, right where all of them lie in the tree
            counted.used_bytes += used_bytes / found.st_nlink
            counted.inodes += 1 / found.st_nlink


def _pairs(links: array[int]) -> Iterator[tuple[int, int]]:
    return zip(links[::2], links[1::2], strict=True)


def _join(relative: str, name: str) -> str:
    return f"{relative}/{name}" if relative else name


def _stat(root_fd: int, relative: str) -> os.stat_result:
    """Return a directory's stat; symlinks are not followed. Raises OSError."""
    if not relative:
        return os.fstat(root_fd)
    if len(relative) < _STEP:
        return os.stat(relative, dir_fd=root_fd, follow_symlinks=False)
    fd = _open(root_fd, relative)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def _open(root_fd: int, relative: str) -> int:
    """Return a descriptor of a directory below another, however long the path. Raises OSError.

    A pod can nest directories deeper than any path may be long, and what lies there is its usage all the
    same.
    """
    fd = os.open(".", _OPEN, dir_fd=root_fd) if not relative else -1
    at, names = root_fd, relative.split("/") if relative else []
    while names:
        step = [names.pop(0)]
        while names and sum(map(len, step)) + len(step) + len(names[0]) < _STEP:
            step.append(names.pop(0))
        try:
            fd = os.open("/".join(step), _OPEN, dir_fd=at)
        finally:
            if at != root_fd:
                os.close(at)
        at = fd
    return fd
