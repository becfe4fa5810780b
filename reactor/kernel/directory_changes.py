"""Whether anything was added to directories or removed from them, without listing them. Source: inotify(7).

cgroup filesystems tell of mkdir(2) and rmdir(2) like any other, at once and without a limit on the rate. The
queue holds fs.inotify.max_queued_events; one that ran over says so, and that counts as a change.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from reactor.kernel import libc

_EVENTS_BYTES: Final = 16 << 10


class DirectoryChanges:
    """One inotify descriptor for any number of directories. Sets it to -1 on close."""

    def __init__(self) -> None:
        self._fd = -1
        self._is_watching = False
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
        libc.watch_directory(self._fd, directory)
        self._is_watching = True

    def happened(self) -> bool:
        """Return whether there was any change since the last call; True while that can't be told."""
        if not self._is_watching:
            return True
        happened = False
        try:
            while os.read(self._fd, _EVENTS_BYTES):
                happened = True
        except BlockingIOError:
            return happened
        except OSError:
            return True
        return happened

    def close(self) -> None:
        """Close the descriptor; a second time is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
