"""Whether anything was added to directories or removed from them, without listing them. Source: inotify(7).

cgroup filesystems tell of mkdir(2) and rmdir(2) like any other, at once and without a limit on the rate. The
queue holds fs.inotify.max_queued_events; one that ran over says so, and that counts as a change.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from reactor.kernel import libc

_EVENTS_BYTES: Final = 16 << 10
_READ: Final = 4  # times so many bytes: of more events it is not told whose they are
_EVENT: Final = struct.Struct("=iIII")  # wd, mask, cookie, len
_IGNORED: Final = 0x8000  # the directory is gone, and the number with it


class DirectoryChanges:
    """One inotify descriptor for any number of directories. Sets it to -1 on close."""

    def __init__(self) -> None:
        self._fd = -1
        self._directories: dict[int, str] = {}
        with suppress(OSError):  # tried again when there is something to watch
            self._fd = libc.open_inotify()

    def watch(self, directory: str) -> None:
        """Watch a directory from now on; harmless when repeated, needed again for a directory that was
        recreated.

        To be called before it is listed, so that no change falls between. Raises OSError with the path:
        ENOENT, EMFILE and ENOSPC past fs.inotify's limits.
        """
        if self._fd < 0:
            self._fd = libc.open_inotify()
        self._directories[libc.watch_directory(self._fd, directory)] = directory

    def fileno(self) -> int:
        """Return what is readable once there was a change since `changed` was called last; -1: nothing."""
        return self._fd

    def happened(self) -> bool:
        """Return whether there was any change since the last call; True while that can't be told."""
        changed = self.changed()
        return changed is None or bool(changed)

    def changed(self) -> Collection[str] | None:
        """Return the directories with any change since the last call, None while that can't be told.

        So it is after a great many changes: to read whose each of them is would take long.
        """
        if not self._directories:
            return None
        changed: set[str] = set()
        is_told, times = True, 0
        try:
            while events := os.read(self._fd, _EVENTS_BYTES):
                times += 1
                is_told = times <= _READ and self._read(events, changed) and is_told
        except BlockingIOError:
            return changed if is_told else None
        except OSError:
            return None
        return None

    def _read(self, events: bytes, changed: set[str]) -> bool:
        """Add whose events these are; return whether that can be told of all."""
        at, is_told = 0, True
        while at < len(events):
            number, mask, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size + length
            directory = self._directories.get(number)
            if directory is None:  # IN_Q_OVERFLOW, which has no number
                is_told = False
                continue
            changed.add(directory)
            if mask & _IGNORED:
                del self._directories[number]
        return is_told

    def close(self) -> None:
        """Close the descriptor; a second time is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
