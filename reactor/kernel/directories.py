"""Whether anything has changed in directories, without listing or reading them. Source: inotify(7).

cgroup filesystems report mkdir(2), rmdir(2), write(2) and setxattr(2) like any other, at once and without a
limit on the rate; what the kernel itself changes they report of few files. A directory that is removed is not
reported, and its watch stays. The queue holds fs.inotify.max_queued_events; one that ran over says so, and
that counts as a change.
"""

from __future__ import annotations

import errno
import os
import select
import struct
from collections.abc import Callable, Collection, Container, Hashable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from reactor.kernel import _libc_ffi
from reactor.kernel.files import OwnedDescriptor

_IN_MODIFY: Final = 2
# What is reported of a directory: what is added or removed, and its end (IN_CREATE, IN_DELETE, IN_MOVED_FROM
# and _TO, IN_DELETE_SELF, IN_MOVE_SELF, IN_ONLYDIR); what is written to its files and attributes (IN_ATTRIB).
ENTRIES: Final = 0x100 | 0x200 | 0x40 | 0x80 | 0x400 | 0x800 | 0x01000000
CONTENTS: Final = _IN_MODIFY | 0x4 | 0x01000000
_EVENTS_BYTES: Final = 16 << 10
_READ: Final = 4  # times so many bytes: of more events it is not known whose they are
_EVENT: Final = struct.Struct("=iIII")  # wd, mask, cookie, len
_IGNORED: Final = 0x8000  # the directory is gone, and the number with it
_MOVED: Final = 0x800  # it has another path
_LOST: Final = 0xFFFFFFFF  # in place of the number: the queue has run over

_ffi: Final[Any] = _libc_ffi.ffi
_libc: Final[Any] = _ffi.dlopen(None)

_Listing = TypeVar("_Listing")
_Section = TypeVar("_Section")


def watch_modifications(path: Path) -> int:
    """Return a non-blocking inotify descriptor that is readable once the file has been modified.

    Control files that the kernel itself changes (memory.events, cgroup.events) count, at most once in
    10 ms. Raises OSError with the path: ENOENT, EMFILE and ENOSPC past fs.inotify's limits. The caller
    closes it. See inotify(7).
    """
    inotify_fd = open_inotify()
    try:
        watch_directory(inotify_fd, os.fspath(path), _IN_MODIFY)
    except OSError:
        os.close(inotify_fd)
        raise
    return inotify_fd


def open_inotify() -> int:
    """Return a non-blocking inotify descriptor that watches nothing yet, for the caller to close.

    Raises OSError: EMFILE past fs.inotify.max_user_instances.
    """
    inotify_fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    _check(inotify_fd, "inotify_init1")
    return inotify_fd


def watch_directory(inotify_fd: int, path: str, what: int) -> int:
    """Have an inotify descriptor report changes of a directory: its ENTRIES, or their CONTENTS.

    Return the number that its events have. A second time does nothing, and gives the same number. Raises
    OSError with the path: ENOENT, ENOTDIR, ENOSPC past fs.inotify's limit.
    """
    number: int = _libc.inotify_add_watch(inotify_fd, os.fsencode(path), what)
    _check(number, path)
    return number


def unwatch_directory(inotify_fd: int, number: int) -> None:
    """Have an inotify descriptor report no more of a directory; that it does not is no error."""
    _libc.inotify_rm_watch(inotify_fd, number)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = _ffi.errno
        raise OSError(number, os.strerror(number), what)


