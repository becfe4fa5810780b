"""Directories of pinned programs and maps below /sys/fs/bpf/reactor, each locked by the daemon that uses it.

A lock (flock) goes with its process, so an unlocked directory was left by a process that was killed:
it is taken over where it holds the very same programs, and removed where it doesn't. Taking over spares a
node that is short of memory the compiler. What this process has taken stays pinned, for the next part of it
that asks again, and is removed when it ends by itself.

bpffs has no names with a dot in them. Source: kernel/bpf/inode.c.
"""

from __future__ import annotations

import atexit
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from reactor.errors import BpfError

PINS: Final = Path("/sys/fs/bpf/reactor")
_UNFINISHED: Final = "new_"

_own: Final[list[Pins]] = []


class Pins:
    """One directory of pins, locked."""

    __slots__ = ("_lock_fd", "in_use", "path")

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self.in_use = True
        self._lock_fd = lock_fd
        if not _own:
            atexit.register(remove_own)
        _own.append(self)

    def finish(self, name: str) -> None:
        """Give the directory the name under which it can be taken over."""
        self.path = self.path.rename(self.path.with_name(f"{name}_{os.urandom(4).hex()}"))

    def keep(self) -> None:
        """Let another one in this process have it."""
        self.in_use = False

    def remove(self) -> None:
        """Unpin everything and unlock; a second time is harmless. What is in use is freed with its use."""
        lock_fd, self._lock_fd = self._lock_fd, -1
        if lock_fd >= 0:
            _own.remove(self)
            _remove(self.path)
            os.close(lock_fd)


def remove_own() -> None:
    """Remove everything that this process has pinned or taken over."""
    while _own:
        _own[0].remove()


def take(name: str, fill: Callable[[Path], None], *, root: Path = PINS) -> Pins:
    """Return the directory of this name: what is there already, or a new one with what `fill` pins in it.

    The name has to say all that the programs depend on. Raises BpfError where nothing can be pinned, and what
    `fill` raises; then nothing stays.
    """
    for pins in _own:
        if not pins.in_use and pins.path.name.startswith(f"{name}_"):
            pins.in_use = True
            return pins
    with _changing(root):
        found = _take_over(root, name)
        if found is not None:
            return found
        path = root / f"{_UNFINISHED}{name}_{os.urandom(4).hex()}"
        path.mkdir(mode=0o700)
        lock_fd = _locked(path)
    if lock_fd is None:
        raise BpfError(str(path), "is locked by another process")
    pins = Pins(path, lock_fd)
    try:
        fill(path)
        pins.finish(name)
    except BaseException:
        pins.remove()
        raise
    return pins


def _take_over(root: Path, name: str) -> Pins | None:
    """Return an abandoned directory of this name; remove all the other abandoned ones."""
    found = None
    for path in sorted(root.iterdir()):
        lock_fd = _locked(path)
        if lock_fd is None:
            continue
        if found is None and path.name.startswith(f"{name}_"):
            found = Pins(path, lock_fd)
        else:
            _remove(path)
            os.close(lock_fd)
    return found


@contextmanager
def _changing(root: Path) -> Iterator[None]:
    """Hold the lock on all directories; nothing that takes time happens in it."""
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        hint = "a bpf filesystem is needed (mount -t bpf bpf /sys/fs/bpf), and CAP_BPF"
        raise BpfError(str(root), f"{error.strerror}; {hint}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the directory's lock, None where another process does."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _remove(path: Path) -> None:
    with suppress(OSError):  # what can't be removed now, the next start removes
        for pin in path.iterdir():
            pin.unlink()
        path.rmdir()
