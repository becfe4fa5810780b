"""One daemon guards a node, and answers on its socket; a successor stands by until it is its turn."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from reactor.errors import ReactorError
from reactor.healthz import stand_by_path
from reactor.threads import in_thread

_BACKLOG: Final = 128
_CREDENTIALS: Final = struct.Struct("iII")  # pid, uid, gid: unix(7)

_LOG: Final = logging.getLogger("reactor.daemon")
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


# The daemon's Unix socket: made by the guard, so that two daemons can't have it, and served by the steward.
#
# The guard accepts nothing on it. Clients that come while there is no steward wait in the kernel's backlog.


class AnotherDaemonError(ReactorError):
    """A daemon lives on the socket already: two of them would each evict for the same pressure."""


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at `path`, for this user only; a dead daemon's socket is replaced.

    Raises AnotherDaemonError where a daemon answers, OSError (with the path) where none can listen.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_dead(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # bind(2) makes the file with the umask's mode: a chmod afterwards would leave a gap to connect in.
    # The umask is the process's; nothing else makes files this early.
    umask = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        error.filename = str(path)
        raise
    finally:
        os.umask(umask)
    return listener


def remove(path: Path) -> None:
    """Remove the socket's file at the end; one that is gone already is no problem."""
    with contextlib.suppress(OSError):
        path.unlink()


def _remove_dead(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is something that is no socket", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            # A full backlog, a timeout: a daemon lives there.
            raise AnotherDaemonError(f"{path}: {error.strerror or error}") from error
        if not _lives(_listener_pid(probe)):  # its steward has not noticed yet, or is stopped
            path.unlink(missing_ok=True)
            return
    raise AnotherDaemonError(f"{path}: a daemon answers there; give this one another reactor.socket")


def _listener_pid(connection: socket.socket) -> int:
    """Return which process called listen(2) for this connection; 0 where it is in no namespace of ours."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(raw)[0]
    return pid


def _lives(pid: int) -> bool:
    """Return whether a process may be alive: one that can't be read is taken for it."""
    if pid <= 0:
        return True
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True
    return text.rpartition(")")[2].split()[:1] not in (["Z"], ["X"])


# One daemon guards a node; a successor stands by until it is its turn.
#
# The guarding daemon holds a lock beside the state file, which the kernel takes away with the process however
# that ends. A successor has everything imported by then, and the state file is its predecessor's last word.
# While it stands by it holds a second lock, shared, by which its predecessor sees that there is one.


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