class DirectoryChanges(OwnedDescriptor):
    """One inotify descriptor for `what` changes in any number of directories.

    It is readable once there was a change since `changed` was called last.

    `watched` are the names of those that are not to be asked for again.
    """

    def __init__(self, what: int = ENTRIES) -> None:
        super().__init__()
        self._what = what
        self._names: dict[int, str] = {}
        self._poll = select.poll()
        self.watched: set[str] = set()

    def watch(self, directory: str, name: str = "") -> None:
        """Watch a directory from now on; again only if its end was reported, or maybe lost.

        Its changes are reported by the `name`, which is its path without one. To be called before it is
        read, so that no change falls between. Raises OSError with the path: ENOENT, EMFILE and ENOSPC past
        fs.inotify's limits.
        """
        name = name or directory
        if name in self.watched:
            return
        if self._fd < 0:
            self._fd = open_inotify()
            self._poll.register(self._fd, select.POLLIN)
        number = watch_directory(self._fd, directory, self._what)
        self.watched.discard(self._names.get(number, name))  # it was moved, and has another name now
        self._names[number] = name
        self.watched.add(name)

    def keep(self, names: Container[str]) -> None:
        """Watch no others any more."""
        for number in [number for number, name in self._names.items() if name not in names]:
            self.watched.discard(self._names.pop(number))
            unwatch_directory(self._fd, number)

    def watch_again(self) -> None:
        """Have the next `watch` of each directory ask the kernel again."""
        self.watched.clear()

    def changed(self) -> Collection[str] | None:
        """Return the names of directories with any change since the last call, None while it is not known.

        So it is after a great many changes: to read whose each of them is would take long.
        """
        if not self._names:
            return None
        changed: set[str] = set()
        is_known, times = True, 0
        try:
            while self._poll.poll(0):  # a read that finds nothing takes twice as long
                times += 1
                events = os.read(self._fd, _EVENTS_BYTES)
                is_known = times <= _READ and self._read(events, changed) and is_known
        except OSError:
            is_known = False
        if is_known:
            return changed
        self.watch_again()
        return None

    def _read(self, events: bytes, changed: set[str]) -> bool:
        """Add whose events these are; return whether that is known of all."""
        at, is_known = 0, True
        while at < len(events):
            number, mask, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size + length
            is_known &= number != _LOST
            name = self._names.get(number)
            if name is None:  # it is watched no more
                continue
            changed.add(name)
            if mask & (_IGNORED | _MOVED):
                self.watched.discard(name)
            if mask & _IGNORED:
                del self._names[number]
        return is_known


def _unwatched(error: OSError) -> str:
    limit = {errno.EMFILE: "fs.inotify.max_user_instances", errno.ENOSPC: "fs.inotify.max_user_watches"}
    raised = f"; raise {limit[error.errno]}" if error.errno in limit else ""
    return f"can't be watched ({error.strerror}{raised}): they are listed anew in each pass"


# A listing of cgroups that is made again only where one was added or removed since.
#
# Listing 3 pods takes 0.12 ms of the way from a wake to a kill, 110 take three times as long; asking the
# kernel whether anything has changed takes 5 us however many there are. Of several directories that go into a
# listing those are read again that have changed.


class CachedListing(Generic[_Listing]):
    """Keeps a listing for as long as the directories that went into it stay as they are. For one thread.

    `unwatched_because` says why it was not kept when it was made last: directories can't be watched.
    """

    def __init__(self) -> None:
        self.unwatched_because: str | None = None
        self._changes = DirectoryChanges()
        self._kept: _Listing | None = None
        self._is_invalid = False
        self._sections: dict[str, dict[Hashable, Any]] = {}
        self._used: dict[str, dict[Hashable, Any]] = {}

    def fileno(self) -> int:
        """Return what is readable once a directory has changed since the last `get`; -1: nothing is."""
        return self._changes.fileno()

    def get(self, find: Callable[[], _Listing], *, again: bool = False) -> _Listing:
        """Return the listing; `find` makes it, and calls `watch` before it reads a directory.

        With `again` it is made in any case.
        """
        changed = self._changes.changed()
        if again:
            self._changes.watch_again()
        if changed is None:
            self._sections = {}
        elif changed:
            for directory in changed:
                self._sections.pop(directory, None)
        elif self._kept is not None and not again:
            return self._kept
        self._kept = None
        self._is_invalid = False
        self.unwatched_because = None
        self._used = {}
        found = find()
        self._sections = self._used
        if not self._is_invalid:
            self._kept = found
            if again:  # what is no part of it any more
                self._changes.keep({*self._used, *self._changes.watched})
        return found

    def section(
        self, directory: str, what: Hashable, find: Callable[[], _Section], *, again: bool = False
    ) -> _Section:
        """Return what `find` reads in a directory for the listing, and `what` that is.

        It is read where the directory has changed since, or `again`.
        """
        sections = self._sections.get(directory)
        if sections is not None and what in sections and not again:
            found: _Section = sections[what]
        else:
            is_watched = self.watch(directory)
            found = find()
            if not is_watched:
                return found
        self._used.setdefault(directory, {})[what] = found
        return found

    def watch(self, directory: str) -> bool:
        """Have the listing made again once the directory changes, or comes to be.

        Return whether that will be noticed.
        """
        wanted = directory
        try:
            while True:
                try:
                    self._changes.watch(wanted)
                except FileNotFoundError:
                    wanted, missing = os.path.dirname(wanted), wanted
                    continue
                if wanted == directory or not os.path.isdir(missing):
                    return wanted == directory
                wanted = directory  # came while what is above it was not watched yet
        except OSError as error:  # no inotify to be had: listed each time, then
            self.unwatched_because = _unwatched(error)
            self.invalidate()
            return False

    def invalidate(self) -> None:
        """Do not keep the listing that is being made: something in it could not be read."""
        self._is_invalid = True
