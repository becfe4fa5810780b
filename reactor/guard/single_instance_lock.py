"""One daemon guards a node; a successor stands by until it is its turn.

The guarding daemon holds a lock beside the state file, which the kernel takes away with the process however
that ends. A successor has everything imported by then, and the state file is its predecessor's last word.
While it stands by it holds a second lock, shared, by which its predecessor sees that there is one.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from reactor.guard.listening import AnotherDaemonError
from reactor.healthz import stand_by_path
from reactor.threads import in_thread

_LOG: Final = logging.getLogger("reactor.daemon")
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@asynccontextmanager
async def single_instance_lock(
    state_path: Path,
    *,
    stand_by: bool,
    waits: Callable[[], None] = lambda: None,
    socket_path: Path | None = None,
    not_ready_because: str | None = None,
) -> AsyncIterator[None]:
    """Hold the node's lock, `state_path`.lock, inside the block; with `stand_by` wait for it.

    `waits` is called where it has to. Beside `socket_path` a probe finds meanwhile that this daemon waits
    (reactor/healthz.py), and why it is not ready: it answers on no socket yet.

    Where the lock can't be made the block is entered all the same: a node without a guard is worse than one
    with two. Raises AnotherDaemonError where another daemon holds it and `stand_by` is not set.
    """
    path = _lock_path(state_path)
    shown = {} if socket_path is None else {Path(stand_by_path(str(socket_path))): not_ready_because or ""}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, _FLAGS, 0o600)
    except OSError as error:
        _LOG.warning("a second daemon would not be noticed: %s", error)
        yield
        return
    try:
        await _take(fd, path, stand_by=stand_by, waits=waits, shown=shown)
        yield
    finally:
        os.close(fd)


async def _take(
    fd: int, path: Path, *, stand_by: bool, waits: Callable[[], None], shown: Mapping[Path, str]
) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        return
    if not stand_by:
        raise AnotherDaemonError(
            f"{path}: another daemon holds it; reactor run --stand-by waits for its turn"
        )
    _LOG.info("standing by: another daemon guards this node")
    waits()
    with ExitStack() as seen:
        seen.enter_context(_locked(_stand_by_path(path)))
        for beside_socket, content in shown.items():
            with suppress(OSError):
                beside_socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            seen.enter_context(_locked(beside_socket, content))
        # The kernel wakes the thread at once. One that is abandoned because we are to end goes on waiting
        # without a descriptor to hold what it may get.
        await in_thread(fcntl.flock, fd, fcntl.LOCK_EX, abandon_on_cancel=True)
    _LOG.info("the other daemon has ended: taking over")


@contextmanager
def _locked(path: Path, content: str = "") -> Iterator[None]:
    """Show inside the block that this daemon stands by, by a locked file of this content."""
    fd = None
    with suppress(OSError):  # those that wait share it
        fd = os.open(path, _FLAGS, 0o600)
        with suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, content.encode(errors="backslashreplace"), 0)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def is_guarded(state_path: Path) -> bool:
    """Return whether a daemon with this state file guards the node. Never waits."""
    return _is_locked(_lock_path(state_path), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def is_stood_by(state_path: Path) -> bool:
    """Return whether another daemon waits for the end of the one with this state file. Never waits."""
    return _is_locked(_stand_by_path(_lock_path(state_path)), _FLAGS)


def _is_locked(path: Path, flags: int) -> bool:
    try:
        fd = os.open(path, flags, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _lock_path(state_path: Path) -> Path:
    return state_path.with_name(f"{state_path.name}.lock")


def _stand_by_path(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.stand-by")
