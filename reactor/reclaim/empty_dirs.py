"""An emptyDir ends with its pod: what lies in those of an evicted pod of a plain node is removed.

In Kubernetes the kubelet sees to that. Only an emptyDir, which promises nothing to be kept, is ever emptied;
its directory stays.

It is done as root in a tree that its tenant may be rearranging meanwhile. So no name is ever resolved by more
than one step from a directory that is open already, and openat2(2) refuses what leads elsewhere:

    the volume's own path    no symlink in any of its components; a mount on the way is the operator's
    every directory below    no symlink, no mount point (bind mounts of the same filesystem included), no `..`

A directory's entries are removed relative to its descriptor. Should the directory be moved out of the volume
meanwhile, that goes on in a place where its tenant could have moved the same files into the volume before.
Without openat2 (before Linux 5.6, or where a seccomp filter refuses it) nothing is emptied.

At most `_MOST_OPEN` directories are open at a time: one that lies deeper is moved up to the volume's top
first. Names are taken one by one, so that neither depth nor width costs memory.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from functools import partial
from typing import Final

from reactor.errors import ReactorError
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.libc import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2
from reactor.kernel.scheduling import following
from reactor.reclaim.reclaims import SOON, free_bytes_on, until_space_is_back
from reactor.threads import in_thread

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
_BELOW: Final = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_MOST_OPEN: Final = 32
_MOST_SECONDS: Final = 600.0  # files may come for ever
_NAMES_TRIED: Final = 100  # at the volume's top, for one directory
_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
_LISTS: Final = 4  # a directory is gone through again where something came while its entries were removed
_WHY: Final = {
    errno.ENOSYS: "the kernel lacks openat2(2) (Linux 5.6), or a seccomp filter refuses it",
    errno.ELOOP: "a symlink lies in the path",
    errno.EXDEV: "another filesystem or a bind mount is mounted there",
}


async def empty(tree: CgroupTree, path: str, cgroup: str | None) -> str | None:
    """Empty the emptyDir of a pod that has ended; return what went wrong, once its space shows as free.

    Where processes live in the pod's cgroup again, the files are theirs and stay.
    """
    with suppress(OSError, ReactorError):
        if cgroup is not None and tree.processes(cgroup):
            return "the pod runs again"
    problem = await in_thread(following(empty_directory), path, abandon_on_cancel=True)
    free = partial(free_bytes_on, (path,))
    await until_space_is_back(free, await free(), SOON)
    return problem


def empty_directory(path: str) -> str | None:
    """Remove all that lies in a directory; return what could not be removed, None where nothing is left.

    The directory is opened by its path without symlinks, all below it as the module's docstring says.
    """
    try:
        fd = openat2(path, _OPEN, RESOLVE_NO_SYMLINKS)
    except FileNotFoundError:
        return None
    except OSError as error:
        return _why(error)
    try:
        return _Emptying(fd).run()
    except OSError as error:
        return _why(error)
    finally:
        os.close(fd)


class _Directory:
    """A directory that is being emptied; `name` is its name below `parent_fd`, None for the volume itself."""

    __slots__ = ("entries", "failed", "fd", "found", "lists_left", "name", "parent_fd")

    def __init__(self, fd: int, parent_fd: int, name: str | None) -> None:
        self.fd = fd
        self.parent_fd = parent_fd
        self.name = name
        self.lists_left = _LISTS
        try:
            self.list()
        except OSError:
            os.close(fd)
            raise

    def list(self) -> None:
        """Begin with its entries. `found`: there was one since; `failed`: one could not be removed."""
        self.entries = os.scandir(self.fd)
        self.lists_left -= 1
        self.found = self.failed = False

    def close(self) -> None:
        self.entries.close()
        fd, self.fd = self.fd, -1
        os.close(fd)


class _Emptying:
    """Empties the directory of a descriptor, which stays open, by a stack of the directories on the way."""

    def __init__(self, top_fd: int) -> None:
        self._top_fd = top_fd
        self._device = os.fstat(top_fd).st_dev
        self._deadline = time.monotonic() + _MOST_SECONDS
        self._stack: list[_Directory] = []
        self._prefix = f".emptied-{os.urandom(8).hex()}-"  # no tenant may know the names beforehand
        self._moved = 0  # how many directories were moved to the volume's top, by numbers from 1 on
        self._problem: str | None = None

    def run(self) -> str | None:
        """Return what could not be removed, the last of it; None where nothing is left. Raises OSError."""
        try:
            self._stack.append(_Directory(os.dup(self._top_fd), -1, None))
            self._walk()
            number = 0
            while number < self._moved:  # and more may be moved while these are emptied
                number += 1
                self._remove_moved(self._moved_name(number))
                self._walk()
        finally:
            for directory in self._stack:
                directory.close()
        return self._problem

    def _walk(self) -> None:
        while self._stack:
            if time.monotonic() > self._deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"not done within {_MOST_SECONDS:g} s")
            self._step(self._stack[-1])

    def _step(self, directory: _Directory) -> None:
        """Remove the next entry, or enter it, or leave the directory where there is none."""
        entry = next(directory.entries, None)
        if entry is None:
            self._leave(directory)
            return
        if directory.name is None and self._is_moved(entry.name):
            return  # its turn comes when this walk is done
        directory.found = True
        try:
            if entry.is_dir(follow_symlinks=False):
                self._enter(directory.fd, entry.name)
            else:
                os.unlink(entry.name, dir_fd=directory.fd)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            pass  # gone, or exchanged: what is there now is seen at the next listing
        except OSError as error:
            self._note(directory, entry.name, _why(error))

    def _enter(self, parent_fd: int, name: str) -> None:
        """Remove a directory that is empty, and have any other emptied. Raises OSError."""
        with suppress(OSError):
            os.rmdir(name, dir_fd=parent_fd)
            return
        if len(self._stack) >= _MOST_OPEN:
            self._move_up(parent_fd, name)
            return
        fd = openat2(name, _OPEN, _BELOW, dir_fd=parent_fd)
        if os.fstat(fd).st_dev != self._device:  # a subvolume of btrfs is not mounted, and is another's too
            os.close(fd)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        self._stack.append(_Directory(fd, parent_fd, name))

    def _move_up(self, parent_fd: int, name: str) -> None:
        """Move a directory to the volume's top, to be emptied after this walk. Raises OSError.

        A mount point can't be moved (EBUSY), and nothing can be moved from one mount to another (EXDEV).
        """
        for tries_left in reversed(range(_NAMES_TRIED)):
            self._moved += 1
            try:
                os.rename(name, self._moved_name(self._moved), src_dir_fd=parent_fd, dst_dir_fd=self._top_fd)
            except OSError as error:
                if error.errno not in _TAKEN or not tries_left:
                    raise
                continue  # the tenant has read an earlier name, and taken the next ones
            return

    def _is_moved(self, name: str) -> bool:
        number = name.removeprefix(self._prefix)
        return number != name and number.isdecimal() and 0 < int(number[:20]) <= self._moved

    def _moved_name(self, number: int) -> str:
        return f"{self._prefix}{number}"

    def _remove_moved(self, name: str) -> None:
        try:
            try:
                self._enter(self._top_fd, name)
            except NotADirectoryError:
                os.unlink(name, dir_fd=self._top_fd)  # the name was taken already
        except FileNotFoundError:
            pass
        except OSError as error:
            self._problem = f"{name!r}: {_why(error)}"

    def _leave(self, directory: _Directory) -> None:
        """Go back to the directory above, this one removed; if something came meanwhile, list it again."""
        if not directory.failed and (directory.name is not None or directory.found):
            try:
                self._remove(directory)
            except OSError as error:
                if error.errno == errno.ENOTEMPTY and directory.lists_left > 0:
                    directory.entries.close()
                    directory.list()
                    return
                self._note(directory, directory.name or ".", _why(error))
        self._stack.pop()
        directory.close()
        if directory.failed and self._stack:
            self._stack[-1].failed = True  # no use in listing it again

    def _remove(self, directory: _Directory) -> None:
        """Remove a directory that is empty now. Raises OSError: ENOTEMPTY where it is not, or not surely."""
        if directory.name is None:
            raise OSError(errno.ENOTEMPTY, "files are created as fast as they are removed")
        with suppress(FileNotFoundError):
            os.rmdir(directory.name, dir_fd=directory.parent_fd)

    def _note(self, directory: _Directory, name: str, why: str) -> None:
        directory.failed = True
        self._problem = f"{name!r}: {why}"


def _why(error: OSError) -> str:
    return _WHY.get(error.errno or 0) or str(error.strerror)
