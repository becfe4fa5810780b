"""All directories below one, in constant memory, however many there are and however deep they are nested.

A walk that comes back to a directory needs to know which one it is and how far it had come in it: its inode
and an offset, 16 bytes a level. It goes up by `..`, and goes on there only where the inode is the one that it
came from: a directory that is moved meanwhile would lead it anywhere. One descriptor is open at a time,
beside that of the directory in which the walk began.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from reactor.kernel.directories import Entry, open_directory, read_entries

GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""What an entry answers that was removed, or replaced by something else, since it was listed."""

OWN_FAULTS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What says nothing of a tree, and all the more of the process that looks at it."""

_DEEPEST: Final = 250_000  # levels: 4 MiB
_CHUNKS_KEPT: Final = 16  # of the innermost directories, so that going up need not read again


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

    def rest(self) -> None:
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
