"""Directories read in pieces, which can be left and taken up again with no descriptor held meanwhile.

os.scandir has no way to go on from a place in a directory, so a walk that is nested deeper than a process
may have descriptors would have to keep whole lists of names. getdents64(2) gives with each entry the offset
after it, from which lseek(2) goes on, also through another descriptor.

Names are bytes, as the kernel has them. Sources: getdents64(2), readdir(3), linux/fs/readdir.c.
"""

from __future__ import annotations

import os
import struct
from typing import Final

from reactor.kernel.libc import getdents64

CHUNK_BYTES: Final = 16 << 10
"""How much is read at a time: some 500 entries with names of a usual length, 60 with the longest."""

UNKNOWN: Final = 0  # DT_UNKNOWN: the filesystem keeps no types in its directories
DIRECTORY: Final = 4  # DT_DIR
_HEADER: Final = struct.Struct("=QqHB")  # d_ino, d_off, d_reclen, d_type
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DOTS: Final = (b".", b"..")

Entry = tuple[bytes, int, int]
"""A name, its type (`DIRECTORY`, `UNKNOWN` or another), and the offset after it."""


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
