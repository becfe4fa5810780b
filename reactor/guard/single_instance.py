"""One daemon guards a node, and answers on its socket; a successor stands by until it is its turn."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from reactor.errors import ConfigError, Problem, ReactorError
from reactor.healthz import stand_by_path
from reactor.kernel.cgroup import CgroupTree
from reactor.kernel.files import try_lock
from reactor.kernel.procfs import is_exiting
from reactor.model.settings import Settings
from reactor.threads import in_thread

_BACKLOG: Final = 128
_CREDENTIALS: Final = struct.Struct("iII")  # pid, uid, gid: unix(7)

_OF_ANOTHER_STATE: Final = "another daemon, of another reactor.stateFile,"
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
        raw = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        # The pid is that of the process which called listen(2), 0 if that is in no namespace of ours.
        pid, _uid, _gid = _CREDENTIALS.unpack(raw)
        if pid > 0 and is_exiting(pid):  # its steward has not noticed yet, or is stopped
            path.unlink(missing_ok=True)
            return
    raise AnotherDaemonError(f"{path}: a daemon answers there; give this one another reactor.socket")


# One daemon guards a node; a successor stands by until it is its turn.
#
# The guarding daemon holds a lock beside the state file, which the kernel takes away with the process however
# that ends. A successor has everything imported by then, and the state file is its predecessor's last word.
# While it stands by it holds a second lock, shared, by which its predecessor sees that there is one.
#
# Daemons with other state files are kept away by a lock on a file of the node's cgroup (open_private there).
# One that only decides, as a dry run does, may run beside the one that evicts, with a new configuration, say.
# A reload takes the lock that it needs, and releases the one before once it is in force. A container's daemon
# and one of the host share the lock; each virtual node has its own.


class NodeLock:
    """The lock of the node: of two while a reload goes from one to the other, of none for a dry run."""

    def __init__(self, tree: CgroupTree) -> None:
        self._tree = tree
        self._held: dict[str | None, int | None] = {}
        self._is_due = False

    def begin(self, settings: Settings) -> int | None:
        """Return the lock to be waited for in the daemon's turn, None without one."""
        self._is_due = True
        node = _guarded(settings)
        if node is not None:
            self._held[node] = self._tree.open_private(node)
        return self._held.get(node)

    def change(self, settings: Settings) -> None:
        """Take the lock that a reload needs, beside the present one. Raises ConfigError where it can't."""
        node = _guarded(settings)
        if node is None or node in self._held or not self._is_due:
            return
        if (fd := self._tree.open_private(node)) is not None and not try_lock(fd):
            os.close(fd)
            key, got, instead = "dryRun", "false", "true, or no pods.parents"
            if self._held:
                key, got, instead = "nodeCgroup", repr(node), "another node"
            accepted = f"{instead}, while {_OF_ANOTHER_STATE} guards this node"
            raise ConfigError([Problem(path=f"reactor.{key}", got=got, accepted=accepted)])
        self._held[node] = fd

    def keep(self, *settings: Settings | None) -> None:
        """Release all locks but those that these settings need."""
        for node in self._held.keys() - {_guarded(one) for one in settings if one is not None}:
            if (fd := self._held.pop(node)) is not None:
                os.close(fd)


def _guarded(settings: Settings) -> str | None:
    return (settings.node_cgroup or "/") if settings.pod_parents and not settings.dry_run else None


@asynccontextmanager
async def single_instance_lock(
    state_path: Path,
    *,
    stand_by: bool,
    waits: Callable[[], None] = lambda: None,
    node: Callable[[], int | None] = lambda: None,
    socket_path: Path | None = None,
    not_ready_because: str | None = None,
) -> AsyncIterator[None]:
    """Hold the lock `state_path`.lock inside the block, and the `node`'s; with `stand_by` wait for them.

    `waits` is called where it has to, `node` after it. Beside `socket_path` a probe finds that this one waits
    (reactor/healthz.py), and why it is not ready: it answers on no socket yet.

    Where the lock can't be made the block is entered all the same: a node without a guard is worse than one
    with two. Raises AnotherDaemonError where another daemon holds it and `stand_by` is not set.
    """
    path = _lock_path(state_path)
    shown = {_stand_by_path(path): ""}
    if socket_path is not None:
        shown[Path(stand_by_path(str(socket_path)))] = not_ready_because or ""
    take = partial(_take, stand_by=stand_by, waits=waits, shown=shown)
    with ExitStack() as held:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, _FLAGS, 0o600)
        except OSError as error:
            _LOG.warning("a second daemon would not be noticed: %s", error)
        else:
            held.callback(os.close, fd)
            await take(fd, f"{path}: another daemon")
        if (of_node := node()) is not None:
            await take(of_node, f"the node's lock: {_OF_ANOTHER_STATE}")
        yield


async def _take(
    fd: int, held_by: str, *, stand_by: bool, waits: Callable[[], None], shown: Mapping[Path, str]
) -> None:
    if try_lock(fd):
        return
    if not stand_by:
        raise AnotherDaemonError(f"{held_by} holds it; reactor run --stand-by waits for its turn")
    _LOG.info("standing by: another daemon guards this node")
    waits()
    with ExitStack() as seen:
        for one, content in shown.items():
            with suppress(OSError):
                _show(one, content, seen)
        # The kernel wakes the thread at once. One that is abandoned because we are to end goes on waiting
        # without a descriptor to hold what it may get.
        await in_thread(fcntl.flock, fd, fcntl.LOCK_EX, abandon_on_cancel=True)
    _LOG.info("the other daemon has ended: taking over")


def _show(path: Path, content: str, seen: ExitStack) -> None:
    """Show that this daemon stands by, by a locked file of this content. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, _FLAGS, 0o600)
    seen.callback(os.close, fd)
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, content.encode(errors="backslashreplace"), 0)
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # those that wait share it


def is_guarded(state_path: Path) -> bool:
    """Return whether a daemon with this state file guards the node. Never waits."""
    return _is_locked(_lock_path(state_path), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def is_stood_by(state_path: Path) -> bool:
    """Return whether another daemon waits for the end of the one with this state file. Never waits."""
    return _is_locked(_stand_by_path(_lock_path(state_path)), _FLAGS)


def _is_locked(path: Path, flags: int) -> bool:
    with suppress(OSError), os.fdopen(os.open(path, flags, 0o600), "rb") as file:
        return not try_lock(file.fileno())
    return False


def _lock_path(state_path: Path) -> Path:
    return state_path.with_name(f"{state_path.name}.lock")


def _stand_by_path(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.stand-by")
